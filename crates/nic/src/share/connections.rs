//! What the communication managers of a device's processes share: which rdma_cm ports are taken and who listens on them, and
//! which connections exist, so that a surviving process can end those of one that died.
//!
//! All of it is atomics, as the rest of the segment. A word names the slot that changes the tables; one that belongs to a
//! dead process is taken over, and a half-written record has no owner yet, so nobody reads it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use scalefabric_transport::Time;
use scalefabric_verbs::Gid;

use super::segment::{Segment, SlotState};

/// Ports that all processes of a device can have bound at a time.
pub const CLAIMS: usize = 4096;
/// Connections that all processes of a device can have at a time with the promise that a survivor ends them.
pub const CONNECTIONS: usize = 8192;

/// Services that were closed last and are remembered.
const CLOSED: usize = 64;
/// How long a service that was closed is remembered, ns.
const CLOSED_NS: u64 = 5_000_000_000;

/// Tries for the tables' word before it is taken by force: its holder is stopped.
const PATIENCE: u32 = 20_000;

const LISTENS: u32 = 1 << 8;
const REUSE: u32 = 1 << 9;
const ANY: u32 = 1 << 10;
const AF_ONLY: u32 = 1 << 11;
const V6: u32 = 1 << 12;

/// A port that somebody has bound. `owner` is 0 for a free record, else slot and flags.
#[derive(Debug)]
#[repr(C)]
struct ClaimRecord {
    owner: AtomicU32,
    space_port: AtomicU32,
    ip: [AtomicU64; 2],
}

/// A connection. `owner` is 0 for a free record, else the slot.
#[derive(Debug)]
#[repr(C)]
struct ConnectionRecord {
    owner: AtomicU32,
    local_id: AtomicU32,
    remote_id: AtomicU32,
    remote_qpn: AtomicU32,
    port_num: AtomicU32,
    reserved: AtomicU32,
    sgid: [AtomicU64; 2],
    dgid: [AtomicU64; 2],
}

/// A service that its process closed, and when (CLOCK_MONOTONIC). The words are not written together: who reads a mixture waits
/// a little longer for a listener, or a little less.
#[derive(Debug)]
#[repr(C)]
struct ClosedRecord {
    space_port: AtomicU64,
    at: AtomicU64,
}

/// The tables, a part of the segment.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct CmTables {
    writer: AtomicU32,
    claims: [ClaimRecord; CLAIMS],
    connections: [ConnectionRecord; CONNECTIONS],
    closed: [ClosedRecord; CLOSED],
    next_closed: AtomicU32,
    /// Where the search for a free record of a connection begins.
    next_connection: AtomicU32,
}

/// A port to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Port space, as in a service ID.
    pub space: u16,
    /// Port, not 0.
    pub port: u16,
    /// Local address; unspecified for any.
    pub ip: IpAddr,
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub reuse: bool,
    /// `RDMA_OPTION_ID_AFONLY`: an IPv6 wildcard that leaves IPv4 alone.
    pub af_only: bool,
}

/// Why a port cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Somebody has it.
    InUse,
    /// The table is full.
    Full,
}

/// A connection that a survivor has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// ID of the side that is gone.
    pub local_id: u32,
    /// ID of its peer.
    pub remote_id: u32,
    /// QP of its peer.
    pub remote_qpn: u32,
    /// Port that it used, from 1.
    pub port_num: u8,
    /// Its address.
    pub sgid: Gid,
    /// Its peer's.
    pub dgid: Gid,
}

fn words(bytes: [u8; 16]) -> [u64; 2] {
    let value = u128::from_be_bytes(bytes);
    [(value >> 64) as u64, value as u64]
}

fn store(to: &[AtomicU64; 2], bytes: [u8; 16]) {
    to.iter().zip(words(bytes)).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
}

