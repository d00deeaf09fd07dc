//! What the objects of an open device share: the context of C, the functions, and what is known of the driver.

use core::ffi::{CStr, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use scalefabric_verbs::{DeviceAttr, DeviceInfo, DeviceLimits, Gid, Mtu, PKey, PortAttr, QpType, VerbsError};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside};
use crate::library::{Verbs, last_errno, text};
use crate::objects::{returned, set_nonblocking};
use crate::translate;
use crate::vendor::{self, Vendor};

/// Operations of the data path, read once: C's inline functions read them at each call.
pub(crate) struct FastPath {
    pub(crate) poll_cq: unsafe extern "C" fn(*mut abi::Cq, c_int, *mut abi::Wc) -> c_int,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int,
    pub(crate) post_send: unsafe extern "C" fn(*mut abi::Qp, *mut abi::SendWr, *mut *mut abi::SendWr) -> c_int,
    pub(crate) post_recv: unsafe extern "C" fn(*mut abi::Qp, *mut abi::RecvWr, *mut *mut abi::RecvWr) -> c_int,
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut abi::Srq, *mut abi::RecvWr, *mut *mut abi::RecvWr) -> c_int>,
}

/// An open device. Dropping it closes it; every object keeps it alive.
pub(crate) struct Device {
    pub(crate) verbs: &'static Verbs,
    pub(crate) fast: FastPath,
    pub(crate) info: DeviceInfo,
    pub(crate) async_fd: i32,
    pub(crate) sysfs: PathBuf,
    /// Numbers for CQs: C has none.
    pub(crate) next_cq: AtomicU32,
    handle: Handle<abi::Context>,
    max_inline: OnceLock<u32>,
    vendor: OnceLock<Option<&'static Vendor>>,
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device").field("info", &self.info).field("driver", &self.driver()).finish_non_exhaustive()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing of this context is left: every object held an Arc of us. In a forked child nothing is done.
        let _ = self.handle.end(|context| unsafe { (self.verbs.close_device)(context) });
    }
}

/// An operation of `verbs_context`, if the library that made the context has it and the driver offers it.
macro_rules! operation {
    ($context:expr, $member:ident) => {
        $crate::objects::device::extended($context).and_then(|extended| {
            let offset = ::core::mem::offset_of!($crate::abi::VerbsContext, $member);
            // SAFETY: `extended` ends in a context of libibverbs, and its `sz` says that it has the member.
            unsafe { if $crate::abi::has_operation((*extended).sz, offset) { (*extended).$member } else { None } }
        })
    };
}
pub(crate) use operation;

/// The structure around a context, as far as it goes; `None` where a context has none.
pub(crate) fn extended(context: *mut abi::Context) -> Option<*mut abi::VerbsContext> {
    // SAFETY: the caller is inside the context's handle.
    let compat = unsafe { (*context).abi_compat };
    (compat as usize == usize::MAX)
        .then(|| context.wrapping_byte_sub(core::mem::offset_of!(abi::VerbsContext, context)).cast())
}

/// The interfaces of a device's ports, by sysfs, in port order.
pub(crate) fn sysfs_interfaces(sysfs: &Path) -> Vec<String> {
    let mut interfaces = Vec::new();
    for port in 1..=u8::MAX {
        let folder = sysfs.join(format!("ports/{port}"));
        if !folder.exists() {
            break;
        }
        // Any index will do, but only those in use can be read.
        let name = (0..16).find_map(|index| fs::read_to_string(folder.join(format!("gid_attrs/ndevs/{index}"))).ok());
        if let Some(name) = name {
            interfaces.push(name.trim().to_owned());
        }
    }
    interfaces
}

