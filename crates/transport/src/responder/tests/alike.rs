//! The short way of packets that are like the one before, beside the long way: the same packets, and nothing that anybody could see may
//! differ.

use proptest::prelude::*;
use scalefabric_verbs::AccessFlags;

use super::*;
use crate::responder::Alike;
use crate::testing::Received;

/// A bed whose packets take the short way where the engine would let them.
struct Short {
    bed: Bed,
    before: Option<(Packet, Position)>,
    /// Packets that took it.
    taken: usize,
}

fn head(packet: &Packet) -> impl PartialEq + use<> {
    let mut bth = packet.headers.bth;
    (bth.psn, bth.ack_req) = (Psn::new(0), false);
    (bth, packet.src, packet.dst, packet.port_num, packet.traffic_class)
}

impl Short {
    fn give(&mut self, packet: &Packet) {
        let Bed { ctx, r, host, .. } = &mut self.bed;
        if let Some((before, position)) = &self.before
            && head(before) == head(packet)
        {
            let bth = packet.headers.bth;
            let reth = packet.headers.reth;
            let alike = Alike { psn: bth.psn, ack_req: bth.ack_req, reth, payload: &packet.payload };
            if r.receive_alike(ctx, host, *position, &alike) {
                self.taken += 1;
                return;
            }
        }
        self.before = None;
        self.bed.give(packet);
        let incoming = packet.incoming();
        let Bed { ctx, host, .. } = &mut self.bed;
        // Admission again only to see what it says; a drop that it would count was counted.
        let mut quiet = TestHost::new(2, 0);
        (quiet.pkeys, quiet.gids) = (host.pkeys.clone(), host.gids.clone());
        let position =
            admission::admit(ctx, &mut quiet, &incoming).and_then(|admitted| Responder::place_of_alike(ctx, &admitted));
        self.before = position.map(|position| (packet.clone(), position));
    }
}

/// What the peer does next.
#[derive(Clone, Debug)]
enum Act {
    /// A WRITE of so many bytes in as many packets as it needs, of which one may be left out, or changed.
    Write { length: usize, va_off: i64, key: u32, ask: bool, flaw: u8 },
    /// A SEND ONLY.
    Send(usize),
    /// The batch ends.
    End,
    /// A packet of the last ones comes again.
    Again(u32),
}

fn act() -> impl Strategy<Value = Act> {
    let length = prop_oneof![6 => 0..40_usize, 2 => Just(PMTU), 3 => PMTU..4 * PMTU];
    let va_off = prop_oneof![8 => 0..64_i64, 1 => -8..8_i64, 1 => LEN as i64 - 20..LEN as i64 + 8];
    let key = prop_oneof![30 => Just(KEY), 1 => any::<u32>()];
    prop_oneof![
        12 => (length, va_off, key, any::<bool>(), 0..40_u8)
            .prop_map(|(length, va_off, key, ask, flaw)| Act::Write { length, va_off, key, ask, flaw }),
        1 => (0..40_usize).prop_map(Act::Send),
        2 => Just(Act::End),
        1 => (1..4_u32).prop_map(Act::Again),
    ]
}

fn packets(bed: &mut Bed, act: &Act) -> Vec<Packet> {
    match *act {
        Act::Write { length, va_off, key, ask, flaw } => {
            let payload = bytes(length);
            let total = length.div_ceil(PMTU).max(1);
            let mut made = Vec::new();
            for number in 0..total {
                let position = match (number, total) {
                    (_, 1) => Position::Only,
                    (0, _) => Position::First,
                    _ if number + 1 == total => Position::Last,
                    _ => Position::Middle,
                };
                let piece = &payload[number * PMTU..length.min((number + 1) * PMTU)];
                let mut packet = bed.write(position, AT.wrapping_add_signed(va_off), length as u32, piece);
                if let Some(reth) = &mut packet.headers.reth {
                    reth.rkey = RKey(key);
                }
                packet.headers.bth.ack_req |= ask;
                match flaw {
                    // Lost on the way.
                    1 if number == 1 => {}
                    // One that a switch marked.
                    2 => packet.traffic_class = 3,
                    3 => packet.src = packet.dst,
                    4 => {
                        packet.payload.pop();
                    }
                    5 => packet.headers.bth.pkey = PKey(0x1234),
                    6 => packet.headers.bth.solicited = true,
                    _ => {}
                }
                bed.psn = bed.psn.next();
                if flaw != 1 || number != 1 {
                    made.push(packet);
                }
            }
            made
        }
        Act::Send(length) => {
            let packet = bed.send(Position::Only, &bytes(length));
            bed.psn = bed.psn.next();
            vec![packet]
        }
        Act::Again(back) => {
            let mut packet = bed.write(Position::Only, AT, 8, &[9; 8]);
            packet.headers.bth.psn = bed.psn.sub(back);
            vec![packet]
        }
        Act::End => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn both_ways_do_the_same(acts in prop::collection::vec(act(), 1..80), writable in prop::bool::weighted(0.95)) {
        let mut long = Bed::rc();
        let mut short = Short { bed: Bed::rc(), before: None, taken: 0 };
        for bed in [&mut long, &mut short.bed] {
            if !writable {
                bed.ctx.attr.qp_access_flags = AccessFlags::REMOTE_READ;
            }
            (0..4).for_each(|wr_id| bed.post(wr_id, 100));
        }
        for act in &acts {
            for packet in packets(&mut long, act) {
                long.give(&packet);
                short.give(&packet);
            }
            short.bed.psn = long.psn;
            if matches!(act, Act::End) {
                prop_assert_eq!(long.said(), short.bed.said());
                // The peer goes back to where it is told to.
                long.psn = long.r.expected_psn();
                short.bed.psn = long.psn;
            }
            prop_assert_eq!(long.ctx.state, short.bed.ctx.state);
            prop_assert_eq!(long.r.expected_psn(), short.bed.r.expected_psn());
        }
        prop_assert_eq!(long.said(), short.bed.said());
        let seen = |host: &TestHost| -> (Vec<u8>, Vec<Received>, Vec<_>, Vec<u64>) {
            let counters = Counter::ALL.iter().map(|c| host.counter(*c));
            let drops = DropReason::ALL.iter().map(|d| host.dropped(*d));
            (host.memory.clone(), host.received.clone(), host.events.clone(), counters.chain(drops).collect())
        };
        prop_assert!(seen(&long.host) == seen(&short.bed.host));
    }
}

#[test]
fn all_but_the_first_of_a_train_take_the_short_way() {
    let mut short = Short { bed: Bed::rc(), before: None, taken: 0 };
    for _ in 0..10 {
        let packet = short.bed.write(Position::Only, AT, 8, &[7; 8]);
        short.give(&packet);
        short.bed.psn = short.bed.psn.next();
    }
    assert_eq!(short.taken, 9);
    let whole = bytes(5 * PMTU);
    for (number, piece) in whole.chunks(PMTU).enumerate() {
        let position = [Position::First, Position::Middle, Position::Middle, Position::Middle, Position::Last][number];
        let packet = short.bed.write(position, AT, whole.len() as u32, piece);
        short.give(&packet);
        short.bed.psn = short.bed.psn.next();
    }
    assert_eq!(short.taken, 9 + 2, "two MIDDLE behind the first one");
    assert_eq!(short.bed.memory(AT, whole.len()), whole);
}
