//! A demo in one process: initiator and target as two threads, on two NICs that are turned by hand over a wire in memory.
//! It shows that the two sides agree on every step, without sockets.

use crate::demo::endpoint::Side;
use crate::demo::event::Reporter;
use crate::demo::exchange::{Link, Message, VERSION};
use crate::demo::initiator::Initiator;
use crate::demo::step::{Plan, REGION_BYTES, Transport};
use crate::demo::target::Target;
use scalefabric_nic::manual::ManualNic;
use scalefabric_nic::port::memory::MemoryWire;
use scalefabric_nic::{NicConfig, PortConfig};
use scalefabric_transport::Time;
use scalefabric_verbs::Gid;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn both_sides_agree_on_every_step() {
    let wire = MemoryWire::new();
    let nics: Vec<Arc<ManualNic>> = [1u8, 2]
        .map(|number| {
            let address = IpAddr::from([10, 0, 0, number]);
            let config = NicConfig::new(format!("m{number}"), vec![PortConfig::new("m", vec![Gid::from_ip(address)])]);
            let port = Box::new(wire.port(&[address]));
            Arc::new(ManualNic::new(config, vec![port], number.into()).expect("a NIC"))
        })
        .into();
    let over = Arc::new(AtomicBool::new(false));
    let turning = {
        let (nics, over) = (nics.clone(), Arc::clone(&over));
        std::thread::spawn(move || {
            let begin = Instant::now();
            while !over.load(Ordering::Relaxed) {
                let now = Time(begin.elapsed().as_nanos() as u64);
                for nic in &nics {
                    nic.turn(now);
                }
                std::thread::yield_now();
            }
        })
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let far = Arc::clone(&nics[1]);
    let target = std::thread::spawn(move || {
        let mut link = Link::new(listener.accept().expect("accept").0).expect("link");
        let hello = link.receive(Duration::from_secs(30), "greeting").expect("a greeting");
        assert!(matches!(hello, Message::Hello { version: VERSION, region_bytes: REGION_BYTES }));
        let side = Side::new(far.context(), 1, None, REGION_BYTES, 16).expect("a side");
        link.send(&Message::Hello { version: VERSION, region_bytes: REGION_BYTES }).expect("send");
        Target::new(&side, link).serve().expect("served")
    });
    let side = Side::new(nics[0].context(), 1, None, REGION_BYTES, 16).expect("a side");
    let link = Link::new(TcpStream::connect(address).expect("connect")).expect("link");
    let transports = [Transport::Rc, Transport::Uc, Transport::Ud];
    let sizes = [1, 8, 5000, 65536];
    let plan = Plan { sizes: &sizes, iterations: Some(10), transports: &transports, path_mtu: 4096, seed: 11 };
    let reporter = Reporter::new(false);
    Initiator::new(&side, link, &reporter).expect("greeted").run(&plan.rows()).expect("all steps");
    target.join().expect("target");
    over.store(true, Ordering::Relaxed);
    turning.join().expect("turning");
}
