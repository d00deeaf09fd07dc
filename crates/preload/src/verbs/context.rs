//! `struct ibv_context`: the tail of a `verbs_context`, with every operation that inline functions of the headers call.
//!
//! Where the distribution's libibverbs is in the process, it allocates the structure (`_verbs_init_and_alloc_context`):
//! then `priv` holds its own operations that answer EOPNOTSUPP, and a public function of a newer release that we do not
//! have fails cleanly. Otherwise `priv` leads to a block of such answers of our own, for functions that give a number.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use scalefabric_ibv::abi;
use scalefabric_verbs::{Context, DeviceMemory, Errno, MemoryRegion, ProtectionDomain, Provider, VerbsError};

use scalefabric_nic::process::{Descriptor, Making};

use super::answer::{Outcome, stale};
use super::lock::{Lock, Locked};
use super::object::ROOM;
use super::{
    completion, completion_ex, device, memory, post, query, queue_pair, regions, shared_receive_queue, windows,
};

/// What every `abi_compat` of a context with a table holds.
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;
/// Mark of a live context.
const MARK: u64 = u64::from_be_bytes(*b"sfContxt");
/// Bytes that a context may take, whatever the release of the library.
const BYTES: usize = 4096;

/// A context from its C part on.
#[repr(C)]
struct Tail {
    c: abi::Context,
    room: [u8; ROOM],
    mark: AtomicU64,
    open: *const Open,
    /// What `calloc` gave.
    block: *mut c_void,
}

/// An open device.
pub struct Open {
    verbs: Arc<dyn Context>,
    /// The process that opened it, and what a forked child has opened in its place.
    process: u32,
    child: Lock<Option<(u32, Arc<dyn Context>)>>,
    name: String,
    /// What contexts of the same `cmd_fd` share.
    pub shared: Arc<Shared>,
    objects: Lock<Objects>,
    _cmd_fd: Descriptor,
}

/// Objects whose events are looked up by number.
#[derive(Default)]
pub struct Objects {
    /// By QPN.
    pub qps: HashMap<u32, *mut abi::Qp>,
    /// By CQ number.
    pub cqs: HashMap<u32, *mut abi::Cq>,
    /// By SRQ number.
    pub srqs: HashMap<u32, *mut abi::Srq>,
}

// SAFETY: the pointers are only followed while the object lives, which the table's lock and the mark say.
unsafe impl Send for Objects {}

/// What another context can import: it is found by the `handle` that the exporter's structure shows.
#[derive(Default)]
pub struct Shared {
    /// Contexts that use it; the exporter's `verbs`.
    verbs: Lock<Option<Weak<dyn Context>>>,
    device: AtomicPtr<abi::Device>,
    tables: Lock<Exports>,
}

/// See [`Shared`].
#[derive(Default)]
pub struct Exports {
    /// Protection domains.
    pub pds: HashMap<u32, Weak<dyn ProtectionDomain>>,
    /// Memory regions, with address and length as registered.
    pub mrs: HashMap<u32, (Weak<dyn MemoryRegion>, usize, usize)>,
    /// Device memory.
    pub dms: HashMap<u32, Weak<dyn DeviceMemory>>,
}

impl Shared {
    /// The tables.
    pub fn exports(&self) -> Locked<'_, Exports> {
        self.tables.lock()
    }
}

impl Open {
    /// The contract behind it. A child that was forked with a context opens the device for itself at its first call: the
    /// parent's objects are not its own, but what it makes anew works.
    pub fn verbs(&self) -> Outcome<Arc<dyn Context>> {
        let process = std::process::id();
        if process == self.process {
            return Ok(self.verbs.clone());
        }
        let mut child = self.child.lock();
        match &*child {
            Some((by, verbs)) if *by == process => Ok(verbs.clone()),
            _ => {
                let verbs = device::provider()?.open(&self.name)?;
                *child = Some((process, verbs.clone()));
                Ok(verbs)
            }
        }
    }

    /// The objects.
    pub fn objects(&self) -> Locked<'_, Objects> {
        self.objects.lock()
    }
}

/// True if a context is of a device of ours, open or closed.
///
/// # Safety
/// `context` is null or points to a `struct ibv_context`.
#[inline]
pub unsafe fn is_ours(context: *mut abi::Context) -> bool {
    // SAFETY: the caller's promise; every context has a device.
    unsafe {
        !context.is_null()
            && !(*context).device.is_null()
            && (*context).abi_compat == EXTENDED
            && device::is_ours((*context).device)
    }
}

