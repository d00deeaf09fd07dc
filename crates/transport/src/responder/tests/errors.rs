//! Each receive-side status, the asynchronous events, and the way into ERR.

use alloc::vec;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{QpState, QpType};

use super::*;
use crate::host::AccessFault;
use crate::responder::fault::Fault;
use EventType::{QpAccessErr, QpFatal, QpLastWqeReached, QpReqErr};
use Position::{First, Last, Only};
use WcStatus::{LocAccessErr, LocLenErr, LocProtErr, MwBindErr, RemInvReqErr, WrFlushErr};

/// A bed with two receives of 2000 bytes.
fn bed() -> Bed {
    let mut bed = Bed::rc();
    bed.post(1, 2000);
    bed.post(2, 2000);
    bed
}

#[track_caller]
fn ends(bed: &mut Bed, statuses: &[WcStatus], events: &[EventType], code: NakCode) {
    let said = bed.said();
    assert_eq!(verdict(said.last().unwrap()).1, Syndrome::Nak(code));
    assert_eq!(bed.statuses(), statuses);
    assert_eq!(bed.host.events, events);
    assert_eq!(bed.ctx.state, QpState::Err);
    assert!(bed.host.received.iter().all(|r| r.solicited), "a failed completion wakes who waits for solicited ones");
}