fn load(from: &[AtomicU64; 2]) -> [u8; 16] {
    let [high, low] = [&from[0], &from[1]].map(|word| word.load(Ordering::Relaxed));
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

impl Claim {
    fn flags(&self) -> u32 {
        let flag = |is: bool, bit: u32| if is { bit } else { 0 };
        flag(self.reuse, REUSE)
            | flag(self.ip.is_unspecified(), ANY)
            | flag(self.af_only, AF_ONLY)
            | flag(self.ip.is_ipv6(), V6)
    }
}

/// The addresses of two claims meet: equal, or one is any and covers the other's family.
fn meet(a: (u32, [u8; 16]), b: (u32, [u8; 16])) -> bool {
    let covers = |any: u32, other: u32| any & ANY != 0 && (any & V6 == other & V6 || any & (V6 | AF_ONLY) == V6);
    covers(a.0, b.0) || covers(b.0, a.0) || (a.1 == b.1 && (a.0 ^ b.0) & (V6 | ANY) == 0)
}

/// The tables, held for a change.
struct Writing<'s> {
    word: &'s AtomicU32,
    slot: u8,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let _ = self.word.compare_exchange(u32::from(self.slot), 0, Ordering::Release, Ordering::Relaxed);
    }
}

impl Segment {
    fn write_cm(&self, slot: u8) -> Writing<'_> {
        let word = &self.layout().cm.writer;
        let mut tries = 0;
        loop {
            match word.compare_exchange(0, u32::from(slot), Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(holder) => {
                    let gone = self.slot(holder as u8).state() != SlotState::Alive;
                    if (gone || tries > PATIENCE)
                        && word.compare_exchange(holder, u32::from(slot), Ordering::Acquire, Ordering::Relaxed).is_ok()
                    {
                        break;
                    }
                    tries += 1;
                    std::thread::yield_now();
                }
            }
        }
        Writing { word, slot }
    }

    /// Binds a port for a slot; gives the number of the record. Two may share a port only if both want to, and neither listens.
    pub fn claim_port(&self, slot: u8, claim: &Claim) -> Result<usize, Refused> {
        let writing = self.write_cm(slot);
        let claims = &self.layout().cm.claims;
        let space_port = u32::from(claim.space) << 16 | u32::from(claim.port);
        let (flags, ip) = (claim.flags(), Gid::from_ip(claim.ip).0);
        let mut free = None;
        for (index, record) in claims.iter().enumerate() {
            let owner = record.owner.load(Ordering::Acquire);
            if owner == 0 {
                free = free.or(Some(index));
                continue;
            }
            let shared = flags & REUSE != 0 && owner & (REUSE | LISTENS) == REUSE;
            let same = record.space_port.load(Ordering::Relaxed) == space_port;
            if same && !shared && meet((flags, ip), (owner, load(&record.ip))) {
                return Err(Refused::InUse);
            }
        }
        let index = free.ok_or(Refused::Full)?;
        let record = &claims[index];
        record.space_port.store(space_port, Ordering::Relaxed);
        store(&record.ip, ip);
        record.owner.store(u32::from(slot) | flags, Ordering::Release);
        drop(writing);
        Ok(index)
    }

    /// The port of a record is listened on from now on. False if another listens there (both had bound it to share).
    pub fn listen_on(&self, slot: u8, index: usize) -> bool {
        let _writing = self.write_cm(slot);
        let claims = &self.layout().cm.claims;
        let own = &claims[index];
        let (space_port, flags) = (own.space_port.load(Ordering::Relaxed), own.owner.load(Ordering::Relaxed));
        let taken = claims.iter().enumerate().any(|(other, record)| {
            let owner = record.owner.load(Ordering::Acquire);
            other != index
                && owner & LISTENS != 0
                && record.space_port.load(Ordering::Relaxed) == space_port
                && meet((flags, load(&own.ip)), (owner, load(&record.ip)))
        });
        if !taken {
            own.owner.fetch_or(LISTENS, Ordering::Release);
        }
        !taken
    }

    /// Gives a port back.
    pub fn release_port(&self, index: usize, now: Time) {
        let tables = &self.layout().cm;
        let record = &tables.claims[index];
        let space_port = record.space_port.load(Ordering::Relaxed);
        let owner = record.owner.swap(0, Ordering::AcqRel);
        if owner & LISTENS != 0 {
            let next = tables.next_closed.fetch_add(1, Ordering::Relaxed) as usize % CLOSED;
            let closed = &tables.closed[next];
            closed.at.store(now.0, Ordering::Relaxed);
            closed.space_port.store(u64::from(space_port), Ordering::Release);
        }
    }

    /// True if a process listened on a port and closed it a moment ago. It need not be on the device any more: one that lets
    /// go of its last object leaves it, and is back a moment later.
    pub fn was_listened_on(&self, space: u16, port: u16, now: Time) -> bool {
        let space_port = u64::from(space) << 16 | u64::from(port);
        self.layout().cm.closed.iter().any(|record| {
            record.space_port.load(Ordering::Acquire) == space_port
                && now.since(Time(record.at.load(Ordering::Relaxed))) < CLOSED_NS
        })
    }

    /// The slot whose process listens on a port at an address: the exact address before any.
    pub fn listener_of(&self, space: u16, port: u16, ip: IpAddr) -> Option<u8> {
        let space_port = u32::from(space) << 16 | u32::from(port);
        let wanted = (if ip.is_ipv6() { V6 } else { 0 }, Gid::from_ip(ip).0);
        let mut any = None;
        for record in &self.layout().cm.claims {
            let owner = record.owner.load(Ordering::Acquire);
            if owner & LISTENS == 0 || record.space_port.load(Ordering::Relaxed) != space_port {
                continue;
            }
            let slot = owner as u8;
            if self.slot(slot).state() != SlotState::Alive || !meet((owner, load(&record.ip)), wanted) {
                continue;
            }
            if owner & ANY == 0 {
                return Some(slot);
            }
            any = any.or(Some(slot));
        }
        any
    }

    /// Notes a connection of a slot; `None` if the table is full, and then nobody will end it if the process dies.
    pub fn note_connection(&self, slot: u8, connection: &Orphan) -> Option<usize> {
        let _writing = self.write_cm(slot);
        let tables = &self.layout().cm;
        let records = &tables.connections;
        // Behind the one that was taken last, so that those in use are not looked at for each new one.
        let begin = tables.next_connection.load(Ordering::Relaxed) as usize % CONNECTIONS;
        let mut all = (begin..CONNECTIONS).chain(0..begin);
        let index = all.find(|index| records[*index].owner.load(Ordering::Acquire) == 0)?;
        tables.next_connection.store((index + 1) as u32, Ordering::Relaxed);
        let record = &records[index];
        record.local_id.store(connection.local_id, Ordering::Relaxed);
        record.remote_id.store(connection.remote_id, Ordering::Relaxed);
        record.remote_qpn.store(connection.remote_qpn, Ordering::Relaxed);
        record.port_num.store(u32::from(connection.port_num), Ordering::Relaxed);
        store(&record.sgid, connection.sgid.0);
        store(&record.dgid, connection.dgid.0);
        record.owner.store(u32::from(slot), Ordering::Release);
        Some(index)
    }

    /// A connection is over.
    pub fn forget_connection(&self, index: usize) {
        self.layout().cm.connections[index].owner.store(0, Ordering::Release);
    }

    /// A slot's process is gone: its ports are free, its connections are returned and forgotten.
    pub fn retire_connections(&self, slot: u8) -> Vec<Orphan> {
        let tables = &self.layout().cm;
        let _ = tables.writer.compare_exchange(u32::from(slot), 0, Ordering::AcqRel, Ordering::Relaxed);
        for record in &tables.claims {
            let owner = record.owner.load(Ordering::Acquire);
            if owner as u8 == slot {
                let _ = record.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        let mut orphans = Vec::new();
        for record in &tables.connections {
            if record.owner.load(Ordering::Acquire) != u32::from(slot) {
                continue;
            }
            orphans.push(Orphan {
                local_id: record.local_id.load(Ordering::Relaxed),
                remote_id: record.remote_id.load(Ordering::Relaxed),
                remote_qpn: record.remote_qpn.load(Ordering::Relaxed),
                port_num: record.port_num.load(Ordering::Relaxed) as u8,
                sgid: Gid(load(&record.sgid)),
                dgid: Gid(load(&record.dgid)),
            });
            record.owner.store(0, Ordering::Release);
        }
        orphans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(port: u16, ip: &str) -> Claim {
        Claim { space: 0x0106, port, ip: ip.parse().unwrap(), reuse: false, af_only: false }
    }

    fn segment() -> std::sync::Arc<Segment> {
        let segment = Segment::create("cm", 1).unwrap();
        for slot in 1..=3 {
            segment.slot(slot).set_state(SlotState::Alive);
        }
        segment
    }

    #[test]
    fn a_port_belongs_to_one_unless_all_want_to_share() {
        let segment = segment();
        let first = segment.claim_port(1, &claim(7, "10.0.0.1")).unwrap();
        assert_eq!(segment.claim_port(2, &claim(7, "10.0.0.1")), Err(Refused::InUse));
        assert_eq!(segment.claim_port(2, &claim(7, "0.0.0.0")), Err(Refused::InUse));
        assert_eq!(segment.claim_port(2, &claim(7, "::")), Err(Refused::InUse), "any of IPv6 takes IPv4, too");
        assert!(segment.claim_port(2, &Claim { af_only: true, ..claim(7, "::") }).is_ok());
        assert!(segment.claim_port(2, &claim(7, "10.0.0.2")).is_ok());
        assert!(segment.claim_port(2, &Claim { space: 0x0111, ..claim(7, "10.0.0.1") }).is_ok());
        segment.release_port(first, Time(0));
        let sharing = Claim { reuse: true, ..claim(7, "10.0.0.1") };
        let a = segment.claim_port(1, &sharing).unwrap();
        let b = segment.claim_port(2, &sharing).unwrap();
        assert!(segment.listen_on(1, a) && !segment.listen_on(2, b));
        assert_eq!(segment.claim_port(3, &sharing), Err(Refused::InUse), "one listens");
    }

    #[test]
    fn the_exact_listener_comes_before_any() {
        let segment = segment();
        let any = segment.claim_port(1, &claim(9, "0.0.0.0")).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(segment.listener_of(0x0106, 9, ip("10.0.0.5")), None, "bound is not listening");
        assert!(segment.listen_on(1, any));
        assert_eq!(segment.listener_of(0x0106, 9, ip("10.0.0.5")), Some(1));
        assert_eq!(segment.listener_of(0x0106, 9, ip("fd00::5")), None);
        assert_eq!(segment.listener_of(0x0111, 9, ip("10.0.0.5")), None);
        segment.slot(1).set_state(SlotState::Dead);
        assert_eq!(segment.listener_of(0x0106, 9, ip("10.0.0.5")), None, "a dead process does not listen");
    }

    #[test]
    fn a_closed_service_is_remembered_for_a_while() {
        let segment = segment();
        let index = segment.claim_port(2, &claim(9, "10.0.0.1")).unwrap();
        let at = Time(7_000_000_000);
        segment.release_port(index, at);
        assert!(!segment.was_listened_on(0x0106, 9, at), "bound is not listening");
        let index = segment.claim_port(2, &claim(9, "10.0.0.1")).unwrap();
        assert!(segment.listen_on(2, index));
        assert!(!segment.was_listened_on(0x0106, 9, at), "it is not closed");
        segment.release_port(index, at);
        assert!(segment.was_listened_on(0x0106, 9, at.after(CLOSED_NS - 1)));
        assert!(!segment.was_listened_on(0x0106, 9, at.after(CLOSED_NS)), "long ago");
        assert!(!segment.was_listened_on(0x0106, 8, at) && !segment.was_listened_on(0x0111, 9, at));
        // Whoever dies has closed nothing.
        let index = segment.claim_port(3, &claim(11, "10.0.0.1")).unwrap();
        assert!(segment.listen_on(3, index));
        segment.retire_connections(3);
        assert!(!segment.was_listened_on(0x0106, 11, at));
    }

    #[test]
    fn what_a_dead_process_leaves_is_returned_once() {
        let segment = segment();
        let orphan = Orphan {
            local_id: 0x0200_0001,
            remote_id: 5,
            remote_qpn: 0x1_0002,
            port_num: 1,
            sgid: Gid::from_ip("10.0.0.1".parse().unwrap()),
            dgid: Gid::from_ip("10.0.0.2".parse().unwrap()),
        };
        segment.note_connection(2, &orphan).unwrap();
        let other = segment.note_connection(3, &Orphan { local_id: 0x0300_0001, ..orphan }).unwrap();
        segment.claim_port(2, &claim(7, "10.0.0.1")).unwrap();
        // It died in the middle of a change.
        segment.layout().cm.writer.store(2, Ordering::Relaxed);
        segment.slot(2).set_state(SlotState::Dead);
        assert_eq!(segment.retire_connections(2), [orphan]);
        assert_eq!(segment.retire_connections(2), []);
        assert!(segment.claim_port(1, &claim(7, "10.0.0.1")).is_ok());
        segment.forget_connection(other);
        assert_eq!(segment.retire_connections(3), []);
    }
}
