//! The node's ports and what they count. Who starts an agent hands in where to look; this file knows the names of counters and how two readings
//! become a load. It opens no device.

use crate::directory::PortRecord;
use crate::proto::control as proto;
use scalefabric_verbs::{Context, DeviceAttr, PKey, PortState};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where ports and their counters are looked up. Called from one thread, ten times a second: it must be cheap.
pub trait PortSource: Send {
    /// All ports, in an order that stays until the next call.
    fn ports(&mut self) -> Vec<PortRecord>;

    /// Counters of the ports of the last call, in the same order.
    fn counters(&mut self) -> Vec<PortCounters>;

    /// Network interfaces of the ports of the last call, in the same order, empty where it is not known: LLDP speaks of interfaces. Default: none is.
    fn interfaces(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Puts these P_Keys into the tables of all ports, the first one at index 0, and takes all others out; what stands there already keeps its place, as by [`place_pkeys`]. The
    /// reason if it cannot be done. Default: the ports' tables are somebody else's.
    fn set_pkeys(&mut self, pkeys: &[PKey]) -> Result<(), String> {
        let _ = pkeys;
        Ok(())
    }
}

/// The table of a port with these P_Keys in it. QPs name a P_Key by its place, so what is wanted and stands there keeps its place: were it moved, the QPs of one tenant would be in the
/// partition of another, or no longer in that of their peers. What is not wanted leaves an empty place, which is noted in `left` and given away last, since QPs of before
/// may still name it. The first P_Key has the first place.
pub fn place_pkeys(table: &[PKey], wanted: &[PKey], left: &mut BTreeSet<usize>) -> Vec<PKey> {
    let empty = PKey(0);
    let mut placed = vec![empty; table.len().max(wanted.len())];
    let mut missing = Vec::new();
    for (index, pkey) in wanted.iter().enumerate() {
        let place = if index == 0 { Some(0) } else { (1..table.len()).find(|&place| table[place] == *pkey) };
        match place {
            Some(place) => placed[place] = *pkey,
            None => missing.push(*pkey),
        }
    }
    left.extend((0..table.len()).filter(|&place| table[place] != empty && placed[place] == empty));
    for pkey in missing {
        let free = (0..placed.len()).filter(|&place| placed[place] == empty);
        let Some(place) = free.min_by_key(|place| (left.contains(place), *place)) else { break };
        placed[place] = pkey;
        left.remove(&place);
    }
    placed
}

/// The ports as the parts of an agent share them.
#[derive(Clone)]
pub(super) struct SharedSource(Arc<Mutex<Box<dyn PortSource>>>);

impl SharedSource {
    pub fn new(source: Box<dyn PortSource>) -> Self {
        Self(Arc::new(Mutex::new(source)))
    }

    /// To look. Held for moments.
    pub fn lock(&self) -> MutexGuard<'_, Box<dyn PortSource>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a port has counted. A counter may begin anew at 0 (a device whose last process has gone).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent again.
    pub retransmitted: u64,
    /// Packets that came marked as congested.
    pub marked: u64,
}

impl PortCounters {
    /// From the counters that a device has, by the names of our NIC and of Linux's drivers.
    pub fn from_names<'a>(counters: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let mut sum = Self::default();
        for (name, value) in counters {
            match name {
                "sent_bytes" => sum.tx_bytes = value,
                "rcvd_bytes" => sum.rx_bytes = value,
                // Of `counters/`, in words of four bytes.
                "port_xmit_data" => sum.tx_bytes = value.saturating_mul(4),
                "port_rcv_data" => sum.rx_bytes = value.saturating_mul(4),
                "retransmitted_pkts" | "roce_adp_retrans" => sum.retransmitted = value,
                "np_ecn_marked_roce_packets" => sum.marked = value,
                _ => {}
            }
        }
        sum
    }

    fn since(self, before: Self) -> Self {
        // A counter that went back has begun anew: what it shows is what came since.
        let since = |now: u64, before: u64| if now >= before { now - before } else { now };
        Self {
            tx_bytes: since(self.tx_bytes, before.tx_bytes),
            rx_bytes: since(self.rx_bytes, before.rx_bytes),
            retransmitted: since(self.retransmitted, before.retransmitted),
            marked: since(self.marked, before.marked),
        }
    }
}

/// The difference between two readings, as control wants it. `None` if they do not fit together.
pub fn load(before: &[PortCounters], now: &[PortCounters], passed: Duration) -> Option<proto::Load> {
    if before.len() != now.len() || passed < Duration::from_millis(1) {
        return None;
    }
    let since: Vec<PortCounters> = now.iter().zip(before).map(|(now, before)| now.since(*before)).collect();
    let narrow = |of: fn(&PortCounters) -> u64| {
        let counts: Vec<u32> = since.iter().map(|port| u32::try_from(of(port)).unwrap_or(u32::MAX)).collect();
        if counts.iter().all(|count| *count == 0) { Vec::new() } else { counts }
    };
    Some(proto::Load {
        interval_us: u32::try_from(passed.as_micros()).unwrap_or(u32::MAX),
        tx_bytes: since.iter().map(|port| port.tx_bytes).collect(),
        rx_bytes: since.iter().map(|port| port.rx_bytes).collect(),
        retransmitted: narrow(|port| port.retransmitted),
        marked: narrow(|port| port.marked),
        connections: Vec::new(),
    })
}