impl Device {
    /// Opens a device of the list that `ibv_get_device_list` gave and that is still held.
    pub(crate) fn open(
        verbs: &'static Verbs,
        device: *mut abi::Device,
        info: DeviceInfo,
    ) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: a device of the list.
        let context = unsafe { (verbs.open_device)(device) };
        if context.is_null() {
            return Err(explain::open(&info.name, last_errno()));
        }
        let handle = Handle::new(context);
        // SAFETY: an open context; its operations do not change after opening.
        let (ops, async_fd) = unsafe { (&(*context).ops, (*context).async_fd) };
        let (Some(poll_cq), Some(req_notify_cq), Some(post_send), Some(post_recv)) =
            (ops.poll_cq, ops.req_notify_cq, ops.post_send, ops.post_recv)
        else {
            // SAFETY: just opened, and nothing was made of it.
            unsafe { (verbs.close_device)(context) };
            return Err(explain::unsupported(&format!("posting and polling on {}", info.name)));
        };
        // SAFETY: the device's own strings.
        let sysfs = PathBuf::from(unsafe { text(&(*device).ibdev_path) });
        let fast = FastPath { poll_cq, req_notify_cq, post_send, post_recv, post_srq_recv: ops.post_srq_recv };
        let opened = Self {
            verbs,
            fast,
            info,
            async_fd,
            sysfs,
            next_cq: AtomicU32::new(1),
            handle,
            max_inline: OnceLock::new(),
            vendor: OnceLock::new(),
        };
        set_nonblocking(async_fd)?;
        Ok(Arc::new(opened))
    }

    /// The context; it stays as long as the device does.
    pub(crate) fn context(&self) -> Inside<'_, abi::Context> {
        self.handle.enter().expect("a device is closed when it is dropped, and not before")
    }

    /// The kernel's driver, if the device stands on a bus.
    fn kernel_driver(&self) -> Option<String> {
        let link = fs::read_link(self.sysfs.join("device/driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// What is known of the driver.
    pub(crate) fn vendor(&self) -> Option<&'static Vendor> {
        *self.vendor.get_or_init(|| {
            let attr = self.raw_attr().ok()?;
            let base = &attr.orig_attr;
            vendor::of_device(self.kernel_driver().as_deref(), base.vendor_id, base.vendor_part_id)
        })
    }

    /// Its name; empty if it is not known.
    pub(crate) fn driver(&self) -> &'static str {
        self.vendor().map_or("", |vendor| vendor.driver)
    }

    fn raw_attr(&self) -> Result<abi::DeviceAttrEx, VerbsError> {
        let inside = self.context();
        let context = inside.pointer();
        // SAFETY: all members are numbers.
        let mut attr: abi::DeviceAttrEx = unsafe { core::mem::zeroed() };
        if let Some(query) = operation!(context, query_device_ex) {
            // SAFETY: the operation's own signature; the size is that of our structure.
            let code = unsafe { query(context, core::ptr::null(), &mut attr, size_of::<abi::DeviceAttrEx>()) };
            if code == 0 {
                return Ok(attr);
            }
            if !matches!(returned(code), libc::EOPNOTSUPP | libc::ENOSYS) {
                return Err(explain::failed("query the device", returned(code)));
            }
        }
        // SAFETY: as above.
        match unsafe { (self.verbs.query_device)(context, &mut attr.orig_attr) } {
            0 => Ok(attr),
            code => Err(explain::failed("query the device", returned(code))),
        }
    }

    pub(crate) fn attr(&self) -> Result<DeviceAttr, VerbsError> {
        let raw = self.raw_attr()?;
        let inside = self.context();
        // SAFETY: an open context.
        let vectors = unsafe { (*inside.pointer()).num_comp_vectors };
        Ok(translate::device_attr(&raw, u32::try_from(vectors).unwrap_or(1), self.max_inline()))
    }

    /// Attributes for an explanation: none if they cannot be had.
    pub(crate) fn attr_or_none(&self) -> Option<DeviceAttr> {
        self.attr().ok()
    }

    pub(crate) fn port(&self, port_num: u8) -> Result<PortAttr, VerbsError> {
        let inside = self.context();
        let context = inside.pointer();
        // SAFETY: all members are numbers.
        let mut attr: abi::PortAttr = unsafe { core::mem::zeroed() };
        let code = match operation!(context, query_port) {
            // SAFETY: the operation's own signature; the size is that of our structure.
            Some(query) => unsafe { query(context, port_num, &mut attr, size_of::<abi::PortAttr>()) },
            // SAFETY: the function writes the first 48 bytes.
            None => unsafe { (self.verbs.query_port)(context, port_num, &mut attr) },
        };
        match code {
            0 => Ok(translate::port_attr(&attr)),
            code if returned(code) == libc::EINVAL => {
                let count = self.raw_attr().map_or(0, |attr| attr.orig_attr.phys_port_cnt);
                Err(VerbsError::invalid(format!(
                    "port {port_num} does not exist: the device has {count} port(s), numbered from 1"
                )))
            }
            code => Err(explain::failed(&format!("query port {port_num}"), returned(code))),
        }
    }

    pub(crate) fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid, VerbsError> {
        let inside = self.context();
        let mut gid = abi::Gid::default();
        let at = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: an open context, and a GID of ours to fill.
        match unsafe { (self.verbs.query_gid)(inside.pointer(), port_num, at, &mut gid) } {
            0 => Ok(Gid(gid.0)),
            code => {
                let length = self.port(port_num)?.gid_tbl_len;
                if index >= length {
                    return Err(VerbsError::invalid(format!(
                        "GID index {index} is beyond the table of port {port_num}, which has {length} entries"
                    )));
                }
                match returned(code) {
                    // Old kernels refuse an empty slot.
                    libc::EINVAL | libc::ENODATA | libc::ENOENT => Ok(Gid::ZERO),
                    raw => Err(explain::failed(&format!("query GID {index} of port {port_num}"), raw)),
                }
            }
        }
    }

    pub(crate) fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey, VerbsError> {
        let inside = self.context();
        let mut pkey = 0;
        // SAFETY: an open context, and a key of ours to fill.
        match unsafe { (self.verbs.query_pkey)(inside.pointer(), port_num, index.into(), &mut pkey) } {
            0 => Ok(PKey(u16::from_be(pkey))),
            code => {
                let length = self.port(port_num)?.pkey_tbl_len;
                if index >= length {
                    return Err(VerbsError::invalid(format!(
                        "P_Key index {index} is beyond the table of port {port_num}, which has {length} entries"
                    )));
                }
                Err(explain::failed(&format!("query P_Key {index} of port {port_num}"), returned(code)))
            }
        }
    }

    /// Inline bytes that a send WR with one SGE can have. No call tells it: QPs are made until one is refused, once.
    fn max_inline(&self) -> u32 {
        if let Some(known) = self.max_inline.get() {
            return *known;
        }
        let hint = self.vendor().and_then(|vendor| vendor.max_inline);
        let found = self.try_inline(hint).unwrap_or_else(|| hint.unwrap_or(0));
        *self.max_inline.get_or_init(|| found)
    }

    /// Tries: `None` if not even a QP without inline data can be made.
    fn try_inline(&self, hint: Option<u32>) -> Option<u32> {
        let inside = self.context();
        let (context, verbs) = (inside.pointer(), self.verbs);
        // SAFETY: each object is made of the one before, checked, and destroyed here in the opposite order.
        unsafe {
            let pd = (verbs.alloc_pd)(context);
            if pd.is_null() {
                return None;
            }
            let cq = (verbs.create_cq)(context, 1, core::ptr::null_mut(), core::ptr::null_mut(), 0);
            let found = if cq.is_null() { None } else { self.largest_inline(pd, cq, hint) };
            if !cq.is_null() {
                (verbs.destroy_cq)(cq);
            }
            (verbs.dealloc_pd)(pd);
            found
        }
    }

    /// # Safety
    /// `pd` and `cq` are objects of this device.
    unsafe fn largest_inline(&self, pd: *mut abi::Pd, cq: *mut abi::Cq, hint: Option<u32>) -> Option<u32> {
        // What a QP got, if it could be made.
        let make = |qp_type: QpType, bytes: u32| {
            let mut init = abi::QpInitAttr {
                qp_context: core::ptr::null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: core::ptr::null_mut(),
                cap: abi::QpCap {
                    max_send_wr: 1,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: bytes,
                },
                qp_type: qp_type as u32,
                sq_sig_all: 0,
            };
            // SAFETY: the caller's objects; the QP is destroyed at once.
            unsafe {
                let qp = (self.verbs.create_qp)(pd, &mut init);
                if qp.is_null() {
                    return None;
                }
                (self.verbs.destroy_qp)(qp);
            }
            Some(init.cap.max_inline_data)
        };
        let qp_type = [QpType::Rc, QpType::Ud].into_iter().find(|qp_type| make(*qp_type, 0).is_some())?;
        // A driver that takes a number and gives less has told its limit, too.
        let fits = |bytes: u32| make(qp_type, bytes).is_some_and(|got| got >= bytes);
        if let Some(hint) = hint
            && fits(hint)
            && !fits(hint + 1)
        {
            return Some(hint);
        }
        let (mut good, mut bad) = (0, 1 << 14);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if fits(middle) {
                good = middle;
            } else {
                bad = middle;
            }
        }
        Some(good)
    }
}

/// What explanations are held against.
impl DeviceLimits for Device {
    fn port_count(&self) -> u8 {
        self.raw_attr().map_or(1, |attr| attr.orig_attr.phys_port_cnt)
    }
    fn active_mtu(&self, port_num: u8) -> Mtu {
        self.port(port_num).map_or(Mtu::Mtu4096, |port| port.active_mtu)
    }
    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey> {
        self.query_pkey(port_num, index).ok()
    }
    fn gid(&self, port_num: u8, index: u8) -> Option<Gid> {
        self.query_gid(port_num, index.into()).ok()
    }
    fn max_qp_rd_atom(&self) -> u32 {
        self.raw_attr().map_or(255, |attr| attr.orig_attr.max_qp_rd_atom.max(0) as u32)
    }
    fn max_qp_init_rd_atom(&self) -> u32 {
        self.raw_attr().map_or(255, |attr| attr.orig_attr.max_qp_init_rd_atom.max(0) as u32)
    }
}

/// Name of an interface by its index.
pub(crate) fn interface_name(index: u32) -> String {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: a buffer of the size that the call asks for.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return String::new();
    }
    // SAFETY: filled and ended by the call.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}
