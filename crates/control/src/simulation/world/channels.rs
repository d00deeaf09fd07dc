//! Channels between the two ends of a connection, and what an end wants of the world.

use super::super::PER_NODE;
use super::super::PROCESSES;
use super::super::end::Effect;
use super::{Channel, EndKey, Event, World};
use scalefabric_fabric::Directory;
use scalefabric_fabric::session::{Body, Input, Purpose, Role};

impl World {
    pub(super) fn give(&mut self, key: &EndKey, input: Input) {
        let (now, clock) = (self.now, self.processes[key.0].clock(self.now));
        if let Some(end) = self.ends.get_mut(key) {
            end.handle(input, clock, now);
        }
        self.carry(key);
    }

    /// What an end wants is done.
    pub(super) fn carry(&mut self, key: &EndKey) {
        let Some(end) = self.ends.get_mut(key) else { return };
        let effects = std::mem::take(&mut end.out);
        for lane in end.lanes.values() {
            self.qps.insert(lane.qp, key.clone());
        }
        for effect in effects {
            self.carry_one(key, effect);
        }
    }

    pub(super) fn carry_one(&mut self, key: &EndKey, effect: Effect) {
        match effect {
            Effect::Dial => {
                let incarnation = self.processes[key.0].incarnation;
                let delay = self.delay();
                self.at(delay, Event::Dialled(key.clone(), incarnation));
            }
            Effect::Say(body) => {
                let Some(channel) = self.ends.get(key).and_then(|end| end.channel) else { return };
                self.say(channel, key, *body);
            }
            Effect::Data { qp, psn, number, key: with } => self.send_data(key, qp, psn, number, with),
            Effect::Publish(record) => {
                self.processes[key.0].directory.publish(*record);
            }
            Effect::Answered(order, result) => {
                self.note(|| format!("{key:?} answers {result:?}"));
                self.checker.answered(&result, self.now);
                self.processes[key.0].directory.answer(order, result);
            }
            Effect::Received(number) => self.checker.received(key, number),
            Effect::Used => {
                let Some(end) = self.ends.get(key) else { return };
                self.checker.used(end);
            }
            Effect::Revoked => {
                if self.processes[key.0].keys.waits.remove(&key.1) {
                    self.withdraw(key.0);
                }
            }
            Effect::Closed(error) => {
                self.note(|| format!("{key:?} is closed: {error}"));
                let known = self.ends.get(key).and_then(|end| end.channel);
                if let Some(channel) = known {
                    self.break_channel(channel);
                }
                self.checker.closed(key, &error);
            }
        }
    }

    pub(super) fn dialled(&mut self, key: EndKey, incarnation: u64) {
        if !self.is_process(key.0, incarnation) || !self.ends.contains_key(&key) {
            return;
        }
        let node = self.processes[key.0].node;
        let service = self.ends[&key].service.clone();
        // It dials where the directory said when it was made; a process that was started anew is elsewhere, but its successor may be found there.
        let peer = (0..PROCESSES).find(|slot| self.processes[*slot].services.contains(&service));
        let reaches = |peer: &usize| {
            let far = self.processes[*peer].node;
            let cut = self.channel_cut[node].max(self.channel_cut[far]) > self.now && node != far;
            self.processes[*peer].alive && !cut && self.processes[*peer].paused_until <= self.now
        };
        let Some(peer) = peer.filter(reaches).filter(|_| !self.dice.permille(self.trouble)) else {
            return self.give(&key, Input::ChannelDown { reason: "nobody answers".into() });
        };
        self.serial += 1;
        let channel = self.serial;
        let ends = [key.clone(), (peer, key.1.clone())];
        self.channels.insert(channel, Channel { ends, last: [self.now; 2] });
        if let Some(end) = self.ends.get_mut(&key) {
            end.channel = Some(channel);
        }
        self.give(&key, Input::ChannelUp);
    }

    pub(super) fn say(&mut self, channel: u64, from: &EndKey, body: Body) {
        let delay = self.delay();
        let Some(one) = self.channels.get_mut(&channel) else { return };
        let way = usize::from(one.ends[1] == *from);
        let to = one.ends[1 - way].clone();
        let (near, far) = (from.0 / PER_NODE, to.0 / PER_NODE);
        if near != far && self.channel_cut[near].max(self.channel_cut[far]) > self.now {
            return self.break_channel(channel);
        }
        let time = (self.now + delay).max(one.last[way] + 1);
        one.last[way] = time;
        self.at_time(time, Event::Said { channel, to, body });
        if self.trouble > 0 && self.dice.permille(self.trouble / 10) {
            self.break_channel(channel);
        }
    }

    pub fn break_channel(&mut self, channel: u64) {
        let Some(one) = self.channels.remove(&channel) else { return };
        for end in one.ends {
            let delay = self.delay();
            self.at(delay, Event::ChannelEnd { channel, end });
        }
    }

    /// Channels there are, for whoever breaks them.
    pub fn channels(&self) -> Vec<u64> {
        self.channels.keys().copied().collect()
    }

    /// A word comes to a process.
    pub(super) fn hear_peer(&mut self, channel: u64, to: EndKey, body: Body) {
        if !self.channels.contains_key(&channel) || !self.processes[to.0].alive {
            return;
        }
        let wait = self.processes[to.0].paused_until;
        if wait > self.now {
            return self.at_time(wait, Event::Said { channel, to, body });
        }
        self.note(|| format!("{to:?} hears {body:?}"));
        let is_closed = self.ends.get(&to).is_none_or(|end| end.closed.is_some());
        if is_closed {
            let connects = match &body {
                Body::Begin(begin) if begin.purpose == Purpose::Connect && !self.ends.contains_key(&to) => {
                    Some(begin.clone())
                }
                _ => None,
            };
            match connects {
                Some(begin) if self.processes[to.0].services.contains(&begin.service) => {
                    self.make(to.0, to.1.clone(), &begin.service, Role::Follower);
                    self.checker.met(&to, &begin.tenant, &begin.service);
                }
                _ if matches!(body, Body::Close { .. }) => return,
                _ => {
                    return self.say(
                        channel,
                        &to,
                        Body::Close { reason: "this process does not know the connection".into() },
                    );
                }
            }
        }
        let Some(end) = self.ends.get_mut(&to) else { return };
        let is_new = end.channel != Some(channel);
        if is_new && end.role == Role::Leader {
            return;
        }
        if is_new {
            let before = end.channel.replace(channel);
            if let Some(before) = before {
                self.break_channel(before);
            }
            self.give(&to, Input::ChannelUp);
        }
        self.give(&to, Input::Message(body));
    }
}
