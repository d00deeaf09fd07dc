//! Devices: the list, names, opening and closing. Ours come first, then those of the distribution's library; with
//! `SCALEFABRIC_HIDE_REAL=1` ours are all.
//!
//! A device keeps its address for the life of the process: librdmacm compares lists by pointers.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use scalefabric_ibv::abi;
use scalefabric_nic::options::Options;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_verbs::{DeviceInfo, Provider, VerbsError};

use super::answer::{Outcome, or_minus, pointer, set_errno, stale, status, tell};
use super::behind::behind;
use super::context;
use super::lock::Lock;
use super::object::{ROOM, sign};

/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`: librdmacm asks for routes only where the transport is InfiniBand's.
const NODE_CA: i32 = 1;
const TRANSPORT_IB: i32 = 0;

#[repr(C)]
struct DeviceObject {
    c: abi::Device,
    /// Where providers look for their `verbs_device`: nothing.
    room: [u8; ROOM],
    info: DeviceInfo,
}

/// True for a device of ours.
///
/// # Safety
/// `device` points to a `struct ibv_device`.
#[inline]
pub unsafe fn is_ours(device: *mut abi::Device) -> bool {
    // SAFETY: the caller's promise; the slot is a word, whatever it holds.
    unsafe { (&raw const (*device).ops.dummy1).cast::<usize>().read() == sign() }
}

/// The device of the context of destroyed objects.
pub fn nobody() -> *mut abi::Device {
    static NOBODY: AtomicPtr<abi::Device> = AtomicPtr::new(std::ptr::null_mut());
    let mut device = NOBODY.load(Ordering::Acquire);
    if device.is_null() {
        device = make(DeviceInfo { name: "gone".into(), node_guid: 0, index: u32::MAX, interfaces: Vec::new() });
        NOBODY.store(device, Ordering::Release);
    }
    device
}

/// Puts a string into an array of C, cut to leave a zero.
fn put(into: &mut [c_char], text: &str) {
    let bytes = text.bytes().take(into.len() - 1);
    into.iter_mut().zip(bytes).for_each(|(to, from)| *to = from as c_char);
}

fn make(info: DeviceInfo) -> *mut abi::Device {
    let mut c = abi::Device {
        ops: abi::DeviceOps { dummy1: None, dummy2: None },
        node_type: NODE_CA,
        transport_type: TRANSPORT_IB,
        name: [0; 64],
        dev_name: [0; 64],
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    };
    // SAFETY: the slot is an optional function pointer that nobody calls; any word that is not 0 is one.
    unsafe { (&raw mut c.ops.dummy1).cast::<usize>().write(sign()) };
    let uverbs = crate::tree::state::uverbs(info.index);
    put(&mut c.name, &info.name);
    put(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{uverbs}"));
    put(&mut c.ibdev_path, &format!("/sys/class/infiniband/{}", info.name));
    put(&mut c.dev_name, &uverbs);
    Box::into_raw(Box::new(DeviceObject { c, room: [0; ROOM], info })).cast()
}

/// What we know of a device of ours.
///
/// # Safety
/// `device` is ours.
unsafe fn info<'a>(device: *mut abi::Device) -> &'a DeviceInfo {
    // SAFETY: devices of ours are `DeviceObject`s and live for ever.
    unsafe { &(*device.cast::<DeviceObject>()).info }
}

/// The provider, made from the environment at the first call.
pub fn provider() -> Outcome<&'static SoftwareProvider> {
    static PROVIDER: OnceLock<Result<SoftwareProvider, VerbsError>> = OnceLock::new();
    PROVIDER.get_or_init(|| Options::from_environment().map(SoftwareProvider::new)).as_ref().map_err(Clone::clone)
}

/// Devices by name.
static KNOWN: Lock<Option<HashMap<String, usize>>> = Lock::new(None);

/// Our devices that are there now.
fn ours() -> Outcome<Vec<*mut abi::Device>> {
    let infos = provider()?.devices()?;
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    let device = |info: DeviceInfo| *known.entry(info.name.clone()).or_insert_with(|| make(info) as usize);
    Ok(infos.into_iter().map(device).map(|device| device as *mut abi::Device).collect())
}

/// Our device of this name, if it is there.
pub fn by_name(name: &str) -> Option<*mut abi::Device> {
    // SAFETY: they are ours.
    ours().ok()?.into_iter().find(|device| unsafe { info(*device) }.name == name)
}

type GetList = unsafe extern "C" fn(*mut c_int) -> *mut *mut abi::Device;
type FreeList = unsafe extern "C" fn(*mut *mut abi::Device);

/// `ibv_get_device_list`. Before the first entry stands the real library's own list, for `ibv_free_device_list`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut abi::Device {
    const CALL: &str = "ibv_get_device_list";
    let mut devices = match ours() {
        Ok(devices) => devices,
        Err(error) => {
            tell(CALL, &error);
            Vec::new()
        }
    };
    let mut count: c_int = 0;
    let real = match crate::real::has_devices() {
        true => behind!(ibv_get_device_list as GetList, (&raw mut count), else std::ptr::null_mut()),
        false => std::ptr::null_mut(),
    };
    if !real.is_null() {
        // SAFETY: the library's list has so many entries.
        let entries = (0..count.max(0) as usize).map(|i| unsafe { *real.add(i) });
        // A drop-in of ours behind us would give our own devices again.
        // SAFETY: entries of a list are devices.
        devices.extend(entries.filter(|device| !unsafe { is_ours(*device) }));
    }
    // SAFETY: the block holds the hidden entry, the devices and the null at the end.
    unsafe {
        let block = libc::calloc(devices.len() + 2, size_of::<*mut c_void>()).cast::<*mut abi::Device>();
        if block.is_null() {
            set_errno(libc::ENOMEM);
            return std::ptr::null_mut();
        }
        block.write(real.cast());
        let list = block.add(1);
        list.copy_from_nonoverlapping(devices.as_ptr(), devices.len());
        if !num_devices.is_null() {
            *num_devices = devices.len() as c_int;
        }
        list
    }
}

/// `ibv_free_device_list`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::Device) {
    if list.is_null() {
        return;
    }
    // SAFETY: the list is one of `ibv_get_device_list`.
    unsafe {
        let block = list.sub(1);
        let real = (*block).cast::<*mut abi::Device>();
        if !real.is_null() {
            behind!(ibv_free_device_list as FreeList, (real), else ());
        }
        libc::free(block.cast());
    }
}

/// `ibv_get_device_name`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut abi::Device) -> *const c_char {
    if device.is_null() {
        set_errno(libc::EINVAL);
        return std::ptr::null();
    }
    // SAFETY: it is a device, ours or not.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_index`: the index by which librdmacm and NETLINK_RDMA know it.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut abi::Device) -> c_int {
    // SAFETY: a device, or null.
    unsafe {
        if device.is_null() {
            return -1;
        }
        if !is_ours(device) {
            return behind!(ibv_get_device_index as unsafe extern "C" fn(*mut abi::Device) -> c_int, (device), else -1);
        }
        info(device).index as c_int
    }
}

