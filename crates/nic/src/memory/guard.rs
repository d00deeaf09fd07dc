//! The signal handlers that turn a fault inside our copy routines into an error return, and nothing else (D10).
//!
//! A SIGSEGV or SIGBUS that the kernel raised at a program counter inside the copy routines is ours: the handler moves the program
//! counter to the landing pad and returns. Any other one belongs to the application: it goes to whatever handler was
//! installed before ours, as if ours were not there (same mask, same alternate stack, same flags; SIG_DFL dies, with
//! the fault's own program counter in the core).
//!
//! An application may install its handler after us. [`ensure`] notices and puts ours in front again, with theirs behind.
//! Each time ours goes in front, a *different* handler function is used, with its own successor: the application
//! may have saved an older one of ours as its own successor, and two handlers that call each other would never end.
//!
//! What remains: (1) an application that replaces the handler and makes memory go away within the millisecond (or tick of the kernel, if that is longer) between
//! two looks gets the signal; (2) a fault while SIGSEGV or SIGBUS is blocked kills, whoever handles it, so [`ensure`]
//! unblocks them in each thread that touches memory, but a thread that blocks them again has the same millisecond; an
//! application that calls verbs from inside its own SIGSEGV handler has them blocked.

use std::cell::Cell;

/// How long a look at the handlers and the signal mask is good for, ns.
const LOOK_INTERVAL_NS: u64 = 1_000_000;

/// How far a clock that only ticks may be behind one that runs, ns: the kernel ticks 100 times a second or more often.
const TICK_NS: u64 = 10_000_000;

