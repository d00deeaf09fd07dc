//! Tables of each port: GIDs with stable indexes, P_Keys, state and MTU, and how they change while the NIC runs
//! (clauses 10.2.2, 10.9 and, for RoCE, annex A17).
//!
//! A GID that goes away leaves its slot empty, and the slot is not given to another address while a QP or an address
//! handle refers to it: its packets would otherwise leave from an address that nobody chose. Nothing here sends or
//! receives.

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{Errno, Gid, Mtu, PKey, PortState, VerbsError};

use crate::config::PortConfig;

/// A change of a port, from rtnetlink, from another member of the device, or from a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The link came up.
    Up,
    /// The link went down: everything to and from the port is lost, as on a wire.
    Down,
    /// An address appeared. With `index` it goes to that slot (the members of a device agree on it), else to the first
    /// free one. An address that is there already stays where it is.
    AddGid {
        /// The address.
        gid: Gid,
        /// Its slot, if it was chosen already.
        index: Option<u8>,
    },
    /// An address went away.
    RemoveGid {
        /// The address.
        gid: Gid,
    },
    /// A P_Key changed; 0 is an invalid one that matches nothing.
    SetPKey {
        /// Its index.
        index: u16,
        /// The new key.
        pkey: PKey,
    },
    /// The largest path MTU that fits the interface changed.
    SetMtu(Mtu),
    /// The speed of the interface changed, Mb/s.
    SetSpeed(u32),
}

/// One slot of a GID table.
#[derive(Clone, Copy, Debug, Default)]
struct GidSlot {
    /// Zero: empty.
    gid: Gid,
    /// QPs and address handles that name this slot.
    users: u32,
}

/// The tables of one port.
#[derive(Debug)]
pub struct PortTable {
    gids: Vec<GidSlot>,
    pkeys: Vec<PKey>,
    state: PortState,
    mtu: Mtu,
    speed_mbps: u32,
    interface: String,
    ifindex: u32,
}

impl PortTable {
    /// The GID at an index; zero for an empty slot, `None` beyond the table.
    pub fn gid(&self, index: u32) -> Option<Gid> {
        self.gids.get(index as usize).map(|slot| slot.gid)
    }

    /// Index of a GID.
    pub fn find_gid(&self, gid: Gid) -> Option<u8> {
        if gid.is_zero() {
            return None;
        }
        self.gids.iter().position(|slot| slot.gid == gid).map(|i| i as u8)
    }

    /// All GIDs with their indexes.
    pub fn gids(&self) -> impl Iterator<Item = (u8, Gid)> + '_ {
        self.gids.iter().enumerate().filter(|(_, s)| !s.gid.is_zero()).map(|(i, s)| (i as u8, s.gid))
    }

    /// Slots of the GID table.
    pub fn gid_table_len(&self) -> u32 {
        self.gids.len() as u32
    }

    /// The P_Key at an index.
    pub fn pkey(&self, index: u16) -> Option<PKey> {
        self.pkeys.get(usize::from(index)).copied()
    }

    /// Slots of the P_Key table.
    pub fn pkey_table_len(&self) -> u16 {
        self.pkeys.len() as u16
    }

    /// State.
    pub fn state(&self) -> PortState {
        self.state
    }

    /// True if packets pass.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.state == PortState::Active
    }

    /// Largest path MTU.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Mb/s, 0 unknown.
    pub fn speed_mbps(&self) -> u32 {
        self.speed_mbps
    }

    /// Name and index of its interface.
    pub fn interface(&self) -> (&str, u32) {
        (&self.interface, self.ifindex)
    }
}

/// All ports of a device.
#[derive(Debug)]
pub struct Tables {
    ports: Vec<PortTable>,
    /// Grows with every change, so that what was computed from the tables (addresses of a flow) can be told stale.
    generation: u32,
}

impl Tables {
    /// Tables as configured.
    pub fn new(ports: &[PortConfig]) -> Self {
        let ports = ports.iter().map(|p| {
            let len = (p.gid_table_len as usize).clamp(p.gids.len().max(1), 256);
            let mut gids = vec![GidSlot::default(); len];
            for (slot, &gid) in gids.iter_mut().zip(&p.gids) {
                slot.gid = gid;
            }
            PortTable {
                gids,
                pkeys: p.pkeys.clone(),
                state: p.state,
                mtu: p.active_mtu,
                speed_mbps: p.speed_mbps,
                interface: p.interface.clone(),
                ifindex: p.ifindex,
            }
        });
        Self { ports: ports.collect(), generation: 1 }
    }

