//! How threads wait for a connection: they poll, or they sleep on the completion channel and on a descriptor of their own that whoever makes progress for
//! them writes to. It knows nothing of what is waited for.

use super::config::Waiting;
use super::descriptor;
use super::hub::MAX_DEVICES;
use crate::error::FabricError;
use scalefabric_verbs::CompletionChannel;
use std::future::Future;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Looks at the clock once in so many polls.
const POLLS_A_LOOK: u32 = 32;

/// A sleeper looks by itself after so long: a guard against a device that forgets an event, not the way it is woken.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

thread_local! {
    static OWN: Option<OwnedFd> = descriptor::eventfd();
}

/// The sleepers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    count: AtomicUsize,
    sleepers: Mutex<Vec<RawFd>>,
}

impl Bell {
    /// Wakes everybody who sleeps. Costs a load when nobody does.
    pub fn ring(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for fd in self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // Its thread keeps it open while it stands in the list.
            descriptor::signal(*fd);
        }
    }

    /// Wakes who sleeps beside this one.
    fn ring_others(&self, own: RawFd) {
        if self.count.load(Ordering::SeqCst) > 1 {
            let sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
            sleepers.iter().filter(|fd| **fd != own).for_each(|fd| descriptor::signal(*fd));
        }
    }

    fn enter(&self, fd: RawFd) {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).push(fd);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self, fd: RawFd) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = sleepers.iter().position(|other| *other == fd) {
            sleepers.swap_remove(index);
        }
    }
}

/// Tries until it gives something, or `timeout` has passed: then `None`. `arm` asks for an event at the next completion.
pub(crate) fn wait<T>(
    bell: &Bell,
    channels: &[Arc<dyn CompletionChannel>],
    waiting: Waiting,
    timeout: Option<Duration>,
    arm: impl Fn() -> Result<(), FabricError>,
    mut attempt: impl FnMut() -> Result<Option<T>, FabricError>,
) -> Result<Option<T>, FabricError> {
    if let Some(value) = attempt()? {
        return Ok(Some(value));
    }
    let spin = match waiting {
        Waiting::Busy => Some(Duration::MAX),
        Waiting::Events => None,
        Waiting::Adaptive(spin) => Some(spin),
    };
    let begun = Instant::now();
    let past = |limit: Duration| limit != Duration::MAX && begun.elapsed() >= limit;
    while let Some(spin) = spin {
        for _ in 0..POLLS_A_LOOK {
            if let Some(value) = attempt()? {
                return Ok(Some(value));
            }
            std::hint::spin_loop();
        }
        if timeout.is_some_and(past) {
            return Ok(None);
        }
        if past(spin) {
            break;
        }
    }
    OWN.with(|own| {
        // Without a descriptor of its own a thread wakes by the channel, and by looking again.
        let fd = descriptor::number(own.as_ref());
        bell.enter(fd);
        let outcome = sleep((bell, fd), channels, begun, timeout, &arm, &mut attempt);
        bell.leave(fd);
        outcome
    })
}

fn sleep<T>(
    (bell, fd): (&Bell, RawFd),
    channels: &[Arc<dyn CompletionChannel>],
    begun: Instant,
    timeout: Option<Duration>,
    arm: &impl Fn() -> Result<(), FabricError>,
    attempt: &mut impl FnMut() -> Result<Option<T>, FabricError>,
) -> Result<Option<T>, FabricError> {
    loop {
        arm()?;
        if let Some(value) = attempt()? {
            return Ok(Some(value));
        }
        let left = match timeout {
            None => LOOK_AGAIN,
            Some(timeout) => match timeout.checked_sub(begun.elapsed()) {
                None => return Ok(None),
                Some(left) => left.min(LOOK_AGAIN),
            },
        };
        // What is no descriptor never wakes.
        let mut fds = [-1; MAX_DEVICES + 1];
        fds[MAX_DEVICES] = fd;
        fds.iter_mut().zip(channels).take(MAX_DEVICES).for_each(|(fd, channel)| *fd = channel.fd());
        let woken = descriptor::sleep_on(fds, left);
        for (channel, event) in channels.iter().zip(woken).take(MAX_DEVICES) {
            if event {
                channel.wait(Some(Duration::ZERO))?;
                // The event may be of the queue that another sleeper waits for; it was the only one, and who finds what he waited for does not ask for another.
                bell.ring_others(fd);
            }
        }
        if woken[MAX_DEVICES] {
            descriptor::quiet(fd);
        }
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    block_on_for(future, None).unwrap_or_else(|| unreachable!("without a timeout it ends with its value only"))
}

/// Runs a future on this thread; `None` when `timeout` passes.
pub(crate) fn block_on_for<F: Future>(future: F, timeout: Option<Duration>) -> Option<F::Output> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let begun = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        match timeout {
            None => std::thread::park(),
            Some(timeout) => match timeout.checked_sub(begun.elapsed()) {
                Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                _ => return None,
            },
        }
    }
}
