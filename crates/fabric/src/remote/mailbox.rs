//! A mailbox in its owner's memory that many peers write: each claims a slot by compare and swap, then writes its message there in one WRITE. A claim names its sender, so that one
//! whose answer was lost is looked up, and one whose sender has died is known. The owner frees slots; a sender that finds its next slot taken from
//! the lap before has no credit left.
//!
//! A claim is `lap (32) | sender (32)`; sender 0: free. The owner stores the next lap's free claim only over a claim that is taken, which no
//! sender's compare and swap replaces.

use super::lock::look;
use super::slot::{self, Received, SlotShape};
use super::{Area, Failure, Home};
use crate::error::{FabricError, Fault};

fn free(shape: &SlotShape, index: u64) -> u64 {
    (shape.lap(index) & 0xffff_ffff) << 32
}

/// Whether lap `a` comes before lap `b`; they are never half of all laps apart.
fn is_before(a: u64, b: u64) -> bool {
    ((a as u32).wrapping_sub(b as u32) as i32) < 0
}

/// One of the writing sides.
#[derive(Debug)]
pub struct MailboxSender<A> {
    area: A,
    shape: SlotShape,
    sender: u32,
    next: u64,
    broken: Option<FabricError>,
}

impl<A: Area> MailboxSender<A> {
    /// `sender` tells us from all others that write this mailbox; not 0.
    pub fn new(area: A, shape: SlotShape, sender: u32) -> Result<Self, FabricError> {
        shape.check(area.length())?;
        if sender == 0 {
            return Err(FabricError::misuse("sender 0 of a mailbox: that is nobody"));
        }
        let next = slot::consumed(&area)?;
        Ok(Self { area, shape, sender, next, broken: None })
    }

    /// Sends a message; false if the mailbox is full. Messages of one sender keep their order. An error after a slot was claimed ends this sender, and
    /// the owner must skip the slot ([`MailboxOwner::skip`]).
    pub fn try_send(&mut self, message: &[u8]) -> Result<bool, FabricError> {
        self.shape.check_message(message)?;
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        loop {
            let free = free(&self.shape, self.next);
            let ours = free | u64::from(self.sender);
            let found = self.claim(free, ours)?;
            if found == free {
                let written = slot::put(&self.area, &self.shape, self.next, message);
                if let Err(failure) = written {
                    let error = FabricError::from(failure);
                    let said = format!(
                        "this sender of the mailbox is broken: {error}; its slot waits for the owner to skip it"
                    );
                    self.broken = Some(FabricError::new(Fault::Closed, said));
                    return Err(error);
                }
                self.next += 1;
                return Ok(true);
            }
            if is_before(found >> 32, free >> 32) {
                return Ok(false);
            }
            // Another has it, or all of this lap is over.
            self.next += 1;
            if found >> 32 != free >> 32 {
                self.next = self.next.max(slot::consumed(&self.area)?);
            }
        }
    }

    /// What was in the claim: `free` if it is ours now.
    fn claim(&self, free: u64, ours: u64) -> Result<u64, FabricError> {
        let offset = self.shape.slot(self.next);
        loop {
            match self.area.compare_swap(offset, free, ours) {
                Ok(found) => return Ok(found),
                Err(Failure { in_doubt: true, .. }) => match look(&self.area, offset)? {
                    // The owner frees no slot without a message, so that it is still there if it was done.
                    found if found == ours => return Ok(free),
                    found if found == free => {}
                    found => return Ok(found),
                },
                Err(failure) => return Err(failure.into()),
            }
        }
    }
}

/// The reading side, whose memory it is.
#[derive(Debug)]
pub struct MailboxOwner<H> {
    home: H,
    shape: SlotShape,
    next: u64,
}

impl<H: Home> MailboxOwner<H> {
    /// Over zeroed memory that senders may write, read and change atomically.
    pub fn new(home: H, shape: SlotShape) -> Result<Self, FabricError> {
        shape.check(home.length() as u64)?;
        Ok(Self { home, shape, next: 0 })
    }

    /// The next message, if it is there.
    pub fn try_receive(&mut self) -> Result<Option<Received>, FabricError> {
        let Some(message) = slot::take(&self.home, &self.shape, self.next)? else { return Ok(None) };
        let sender = self.claimed()?.unwrap_or(0);
        self.give_free()?;
        Ok(Some(Received { message, sender }))
    }