/// Ports of devices that are open: for real hardware, and for tests.
pub struct OpenDevices {
    devices: Vec<(String, Arc<dyn Context>)>,
    ports: Vec<(usize, u8)>,
}

impl OpenDevices {
    /// Of these devices, by name.
    pub fn new(devices: Vec<(String, Arc<dyn Context>)>) -> Self {
        Self { devices, ports: Vec::new() }
    }
}

impl PortSource for OpenDevices {
    fn ports(&mut self) -> Vec<PortRecord> {
        self.ports.clear();
        let mut records = Vec::new();
        for (index, (name, context)) in self.devices.iter().enumerate() {
            let Ok(DeviceAttr { phys_port_cnt, .. }) = context.query_device() else { continue };
            let gids = context.query_gid_table().unwrap_or_default();
            for port_num in 1..=phys_port_cnt {
                let Ok(attributes) = context.query_port(port_num) else { continue };
                self.ports.push((index, port_num));
                let of_port = gids.iter().filter(|entry| entry.port_num == port_num);
                records.push(PortRecord {
                    device: name.clone(),
                    port_num,
                    gids: of_port.map(|entry| entry.gid.0.into()).collect(),
                    rate_mbps: match attributes.active_speed_ex {
                        0 => rate_mbps(attributes.active_width, attributes.active_speed),
                        told => told.into(),
                    },
                    numa_node: None,
                    active: attributes.state == PortState::Active,
                });
            }
        }
        records
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        let read = |(index, port_num): &(usize, u8)| {
            let counters = self.devices[*index].1.hw_counters(*port_num).unwrap_or_default();
            PortCounters::from_names(counters.iter().map(|(name, value)| (name.as_str(), *value)))
        };
        self.ports.iter().map(read).collect()
    }
}

/// Width and speed as `ibv_port_attr` codes them: for drivers that do not tell the interface's speed itself.
fn rate_mbps(active_width: u8, active_speed: u8) -> u64 {
    let lanes = match active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane = match active_speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * lane
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(tx_bytes: u64) -> PortCounters {
        PortCounters { tx_bytes, ..PortCounters::default() }
    }

    #[test]
    fn a_counter_that_began_anew_counts_from_there() {
        let load = load(&[counted(1000), counted(5)], &[counted(40), counted(7)], Duration::from_millis(100));
        assert_eq!(load.map(|load| (load.interval_us, load.tx_bytes)), Some((100_000, vec![40, 2])));
    }

    #[test]
    fn readings_of_other_ports_make_no_load() {
        assert_eq!(load(&[counted(1)], &[counted(1), counted(2)], Duration::from_secs(1)), None);
        assert_eq!(load(&[counted(1)], &[counted(2)], Duration::ZERO), None);
    }

    #[test]
    fn a_pkey_keeps_its_place_when_others_come_and_go_and_a_place_that_was_left_is_given_away_last() {
        let [red, green, blue] = [0x8011, 0x8005, 0x8012].map(PKey);
        let (mut left, none) = (BTreeSet::new(), PKey(0));
        let begun = [PKey::DEFAULT, none, none, none];
        let table = place_pkeys(&begun, &[PKey::DEFAULT, red, blue], &mut left);
        assert_eq!(table, [PKey::DEFAULT, red, blue, none]);
        // A lower P_Key comes: nobody moves.
        let more = place_pkeys(&table, &[PKey::DEFAULT, green, red, blue], &mut left);
        assert_eq!(more, [PKey::DEFAULT, red, blue, green]);
        // One goes: its QPs are in no partition, not in the next one's.
        let fewer = place_pkeys(&table, &[PKey::DEFAULT, blue], &mut left);
        assert_eq!(fewer, [PKey::DEFAULT, none, blue, none]);
        // Who comes then is not where they are, as long as there is another place.
        let other = place_pkeys(&fewer, &[PKey::DEFAULT, green, blue], &mut left);
        assert_eq!(other, [PKey::DEFAULT, none, blue, green]);
        let full = place_pkeys(&other, &[PKey::DEFAULT, green, red, blue], &mut left);
        assert_eq!(full, [PKey::DEFAULT, red, blue, green]);
        assert!(left.is_empty());
        // What somebody else put in the first place does not stay there.
        assert_eq!(place_pkeys(&[red, none], &[PKey::DEFAULT], &mut left), [PKey::DEFAULT, none]);
    }

    #[test]
    fn words_of_four_bytes_become_bytes() {
        let counters = PortCounters::from_names([("port_xmit_data", 10), ("rcvd_bytes", 3), ("other", 9)]);
        assert_eq!((counters.tx_bytes, counters.rx_bytes), (40, 3));
    }
}
