//! Memory that goes away while it is registered (D10): each access ends as an error, never as a signal in the
//! application, and the application's own signal handlers work as if ours were not there.
//!
//! Each scenario runs in a process of its own, because signal handlers belong to a process and some scenarios kill it.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use libc::{c_int, c_void};
use scalefabric_nic::memory::{Accessor, MemoryTable, PdId, Peer, Region, Registration, Seed, guard};
use scalefabric_transport::host::{AccessFault, AtomicOp, LocalFault, RemoteAccess};
use scalefabric_verbs::{AccessFlags, Errno, Qpn, Sge};

const PAGE: usize = 4096;
const PD: PdId = PdId(1);
const VARIABLE: &str = "SCALEFABRIC_TEST_SCENARIO";

/// Runs `body` in a process of its own: this test again, with a variable that says so.
fn in_child(name: &str, body: fn()) -> Option<Output> {
    if std::env::var_os(VARIABLE).is_some() {
        body();
        return None;
    }
    let me = std::env::current_exe().expect("this test has a path");
    let output =
        Command::new(me).args(["--exact", name, "--test-threads=1", "--nocapture"]).env(VARIABLE, "1").output();
    Some(output.expect("this test can be run"))
}

fn succeeds(name: &str, body: fn()) {
    if let Some(output) = in_child(name, body) {
        assert!(output.status.success(), "{:?}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the scenario ran");
    }
}