    /// Whose message the mailbox waits for: who has claimed the next slot and not written it. Usually for microseconds.
    pub fn waits_for(&self) -> Result<Option<u32>, FabricError> {
        if slot::take(&self.home, &self.shape, self.next)?.is_some() {
            return Ok(None);
        }
        self.claimed()
    }

    /// Gives up the message of a sender that has died. Its connection must be closed before: a WRITE that came later would destroy another's message.
    /// False if the mailbox does not wait for this sender.
    pub fn skip(&mut self, sender: u32) -> Result<bool, FabricError> {
        if self.waits_for()? != Some(sender) {
            return Ok(false);
        }
        self.give_free()?;
        Ok(true)
    }

    fn claimed(&self) -> Result<Option<u32>, FabricError> {
        let claim = self.home.load_u64(self.shape.slot(self.next) as usize)?;
        let taken = claim >> 32 == free(&self.shape, self.next) >> 32 && claim as u32 != 0;
        Ok(taken.then_some(claim as u32))
    }

    fn give_free(&mut self) -> Result<(), FabricError> {
        let slot = self.shape.slot(self.next) as usize;
        self.home.store_u64(slot, free(&self.shape, self.next + u64::from(self.shape.slots)))?;
        self.next += 1;
        self.home.store_u64(0, self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::stage::Stage;
    use std::sync::Arc;

    const SHAPE: SlotShape = SlotShape { slots: 4, slot_bytes: 64 };

    #[test]
    fn many_senders_lose_nothing_and_each_keeps_its_order() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut owner = MailboxOwner::new(stage.clone(), SHAPE).unwrap();
        std::thread::scope(|scope| {
            for sender in 1..=3_u32 {
                let stage = stage.clone();
                scope.spawn(move || {
                    let mut mailbox = MailboxSender::new(stage, SHAPE, sender).unwrap();
                    for number in 0..500_u32 {
                        while !mailbox.try_send(&number.to_le_bytes()).unwrap() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0_u32; 4];
            for _ in 0..1500 {
                let came = loop {
                    match owner.try_receive().unwrap() {
                        Some(came) => break came,
                        None => std::thread::yield_now(),
                    }
                };
                let number = u32::from_le_bytes(came.message.try_into().unwrap());
                assert_eq!(number, next[came.sender as usize], "of sender {}", came.sender);
                next[came.sender as usize] += 1;
            }
            assert_eq!(next, [0, 500, 500, 500]);
        });
        assert_eq!(owner.try_receive().unwrap(), None);
    }

    #[test]
    fn a_full_mailbox_says_so_and_a_claim_in_doubt_is_looked_up() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut owner = MailboxOwner::new(stage.clone(), SHAPE).unwrap();
        let mut sender = MailboxSender::new(stage.clone(), SHAPE, 9).unwrap();
        for done in [true, false, true, false] {
            stage.doubt(done);
            assert!(sender.try_send(&[u8::from(done)]).unwrap());
        }
        assert!(!sender.try_send(b"x").unwrap());
        for done in [1, 0, 1, 0] {
            assert_eq!(owner.try_receive().unwrap(), Some(Received { message: vec![done], sender: 9 }));
        }
        assert!(sender.try_send(b"x").unwrap());
    }

    #[test]
    fn a_sender_that_died_in_between_is_named_and_skipped() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut owner = MailboxOwner::new(stage.clone(), SHAPE).unwrap();
        let dead = MailboxSender::new(stage.clone(), SHAPE, 5).unwrap();
        assert_eq!(dead.claim(0, 5).unwrap(), 0);
        let mut other = MailboxSender::new(stage, SHAPE, 6).unwrap();
        assert!(other.try_send(b"behind").unwrap());
        assert_eq!(owner.try_receive().unwrap(), None);
        assert_eq!(owner.waits_for().unwrap(), Some(5));
        assert!(!owner.skip(6).unwrap());
        assert!(owner.skip(5).unwrap());
        assert_eq!(owner.try_receive().unwrap(), Some(Received { message: b"behind".to_vec(), sender: 6 }));
        assert_eq!(owner.waits_for().unwrap(), None);
    }
}
