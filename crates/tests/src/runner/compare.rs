//! Packets against patterns, packets from recipes, and packets as text.

use std::fmt::Write as _;

use scalefabric_wire::opcode::{Extensions, Opcode};
use scalefabric_wire::packet::{Aeth, AtomicEth, Deth, Feth, Headers, Reth, Syndrome, pad_count};
use scalefabric_wire::{PKey, Psn, QKey, Qpn, RKey, Srqn};

use super::Runner;
use crate::script::{Field, Fill, Ref};
use crate::stage::Packet;

/// A packet in the words of a script.
pub fn describe(packet: &Packet) -> String {
    let h = &packet.headers;
    let mut text = format!("{} psn={} len={}", h.bth.opcode.info().name, h.bth.psn.get(), packet.payload.len());
    for (set, name) in [
        (h.bth.ack_req, "ackreq"),
        (h.bth.solicited, "solicited"),
        (h.bth.fecn, "fecn"),
        (h.bth.becn, "becn"),
        (!h.bth.mig_req, "!mig"),
    ] {
        if set {
            let _ = write!(text, " {name}");
        }
    }
    if let Some(srqn) = h.xrceth {
        let _ = write!(text, " srqn={srqn}");
    }
    if let Some(deth) = h.deth {
        let _ = write!(text, " qkey={} srcqp={}", deth.qkey, deth.src_qp);
    }
    if let Some(feth) = h.feth {
        let _ = write!(text, " placement={} selectivity={}", feth.plt, feth.sel);
    }
    if let Some(reth) = h.reth {
        let _ = write!(text, " va={:#x} rkey={} dmalen={}", reth.va, reth.rkey, reth.dma_len);
    }
    if let Some(eth) = h.atomic_eth {
        let (va, rkey) = (eth.va, eth.rkey);
        let _ = write!(text, " va={va:#x} rkey={rkey} swap={} compare={}", eth.swap_or_add, eth.compare);
    }
    if let Some(aeth) = h.aeth {
        let _ = match aeth.syndrome {
            Syndrome::Ack(credits) => write!(text, " ack credits={credits}"),
            Syndrome::RnrNak(timer) => write!(text, " rnr={timer}"),
            Syndrome::Nak(code) => write!(text, " nak={code:?}"),
            Syndrome::Reserved(byte) => write!(text, " syndrome={byte:#x}"),
        };
        let _ = write!(text, " msn={}", aeth.msn);
    }
    if let Some(original) = h.atomic_ack_eth {
        let _ = write!(text, " original={original}");
    }
    if let Some(imm) = h.imm {
        let _ = write!(text, " imm={imm:#x}");
    }
    if let Some(rkey) = h.ieth {
        let _ = write!(text, " inv={rkey}");
    }
    let _ = write!(text, " pkey={} port={} @{}ns", h.bth.pkey, packet.port_num, packet.at);
    text
}

