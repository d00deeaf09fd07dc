//! The exchanges: one suite over all of them, and for each what only it can do wrong. memcached and etcd run as child processes; where a package is not
//! installed its tests are skipped and say so.

mod servers;
mod suite;

use scalefabric_fabric::Fault;
use scalefabric_fabric::certificate::Authority;
use scalefabric_fabric::exchange::{Etcd, Exchange, Memcached, Patience, RdmaCm, Sealed, Tcp, Tls};
use scalefabric_nic::options::{DeviceOptions, Options as NicOptions, PortOptions};
use scalefabric_nic::provider::SoftwareProvider;
use servers::Server;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use suite::Subject;

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

fn names(dialler: &str, listener: &str, proven: bool) -> (String, String, bool) {
    (dialler.to_owned(), listener.to_owned(), proven)
}

/// A busy machine is given time.
fn patience() -> Patience {
    Patience { dial: Duration::from_secs(30), send: Duration::from_secs(30), silence: Duration::from_secs(30) }
}

fn subject(
    listening: impl Exchange + 'static,
    dialling: impl Exchange + 'static,
    address: &str,
    names: (String, String, bool),
) -> Subject {
    Subject { listening: Arc::new(listening), dialling: Arc::new(dialling), address: address.to_owned(), names }
}

#[test]
fn tcp_does_what_an_exchange_must() {
    let tcp = || Tcp::new().with_patience(patience());
    let subject = subject(tcp(), tcp(), "127.0.0.1:0", names("127.0.0.1", "127.0.0.1", false));
    run(async { suite::run(&subject).await });
}

#[test]
fn tls_does_what_an_exchange_must() {
    let authority = Authority::new("test").unwrap();
    let tls = |name: &str| Tls::new(&authority.issue(name, &[]).unwrap()).unwrap().with_patience(patience());
    let subject = subject(tls("node1"), tls("node2"), "127.0.0.1:0", names("node2", "node1", true));
    run(async { suite::run(&subject).await });
}

fn memcached(name: &str) -> Memcached {
    Memcached::new(name).with_patience(patience())
}

#[test]
fn memcached_does_what_an_exchange_must() {
    let Some(server) = Server::memcached() else { return };
    let address = format!("{}/case-#", server.address);
    let subject = subject(memcached("node1"), memcached("node2"), &address, names("node2", "node1", false));
    run(async { suite::run(&subject).await });
}

#[test]
fn memcached_that_is_sealed_does_what_an_exchange_must() {
    let Some(server) = Server::memcached() else { return };
    let authority = Authority::new("test").unwrap();
    let sealed = |name: &str| {
        Sealed::over(memcached("claimed"), &authority.issue(name, &[]).unwrap()).unwrap().with_patience(patience())
    };
    let address = format!("{}/case-#", server.address);
    let subject = subject(sealed("node1"), sealed("node2"), &address, names("node2", "node1", true));
    run(async { suite::run(&subject).await });
}

