//! What moves a connection away from losses: when too much of what it sends is lost, sample after sample, it takes another source port, which may lead by other links, and
//! if that does not help another port. The rule is pure: samples and times come in. It rests while a control plane balances ([`crate::directory::Directory::balances`]),
//! for that one sees all connections, and two would pull at one.

use super::config::Config;
use super::hub::PortAt;
use super::link::Wanted;
use super::service::Shared;
use super::task::{Asker, Task};
use crate::path::{Path, flow_label_of};
use crate::session::Change;
use std::sync::Arc;
use std::time::Duration;

/// How often ports are looked at, and where anything was lost, its connections.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Samples in a row that must say so.
const SAMPLES: u32 = 3;

/// A sample of fewer packets says nothing.
const ENOUGH: u64 = 64;

/// How long a connection rests after it was moved; it doubles with each move, up to 64 times.
const REST_NS: u64 = 5_000_000_000;

/// After so long without losses what was before is forgotten.
const FORGET_NS: u64 = 60_000_000_000;

/// Source ports that are tried: as many as share sockets well.
const LABELS: u64 = 32;

/// What a QP has sent since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossSample {
    /// Which QP: another one begins anew.
    pub qp_num: u32,
    /// Packets; may wrap at `wraps`.
    pub sent: u64,
    pub wraps: u64,
    /// How often it found that something was lost.
    pub losses: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    SourcePort,
    Port,
}

/// A connection's losses, and what was done about them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    last: Option<LossSample>,
    /// Samples in a row above the threshold.
    row: u32,
    rests_until_ns: u64,
    /// Moves in this time of losses.
    moves: u32,
    lossy_ns: u64,
}

impl Losses {
    /// Takes a sample; what is to be done now, if anything. `permille`: more than so many losses in a thousand packets are too many.
    pub fn judge(&mut self, sample: LossSample, permille: u32, now_ns: u64) -> Option<Remedy> {
        let last = self.last.replace(sample).filter(|last| last.qp_num == sample.qp_num)?;
        let sent = (sample.sent + sample.wraps - last.sent) % sample.wraps;
        let lost = sample.losses.saturating_sub(last.losses);
        if sent + lost < ENOUGH {
            return None;
        }
        if lost * 1000 <= u64::from(permille) * (sent + lost) {
            self.row = 0;
            if now_ns.saturating_sub(self.lossy_ns) > FORGET_NS {
                self.moves = 0;
            }
            return None;
        }
        (self.row, self.lossy_ns) = (self.row + 1, now_ns);
        if self.row < SAMPLES || now_ns < self.rests_until_ns {
            return None;
        }
        // The source port first: it costs least. If losses stay, they are not of the links that it chooses among.
        let remedy = if self.moves.is_multiple_of(2) { Remedy::SourcePort } else { Remedy::Port };
        self.rests_until_ns = now_ns.saturating_add(REST_NS << self.moves.min(6));
        (self.row, self.moves) = (0, self.moves.saturating_add(1));
        Some(remedy)
    }

    /// Nothing was lost lately: what comes next is not in a row with what was.
    pub fn calm(&mut self) {
        (self.last, self.row) = (None, 0);
    }
}

/// The path of a remedy. `dice`: a number by chance. Where there is no other port, another source port is all there is.
pub(crate) fn path_away(remedy: Remedy, present: &Path, alternatives: &[Path], dice: u64) -> Path {
    let is_elsewhere = |path: &&Path| (&path.device, path.port_num) != (&present.device, present.port_num);
    let elsewhere = alternatives.iter().find(is_elsewhere);
    match (remedy, elsewhere) {
        (Remedy::Port, Some(path)) => path.clone(),
        _ => {
            let label = |n: u64| flow_label_of(0xc000 + (n % LABELS) as u16).unwrap_or_default();
            let wanted = label(dice);
            let flow_label = if wanted == present.flow_label { label(dice + 1) } else { wanted };
            Path { flow_label, ..present.clone() }
        }
    }
}

/// Looks at the ports as long as the fabric lives.
pub(super) async fn watch(shared: Arc<Shared>) {
    let Config { retransmit_permille, .. } = shared.config;
    if retransmit_permille >= 1000 {
        return;
    }
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let ports: Vec<PortAt> = shared.hubs.ports().collect();
    let (mut before, mut lossy) = (vec![None; ports.len()], vec![false; ports.len()]);
    loop {
        tick.tick().await;
        if shared.directory.balances() {
            continue;
        }
        for (index, at) in ports.iter().copied().enumerate() {
            let losses = shared.hubs.all()[at.domain].losses(at.port_num);
            let rose = matches!((before[index], losses), (Some(before), Some(losses)) if losses > before);
            before[index] = losses;
            // Once more after the last, so that a row ends.
            if rose || lossy[index] {
                shared.tell_all(|| super::link::Told::Losses { at, rose });
            }
            lossy[index] = rose;
        }
    }
}

