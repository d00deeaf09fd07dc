//! The progress thread (D2): whoever waits, drives; when nobody does, this thread. It sleeps in epoll on the receive
//! sockets, a wake-up descriptor and the engine's next deadline, so that a passive target (a process that never calls
//! the library) stays readable and writable, and an idle one costs nothing.
//!
//! It knows the engine only through [`Drive`], and the process's other duties only through [`Duty`].
//!
//! Three ways to pass the time. **Driving**: it turns the engine, spins a little while there is something to do, and then yields,
//! if it is told to. **Blocked**: nothing happened for a while; it sleeps on everything. **Aside**: callers poll so fast that its
//! help would only take their lock and their processor; it looks every millisecond whether they still do, and sleeps on nothing else.
//! How long is said by [`Polling`]. Where it finds that they have just stopped, as a program does that waits for its memory to change, it takes in
//! what has come, and looks sooner the next time.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use scalefabric_transport::Time;

use crate::clock;
use crate::engine::drive::Kick;
use crate::polling::{Pass, Polling};
use crate::process::{Descriptor, Home, Own};

/// How a turn went, as the worker needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Turned {
    /// Packets came or left, or a completion was placed: it pays to look again at once.
    pub busy: bool,
    /// The earliest time at which a turn has something to do without any packet; `None` if never.
    pub deadline: Option<Time>,
}

/// What a worker drives: the engine behind its lock.
pub trait Drive: Send + Sync {
    /// Takes the engine's lock and one turn.
    fn turn(&self, now: Time) -> Turned;

    /// The same if nobody has the lock, or not for longer than a microsecond: who has it drives. `None` if somebody has.
    fn turn_if_free(&self, now: Time) -> Option<Turned>;

    /// Turns that callers of the library (not the worker) took or would have taken since the start; busy ones may count for
    /// several. While it moves fast, the worker keeps out of the way.
    fn caller_turns(&self) -> u64;

    /// When a caller took the last of its turns.
    fn last_caller_turn(&self) -> Time;
}

/// Something whose readiness means work for the engine: a port's sockets.
pub trait Source: Send + Sync {
    /// Readable when there is work.
    fn fd(&self) -> RawFd;

    /// It was readable: the next turn must look at all of it.
    fn woken(&self);
}

/// What the thread does beside driving: the shared device's business.
pub trait Duty: Send + Sync {
    /// Readable when there is something to do.
    fn fd(&self) -> RawFd;

    /// Does it. Called from the worker only.
    fn serve(&self, now: Time);

    /// When to serve even if the descriptor stays silent.
    fn deadline(&self) -> Option<Time>;
}

/// Callers poll if they turn the engine at least this often in a look …
const POLLING_TURNS: u64 = 16;
/// … and at least once in this time on average, ns.
const POLLING_NS: u64 = 50_000;

/// Callers that poll and have not turned the engine for this long wait for something else, ns: twice what the timer of a virtual machine, by which this
/// thread wakes, was seen to keep them.
const QUIET_NS: u64 = 50_000;
/// The next look from aside, after one that found work left behind. From then on the looks are twice as far apart each time that none is found.
const SOON: Duration = Duration::from_micros(100);

/// How long the worker drives beside callers before it looks whether they poll, ns.
const LOOK_NS: u64 = 50_000;

const NEVER: u64 = u64::MAX;
/// What a caller asks for that is about to sleep. Any other time is a deadline, which who polls meets in the turns that it takes: a worker that
/// stands aside would only take the lock and a processor from it, thousands of times a second, and sees in its next look whether it polls.
const AT_ONCE: u64 = 0;

#[derive(Debug)]
struct Shared {
    wake: Descriptor,
    stop: AtomicBool,
    /// The earliest time that a kick asked for.
    asked: AtomicU64,
    /// Until when the worker sleeps; 0 while it is awake.
    asleep_until: AtomicU64,
    /// Callers poll, and the worker stands aside: they keep their deadlines themselves.
    is_aside: AtomicBool,
    /// Turns that the worker took, and times it slept: for tests and for the curious.
    turns: AtomicU64,
    sleeps: AtomicU64,
}

