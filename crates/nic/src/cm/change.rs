//! When the ground moves: an address of an identifier goes away, or its whole device.
//!
//! A port that only loses its link changes nothing here, as with the kernel: connections wait for it as their QPs do.

use std::sync::Arc;

use scalefabric_transport::Time;
use scalefabric_verbs::{CmEventType, Gid};

use super::agent::State;
use super::id::{Id, Stage};
use crate::engine::drive::Core;

impl State {
    /// An address has gone: ADDR_CHANGE for every identifier that uses it.
    pub(super) fn address_gone(&mut self, core: &Arc<Core>, port_num: u8, gid: Gid) {
        let uses = |id: &Id| {
            let place = id.place.as_ref();
            place.is_some_and(|p| p.port_num == port_num && p.sgid == gid && Arc::ptr_eq(p.device.core(), core))
        };
        let hit: Vec<u32> = self.ids.values().filter(|id| uses(id)).map(|id| id.number).collect();
        hit.into_iter().for_each(|number| self.tell_plain(number, CmEventType::AddrChange, 0));
    }

    /// A device has gone: DEVICE_REMOVAL for every identifier on it, which from then on can only be destroyed. A listener on any
    /// address goes on with the devices that are left.
    pub(super) fn device_gone(&mut self, core: &Arc<Core>, now: Time) {
        let mut hit = Vec::new();
        for id in self.ids.values_mut() {
            id.claims.retain(|(device, index)| {
                let gone = Arc::ptr_eq(device.core(), core);
                if gone {
                    device.segment().release_port(*index, now);
                }
                !gone
            });
            if id.place.as_ref().is_some_and(|place| Arc::ptr_eq(place.device.core(), core)) {
                hit.push((id.number, id.link.take(), id.question.take()));
            }
        }
        for (number, link, question) in hit {
            if let Some(key) = link {
                if let Some(link) = self.links.get_mut(&key) {
                    link.id = None;
                    link.machine.abandon(now);
                }
                self.pump(key);
            }
            if let Some(key) = question {
                self.questions.remove(key);
            }
            self.tell_plain(number, CmEventType::DeviceRemoval, 0);
            if let Some(id) = self.ids.get_mut(&number) {
                id.stage = Stage::Removed;
                id.place = None;
                id.asked = None;
            }
        }
    }
}
