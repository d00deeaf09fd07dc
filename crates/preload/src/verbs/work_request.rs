//! The new way to post (`ibv_wr_*`): requests are gathered between `wr_start` and `wr_complete` and posted whole or not at
//! all. The first mistake is remembered and is what `wr_complete` returns. In between the QP belongs to one thread.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use scalefabric_ibv::abi;
use scalefabric_verbs::{
    Errno, FlushLevel, FlushPlacement, LKey, OpKind, PostError, QKey, QpType, Qpn, RKey, SendFlags, SendOp, SendWr,
    Sge, Srqn, UdAddress, op_allowed,
};

use super::address::AhPart;
use super::answer::{Outcome, set_errno, tell_post, unsupported};
use super::hold::Hold;
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

/// Where a request's bytes are: a range of the gathered lists.
#[derive(Clone, Copy)]
enum Data {
    None,
    Sges(usize, usize),
    Inline(usize, usize),
}

/// A bind, with raw pointers where the contract has references.
struct Bind {
    request: usize,
    mw: *mut abi::Mw,
    rkey: u32,
    info: abi::MwBindInfo,
}

/// The destination of a datagram, likewise.
struct To {
    request: usize,
    ah: *mut abi::Ah,
    qpn: u32,
    qkey: u32,
}

/// What is gathered. Requests lie as they are posted, but for what they refer to: that is followed when all is posted. The
/// lists keep their room, so that in steady state nothing is allocated.
#[derive(Default)]
struct Gathered {
    /// Without references until they are posted.
    requests: Vec<SendWr<'static>>,
    /// One for each request.
    data: Vec<Data>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    binds: Vec<Bind>,
    to: Vec<To>,
    error: c_int,
}

/// The gathering of one QP.
#[derive(Default)]
pub struct Builder {
    gathered: UnsafeCell<Gathered>,
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    hold: Hold,
}

// SAFETY: only who holds it looks at what is gathered.
unsafe impl Sync for Builder {}
// SAFETY: pointers in it are the program's and are followed by the thread that gave them.
unsafe impl Send for Builder {}