impl Shared {
    fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. A full counter (EAGAIN) is as good as a written one.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn quiet(&self) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes; the descriptor does not block.
        unsafe { libc::read(self.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    fn ask(&self, at: u64) {
        self.asked.fetch_min(at, Ordering::AcqRel);
        // Against the worker's fence: either it sees `asked`, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep_until.load(Ordering::Relaxed) > at && (at == AT_ONCE || !self.is_aside.load(Ordering::Relaxed)) {
            self.ring();
        }
    }
}

/// The progress thread. Dropping it ends it.
#[derive(Debug)]
pub struct Worker {
    home: Home,
    shared: Arc<Shared>,
    /// Of the process that started it: a forked child has no such thread.
    thread: Own<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Starts the thread. It ends by itself when `drive` is gone. Without `polling` it drives nothing and only does its duty.
    pub fn start(
        name: &str,
        drive: Weak<dyn Drive>,
        sources: Vec<Arc<dyn Source>>,
        duty: Option<Arc<dyn Duty>>,
        polling: Option<Polling>,
    ) -> io::Result<Self> {
        // SAFETY: plain system call.
        let wake = Descriptor::make(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let shared = Arc::new(Shared {
            wake,
            stop: AtomicBool::new(false),
            asked: AtomicU64::new(NEVER),
            asleep_until: AtomicU64::new(0),
            is_aside: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        });
        let mut aside = Poller::new()?;
        let mut everything = Poller::new()?;
        for poller in [&mut aside, &mut everything] {
            poller.add(shared.wake.as_raw_fd(), WAKE)?;
            if let Some(duty) = &duty {
                poller.add(duty.fd(), DUTY)?;
            }
        }
        if polling.is_some() {
            for (index, source) in sources.iter().enumerate() {
                everything.add(source.fd(), SOURCE + index as u64)?;
            }
        }
        let thread = Thread { shared: shared.clone(), drive, sources, duty, polling, aside, everything };
        // The application's signals are none of this thread's business: it is born with all of them blocked.
        let name = format!("sf-{name}").chars().take(15).collect();
        let spawned = with_signals_blocked(|| std::thread::Builder::new().name(name).spawn(move || thread.run()));
        Ok(Self { shared, thread: Own::new(Some(spawned?)), home: Home::here() })
    }

    /// What wakes the worker.
    pub fn kick(&self) -> impl Kick + use<> {
        Kicker(self.shared.clone())
    }

    /// Tells the thread to end and waits a little until it has. For a process that ends: one that hangs is left alone.
    pub fn end(&self, limit: Duration) {
        if !self.home.is_here() {
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        let until = Instant::now() + limit;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Turns that the worker took since the start.
    pub fn turns(&self) -> u64 {
        self.shared.turns.load(Ordering::Relaxed)
    }

    /// Whether it sleeps now and has no time at which it would wake by itself.
    #[cfg(test)]
    pub(crate) fn sleeps_without_end(&self) -> bool {
        self.shared.asleep_until.load(Ordering::SeqCst) == NEVER
    }

    /// Times that it went to sleep, a look from aside included.
    pub fn sleeps(&self) -> u64 {
        self.shared.sleeps.load(Ordering::Relaxed)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        // A thread whose bell the program has taken may sleep until the process ends: it is left alone.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && !self.shared.wake.is_taken()
        {
            let _ = thread.join();
        }
    }
}

struct Kicker(Arc<Shared>);

impl Kick for Kicker {
    fn kick(&self, at: Time) {
        self.0.ask(at.0);
    }
}

pub(crate) fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are valid and of this thread; the old mask is put back.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed::<libc::sigset_t>(), std::mem::zeroed::<libc::sigset_t>());
        libc::sigfillset(&raw mut all);
        // Those that a thread raises itself stay: memory that goes away is found out by them (D10), and a blocked one kills.
        for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT] {
            libc::sigdelset(&raw mut all, own);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        result
    }
}

const WAKE: u64 = 0;
const DUTY: u64 = 1;
const SOURCE: u64 = 2;
const EVENTS: usize = 16;

/// An epoll instance.
struct Poller(Descriptor);

impl Poller {
    fn new() -> io::Result<Self> {
        // SAFETY: plain system call.
        Descriptor::make(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    fn add(&mut self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: the event is valid; the kernel checks the descriptors.
        let done = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sleeps at most `ns` (`NEVER`: without end); calls `each` with what is ready.
    fn wait(&self, ns: u64, mut each: impl FnMut(u64)) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let timeout = libc::timespec {
            tv_sec: (ns / 1_000_000_000).min(i32::MAX as u64) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        };
        let timeout_ptr = if ns == NEVER { std::ptr::null() } else { &raw const timeout };
        /// Kernels before 5.11 do not know the call, nor does valgrind, which says so at each of them.
        static UNKNOWN: AtomicBool = AtomicBool::new(false);
        let mut n = -1;
        if !UNKNOWN.load(Ordering::Relaxed) {
            // SAFETY: events and timeout are valid; a null signal mask changes nothing.
            n = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    self.0.as_raw_fd(),
                    events.as_mut_ptr(),
                    EVENTS as libc::c_int,
                    timeout_ptr,
                    std::ptr::null::<libc::sigset_t>(),
                    0usize,
                )
            } as libc::c_int;
            if n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
                UNKNOWN.store(true, Ordering::Relaxed);
            }
        }
        if UNKNOWN.load(Ordering::Relaxed) {
            // Milliseconds, rounded up.
            let ms = if ns == NEVER { -1 } else { ns.div_ceil(1_000_000).min(i32::MAX as u64) as libc::c_int };
            // SAFETY: events is valid for its length.
            n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS as libc::c_int, ms) };
        }
        for event in &events[..n.max(0) as usize] {
            each(event.u64);
        }
    }
}

