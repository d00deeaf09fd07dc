//! Fault patterns by name: which faults strike, how often. Each pattern has its own main fault over a background of others,
//! because faults that meet find more than faults alone.

use crate::random::Random;

/// Kinds of fault, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Fault {
    Loss,
    BurstLoss,
    Reorder,
    Duplicate,
    Corruption,
    LostAck,
    ReceiverNotReady,
    PsnWrap,
    LinkFlap,
    MtuChange,
    CongestionMark,
    Blocked,
    Forgery,
}

impl Fault {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Loss,
        Self::BurstLoss,
        Self::Reorder,
        Self::Duplicate,
        Self::Corruption,
        Self::LostAck,
        Self::ReceiverNotReady,
        Self::PsnWrap,
        Self::LinkFlap,
        Self::MtuChange,
        Self::CongestionMark,
        Self::Blocked,
        Self::Forgery,
    ];
}

/// How often each fault strikes. Chances are per million packets; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A packet is lost.
    pub loss_ppm: u32,
    /// A burst begins: this packet and the next ones on the same link are lost.
    pub burst_ppm: u32,
    /// Packets in a burst, at most.
    pub burst_packets: u32,
    /// A packet is overtaken by later ones.
    pub reorder_ppm: u32,
    /// A packet arrives twice.
    pub duplicate_ppm: u32,
    /// One to three bits are flipped.
    pub corrupt_ppm: u32,
    /// An ACK, an atomic's answer or a READ response is lost, over and above `loss_ppm`.
    pub lost_ack_ppm: u32,
    /// Receivers post nothing for a while: chance at each refill.
    pub starve_ppm: u32,
    /// PSNs begin shortly before they wrap.
    pub psn_wrap: bool,
    /// A port goes down for up to this long, ns, now and then; 0: never.
    pub flap_ns: u64,
    /// The wire takes only small packets for up to this long, ns, now and then; 0: never.
    pub mtu_ns: u64,
    /// A packet is marked Congestion Experienced.
    pub mark_ppm: u32,
    /// A port refuses to take packets for some µs.
    pub block_ppm: u32,
    /// A forged packet is put on the wire beside this one.
    pub forge_ppm: u32,
}

/// A pattern.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does.
    pub text: &'static str,
    /// The fault that must strike in every run.
    pub main: Option<Fault>,
    faults: fn(&mut Random) -> Faults,
}

/// What strikes everywhere, a little.
const BACKGROUND: Faults = Faults {
    loss_ppm: 4_000,
    burst_ppm: 0,
    burst_packets: 0,
    reorder_ppm: 6_000,
    duplicate_ppm: 6_000,
    corrupt_ppm: 4_000,
    lost_ack_ppm: 0,
    starve_ppm: 0,
    psn_wrap: false,
    flap_ns: 0,
    mtu_ns: 0,
    mark_ppm: 4_000,
    block_ppm: 2_000,
    forge_ppm: 10_000,
};