#[test]
fn memcached_that_forgets_a_message_is_told() {
    let Some(mut server) = Server::memcached() else { return };
    run(async {
        let address = format!("{}/forgets", server.address);
        let exchange = Memcached::new("node").with_patience(quick());
        let mut listener = exchange.listen(&address).await.unwrap();
        let (here, there) = tokio::join!(exchange.dial(&address), listener.accept());
        let (mut here, mut there) = (here.unwrap(), there.unwrap());
        // More than the receiving side takes in advance, so that some are in the store.
        for number in 0..50_u8 {
            here.send(&[number; 10]).await.unwrap();
        }
        let mut socket = std::net::TcpStream::connect(server.address).unwrap();
        socket.write_all(b"flush_all\r\n").unwrap();
        let mut answer = [0; 4];
        std::io::Read::read_exact(&mut socket, &mut answer).unwrap();
        assert_eq!(&answer, b"OK\r\n");
        // The sender's state comes back with its next message; the ones that are gone are noticed.
        let sends = async {
            for number in 50..60 {
                if here.send(&[number; 10]).await.is_err() {
                    break;
                }
            }
            here
        };
        let reads = async {
            let mut expected = 0;
            loop {
                match there.receive().await {
                    Ok(message) => {
                        assert_eq!(message, [expected; 10], "a message was skipped");
                        expected += 1;
                    }
                    Err(error) => break (error, expected),
                }
            }
        };
        let (_here, (error, received)) = tokio::join!(sends, reads);
        assert!(received < 60);
        assert_eq!(error.fault, Fault::Unreachable);
        assert!(error.message.contains("has lost message"), "{error}");

        // And one that is gone altogether. The listener's claim was forgotten, too, and comes back.
        let dial = async {
            loop {
                match exchange.dial(&address).await {
                    Ok(channel) => break channel,
                    Err(error) => assert_eq!(error.fault, Fault::Unreachable, "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let (mut here, _there) = tokio::join!(dial, listener.accept());
        server.kill();
        assert_eq!(here.receive().await.unwrap_err().fault, Fault::Unreachable);
        assert_eq!(exchange.dial(&address).await.err().unwrap().fault, Fault::Unreachable);
    });
}

#[test]
fn a_service_in_a_store_has_one_listener() {
    let Some(server) = Server::memcached() else { return };
    run(async {
        let address = format!("{}/taken", server.address);
        let first = memcached("node1").listen(&address).await.unwrap();
        let error = memcached("node2").listen(&address).await.err().unwrap();
        assert_eq!(error.fault, Fault::Environment);
        assert!(error.message.contains("taken by another listener"), "{error}");
        drop(first);
        // It is withdrawn in the background.
        while memcached("node2").listen(&address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

fn etcd(name: &str) -> Etcd {
    Etcd::new(name).with_patience(patience())
}

#[test]
fn etcd_does_what_an_exchange_must() {
    let Some(server) = Server::etcd() else { return };
    let address = format!("{}/case-#", server.address);
    let subject = subject(etcd("node1"), etcd("node2"), &address, names("node2", "node1", false));
    run(async { suite::run(&subject).await });
}

#[test]
fn etcd_that_is_gone_is_told() {
    let Some(mut server) = Server::etcd() else { return };
    run(async {
        let address = format!("{}/gone", server.address);
        let exchange = Etcd::new("node").with_patience(Patience { silence: Duration::from_secs(4), ..patience() });
        let mut listener = exchange.listen(&address).await.unwrap();
        let (here, there) = tokio::join!(exchange.dial(&address), listener.accept());
        let (mut here, mut there) = (here.unwrap(), there.unwrap());
        here.send(b"before").await.unwrap();
        assert_eq!(there.receive().await.unwrap(), b"before");
        server.kill();
        assert_eq!(here.receive().await.unwrap_err().fault, Fault::Unreachable);
        assert_eq!(there.receive().await.unwrap_err().fault, Fault::Unreachable);
    });
}

/// A loopback address of this process: tests of several checkouts may run side by side.
fn own_loopback(last: u8) -> IpAddr {
    let pid = std::process::id();
    Ipv4Addr::new(127, 128 + (pid >> 8 & 0x3f) as u8, pid as u8, last).into()
}

/// A device at this address; its name is its own, too.
fn software(address: IpAddr) -> Arc<SoftwareProvider> {
    let name = format!("sf{}", address.to_string().replace('.', "_"));
    let port = PortOptions { interface: "lo".into(), addresses: vec![address] };
    let device = DeviceOptions { name, ports: vec![port], ..DeviceOptions::default() };
    Arc::new(SoftwareProvider::new(NicOptions { devices: vec![device], ..NicOptions::default() }))
}

#[test]
fn rdma_cm_does_what_an_exchange_must() {
    let address = own_loopback(91);
    let provider = software(address);
    let cm = |name: &str| RdmaCm::new(provider.clone(), name).with_patience(patience());
    let subject = subject(cm("node1"), cm("node2"), &format!("{address}:0"), names("node2", "node1", false));
    run(async { suite::run(&subject).await });
}

#[test]
fn rdma_cm_that_is_sealed_does_what_an_exchange_must() {
    let address = own_loopback(92);
    let provider = software(address);
    let authority = Authority::new("test").unwrap();
    let sealed = |name: &str| {
        let inner = RdmaCm::new(provider.clone(), "claimed").with_patience(patience());
        Sealed::over(inner, &authority.issue(name, &[]).unwrap()).unwrap().with_patience(patience())
    };
    let subject = subject(sealed("node1"), sealed("node2"), &format!("{address}:0"), names("node2", "node1", true));
    run(async { suite::run(&subject).await });
}

/// What a child process is told: scheme and address to dial.
const CHILD: &str = "SFAB_EXCHANGE_CHILD";

/// The other process of the tests below: dials, says hello, and waits to be killed.
#[test]
#[ignore = "the child process of other tests"]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (scheme, address) = told.split_once("://").unwrap();
    let quick = quick();
    let exchange: Box<dyn Exchange> = match scheme {
        "tcp" => Box::new(Tcp::new().with_patience(quick)),
        "memcached" => Box::new(Memcached::new("child").with_patience(quick)),
        "etcd" => Box::new(Etcd::new("child").with_patience(quick)),
        "rdma-cm" => {
            let device: IpAddr = address.rsplit_once(':').unwrap().0.parse().unwrap();
            Box::new(RdmaCm::new(software(device), "child").with_patience(quick))
        }
        other => panic!("{other}"),
    };
    run(async {
        let mut channel = exchange.dial(address).await.unwrap();
        channel.send(b"hello").await.unwrap();
        let _ = channel.receive().await;
    });
}

/// A peer whose process is killed is gone without a goodbye, and that is what is read.
fn killed(exchange: &dyn Exchange, address: &str) {
    run(async {
        let mut listener = exchange.listen(address).await.unwrap();
        let told = format!("{}://{}", exchange.scheme(), listener.address());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(CHILD, told)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut channel = listener.accept().await.unwrap();
        assert_eq!(channel.receive().await.unwrap(), b"hello");
        child.kill().unwrap();
        child.wait().unwrap();
        let error = channel.receive().await.unwrap_err();
        assert_eq!(error.fault, Fault::Unreachable, "{error}");
        assert!(error.message.contains("gone without a goodbye"), "{error}");
    });
}

/// Notices soon that a peer is gone; but a machine that stands still for some seconds, as a busy host lets its guests do, has
/// not killed anybody.
fn quick() -> Patience {
    Patience { silence: Duration::from_secs(10), ..patience() }
}

#[test]
fn a_killed_peer_is_noticed_over_tcp() {
    killed(&Tcp::new().with_patience(quick()), "127.0.0.1:0");
}

#[test]
fn a_killed_peer_is_noticed_over_memcached() {
    let Some(server) = Server::memcached() else { return };
    killed(&Memcached::new("parent").with_patience(quick()), &format!("{}/killed", server.address));
}

#[test]
fn a_killed_peer_is_noticed_over_etcd() {
    let Some(server) = Server::etcd() else { return };
    killed(&Etcd::new("parent").with_patience(quick()), &format!("{}/killed", server.address));
}

#[test]
fn a_killed_peer_is_noticed_over_rdma_cm() {
    let address = own_loopback(93);
    killed(&RdmaCm::new(software(address), "parent").with_patience(quick()), &format!("{address}:0"));
}
