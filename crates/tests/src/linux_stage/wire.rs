//! The wire to the guest: UDP sockets on port 4791 of every address that a script's other hosts have. Packets are made
//! and read by `crates/wire`; every one that comes is checked for its ICRC.
//!
//! The guest has the address of host 2. In a script in which Linux is another host, that host and host 2 change places on
//! the wire; [`Wire::swap`] does it in both directions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use scalefabric_nic::port::udp::{LocalAddress, ReceiveOptions, UdpOptions, UdpPort};
use scalefabric_nic::port::{Datagram, Port, Train};
use scalefabric_wire::Gid;
use scalefabric_wire::icrc::{Check, Flow, InverseCache};
use scalefabric_wire::packet::Packet as WirePacket;

use crate::stage::Packet;

/// The guest's host number.
pub const GUEST: u8 = 2;

/// How many hosts a script may have.
const HOSTS: u8 = 9;

/// The sockets.
pub struct Wire {
    port: UdpPort,
    cache: InverseCache,
    host: u8,
}

/// Address of a host's first port.
pub fn address(host: u8, v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd77, 0, 0, 1, 0, 0, 0, u16::from(host)).into()
    } else {
        Ipv4Addr::new(10, 77, 1, host).into()
    }
}

impl Wire {
    /// Opens the sockets, of which the addresses must be there (`rig/dialogues.sh` adds them).
    pub fn open() -> std::io::Result<Self> {
        let locals: Vec<LocalAddress> = [false, true]
            .iter()
            .flat_map(|v6| (1..=HOSTS).filter(|host| *host != GUEST).map(|host| address(host, *v6)))
            .map(|ip| LocalAddress { ip, ifindex: 0 })
            .collect();
        let options = UdpOptions { source_ports: 1, gso: false, ..UdpOptions::default() };
        let receive = ReceiveOptions { buffer_bytes: 1 << 20, reuse_port: false };
        Ok(Self { port: UdpPort::alone(&locals, receive, options)?, cache: InverseCache::new(), host: GUEST })
    }

    /// Says which of the script's hosts Linux is, and forgets what still came for the play before.
    pub fn begin(&mut self, host: u8) {
        self.host = host;
        self.receive(&mut |_| {});
    }

    /// The address on the wire of one in the script, and the other way round.
    pub fn swap(&self, gid: Gid) -> Gid {
        if gid.is_multicast() {
            return gid;
        }
        let mut bytes = gid.0;
        let host = &mut bytes[15];
        if *host == self.host {
            *host = GUEST;
        } else if *host == GUEST {
            *host = self.host;
        }
        Gid(bytes)
    }

    /// Sends a packet of the script.
    pub fn send(&mut self, packet: &Packet) {
        let (src, dst) = (self.swap(packet.src).to_ip(), self.swap(packet.dst).to_ip());
        let src_port = self.port.source_port(src, 0);
        let mut bytes = vec![0; packet.headers.len() + packet.payload.len().next_multiple_of(4) + 4];
        let mut made = WirePacket { headers: packet.headers, payload: &packet.payload, icrc: 0 };
        made.emit(&mut bytes).expect("the script's packets can be made");
        let flow = Flow::between(Gid::from_ip(src), Gid::from_ip(dst), src_port);
        made.icrc = flow.icrc(0, &bytes[..bytes.len() - 4]);
        made.emit(&mut bytes).expect("the script's packets can be made");
        let train = Train {
            src,
            src_port,
            dst,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            flow_label: packet.flow_label,
            segment: bytes.len(),
            bytes: &bytes,
        };
        let _ = self.port.send(&train);
        self.port.flush();
    }

    /// What has come.
    pub fn receive(&mut self, sink: &mut dyn FnMut(Packet)) {
        self.port.sockets().look_everywhere();
        let mut came = Vec::new();
        let cache = &mut self.cache;
        let mut take = |datagram: &Datagram<'_>| {
            let (src, dst) = (Gid::from_ip(datagram.src), Gid::from_ip(datagram.dst));
            let check = Flow::between(src, dst, datagram.src_port).check(datagram.ip_id, datagram.bytes, cache);
            assert!(check != Check::Bad, "Linux sent a packet with a wrong ICRC: {:02x?}", datagram.bytes);
            let packet = WirePacket::parse(datagram.bytes).expect("Linux sends packets that can be read");
            came.push(Packet {
                headers: packet.headers,
                payload: packet.payload.to_vec(),
                src,
                dst,
                port_num: 1,
                src_port: datagram.src_port,
                traffic_class: datagram.traffic_class,
                hop_limit: datagram.hop_limit,
                flow_label: datagram.flow_label,
                at: 0,
            });
        };
        while self.port.receive(64, &mut take) > 0 {}
        for mut packet in came {
            (packet.src, packet.dst) = (self.swap(packet.src), self.swap(packet.dst));
            sink(packet);
        }
    }
}
