//! A message that is repeated until it is answered (clause 12.9.8.2).

use scalefabric_wire::cm::CmMad;

use crate::time::Time;

/// The message, and when it goes out again.
#[derive(Clone, Debug)]
pub struct Repeat {
    message: CmMad,
    at: Time,
    interval_ns: u64,
    left: u8,
}

/// What a timer brought.
// One of them is large, and it is not kept.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Due {
    /// Not yet.
    No,
    /// Send it again.
    Again(CmMad),
    /// Nobody answers.
    GaveUp,
}

impl Repeat {
    /// A message that has just been sent, and will be sent at most `retries` times more.
    pub fn new(now: Time, message: CmMad, interval_ns: u64, retries: u8) -> Self {
        Self { message, at: now.after(interval_ns), interval_ns, left: retries }
    }

    /// The peer wants more time: the next repetition is put off.
    pub fn put_off(&mut self, now: Time, ns: u64) {
        self.at = self.at.max(now.after(ns));
    }

    /// Looks at the time.
    pub fn handle_timeout(&mut self, now: Time) -> Due {
        if now < self.at {
            return Due::No;
        }
        if self.left == 0 {
            return Due::GaveUp;
        }
        self.left -= 1;
        self.at = now.after(self.interval_ns);
        Due::Again(self.message)
    }

    /// When to look.
    pub fn deadline(&self) -> Time {
        self.at
    }

    /// The message.
    pub fn message(&self) -> &CmMad {
        &self.message
    }
}
