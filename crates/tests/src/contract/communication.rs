//! rdma_cm: resolve, listen, connect, accept, reject, disconnect, and groups. The application moves its QPs itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use scalefabric_verbs::cm::reject_reason;
use scalefabric_verbs::{
    CmAddr, CmChannel, CmEvent, CmEventType, CmId, ConnParam, Ece, Errno, EventParam, JoinFlags, PortSpace, QpState,
    QpType, SendFlags, SendOp, SendWr, UdAddress,
};

use super::bench::{Bench, End, PATIENCE, Path, Shape, or_skip, refused};
use super::{Outcome, Stop, cases, ensure, same};

cases![
    a_listener_has_the_port_that_it_asked_for_and_nobody_else_has_it,
    two_sides_connect_talk_and_disconnect,
    a_rejected_request_says_why,
    a_port_where_nobody_listens_is_rejected,
    a_datagram_service_is_resolved,
    a_group_delivers_to_its_members,
    calls_out_of_order_are_refused,
    what_is_destroyed_has_no_events,
];

fn channel(bench: &Bench) -> Result<Arc<dyn CmChannel>, Stop> {
    bench.provider.event_channel().map_err(|error| match error.errno {
        Errno::EOPNOTSUPP | Errno::ENODEV | Errno::ENOENT => Stop::Skip(error.message),
        _ => error.into(),
    })
}

/// Our own address, with a port.
fn address(bench: &Bench, port: u16) -> CmAddr {
    let ip: IpAddr = bench.gid.to_ip();
    let ip = match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        v4 => v4,
    };
    CmAddr::Ip(SocketAddr::new(ip, port))
}

fn port_of(address: &CmAddr) -> u16 {
    match address {
        CmAddr::Ip(ip) => ip.port(),
        CmAddr::Ib(_) => 0,
    }
}

/// The next event, which must be this one.
fn expect(channel: &dyn CmChannel, wanted: CmEventType) -> Result<CmEvent, Stop> {
    match channel.get_event(Some(PATIENCE))? {
        Some(event) if event.event == wanted => Ok(event),
        Some(event) => Err(Stop::Fail(format!("{:?} with status {}, not {wanted:?}", event.event, event.status))),
        None => Err(Stop::Fail(format!("no event {wanted:?}"))),
    }
}

/// A listener on a free port of our address.
fn listener(bench: &Bench, channel: &dyn CmChannel, space: PortSpace) -> Result<(Arc<dyn CmId>, u16), Stop> {
    let id = channel.create_id(space, space.qp_type(QpType::Rc), 1)?;
    id.bind_addr(address(bench, 0))?;
    id.listen(8)?;
    let local = id.query_addr().local.ok_or_else(|| Stop::Fail("a bound identifier has no address".to_owned()))?;
    ensure!(port_of(&local) != 0, "the port is still 0: {local:?}");
    Ok((id, port_of(&local)))
}

/// An identifier that knows its way to a port of our address.
fn resolved(bench: &Bench, channel: &dyn CmChannel, space: PortSpace, port: u16) -> Result<Arc<dyn CmId>, Stop> {
    let id = channel.create_id(space, space.qp_type(QpType::Rc), 2)?;
    id.resolve_addr(None, address(bench, port), 2000)?;
    let event = expect(channel, CmEventType::AddrResolved)?;
    same!((event.uid, event.status, event.id), (2, 0, id.id()), "the event");
    let known = id.query_addr();
    same!(known.device.as_ref().map(|device| device.name.clone()), Some(bench.name()), "the device");
    same!(known.gids, (bench.gid, bench.gid), "the GIDs");
    id.resolve_route(2000)?;
    expect(channel, CmEventType::RouteResolved)?;
    ensure!(!id.query_route().is_empty(), "no path record");
    Ok(id)
}

