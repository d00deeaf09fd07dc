//! What moves connections without an order: a port that goes down, and one that has returned. Connections leave a port that is down by a rebuild, since nothing
//! on it can drain, and come back by a move once the port has been up for [`super::Config::return_after`]. Load is not looked at here: that is
//! [`crate::balance`], which needs to see all connections of a port.

use super::link::Told;
use super::service::Shared;
use super::task::Task;
use crate::path::Path;
use crate::session::{Change, Input, Strategy};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Where a connection should be while every port is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Home {
    /// The path that it left because its port went down.
    left: Option<Path>,
}

impl Home {
    /// The port of this path went down.
    fn leave(&mut self, path: &Path) {
        // Of two ports that fail one after the other the first is home.
        self.left.get_or_insert_with(|| path.clone());
    }

    /// Somebody decided where it should be.
    pub fn forget(&mut self) {
        self.left = None;
    }

    /// The path to return to, if it is on this port.
    fn on(&self, port_num: u8) -> Option<&Path> {
        self.left.as_ref().filter(|path| path.port_num == port_num)
    }
}

impl Shared {
    /// The device tells that a port is up or down.
    pub fn port_changed(self: &Arc<Self>, port_num: u8, up: bool) {
        let change = self.count_port_change(port_num);
        if !up {
            return self.tell_all(|| Told::PortDown(port_num));
        }
        let wait = self.config.return_after;
        if wait == std::time::Duration::MAX {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // One that went down meanwhile begins anew when it returns.
            if shared.port_changes(port_num) == change && shared.hub.is_active(port_num) {
                shared.tell_all(|| Told::PortReturned(port_num));
            }
        });
    }
}

impl Task {
    pub(super) fn hear_port_down(&mut self, port_num: u8) {
        let Some(path) = self.path.as_ref().filter(|path| path.port_num == port_num) else { return };
        // Without another port it waits for this one: the QP's own retries may outlast it.
        if !self.shared.has_other_port(port_num) {
            return;
        }
        self.home.leave(path);
        self.inputs.push_back(Input::Rebuild { reason: format!("port {port_num} of {} went down", path.device) });
    }

    pub(super) fn hear_port_returned(&mut self, port_num: u8) {
        let Some(path) = self.home.on(port_num).cloned() else { return };
        self.home.forget();
        if self.path.as_ref().is_some_and(|present| present.port_num == port_num) {
            return;
        }
        let path = Path { dgid: self.path.as_ref().map_or(path.dgid, |present| present.dgid), ..path };
        let token = self.session.highest_token();
        let change = Change {
            path,
            peer_path: None,
            strategy: Strategy::MakeBeforeBreak,
            token,
            reason: format!("port {port_num} is up again"),
        };
        // Nobody waits for this answer; its place keeps it from being given to an order with the same token.
        let (answer, _) = oneshot::channel();
        self.answers.push((token, answer));
        self.inputs.push_back(Input::Move(change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::Gid;

    fn path(port_num: u8) -> Path {
        Path { device: "pair".into(), port_num, sgid: Gid::ZERO, dgid: Gid::ZERO, flow_label: 0, dscp: 0 }
    }

    #[test]
    fn home_is_the_first_port_that_was_left_until_somebody_decides() {
        let mut home = Home::default();
        assert_eq!(home.on(1), None);
        home.leave(&path(1));
        home.leave(&path(2));
        assert_eq!((home.on(1), home.on(2)), (Some(&path(1)), None));
        home.forget();
        assert_eq!(home.on(1), None);
    }
}
