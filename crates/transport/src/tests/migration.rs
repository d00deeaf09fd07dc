//! Path migration between two QPs with two ports each (clause 17.2.8).

use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{MigState, QpAttr, QpAttrMask, QpState, QpType};

use super::{SIGNALED, WRITE, piece};
use crate::counter::{Counter, DropReason};
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::testing::{Fate, Link, Packet};

/// Two RC sides with both paths loaded. They are armed by one exchange.
fn armed() -> Link {
    let mut link = Link::new((QpType::Rc, QpType::Rc), 1 << 16, Config::default(), |attr| {
        attr.timeout = 8;
        attr.retry_cnt = 2;
    });
    let (to_a, to_b) = (link.a.host.address(2), link.b.host.address(2));
    for (side, path) in [(&mut link.a, to_b), (&mut link.b, to_a)] {
        let attr = QpAttr {
            alt_ah_attr: path,
            alt_port_num: 2,
            alt_timeout: 9,
            path_mig_state: MigState::Rearm,
            ..side.qp.query()
        };
        side.modify(&attr, QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE).unwrap();
        assert_eq!(side.qp.query().path_mig_state, MigState::Rearm);
    }
    write(&mut link, 1);
    link.run();
    link
}

fn write(link: &mut Link, wr_id: u64) {
    link.a.host.post_send(wr_id, WRITE, SIGNALED, &[piece(0, 8)]);
}

fn states(link: &Link) -> (MigState, MigState) {
    (link.a.qp.query().path_mig_state, link.b.qp.query().path_mig_state)
}

/// Port 1 is cut.
fn cut(_: bool, packet: &Packet) -> Fate {
    if packet.port_num == 1 { Fate::Lost } else { Fate::Arrives }
}

#[test]
fn both_sides_are_armed_when_both_have_heard_the_other() {
    let link = armed();
    assert_eq!(states(&link), (MigState::Armed, MigState::Armed));
    assert_eq!(link.a.host.sent.len(), 1);
}

#[test]
fn one_side_alone_stays_in_rearm() {
    let mut link = Link::rc();
    let path = link.b.host.address(2);
    let attr = QpAttr { alt_ah_attr: path, alt_port_num: 2, path_mig_state: MigState::Rearm, ..link.a.qp.query() };
    link.a.modify(&attr, QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE).unwrap();
    write(&mut link, 1);
    link.run();
    assert_eq!(states(&link), (MigState::Rearm, MigState::Migrated));
    assert_eq!(link.a.host.sent.len(), 1);
}

#[test]
fn when_the_primary_path_is_cut_both_sides_go_on_by_the_other() {
    let mut link = armed();
    for wr_id in 2..=5 {
        write(&mut link, wr_id);
    }
    let end = link.now().after(1_000_000_000);
    link.run_until(end, &mut cut);
    assert_eq!(
        link.a.host.sent.iter().map(|w| (w.wr_id, w.status)).collect::<alloc::vec::Vec<_>>(),
        (1..=5).map(|id| (id, Success)).collect::<alloc::vec::Vec<_>>()
    );
    assert_eq!(states(&link), (MigState::Migrated, MigState::Migrated));
    assert_eq!((link.a.qp.state(), link.b.qp.state()), (QpState::Rts, QpState::Rts));
    for side in [&link.a, &link.b] {
        assert_eq!(side.host.events, [EventType::PathMig]);
        assert_eq!(side.host.counter(Counter::Migrations), 1);
        let q = side.qp.query();
        assert_eq!((q.port_num, q.alt_port_num, q.timeout, q.alt_timeout), (2, 1, 9, 8));
    }
    // And the other way round.
    link.b.host.post_send(9, WRITE, SIGNALED, &[piece(0, 8)]);
    let end = link.now().after(1_000_000_000);
    link.run_until(end, &mut cut);
    assert_eq!(link.b.host.sent.len(), 1);
}

#[test]
fn after_loading_a_path_anew_it_can_migrate_again() {
    let mut link = armed();
    write(&mut link, 2);
    let end = link.now().after(1_000_000_000);
    link.run_until(end, &mut cut);
    for side in [&mut link.a, &mut link.b] {
        let attr = QpAttr { path_mig_state: MigState::Rearm, ..side.qp.query() };
        side.modify(&attr, QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE).unwrap();
    }
    write(&mut link, 3);
    link.run();
    assert_eq!(states(&link), (MigState::Armed, MigState::Armed));
    write(&mut link, 4);
    let end = link.now().after(1_000_000_000);
    link.run_until(end, &mut |_, p| if p.port_num == 2 { Fate::Lost } else { Fate::Arrives });
    assert_eq!(link.a.host.sent.len(), 4);
    assert!(link.a.host.sent.iter().all(|w| w.status == Success));
    assert_eq!(link.a.qp.query().port_num, 1);
}

