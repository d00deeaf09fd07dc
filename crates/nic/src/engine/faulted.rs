//! What the engine does when a fault of the device is due: it happens to ports, GIDs and QPs as if it were real.

use scalefabric_transport::Time;
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{EventSubject, Gid, QpState, WcStatus};

use super::Nic;
use crate::faults::{Act, DeviceFaults, FaultSetup};
use crate::memory::Access;
use crate::port::Port;
use crate::tables::PortChange;

impl Nic {
    /// From now on these faults happen. Times count from `now`.
    pub(crate) fn install_faults(&mut self, setup: FaultSetup, now: Time) {
        self.fabric.faults = Some(Box::new(DeviceFaults::new(setup, now)));
    }

    /// Does what is due by time.
    pub(super) fn run_faults(&mut self, now: Time, memory: &Access<'_>, ports: &mut [Box<dyn Port>]) {
        let acts = self.fabric.faults.as_mut().map_or_else(Vec::new, |faults| faults.due(now));
        for act in acts {
            match act {
                // A port that the device does not have cannot fail: nothing to tell.
                Act::PortDown(port) => drop(self.change_port(port, &PortChange::Down)),
                Act::PortUp(port) => drop(self.change_port(port, &PortChange::Up)),
                Act::GidGoes { rule, port, index } => {
                    let table = self.fabric.tables.port(port);
                    let gid = table.and_then(|p| p.gid(u32::from(index))).unwrap_or(Gid::ZERO);
                    if self.change_port(port, &PortChange::RemoveGid { gid }).is_ok()
                        && let Some(faults) = &mut self.fabric.faults
                    {
                        faults.took_gid(rule, gid);
                    }
                }
                Act::GidReturns { port, index, gid } => {
                    if self.fabric.tables.restore_gid(port, index, gid) {
                        self.fabric.port_event(EventType::GidChange, port);
                    }
                }
                Act::DeviceFatal => {
                    for qp in 0..self.qps.high() {
                        self.with_qp(qp as u16, now, memory, Some(&*ports), |entry, host| {
                            if entry.transport.state() != QpState::Reset {
                                entry.transport.fail(host, WcStatus::FatalErr);
                            }
                        });
                    }
                    self.fabric.listeners.tell_all(EventType::DeviceFatal, EventSubject::Device);
                }
                Act::QpError(qp) => {
                    self.with_qp(qp, now, memory, Some(&*ports), |entry, host| entry.transport.break_down(host));
                }
            }
        }
    }

    /// Ends the QPs that a packet has doomed.
    pub(super) fn fail_faulted(&mut self, now: Time, memory: &Access<'_>, ports: &mut [Box<dyn Port>]) {
        while let Some(qp) = self.fabric.faults.as_mut().and_then(|faults| faults.take_failing()) {
            self.with_qp(qp, now, memory, Some(&*ports), |entry, host| entry.transport.break_down(host));
        }
    }
}
