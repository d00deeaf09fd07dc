//! A NIC that is opened twice in one process: two contexts, one device.

use std::sync::Arc;

use scalefabric_nic::objects::QpObject;
use scalefabric_nic::{NicContext, PortChange};
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::*;

use crate::node::*;

fn opened_again(node: &Node) -> Arc<dyn Context> {
    NicContext::new(node.nic.core()).unwrap()
}

fn events(ctx: &Arc<dyn Context>) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| ctx.get_async_event(Some(std::time::Duration::ZERO)).unwrap()).collect()
}

#[test]
fn protection_domains_of_two_contexts_are_two() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let other = opened_again(&w.nodes[1]).alloc_pd().unwrap();
    assert_ne!(other.pd_num(), w.nodes[1].pd.pd_num());
    let foreign = other.alloc_mr(64, ALL_ACCESS).unwrap();
    let src = w.nodes[0].mr(64);
    send(&a, 1, SendOp::Write { remote_addr: foreign.addr(), rkey: foreign.rkey() }, &src, 0, 8);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn all_hear_of_a_port_and_the_owner_alone_of_a_qp() {
    let mut w = World::new(2);
    let other = opened_again(&w.nodes[1]);
    let [_a, b] = w.connect(QpType::Rc);
    w.nodes[1].nic.change_port(1, PortChange::Down).unwrap();
    let port = AsyncEvent { event_type: EventType::PortErr, subject: EventSubject::Port(1) };
    assert_eq!((w.nodes[1].events(), events(&other)), (vec![port], vec![port]));
    w.nodes[1].nic.change_port(1, PortChange::Up).unwrap();
    b.as_any().downcast_ref::<QpObject>().unwrap().fail(WcStatus::FatalErr).unwrap();
    w.settle();
    let fatal = AsyncEvent { event_type: EventType::QpFatal, subject: EventSubject::QueuePair(b.qp_num()) };
    assert!(w.nodes[1].events().contains(&fatal));
    assert_eq!(events(&other).len(), 1, "PORT_ACTIVE only");
    drop(other);
    w.nodes[1].nic.change_port(1, PortChange::Down).unwrap();
    assert_eq!(w.nodes[1].events(), [port]);
}

#[test]
fn limits_are_those_of_the_device_not_of_the_context() {
    let w = World::with(1, 1, |config| config.attr.max_pd = 2);
    let other = opened_again(&w.nodes[0]);
    let pd = other.alloc_pd().unwrap();
    assert_eq!(other.alloc_pd().unwrap_err().errno, Errno::ENOMEM);
    drop(pd);
    w.nodes[0].ctx.alloc_pd().unwrap();
}
