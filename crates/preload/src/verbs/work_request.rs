//! The new way to post (`ibv_wr_*`): requests are gathered between `wr_start` and `wr_complete` and posted whole or not at
//! all. The first mistake is remembered and is what `wr_complete` returns. In between the QP belongs to one thread.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use scalefabric_ibv::abi;
use scalefabric_verbs::{
    FlushLevel, FlushPlacement, LKey, OpKind, QKey, QpType, Qpn, RKey, SendFlags, SendOp, SendWr, Sge, Srqn, UdAddress,
    op_allowed,
};

use super::address::AhPart;
use super::answer::{Outcome, set_errno, tell_post, unsupported};
use super::object::{Object, alive, is_ours};
use super::queue_pair::QpPart;
use super::windows::{self, MwPart};

/// Bits of `send_ops_flags` and what they ask for. TSO (1 << 10) is for raw packets.
const OPS: &[(u64, OpKind)] = &[
    (1, OpKind::Write),
    (1 << 1, OpKind::WriteWithImm),
    (1 << 2, OpKind::Send),
    (1 << 3, OpKind::SendWithImm),
    (1 << 4, OpKind::Read),
    (1 << 5, OpKind::CompareSwap),
    (1 << 6, OpKind::FetchAdd),
    (1 << 7, OpKind::LocalInv),
    (1 << 8, OpKind::BindMw),
    (1 << 9, OpKind::SendWithInv),
    (1 << 11, OpKind::Flush),
    (1 << 12, OpKind::AtomicWrite),
];

/// Refuses operations that the type does not have, and unknown ones: their functions would not be there.
pub fn check(qp_type: QpType, flags: u64) -> Outcome {
    let mut left = flags;
    for &(bit, kind) in OPS {
        if flags & bit != 0 && !op_allowed(qp_type, kind) {
            return Err(unsupported(format!("send_ops_flags: a {qp_type} QP has no {}", kind.as_str())));
        }
        left &= !bit;
    }
    if left != 0 {
        return Err(unsupported(format!("send_ops_flags {flags:#x}: {left:#x} are not known here")));
    }
    Ok(())
}

/// What is done, with raw pointers where the contract has references: they are followed when all is posted.
#[derive(Clone, Copy)]
enum What {
    Op(SendOp<'static>),
    BindMw(*mut abi::Mw, u32, abi::MwBindInfo),
}

/// Where the bytes are: a range of the gathered lists.
#[derive(Clone, Copy)]
enum Data {
    None,
    Sges(usize, usize),
    Inline(usize, usize),
}

#[derive(Clone, Copy)]
struct Request {
    wr_id: u64,
    flags: u32,
    what: What,
    data: Data,
    ud: Option<(*mut abi::Ah, u32, u32)>,
    srqn: Option<u32>,
}

/// What is gathered; the lists keep their room, so that in steady state nothing is allocated.
#[derive(Default)]
struct Gathered {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    ready: Vec<SendWr<'static>>,
    error: c_int,
}

/// The gathering of one QP.
pub struct Builder {
    gathered: UnsafeCell<Gathered>,
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    mutex: UnsafeCell<libc::pthread_mutex_t>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { gathered: UnsafeCell::default(), mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER) }
    }
}

// SAFETY: only who holds the mutex looks at what is gathered.
unsafe impl Sync for Builder {}
// SAFETY: pointers in it are the program's and are followed by the thread that gave them.
unsafe impl Send for Builder {}

impl Gathered {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = 0;
    }

    fn wrong(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }
}

/// Fills in the functions.
pub fn extend(qp: &mut abi::QpEx) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}

/// The QP and its builder.
///
/// # Safety
/// `qp` is ours, since its functions are.
unsafe fn builder<'a>(qp: *mut abi::QpEx) -> Option<(&'a Object<QpPart>, &'a Builder)> {
    // SAFETY: the caller's promise.
    let object = unsafe { alive::<QpPart>(qp)? };
    Some((object, object.part.builder.as_ref()?))
}

/// What is gathered, for functions between start and complete.
///
/// # Safety
/// As [`builder`], and the calling thread has called `wr_start`.
unsafe fn gathered<'a>(qp: *mut abi::QpEx) -> Option<&'a mut Gathered> {
    // SAFETY: the caller's promise.
    unsafe { builder(qp).map(|(_, builder)| &mut *builder.gathered.get()) }
}

unsafe extern "C" fn wr_start(qp: *mut abi::QpEx) {
    // SAFETY: as `builder`; the mutex never moves, for its object is on the heap.
    unsafe {
        if let Some((_, builder)) = builder(qp) {
            libc::pthread_mutex_lock(builder.mutex.get());
            (*builder.gathered.get()).clear();
        }
    }
}

unsafe extern "C" fn wr_abort(qp: *mut abi::QpEx) {
    // SAFETY: as `wr_start`, whose thread this is.
    unsafe {
        if let Some((_, builder)) = builder(qp) {
            (*builder.gathered.get()).clear();
            libc::pthread_mutex_unlock(builder.mutex.get());
        }
    }
}

