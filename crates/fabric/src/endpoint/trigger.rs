//! What moves connections without an order: a port that goes down, and one that has returned. Connections leave a port that is down by a rebuild, since nothing
//! on it can drain, and come back by a move once the port has been up for [`super::Config::return_after`]. Load is not looked at here: that is
//! [`crate::balance`], which needs to see all connections of a port.

use super::hub::PortAt;
use super::link::{Told, Wanted};
use super::service::Shared;
use super::task::{Asker, Task};
use crate::directory::FencingToken;
use crate::path::Path;
use crate::session::{Change, Input};
use std::sync::Arc;

/// First pause before a way home that was refused is tried again, and the longest; it doubles in between.
const AGAIN_NS: (u64, u64) = (100_000_000, 10_000_000_000);

/// Where a connection should be while every port is up, and its way back. Pure: times come in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Home {
    /// The path that it left because its port went down.
    left: Option<Path>,
    /// From then on it may go back; `None`: the port has not been up for long enough.
    due_ns: Option<u64>,
    under_way: bool,
    refused: u32,
    /// Ports that have been up for long enough since they were last heard to be down: a rebuild may end after its port has returned.
    returned: Vec<(String, u8)>,
}

impl Home {
    /// It leaves this path because the port went down.
    pub fn leave(&mut self, path: &Path, now_ns: u64) {
        // Of two ports that fail one after the other the first is home.
        if self.left.is_none() {
            self.left = Some(path.clone());
            let returned = self.returned.iter().any(|(device, port_num)| is_on(path, device, *port_num));
            self.due_ns = returned.then_some(now_ns);
        }
    }

    /// Somebody decided where it should be.
    pub fn forget(&mut self) {
        *self = Self { returned: std::mem::take(&mut self.returned), ..Self::default() };
    }

    /// It uses this path now.
    pub fn arrive(&mut self, path: &Path) {
        if self.is_on(&path.device, path.port_num) {
            self.forget();
        }
    }

    /// A port is down: there is no way back to it.
    pub fn port_down(&mut self, device: &str, port_num: u8) {
        self.returned.retain(|(of, other)| (of.as_str(), *other) != (device, port_num));
        if self.is_on(device, port_num) {
            self.due_ns = None;
        }
    }

    /// A port has been up again for long enough.
    pub fn port_returned(&mut self, device: &str, port_num: u8, now_ns: u64) {
        self.returned.push((device.to_owned(), port_num));
        if self.is_on(device, port_num) {
            (self.due_ns, self.refused) = (Some(now_ns), 0);
        }
    }

    /// It is elsewhere.
    pub fn is_away(&self) -> bool {
        self.left.is_some()
    }

    fn is_on(&self, device: &str, port_num: u8) -> bool {
        self.left.as_ref().is_some_and(|path| is_on(path, device, port_num))
    }

    /// When there is something to do.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.due_ns.filter(|_| !self.under_way)
    }

    /// The way home, if it is time for it; told once, until it is answered. The peer stays where it is.
    pub fn way(&mut self, present: &Path, token: FencingToken, now_ns: u64) -> Option<Change> {
        if self.under_way || self.due_ns.is_none_or(|due| due > now_ns) {
            return None;
        }
        let path = Path { dgid: present.dgid, ..self.left.clone()? };
        let reason = format!("port {} is up again", path.port_num);
        self.under_way = true;
        Some(Change { path, peer_path: None, strategy: None, token, reason })
    }

    /// The way home came to nothing: another change came first, or the channel is away. It is tried again.
    pub fn refused(&mut self, now_ns: u64) {
        self.under_way = false;
        if self.due_ns.is_some() {
            let pause = AGAIN_NS.0.saturating_mul(1 << self.refused.min(30)).min(AGAIN_NS.1);
            self.refused += 1;
            self.due_ns = Some(now_ns.saturating_add(pause));
        }
    }
}

fn is_on(path: &Path, device: &str, port_num: u8) -> bool {
    (path.device.as_str(), path.port_num) == (device, port_num)
}

impl Shared {
    /// The device tells that a port is up or down.
    pub fn port_changed(self: &Arc<Self>, at: PortAt, up: bool) {
        let change = self.count_port_change(at);
        if !up {
            self.trunks().iter().for_each(|trunk| trunk.hear_port_down(at));
            return self.tell_all(|| Told::PortDown(at));
        }
        // Who had no other port to go to has one now.
        self.tell_all(|| Told::PortUp);
        let wait = self.config.return_after;
        if wait == std::time::Duration::MAX {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // One that went down meanwhile begins anew when it returns.
            if shared.port_changes(at) == change && shared.hubs.is_active(at) {
                shared.tell_all(|| Told::PortReturned(at));
            }
        });
    }
}