/// All patterns.
pub const PATTERNS: &[Pattern] = &[
    Pattern {
        name: "loss",
        text: "packets are lost, one at a time",
        main: Some(Fault::Loss),
        faults: |r| Faults { loss_ppm: r.range(10_000, 80_000) as u32, ..BACKGROUND },
    },
    Pattern {
        name: "burst-loss",
        text: "packets are lost in a row",
        main: Some(Fault::BurstLoss),
        faults: |r| Faults {
            burst_ppm: r.range(2_000, 10_000) as u32,
            burst_packets: r.range(2, 12) as u32,
            ..BACKGROUND
        },
    },
    Pattern {
        name: "reorder",
        text: "packets overtake one another",
        main: Some(Fault::Reorder),
        faults: |r| Faults { reorder_ppm: r.range(20_000, 200_000) as u32, ..BACKGROUND },
    },
    Pattern {
        name: "duplicate",
        text: "packets arrive twice",
        main: Some(Fault::Duplicate),
        faults: |r| Faults { duplicate_ppm: r.range(20_000, 300_000) as u32, ..BACKGROUND },
    },
    Pattern {
        name: "corruption",
        text: "bits are flipped",
        main: Some(Fault::Corruption),
        faults: |r| Faults { corrupt_ppm: r.range(10_000, 80_000) as u32, ..BACKGROUND },
    },
    Pattern {
        name: "lost-acks",
        text: "answers are lost, so that requests are repeated",
        main: Some(Fault::LostAck),
        faults: |r| Faults { lost_ack_ppm: r.range(50_000, 250_000) as u32, ..BACKGROUND },
    },
    Pattern {
        name: "rnr-starvation",
        text: "receivers post their receives late, or never",
        main: Some(Fault::ReceiverNotReady),
        faults: |r| Faults { starve_ppm: r.range(100_000, 500_000) as u32, ..BACKGROUND },
    },
    Pattern {
        name: "psn-wrap",
        text: "sequence numbers wrap in the middle of everything",
        main: Some(Fault::PsnWrap),
        faults: |r| Faults {
            psn_wrap: true,
            loss_ppm: r.range(5_000, 30_000) as u32,
            lost_ack_ppm: 20_000,
            ..BACKGROUND
        },
    },
    Pattern {
        name: "link-flap",
        text: "ports go down and come back",
        main: Some(Fault::LinkFlap),
        faults: |r| Faults { flap_ns: r.range(5_000, 1_500_000), ..BACKGROUND },
    },
    Pattern {
        name: "mtu-change",
        text: "the path takes only small packets for a while",
        main: Some(Fault::MtuChange),
        faults: |r| Faults { mtu_ns: r.range(5_000, 1_500_000), ..BACKGROUND },
    },
    Pattern { name: "mix", text: "three to six of the others at once", main: None, faults: mix },
    Pattern {
        name: "calm",
        text: "next to nothing: what breaks here is no matter of faults",
        main: None,
        faults: |_| Faults { loss_ppm: 1_000, burst_ppm: 0, forge_ppm: 3_000, ..BACKGROUND },
    },
];

fn mix(random: &mut Random) -> Faults {
    let mut faults = BACKGROUND;
    for _ in 0..random.range(3, 6) {
        match random.below(10) {
            0 => faults.loss_ppm = random.range(5_000, 40_000) as u32,
            1 => {
                faults.burst_ppm = random.range(1_000, 5_000) as u32;
                faults.burst_packets = random.range(2, 8) as u32;
            }
            2 => faults.reorder_ppm = random.range(10_000, 100_000) as u32,
            3 => faults.duplicate_ppm = random.range(10_000, 150_000) as u32,
            4 => faults.corrupt_ppm = random.range(5_000, 40_000) as u32,
            5 => faults.lost_ack_ppm = random.range(20_000, 120_000) as u32,
            6 => faults.starve_ppm = random.range(50_000, 300_000) as u32,
            7 => faults.psn_wrap = true,
            8 => faults.flap_ns = random.range(5_000, 800_000),
            _ => faults.mtu_ns = random.range(5_000, 800_000),
        }
    }
    faults
}

impl Pattern {
    /// The pattern of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PATTERNS.iter().find(|pattern| pattern.name == name)
    }

    /// The pattern that a seed runs when none is named.
    pub fn of_seed(seed: u64) -> &'static Self {
        &PATTERNS[(seed % PATTERNS.len() as u64) as usize]
    }

    /// How often faults strike under this pattern with this seed.
    pub fn faults(&self, seed: u64) -> Faults {
        (self.faults)(&mut Random::new(seed, 0xfa17))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_has_its_name_and_at_least_three_kinds_of_fault() {
        for pattern in PATTERNS {
            assert_eq!(Pattern::find(pattern.name).unwrap().text, pattern.text);
            for seed in 0..20 {
                let f = pattern.faults(seed);
                let kinds = [f.loss_ppm, f.burst_ppm, f.reorder_ppm, f.duplicate_ppm, f.corrupt_ppm, f.forge_ppm];
                assert!(kinds.iter().filter(|&&ppm| ppm > 0).count() >= 3, "{} {seed}", pattern.name);
            }
        }
        assert!(Pattern::find("nonsense").is_none());
    }
}
