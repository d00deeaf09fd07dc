//! Work requests as C has them, made on the stack: a chain is posted in pieces of a few, each with one call of the driver.

use core::mem::{MaybeUninit, offset_of};

use scalefabric_verbs::{
    BindMw, Errno, LKey, MemoryRegion, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge, UdAddress,
};

use crate::abi;
use crate::handle::Inside;
use crate::objects::address_handle::AhObject;
use crate::objects::memory_region::{MrObject, MwObject};

/// Work requests posted with one call.
pub(crate) const PIECE: usize = 16;

// An SGE of the contract is an SGE of C: lists are passed on as they are.
const _: () = assert!(size_of::<Sge>() == size_of::<abi::Sge>() && align_of::<Sge>() == align_of::<abi::Sge>());
const _: () = assert!(offset_of!(Sge, addr) == offset_of!(abi::Sge, addr));
const _: () = assert!(offset_of!(Sge, length) == offset_of!(abi::Sge, length));
const _: () = assert!(offset_of!(Sge, lkey) == offset_of!(abi::Sge, lkey) && size_of::<LKey>() == size_of::<u32>());

fn sge_list(list: &[Sge]) -> (*mut abi::Sge, i32) {
    (list.as_ptr().cast_mut().cast(), i32::try_from(list.len()).unwrap_or(i32::MAX))
}

/// Posts receives; on failure the index of the first that is not posted, and the errno.
pub(crate) fn post_receives(
    chain: &[RecvWr<'_>],
    mut post: impl FnMut(*mut abi::RecvWr, *mut *mut abi::RecvWr) -> i32,
) -> Result<(), (usize, i32)> {
    for (number, piece) in chain.chunks(PIECE).enumerate() {
        let mut wrs = [const { MaybeUninit::<abi::RecvWr>::uninit() }; PIECE];
        let first: *mut abi::RecvWr = wrs.as_mut_ptr().cast();
        for (index, wr) in piece.iter().enumerate() {
            let (list, num_sge) = sge_list(wr.sg_list);
            let last = index + 1 == piece.len();
            let next = if last { core::ptr::null_mut() } else { first.wrapping_add(index + 1) };
            // SAFETY: `index` is below PIECE.
            unsafe { first.add(index).write(abi::RecvWr { wr_id: wr.wr_id, next, sg_list: list, num_sge }) };
        }
        let mut bad = core::ptr::null_mut();
        let code = post(first, &mut bad);
        if code != 0 {
            return Err((number * PIECE + index_of(first, bad, piece.len()), super::returned(code)));
        }
    }
    Ok(())
}

/// Which of a piece the driver calls bad; the first if it names none.
fn index_of<T>(first: *mut T, bad: *mut T, count: usize) -> usize {
    let distance = (bad as usize).wrapping_sub(first as usize) / size_of::<T>();
    if distance < count { distance } else { 0 }
}

/// What a work request names must live until it is posted: the objects are held inside.
#[derive(Default)]
struct Held<'a> {
    ah: Option<Inside<'a, abi::Ah>>,
    mw: Option<Inside<'a, abi::Mw>>,
    mr: Option<Inside<'a, abi::Mr>>,
}