impl Task {
    pub(super) fn hear_port_down(&mut self, at: PortAt) {
        let hubs = self.link.hubs.clone();
        self.home.port_down(&hubs.all()[at.domain].device, at.port_num);
        // Without another port it waits for this one: the QP's own retries may outlast it.
        if !hubs.ports().any(|other| other != at && hubs.is_active(other)) {
            return;
        }
        if let Some(path) = self.path.as_ref().filter(|path| hubs.is_on(path, at)) {
            let now = self.now_ns();
            self.home.leave(path, now);
        }
        // Lanes that are being made for it, too: they would be found dead only by their retries.
        for lane in self.lanes.iter().filter(|lane| hubs.is_on(&lane.path, at)) {
            let reason = format!("port {} of {} went down", at.port_num, lane.path.device);
            self.inputs.push_back(Input::Broken { lane: lane.id, reason });
        }
    }

    /// Leaves the port of the path in use if it is down: it went down before there was a lane that could have heard of it, or when there was no other port.
    pub(super) fn leave_dead_port(&mut self) {
        if let Some(at) = self.path.as_ref().and_then(|path| self.link.hubs.port_of(path))
            && !self.link.hubs.is_active(at)
        {
            self.hear_port_down(at);
        }
    }

    /// Goes home if it is time for it and nothing else is under way.
    pub(super) fn go_home(&mut self, now_ns: u64) {
        let (true, Some(path)) = (self.session.is_up(), &self.path) else { return };
        if let Some(change) = self.home.way(path, self.session.highest_token(), now_ns) {
            self.order(Wanted::Move(change), Asker::Home);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::Gid;

    fn path(port_num: u8) -> Path {
        Path { device: "pair".into(), port_num, sgid: Gid::ZERO, dgid: Gid::ZERO, flow_label: 0, dscp: 0 }
    }

    fn way(home: &mut Home, now_ns: u64) -> Option<u8> {
        home.way(&path(2), FencingToken(0), now_ns).map(|change| change.path.port_num)
    }

    #[test]
    fn home_is_the_first_port_that_was_left_until_somebody_decides() {
        let mut home = Home::default();
        home.port_returned("pair", 1, 0);
        assert_eq!(way(&mut home, 0), None);
        home.port_down("pair", 1);
        home.leave(&path(1), 0);
        home.leave(&path(2), 0);
        home.port_returned("pair", 2, 5);
        assert_eq!(way(&mut home, 9), None);
        home.port_returned("pair", 1, 5);
        assert_eq!((way(&mut home, 4), way(&mut home, 5), way(&mut home, 5)), (None, Some(1), None));
        home.forget();
        home.port_returned("pair", 1, 5);
        assert_eq!(way(&mut home, 9), None);
    }

    #[test]
    fn a_way_home_that_is_refused_is_tried_again_with_growing_pauses_until_it_is_reached() {
        let mut home = Home::default();
        home.leave(&path(1), 0);
        home.port_returned("pair", 1, 0);
        let mut now = 0;
        for pause in [AGAIN_NS.0, 2 * AGAIN_NS.0, 4 * AGAIN_NS.0] {
            assert_eq!(way(&mut home, now), Some(1));
            home.refused(now);
            assert_eq!(home.deadline_ns(), Some(now + pause));
            now += pause;
            assert_eq!(way(&mut home, now - 1), None);
        }
        home.arrive(&path(2));
        assert!(home.is_away());
        home.arrive(&path(1));
        assert!(!home.is_away());
        assert_eq!((way(&mut home, now), home.deadline_ns()), (None, None));
    }

    #[test]
    fn a_port_that_goes_down_again_is_no_home_to_go_to_until_it_has_returned() {
        let mut home = Home::default();
        home.leave(&path(1), 0);
        home.port_returned("pair", 1, 0);
        home.port_down("pair", 1);
        assert_eq!(way(&mut home, 9), None);
        home.port_returned("pair", 1, 10);
        assert_eq!(way(&mut home, 10), Some(1));
        // Down while it is under way: the answer ends it, and nothing is tried before the port is back.
        home.port_down("pair", 1);
        home.refused(11);
        assert_eq!((way(&mut home, u64::MAX), home.deadline_ns()), (None, None));
    }

    #[test]
    fn a_port_that_returned_before_its_connection_had_left_it_is_a_home_to_go_to() {
        let mut home = Home::default();
        home.port_returned("pair", 1, 0);
        home.leave(&path(1), 7);
        assert_eq!((way(&mut home, 6), way(&mut home, 7)), (None, Some(1)));
    }
}