thread_local! {
    /// Time of this thread's last look. The first `ensure` of a thread always looks.
    static LAST_LOOK: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes sure that this thread may touch registered memory now: our SIGSEGV and SIGBUS handlers stand in front of
/// whatever the application installed, and this thread does not block the two signals.
///
/// Call it before each turn of the engine. `now_ns` is any clock: the handlers and the mask are looked at again (three
/// system calls) when it says that a millisecond has passed since this thread's last look.
#[inline]
pub fn ensure(now_ns: u64) {
    LAST_LOOK.with(|last_look| {
        // A clock that jumped back (another one, as in a simulation) counts as much later; the kernel's last tick, which some callers give, is only a little
        // behind.
        let is_stale = |last: u64| now_ns.wrapping_sub(last).wrapping_add(TICK_NS) >= LOOK_INTERVAL_NS + TICK_NS;
        if last_look.get().is_none_or(is_stale) {
            last_look.set(Some(now_ns));
            look();
        }
    });
}

/// As [`ensure`], with the time of this machine's last tick: for application threads that copy outside a turn.
#[inline]
pub(crate) fn ensure_here() {
    ensure(crate::clock::coarse().0);
}

#[cfg(not(target_arch = "x86_64"))]
fn look() {
    // The kernel copies and reports faults: no handler is needed.
}

#[cfg(target_arch = "x86_64")]
use handler::look;

#[cfg(target_arch = "x86_64")]
mod handler {
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

    use libc::{c_int, c_void, siginfo_t};

    use crate::memory::copy::landing_pad;

    const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
    /// Different handlers that an application may install over ours before one of our functions is used twice.
    const FUNCTIONS: usize = 16;

    type Function = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    /// What stands behind one of our functions.
    struct Successor {
        handler: AtomicUsize,
        flags: AtomicI32,
    }

    static SUCCESSORS: [[Successor; FUNCTIONS]; 2] = [const {
        [const { Successor { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0) } }; FUNCTIONS]
    }; 2];

    /// Functions in use, for each signal; also makes the looks one at a time.
    static USED: Mutex<[usize; 2]> = Mutex::new([0; 2]);

    extern "C" fn on_fault<const N: usize>(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        handle(signal, info, context, N);
    }

    static FUNCTION: [Function; FUNCTIONS] = [
        on_fault::<0>,
        on_fault::<1>,
        on_fault::<2>,
        on_fault::<3>,
        on_fault::<4>,
        on_fault::<5>,
        on_fault::<6>,
        on_fault::<7>,
        on_fault::<8>,
        on_fault::<9>,
        on_fault::<10>,
        on_fault::<11>,
        on_fault::<12>,
        on_fault::<13>,
        on_fault::<14>,
        on_fault::<15>,
    ];

    /// Runs in signal context: touches only its arguments and atomics.
    fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void, function: usize) {
        // SAFETY: the kernel, or the handler that chained to us, gave both pointers.
        let (code, registers) =
            unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
        // A code above 0 says that the kernel raised it for what this thread did; kill(2) gives 0 or less.
        let is_fault = code > 0;
        let counter = &mut registers[libc::REG_RIP as usize];
        if is_fault && let Some(pad) = landing_pad(*counter as usize) {
            *counter = pad as i64;
            return;
        }
        let successor = &SUCCESSORS[usize::from(signal == libc::SIGBUS)][function];
        let (handler, flags) = (successor.handler.load(Ordering::Acquire), successor.flags.load(Ordering::Relaxed));
        match handler {
            libc::SIG_IGN if !is_fault => {}
            // The kernel does not let a fault be ignored.
            libc::SIG_DFL | libc::SIG_IGN => die(signal, is_fault),
            _ => {
                if flags & libc::SA_RESETHAND != 0 {
                    successor.handler.store(libc::SIG_DFL, Ordering::Release);
                }
                // SAFETY: the application installed this address as a handler of this kind.
                unsafe {
                    if flags & libc::SA_SIGINFO != 0 {
                        std::mem::transmute::<usize, Function>(handler)(signal, info, context);
                    } else {
                        std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
                    }
                }
            }
        }
    }

    /// The default action: a fault happens again on return, a signal that was sent is sent again.
    fn die(signal: c_int, is_fault: bool) {
        let mut action = empty_action();
        action.sa_sigaction = libc::SIG_DFL;
        // SAFETY: a whole sigaction; both calls may be made in signal context.
        unsafe {
            libc::sigaction(signal, &action, ptr::null_mut());
            if !is_fault {
                libc::raise(signal);
            }
        }
    }

    fn empty_action() -> libc::sigaction {
        // SAFETY: all zeros is a valid sigaction: default action, empty mask.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    fn is_ours(handler: usize) -> bool {
        FUNCTION.iter().any(|&f| f as usize == handler)
    }

    /// The slow part of `ensure`.
    #[cold]
    pub fn look() {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the set is initialised by sigemptyset before it is used.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in SIGNALS {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
        }
        for (i, signal) in SIGNALS.into_iter().enumerate() {
            let mut present = empty_action();
            // SAFETY: a writable sigaction.
            unsafe { libc::sigaction(signal, ptr::null(), &mut present) };
            if !is_ours(present.sa_sigaction) {
                // Waiting is right: until the other thread has put ours in front, this one may not touch memory.
                let _making = crate::process::Making::begin();
                let mut used = USED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                go_in_front(i, signal, &mut used[i]);
            }
        }
    }

    fn go_in_front(i: usize, signal: c_int, used: &mut usize) {
        let mut present = empty_action();
        // SAFETY: a writable sigaction. Asked again because another thread may have been faster.
        unsafe { libc::sigaction(signal, ptr::null(), &mut present) };
        if is_ours(present.sa_sigaction) {
            return;
        }
        // The same application handler as before gets the same function as before: no new one is used up by an
        // application that switches between two.
        let known = SUCCESSORS[i][..*used].iter().position(|s| {
            s.handler.load(Ordering::Relaxed) == present.sa_sigaction
                && s.flags.load(Ordering::Relaxed) == present.sa_flags
        });
        let function = known.unwrap_or((*used).min(FUNCTIONS - 1));
        let put_behind = |action: &libc::sigaction| {
            SUCCESSORS[i][function].flags.store(action.sa_flags, Ordering::Relaxed);
            SUCCESSORS[i][function].handler.store(action.sa_sigaction, Ordering::Release);
        };
        put_behind(&present);
        *used = (*used).max(function + 1);
        let mut ours = empty_action();
        ours.sa_sigaction = FUNCTION[function] as usize;
        ours.sa_mask = present.sa_mask;
        ours.sa_flags = libc::SA_SIGINFO
            | if present.sa_sigaction == libc::SIG_DFL || present.sa_sigaction == libc::SIG_IGN {
                libc::SA_ONSTACK | libc::SA_RESTART
            } else {
                // Theirs decides how it is called; what is left out is ours to do (SIGINFO, RESETHAND).
                present.sa_flags & (libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER)
            };
        let mut replaced = empty_action();
        // SAFETY: two whole sigactions.
        unsafe { libc::sigaction(signal, &ours, &mut replaced) };
        if replaced.sa_sigaction != present.sa_sigaction && !is_ours(replaced.sa_sigaction) {
            // The application installed another one between our two calls.
            put_behind(&replaced);
        }
    }
}