fn a_listener_has_the_port_that_it_asked_for_and_nobody_else_has_it(bench: &Bench) -> Outcome {
    let channel = channel(bench)?;
    let (first, port) = listener(bench, &*channel, PortSpace::Tcp)?;
    let second = channel.create_id(PortSpace::Tcp, QpType::Rc, 3)?;
    refused(second.bind_addr(address(bench, port)), Errno::EADDRINUSE, "a port that is taken")?;
    let other_space = channel.create_id(PortSpace::Udp, QpType::Ud, 4)?;
    other_space.bind_addr(address(bench, port))?;
    first.destroy()?;
    second.bind_addr(address(bench, port))?;
    let nobody: SocketAddr = "203.0.113.77:7".parse().expect("an address");
    let third = channel.create_id(PortSpace::Tcp, QpType::Rc, 5)?;
    let error = third.bind_addr(CmAddr::Ip(nobody)).err().map(|error| error.errno);
    ensure!(matches!(error, Some(Errno::EADDRNOTAVAIL | Errno::ENODEV)), "somebody else's address: {error:?}");
    Ok(())
}

/// Takes a QP to a state as the identifier says.
fn bring(id: &dyn CmId, end: &End, state: QpState) -> Outcome {
    let (attr, mask) = id.init_qp_attr(state)?;
    Ok(end.qp.modify(&attr, mask)?)
}

/// Takes a UD QP to RTS: the identifier says what INIT needs, and there is nothing to say of the rest.
fn bring_up_ud(bench: &Bench, id: &dyn CmId, end: &End) -> Outcome {
    bring(id, end, QpState::Init)?;
    for (attr, mask) in &bench.steps(QpType::Ud, end.qp.qp_num(), Path::default())[1..] {
        end.qp.modify(attr, *mask)?;
    }
    Ok(())
}

fn param(end: &End, private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.to_vec(),
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: end.qp.qp_num(),
        ..ConnParam::default()
    }
}

fn two_sides_connect_talk_and_disconnect(bench: &Bench) -> Outcome {
    let (passive, active) = (channel(bench)?, channel(bench)?);
    let (listening, port) = listener(bench, &*passive, PortSpace::Tcp)?;
    let ours = resolved(bench, &*active, PortSpace::Tcp, port)?;
    let (one, other) = (bench.end(&Shape::new(QpType::Rc))?, bench.end(&Shape::new(QpType::Rc))?);
    ours.connect(&param(&one, b"hello"))?;

    let request = expect(&*passive, CmEventType::ConnectRequest)?;
    same!((request.uid, request.listen_id), (1, Some(listening.id())), "the request");
    let EventParam::Conn(said) = &request.param else { return Err(Stop::Fail("no parameters".to_owned())) };
    ensure!(said.private_data.starts_with(b"hello\0"), "the private data: {:?}", said.private_data);
    same!(said.qp_num, one.qp.qp_num(), "the peer's QP");
    let theirs = request.request.clone().ok_or_else(|| Stop::Fail("no new identifier".to_owned()))?;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        bring(&*theirs, &other, state)?;
    }
    other.receive(7, 0, 64)?;
    theirs.accept(Some(&param(&other, b"welcome")), Some(9), Ece::default())?;

    let response = expect(&*active, CmEventType::ConnectResponse)?;
    let EventParam::Conn(said) = &response.param else { return Err(Stop::Fail("no parameters".to_owned())) };
    ensure!(said.private_data.starts_with(b"welcome\0"), "the private data: {:?}", said.private_data);
    same!(said.qp_num, other.qp.qp_num(), "the peer's QP");
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        bring(&*ours, &one, state)?;
    }
    ours.accept(None, None, Ece::default())?;
    let established = expect(&*passive, CmEventType::Established)?;
    same!((established.uid, established.id), (9, theirs.id()), "the established identifier");

    let sent = one.fill(0, 40, 8)?;
    one.send(6, SendOp::Send, &[one.sge(0, 40)])?;
    other.good(7)?;
    one.good(6)?;
    ensure!(other.bytes(0, 40)? == sent, "the bytes differ");

    ours.disconnect()?;
    expect(&*passive, CmEventType::Disconnected)?;
    theirs.disconnect()?;
    expect(&*active, CmEventType::Disconnected)?;
    theirs.destroy()?;
    ours.destroy()?;
    listening.destroy()?;
    Ok(())
}

