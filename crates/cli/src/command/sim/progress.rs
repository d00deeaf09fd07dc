//! Progress of simulated runs: a line on standard error with simulated time, packets and an estimate of what is left. Nothing if standard error is no terminal.

use scalefabric_sim::fabric::world::World;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Set by Ctrl-C: runs end as soon as they look.
static STOP: AtomicBool = AtomicBool::new(false);

/// Asks runs to end on Ctrl-C, so that what is done is told.
pub fn end_on_ctrl_c() {
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
}

/// True after Ctrl-C.
pub fn is_stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// The line.
pub struct Progress {
    shown: bool,
    began: Instant,
    total: usize,
    done: AtomicUsize,
    last: Mutex<Instant>,
}

impl Progress {
    /// Of so many runs.
    pub fn new(total: usize) -> Self {
        let now = Instant::now();
        Self {
            shown: std::io::stderr().is_terminal(),
            began: now,
            total,
            done: AtomicUsize::new(0),
            last: Mutex::new(now),
        }
    }

    /// A run goes on; false if it shall end.
    pub fn look(&self, world: &World) -> bool {
        self.look_at(self.done.load(Ordering::Relaxed), self.total, Some(world))
    }

    /// As [`Self::look`], where somebody else counts what is done, and a fabric is not always there.
    pub fn look_at(&self, done: usize, total: usize, world: Option<&World>) -> bool {
        if self.shown
            && let Ok(mut last) = self.last.try_lock()
            && last.elapsed() >= Duration::from_millis(250)
        {
            *last = Instant::now();
            self.show(done, total, world);
        }
        !is_stopped()
    }

    fn show(&self, done: usize, total: usize, world: Option<&World>) {
        let passed = self.began.elapsed().as_secs_f64();
        let part = (done as f64 + world.map_or(0.0, World::part_done)) / total.max(1) as f64;
        let left = if part > 0.02 { format!(", about {:.0} s left", passed / part - passed) } else { String::new() };
        let runs = if total > 1 { format!("{done}/{total} runs") } else { String::new() };
        let fabric = world.map_or_else(String::new, |world| {
            let messages = world.messages().len();
            let ended = messages - usize::try_from(world.open_messages()).unwrap_or(0);
            let forwards = world.counters().forwards as f64 / 1e6;
            format!("at {}, {ended} of {messages} messages, {forwards:.1} M forwards", world.now())
        });
        let between = if runs.is_empty() || fabric.is_empty() { "" } else { "; " };
        let line: String = format!("{runs}{between}{fabric}{left}").chars().take(79).collect();
        let _ = write!(std::io::stderr(), "\r\x1b[2K{line}");
    }

    /// A run has ended.
    pub fn ended(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes the line.
    pub fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