/// The open device behind a context of ours.
///
/// # Safety
/// `context` is ours.
pub unsafe fn open<'a>(context: *mut abi::Context) -> Outcome<&'a Open> {
    let tail = context.cast::<Tail>();
    // SAFETY: a context of ours is the head of a `Tail`; the memory of closed ones is kept.
    unsafe {
        if (*tail).mark.load(Ordering::Acquire) != MARK {
            return Err(stale("open device"));
        }
        (*tail).open.as_ref().ok_or_else(|| stale("open device"))
    }
}

/// Contexts by the identity of their `cmd_fd`.
type Exported = Option<HashMap<(u64, u64), Weak<Shared>>>;

static EXPORTED: Lock<Exported> = Lock::new(None);

fn exported() -> Locked<'static, Exported> {
    EXPORTED.lock()
}

fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: an all-zero stat is a valid one, and the call writes it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

/// Makes a context of an open device. Its `cmd_fd` is a file of its own, by which others of this process can import it.
pub fn make(device: *mut abi::Device, name: &str, verbs: Arc<dyn Context>) -> Outcome<*mut abi::Context> {
    let label = CString::new(format!("scalefabric:{name}")).unwrap_or_default();
    // SAFETY: a string that ends with 0.
    let fd =
        Descriptor::make(|| unsafe { libc::memfd_create(label.as_ptr(), libc::MFD_CLOEXEC) }).map_err(|error| {
            let said = format!("no descriptor for cmd_fd: {error}; raise the limit of open files");
            VerbsError::environment(Errno::ENOMEM, said)
        })?;
    let shared = Arc::new(Shared::default());
    *shared.verbs.lock() = Some(Arc::downgrade(&verbs));
    shared.device.store(device, Ordering::Release);
    if let Some(identity) = identity(fd.as_raw_fd()) {
        let mut exported = exported();
        let exported = exported.get_or_insert_default();
        exported.retain(|_, shared| shared.strong_count() > 0);
        exported.insert(identity, Arc::downgrade(&shared));
    }
    make_with(device, verbs, shared, fd)
}

/// Another context of the device that was opened with this `cmd_fd`. `None` if it is no descriptor of ours.
pub fn import(cmd_fd: c_int) -> Option<Outcome<*mut abi::Context>> {
    let shared = exported().as_ref()?.get(&identity(cmd_fd)?)?.upgrade()?;
    let verbs = shared.verbs.lock().as_ref()?.upgrade()?;
    // SAFETY: the program hands the descriptor over; the context owns it from now on.
    let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
    let fd = {
        let _making = Making::begin();
        Descriptor::keep(fd)
    };
    Some(make_with(shared.device.load(Ordering::Acquire), verbs, shared, fd))
}

fn make_with(
    device: *mut abi::Device,
    verbs: Arc<dyn Context>,
    shared: Arc<Shared>,
    cmd_fd: Descriptor,
) -> Outcome<*mut abi::Context> {
    let vectors = verbs.query_device()?.num_comp_vectors;
    let (fd, async_fd) = (cmd_fd.as_raw_fd(), verbs.async_fd());
    let context = allocate(device, fd)?;
    let open = Box::new(Open {
        name: verbs.device().name,
        process: std::process::id(),
        child: Lock::new(None),
        verbs,
        shared,
        objects: Lock::default(),
        _cmd_fd: cmd_fd,
    });
    // SAFETY: `allocate` gives a context within a block that holds a `Tail`, zero but for what it says.
    unsafe {
        (*context).cmd_fd = fd;
        (*context).async_fd = async_fd;
        (*context).num_comp_vectors = vectors as c_int;
        let tail = context.cast::<Tail>();
        (*tail).open = Box::into_raw(open);
        (*tail).mark.store(MARK, Ordering::Release);
    }
    Ok(context)
}

/// Room for a context with its operations filled in.
fn allocate(device: *mut abi::Device, cmd_fd: c_int) -> Outcome<*mut abi::Context> {
    if let Some(context) = allocate_by_the_library(device, cmd_fd) {
        return Ok(context);
    }
    allocate_ourselves(device).ok_or_else(|| VerbsError::environment(Errno::ENOMEM, "no memory for a context"))
}