/// `ibv_get_device_guid`, big-endian.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut abi::Device) -> u64 {
    // SAFETY: a device, or null.
    unsafe {
        if device.is_null() {
            return 0;
        }
        if !is_ours(device) {
            return behind!(ibv_get_device_guid as unsafe extern "C" fn(*mut abi::Device) -> u64, (device), else 0);
        }
        info(device).node_guid.to_be()
    }
}

/// `ibv_open_device`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut abi::Device) -> *mut abi::Context {
    const CALL: &str = "ibv_open_device";
    // SAFETY: a device, or null.
    if !device.is_null() && !unsafe { is_ours(device) } {
        type Open = unsafe extern "C" fn(*mut abi::Device) -> *mut abi::Context;
        return behind!(ibv_open_device as Open, (device), else std::ptr::null_mut());
    }
    pointer(CALL, || {
        if device.is_null() || device == nobody() {
            return Err(stale("device"));
        }
        // SAFETY: it is ours.
        let name = &unsafe { info(device) }.name;
        context::make(device, name, provider()?.open(name)?)
    })
}

/// `ibv_close_device`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        type Close = unsafe extern "C" fn(*mut abi::Context) -> c_int;
        return behind!(ibv_close_device as Close, (context), else libc::EINVAL);
    }
    status("ibv_close_device", || {
        if context.is_null() {
            return Err(stale("open device"));
        }
        // SAFETY: it is ours.
        unsafe { context::close(context) }
    })
}

/// `ibv_import_device`: a context of a device that this process has open.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut abi::Context {
    match context::import(cmd_fd) {
        Some(imported) => pointer("ibv_import_device", || imported),
        None => {
            type Import = unsafe extern "C" fn(c_int) -> *mut abi::Context;
            behind!(ibv_import_device as Import, (cmd_fd), else {
                set_errno(libc::EOPNOTSUPP);
                std::ptr::null_mut()
            })
        }
    }
}

/// `ibv_get_sysfs_path`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<std::ffi::CString> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let path = std::env::var_os("SYSFS_PATH").filter(|path| !path.is_empty()).unwrap_or_else(|| "/sys".into());
        let bytes = std::os::unix::ffi::OsStringExt::into_vec(path);
        let end = bytes.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        std::ffi::CString::new(&bytes[..end]).unwrap_or_else(|_| c"/sys".into())
    });
    path.as_ptr()
}

/// `ibv_read_sysfs_file`: the file's text without the newline at its end; its length, or -1.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    or_minus("ibv_read_sysfs_file", || {
        if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
            return Err(VerbsError::invalid("a directory, a file and room are needed"));
        }
        // SAFETY: strings of C.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = |text: &CStr| PathBuf::from(String::from_utf8_lossy(text.to_bytes()).into_owned());
        let text = match of_device(&path(dir), &file.to_string_lossy()) {
            Some(text) => text.into_bytes(),
            None => std::fs::read(path(dir).join(path(file))).map_err(|e| {
                let errno = e.raw_os_error().and_then(scalefabric_verbs::Errno::from_raw);
                VerbsError::environment(errno.unwrap_or(scalefabric_verbs::Errno::EIO), e.to_string())
            })?,
        };
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        let length = text.len().min(size - 1);
        // SAFETY: the program's buffer has room for `size` bytes.
        unsafe {
            buf.copy_from_nonoverlapping(text.as_ptr().cast(), length);
            *buf.add(length) = 0;
        }
        Ok(length as c_int)
    })
}

/// What `ibv_devinfo` reads of one of our devices, wherever its files are.
fn of_device(dir: &std::path::Path, file: &str) -> Option<String> {
    let name = dir.file_name()?.to_str()?;
    let class = dir.parent()?.file_name()?;
    if class != "infiniband" || file != "board_id" {
        return None;
    }
    by_name(name).map(|_| "scaleFabric software NIC".to_owned())
}
