//! Devices as identifiers know them: opened at first use and never closed; with a default PD and an XRC domain that live as long as an
//! identifier is bound to the device.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scalefabric_ibv::abi::{self, Context, Pd, Xrcd};

use crate::engine::*;

/// What a device index says that is not known.
const NO_INDEX: u32 = u32::MAX;

/// A device. It stays for the life of the process.
#[derive(Debug)]
pub struct Device {
    device: *mut abi::Device,
    /// Big-endian, as every interface hands it over.
    guid: u64,
    index: u32,
    open: Mutex<Open>,
}

/// What is open of it.
#[derive(Debug)]
struct Open {
    verbs: *mut Context,
    pd: *mut Pd,
    xrcd: *mut Xrcd,
    /// Identifiers bound to it.
    users: usize,
    max_initiator_depth: u8,
    max_responder_resources: u8,
}

// SAFETY: the pointers are objects of libibverbs, which any thread may use.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Devices that were ever seen, in the order of the list.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All devices that are there now. `ENODEV` if there is none.
fn refreshed() -> Result<Vec<&'static Device>, Errno> {
    let mut known = lock(&DEVICES);
    let mut count: c_int = 0;
    // SAFETY: `count` lives through the call.
    let list = made(unsafe { ibv_get_device_list(&raw mut count) })?;
    // SAFETY: the list has so many entries.
    let devices: Vec<*mut abi::Device> = (0..count.max(0) as usize).map(|at| unsafe { *list.add(at) }).collect();
    let mut news = false;
    for &device in &devices {
        if known.iter().all(|known| known.device != device) {
            // SAFETY: an entry of the list.
            let (guid, index) = unsafe { (ibv_get_device_guid(device), ibv_get_device_index(device)) };
            let open = Mutex::new(Open {
                verbs: null_mut(),
                pd: null_mut(),
                xrcd: null_mut(),
                users: 0,
                max_initiator_depth: 0,
                max_responder_resources: 0,
            });
            known.push(Box::leak(Box::new(Device { device, guid, index: index.cast_unsigned(), open })));
            news = true;
        }
    }
    if !news {
        // A list whose devices are known from it stays: that keeps them.
        // SAFETY: it is that list.
        unsafe { ibv_free_device_list(list) };
    }
    let present: Vec<_> = known.iter().copied().filter(|known| devices.contains(&known.device)).collect();
    if present.is_empty() { Err(libc::ENODEV) } else { Ok(present) }
}

/// The device that a query named, bound once more. What is bound must be let go with [`Device::release`].
pub fn acquire(guid: u64, index: u32) -> Result<&'static Device, Errno> {
    let is_meant = |device: &&&'static Device| {
        device.guid == guid && (index == NO_INDEX || device.index == NO_INDEX || device.index == index)
    };
    let seen = lock(&DEVICES).iter().find(is_meant).copied();
    let device = match seen {
        Some(device) => device,
        None => *refreshed()?.iter().find(is_meant).ok_or(libc::ENODEV)?,
    };
    let mut open = device.opened()?;
    if open.pd.is_null() {
        // SAFETY: the device is open.
        open.pd = made(unsafe { ibv_alloc_pd(open.verbs) })?;
    }
    open.users += 1;
    Ok(device)
}

impl Device {
    fn opened(&self) -> Result<MutexGuard<'_, Open>, Errno> {
        let mut open = lock(&self.open);
        if open.verbs.is_null() {
            // SAFETY: the device is one of the list; zeros are an attribute struct, which the call fills.
            unsafe {
                let verbs = made(ibv_open_device(self.device))?;
                let mut attr: abi::DeviceAttr = std::mem::zeroed();
                done(ibv_query_device(verbs, &raw mut attr))?;
                open.max_initiator_depth = attr.max_qp_init_rd_atom.clamp(0, 255) as u8;
                open.max_responder_resources = attr.max_qp_rd_atom.clamp(0, 255) as u8;
                open.verbs = verbs;
            }
        }
        Ok(open)
    }

    /// An identifier is not bound to it any more.
    pub fn release(&self) {
        let mut open = lock(&self.open);
        open.users -= 1;
        if open.users == 0 {
            // SAFETY: both were made here; nobody has been given them without being counted.
            unsafe {
                if !open.xrcd.is_null()
                    && let Ok(close) = operation!(open.verbs, close_xrcd)
                {
                    close(open.xrcd);
                }
                ibv_dealloc_pd(open.pd);
            }
            (open.pd, open.xrcd) = (null_mut(), null_mut());
        }
    }

    /// The context and the default PD. Bound identifiers ask.
    pub fn context(&self) -> (*mut Context, *mut Pd) {
        let open = lock(&self.open);
        (open.verbs, open.pd)
    }

    /// Most READs and atomics that a QP may have outstanding: as initiator, as responder.
    pub fn depths(&self) -> (u8, u8) {
        let open = lock(&self.open);
        (open.max_initiator_depth, open.max_responder_resources)
    }

    /// The default XRC domain.
    pub fn xrcd(&self) -> Result<*mut Xrcd, Errno> {
        let mut open = lock(&self.open);
        if open.xrcd.is_null() {
            let mut init = abi::XrcdInitAttr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
            let make = operation!(open.verbs, open_xrcd)?;
            // SAFETY: the device is open, and `init` lives through the call.
            open.xrcd = made(unsafe { make(open.verbs, &raw mut init) })?;
        }
        Ok(open.xrcd)
    }
}

/// Whether there is a device at all.
pub fn any() -> Result<(), Errno> {
    if lock(&DEVICES).is_empty() { refreshed().map(drop) } else { Ok(()) }
}

/// `rdma_get_devices`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut Context {
    let contexts = refreshed().and_then(|devices| {
        devices.iter().map(|device| device.opened().map(|open| open.verbs)).collect::<Result<Vec<_>, _>>()
    });
    let list = contexts.and_then(|contexts| {
        // SAFETY: room for the contexts and the null at the end.
        let list = made(unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut Context>()) })?.cast::<*mut Context>();
        // SAFETY: as above.
        unsafe { list.copy_from_nonoverlapping(contexts.as_ptr(), contexts.len()) };
        Ok((list, contexts.len()))
    });
    let (list, count) = list.unwrap_or_else(|errno| {
        status(Err(errno));
        (null_mut(), 0)
    });
    if !num_devices.is_null() {
        // SAFETY: the caller's.
        unsafe { *num_devices = count as c_int };
    }
    list
}

/// `rdma_free_devices`. The devices stay open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut Context) {
    // SAFETY: the caller's, from `rdma_get_devices`.
    unsafe { libc::free(list.cast()) };
}
