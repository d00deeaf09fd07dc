//! Replicas and the store: what a replica wants of it, what it hears of it, and what replicas tell one another through it.

use super::super::replica::Replica;
use super::super::store::{Call, Reply};
use super::super::{CALL_NS, MS, policy};
use super::{Event, World};

impl World {
    pub(super) fn is_replica(&self, replica: usize, incarnation: u64) -> bool {
        self.replicas[replica].alive && self.replicas[replica].incarnation == incarnation
    }

    pub(super) fn begin_replica(&mut self, replica: usize) {
        let incarnation = self.replicas[replica].incarnation;
        let first = self.dice.below(100 * MS);
        self.at(first, Event::ReplicaTick(replica, incarnation));
        self.at(first, Event::Watch(replica, incarnation));
    }

    /// A replica ends, and a new one takes its place later.
    pub fn kill_replica(&mut self, replica: usize) {
        self.note(|| format!("replica {replica} ends"));
        self.replicas[replica].alive = false;
        let streams: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| stream.replica == replica).map(|(id, _)| *id).collect();
        streams.into_iter().for_each(|stream| self.break_stream(stream));
    }

    pub fn revive_replica(&mut self, replica: usize) {
        if !self.replicas[replica].alive {
            self.note(|| format!("replica {replica} begins anew"));
            let incarnation = self.replicas[replica].incarnation + 1;
            self.replicas[replica] = Replica::start(replica, incarnation, &policy());
            self.begin_replica(replica);
        }
    }

    /// What a replica wants is done.
    pub(super) fn settle_replica(&mut self, replica: usize) {
        let incarnation = self.replicas[replica].incarnation;
        for call in std::mem::take(&mut self.replicas[replica].calls) {
            let delay = self.delay();
            self.at(delay, Event::Call { replica, incarnation, call });
        }
        for (stream, message) in std::mem::take(&mut self.replicas[replica].tells) {
            self.send_down(stream, message);
        }
        for stream in std::mem::take(&mut self.replicas[replica].ended) {
            self.break_stream(stream);
        }
        for report in std::mem::take(&mut self.replicas[replica].published) {
            for other in (0..self.replicas.len()).filter(|other| *other != replica) {
                if self.store_cut[replica] <= self.now
                    && self.store_cut[other] <= self.now
                    && self.store.has_leader(self.now)
                {
                    // Loads are published twice a second through the store.
                    let delay = 250 * MS + self.delay();
                    let mut report = Box::new(report.clone());
                    report.age_ms += delay / MS;
                    self.at(delay, Event::Neighbour { replica: other, report });
                }
            }
        }
    }

    pub(super) fn watch(&mut self, replica: usize, incarnation: u64) {
        if !self.is_replica(replica, incarnation) {
            return;
        }
        let Some(seen) = self.replicas[replica].seen else {
            return self.at(20 * MS, Event::Watch(replica, incarnation));
        };
        let reaches = self.store_cut[replica] <= self.now && self.store.has_leader(self.now);
        let news = if reaches { Some(self.store.since(seen)) } else { None };
        match news {
            Some(Some((events, _))) if events.is_empty() => self.at(10 * MS, Event::Watch(replica, incarnation)),
            Some(news) => {
                let delay = self.delay().max(self.replicas[replica].paused_until.saturating_sub(self.now));
                self.at(delay, Event::News { replica, incarnation, news });
            }
            None => self.at(100 * MS, Event::Watch(replica, incarnation)),
        }
    }

    pub(super) fn carry_out(&mut self, replica: usize, incarnation: u64, call: Call) {
        // A replica that has ended may still have said something.
        let cut = self.store_cut[replica] > self.now;
        let reply = if cut || !self.store.has_leader(self.now) {
            Reply::Unknown
        } else {
            let before = self.store.leader();
            let reply = self.store.carry_out(&call, self.now);
            if let (Call::Stand { .. }, Reply::Done(revision, _)) = (&call, &reply) {
                self.note(|| format!("replica {replica} leads with token {}", revision.0));
                self.checker.granted(revision.0, before);
            }
            if let (Call::Order { key, value }, Reply::Done(..)) = (&call, &reply) {
                self.checker.ordered(key, value);
            }
            let lost = self.dice.permille(self.trouble / 2);
            if lost { Reply::Unknown } else { reply }
        };
        let delay = if matches!(reply, Reply::Unknown) { CALL_NS } else { self.delay().min(CALL_NS / 2) };
        self.at(delay, Event::Reply { replica, incarnation, call, reply });
    }
}
