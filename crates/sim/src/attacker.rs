//! The attacker: puts forged packets on the wire, with right ICRCs, to see that nothing is touched that was not granted. It
//! knows every QPN, PSN, address and key, which is more than an attacker should.
//!
//! Packets in the name of the right peer go to QPs that carry no other traffic: RC QPs fail at the first access error, as
//! they must. To QPs that work it speaks from other addresses, or beyond any PSN that is expected.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use scalefabric_verbs::{QpType, QueuePair, RKey};
use scalefabric_wire::opcode::{Extensions, Opcode, OpcodeInfo, Operation, Service, TABLE};
use scalefabric_wire::packet::{Aeth, AtomicEth, Deth, Feth, Headers, Packet, Reth, Syndrome};
use scalefabric_wire::{PKey, Psn, QKey, Qpn, Srqn};

use crate::random::Random;
use crate::station::{FORBIDDEN_LEN, Pair, Station};
use crate::wire::{FORGED_PORT, SimWire, address, seal};
use crate::workload::ConnectionPlan;

/// A QP that waits for forged packets in its peer's name.
#[derive(Debug)]
pub struct Victim {
    /// Its plan: the second side is attacked, the first side's address is used.
    pub plan: ConnectionPlan,
    /// Its QPs.
    pub pair: Pair,
}

/// The attacker.
#[derive(Debug)]
pub struct Attacker {
    random: Random,
    v6: bool,
    buffer: Vec<u8>,
    /// An RC victim has been sent a request that it must fail at.
    spent: bool,
}

impl Attacker {
    /// For a seed.
    pub fn new(seed: u64, v6: bool) -> Self {
        Self { random: Random::new(seed, 0xa77c), v6, buffer: Vec::new(), spent: false }
    }

    fn stranger(&self) -> IpAddr {
        if self.v6 {
            Ipv6Addr::new(0xfd5f, 0, 0, 0, 0, 0, 0, 0xbad).into()
        } else {
            Ipv4Addr::new(10, 0, 0, 200).into()
        }
    }

    /// Forges some packets.
    pub fn strike(&mut self, wire: &SimWire, stations: &[Station], working: &[(usize, Qpn, Psn)], victims: &[Victim]) {
        for _ in 0..4 {
            match self.random.below(10) {
                0 => self.garbage(wire, stations.len()),
                1 => self.as_a_stranger(wire, stations, working),
                2 => self.beyond_the_window(wire, stations, working),
                _ => self.in_the_peers_name(wire, stations, victims),
            }
        }
    }

    /// Bytes without any sense, from anywhere.
    fn garbage(&mut self, wire: &SimWire, nics: usize) {
        let length = self.random.below(120) as usize;
        self.buffer.clear();
        self.buffer.resize(length, 0);
        let key = self.random.next();
        crate::random::fill(key, 0, &mut self.buffer);
        let to = self.random.below(nics as u64) as usize;
        let src = address((to + 1) % nics, self.v6);
        if self.random.chance(500_000) {
            seal(src, address(to, self.v6), FORGED_PORT, 0, &mut self.buffer);
        }
        wire.state().forge(src, to, &self.buffer);
    }

    /// A packet that would be right, were it not for its sender.
    fn as_a_stranger(&mut self, wire: &SimWire, stations: &[Station], working: &[(usize, Qpn, Psn)]) {
        if working.is_empty() {
            return;
        }
        let &(to, qpn, psn) = self.random.pick(working);
        let key = stations[to].shared.rkey();
        let va = stations[to].shared.addr();
        let service = *self.random.pick(&[Service::Rc, Service::Uc, Service::Xrc]);
        self.request(service, qpn, psn, key, va, 8);
        self.put(wire, self.stranger(), to);
    }

    /// In the right peer's name, but so far ahead that it cannot be next.
    fn beyond_the_window(&mut self, wire: &SimWire, stations: &[Station], working: &[(usize, Qpn, Psn)]) {
        if working.is_empty() {
            return;
        }
        let &(to, qpn, psn) = self.random.pick(working);
        let ahead = psn.add(self.random.range(100_000, 4_000_000) as u32);
        let forbidden = self.random.pick(&stations[to].forbidden);
        let va = stations[to].arena.addr() + forbidden.offset as u64;
        self.request(Service::Rc, qpn, ahead, forbidden.rkey, va, 16);
        // Some NIC's address: often the peer's.
        let from = (to + 1 + self.random.below(stations.len() as u64 - 1) as usize) % stations.len();
        self.put(wire, address(from, self.v6), to);
    }