struct Thread {
    shared: Arc<Shared>,
    drive: Weak<dyn Drive>,
    sources: Vec<Arc<dyn Source>>,
    duty: Option<Arc<dyn Duty>>,
    polling: Option<Polling>,
    aside: Poller,
    everything: Poller,
}

/// What callers have done since the last look.
struct Callers {
    turns: u64,
    at: Time,
}

impl Callers {
    /// True if callers poll so fast that nobody else needs to.
    fn poll(&mut self, drive: &dyn Drive, now: Time) -> bool {
        let turns = drive.caller_turns();
        let done = turns.wrapping_sub(self.turns);
        let elapsed = now.since(self.at);
        (self.turns, self.at) = (turns, now);
        done >= POLLING_TURNS && elapsed / done < POLLING_NS
    }
}

impl Thread {
    fn run(self) {
        let mut callers = Callers { turns: 0, at: clock::now() };
        let mut busy_at = callers.at;
        let mut aside = false;
        let mut pause = Duration::MAX;
        while !self.shared.stop.load(Ordering::Acquire) {
            let now = clock::now();
            let Some(polling) = self.polling else {
                self.sleep(&self.everything, Time(NEVER), now);
                continue;
            };
            pause = if aside { pause.min(polling.aside) } else { polling.aside };
            if aside {
                self.shared.is_aside.store(true, Ordering::Relaxed);
                self.sleep(&self.aside, now.after(pause.as_nanos() as u64), now);
                self.shared.is_aside.store(false, Ordering::Relaxed);
            }
            // The strong reference must not be kept while asleep: the engine's last user would wait for us.
            let Some(drive) = self.drive.upgrade() else { return };
            let now = clock::now();
            let is_asked = self.shared.asked.load(Ordering::Acquire) == AT_ONCE;
            if aside && callers.poll(&*drive, now) && !is_asked {
                let left = now.since(drive.last_caller_turn()) >= QUIET_NS && self.relieve(&*drive, now);
                pause = if left { SOON } else { pause.saturating_mul(2) };
                continue;
            }
            aside = false;
            self.shared.asked.store(NEVER, Ordering::Release);
            let turned = drive.turn(now);
            self.shared.turns.fetch_add(1, Ordering::Relaxed);
            let now = clock::now();
            if turned.busy {
                busy_at = now;
                // Who polls is better off without us; who sleeps is not.
                if now.since(callers.at) > LOOK_NS {
                    aside = callers.poll(&*drive, now);
                }
                continue;
            }
            let deadline = turned.deadline.unwrap_or(Time(NEVER));
            match polling.after(now.since(busy_at)) {
                _ if deadline <= now => continue,
                Pass::Spin => {
                    std::hint::spin_loop();
                    continue;
                }
                Pass::Yield => {
                    clock::breathe();
                    continue;
                }
                Pass::Sleep => {}
            }
            callers = Callers { turns: drive.caller_turns(), at: now };
            drop(drive);
            self.sleep(&self.everything, deadline, now);
            let Some(drive) = self.drive.upgrade() else { return };
            busy_at = clock::now();
            // Only a look: a caller that polled fast and then went to sleep has kicked, and is seen above.
            aside = callers.poll(&*drive, busy_at);
        }
    }

