//! QP 1, the general services interface (clause 13.5.1): datagrams for whoever speaks communication management come in and go
//! out here. There is no queue pair behind it: nothing is posted, and nothing is repeated.

use std::sync::Arc;

use scalefabric_transport::{DropReason, Time};
use scalefabric_verbs::{AddressVector, Gid, PKey, Psn, Qpn};
use scalefabric_wire::deth::Deth;
use scalefabric_wire::mad::{GSI_QKEY, MAD_LEN};
use scalefabric_wire::opcode::{Opcode, Operation, Position, Service};
use scalefabric_wire::packet::{Headers, ICRC_LEN, Packet};

use super::drive::{Core, State};
use super::{Engine, GSI_QUEUE, Nic};
use crate::host::{flow_of, make_route};
use crate::ingress::GsiDatagram;
use crate::port::{Datagram, Port};

const SEND_ONLY: Opcode = match Opcode::find(Service::Ud, Operation::Send, Position::Only) {
    Some(opcode) => opcode,
    None => panic!("the opcode table has UD SEND ONLY"),
};

/// Where datagrams for QP 1 go.
pub trait GsiSink: Send + Sync {
    /// Takes what a turn brought. Called without the engine's lock, by whoever turned the engine; must not wait.
    fn take(&self, core: &Arc<Core>, datagrams: Vec<GsiDatagram>);

    /// An address of a port, from 1, has gone. Must not wait.
    fn address_gone(&self, core: &Arc<Core>, port_num: u8, gid: Gid);

    /// The device has gone. Must not wait.
    fn device_gone(&self, core: &Arc<Core>);
}

/// Decides which process of a shared device a datagram for QP 1 is for: the socket behind QP 1 belongs to all of them (D1).
pub trait GsiRouter: Send {
    /// Looks at it, and hands it over if it is for another process.
    fn route(&mut self, port_num: u8, datagram: &Datagram<'_>, payload: &[u8]) -> Routed;

    /// True if it asks for something that a process of the device offered until a moment before `now`.
    fn was_served(&self, payload: &[u8], now: Time) -> bool;
}

/// What became of a datagram for QP 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// It is for this process.
    Here,
    /// Another process has it.
    Elsewhere,
    /// It is for another process, which has no room.
    Lost,
}

impl Core {
    /// Datagrams for QP 1 go to `sink` from now on, after `router` has looked at them. Only the first sink counts.
    pub fn open_gsi_to(&self, sink: Arc<dyn GsiSink>, router: Option<Box<dyn GsiRouter>>) {
        self.set_sink(sink);
        let mut held = self.lock();
        let nic = held.engine.nic();
        nic.gsi_router = router;
        nic.gsi_open = true;
    }

    /// Looks once more where a datagram for QP 1 belongs, which was kept here when it came: true if another process has it now.
    pub(crate) fn route_gsi_again(&self, datagram: &GsiDatagram) -> bool {
        let mut held = self.lock();
        let router = held.engine.nic().gsi_router.as_mut();
        let routed = router.map(|router| router.route(datagram.port_num, &datagram.datagram(), datagram.payload()));
        routed == Some(Routed::Elsewhere)
    }

    /// What [`GsiRouter::was_served`] says of it.
    pub(crate) fn gsi_was_served(&self, datagram: &GsiDatagram, now: Time) -> bool {
        let mut held = self.lock();
        held.engine.nic().gsi_router.as_ref().is_some_and(|router| router.was_served(datagram.payload(), now))
    }

    /// Sends a MAD from QP 1 to QP 1. Lost and counted if there is no room or no way, as on a wire.
    pub fn send_gsi(&self, av: &AddressVector, mad: &[u8; MAD_LEN]) {
        let now = self.now();
        let mut held = self.lock();
        let State { engine, ports } = &mut *held;
        let waits = engine.send_gsi(now, ports, av, mad);
        drop(held);
        if waits {
            self.someone_sleeps();
        }
    }
}

impl Engine {
    /// Writes the packet and lets it leave; true if the port had no room and a turn must try again.
    fn send_gsi(&mut self, now: Time, ports: &mut [Box<dyn Port>], av: &AddressVector, mad: &[u8; MAD_LEN]) -> bool {
        let nic = &mut self.nic;
        let now = now.max(nic.last);
        nic.last = now;
        let Some(index) = usize::from(av.port_num).checked_sub(1).filter(|&index| index < ports.len()) else {
            return false;
        };
        nic.begin(now, ports);
        nic.put_gsi(ports, av, mad);
        nic.flush(ports);
        let port = &mut ports[index];
        port.flush();
        let batch = &mut nic.fabric.batches[index];
        port.take_drops(&mut |reason, n| batch.drop_packets(reason, n));
        batch.flush(nic.counters[index].block());
        !nic.fabric.egress[index].is_empty()
    }
}

impl Nic {
    fn put_gsi(&mut self, ports: &[Box<dyn Port>], av: &AddressVector, mad: &[u8; MAD_LEN]) {
        let index = usize::from(av.port_num) - 1;
        let route = make_route(&mut self.fabric, Some(ports), av, flow_of(av, Qpn::GSI, Qpn::GSI));
        let active = self.fabric.tables.port(av.port_num).is_some_and(|port| port.is_active());
        let Some(way) = route.way.filter(|_| active) else {
            let reason = if active { DropReason::EgressError } else { DropReason::PortDown };
            return self.fabric.batches[index].drop_packet(reason);
        };
        let pkey = self.fabric.tables.port(av.port_num).and_then(|port| port.pkey(0)).unwrap_or(PKey::DEFAULT);
        let psn = Psn::new(self.gsi_psn);
        self.gsi_psn = self.gsi_psn.wrapping_add(1);
        let mut headers = Headers::new(SEND_ONLY, pkey, Qpn::GSI, psn);
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI });
        let size = headers.len() + MAD_LEN + ICRC_LEN;
        let egress = &mut self.fabric.egress[index];
        let Some(room) = egress.reserve(&way, route.serial, 0, size) else {
            return self.fabric.batches[index].drop_packet(DropReason::EgressError);
        };
        let bytes = egress.bytes(room);
        let Ok(at) = headers.emit(bytes) else {
            return self.fabric.batches[index].drop_packet(DropReason::EgressError);
        };
        bytes[at..at + MAD_LEN].copy_from_slice(mad);
        let (transport, icrc) = bytes.split_at_mut(size - ICRC_LEN);
        icrc.copy_from_slice(&route.flow.icrc(room.ip_id, transport).to_le_bytes());
        egress.commit(room, &way, route.serial, 0);
    }

    /// A datagram for QP 1 has come.
    pub(super) fn keep_gsi(&mut self, port_num: u8, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let routed = self.gsi_router.as_mut().map(|router| router.route(port_num, datagram, packet.payload));
        let batch = &mut self.fabric.batches[usize::from(port_num) - 1];
        match routed {
            Some(Routed::Elsewhere) => return,
            Some(Routed::Lost) => return batch.drop_packet(DropReason::MailboxFull),
            Some(Routed::Here) | None => {}
        }
        if !self.gsi_open {
            return batch.drop_packet(DropReason::NoSuchQp);
        }
        if packet.headers.deth.is_none_or(|deth| deth.qkey != GSI_QKEY) {
            return batch.drop_packet(DropReason::BadQKey);
        }
        if self.gsi.len() >= GSI_QUEUE {
            return batch.drop_packet(DropReason::ReceiverNotReady);
        }
        self.gsi.push_back(GsiDatagram::new(port_num, datagram, packet));
    }
}