fn a_rejected_request_says_why(bench: &Bench) -> Outcome {
    let (passive, active) = (channel(bench)?, channel(bench)?);
    let (_listening, port) = listener(bench, &*passive, PortSpace::Tcp)?;
    let ours = resolved(bench, &*active, PortSpace::Tcp, port)?;
    let one = bench.end(&Shape::new(QpType::Rc))?;
    ours.connect(&param(&one, b""))?;
    let request = expect(&*passive, CmEventType::ConnectRequest)?;
    let theirs = request.request.clone().ok_or_else(|| Stop::Fail("no new identifier".to_owned()))?;
    theirs.reject(b"not today", reject_reason::CONSUMER_DEFINED)?;
    let rejected = expect(&*active, CmEventType::Rejected)?;
    same!(rejected.status, i32::from(reject_reason::CONSUMER_DEFINED), "the reason");
    let EventParam::Conn(said) = &rejected.param else { return Err(Stop::Fail("no parameters".to_owned())) };
    ensure!(said.private_data.starts_with(b"not today\0"), "the private data: {:?}", said.private_data);
    theirs.destroy()?;
    Ok(())
}

fn a_port_where_nobody_listens_is_rejected(bench: &Bench) -> Outcome {
    let channel = channel(bench)?;
    let (listening, port) = listener(bench, &*channel, PortSpace::Tcp)?;
    listening.destroy()?;
    let ours = resolved(bench, &*channel, PortSpace::Tcp, port)?;
    let one = bench.end(&Shape::new(QpType::Rc))?;
    ours.connect(&param(&one, b""))?;
    let rejected = expect(&*channel, CmEventType::Rejected)?;
    same!(rejected.status, i32::from(reject_reason::INVALID_SERVICE_ID), "the reason");
    Ok(())
}

fn a_datagram_service_is_resolved(bench: &Bench) -> Outcome {
    let (passive, active) = (channel(bench)?, channel(bench)?);
    let (_listening, port) = listener(bench, &*passive, PortSpace::Udp)?;
    let ours = resolved(bench, &*active, PortSpace::Udp, port)?;
    let (one, other) = (bench.end(&Shape::new(QpType::Ud))?, bench.end(&Shape::new(QpType::Ud))?);
    bring_up_ud(bench, &*ours, &one)?;
    ours.connect(&param(&one, b"who is there"))?;
    let request = expect(&*passive, CmEventType::ConnectRequest)?;
    let EventParam::Ud(said) = &request.param else { return Err(Stop::Fail("no parameters".to_owned())) };
    ensure!(said.private_data.starts_with(b"who is there\0"), "the private data: {:?}", said.private_data);
    let theirs = request.request.clone().ok_or_else(|| Stop::Fail("no new identifier".to_owned()))?;
    bring_up_ud(bench, &*theirs, &other)?;
    other.receive(3, 0, 256)?;
    theirs.accept(Some(&param(&other, b"me")), Some(9), Ece::default())?;
    let established = expect(&*active, CmEventType::Established)?;
    let EventParam::Ud(way) = &established.param else { return Err(Stop::Fail("no parameters".to_owned())) };
    same!(way.qp_num, other.qp.qp_num(), "the peer's QP");
    let ah = one.pd.create_ah(&way.ah_attr)?;
    let list = [one.sge(0, 32)];
    let mut wr = SendWr::new(4, SendOp::Send);
    (wr.flags, wr.sg_list) = (SendFlags::SIGNALED, &list);
    wr.ud = Some(UdAddress { ah: &*ah, remote_qpn: way.qp_num, remote_qkey: way.qkey });
    one.qp.post_send(&[wr])?;
    one.good(4)?;
    same!(other.good(3)?.byte_len, 72, "the datagram's length");
    Ok(())
}