    /// Takes in what callers that have stopped polling have left behind; whether there was something. One turn: they may have been waiting for it, and
    /// for the processor that this thread is on, to answer it. None if a caller is inside: its last turn is long ago because this one is long.
    fn relieve(&self, drive: &dyn Drive, now: Time) -> bool {
        let turned = drive.turn_if_free(now);
        self.shared.turns.fetch_add(u64::from(turned.is_some()), Ordering::Relaxed);
        turned.is_some_and(|turned| turned.busy)
    }

    /// Sleeps until something is ready, somebody kicks, or `until`. Does the duty when it is due.
    fn sleep(&self, poller: &Poller, until: Time, now: Time) {
        let duty_at = self.duty.as_ref().and_then(|d| d.deadline()).map_or(NEVER, |t| t.0);
        let until = until.0.min(duty_at);
        self.shared.asleep_until.store(until, Ordering::Release);
        // Against the fence of `ask`.
        fence(Ordering::SeqCst);
        let asked = self.shared.asked.load(Ordering::Relaxed);
        let is_aside = self.shared.is_aside.load(Ordering::Relaxed);
        let until = if is_aside && asked != AT_ONCE { until } else { until.min(asked) };
        let mut duty = false;
        if until > now.0 && !self.shared.stop.load(Ordering::Acquire) {
            self.shared.sleeps.fetch_add(1, Ordering::Relaxed);
            let ns = if until == NEVER { NEVER } else { until - now.0 };
            poller.wait(ns, |token| match token {
                WAKE => self.shared.quiet(),
                DUTY => duty = true,
                source => {
                    if let Some(source) = self.sources.get((source - SOURCE) as usize) {
                        source.woken();
                    }
                }
            });
        }
        self.shared.asleep_until.store(0, Ordering::Release);
        if let Some(d) = &self.duty
            && (duty || duty_at <= clock::now().0)
        {
            d.serve(clock::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::sync::Mutex;

    use super::*;

    /// An engine that notes when it was turned.
    #[derive(Default)]
    struct Toy {
        turns: AtomicU64,
        caller_turns: AtomicU64,
        deadline: Mutex<Option<Time>>,
        /// What each look adds to them: callers that poll, however late the look comes.
        turns_per_look: AtomicU64,
        /// They have stopped a moment ago.
        are_quiet: AtomicBool,
        /// One of them is in the engine.
        is_inside: AtomicBool,
        socket: Option<UnixDatagram>,
        taken: AtomicU64,
    }

    impl Drive for Toy {
        fn turn(&self, now: Time) -> Turned {
            self.turns.fetch_add(1, Ordering::SeqCst);
            let mut deadline = self.deadline.lock().unwrap();
            if deadline.is_some_and(|at| at <= now) {
                *deadline = None;
            }
            let mut bytes = [0; 8];
            let got = self.socket.as_ref().is_some_and(|s| s.recv(&mut bytes).is_ok());
            self.taken.fetch_add(u64::from(got), Ordering::SeqCst);
            Turned { busy: got, deadline: *deadline }
        }

        fn turn_if_free(&self, now: Time) -> Option<Turned> {
            (!self.is_inside.load(Ordering::SeqCst)).then(|| self.turn(now))
        }

        fn caller_turns(&self) -> u64 {
            let more = self.turns_per_look.load(Ordering::SeqCst);
            self.caller_turns.fetch_add(more, Ordering::SeqCst) + more
        }

        fn last_caller_turn(&self) -> Time {
            if self.are_quiet.load(Ordering::SeqCst) { Time(0) } else { clock::now() }
        }
    }

    struct Ready(RawFd);

    impl Source for Ready {
        fn fd(&self) -> RawFd {
            self.0
        }
        fn woken(&self) {}
    }

    fn start(toy: &Arc<Toy>) -> Worker {
        let sources = toy.socket.iter().map(|s| Arc::new(Ready(s.as_raw_fd())) as Arc<dyn Source>).collect();
        let drive: Arc<dyn Drive> = toy.clone();
        Worker::start("test", Arc::downgrade(&drive), sources, None, Some(Polling::default())).unwrap()
    }

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_idle_worker_sleeps_without_end() {
        let toy = Arc::new(Toy::default());
        let worker = start(&toy);
        until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
        let turns = worker.turns();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((worker.turns(), worker.sleeps()), (turns, 1));
    }

    #[test]
    fn a_datagram_wakes_the_worker_and_is_taken() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let toy = Arc::new(Toy { socket: Some(theirs), ..Toy::default() });
        let worker = start(&toy);
        for n in 1..=3 {
            until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
            ours.send(b"x").unwrap();
            until("the datagram was not taken", || toy.taken.load(Ordering::SeqCst) == n);
        }
    }

    #[test]
    fn a_deadline_and_an_earlier_kick_are_kept() {
        let toy = Arc::new(Toy::default());
        *toy.deadline.lock().unwrap() = Some(clock::now().after(30_000_000));
        let worker = start(&toy);
        until("the deadline was missed", || toy.deadline.lock().unwrap().is_none());
        until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
        let at = clock::now().after(5_000_000);
        *toy.deadline.lock().unwrap() = Some(at);
        worker.kick().kick(at);
        until("the kick was missed", || toy.deadline.lock().unwrap().is_none());
    }

    #[test]
    fn the_worker_stands_aside_while_callers_poll_and_takes_over_when_they_stop() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let toy = Arc::new(Toy { socket: Some(theirs), ..Toy::default() });
        let worker = start(&toy);
        until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
        toy.turns_per_look.store(1 << 40, Ordering::SeqCst);
        ours.send(b"x").unwrap();
        // Awake once, it sees the pollers and from then on only looks.
        until("it does not look from aside", || worker.sleeps() > 10);
        toy.turns_per_look.store(0, Ordering::SeqCst);
        until("it did not take over", || toy.taken.load(Ordering::SeqCst) == 1);
        until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
    }

    #[test]
    fn what_comes_while_pollers_wait_for_something_else_is_taken_and_the_worker_stays_aside() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let toy = Arc::new(Toy { socket: Some(theirs), turns_per_look: AtomicU64::new(1 << 40), ..Toy::default() });
        let worker = start(&toy);
        until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
        worker.kick().kick(clock::now());
        until("it does not stand aside", || worker.shared.is_aside.load(Ordering::SeqCst));
        ours.send(b"x").unwrap();
        let sleeps = worker.sleeps();
        until("it does not look from aside", || worker.sleeps() > sleeps + 10);
        assert_eq!(toy.taken.load(Ordering::SeqCst), 0, "it drove beside callers that poll");
        // The last turn is long ago, because one takes long: to wait for its end would only keep the next one out.
        toy.is_inside.store(true, Ordering::SeqCst);
        toy.are_quiet.store(true, Ordering::SeqCst);
        let sleeps = worker.sleeps();
        until("it does not look from aside", || worker.sleeps() > sleeps + 10);
        assert_eq!(toy.taken.load(Ordering::SeqCst), 0, "it waited for a caller that drives");
        toy.is_inside.store(false, Ordering::SeqCst);
        for taken in 1..=20 {
            until("the datagram was not taken", || toy.taken.load(Ordering::SeqCst) == taken);
            until("it left them", || worker.shared.is_aside.load(Ordering::SeqCst));
            ours.send(b"x").unwrap();
        }
    }

