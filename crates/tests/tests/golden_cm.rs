//! What our communication manager sends for the inputs that a Linux 6.1 kernel had is what Linux sent, field by field
//! (`golden/rxe`, `cm-*` and `v6-cm-*`). What each side draws for itself (IDs, PSNs, QPNs, transaction IDs) is taken from the capture.

use std::net::IpAddr;
use std::path::Path;

use scalefabric_transport::Time;
use scalefabric_transport::cm::{Connection, Event, Query, Reply, Request, about, reason, request, sidr};
use scalefabric_verbs::{Mtu, PKey, QKey, QpState, QpType, cm::RDMA_UDP_QKEY};
use scalefabric_wire::cm::{CmMad, IpAddressing, Message, Rej, Req, ServiceId, SidrRep, SidrReq};
use scalefabric_wire::frame::{Capture, Frame};
use scalefabric_wire::{Gid, Qpn};

/// Packet lifetime of Linux 6.1; 6.2 and later have 16.
const LIFE_TIME: u8 = 18;

/// A message with its addresses.
struct Sent {
    src: Gid,
    dst: Gid,
    mad: CmMad,
}

fn messages(name: &str) -> Vec<Sent> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rxe").join(name);
    let bytes = std::fs::read(&path).expect("a capture of the repository");
    let mut all = Vec::new();
    for record in Capture::new(&bytes).expect("a capture") {
        let record = record.expect("a whole record");
        let frame = Frame::parse(record.link, record.data).expect("a RoCE packet");
        if frame.packet.headers.bth.dest_qp == Qpn::GSI {
            let mad = CmMad::parse(frame.packet.payload).expect("a CM message");
            all.push(Sent { src: frame.src(), dst: frame.dst(), mad });
        }
    }
    all
}

/// The REQ that we would have sent in Linux's place.
fn our_req(sent: &Sent, theirs: &Req, port: u16) -> Req {
    let theirs_ip = IpAddressing::parse(&theirs.private_data).expect("a header of annex A11");
    let ip = IpAddressing { src_port: theirs_ip.src_port, src: sent.src.to_ip(), dst: sent.dst.to_ip() };
    let data = &theirs.private_data[36..];
    Request {
        local_id: theirs.local_comm_id,
        service_id: ServiceId::of_port(ServiceId::TCP, port),
        ca_guid: theirs.local_ca_guid,
        qpn: theirs.local_qpn,
        qp_type: QpType::Rc,
        starting_psn: theirs.starting_psn,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        pkey: PKey::DEFAULT,
        path_mtu: Mtu::Mtu1024,
        gids: (sent.src, sent.dst),
        flow_label: request::flow_label(ip.src_port, port),
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        packet_life_time: LIFE_TIME,
        vendor_id: 0,
        private_data: request::padded(&request::addressing(&ip), data).expect("92 bytes"),
    }
    .message()
}

fn req_of(sent: &Sent) -> Req {
    let Message::Req(req) = sent.mad.message else { panic!("{:?} is not a REQ", sent.mad.message.name()) };
    req
}

/// The whole life of a connection from both sides.
fn life(name: &str) {
    let all = messages(name);
    let names: Vec<_> = all.iter().map(|sent| sent.mad.message.name()).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"], "{name}");
    let [opening, rep, rtu, dreq, drep] = &all[..] else { unreachable!() };
    let theirs = req_of(opening);
    let ours = our_req(opening, &theirs, 7174);
    assert_eq!(ours, theirs, "{name}");

    let now = Time(0);
    let mut active = Connection::connect(now, ours, 0, opening.mad.transaction_id);
    assert_eq!(active.poll_transmit(), Some(opening.mad), "{name}");
    active.handle(now, &rep.mad);
    assert!(matches!(active.poll_event(), Some(Event::Replied { .. })));
    assert!(active.establish());
    assert_eq!(active.poll_transmit(), Some(rtu.mad), "{name}");

    let Message::Rep(their_rep) = rep.mad.message else { panic!("a REP") };
    let mut passive =
        Connection::request(&theirs, opening.mad.transaction_id, their_rep.local_comm_id, their_rep.local_ca_guid);
    let our_rep = Reply {
        ca_guid: their_rep.local_ca_guid,
        qpn: their_rep.local_qpn,
        starting_psn: their_rep.starting_psn,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        vendor_id: 0,
        private_data: their_rep.private_data,
    };
    assert!(passive.accept(now, our_rep.message(their_rep.local_comm_id, theirs.local_comm_id, false), 0));
    assert_eq!(passive.poll_transmit(), Some(rep.mad), "{name}");
    passive.handle(now, &rtu.mad);
    assert_eq!(passive.poll_event(), Some(Event::Established));

    // Whoever began the end in the capture begins it here.
    let (first, second) =
        if dreq.src == opening.src { (&mut active, &mut passive) } else { (&mut passive, &mut active) };
    assert!(first.disconnect(now));
    // Who disconnects draws no new transaction in Linux either.
    assert_eq!(first.poll_transmit(), Some(dreq.mad), "{name}");
    second.handle(now, &dreq.mad);
    assert_eq!(second.poll_transmit(), Some(drep.mad), "{name}");
    first.handle(now, &drep.mad);
    for side in [first, second] {
        assert_eq!(side.poll_event(), Some(Event::Disconnected { answered: true }));
        assert_eq!(side.poll_event(), None);
    }
}