#[test]
fn send_too_long_for_its_buffer_is_a_local_length_error_and_the_rest_is_flushed() {
    let mut bed = bed();
    bed.all(&[bed.send(First, &bytes(PMTU)), bed.send(Last, &bytes(PMTU))]);
    ends(&mut bed, &[LocLenErr, WrFlushErr], &[], NakCode::InvalidRequest);
    assert_eq!(bed.host.received.iter().map(|r| r.wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(bed.counter(Counter::LocalLengthErrors), 1);
    assert_eq!((bed.counter(Counter::RespondedCqeErrors), bed.counter(Counter::RespondedCqeFlushErrors)), (1, 1));
}

#[test]
fn receive_buffer_with_a_bad_key_is_a_local_protection_error() {
    let mut bed = Bed::rc();
    bed.host.post_recv(1, &[Piece { addr: BUFFER, length: 64, key: 0xbad }]);
    bed.post(2, 64);
    bed.next(&bed.send(Only, &[1]));
    ends(&mut bed, &[LocProtErr, WrFlushErr], &[], NakCode::RemoteOperationalError);
    assert_eq!(bed.dropped(DropReason::LocalProtection), 1);
}

#[test]
fn write_with_immediate_to_a_wrong_key_is_a_local_access_error() {
    let mut bed = bed();
    let mut packet = bed.packet(Operation::WriteWithImm, Only, &[1]);
    packet.headers.reth = Some(Reth { va: AT, rkey: RKey(0xbad), dma_len: 1 });
    packet.headers.imm = Some(1);
    bed.next(&packet);
    ends(&mut bed, &[LocAccessErr, WrFlushErr], &[], NakCode::RemoteAccessError);
    assert_eq!(bed.counter(Counter::RespondedAccessErrors), 1);
}

#[test]
fn message_that_breaks_off_is_an_invalid_request_for_its_receive() {
    let mut bed = bed();
    bed.all(&[bed.send(First, &bytes(PMTU)), bed.read(AT, 1)]);
    ends(&mut bed, &[RemInvReqErr, WrFlushErr], &[], NakCode::InvalidRequest);
}

#[test]
fn key_that_cannot_be_invalidated_fails_the_receive_and_the_peer_hears_of_it() {
    let mut bed = bed();
    let mut packet = bed.packet(Operation::SendWithInv, Only, &[1]);
    packet.headers.ieth = Some(RKey(0xbad));
    bed.next(&packet);
    ends(&mut bed, &[MwBindErr, WrFlushErr], &[], NakCode::RemoteAccessError);
}

#[test]
fn fault_without_a_receive_is_told_by_an_event() {
    for (packet, event, code) in [
        (bed().write(Only, AT + LEN, 1, &[1]), QpAccessErr, NakCode::RemoteAccessError),
        (bed().read(AT + LEN, 1), QpAccessErr, NakCode::RemoteAccessError),
        (bed().write(Only, AT, 2, &[1]), QpReqErr, NakCode::InvalidRequest),
        (bed().fetch_add(AT + 1, 1), QpReqErr, NakCode::InvalidRequest),
        (bed().send(Last, &[1]), QpReqErr, NakCode::InvalidRequest),
    ] {
        let mut bed = bed();
        bed.next(&packet);
        ends(&mut bed, &[WrFlushErr, WrFlushErr], &[event], code);
    }
}

#[test]
fn memory_that_goes_away_without_a_receive_is_fatal() {
    let mut bed = bed();
    bed.host.regions[1].gone = true;
    bed.next(&bed.fetch_add(AT, 1));
    ends(&mut bed, &[WrFlushErr, WrFlushErr], &[QpFatal], NakCode::RemoteOperationalError);
}

#[test]
fn unknown_xrc_srq_is_refused() {
    let mut bed = Bed::new(QpType::XrcRecv);
    bed.next(&bed.send(Only, &[1]));
    assert_nak(&bed.said(), Psn::new(0xff_fffe), NakCode::InvalidRequest);
    assert_eq!(bed.host.events, [QpReqErr]);
}

#[test]
fn message_that_was_coming_in_is_flushed_before_the_rest() {
    let mut bed = bed();
    bed.next(&bed.send(First, &bytes(PMTU)));
    bed.ctx.state = QpState::Err;
    bed.r.flush(&bed.ctx, &mut bed.host);
    assert_eq!(
        bed.host.received.iter().map(|r| (r.wc.wr_id, r.wc.status)).collect::<Vec<_>>(),
        [(1, WrFlushErr), (2, WrFlushErr)]
    );
    bed.post(3, 10);
    bed.r.flush(&bed.ctx, &mut bed.host);
    assert_eq!(bed.host.received[2].wc.wr_id, 3);
}

#[test]
fn with_an_srq_only_its_own_receive_is_flushed_and_the_last_one_is_told_once() {
    let mut bed = bed();
    bed.host.has_srq = true;
    bed.next(&bed.send(First, &bytes(PMTU)));
    bed.ctx.state = QpState::Err;
    for _ in 0..2 {
        bed.r.flush(&bed.ctx, &mut bed.host);
    }
    assert_eq!(bed.statuses(), [WrFlushErr]);
    assert_eq!(bed.host.recvs_left(), 1);
    assert_eq!(bed.host.events, [QpLastWqeReached]);
}

#[test]
fn reset_forgets_everything() {
    let mut bed = bed();
    bed.next(&bed.send(Only, &[1]));
    bed.next(&bed.read(AT, 10));
    bed.next(&bed.send(First, &bytes(PMTU)));
    bed.r.reset();
    bed.r.start(Psn::new(5));
    assert!(bed.said().is_empty());
    assert_eq!(bed.r.expected_psn(), Psn::new(5));
    bed.psn = Psn::new(5);
    bed.post(3, 10);
    bed.next(&bed.send(Only, &[1]));
    assert_ack(&bed.said(), Psn::new(5), 1);
}

#[test]
fn rows_of_the_fault_table() {
    let rows: Vec<_> = [
        Fault::LocalProtection(crate::host::LocalFault::BadKey),
        Fault::Unsupported,
        Fault::ReservedValue,
        Fault::MisalignedAtomic,
        Fault::TooManyReads,
        Fault::OpcodeSequence,
        Fault::Length,
        Fault::RemoteAccess(AccessFault::BadKey),
        Fault::RemoteAccess(AccessFault::Gone),
        Fault::UnknownSrq,
        Fault::Invalidate(AccessFault::BadKey),
    ]
    .into_iter()
    .map(|fault| {
        let row = fault.row();
        (row.nak, row.status, row.event)
    })
    .collect();
    use NakCode::{InvalidRequest, RemoteAccessError, RemoteOperationalError};
    assert_eq!(
        rows,
        vec![
            (RemoteOperationalError, LocProtErr, QpFatal),
            (InvalidRequest, RemInvReqErr, QpReqErr),
            (InvalidRequest, RemInvReqErr, QpReqErr),
            (InvalidRequest, RemInvReqErr, QpReqErr),
            (InvalidRequest, RemInvReqErr, QpReqErr),
            (InvalidRequest, RemInvReqErr, QpReqErr),
            (InvalidRequest, LocLenErr, QpReqErr),
            (RemoteAccessError, LocAccessErr, QpAccessErr),
            (RemoteOperationalError, LocAccessErr, QpFatal),
            (InvalidRequest, RemInvReqErr, QpReqErr),
            (RemoteAccessError, MwBindErr, QpAccessErr),
        ]
    );
}