    #[test]
    fn deadlines_of_callers_that_poll_are_their_own_until_one_goes_to_sleep() {
        let toy = Arc::new(Toy { turns_per_look: AtomicU64::new(1 << 40), ..Toy::default() });
        let worker = start(&toy);
        until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
        worker.kick().kick(clock::now());
        until("it does not stand aside", || worker.shared.is_aside.load(Ordering::SeqCst));
        let (turns, sleeps) = (toy.turns.load(Ordering::SeqCst), worker.sleeps());
        until("it does not look from aside", || {
            worker.kick().kick(clock::now());
            worker.sleeps() > sleeps + 20
        });
        assert_eq!(toy.turns.load(Ordering::SeqCst), turns, "it drove beside callers that poll");
        worker.kick().kick(Time(AT_ONCE));
        until("nobody drives for who sleeps", || toy.turns.load(Ordering::SeqCst) > turns);
    }

    #[test]
    fn the_worker_ends_with_its_engine() {
        let toy = Arc::new(Toy::default());
        let worker = start(&toy);
        until("it never went to sleep", || worker.shared.asleep_until.load(Ordering::SeqCst) == NEVER);
        drop(toy);
        worker.kick().kick(Time(0));
        until("it does not end", || worker.thread.as_ref().unwrap().is_finished());
    }
}