#[test]
fn a_connection_is_made_and_ended_with_the_messages_of_linux() {
    life("cm-rping.pcap");
    life("v6-cm-rping.pcap");
}

#[test]
fn a_refused_connection_has_the_messages_of_linux() {
    let all = messages("cm-reject.pcap");
    let [opening, rej] = &all[..] else { panic!("a REQ and a REJ") };
    let theirs = req_of(opening);
    let (_, port) = theirs.service_id.port().expect("a port");
    assert_eq!(our_req(opening, &theirs, port), theirs);
    let ours = Rej {
        remote_comm_id: theirs.local_comm_id,
        message_rejected: about::REQ,
        reason: reason::INVALID_SERVICE_ID,
        ..Rej::default()
    };
    assert_eq!(rej.mad.message, Message::Rej(ours));
    let mut active = Connection::connect(Time(0), theirs, 0, opening.mad.transaction_id);
    active.handle(Time(0), &rej.mad);
    assert_eq!(active.poll_event(), Some(Event::Rejected { reason: 8, private_data: [0; 148] }));
}

#[test]
fn a_datagram_service_is_asked_for_and_named_with_the_messages_of_linux() {
    let all = messages("cm-udaddy.pcap");
    let [question, answer] = &all[..2] else { panic!("a SIDR_REQ and a SIDR_REP") };
    let Message::SidrReq(theirs) = question.mad.message else { panic!("a SIDR_REQ") };
    let (space, port) = theirs.service_id.port().expect("a port");
    assert_eq!((space, port), (ServiceId::UDP, 7174));
    let header = IpAddressing::parse(&theirs.private_data).expect("a header of annex A11");
    let (src, dst): (IpAddr, IpAddr) = (question.src.to_ip(), question.dst.to_ip());
    assert_eq!((header.src, header.dst), (src, dst));
    let ours = SidrReq {
        request_id: theirs.request_id,
        pkey: PKey::DEFAULT,
        service_id: ServiceId::of_port(ServiceId::UDP, port),
        private_data: request::padded(&request::addressing(&header), &theirs.private_data[36..]).expect("216 bytes"),
    };
    let mut query = Query::ask(Time(0), ours, question.mad.transaction_id, LIFE_TIME);
    assert_eq!(query.poll_transmit(), Some(question.mad));
    let Message::SidrRep(rep) = answer.mad.message else { panic!("a SIDR_REP") };
    let named = SidrRep {
        request_id: theirs.request_id,
        status: sidr::status::VALID,
        qpn: rep.qpn,
        service_id: theirs.service_id,
        qkey: RDMA_UDP_QKEY,
        private_data: rep.private_data,
        ..SidrRep::default()
    };
    assert_eq!((rep, rep.qkey), (named, QKey(0x0123_4567)));
    query.handle(&rep, 0);
    assert_eq!(query.poll_outcome(), Some(sidr::Outcome::Answered(rep, 0)));
}

#[test]
fn a_qp_gets_what_the_messages_agreed_on() {
    let all = messages("cm-rping.pcap");
    let theirs = req_of(&all[0]);
    let Message::Rep(rep) = all[1].mad.message else { panic!("a REP") };
    let av = scalefabric_verbs::AddressVector::new(1, 0, all[0].dst);
    let mut active = scalefabric_transport::cm::QpPath::of_own_req(&theirs, QpType::Rc, av);
    active.take_rep(&rep, LIFE_TIME);
    let passive = scalefabric_transport::cm::QpPath::of_peer_req(&theirs, QpType::Rc, av, rep.starting_psn);
    let (a, _) = active.attributes(QpState::Rtr).expect("RTR");
    let (p, _) = passive.attributes(QpState::Rtr).expect("RTR");
    assert_eq!((a.dest_qp_num, p.dest_qp_num), (rep.local_qpn, theirs.local_qpn));
    assert_eq!((a.rq_psn, p.rq_psn), (theirs.starting_psn, rep.starting_psn));
    let (a, _) = active.attributes(QpState::Rts).expect("RTS");
    let (p, _) = passive.attributes(QpState::Rts).expect("RTS");
    assert_eq!((a.sq_psn, p.sq_psn), (rep.starting_psn, theirs.starting_psn), "each sends what the other expects");
    // 4.096 µs x 2^19 = 2.1 s, the well-known patience of Linux 6.1.
    assert_eq!((a.timeout, p.timeout, a.retry_cnt, a.rnr_retry), (19, 19, 7, 7));
    assert!(active.attributes(QpState::Sqd).is_none());
}
