//! Messages become packets of a QP here: QPs are opened, messages are put on them, and QPs close when their last packet is gone.

use super::super::packet::{Kind, NONE};
use super::super::qp::Qp;
use super::super::time::Ps;
use super::way::entropy;
use super::{Message, Post, World};

impl World {
    fn open_qp(&mut self, post: &Post) -> u32 {
        let route = self.route_of(post.from, post.to);
        let control = self.profile.controller(&route, 0);
        let place = self.free_qps.pop();
        let generation = place.map_or(0, |place| self.qps[place as usize].generation + 1);
        // The source port of a QP: by its number, or by its lane, so that a lane keeps its way.
        let own = || post.lane.map_or_else(|| self.messages.len() as u64, u64::from);
        let port = post.source_port.map_or_else(own, u64::from);
        let entropy = entropy(post.from, post.to, port);
        let mut qp = Qp::new(generation, post.from, post.to, post.priority, entropy, control);
        if let Some(place) = place {
            qp.take_room_of(&mut self.qps[place as usize]);
        }
        qp.alone = self.alone(post.from, post.to);
        qp.once = post.lane.is_none();
        qp.lane = post.lane;
        match place {
            Some(place) => {
                self.qps[place as usize] = qp;
                place
            }
            None => {
                self.qps.push(qp);
                self.qps.len() as u32 - 1
            }
        }
    }

    /// Messages that are acknowledged need not be kept: for workloads without end. [`World::messages`] then holds those under way, in places that are used again.
    pub fn forget_messages(&mut self) {
        self.forgets = true;
    }

    /// Posts a message.
    pub fn post(&mut self, post: &Post) {
        let message = self.place_for(Message {
            from: post.from,
            to: post.to,
            bytes: post.bytes,
            posted: self.now,
            acked: Ps::NEVER,
            delivered: Ps::NEVER,
            ideal: Ps::ZERO,
            tag: post.tag,
        });
        self.open += 1;
        self.posted_bytes += post.bytes;
        if self.engines.is_some() {
            self.messages[message as usize].ideal = self.alone(post.from, post.to).time(post.bytes);
            return self.post_to_engine(message, post);
        }
        let qp = match post.lane {
            None => self.open_qp(post),
            Some(lane) => match self.lanes.get(&(post.from, post.to, lane)) {
                Some(&qp) => qp,
                None => {
                    let qp = self.open_qp(post);
                    self.lanes.insert((post.from, post.to, lane), qp);
                    qp
                }
            },
        };
        self.messages[message as usize].ideal = self.qps[qp as usize].alone.time(post.bytes);
        self.qps[qp as usize].post(post.bytes, self.model.host.mtu, message);
        self.offer(qp);
        self.watch_cut_off(qp);
        self.transmit(self.hosts[post.from as usize].port);
    }

    fn place_for(&mut self, message: Message) -> u32 {
        match self.free_messages.pop() {
            Some(place) => {
                self.messages[place as usize] = message;
                place
            }
            None => {
                self.messages.push(message);
                self.messages.len() as u32 - 1
            }
        }
    }

    /// Everybody has heard that a message is acknowledged.
    pub(super) fn forget_message(&mut self, message: u32) {
        if self.forgets {
            self.free_messages.push(message);
        }
    }

    /// A packet of a QP is no more.
    pub(in crate::fabric) fn forget(&mut self, packet: u32) {
        let (kind, qp) = {
            let packet = self.arena.get(packet);
            (packet.kind, packet.qp)
        };
        self.arena.remove(packet);
        if qp == NONE {
            self.forget_frame(packet);
        } else if !matches!(kind, Kind::Pause | Kind::Resume) {
            self.qps[qp as usize].packets -= 1;
            self.close_if_done(qp);
        }
    }

    pub(in crate::fabric) fn close_if_done(&mut self, index: u32) {
        let qp = &mut self.qps[index as usize];
        if qp.once && qp.open && qp.packets == 0 && qp.posted.is_empty() && !qp.held {
            qp.open = false;
            qp.ticket = 0;
            self.free_qps.push(index);
        }
    }
}