unsafe extern "C" fn wr_complete(qp: *mut abi::QpEx) -> c_int {
    // SAFETY: as `wr_start`, whose thread this is.
    unsafe {
        let Some((object, builder)) = builder(qp) else { return libc::EINVAL };
        let errno = complete(object, &mut *builder.gathered.get());
        libc::pthread_mutex_unlock(builder.mutex.get());
        if errno != 0 {
            set_errno(errno);
        }
        errno
    }
}

/// Posts what is gathered.
///
/// # Safety
/// Handles in it are the program's, as it gave them.
unsafe fn complete(object: &Object<QpPart>, gathered: &mut Gathered) -> c_int {
    if gathered.error != 0 {
        return gathered.error;
    }
    gathered.ready.clear();
    for request in &gathered.requests {
        // SAFETY: the caller's promise.
        match unsafe { ready(request, &gathered.sges, &gathered.bytes, object.part.qp_type) } {
            Ok(wr) => gathered.ready.push(wr),
            Err(errno) => return errno,
        }
    }
    let outcome = object.part.qp.post_send_whole(&gathered.ready);
    // The references end here.
    gathered.ready.clear();
    if let Err(error) = outcome {
        return tell_post("ibv_wr_complete", &error);
    }
    for request in &gathered.requests {
        if let What::BindMw(mw, ..) = request.what {
            // SAFETY: a bind that was posted names a live window.
            unsafe {
                if let Some(mw) = alive::<MwPart>(mw) {
                    (*mw.c()).rkey = mw.part.mw.rkey().0;
                }
            }
        }
    }
    0
}

/// A gathered request as the contract has it. The lifetime is that of the lists, which stay as they are until it is posted.
unsafe fn ready(request: &Request, sges: &[Sge], bytes: &[u8], qp_type: QpType) -> Result<SendWr<'static>, c_int> {
    // SAFETY: what the program gave; `complete` lets go of the references before anything changes.
    unsafe {
        let op = match request.what {
            What::Op(op) => op,
            What::BindMw(mw, rkey, ref info) => {
                SendOp::BindMw(windows::bind(mw, rkey, info).map_err(|error| error.errno.to_raw())?)
            }
        };
        let mut wr = SendWr::new(request.wr_id, op);
        // INLINE is said by how the data was set.
        wr.flags = SendFlags::from_bits(request.flags).ok_or(libc::EINVAL)? - SendFlags::INLINE;
        match request.data {
            Data::None => {}
            Data::Sges(at, count) => wr.sg_list = std::slice::from_raw_parts(sges.as_ptr().add(at), count),
            Data::Inline(at, count) => {
                wr.flags |= SendFlags::INLINE;
                wr.inline_data = std::slice::from_raw_parts(bytes.as_ptr().add(at), count);
            }
        }
        if let Some((ah, qpn, qkey)) = request.ud {
            let ah = if is_ours(ah) { alive::<AhPart>(ah) } else { None }.ok_or(libc::EINVAL)?;
            wr.ud = Some(UdAddress { ah: &*ah.part.ah, remote_qpn: Qpn::new(qpn), remote_qkey: QKey(qkey) });
        }
        if qp_type == QpType::XrcSend {
            wr.xrc_srqn = request.srqn.map(Srqn::new);
        }
        Ok(wr)
    }
}

/// Adds a request with the `wr_id` and `wr_flags` of this moment.
unsafe fn add(qp: *mut abi::QpEx, what: What) {
    // SAFETY: between start and complete of a QP of ours.
    unsafe {
        if let Some(gathered) = gathered(qp) {
            let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
            gathered.requests.push(Request { wr_id, flags, what, data: Data::None, ud: None, srqn: None });
        }
    }
}

/// Changes the newest request; without one it is a mistake.
unsafe fn set(qp: *mut abi::QpEx, change: impl FnOnce(&mut Request, &mut Vec<Sge>, &mut Vec<u8>) -> Result<(), c_int>) {
    // SAFETY: between start and complete of a QP of ours.
    unsafe {
        let Some(gathered) = gathered(qp) else { return };
        let Gathered { requests, sges, bytes, .. } = gathered;
        let outcome = requests.last_mut().ok_or(libc::EINVAL).and_then(|request| change(request, sges, bytes));
        if let Err(errno) = outcome {
            gathered.wrong(errno);
        }
    }
}

macro_rules! operations {
    ($( $name:ident ( $($argument:ident : $type:ty),* ) => $op:expr; )*) => { $(
        unsafe extern "C" fn $name(qp: *mut abi::QpEx $(, $argument: $type)*) {
            // SAFETY: the function is the QP's.
            unsafe { add(qp, What::Op($op)) };
        }
    )* };
}

