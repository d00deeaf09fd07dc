//! Flows whose beginnings are known before the run: each is one message on a QP of its own.

use super::super::csv;
use super::super::time::Ps;
use super::super::world::{Message, Notice, Post, Workload};
use super::Job;
use super::sizes::Sizes;
use crate::random::Random;

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// When it begins.
    pub start: Ps,
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Payload.
    pub bytes: u64,
}

/// Flows in the order of their beginnings.
pub struct FlowList {
    flows: Vec<Flow>,
    next: usize,
    priority: u8,
}

impl FlowList {
    /// Of any order.
    pub fn new(mut flows: Vec<Flow>, priority: u8) -> Self {
        flows.sort_by_key(|flow| flow.start);
        Self { flows, next: 0, priority }
    }

    /// `senders` to one receiver, all at once.
    pub fn incast(senders: impl Iterator<Item = u32>, to: u32, bytes: u64, start: Ps) -> Vec<Flow> {
        senders.filter(|from| *from != to).map(|from| Flow { start, from, to, bytes }).collect()
    }

    /// Each host to another one, each receives from one: a random cycle through all.
    pub fn permutation(hosts: u32, bytes: u64, start: Ps, random: &mut Random) -> Vec<Flow> {
        let mut order: Vec<u32> = (0..hosts).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
        let next = order.iter().cycle().skip(1);
        order.iter().zip(next).map(|(&from, &to)| Flow { start, from, to, bytes }).collect()
    }

    /// Flows that arrive by chance (Poisson) at `load` of the hosts' links for `duration`; `bps` is what a host's link carries.
    pub fn open_loop(
        hosts: u32,
        bps: u64,
        load: f64,
        sizes: &Sizes,
        start: Ps,
        duration: Ps,
        random: &mut Random,
    ) -> Vec<Flow> {
        let per_second = f64::from(hosts) * bps as f64 * load / 8.0 / sizes.mean();
        let gap_ps = 1e12 / per_second;
        let mut flows = Vec::new();
        let mut at = 0.0_f64;
        loop {
            // The inverse of the exponential distribution; the uniform number is never 0.
            let uniform = ((random.next() >> 11) + 1) as f64 / 9_007_199_254_740_992.0;
            at += -logarithm(uniform) * gap_ps;
            if at >= duration.0 as f64 {
                return flows;
            }
            let from = random.below(u64::from(hosts)) as u32;
            let to = (from + 1 + random.below(u64::from(hosts) - 1) as u32) % hosts;
            flows.push(Flow { start: start + Ps(at as u64), from, to, bytes: sizes.draw(random) });
        }
    }

    /// Reads `src,dst,size_bytes,start_ns` of flows that have at most so many bytes. The error names line and field.
    pub fn from_csv(text: &str, name: &str, hosts: u32, most_bytes: u64) -> Result<Vec<Flow>, String> {
        let mut rows = csv::rows(text, name, "src,dst,size_bytes,start_ns")?;
        let mut flows = Vec::new();
        while let Some(row) = rows.next_row()? {
            let from = row.number(0, 0, u64::from(hosts) - 1)? as u32;
            let to = row.number(1, 0, u64::from(hosts) - 1)? as u32;
            if from == to {
                return Err(row.wrong(1, "another host than src"));
            }
            let bytes = row.number(2, 1, most_bytes)?;
            let start = Ps::from_ns(row.number(3, 0, 1_000_000_000_000)?);
            flows.push(Flow { start, from, to, bytes });
        }
        if flows.is_empty() {
            return Err(format!("{name}: there is no flow in it"));
        }
        Ok(flows)
    }
}

/// The natural logarithm of 0 < x <= 1 by the four operations alone, so that it is the same on every machine.
fn logarithm(x: f64) -> f64 {
    // x = m * 2^e with m in [1, 2): ln x = e ln 2 + 2 artanh((m - 1) / (m + 1)).
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let (mut power, mut sum, mut n) = (z, 0.0, 1.0);
    while n < 40.0 {
        sum += power / n;
        power *= square;
        n += 2.0;
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * sum
}

impl Workload for FlowList {
    fn next(&self) -> Ps {
        self.flows.get(self.next).map_or(Ps::NEVER, |flow| flow.start)
    }

    fn due(&mut self, now: Ps, posts: &mut Vec<Post>) {
        while let Some(flow) = self.flows.get(self.next).filter(|flow| flow.start <= now) {
            let tag = self.next as u64;
            posts.push(Post {
                from: flow.from,
                to: flow.to,
                bytes: flow.bytes,
                priority: self.priority,
                lane: None,
                source_port: None,
                tag,
            });
            self.next += 1;
        }
    }

    fn hear(&mut self, _now: Ps, _notice: Notice, _message: &Message, _posts: &mut Vec<Post>) {}

    fn is_done(&self) -> bool {
        self.next == self.flows.len()
    }

    fn bytes(&self) -> u64 {
        self.flows.iter().map(|flow| flow.bytes).sum()
    }
}

impl Job for FlowList {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_one() {
        for x in [1.0, 0.5, 0.75, 0.1, 1e-3, 1e-9, f64::MIN_POSITIVE, 0.999_999] {
            assert!((logarithm(x) - x.ln()).abs() <= 1e-12 * x.ln().abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn a_permutation_gives_each_host_one_sender_and_one_receiver() {
        let flows = FlowList::permutation(64, 1, Ps::ZERO, &mut Random::new(3, 0));
        let mut to: Vec<u32> = flows.iter().map(|flow| flow.to).collect();
        to.sort_unstable();
        assert_eq!(to, (0..64).collect::<Vec<_>>());
        assert!(flows.len() == 64 && flows.iter().all(|flow| flow.from != flow.to));
    }

    #[test]
    fn an_open_loop_has_the_load_that_was_asked_for() {
        let sizes = Sizes::named("fb-hadoop").unwrap();
        let (bps, duration) = (100_000_000_000, Ps(20_000_000_000));
        let flows = FlowList::open_loop(64, bps, 0.5, &sizes, Ps::ZERO, duration, &mut Random::new(1, 0));
        let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
        let load = bytes as f64 * 8.0 / (64.0 * bps as f64 * duration.as_secs());
        // Sizes have a long tail: 33,000 flows give the mean to a few per cent.
        assert!((load - 0.5).abs() < 0.04, "{load}");
        assert!(flows.iter().all(|flow| flow.from != flow.to && flow.to < 64 && flow.start < duration));
    }

    #[test]
    fn a_table_is_read_and_its_faults_are_placed() {
        let head = "src,dst,size_bytes,start_ns\n";
        let flows = FlowList::from_csv(&format!("{head}0,1,500,7\n"), "f.csv", 2, 1 << 42).unwrap();
        assert_eq!(flows, [Flow { start: Ps::from_ns(7), from: 0, to: 1, bytes: 500 }]);
        for (line, expected) in [
            ("0,2,1,0", "f.csv:2: dst is \"2\"; expected a whole number from 0 to 1"),
            ("1,1,1,0", "f.csv:2: dst is \"1\"; expected another host than src"),
            ("0,1,0,0", "f.csv:2: size_bytes"),
            ("0,1,1,-1", "f.csv:2: start_ns"),
        ] {
            let message = FlowList::from_csv(&format!("{head}{line}\n"), "f.csv", 2, 1 << 42).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        assert!(FlowList::from_csv(head, "f.csv", 2, 1 << 42).is_err());
    }
}
