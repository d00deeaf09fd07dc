//! The other members of the device as the same-host path needs them: their files and their lives, by slot, and the waiting for
//! their hazards.
//!
//! Membership says who is there ([`Neighbourhood::set`]); the engine asks for a neighbour when a QP first needs one, and maps its file then.
//! The lock here is held for moments and nothing else is taken under it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::segment::{Segment, SlotState};
use crate::direct::{Claim, Hazard};
use crate::memory::{Accessors, Neighbour, Other, OwnFile};
use crate::process::{Descriptor, Home};
use crate::resources::NeighbourReport;

/// How long a member that is stopped (by a signal, by a debugger) in the middle of an access is waited for. It takes a microsecond
/// when it goes on, so who needs longer is looked at by somebody.
const STOPPED: Duration = Duration::from_millis(100);
/// How long one is waited for that the processor does not come to, or that cannot be looked at.
const SLOW: Duration = Duration::from_secs(10);

/// A member's descriptors.
#[derive(Debug)]
struct Member {
    generation: u32,
    file: Arc<Descriptor>,
    other: Arc<Other>,
    mapped: Option<Arc<Neighbour>>,
    /// Why its file cannot be mapped.
    refused: Option<String>,
}

/// The others.
#[derive(Debug)]
pub struct Neighbourhood {
    home: Home,
    segment: Arc<Segment>,
    slot: u8,
    generation: u32,
    file: Arc<OwnFile>,
    members: Mutex<HashMap<u8, Member>>,
}

impl Neighbourhood {
    /// Nobody yet.
    pub fn new(segment: Arc<Segment>, slot: u8, file: Arc<OwnFile>) -> Arc<Self> {
        let generation = segment.slot(slot).generation.load(Ordering::Acquire);
        Arc::new(Self { home: Home::here(), segment, slot, generation, file, members: Mutex::default() })
    }

    fn members(&self) -> MutexGuard<'_, HashMap<u8, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process's file.
    pub fn file(&self) -> &Arc<OwnFile> {
        &self.file
    }

    /// Which of its slot's members this process is.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Takes over who is there: slot, generation, file and life of each. Gives the slots whose member is another one now, or gone.
    pub fn set(&self, now: Vec<(u8, u32, Arc<Descriptor>, Arc<Descriptor>)>) -> Vec<u8> {
        let mut members = self.members();
        let mut left: Vec<u8> = Vec::new();
        members.retain(|&slot, member| {
            let stays = now.iter().any(|(s, generation, ..)| (*s, *generation) == (slot, member.generation));
            if !stays {
                left.push(slot);
            }
            stays
        });
        for (slot, generation, file, life) in now {
            if slot != self.slot {
                members.entry(slot).or_insert_with(|| Member {
                    generation,
                    file,
                    other: Arc::new(Other::new(life)),
                    mapped: None,
                    refused: None,
                });
            }
        }
        left
    }

    /// A slot's member, mapped. `None` if it is not there, or is not known yet, or cannot be mapped.
    pub fn neighbour(&self, slot: u8) -> Option<Arc<Neighbour>> {
        let mut members = self.members();
        let member = members.get_mut(&slot)?;
        if !self.segment.is_member(slot, member.generation) {
            return None;
        }
        if member.mapped.is_none() && member.refused.is_none() {
            match Neighbour::new(member.file.clone(), member.other.clone(), slot, member.generation) {
                Ok(neighbour) => member.mapped = Some(Arc::new(neighbour)),
                Err(error) => member.refused = Some(error.to_string()),
            }
        }
        member.mapped.clone()
    }

    /// True while this process is its slot's member.
    #[inline]
    pub fn is_member(&self) -> bool {
        self.segment.is_member(self.slot, self.generation)
    }

    /// This process's hazard, unless its slot was given to another.
    #[inline]
    pub fn hazard(&self) -> Option<&Hazard> {
        self.is_member().then(|| self.segment.hazard(self.slot))
    }

    /// True while the neighbour is a member.
    #[inline]
    pub fn is_there(&self, neighbour: &Neighbour) -> bool {
        self.segment.is_member(neighbour.slot(), neighbour.generation())
    }

    /// Waits until no other process is inside an access that came through a QP of this one.
    pub fn wait_qp(&self, qp: u16) -> bool {
        self.wait(|claim| claim.qp == qp)
    }

    fn wait(&self, concerns: impl Fn(Claim) -> bool) -> bool {
        if !self.home.is_here() {
            return true;
        }
        let mut certain = true;
        for slot in (1..=self.segment.top()).filter(|&slot| slot != self.slot) {
            if self.segment.slot(slot).state() == SlotState::Alive {
                certain &= self.wait_member(slot, &concerns);
            }
        }
        certain
    }

    fn wait_member(&self, slot: u8, concerns: &impl Fn(Claim) -> bool) -> bool {
        let mut begun = None;
        let mut gone = false;
        let done = self.segment.hazard(slot).wait(
            |claim| claim.target == self.slot && concerns(claim),
            |rounds| {
                match rounds {
                    0..64 => std::hint::spin_loop(),
                    64..1024 => std::thread::yield_now(),
                    _ => {
                        let begun = *begun.get_or_insert_with(Instant::now);
                        std::thread::sleep(Duration::from_micros(200));
                        let other = self.members().get(&slot).map(|member| member.other.clone());
                        gone = self.segment.slot(slot).state() != SlotState::Alive
                            || other.as_ref().is_some_and(|other| !other.is_there());
                        let stopped = begun.elapsed() > STOPPED && other.is_some_and(|other| other.is_stopped());
                        return !gone && !stopped && begun.elapsed() < SLOW;
                    }
                }
                true
            },
        );
        // Who is gone touches nothing any more.
        done || gone
    }

    /// What can be told of the others. The kernel is asked about those that nobody has reached into yet.
    pub fn report(&self) -> Vec<NeighbourReport> {
        let members = self.members();
        let mut all: Vec<_> =
            members.iter().map(|(&slot, member)| (slot, member.other.clone(), member.refused.clone())).collect();
        drop(members);
        all.sort_by_key(|(slot, ..)| *slot);
        let told = |(slot, other, no_mapping): (u8, Arc<Other>, Option<String>)| {
            other.ask();
            NeighbourReport { slot, pid: other.pid(), no_mapping, no_process_vm: other.refusal() }
        };
        all.into_iter().map(told).collect()
    }
}

impl Accessors for Neighbourhood {
    fn wait_entry(&self, concerns: &dyn Fn(u32) -> bool) -> bool {
        self.wait(|claim| concerns(claim.entry))
    }
}
