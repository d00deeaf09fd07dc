//! Two ports a side: which are up, what the device tells of them and when it is heard, and which path a lane takes. As `trigger` and `lane` have it, without
//! a device.

use super::world::World;
use crate::directory::FencingToken;
use crate::path::Path;
use crate::session::{Input, Session};
use scalefabric_verbs::Gid;

/// What the device tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Down(u8),
    Up,
    /// Up for long enough, if so many changes are all that there were.
    Returned(u8, u64),
}

/// The ports of both sides.
#[derive(Debug)]
pub struct Ports {
    up: [[bool; 2]; 2],
    changes: [[u64; 2]; 2],
}

impl Default for Ports {
    fn default() -> Self {
        Self { up: [[true; 2]; 2], changes: [[0; 2]; 2] }
    }
}

impl Ports {
    pub fn is_up(&self, s: usize, port_num: u8) -> bool {
        self.up[s][usize::from(port_num) - 1]
    }

    /// Whether the port of this address is up.
    pub fn carries(&self, s: usize, gid: Gid) -> bool {
        (1..=2).any(|port_num| path(s, port_num).sgid == gid && self.is_up(s, port_num))
    }
}

/// A side's port.
pub fn path(s: usize, port_num: u8) -> Path {
    let sgid = Gid::from_ip(std::net::IpAddr::from([10, 0, s as u8, port_num]));
    Path { device: "d".into(), port_num, sgid, dgid: Gid::ZERO, flow_label: 0, dscp: 0 }
}

impl World {
    /// A port goes down or comes up: at one side, or, as on a device that both share, at both at once.
    pub fn change_port(&mut self) {
        let (port_num, up) = (1 + self.dice.below(2) as u8, self.dice.below(2) == 0);
        let sides = match self.dice.below(3) {
            0 => 0..1,
            1 => 1..2,
            _ => 0..2,
        };
        for s in sides {
            self.set_port(s, port_num, up);
        }
    }

    pub fn set_port(&mut self, s: usize, port_num: u8, up: bool) {
        let index = usize::from(port_num) - 1;
        if std::mem::replace(&mut self.ports.up[s][index], up) == up {
            return;
        }
        self.ports.changes[s][index] += 1;
        let heard = &mut self.sides[s].heard;
        if up {
            heard.extend([Heard::Up, Heard::Returned(port_num, self.ports.changes[s][index])]);
        } else {
            heard.push_back(Heard::Down(port_num));
        }
    }

    /// Everything is up, and stays.
    pub fn heal(&mut self) {
        self.calm = true;
        for s in 0..2 {
            self.set_port(s, 1, true);
            self.set_port(s, 2, true);
        }
    }

    /// A side hears the next thing that its device tells.
    pub fn hear_port(&mut self, s: usize) {
        if self.sides[s].session.is_none() {
            return;
        }
        match self.sides[s].heard.pop_front() {
            Some(Heard::Down(port_num)) => self.hear_port_down(s, port_num),
            Some(Heard::Up) => self.leave_dead_port(s),
            Some(Heard::Returned(port_num, changes)) if self.ports.changes[s][usize::from(port_num) - 1] == changes => {
                self.sides[s].home.port_returned("d", port_num, self.now);
            }
            Some(Heard::Returned(..)) | None => {}
        }
    }

    fn hear_port_down(&mut self, s: usize, port_num: u8) {
        let other = self.ports.is_up(s, 3 - port_num);
        let side = &mut self.sides[s];
        side.home.port_down("d", port_num);
        if !other {
            return;
        }
        if let Some(path) = side.path.as_ref().filter(|path| path.port_num == port_num) {
            side.home.leave(path, self.now);
        }
        for (lane, _) in side.lanes.iter().filter(|(_, (path, _))| path.port_num == port_num) {
            side.inputs.push_back(Input::Broken { lane: *lane, reason: "its port went down".into() });
        }
    }

    pub fn leave_dead_port(&mut self, s: usize) {
        if let Some(port_num) = self.sides[s].path.as_ref().map(|path| path.port_num)
            && !self.ports.is_up(s, port_num)
        {
            self.hear_port_down(s, port_num);
        }
    }

    /// The path of a new lane.
    pub fn choose(&self, s: usize, wanted: Option<Path>) -> Option<Path> {
        if wanted.is_some() {
            return wanted.filter(|path| self.ports.is_up(s, path.port_num));
        }
        let present = self.sides[s].path.clone().filter(|path| self.ports.is_up(s, path.port_num));
        present.or_else(|| (1..=2).find(|port_num| self.ports.is_up(s, *port_num)).map(|port_num| path(s, port_num)))
    }

    /// Goes home, if it is time for it; true if something has begun.
    pub fn go_home(&mut self, s: usize) -> bool {
        let now = self.now;
        let side = &mut self.sides[s];
        let (Some(path), true) = (&side.path, side.session.as_ref().is_some_and(Session::is_up)) else { return false };
        let token = side.session.as_ref().map_or(FencingToken(0), Session::highest_token);
        let Some(change) = side.home.way(path, token, now) else { return false };
        side.order(change, None);
        true
    }
}