fn a_group_delivers_to_its_members(bench: &Bench) -> Outcome {
    if bench.attr.max_mcast_grp == 0 {
        return Err(Stop::Skip("the device has no multicast (max_mcast_grp is 0)".to_owned()));
    }
    let channel = channel(bench)?;
    let group = super::lifetimes::group(bench).to_ip();
    let group = match group {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(group, IpAddr::V4),
        v4 => v4,
    };
    let id = channel.create_id(PortSpace::Udp, QpType::Ud, 2)?;
    id.bind_addr(address(bench, 0))?;
    let end = bench.end(&Shape::new(QpType::Ud))?;
    bring_up_ud(bench, &*id, &end)?;
    let join = or_skip(id.join_multicast(CmAddr::Ip(SocketAddr::new(group, 0)), JoinFlags::FullMember, 77))?;
    let event = expect(&*channel, CmEventType::MulticastJoin)?;
    same!((event.uid, event.id, event.status), (77, join, 0), "the event");
    let EventParam::Ud(way) = &event.param else { return Err(Stop::Fail("no parameters".to_owned())) };
    ensure!(way.ah_attr.dgid.is_multicast() && way.qp_num.get() == 0xff_ffff, "no group: {way:?}");
    end.qp.attach_mcast(way.ah_attr.dgid)?;
    end.receive(1, 0, 256)?;
    // Somebody else sends: a QP need not hear itself.
    let sender = bench.end(&Shape::new(QpType::Ud))?;
    bring_up_ud(bench, &*id, &sender)?;
    let ah = sender.pd.create_ah(&way.ah_attr)?;
    let list = [sender.sge(0, 32)];
    let mut wr = SendWr::new(2, SendOp::Send);
    (wr.flags, wr.sg_list) = (SendFlags::SIGNALED, &list);
    wr.ud = Some(UdAddress { ah: &*ah, remote_qpn: way.qp_num, remote_qkey: way.qkey });
    sender.qp.post_send(&[wr])?;
    sender.good(2)?;
    same!(end.good(1)?.byte_len, 72, "the datagram's length");
    end.qp.detach_mcast(way.ah_attr.dgid)?;
    channel.leave_multicast(join)?;
    Ok(())
}

fn calls_out_of_order_are_refused(bench: &Bench) -> Outcome {
    let channel = channel(bench)?;
    let id = channel.create_id(PortSpace::Tcp, QpType::Rc, 2)?;
    let one = bench.end(&Shape::new(QpType::Rc))?;
    refused(id.resolve_route(1000), Errno::EINVAL, "a route before an address")?;
    refused(id.connect(&param(&one, b"")), Errno::EINVAL, "connecting before a route")?;
    refused(id.accept(Some(&param(&one, b"")), None, Ece::default()), Errno::EINVAL, "accepting nothing")?;
    refused(id.reject(b"", 1), Errno::EINVAL, "a reason that a consumer cannot give")?;
    ensure!(id.query_addr().local.is_none(), "an address before any was given");
    Ok(())
}

fn what_is_destroyed_has_no_events(bench: &Bench) -> Outcome {
    let channel = channel(bench)?;
    let id = channel.create_id(PortSpace::Tcp, QpType::Rc, 2)?;
    same!(channel.find_id(id.id())?.id(), id.id(), "the identifier by its number");
    id.resolve_addr(None, address(bench, 7), 2000)?;
    let reported = id.destroy()?;
    ensure!(reported <= 1, "{reported} events");
    let event = channel.get_event(Some(std::time::Duration::from_millis(200)))?;
    ensure!(event.is_none(), "an event of an identifier that was destroyed: {event:?}");
    refused(id.destroy(), Errno::EINVAL, "destroying an identifier twice")?;
    refused(channel.find_id(id.id()), Errno::ENOENT, "an identifier that was destroyed")?;
    Ok(())
}
