//! The program that runs for each packet that comes in by the interface. RoCEv2 packets for this process go to its AF_XDP sockets:
//! UDP over IPv4 or IPv6 to port 4791, to this interface's MAC address and to one of the port's addresses, with the process's slot in byte 5
//! of the BTH. Everything else goes on to the kernel, and so reaches the UDP sockets: QP 1, other slots, groups, fragments, headers with
//! options, tagged frames, and queues that have no socket.
//!
//! Assembled by hand, so that no compiler for BPF is needed: each line is one instruction with what it would be in C.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

use super::bpf::{self, Instruction, MapKind};
use super::socket::Xsk;
use crate::port::udp::socket::ROCE_PORT;
use crate::process::Descriptor;

/// Addresses of a port, at most; those beyond stay with the UDP sockets.
const MAX_ADDRESSES: u32 = 256;

/// The program at its interface, with its maps.
#[derive(Debug)]
pub(super) struct Program {
    addresses: Descriptor,
    known: HashSet<[u8; 16]>,
    _sockets: Descriptor,
    _link: Descriptor,
}

impl Program {
    /// Loads it for a slot and a MAC address, and attaches it. `sockets`: one for each queue, from 0.
    pub(super) fn attach(ifindex: u32, slot: u8, mac: [u8; 6], sockets: &[Xsk], frags: bool) -> io::Result<Self> {
        let map = bpf::map(MapKind::Xsk, 4, 4, sockets.len() as u32)?;
        for (queue, socket) in (0u32..).zip(sockets) {
            bpf::set(&map, &queue.to_ne_bytes(), &socket.fd().as_raw_fd().to_ne_bytes())?;
        }
        let addresses = bpf::map(MapKind::Hash, 16, 1, MAX_ADDRESSES)?;
        let code = assemble(slot, mac, addresses.as_raw_fd(), map.as_raw_fd());
        let program = bpf::load(&code, frags)?;
        let link = bpf::attach(&program, ifindex)?;
        Ok(Self { addresses, known: HashSet::new(), _sockets: map, _link: link })
    }

    /// From now on these are the port's addresses.
    pub(super) fn set_addresses(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        let new: HashSet<_> = addresses.map(key).take(MAX_ADDRESSES as usize).collect();
        for gone in self.known.difference(&new) {
            let _ = bpf::remove(&self.addresses, gone);
        }
        // One that cannot be set stays with the UDP sockets.
        for added in new.difference(&self.known) {
            let _ = bpf::set(&self.addresses, added, &[1]);
        }
        self.known = new;
    }
}

fn key(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// `XDP_PASS`: on to the kernel.
const PASS: i32 = 2;
const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;

// Opcodes: class, operation and source in one byte.
const LDX_B: u8 = 0x71;
const LDX_H: u8 = 0x69;
const LDX_W: u8 = 0x61;
const STX_W: u8 = 0x63;
const ST_W: u8 = 0x62;
const MOV_IMM: u8 = 0xb7;
const MOV: u8 = 0xbf;
const ADD_IMM: u8 = 0x07;
const AND_IMM: u8 = 0x57;
const LOAD_MAP: u8 = 0x18;
const JUMP: u8 = 0x05;
const JEQ_IMM: u8 = 0x15;
const JNE_IMM: u8 = 0x55;
/// Compares the lower 32 bits: an immediate of 64 would be sign-extended.
const JNE32_IMM: u8 = 0x56;
const JGT: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Where a jump leads: known when everything stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    V6,
    Find,
    Pass,
}

#[derive(Default)]
struct Assembly {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembly {
    fn op(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.code.push(Instruction::new(code, dst, src, off, imm));
    }

    fn jump(&mut self, code: u8, dst: u8, src: u8, imm: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.op(code, dst, src, 0, imm);
    }

    /// `if (*(r2 + off) != value) goto pass`
    fn want(&mut self, load: u8, off: i16, value: i32) {
        self.op(load, 5, 2, off, 0);
        self.jump(JNE32_IMM, 5, 0, value, Label::Pass);
    }

    /// `if (data + bytes > data_end) goto pass`
    fn want_bytes(&mut self, bytes: i32) {
        self.op(MOV, 4, 2, 0, 0);
        self.op(ADD_IMM, 4, 0, 0, bytes);
        self.jump(JGT, 4, 3, 0, Label::Pass);
    }

    /// `dst = &map`, which takes two instructions' room.
    fn load_map(&mut self, dst: u8, map: RawFd) {
        self.op(LOAD_MAP, dst, 1, 0, map);
        self.op(0, 0, 0, 0, 0);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, to) in self.jumps {
            let target = self.labels.iter().find(|(label, _)| *label == to).map_or(at + 1, |(_, target)| *target);
            self.code[at].off = (target - at - 1) as i16;
        }
        self.code
    }
}