fn allocate_ourselves(device: *mut abi::Device) -> Option<*mut abi::Context> {
    // SAFETY: the block is large enough, aligned for words, and zero.
    unsafe {
        let table = libc::calloc(1, BYTES).cast::<abi::VerbsContext>();
        if table.is_null() {
            return None;
        }
        (*table).sz = size_of::<abi::VerbsContext>();
        (*table).private = answers();
        (*table).context.device = device;
        (*table).context.abi_compat = EXTENDED;
        libc::pthread_mutex_init(&raw mut (*table).context.mutex, std::ptr::null());
        Some(fill(table, table.cast()))
    }
}

type Allocate = unsafe extern "C" fn(*mut abi::Device, c_int, usize, *mut c_void, u32) -> *mut c_void;

/// Bytes before the library's table: ours is longer than that of an older release, and both end with the context.
const BEFORE: usize = 512;

fn allocate_by_the_library(device: *mut abi::Device, cmd_fd: c_int) -> Option<*mut abi::Context> {
    // It takes the last argument but one for an offset; 0 is the driver "unknown".
    let block = super::behind::behind!(
        _verbs_init_and_alloc_context as Allocate,
        (device, cmd_fd, BYTES, std::ptr::without_provenance_mut(BEFORE), 0),
        else std::ptr::null_mut()
    );
    if block.is_null() {
        return None;
    }
    let words = block.cast::<usize>();
    let rest = size_of::<usize>() + size_of::<abi::Context>();
    // `sz`, the size of the library's table, stands before the context, which is last.
    let place = (0..BYTES / 2).step_by(8).find(|at| {
        // SAFETY: inside the block.
        unsafe { words.byte_add(BEFORE + *at).read() == at + rest }
    })?;
    // SAFETY: the library's table begins there, in the block; where ours is longer, it begins in what is before.
    unsafe {
        let end = block.byte_add(BEFORE + place + rest);
        let table = end.byte_sub(size_of::<abi::VerbsContext>()).cast::<abi::VerbsContext>();
        Some(fill(table, block))
    }
}

const _: () = assert!(BEFORE + size_of::<abi::Context>() >= size_of::<abi::VerbsContext>());
const _: () = assert!(BEFORE + BYTES / 2 + size_of::<Tail>() <= BYTES);

/// A block that answers whatever operation is looked for in it.
fn answers() -> *mut c_void {
    extern "C" fn unsupported() -> c_int {
        super::answer::set_errno(libc::EOPNOTSUPP);
        libc::EOPNOTSUPP
    }
    static ANSWERS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut block = ANSWERS.load(Ordering::Acquire);
    if block.is_null() {
        let table: Box<[extern "C" fn() -> c_int; 512]> = Box::new([unsupported; 512]);
        block = Box::into_raw(table).cast();
        ANSWERS.store(block, Ordering::Release);
    }
    block
}

/// Fills in the operations, and says where the block begins; gives the context.
///
/// # Safety
/// `table` points to room for one and the rest of a `Tail`, in `block`.
unsafe fn fill(table: *mut abi::VerbsContext, block: *mut c_void) -> *mut abi::Context {
    // SAFETY: the caller's promise; only members of the table and of the tail are written.
    let context = unsafe {
        let context = &raw mut (*table).context;
        (*context.cast::<Tail>()).block = block;
        // Headers newer than the library find our operations, too.
        (*table).sz = (*table).sz.max(size_of::<abi::VerbsContext>());
        context
    };
    // SAFETY: as above.
    let (table, ops) = unsafe { (&mut *table, &mut (*table).context.ops) };
    ops.compat_query_device = Some(query::query_device);
    ops.compat_query_port = Some(query::query_port_short);
    ops.alloc_mw = Some(windows::alloc_mw);
    ops.bind_mw = Some(windows::bind_mw);
    ops.dealloc_mw = Some(windows::dealloc_mw);
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    table.query_port = Some(query::query_port);
    table.advise_mr = Some(regions::advise_mr);
    table.alloc_null_mr = Some(regions::alloc_null_mr);
    table.reg_dm_mr = Some(regions::reg_dm_mr);
    table.alloc_dm = Some(memory::alloc_dm);
    table.free_dm = Some(memory::free_dm);
    table.modify_qp_rate_limit = Some(queue_pair::modify_qp_rate_limit);
    table.alloc_parent_domain = Some(memory::alloc_parent_domain);
    table.dealloc_td = Some(memory::dealloc_td);
    table.alloc_td = Some(memory::alloc_td);
    table.modify_cq = Some(completion::modify_cq);
    table.query_rt_values = Some(query::query_rt_values);
    table.create_cq_ex = Some(completion_ex::create_cq_ex);
    table.query_device_ex = Some(query::query_device_ex);
    table.open_qp = Some(queue_pair::open_qp);
    table.create_qp_ex = Some(queue_pair::create_qp_ex);
    table.get_srq_num = Some(shared_receive_queue::get_srq_num);
    table.create_srq_ex = Some(shared_receive_queue::create_srq_ex);
    table.open_xrcd = Some(shared_receive_queue::open_xrcd);
    table.close_xrcd = Some(shared_receive_queue::close_xrcd);
    // What is missing reads as unsupported: flows, WQs, RSS, counters, tag matching. The library's own answers to these
    // are EOPNOTSUPP, those of the inline functions ENOSYS where there is no operation.
    context
}