impl Runner<'_> {
    /// Where a packet differs from a pattern: one line a field, empty if nowhere.
    pub(super) fn differences(&self, packet: &Packet, opcode: Opcode, fields: &[Field]) -> Result<String, String> {
        let h = &packet.headers;
        let mut text = String::new();
        if h.bth.opcode != opcode {
            let _ = write!(text, "\n    opcode: expected {opcode:?}, found {:?}", h.bth.opcode);
        }
        for field in fields {
            let mut differ = |name: &str, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
                let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
                if expected != found {
                    let _ = write!(text, "\n    {name}: expected {expected}, found {found}");
                }
            };
            match field {
                Field::Psn(psn) => differ("psn", psn, &h.bth.psn.get()),
                Field::Len(len) => differ("len", len, &packet.payload.len()),
                Field::AckReq(set) => differ("ackreq", set, &h.bth.ack_req),
                Field::Solicited(set) => differ("solicited", set, &h.bth.solicited),
                Field::MigReq(set) => differ("mig", set, &h.bth.mig_req),
                Field::Becn(set) => differ("becn", set, &h.bth.becn),
                Field::Fecn(set) => differ("fecn", set, &h.bth.fecn),
                Field::Pad(pad) => differ("pad", pad, &h.bth.pad_count),
                Field::TVer(tver) => differ("tver", tver, &h.bth.tver),
                Field::PKey(pkey) => differ("pkey", &PKey(*pkey), &h.bth.pkey),
                Field::Dest(qp) => differ("dest", &Qpn::new(self.qpn(qp)?), &h.bth.dest_qp),
                Field::Va(va) => {
                    let found = h.reth.map(|r| r.va).or(h.atomic_eth.map(|a| a.va));
                    differ("va", &Some(self.address(va)?), &found);
                }
                Field::RKey(rkey) => {
                    let found = h.reth.map(|r| r.rkey).or(h.atomic_eth.map(|a| a.rkey));
                    differ("rkey", &Some(RKey(self.key(rkey)?)), &found);
                }
                Field::DmaLen(len) => differ("dmalen", &Some(*len), &h.reth.map(|r| r.dma_len)),
                Field::Compare(value) => differ("compare", &Some(*value), &h.atomic_eth.map(|a| a.compare)),
                Field::Swap(value) => differ("swap", &Some(*value), &h.atomic_eth.map(|a| a.swap_or_add)),
                Field::Imm(imm) => differ("imm", &Some(*imm), &h.imm),
                Field::Inv(rkey) => differ("inv", &Some(RKey(self.key(rkey)?)), &h.ieth),
                Field::Syndrome(syndrome) => differ("syndrome", &Some(*syndrome), &h.aeth.map(|a| a.syndrome)),
                Field::Ack => {
                    let is_ack = h.aeth.is_some_and(|a| matches!(a.syndrome, Syndrome::Ack(_)));
                    differ("ack", &true, &is_ack);
                }
                Field::Msn(msn) => differ("msn", &Some(*msn), &h.aeth.map(|a| a.msn)),
                Field::Original(value) => differ("original", &Some(*value), &h.atomic_ack_eth),
                Field::QKey(qkey) => differ("qkey", &Some(QKey(*qkey)), &h.deth.map(|d| d.qkey)),
                Field::SrcQp(qp) => differ("srcqp", &Some(Qpn::new(self.qpn(qp)?)), &h.deth.map(|d| d.src_qp)),
                Field::Srqn(srq) => differ("srqn", &Some(Srqn::new(self.srqn(srq)?)), &h.xrceth),
                Field::Placement(plt) => differ("placement", &Some(*plt), &h.feth.map(|f| f.plt)),
                Field::Selectivity(sel) => differ("selectivity", &Some(*sel), &h.feth.map(|f| f.sel)),
                Field::Tc(tc) => differ("tc", tc, &packet.traffic_class),
                Field::Hop(hop) => differ("hop", hop, &packet.hop_limit),
                Field::Port(port) => differ("port", port, &packet.port_num),
                Field::Src(name) => differ("src", &self.peer(name, packet.port_num)?.0, &packet.src),
                Field::Dst(name) => differ("dst", &self.peer(name, packet.port_num)?.0, &packet.dst),
                Field::Data(fill) => differ("data", &self.fill(fill, packet.payload.len())?, &packet.payload),
            }
        }
        Ok(text)
    }

    /// A packet made by the script: from a QP or ghost to a QP.
    pub(super) fn build(&self, from: &str, to: &str, opcode: Opcode, fields: &[Field]) -> Result<Packet, String> {
        let (src, ..) = self.peer(from, 1)?;
        let (dst, qpn, _) = self.peer(to, 1)?;
        let info = opcode.info();
        let mut headers = Headers::new(opcode, PKey::DEFAULT, qpn, Psn::new(0));
        let has = |extension| info.extensions.contains(extension);
        headers.xrceth = has(Extensions::XRCETH).then_some(Srqn::new(0));
        headers.deth = has(Extensions::DETH).then_some(Deth { qkey: QKey(0x1111_1111), src_qp: self.peer(from, 1)?.1 });
        headers.feth = has(Extensions::FETH).then_some(Feth { plt: 1, sel: 0 });
        headers.reth = has(Extensions::RETH).then_some(Reth { va: 0, rkey: RKey(0), dma_len: 0 });
        headers.atomic_eth =
            has(Extensions::ATOMIC_ETH).then_some(AtomicEth { va: 0, rkey: RKey(0), swap_or_add: 0, compare: 0 });
        headers.aeth = has(Extensions::AETH).then_some(Aeth { syndrome: Syndrome::Ack(Syndrome::NO_CREDITS), msn: 0 });
        headers.atomic_ack_eth = has(Extensions::ATOMIC_ACK_ETH).then_some(0);
        headers.imm = has(Extensions::IMM_DT).then_some(0);
        headers.ieth = has(Extensions::IETH).then_some(RKey(0));
        let mut packet = Packet {
            headers,
            payload: Vec::new(),
            src,
            dst,
            port_num: 1,
            src_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            at: self.stage.now(),
        };
        self.edit(&mut packet, fields)?;
        Ok(packet)
    }

    /// Changes fields of a packet. `len` and `data` make the payload anew.
    pub(super) fn edit(&self, packet: &mut Packet, fields: &[Field]) -> Result<(), String> {
        let mut length = None;
        let mut data = None;
        for field in fields {
            let h = &mut packet.headers;
            match field {
                Field::Psn(psn) => h.bth.psn = Psn::new(*psn),
                Field::Len(len) => length = Some(*len),
                Field::AckReq(set) => h.bth.ack_req = *set,
                Field::Solicited(set) => h.bth.solicited = *set,
                Field::MigReq(set) => h.bth.mig_req = *set,
                Field::Becn(set) => h.bth.becn = *set,
                Field::Fecn(set) => h.bth.fecn = *set,
                Field::Pad(pad) => h.bth.pad_count = *pad,
                Field::TVer(tver) => h.bth.tver = *tver,
                Field::PKey(pkey) => h.bth.pkey = PKey(*pkey),
                Field::Dest(qp) => h.bth.dest_qp = Qpn::new(self.qpn(qp)?),
                Field::Va(va) => {
                    let va = self.address(va)?;
                    if let Some(reth) = &mut h.reth {
                        reth.va = va;
                    }
                    if let Some(eth) = &mut h.atomic_eth {
                        eth.va = va;
                    }
                }
                Field::RKey(rkey) => {
                    let rkey = RKey(self.key(rkey)?);
                    if let Some(reth) = &mut h.reth {
                        reth.rkey = rkey;
                    }
                    if let Some(eth) = &mut h.atomic_eth {
                        eth.rkey = rkey;
                    }
                }
                Field::DmaLen(len) => need(&mut h.reth, "RETH")?.dma_len = *len,
                Field::Compare(value) => need(&mut h.atomic_eth, "AtomicETH")?.compare = *value,
                Field::Swap(value) => need(&mut h.atomic_eth, "AtomicETH")?.swap_or_add = *value,
                Field::Imm(imm) => *need(&mut h.imm, "ImmDt")? = *imm,
                Field::Inv(rkey) => {
                    let rkey = RKey(self.key(rkey)?);
                    *need(&mut h.ieth, "IETH")? = rkey;
                }
                Field::Syndrome(syndrome) => need(&mut h.aeth, "AETH")?.syndrome = *syndrome,
                Field::Ack => need(&mut h.aeth, "AETH")?.syndrome = Syndrome::Ack(Syndrome::NO_CREDITS),
                Field::Msn(msn) => need(&mut h.aeth, "AETH")?.msn = *msn,
                Field::Original(value) => *need(&mut h.atomic_ack_eth, "AtomicAckETH")? = *value,
                Field::QKey(qkey) => need(&mut h.deth, "DETH")?.qkey = QKey(*qkey),
                Field::SrcQp(qp) => {
                    let qpn = Qpn::new(self.qpn(qp)?);
                    need(&mut h.deth, "DETH")?.src_qp = qpn;
                }
                Field::Srqn(srq) => {
                    let srqn = Srqn::new(self.srqn(srq)?);
                    *need(&mut h.xrceth, "XRCETH")? = srqn;
                }
                Field::Placement(plt) => need(&mut h.feth, "FETH")?.plt = *plt,
                Field::Selectivity(sel) => need(&mut h.feth, "FETH")?.sel = *sel,
                Field::Tc(tc) => packet.traffic_class = *tc,
                Field::Hop(hop) => packet.hop_limit = *hop,
                Field::Port(port) => packet.port_num = *port,
                Field::Src(name) => packet.src = self.peer(name, packet.port_num)?.0,
                Field::Dst(name) => packet.dst = self.peer(name, packet.port_num)?.0,
                Field::Data(fill) => data = Some(fill),
            }
        }
        // The port chosen last decides the addresses, unless they were given.
        if length.is_some() || data.is_some() {
            let count = length.unwrap_or(match data {
                Some(Fill::Text(text)) => text.len(),
                _ => packet.payload.len(),
            });
            packet.payload = self.fill(data.unwrap_or(&Fill::Count(0)), count)?;
            packet.headers.bth.pad_count = pad_count(count);
        }
        Ok(())
    }

    fn fill(&self, fill: &Fill, length: usize) -> Result<Vec<u8>, String> {
        match fill {
            Fill::Region(name, offset) => self.stage.read(self.region(name)?, *offset, length),
            // A text is compared whole: a longer payload differs.
            Fill::Text(text) if text.len() > length => Ok(text.clone()),
            other => Ok(other.bytes(length)),
        }
    }

    pub(super) fn region(&self, name: &str) -> Result<usize, String> {
        self.regions.get(name).copied().ok_or_else(|| format!("no region is called {name}"))
    }

    /// An address: a number, or a place in a region.
    pub(super) fn address(&self, place: &Ref) -> Result<u64, String> {
        match place {
            Ref::Number(number) => Ok(*number),
            Ref::Name(name, offset) => Ok(self.stage.region(self.region(name)?).addr.wrapping_add_signed(*offset)),
        }
    }

    /// An rkey: a number, a region's, or a window's (its offset is the tag in its low 8 bits).
    pub(super) fn key(&self, key: &Ref) -> Result<u32, String> {
        match key {
            Ref::Number(number) => Ok(*number as u32),
            Ref::Name(name, tag) => match self.windows.get(name) {
                Some(window) => Ok(self.stage.window_rkey(*window, *tag as u8)),
                None => Ok(self.stage.region(self.region(name)?).rkey),
            },
        }
    }

    fn qpn(&self, qp: &Ref) -> Result<u32, String> {
        match qp {
            Ref::Number(number) => Ok(*number as u32),
            Ref::Name(name, _) => Ok(self.peer(name, 1)?.1.get()),
        }
    }

    pub(super) fn srqn(&self, srq: &Ref) -> Result<u32, String> {
        match srq {
            Ref::Number(number) => Ok(*number as u32),
            Ref::Name(name, _) => {
                let srq = self.srqs.get(name).ok_or_else(|| format!("no SRQ is called {name}"))?;
                Ok(self.stage.srqn(*srq).get())
            }
        }
    }

    /// The number that a completion's `src` or `inv` must hold.
    pub(super) fn qpn_of(&self, qp: &Ref) -> Result<Qpn, String> {
        self.qpn(qp).map(Qpn::new)
    }
}

fn need<'a, T>(header: &'a mut Option<T>, name: &str) -> Result<&'a mut T, String> {
    header.as_mut().ok_or_else(|| format!("the opcode has no {name}"))
}