#[test]
fn not_armed_it_gives_up() {
    let mut link = Link::new((QpType::Rc, QpType::Rc), 1 << 16, Config::default(), |attr| {
        attr.timeout = 8;
        attr.retry_cnt = 2;
    });
    write(&mut link, 1);
    let end = link.now().after(1_000_000_000);
    link.run_until(end, &mut cut);
    assert_eq!(link.a.host.sent[0].status, RetryExcErr);
}

#[test]
fn on_the_alternate_path_the_retries_begin_anew_and_end_too() {
    let mut link = armed();
    write(&mut link, 2);
    let begin = link.now();
    let mut count = 0;
    let mut died = None;
    let end = begin.after(1_000_000_000);
    link.run_until(end, &mut |from_a, _| {
        count += u32::from(from_a);
        Fate::Lost
    });
    if let Some(wc) = link.a.host.sent.get(1) {
        died = Some(wc.status);
    }
    assert_eq!(died, Some(RetryExcErr));
    assert_eq!(count, 6, "the first and two repetitions on each path");
}

#[test]
fn the_consumer_migrates_by_modify_and_the_peer_follows() {
    let mut link = armed();
    let attr = QpAttr { path_mig_state: MigState::Migrated, ..link.a.qp.query() };
    link.a.modify(&attr, QpAttrMask::PATH_MIG_STATE).unwrap();
    assert_eq!(link.a.qp.query().port_num, 2);
    write(&mut link, 2);
    link.run();
    assert_eq!(states(&link), (MigState::Migrated, MigState::Migrated));
    assert_eq!(link.b.host.events, [EventType::PathMig]);
    assert_eq!(link.a.host.events, []);
    assert_eq!(link.a.host.sent.len(), 2);
}

#[test]
fn after_a_migration_by_modify_the_timer_is_that_of_the_new_path() {
    let mut link = armed();
    write(&mut link, 2);
    link.a.transmit(8);
    let left = link.a.host.now;
    assert_eq!(link.a.qp.deadline(), Some(left.after(4096 << 8)));
    let attr = QpAttr { path_mig_state: MigState::Migrated, ..link.a.qp.query() };
    link.a.modify(&attr, QpAttrMask::PATH_MIG_STATE).unwrap();
    assert_eq!(link.a.qp.deadline(), Some(left.after(4096 << 9)));
}

#[test]
fn a_wish_to_migrate_to_a_path_that_is_not_loaded_is_refused_with_one_event() {
    let mut link = armed();
    write(&mut link, 2);
    link.a.transmit(1);
    let good = link.a.host.take_packet().unwrap();
    let mut bad = good.clone();
    bad.headers.bth.mig_req = true;
    bad.src = scalefabric_wire::Gid::from_ip(core::net::IpAddr::from([10, 0, 9, 9]));
    for _ in 0..3 {
        link.b.receive(&bad);
    }
    assert_eq!(link.b.host.events, [EventType::PathMigErr]);
    assert_eq!(link.b.host.dropped(DropReason::WrongPeer), 3);
    assert_eq!(link.b.qp.query().path_mig_state, MigState::Armed);
    link.b.receive(&good);
    assert_eq!(link.b.host.dropped(DropReason::WrongPeer), 3);
}

#[test]
fn armed_cannot_be_set_and_rearm_needs_a_path() {
    let mut link = Link::rc();
    for (state, mask) in [
        (MigState::Armed, QpAttrMask::PATH_MIG_STATE | QpAttrMask::ALT_PATH),
        (MigState::Rearm, QpAttrMask::PATH_MIG_STATE),
    ] {
        let attr = QpAttr { path_mig_state: state, alt_port_num: 2, ..link.a.qp.query() };
        assert!(link.a.modify(&attr, mask).is_err());
        assert_eq!(link.a.qp.query().path_mig_state, MigState::Migrated);
    }
}

#[test]
fn a_read_that_is_cut_in_the_middle_ends_by_the_other_path() {
    let mut link = armed();
    for (i, byte) in link.b.host.memory.iter_mut().enumerate() {
        *byte = (i % 253) as u8;
    }
    let read = WqeOp::Read { remote_addr: 0, rkey: scalefabric_verbs::RKey(crate::testing::WHOLE) };
    link.a.host.post_send(2, read, SIGNALED, &[piece(0x4000, 0x4000)]);
    let mut n = 0;
    let end = link.now().after(1_000_000_000);
    link.run_until(end, &mut |from_a, p| {
        n += u32::from(!from_a);
        if n > 5 { cut(from_a, p) } else { Fate::Arrives }
    });
    assert_eq!(link.a.host.sent[1].status, Success);
    assert_eq!(link.a.host.memory[0x4000..0x8000], link.b.host.memory[..0x4000]);
}