/// The context of objects that are gone: every call on it is refused, because neither it nor the object has its mark.
pub fn grave() -> *mut abi::Context {
    static GRAVE: AtomicPtr<abi::Context> = AtomicPtr::new(std::ptr::null_mut());
    let grave = GRAVE.load(Ordering::Acquire);
    if !grave.is_null() {
        return grave;
    }
    let Some(made) = allocate_ourselves(device::nobody()) else { return grave };
    // SAFETY: just made, and nobody has it yet.
    unsafe {
        (*made).cmd_fd = -1;
        (*made).async_fd = -1;
    }
    // Two threads may make one each; both stay and either serves.
    GRAVE.store(made, Ordering::Release);
    made
}

/// Ends a context: what the program left in it is destroyed, as the kernel does when the descriptor is closed. Memory of
/// C structures that the program still holds stays.
///
/// # Safety
/// `context` is ours.
pub unsafe fn close(context: *mut abi::Context) -> Outcome {
    let tail = context.cast::<Tail>();
    // SAFETY: a context of ours is the head of a `Tail`. Whoever takes the mark away
    // owns what is behind it.
    let open = unsafe {
        if (*tail).mark.swap(0, Ordering::AcqRel) != MARK {
            return Err(stale("open device"));
        }
        Box::from_raw((*tail).open.cast_mut())
    };
    // SAFETY: the tables hold objects that were not destroyed.
    unsafe { open.objects().end() };
    drop(open);
    // SAFETY: the program gave the context back.
    unsafe { rest(context) };
    Ok(())
}

/// Closed contexts, whose memory is kept a while: calls on them are refused as long as it is there.
static CLOSED: Lock<VecDeque<[usize; 2]>> = Lock::new(VecDeque::new());

/// # Safety
/// `context` is closed.
unsafe fn rest(context: *mut abi::Context) {
    // SAFETY: the table ends with the context, which is the head of a `Tail`.
    let (block, private) = unsafe {
        let table = context.byte_sub(size_of::<abi::VerbsContext>() - size_of::<abi::Context>());
        ((*context.cast::<Tail>()).block as usize, (*table.cast::<abi::VerbsContext>()).private)
    };
    // The library's own part was allocated with the context.
    let private = if private == answers() { 0 } else { private as usize };
    let mut closed = CLOSED.lock();
    closed.push_back([block, private]);
    if closed.len() > 32
        && let Some(memory) = closed.pop_front()
    {
        for memory in memory {
            // SAFETY: both came from `calloc`; free takes null.
            unsafe { libc::free(memory as *mut c_void) };
        }
    }
}

impl Objects {
    /// Destroys what is left, users before the used.
    ///
    /// # Safety
    /// The pointers are of objects that were not buried.
    unsafe fn end(&mut self) {
        for (_, qp) in self.qps.drain() {
            // SAFETY: the caller's promise.
            if let Some(qp) = unsafe { super::object::alive::<queue_pair::QpPart>(qp.cast()) } {
                let _ = qp.part.qp.destroy();
            }
        }
        for (_, srq) in self.srqs.drain() {
            // SAFETY: the caller's promise.
            if let Some(srq) = unsafe { super::object::alive::<shared_receive_queue::SrqPart>(srq) } {
                let _ = srq.part.srq.destroy();
            }
        }
        for (_, cq) in self.cqs.drain() {
            // SAFETY: the caller's promise.
            if let Some(cq) = unsafe { super::object::alive::<completion::CqPart>(cq.cast()) } {
                let _ = cq.part.cq.destroy();
            }
        }
    }
}