    /// Number of ports.
    pub fn len(&self) -> u8 {
        self.ports.len() as u8
    }

    /// True if there is no port, which no device has.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// A port, from 1.
    #[inline]
    pub fn port(&self, port_num: u8) -> Option<&PortTable> {
        self.ports.get(usize::from(port_num).wrapping_sub(1))
    }

    /// A port, from 1, or the error that a verb gives.
    pub fn port_or_err(&self, port_num: u8) -> Result<&PortTable, VerbsError> {
        self.port(port_num).ok_or_else(|| {
            VerbsError::invalid(format!(
                "port {port_num} does not exist: this device has ports 1 to {}",
                self.ports.len()
            ))
        })
    }

    /// Changes with every change of a table.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Makes a change; gives the event to raise, `None` if nothing changed.
    pub fn change(&mut self, port_num: u8, change: &PortChange) -> Result<Option<EventType>, VerbsError> {
        self.port_or_err(port_num)?;
        let port = &mut self.ports[usize::from(port_num) - 1];
        let event = match *change {
            PortChange::Up if port.state != PortState::Active => {
                port.state = PortState::Active;
                Some(EventType::PortActive)
            }
            PortChange::Down if port.state != PortState::Down => {
                port.state = PortState::Down;
                Some(EventType::PortErr)
            }
            PortChange::Up | PortChange::Down => None,
            PortChange::AddGid { gid, index } => port.add_gid(gid, index)?.then_some(EventType::GidChange),
            PortChange::RemoveGid { gid } => match port.find_gid(gid) {
                Some(index) => {
                    port.gids[usize::from(index)].gid = Gid::ZERO;
                    Some(EventType::GidChange)
                }
                None => None,
            },
            PortChange::SetPKey { index, pkey } => {
                let len = port.pkeys.len();
                let slot = port.pkeys.get_mut(usize::from(index)).ok_or_else(|| {
                    VerbsError::invalid(format!(
                        "P_Key index {index} is beyond the table of port {port_num} ({len} entries)"
                    ))
                })?;
                (*slot != pkey).then(|| {
                    *slot = pkey;
                    EventType::PkeyChange
                })
            }
            // No event in the standard says that an MTU changed; ports report a port's attributes as changed (client
            // reregister is IB only), so nothing is raised.
            PortChange::SetMtu(mtu) => {
                port.mtu = mtu;
                None
            }
            PortChange::SetSpeed(mbps) => {
                port.speed_mbps = mbps;
                None
            }
        };
        self.generation = self.generation.wrapping_add(1);
        Ok(event)
    }

    /// Puts an address back into the slot that it had, which its QPs still name. False if the slot has another one.
    pub fn restore_gid(&mut self, port_num: u8, index: u8, gid: Gid) -> bool {
        let Some(slot) = self.slot_mut(port_num, index).filter(|slot| slot.gid.is_zero() && !gid.is_zero()) else {
            return false;
        };
        slot.gid = gid;
        self.generation = self.generation.wrapping_add(1);
        true
    }

    /// Notes that a QP or address handle names a GID slot.
    pub fn hold_gid(&mut self, port_num: u8, index: u8) {
        if let Some(slot) = self.slot_mut(port_num, index) {
            slot.users += 1;
        }
    }

    /// Takes one [`Tables::hold_gid`] back.
    pub fn release_gid(&mut self, port_num: u8, index: u8) {
        if let Some(slot) = self.slot_mut(port_num, index) {
            slot.users = slot.users.saturating_sub(1);
        }
    }

    fn slot_mut(&mut self, port_num: u8, index: u8) -> Option<&mut GidSlot> {
        self.ports.get_mut(usize::from(port_num).wrapping_sub(1))?.gids.get_mut(usize::from(index))
    }
}