/// A 16-bit field of the packet, as a load in the machine's order sees it.
fn net16(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// Bytes before the UDP header: Ethernet and IP.
const V4: i16 = 14 + 20;
const V6: i16 = 14 + 40;
/// UDP and BTH, which a packet has at least.
const UDP_AND_BTH: i32 = 8 + 12;

fn assemble(slot: u8, mac: [u8; 6], addresses: RawFd, sockets: RawFd) -> Vec<Instruction> {
    let mut a = Assembly::default();
    let [m0, m1, m2, m3, m4, m5] = mac;
    a.op(MOV, 6, 1, 0, 0); //                        r6 = ctx
    a.op(LDX_W, 2, 1, 0, 0); //                      r2 = ctx->data
    a.op(LDX_W, 3, 1, 4, 0); //                      r3 = ctx->data_end
    a.want_bytes(i32::from(V4) + UDP_AND_BTH);
    a.want(LDX_W, 0, i32::from_ne_bytes([m0, m1, m2, m3])); // Ethernet destination
    a.want(LDX_H, 4, i32::from(u16::from_ne_bytes([m4, m5])));
    a.op(LDX_H, 5, 2, 12, 0); //                     r5 = ethertype
    a.jump(JEQ_IMM, 5, 0, net16(0x86dd), Label::V6);
    a.jump(JNE_IMM, 5, 0, net16(0x0800), Label::Pass);
    a.want(LDX_B, 14, 0x45); //                      version 4, no options
    a.op(LDX_H, 5, 2, 20, 0); //                     r5 = flags and fragment offset
    a.op(AND_IMM, 5, 0, 0, net16(0x3fff)); //        all but "do not fragment"
    a.jump(JNE_IMM, 5, 0, 0, Label::Pass);
    a.want(LDX_B, 23, 17); //                        protocol UDP
    a.want(LDX_H, V4 + 2, net16(ROCE_PORT));
    a.want(LDX_B, V4 + 8 + 5, i32::from(slot)); //   BTH: upper byte of the destination QPN
    a.op(ST_W, 10, 0, -16, 0); //                    key = ::ffff:a.b.c.d
    a.op(ST_W, 10, 0, -12, 0);
    a.op(ST_W, 10, 0, -8, 0x0000_ffffu32.to_be() as i32);
    a.op(LDX_W, 5, 2, 30, 0); //                     destination address
    a.op(STX_W, 10, 5, -4, 0);
    a.jump(JUMP, 0, 0, 0, Label::Find);
    a.label(Label::V6);
    a.want_bytes(i32::from(V6) + UDP_AND_BTH);
    a.want(LDX_B, 20, 17); //                        next header UDP
    a.want(LDX_H, V6 + 2, net16(ROCE_PORT));
    a.want(LDX_B, V6 + 8 + 5, i32::from(slot));
    for word in 0..4 {
        a.op(LDX_W, 5, 2, 38 + 4 * word, 0); //      key = destination address
        a.op(STX_W, 10, 5, -16 + 4 * word, 0);
    }
    a.label(Label::Find);
    a.load_map(1, addresses);
    a.op(MOV, 2, 10, 0, 0); //                       r2 = &key
    a.op(ADD_IMM, 2, 0, 0, -16);
    a.op(CALL, 0, 0, 0, MAP_LOOKUP_ELEM);
    a.jump(JEQ_IMM, 0, 0, 0, Label::Pass); //        not an address of ours
    a.load_map(1, sockets);
    a.op(LDX_W, 2, 6, 16, 0); //                     r2 = ctx->rx_queue_index
    a.op(MOV_IMM, 3, 0, 0, PASS); //                 without a socket for it: pass
    a.op(CALL, 0, 0, 0, REDIRECT_MAP);
    a.op(EXIT, 0, 0, 0, 0); //                       return what the helper says
    a.label(Label::Pass);
    a.op(MOV_IMM, 0, 0, 0, PASS);
    a.op(EXIT, 0, 0, 0, 0);
    a.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_leads_forward_to_an_instruction_that_begins_there() {
        let code = assemble(1, [2, 0, 0, 0, 0, 1], 3, 4);
        let jumps = [JUMP, JEQ_IMM, JNE_IMM, JNE32_IMM, JGT];
        let second_halves: Vec<_> =
            code.iter().enumerate().filter(|(_, i)| i.code == LOAD_MAP).map(|(n, _)| n + 1).collect();
        let mut seen = 0;
        for (at, instruction) in code.iter().enumerate().filter(|(_, i)| jumps.contains(&i.code)) {
            let target = at + 1 + usize::try_from(instruction.off).expect("forward");
            assert!(target > at + 1 && target < code.len() && !second_halves.contains(&target), "{at} to {target}");
            seen += 1;
        }
        assert!(seen > 15, "{seen} jumps");
        assert_eq!(code.last().map(|i| i.code), Some(EXIT));
    }
}