operations! {
    wr_rdma_write(rkey: u32, remote_addr: u64) => SendOp::Write { remote_addr, rkey: RKey(rkey) };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) =>
        SendOp::WriteWithImm { remote_addr, rkey: RKey(rkey), imm: u32::from_be(imm) };
    wr_rdma_read(rkey: u32, remote_addr: u64) => SendOp::Read { remote_addr, rkey: RKey(rkey) };
    wr_send() => SendOp::Send;
    wr_send_imm(imm: u32) => SendOp::SendWithImm { imm: u32::from_be(imm) };
    wr_send_inv(invalidate_rkey: u32) => SendOp::SendWithInv { invalidate_rkey: RKey(invalidate_rkey) };
    wr_local_inv(rkey: u32) => SendOp::LocalInv { rkey: RKey(rkey) };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =>
        SendOp::CompareSwap { remote_addr, rkey: RKey(rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =>
        SendOp::FetchAdd { remote_addr, rkey: RKey(rkey), add };
}

unsafe extern "C" fn wr_bind_mw(qp: *mut abi::QpEx, mw: *mut abi::Mw, rkey: u32, info: *const abi::MwBindInfo) {
    // SAFETY: the function is the QP's; the program's structure, or null.
    unsafe {
        match info.as_ref() {
            Some(info) => add(qp, What::BindMw(mw, rkey, *info)),
            None => set(qp, |_, _, _| Err(libc::EINVAL)),
        }
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut abi::QpEx, _header: *mut c_void, _length: u16, _mss: u16) {
    // SAFETY: the function is the QP's.
    if let Some(gathered) = unsafe { gathered(qp) } {
        gathered.wrong(libc::EOPNOTSUPP);
    }
}

unsafe extern "C" fn wr_atomic_write(qp: *mut abi::QpEx, rkey: u32, remote_addr: u64, value: *const c_void) {
    // SAFETY: the function is the QP's; the program's eight bytes.
    unsafe {
        add(qp, What::Op(SendOp::AtomicWrite { remote_addr, rkey: RKey(rkey) }));
        wr_set_inline_data(qp, value.cast_mut(), 8);
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut abi::QpEx,
    rkey: u32,
    remote_addr: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    const GLOBAL: u8 = 1;
    const PERSISTENT: u8 = 2;
    let placement = match placement {
        GLOBAL => Some(FlushPlacement::Global),
        PERSISTENT => Some(FlushPlacement::Persistent),
        3 => Some(FlushPlacement::GlobalAndPersistent),
        _ => None,
    };
    let level = match level {
        0 => Some(FlushLevel::Range),
        1 => Some(FlushLevel::MemoryRegion),
        _ => None,
    };
    // SAFETY: the function is the QP's.
    unsafe {
        match (placement, level, u32::try_from(length)) {
            (Some(placement), Some(level), Ok(length)) => {
                add(qp, What::Op(SendOp::Flush { remote_addr, rkey: RKey(rkey), length, placement, level }));
            }
            _ => {
                if let Some(gathered) = gathered(qp) {
                    gathered.wrong(libc::EINVAL);
                }
            }
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut abi::QpEx, ah: *mut abi::Ah, qpn: u32, qkey: u32) {
    // SAFETY: the function is the QP's.
    unsafe {
        set(qp, |request, _, _| {
            request.ud = Some((ah, qpn, qkey));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut abi::QpEx, srqn: u32) {
    // SAFETY: the function is the QP's.
    unsafe {
        set(qp, |request, _, _| {
            request.srqn = Some(srqn);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut abi::QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the function is the QP's.
    unsafe {
        set(qp, |request, sges, _| {
            request.data = Data::Sges(sges.len(), 1);
            sges.push(Sge { addr, length, lkey: LKey(lkey) });
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut abi::QpEx, count: usize, list: *const abi::Sge) {
    // SAFETY: the function is the QP's; the program's list.
    unsafe {
        set(qp, |request, sges, _| {
            if list.is_null() && count > 0 {
                return Err(libc::EINVAL);
            }
            request.data = Data::Sges(sges.len(), count);
            let list = if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
            sges.extend(list.iter().map(|s| Sge { addr: s.addr, length: s.length, lkey: LKey(s.lkey) }));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut abi::QpEx, addr: *mut c_void, length: usize) {
    let one = abi::DataBuf { addr, length };
    // SAFETY: passed on.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut abi::QpEx, count: usize, list: *const abi::DataBuf) {
    // SAFETY: the function is the QP's; the program's list and bytes, which are copied now.
    unsafe {
        // More than any QP can have inline is a mistake, and not copied.
        let most = alive::<QpPart>(qp).map_or(0, |object| object.part.max_inline as usize);
        set(qp, |request, _, bytes| {
            let start = bytes.len();
            let list = if count == 0 || list.is_null() { &[] } else { std::slice::from_raw_parts(list, count) };
            for piece in list {
                if piece.length > most - (bytes.len() - start).min(most) {
                    return Err(libc::ENOMEM);
                }
                if piece.length > 0 {
                    bytes.extend_from_slice(std::slice::from_raw_parts(piece.addr.cast::<u8>(), piece.length));
                }
            }
            request.data = Data::Inline(start, bytes.len() - start);
            Ok(())
        });
    }
}