fn dies_by(signal: c_int, name: &str, body: fn()) {
    if let Some(output) = in_child(name, body) {
        assert_eq!(output.status.signal(), Some(signal), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn map(pages: usize, fd: c_int) -> *mut u8 {
    let flags = if fd < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn protect(at: *mut u8, pages: usize, protection: c_int) {
    // SAFETY: the scenario's own mapping, to which nothing refers.
    assert_eq!(unsafe { libc::mprotect(at.cast(), pages * PAGE, protection) }, 0);
}

struct Fixture {
    accessor: Accessor,
    region: Region,
    now: u64,
}

impl Fixture {
    fn new(at: *mut u8, pages: usize) -> Self {
        let (table, accessor) = MemoryTable::new(Seed([1, 2, 3, 4]), 10);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let access = access - AccessFlags::FLUSH_PERSISTENT;
        let registration = Registration { pd: PD, addr: at, length: pages * PAGE, iova: at as u64, access };
        // SAFETY: nothing else refers to the mapping.
        let region = unsafe { table.register(registration) }.expect("mapped");
        Self { accessor, region, now: 0 }
    }

    fn wish(&self, offset: usize, access: AccessFlags) -> RemoteAccess {
        let va = self.region.addr() + offset as u64;
        RemoteAccess { rkey: self.region.rkey(), va, length: 8, access, xrc_srqn: None }
    }

    /// A turn a millisecond later.
    fn turn<T>(&mut self, f: impl FnOnce(&scalefabric_nic::memory::Access<'_>) -> T) -> T {
        self.now += 1_000_000;
        guard::ensure(self.now);
        f(&self.accessor.enter())
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), AccessFault> {
        let wish = self.wish(offset, AccessFlags::REMOTE_WRITE);
        self.turn(|access| access.write_remote(PEER, &wish, data))
    }

    fn read(&mut self, offset: usize, out: &mut [u8]) -> Result<(), AccessFault> {
        let wish = self.wish(offset, AccessFlags::REMOTE_READ);
        self.turn(|access| access.read_remote(PEER, &wish, out))
    }
}

const PEER: Peer = Peer { pd: PD, qpn: Qpn::GSI };

#[test]
fn unmapped_memory_under_traffic_is_an_error() {
    succeeds("unmapped_memory_under_traffic_is_an_error", || {
        let at = map(4, -1);
        let mut fixture = Fixture::new(at, 4);
        let data = [7; 4 * PAGE];
        let (address, started) = (at as usize, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !started.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                // SAFETY: nothing refers to the mapping but the region.
                unsafe { libc::munmap((address + PAGE) as *mut c_void, 3 * PAGE) };
            });
            while fixture.write(0, &data) == Ok(()) {
                started.store(true, Ordering::SeqCst);
            }
        });
        assert_eq!(fixture.write(0, &data), Err(AccessFault::Gone));
        assert_eq!(fixture.write(0, &data[..PAGE]), Ok(()), "the first page is still there");
        assert_eq!(fixture.read(PAGE - 4, &mut [0; 8]), Err(AccessFault::Gone));
        assert_eq!(fixture.region.write(PAGE, &[1]).expect_err("gone").errno, Errno::EFAULT);
        assert_eq!(fixture.region.load_u64(PAGE).expect_err("gone").errno, Errno::EFAULT);
        let sge = Sge { addr: fixture.region.addr(), length: 2 * PAGE as u32, lkey: fixture.region.lkey() };
        let sges = || [sge].into_iter();
        assert_eq!(fixture.turn(|a| a.scatter(PD, sges(), PAGE as u32, &[1; 8])), Err(LocalFault::Gone));
        assert_eq!(fixture.turn(|a| a.gather(PD, sges(), PAGE as u32, &mut [1; 8])), Err(LocalFault::Gone));
        // Mapped again, it works again.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the hole that was just made.
        unsafe { libc::mmap(at.add(PAGE).cast(), 3 * PAGE, protection, flags, -1, 0) };
        assert_eq!(fixture.write(0, &data), Ok(()));
    });
}

#[test]
fn protected_memory_is_an_error_for_what_is_forbidden() {
    succeeds("protected_memory_is_an_error_for_what_is_forbidden", || {
        let at = map(1, -1);
        let mut fixture = Fixture::new(at, 1);
        let atomic = fixture.wish(8, AccessFlags::REMOTE_ATOMIC);
        let ops = [
            AtomicOp::FetchAdd { add: 1 },
            AtomicOp::CompareSwap { compare: 0, swap: 1 },
            AtomicOp::CompareSwap { compare: 99, swap: 1 },
            AtomicOp::Write { value: 1 },
        ];
        protect(at, 1, libc::PROT_READ);
        assert_eq!(fixture.write(0, &[1; 8]), Err(AccessFault::Gone));
        assert_eq!(fixture.read(0, &mut [0; 8]), Ok(()));
        for op in ops {
            assert_eq!(fixture.turn(|a| a.atomic_remote(PEER, &atomic, op)), Err(AccessFault::Gone), "{op:?}");
        }
        assert_eq!(fixture.region.load_u64(8), Ok(0));
        assert_eq!(fixture.region.store_u64(8, 1).expect_err("protected").errno, Errno::EFAULT);
        protect(at, 1, libc::PROT_NONE);
        assert_eq!(fixture.read(0, &mut [0; 8]), Err(AccessFault::Gone));
        protect(at, 1, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(fixture.write(0, &[1; 8]), Ok(()));
        for op in ops {
            assert!(fixture.turn(|a| a.atomic_remote(PEER, &atomic, op)).is_ok());
        }
    });
}

#[test]
fn a_truncated_file_is_an_error() {
    succeeds("a_truncated_file_is_an_error", || {
        // SAFETY: a C string; no other pointers.
        let fd = unsafe { libc::memfd_create(c"truncated".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: no pointers.
        let resize = |size: usize| assert_eq!(unsafe { libc::ftruncate(fd, size as libc::off_t) }, 0);
        resize(2 * PAGE);
        let at = map(2, fd);
        let mut fixture = Fixture::new(at, 2);
        assert_eq!(fixture.write(PAGE, &[1; 8]), Ok(()));
        resize(PAGE);
        assert_eq!(fixture.write(PAGE, &[1; 8]), Err(AccessFault::Gone));
        assert_eq!(fixture.read(PAGE - 8, &mut [0; 16]), Err(AccessFault::Gone));
        assert_eq!(fixture.write(PAGE - 8, &[1; 8]), Ok(()));
        resize(2 * PAGE);
        assert_eq!(fixture.write(PAGE, &[1; 8]), Ok(()));
        // A region cannot be registered beyond the file's end.
        resize(PAGE);
        let (table, _accessor) = MemoryTable::new(Seed([1; 4]), 10);
        let access = AccessFlags::empty();
        let registration = Registration { pd: PD, addr: at, length: 2 * PAGE, iova: at as u64, access };
        // SAFETY: nothing is registered.
        assert_eq!(unsafe { table.register(registration) }.expect_err("beyond the file").errno, Errno::EFAULT);
    });
}

#[test]
fn a_flush_to_persistence_writes_to_the_file() {
    succeeds("a_flush_to_persistence_writes_to_the_file", || {
        use scalefabric_verbs::{FlushLevel, FlushPlacement};
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("scalefabric-flush-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(2 * PAGE as u64).expect("room");
        let at = map(2, file.as_raw_fd());
        std::fs::remove_file(&path).expect("it is there");
        let (table, mut accessor) = MemoryTable::new(Seed([1; 4]), 10);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_PERSISTENT;
        let registration = Registration { pd: PD, addr: at, length: 2 * PAGE, iova: at as u64, access };
        // SAFETY: nothing else refers to the mapping.
        let region = unsafe { table.register(registration) }.expect("a shared file");
        guard::ensure(0);
        let access = AccessFlags::empty();
        let va = region.addr() + 100;
        let wish = RemoteAccess { rkey: region.rkey(), va, length: 5000, access, xrc_srqn: None };
        for level in [FlushLevel::Range, FlushLevel::MemoryRegion] {
            let turn = accessor.enter();
            assert_eq!(turn.flush_remote(PEER, &wish, FlushPlacement::Persistent, level), Ok(()));
            assert_eq!(
                turn.flush_remote(PEER, &wish, FlushPlacement::Global, level),
                Err(AccessFault::NoRight),
                "another right"
            );
        }
        // SAFETY: nothing refers to the mapping but the region.
        unsafe { libc::munmap(at.cast(), 2 * PAGE) };
        let flush = accessor.enter().flush_remote(PEER, &wish, FlushPlacement::Persistent, FlushLevel::Range);
        assert_eq!(flush, Err(AccessFault::Gone));
    });
}

/// Faults that the application's handler saw, and the page that it makes accessible, as a garbage collector would.
static SEEN: AtomicUsize = AtomicUsize::new(0);
static OWN_PAGE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// What the application found installed when it installed its own.
static FOUND: AtomicUsize = AtomicUsize::new(0);

extern "C" fn repair(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    let page = OWN_PAGE.load(Ordering::SeqCst);
    // SAFETY: the kernel's siginfo of a fault.
    assert_eq!(unsafe { (*info).si_addr() } as usize & !(PAGE - 1), page as usize, "the fault's address arrives");
    SEEN.fetch_add(1, Ordering::SeqCst);
    protect(page, 1, libc::PROT_READ | libc::PROT_WRITE);
}

extern "C" fn repair_simple(_signal: c_int) {
    SEEN.fetch_add(1, Ordering::SeqCst);
    protect(OWN_PAGE.load(Ordering::SeqCst), 1, libc::PROT_READ | libc::PROT_WRITE);
}

extern "C" fn call_the_one_before(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if SEEN.fetch_add(1, Ordering::SeqCst) > 100 {
        std::process::abort();
    }
    let found = FOUND.load(Ordering::SeqCst);
    // SAFETY: what sigaction gave, which was a handler with three arguments.
    let found = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(found) };
    found(signal, info, context);
}

/// Installs a handler; returns what was there.
fn install(handler: usize, flags: c_int) -> usize {
    // SAFETY: all zeros is a valid sigaction, and both are whole.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, &mut before), 0);
        before.sa_sigaction
    }
}

fn repair_handler() -> usize {
    repair as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize
}

fn repair_simple_handler() -> usize {
    repair_simple as extern "C" fn(c_int) as usize
}

/// The application's own fault; returns only if somebody repairs it.
fn fault_of_the_application(page: *mut u8) {
    protect(page, 1, libc::PROT_NONE);
    OWN_PAGE.store(page, Ordering::SeqCst);
    // SAFETY: the scenario's own page; the fault is the point.
    unsafe { page.add(24).write_volatile(1) };
}

/// A fault of ours, which the application must not see.
fn fault_of_ours(fixture: &mut Fixture, page: *mut u8) {
    let seen = SEEN.load(Ordering::SeqCst);
    protect(page, 1, libc::PROT_NONE);
    assert_eq!(fixture.write(0, &[1; 8]), Err(AccessFault::Gone));
    protect(page, 1, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(SEEN.load(Ordering::SeqCst), seen);
}

#[test]
fn a_handler_that_was_there_first_sees_its_own_faults() {
    succeeds("a_handler_that_was_there_first_sees_its_own_faults", || {
        install(repair_handler(), libc::SA_SIGINFO);
        let (ours, theirs) = (map(1, -1), map(1, -1));
        let mut fixture = Fixture::new(ours, 1);
        for round in 0..3 {
            fault_of_ours(&mut fixture, ours);
            fault_of_the_application(theirs);
            assert_eq!(SEEN.load(Ordering::SeqCst), round + 1);
        }
    });
}

#[test]
fn a_handler_that_comes_later_sees_its_own_faults() {
    succeeds("a_handler_that_comes_later_sees_its_own_faults", || {
        let (ours, theirs) = (map(1, -1), map(1, -1));
        let mut fixture = Fixture::new(ours, 1);
        fault_of_ours(&mut fixture, ours);
        // Two handlers by turns, many times: no supply of handlers runs out.
        for round in 0..200 {
            let (handler, flags) =
                if round % 2 == 0 { (repair_handler(), libc::SA_SIGINFO) } else { (repair_simple_handler(), 0) };
            install(handler, flags);
            fault_of_ours(&mut fixture, ours);
            fault_of_the_application(theirs);
            assert_eq!(SEEN.load(Ordering::SeqCst), round + 1);
        }
    });
}

#[test]
fn a_handler_that_calls_the_one_before_it_ends() {
    dies_by(libc::SIGSEGV, "a_handler_that_calls_the_one_before_it_ends", || {
        install(libc::SIG_DFL, 0);
        let (ours, theirs) = (map(1, -1), map(1, -1));
        let mut fixture = Fixture::new(ours, 1);
        let handler = call_the_one_before as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        FOUND.store(install(handler, libc::SA_SIGINFO), Ordering::SeqCst);
        fault_of_ours(&mut fixture, ours);
        fault_of_the_application(theirs);
    });
}

#[test]
fn a_handler_for_one_time_is_called_once() {
    dies_by(libc::SIGSEGV, "a_handler_for_one_time_is_called_once", || {
        install(repair_simple_handler(), libc::SA_RESETHAND);
        let (ours, theirs) = (map(1, -1), map(1, -1));
        let mut fixture = Fixture::new(ours, 1);
        fault_of_ours(&mut fixture, ours);
        fault_of_the_application(theirs);
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        fault_of_ours(&mut fixture, ours);
        fault_of_the_application(theirs);
        println!("not reached");
    });
}

#[test]
fn without_a_handler_a_fault_of_the_application_kills() {
    dies_by(libc::SIGSEGV, "without_a_handler_a_fault_of_the_application_kills", || {
        install(libc::SIG_DFL, 0);
        let (ours, theirs) = (map(1, -1), map(1, -1));
        fault_of_ours(&mut Fixture::new(ours, 1), ours);
        fault_of_the_application(theirs);
    });
}

#[test]
fn an_ignored_fault_kills_and_an_ignored_signal_does_not() {
    dies_by(libc::SIGSEGV, "an_ignored_fault_kills_and_an_ignored_signal_does_not", || {
        install(libc::SIG_IGN, 0);
        let (ours, theirs) = (map(1, -1), map(1, -1));
        fault_of_ours(&mut Fixture::new(ours, 1), ours);
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGSEGV) };
        fault_of_the_application(theirs);
        // A handler that ignored the fault would go round for ever; one that returned an error would exit with 101.
        panic!("not reached");
    });
}

#[test]
fn a_signal_that_was_sent_kills() {
    dies_by(libc::SIGSEGV, "a_signal_that_was_sent_kills", || {
        install(libc::SIG_DFL, 0);
        let ours = map(1, -1);
        fault_of_ours(&mut Fixture::new(ours, 1), ours);
        // SAFETY: no pointers.
        unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
        std::thread::sleep(std::time::Duration::from_secs(10));
    });
}

#[test]
fn a_thread_that_blocks_all_signals_survives_a_fault() {
    succeeds("a_thread_that_blocks_all_signals_survives_a_fault", || {
        let page = map(1, -1);
        let mut fixture = Fixture::new(page, 1);
        // SAFETY: a set that sigfillset fills.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, ptr::null_mut());
        }
        fault_of_ours(&mut fixture, page);
    });
}

fn overflow(depth: u64) -> u64 {
    let space = [depth; 100];
    if std::hint::black_box(&space)[0] == u64::MAX { 0 } else { overflow(depth + 1) + space[50] }
}

#[test]
fn a_stack_overflow_is_still_reported() {
    let output = in_child("a_stack_overflow_is_still_reported", || {
        let page = map(1, -1);
        fault_of_ours(&mut Fixture::new(page, 1), page);
        std::process::exit(overflow(0) as i32);
    });
    if let Some(Output { status, stderr, .. }) = output {
        let stderr = String::from_utf8_lossy(&stderr);
        // Under AddressSanitizer it is that one's handler that stands behind ours.
        let by_rust = ExitStatus::signal(&status) == Some(libc::SIGABRT) && stderr.contains("overflowed its stack");
        assert!(by_rust || stderr.contains("AddressSanitizer: stack-overflow"), "{status:?}\n{stderr}");
    }
}