    /// What a compromised peer could send: everything right but the key, the range or the right.
    fn in_the_peers_name(&mut self, wire: &SimWire, stations: &[Station], victims: &[Victim]) {
        if victims.is_empty() {
            return;
        }
        let victim = self.random.pick(victims);
        let [from, to] = victim.plan.nics;
        let station = &stations[to];
        let forbidden = self.random.pick(&station.forbidden);
        let place = station.arena.addr() + forbidden.offset as u64;
        let (key, va) = match self.random.below(6) {
            5 => (station.granted.0.rkey(), station.granted.0.addr()),
            0 => (RKey(self.random.next() as u32), place),
            // A key that is good for something else, used here.
            1 => (station.shared.rkey(), place),
            2 => (station.shared.rkey(), station.shared.addr().wrapping_sub(8 + 8 * self.random.below(3))),
            _ => (forbidden.rkey, place + self.random.below(FORBIDDEN_LEN as u64 / 8 - 2) * 8),
        };
        let first = Psn::new(victim.plan.psns[0]);
        let rc = victim.plan.qp_type == QpType::Rc;
        let service = if rc { Service::Rc } else { Service::Uc };
        // RC dies of the first request at the right PSN; before that it sees what look like repetitions.
        let now = !rc || self.spent || self.random.chance(200_000);
        self.spent |= rc && now;
        let psn = if now { first } else { first.sub(1 + self.random.below(100) as u32) };
        self.request(service, victim.pair.qps[1].qp_num(), psn, key, va, 16);
        self.put(wire, address(from, self.v6), to);
    }

    /// A request of any kind of a service, with everything that its opcode calls for.
    fn request(&mut self, service: Service, qpn: Qpn, psn: Psn, rkey: RKey, va: u64, length: u32) {
        let touches = |operation| {
            use Operation::*;
            matches!(
                operation,
                Send | Write | WriteWithImm | ReadRequest | CompareSwap | FetchAdd | Flush | AtomicWrite | SendWithInv
            )
        };
        // Mostly what names memory: the middle of nothing is refused before anybody looks at a key.
        let any = self.random.chance(200_000);
        let names = |info: &OpcodeInfo| info.extensions.intersects(Extensions::RETH | Extensions::ATOMIC_ETH);
        let info = loop {
            let info = self.random.pick(TABLE);
            if info.service as u8 == service as u8 && touches(info.operation) && (any || names(info)) {
                break info;
            }
        };
        let opcode = Opcode::from_byte(info.code).expect("a row of the table");
        let has = |flag| info.extensions.contains(flag);
        let word = self.random.next();
        let length = if info.operation == Operation::AtomicWrite { 8 } else { length };
        let mut headers = Headers::new(opcode, PKey::DEFAULT, qpn, psn);
        headers.bth.ack_req = true;
        headers.xrceth = has(Extensions::XRCETH).then(|| Srqn::new(word as u32));
        headers.deth = has(Extensions::DETH).then_some(Deth { qkey: QKey(word as u32), src_qp: qpn });
        headers.feth = has(Extensions::FETH).then_some(Feth { plt: 1, sel: (word & 1) as u8 });
        headers.reth = has(Extensions::RETH).then_some(Reth { va, rkey, dma_len: length });
        let eth = AtomicEth { va, rkey, swap_or_add: word, compare: 0 };
        headers.atomic_eth = has(Extensions::ATOMIC_ETH).then_some(eth);
        headers.aeth = has(Extensions::AETH).then_some(Aeth { syndrome: Syndrome::Ack(31), msn: 0 });
        headers.imm = has(Extensions::IMM_DT).then_some(word as u32);
        headers.ieth = has(Extensions::IETH).then_some(rkey);
        let payload = [0xa5; 16];
        let payload = match (info.payload, info.operation) {
            (false, _) => &[][..],
            (_, Operation::AtomicWrite) => &payload[..8],
            _ => &payload[..],
        };
        let packet = Packet { headers, payload, icrc: 0 };
        self.buffer.clear();
        self.buffer.resize(packet.len(), 0);
        packet.emit(&mut self.buffer).expect("all headers are set and the buffer has the packet's length");
    }

    fn put(&mut self, wire: &SimWire, src: IpAddr, to: usize) {
        seal(src, address(to, self.v6), FORGED_PORT, 0, &mut self.buffer);
        wire.state().forge(src, to, &self.buffer);
    }
}

/// The number and first PSN of a responder, for the attacker's list.
pub fn target(nic: usize, qp: &dyn QueuePair, psn: u32) -> (usize, Qpn, Psn) {
    (nic, qp.qp_num(), Psn::new(psn))
}