impl Gathered {
    fn clear(&mut self) {
        self.requests.clear();
        self.data.clear();
        self.sges.clear();
        self.bytes.clear();
        self.binds.clear();
        self.to.clear();
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
    // SAFETY: as `builder`.
    unsafe {
        if let Some((_, builder)) = builder(qp) {
            builder.hold.take();
            (*builder.gathered.get()).clear();
        }
    }
}

unsafe extern "C" fn wr_abort(qp: *mut abi::QpEx) {
    // SAFETY: as `wr_start`, whose thread this is.
    unsafe {
        if let Some((_, builder)) = builder(qp) {
            (*builder.gathered.get()).clear();
            builder.hold.give();
        }
    }
}

unsafe extern "C" fn wr_complete(qp: *mut abi::QpEx) -> c_int {
    // SAFETY: as `wr_start`, whose thread this is.
    unsafe {
        let Some((object, builder)) = builder(qp) else { return libc::EINVAL };
        let errno = complete(object, &mut *builder.gathered.get());
        builder.hold.give();
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
    // SAFETY: the caller's promise; the requests are cleared below, before anything that they refer to changes.
    let referred = unsafe { refer(gathered) };
    let outcome = match referred {
        Ok(()) => object.part.qp.post_send_whole(&gathered.requests),
        Err(errno) => Err(PostError { index: 0, errno, reason: "a window, region or address handle is none" }),
    };
    gathered.requests.clear();
    if let Err(error) = outcome {
        return tell_post("ibv_wr_complete", &error);
    }
    for bind in &gathered.binds {
        // SAFETY: a bind that was posted names a live window.
        unsafe {
            if let Some(mw) = alive::<MwPart>(bind.mw) {
                (*mw.c()).rkey = mw.part.mw.rkey().0;
            }
        }
    }
    0
}

/// Puts the references into the requests: buffers, windows, address handles.
///
/// # Safety
/// Handles are the program's. The lists stay as they are for as long as the requests have their references.
unsafe fn refer(gathered: &mut Gathered) -> Result<(), Errno> {
    let Gathered { requests, data, sges, bytes, binds, to, .. } = gathered;
    for (wr, data) in requests.iter_mut().zip(data.iter()) {
        match *data {
            Data::None => {}
            // SAFETY: ranges of the lists, whose lifetime is the caller's promise.
            Data::Sges(at, count) => unsafe {
                wr.sg_list = std::slice::from_raw_parts(sges.as_ptr().add(at), count);
            },
            // SAFETY: as above.
            Data::Inline(at, count) => unsafe {
                wr.flags |= SendFlags::INLINE;
                wr.inline_data = std::slice::from_raw_parts(bytes.as_ptr().add(at), count);
            },
        }
    }
    for bind in binds.iter() {
        // SAFETY: the caller's promise.
        let op = unsafe { windows::bind(bind.mw, bind.rkey, &bind.info) }.map_err(|error| error.errno)?;
        requests[bind.request].op = SendOp::BindMw(op);
    }
    for to in to.iter() {
        // SAFETY: the caller's promise.
        let ah = unsafe { if is_ours(to.ah) { alive::<AhPart>(to.ah) } else { None } }.ok_or(Errno::EINVAL)?;
        let (remote_qpn, remote_qkey) = (Qpn::new(to.qpn), QKey(to.qkey));
        requests[to.request].ud = Some(UdAddress { ah: &*ah.part.ah, remote_qpn, remote_qkey });
    }
    Ok(())
}

/// Adds a request with the `wr_id` and `wr_flags` of this moment.
#[inline]
unsafe fn add(qp: *mut abi::QpEx, op: SendOp<'static>) {
    // SAFETY: between start and complete of a QP of ours.
    unsafe {
        if let Some(gathered) = gathered(qp) {
            let mut wr = SendWr::new((*qp).wr_id, op);
            match SendFlags::from_bits((*qp).wr_flags) {
                // INLINE is said by how the data is set.
                Some(flags) => wr.flags = flags - SendFlags::INLINE,
                None => gathered.wrong(libc::EINVAL),
            }
            gathered.requests.push(wr);
            gathered.data.push(Data::None);
        }
    }
}

/// Says where the newest request's bytes are; without a request it is a mistake.
#[inline]
unsafe fn set(qp: *mut abi::QpEx, put: impl FnOnce(&mut Vec<Sge>, &mut Vec<u8>) -> Result<Data, c_int>) {
    // SAFETY: between start and complete of a QP of ours.
    unsafe {
        let Some(gathered) = gathered(qp) else { return };
        let Gathered { data, sges, bytes, .. } = gathered;
        match data.last_mut().ok_or(libc::EINVAL).and_then(|data| put(sges, bytes).map(|is| *data = is)) {
            Ok(()) => {}
            Err(errno) => gathered.wrong(errno),
        }
    }
}

macro_rules! operations {
    ($( $name:ident ( $($argument:ident : $type:ty),* ) => $op:expr; )*) => { $(
        unsafe extern "C" fn $name(qp: *mut abi::QpEx $(, $argument: $type)*) {
            // SAFETY: the function is the QP's.
            unsafe { add(qp, $op) };
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
        let Some(info) = info.as_ref() else { return set(qp, |_, _| Err(libc::EINVAL)) };
        // The bind itself takes this place when all is posted.
        add(qp, SendOp::Send);
        if let Some(gathered) = gathered(qp) {
            gathered.binds.push(Bind { request: gathered.requests.len() - 1, mw, rkey, info: *info });
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
        add(qp, SendOp::AtomicWrite { remote_addr, rkey: RKey(rkey) });
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
                add(qp, SendOp::Flush { remote_addr, rkey: RKey(rkey), length, placement, level });
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
    let Some(gathered) = (unsafe { gathered(qp) }) else { return };
    match gathered.requests.len().checked_sub(1) {
        // Of several for one request the last one counts: they are followed in this order.
        Some(request) => gathered.to.push(To { request, ah, qpn, qkey }),
        None => gathered.wrong(libc::EINVAL),
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut abi::QpEx, srqn: u32) {
    // SAFETY: the function is the QP's.
    let Some((object, builder)) = (unsafe { builder(qp) }) else { return };
    // SAFETY: between start and complete.
    let gathered = unsafe { &mut *builder.gathered.get() };
    match gathered.requests.last_mut() {
        Some(wr) if object.part.qp_type == QpType::XrcSend => wr.xrc_srqn = Some(Srqn::new(srqn)),
        Some(_) => {}
        None => gathered.wrong(libc::EINVAL),
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut abi::QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the function is the QP's.
    unsafe {
        set(qp, |sges, _| {
            sges.push(Sge { addr, length, lkey: LKey(lkey) });
            Ok(Data::Sges(sges.len() - 1, 1))
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut abi::QpEx, count: usize, list: *const abi::Sge) {
    // SAFETY: the function is the QP's; the program's list.
    unsafe {
        set(qp, |sges, _| {
            if list.is_null() && count > 0 {
                return Err(libc::EINVAL);
            }
            let start = sges.len();
            let list = if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
            sges.extend(list.iter().map(|s| Sge { addr: s.addr, length: s.length, lkey: LKey(s.lkey) }));
            Ok(Data::Sges(start, count))
        });
    }
}

/// Adds bytes of the program to those of a request that began at `start`. More than the QP can have inline is a mistake, and not
/// copied.
///
/// # Safety
/// The program's bytes.
#[inline]
unsafe fn copy(
    bytes: &mut Vec<u8>,
    start: usize,
    most: usize,
    addr: *const c_void,
    length: usize,
) -> Result<(), c_int> {
    if length > most - (bytes.len() - start).min(most) {
        return Err(libc::ENOMEM);
    }
    if length > 0 {
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), length) });
    }
    Ok(())
}

/// Inline bytes that the QP can have.
///
/// # Safety
/// As [`builder`].
#[inline]
unsafe fn most_inline(qp: *mut abi::QpEx) -> usize {
    // SAFETY: the caller's promise.
    unsafe { alive::<QpPart>(qp) }.map_or(0, |object| object.part.max_inline as usize)
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut abi::QpEx, addr: *mut c_void, length: usize) {
    // SAFETY: the function is the QP's; the program's bytes, which are copied now.
    unsafe {
        let most = most_inline(qp);
        set(qp, |_, bytes| {
            let start = bytes.len();
            copy(bytes, start, most, addr, length).map(|()| Data::Inline(start, length))
        });
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut abi::QpEx, count: usize, list: *const abi::DataBuf) {
    // SAFETY: the function is the QP's; the program's list and bytes, which are copied now.
    unsafe {
        let most = most_inline(qp);
        set(qp, |_, bytes| {
            let start = bytes.len();
            let list = if count == 0 || list.is_null() { &[] } else { std::slice::from_raw_parts(list, count) };
            for piece in list {
                copy(bytes, start, most, piece.addr, piece.length)?;
            }
            Ok(Data::Inline(start, bytes.len() - start))
        });
    }
}