impl PortTable {
    /// True if the table changed.
    fn add_gid(&mut self, gid: Gid, index: Option<u8>) -> Result<bool, VerbsError> {
        if gid.is_zero() {
            return Err(VerbsError::invalid("an all-zero GID names no address"));
        }
        if self.find_gid(gid).is_some() {
            return Ok(false);
        }
        let free = |slot: &GidSlot| slot.gid.is_zero() && slot.users == 0;
        let index = match index {
            Some(index) => {
                let slot = self.gids.get(usize::from(index)).ok_or_else(|| {
                    VerbsError::invalid(format!("GID index {index} is beyond the table ({} entries)", self.gids.len()))
                })?;
                if !free(slot) {
                    return Err(VerbsError::misuse(
                        Errno::EBUSY,
                        format!(
                            "GID index {index} holds {} or is still referred to by {} objects",
                            slot.gid, slot.users
                        ),
                    ));
                }
                usize::from(index)
            }
            None => self.gids.iter().position(free).ok_or_else(|| {
                VerbsError::environment(
                    Errno::ENOSPC,
                    format!(
                        "the GID table is full ({} entries): {gid} gets no index; remove addresses",
                        self.gids.len()
                    ),
                )
            })?,
        };
        self.gids[index].gid = gid;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(n: u8) -> Gid {
        Gid::from_ip(std::net::Ipv4Addr::new(10, 0, 0, n).into())
    }

    fn tables() -> Tables {
        Tables::new(&[PortConfig { gid_table_len: 3, ..PortConfig::new("wire", vec![gid(1), gid(2)]) }])
    }

    #[test]
    fn indexes_stay_when_another_gid_goes() {
        let mut t = tables();
        assert_eq!(t.change(1, &PortChange::RemoveGid { gid: gid(1) }), Ok(Some(EventType::GidChange)));
        assert_eq!(t.port(1).unwrap().find_gid(gid(2)), Some(1));
        assert_eq!(t.port(1).unwrap().gid(0), Some(Gid::ZERO));
        assert_eq!(t.port(1).unwrap().gid(3), None);
    }

    #[test]
    fn a_slot_in_use_is_not_given_away() {
        let mut t = tables();
        t.hold_gid(1, 0);
        t.change(1, &PortChange::RemoveGid { gid: gid(1) }).unwrap();
        t.change(1, &PortChange::AddGid { gid: gid(3), index: None }).unwrap();
        assert_eq!(t.port(1).unwrap().find_gid(gid(3)), Some(2), "slot 0 is still referred to");
        let full = t.change(1, &PortChange::AddGid { gid: gid(4), index: None }).unwrap_err();
        assert_eq!(full.errno, Errno::ENOSPC);
        let busy = t.change(1, &PortChange::AddGid { gid: gid(4), index: Some(0) }).unwrap_err();
        assert_eq!(busy.errno, Errno::EBUSY);
        t.release_gid(1, 0);
        t.change(1, &PortChange::AddGid { gid: gid(4), index: None }).unwrap();
        assert_eq!(t.port(1).unwrap().find_gid(gid(4)), Some(0));
    }

    #[test]
    fn a_gid_that_is_there_raises_no_event() {
        let mut t = tables();
        assert_eq!(t.change(1, &PortChange::AddGid { gid: gid(2), index: None }), Ok(None));
        assert_eq!(t.change(1, &PortChange::RemoveGid { gid: gid(9) }), Ok(None));
    }

    #[test]
    fn port_and_pkey_changes_raise_their_events() {
        let mut t = tables();
        assert_eq!(t.change(1, &PortChange::Down), Ok(Some(EventType::PortErr)));
        assert_eq!(t.change(1, &PortChange::Down), Ok(None));
        assert_eq!(t.change(1, &PortChange::Up), Ok(Some(EventType::PortActive)));
        let set = PortChange::SetPKey { index: 0, pkey: PKey(0x8001) };
        assert_eq!(t.change(1, &set), Ok(Some(EventType::PkeyChange)));
        assert_eq!(t.change(1, &set), Ok(None));
        assert!(t.change(1, &PortChange::SetPKey { index: 1, pkey: PKey(0x8001) }).is_err());
        assert!(t.change(2, &PortChange::Up).is_err());
    }
}
