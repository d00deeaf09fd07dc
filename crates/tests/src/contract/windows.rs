//! Memory windows, and keys that become invalid.

use std::sync::Arc;

use scalefabric_verbs::{
    AccessFlags, BindMw, MemoryWindow, MwType, QpType, RKey, SendFlags, SendOp, SendWr, WcFlags, WcOpcode, WcStatus,
};

use super::bench::{ALL_RIGHTS, Bench, End, or_skip};
use super::{Outcome, cases, ensure, same};

cases![
    a_window_of_type_1_is_bound_and_unbound,
    a_window_of_type_2_is_bound_and_invalidated,
    a_send_with_invalidate_takes_the_key_away,
    a_window_beyond_its_region_is_not_bound,
];

const WINDOW: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ);

type Window = (Arc<dyn MemoryWindow>, Arc<dyn scalefabric_verbs::MemoryRegion>);

/// A window of an end, and a region that windows may be bound to.
fn window(end: &End, mw_type: MwType) -> Result<Window, super::Stop> {
    let mw = or_skip(end.pd.alloc_mw(mw_type))?;
    same!(mw.mw_type(), mw_type, "the type");
    let mr = end.pd.alloc_mr(8192, ALL_RIGHTS | AccessFlags::MW_BIND)?;
    Ok((mw, mr))
}

/// Writes 8 bytes through a key; gives the status.
fn write(from: &End, remote_addr: u64, rkey: RKey) -> Result<WcStatus, super::Stop> {
    from.send(50, SendOp::Write { remote_addr, rkey }, &[from.sge(0, 8)])?;
    Ok(from.next()?.status)
}

fn a_window_of_type_1_is_bound_and_unbound(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let (mw, mr) = window(&other, MwType::Type1)?;
    let bind = BindMw { mw: &*mw, rkey: RKey(0), mr: Some(&*mr), addr: mr.addr() + 64, length: 128, access: WINDOW };
    or_skip(other.qp.bind_mw(1, SendFlags::SIGNALED, &bind))?;
    same!(other.good(1)?.opcode, WcOpcode::BindMw, "the completion");
    let bound = mw.rkey();
    one.fill(0, 8, 1)?;
    same!(write(&one, mr.addr() + 64, bound)?, WcStatus::Success, "a write through the window");
    let unbind = BindMw { mr: None, addr: 0, length: 0, access: AccessFlags::empty(), ..bind };
    other.qp.bind_mw(2, SendFlags::SIGNALED, &unbind)?;
    other.good(2)?;
    same!(write(&one, mr.addr() + 64, bound)?, WcStatus::RemAccessErr, "a write through a window that is not bound");
    Ok(())
}

/// Binds a window of type 2 and gives its new key.
fn bind(end: &End, mw: &dyn MemoryWindow, mr: &dyn scalefabric_verbs::MemoryRegion) -> Result<RKey, super::Stop> {
    let old = mw.rkey().0;
    let rkey = RKey(old & !0xff | (old.wrapping_add(1) & 0xff));
    let bind = BindMw { mw, rkey, mr: Some(mr), addr: mr.addr(), length: 4096, access: WINDOW };
    end.send(1, SendOp::BindMw(bind), &[])?;
    same!(end.good(1)?.opcode, WcOpcode::BindMw, "the completion");
    same!(mw.rkey(), rkey, "the window's key");
    Ok(rkey)
}

fn a_window_of_type_2_is_bound_and_invalidated(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let (mw, mr) = window(&other, MwType::Type2)?;
    let rkey = bind(&other, &*mw, &*mr)?;
    one.fill(0, 8, 4)?;
    same!(write(&one, mr.addr(), rkey)?, WcStatus::Success, "a write through the window");
    let mut got = [0; 8];
    mr.read(0, &mut got)?;
    same!(got.to_vec(), one.bytes(0, 8)?, "the bytes");
    other.send(2, SendOp::LocalInv { rkey }, &[])?;
    same!(other.good(2)?.opcode, WcOpcode::LocalInv, "the completion");
    same!(write(&one, mr.addr(), rkey)?, WcStatus::RemAccessErr, "a write through a key that was invalidated");
    Ok(())
}

fn a_send_with_invalidate_takes_the_key_away(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let (mw, mr) = window(&other, MwType::Type2)?;
    let rkey = bind(&other, &*mw, &*mr)?;
    other.receive(3, 0, 64)?;
    one.send(4, SendOp::SendWithInv { invalidate_rkey: rkey }, &[one.sge(0, 8)])?;
    one.good(4)?;
    let wc = other.good(3)?;
    ensure!(wc.flags.contains(WcFlags::WITH_INV), "the receive does not tell: {wc:?}");
    same!(wc.invalidated_rkey, rkey, "the key that is gone");
    same!(write(&one, mr.addr(), rkey)?, WcStatus::RemAccessErr, "a write through it");
    Ok(())
}

fn a_window_beyond_its_region_is_not_bound(bench: &Bench) -> Outcome {
    let (_one, other) = bench.pair(QpType::Rc)?;
    let (mw, mr) = window(&other, MwType::Type2)?;
    let rkey = RKey(mw.rkey().0 & !0xff | 0x77);
    let bind = BindMw { mw: &*mw, rkey, mr: Some(&*mr), addr: mr.addr() + 8000, length: 4096, access: WINDOW };
    let mut wr = SendWr::new(1, SendOp::BindMw(bind));
    wr.flags = SendFlags::SIGNALED;
    // Refused at once or by its completion.
    if other.qp.post_send(&[wr]).is_ok() {
        let wc = other.next()?;
        ensure!(wc.status != WcStatus::Success, "a window beyond its region is bound");
    }
    Ok(())
}