/// Why a work request cannot even be written down.
type Refusal = (Errno, &'static str);

const FOREIGN_AH: Refusal = (Errno::EINVAL, "the address handle is of another backend");
const FOREIGN_MW: Refusal = (Errno::EINVAL, "the memory window is of another backend");
const FOREIGN_MR: Refusal = (Errno::EINVAL, "the memory region is of another backend");

/// Posts sends; `raw` lets SGEs of INLINE work requests name memory.
pub(crate) fn post_sends(
    chain: &[SendWr<'_>],
    raw: bool,
    mut post: impl FnMut(*mut abi::SendWr, *mut *mut abi::SendWr) -> i32,
    refused: impl Fn(&SendWr<'_>, i32) -> Refusal,
) -> Result<(), PostError> {
    for (number, piece) in chain.chunks(PIECE).enumerate() {
        let mut wrs = [const { MaybeUninit::<abi::SendWr>::uninit() }; PIECE];
        let mut inline = [abi::Sge::default(); PIECE];
        let mut held = [const { Held { ah: None, mw: None, mr: None } }; PIECE];
        let first: *mut abi::SendWr = wrs.as_mut_ptr().cast();
        let mut refusal = None;
        let mut count = 0;
        for (index, wr) in piece.iter().enumerate() {
            match write_down(wr, raw, &mut inline[index], &mut held[index]) {
                Ok(mut made) => {
                    made.next = core::ptr::null_mut();
                    // SAFETY: `index` is below PIECE, and the one before was written.
                    unsafe {
                        first.add(index).write(made);
                        if index > 0 {
                            (*first.add(index - 1)).next = first.add(index);
                        }
                    }
                    count = index + 1;
                }
                Err(why) => {
                    refusal = Some((index, why));
                    break;
                }
            }
        }
        // Those before one that cannot be written down are posted, as the contract has it.
        if count > 0 {
            let mut bad = core::ptr::null_mut();
            let code = post(first, &mut bad);
            if code != 0 {
                let index = index_of(first, bad, count);
                let (errno, reason) = refused(&piece[index], super::returned(code));
                return Err(PostError { index: number * PIECE + index, errno, reason });
            }
            for wr in &piece[..count] {
                if let SendOp::BindMw(bind) = &wr.op
                    && let Some(mw) = bind.mw.as_any().downcast_ref::<MwObject>()
                {
                    mw.rkey.store(bind.rkey.0, core::sync::atomic::Ordering::Relaxed);
                }
            }
        }
        if let Some((index, (errno, reason))) = refusal {
            return Err(PostError { index: number * PIECE + index, errno, reason });
        }
    }
    Ok(())
}

/// One work request in C's form, without `next`.
fn write_down<'a>(
    wr: &SendWr<'a>,
    raw: bool,
    inline: &mut abi::Sge,
    held: &mut Held<'a>,
) -> Result<abi::SendWr, Refusal> {
    let is_inline = wr.flags.contains(SendFlags::INLINE);
    let (mut sg_list, mut num_sge) = sge_list(wr.sg_list);
    if is_inline && wr.sg_list.is_empty() {
        *inline = abi::Sge {
            addr: wr.inline_data.as_ptr() as u64,
            length: u32::try_from(wr.inline_data.len()).map_err(|_| (Errno::EINVAL, "too many inline bytes"))?,
            lkey: 0,
        };
        (sg_list, num_sge) = (inline, i32::from(!wr.inline_data.is_empty()));
    } else if is_inline && !raw {
        return Err((Errno::EINVAL, "INLINE takes its bytes from inline_data; SGEs are for post_send_raw"));
    } else if !wr.inline_data.is_empty() {
        return Err((Errno::EINVAL, "inline_data without INLINE, or together with SGEs"));
    }
    let nothing = abi::MwBindInfo { mr: core::ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
    let mut made = abi::SendWr {
        wr_id: wr.wr_id,
        next: core::ptr::null_mut(),
        sg_list,
        num_sge,
        opcode: wr.op.kind() as u32,
        send_flags: wr.flags.bits(),
        imm_data: 0,
        wr: abi::WrKind { atomic: abi::WrAtomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        remote_srqn: wr.xrc_srqn.map_or(0, |srqn| srqn.get()),
        bind_mw: abi::WrBindMw { mw: core::ptr::null_mut(), rkey: 0, bind_info: nothing },
    };
    let rdma =
        |remote_addr, rkey: scalefabric_verbs::RKey| abi::WrKind { rdma: abi::WrRdma { remote_addr, rkey: rkey.0 } };
    match wr.op {
        SendOp::Send => {}
        SendOp::SendWithImm { imm } => made.imm_data = imm.to_be(),
        SendOp::SendWithInv { invalidate_rkey } => made.imm_data = invalidate_rkey.0,
        SendOp::LocalInv { rkey } => made.imm_data = rkey.0,
        SendOp::Write { remote_addr, rkey } | SendOp::Read { remote_addr, rkey } => made.wr = rdma(remote_addr, rkey),
        SendOp::WriteWithImm { remote_addr, rkey, imm } => {
            made.wr = rdma(remote_addr, rkey);
            made.imm_data = imm.to_be();
        }
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            made.wr = abi::WrKind { atomic: abi::WrAtomic { remote_addr, compare_add: compare, swap, rkey: rkey.0 } };
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => {
            made.wr = abi::WrKind { atomic: abi::WrAtomic { remote_addr, compare_add: add, swap: 0, rkey: rkey.0 } };
        }
        SendOp::BindMw(bind) => made.bind_mw = bind_window(&bind, held)?,
        SendOp::Flush { .. } | SendOp::AtomicWrite { .. } => {
            return Err((Errno::EOPNOTSUPP, "libibverbs' ibv_post_send has no FLUSH and no ATOMIC WRITE"));
        }
    }
    if let Some(UdAddress { ah, remote_qpn, remote_qkey }) = wr.ud {
        let ah = ah.as_any().downcast_ref::<AhObject>().ok_or(FOREIGN_AH)?;
        let inside = ah.handle.enter().ok_or((Errno::EINVAL, "the address handle was destroyed"))?;
        made.wr = abi::WrKind {
            ud: abi::WrUd { ah: inside.pointer(), remote_qpn: remote_qpn.get(), remote_qkey: remote_qkey.0 },
        };
        held.ah = Some(inside);
    }
    Ok(made)
}

/// Region of a bind, held.
fn bound_region<'a>(mr: &'a dyn MemoryRegion) -> Result<Inside<'a, abi::Mr>, Refusal> {
    let mr = mr.as_any().downcast_ref::<MrObject>().ok_or(FOREIGN_MR)?;
    mr.handle.enter().ok_or((Errno::EINVAL, "the memory region was destroyed"))
}

fn bind_window<'a>(bind: &BindMw<'a>, held: &mut Held<'a>) -> Result<abi::WrBindMw, Refusal> {
    let object = bind.mw.as_any().downcast_ref::<MwObject>().ok_or(FOREIGN_MW)?;
    let mw = object.handle.enter().ok_or((Errno::EINVAL, "the memory window was destroyed"))?;
    let mr = bind.mr.map(bound_region).transpose()?;
    let made = abi::WrBindMw { mw: mw.pointer(), rkey: bind.rkey.0, bind_info: bind_info(object, bind, mr.as_ref()) };
    (held.mw, held.mr) = (Some(mw), mr);
    Ok(made)
}

/// A region whose keys are 0, for user libraries that read one where there is none. It is only read.
static NO_REGION: [u64; size_of::<abi::Mr>() / 8] = [0; size_of::<abi::Mr>() / 8];

fn bind_info(mw: &MwObject, bind: &BindMw<'_>, mr: Option<&Inside<'_, abi::Mr>>) -> abi::MwBindInfo {
    let none = || match mw.device.vendor() {
        Some(vendor) if vendor.unbind_reads_region => NO_REGION.as_ptr().cast_mut().cast(),
        _ => core::ptr::null_mut(),
    };
    abi::MwBindInfo {
        mr: mr.map_or_else(none, Inside::pointer),
        addr: bind.addr,
        length: bind.length,
        mw_access_flags: bind.access.bits(),
    }
}

/// The region and the arguments of a type 1 bind, for as long as it is being posted.
pub(crate) fn bind_type1<'a>(
    bind: &BindMw<'a>,
) -> Result<(&'a MwObject, Option<Inside<'a, abi::Mr>>, abi::MwBindInfo), Refusal> {
    let mw = bind.mw.as_any().downcast_ref::<MwObject>().ok_or(FOREIGN_MW)?;
    let mr = bind.mr.map(bound_region).transpose()?;
    let info = bind_info(mw, bind, mr.as_ref());
    Ok((mw, mr, info))
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::RKey;

    /// What a call of the driver got: (wr_id, opcode, bytes of its inline or first SGE) of each work request.
    type Call = Vec<(u64, u32, u32)>;

    /// Posts a chain to nobody.
    fn posted(chain: &[SendWr<'_>], fail_at: Option<u64>) -> (Vec<Call>, Result<(), PostError>) {
        let mut calls = Vec::new();
        let result = post_sends(
            chain,
            false,
            |first, bad| {
                let mut call = Vec::new();
                let mut next = first;
                while !next.is_null() {
                    // SAFETY: a chain as it was written down.
                    let wr = unsafe { &*next };
                    if Some(wr.wr_id) == fail_at {
                        // SAFETY: a place for it.
                        unsafe { *bad = next };
                        calls.push(call);
                        return libc::ENOMEM;
                    }
                    // SAFETY: as many SGEs as it says.
                    let bytes = if wr.num_sge > 0 { unsafe { (*wr.sg_list).length } } else { 0 };
                    call.push((wr.wr_id, wr.opcode, bytes));
                    next = wr.next;
                }
                calls.push(call);
                0
            },
            |_, raw| (Errno::from_raw(raw).expect("ENOMEM"), "full"),
        );
        (calls, result)
    }

    fn sends(count: u64) -> Vec<SendWr<'static>> {
        (0..count).map(|id| SendWr::new(id, SendOp::Send)).collect()
    }

    #[test]
    fn a_long_chain_is_posted_in_pieces_and_in_order() {
        let (calls, result) = posted(&sends(PIECE as u64 + 3), None);
        assert_eq!(result, Ok(()));
        assert_eq!(calls.iter().map(Vec::len).collect::<Vec<_>>(), [PIECE, 3]);
        let ids: Vec<u64> = calls.concat().iter().map(|call| call.0).collect();
        assert_eq!(ids, (0..PIECE as u64 + 3).collect::<Vec<_>>());
    }

    #[test]
    fn the_index_of_the_bad_one_counts_from_the_beginning_of_the_chain() {
        let (_, result) = posted(&sends(PIECE as u64 + 3), Some(PIECE as u64 + 1));
        assert_eq!(result, Err(PostError { index: PIECE + 1, errno: Errno::ENOMEM, reason: "full" }));
    }

    #[test]
    fn what_comes_before_a_refused_one_is_posted() {
        let mut chain = sends(3);
        chain[2].op = SendOp::AtomicWrite { remote_addr: 0, rkey: RKey(0) };
        let (calls, result) = posted(&chain, None);
        assert_eq!(calls.concat().len(), 2);
        let error = result.unwrap_err();
        assert_eq!((error.index, error.errno), (2, Errno::EOPNOTSUPP));
    }

    #[test]
    fn inline_bytes_become_one_sge_and_sges_are_refused_with_inline() {
        let bytes = [7; 20];
        let mut wr = SendWr::new(1, SendOp::Send);
        wr.flags = SendFlags::INLINE;
        wr.inline_data = &bytes;
        let (calls, result) = posted(&[wr], None);
        assert_eq!((calls.concat(), result), (vec![(1, 2, 20)], Ok(())));
        let list = [Sge::default()];
        let refused = SendWr { inline_data: &[], sg_list: &list, ..wr };
        assert_eq!(posted(&[refused], None).1.unwrap_err().errno, Errno::EINVAL);
    }
}