impl Task {
    /// Something was lost on a port: looks whether it was this connection's.
    pub(super) fn hear_losses(&mut self, at: PortAt, rose: bool) {
        let hubs = self.link.hubs.clone();
        if self.path.as_ref().is_none_or(|path| !hubs.is_on(path, at)) {
            return;
        }
        let present = self.session.lane();
        let lane = self.lanes.iter().find(|lane| Some(lane.id) == present);
        let Some(sample) = lane.filter(|_| rose).and_then(|lane| lane.hub.loss_sample(&*lane.qp, at.port_num)) else {
            return self.losses.calm();
        };
        let now = self.now_ns();
        let Some(remedy) = self.losses.judge(sample, self.link.config.retransmit_permille, now) else { return };
        // What is being changed already is looked at again when that has ended.
        let (true, Some(path)) = (self.session.is_up(), &self.path) else { return };
        let path = path_away(remedy, path, &super::lane::alternatives(&hubs, path), self.shared.random());
        if !hubs.port_of(&path).is_some_and(|at| hubs.is_active(at)) {
            return;
        }
        let token = self.session.highest_token();
        let reason = format!("more than {} of a thousand packets were lost", self.link.config.retransmit_permille);
        self.home.forget();
        let change = Change { path, peer_path: None, strategy: None, token, reason };
        self.order(Wanted::Move(change), Asker::Nobody);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::Gid;

    const MS: u64 = 1_000_000;

    /// A connection that sends a thousand packets between two looks.
    struct World {
        losses: Losses,
        sample: LossSample,
        now: u64,
    }

    impl World {
        fn new() -> Self {
            let sample = LossSample { qp_num: 1, sent: 0, wraps: 1 << 24, losses: 0 };
            let mut world = Self { losses: Losses::default(), sample, now: 0 };
            assert_eq!(world.look(0), None);
            world
        }

        fn look(&mut self, lost: u64) -> Option<Remedy> {
            self.now += 100 * MS;
            self.sample.sent = (self.sample.sent + 1000 - lost) % self.sample.wraps;
            self.sample.losses += lost;
            self.losses.judge(self.sample, 10, self.now)
        }

        /// Lossy until something is done; after how many looks, and what.
        fn until(&mut self) -> (usize, Remedy) {
            (1..10_000).find_map(|n| self.look(50).map(|remedy| (n, remedy))).unwrap()
        }
    }

    #[test]
    fn three_samples_in_a_row_above_one_per_cent_move_it_and_ten_in_a_thousand_do_not() {
        let mut world = World::new();
        assert_eq!([world.look(11), world.look(11), world.look(11)], [None, None, Some(Remedy::SourcePort)]);
        let mut world = World::new();
        assert!((0..100).all(|_| world.look(10).is_none()));
        let mut world = World::new();
        assert!((0..100).all(|n| world.look(if n % 3 == 2 { 0 } else { 500 }).is_none()));
    }

    #[test]
    fn another_source_port_comes_first_then_another_port_with_growing_rests() {
        let mut world = World::new();
        assert_eq!(world.until(), (3, Remedy::SourcePort));
        assert_eq!(world.until(), (50, Remedy::Port));
        assert_eq!(world.until(), (100, Remedy::SourcePort));
        assert_eq!(world.until(), (200, Remedy::Port));
        // After a minute without any it begins anew.
        assert!((0..605).all(|_| world.look(0).is_none()));
        assert_eq!(world.until().1, Remedy::SourcePort);
    }

    #[test]
    fn few_packets_another_qp_and_a_counter_that_wraps_say_nothing_wrong() {
        let mut world = World::new();
        for _ in 0..20 {
            world.now += MS;
            (world.sample.sent, world.sample.losses) = (world.sample.sent + 30, world.sample.losses + 30);
            assert_eq!(world.losses.judge(world.sample, 10, world.now), None);
        }
        let mut world = World::new();
        for n in 0..20 {
            world.sample.qp_num = n;
            assert_eq!(world.look(500), None);
        }
        let mut world = World::new();
        world.sample.sent = (1 << 24) - 10;
        world.losses.calm();
        assert!((0..10).all(|_| world.look(5).is_none()));
    }

    #[test]
    fn away_is_another_label_or_another_port_and_never_where_it_is() {
        let path = |port_num, flow_label| Path {
            device: "pair".into(),
            port_num,
            sgid: Gid::ZERO,
            dgid: Gid::ZERO,
            flow_label,
            dscp: 0,
        };
        for dice in 0..100 {
            let present = path_away(Remedy::SourcePort, &path(1, 0), &[path(2, 0)], dice);
            let next = path_away(Remedy::SourcePort, &present, &[path(2, 0)], dice);
            assert!(present.port_num == 1 && present.flow_label > 0 && next.flow_label != present.flow_label);
            assert_eq!(path_away(Remedy::Port, &present, &[path(1, 5), path(2, 7)], dice), path(2, 7));
            assert_eq!(path_away(Remedy::Port, &present, &[path(1, 5)], dice).port_num, 1);
        }
    }
}
