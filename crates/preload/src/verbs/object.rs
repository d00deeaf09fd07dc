//! An object as C sees it, and what stands behind it. The C part comes first, so that one address serves for both; then
//! room that stays zero, since newer clients may believe that their structure is longer; then a mark and our own part.
//!
//! Whose an object is, is told by its context: that of a device of ours carries our sign ([`is_ours`]). Only then is
//! anything read behind the C part. Whether it still lives is told by the mark. What was freed rests a while in a
//! graveyard with the mark gone and a context whose every call answers EINVAL, so that a call with a handle that was just
//! destroyed is refused and does not crash.

use std::alloc::{Layout, dealloc};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use scalefabric_ibv::abi;

use super::answer::{Outcome, stale};
use super::context;
use super::lock::Lock;

/// Zero bytes behind each structure of C.
pub const ROOM: usize = 256;

/// Objects in the graveyard.
const GRAVES: usize = 256;

/// The sign of our devices, in a slot of `struct ibv_device` that nobody uses.
static SIGN: u8 = 0x5f;

/// What `ops.dummy1` of our devices holds. Never called.
pub fn sign() -> usize {
    &raw const SIGN as usize
}

/// What stands behind one kind of object.
pub trait Part: 'static {
    /// The structure of C. Its first member is the context.
    type C;
    /// The mark of the kind: eight letters.
    const MARK: u64;
    /// What the kind is called.
    const NAME: &'static str;
}

/// An object.
#[repr(C)]
pub struct Object<P: Part> {
    c: UnsafeCell<P::C>,
    room: [u8; ROOM],
    mark: AtomicU64,
    /// Our part.
    pub part: P,
}

impl<P: Part> Object<P> {
    /// Makes an object; it belongs to the program until [`Object::bury`].
    pub fn make(c: P::C, part: P) -> *mut P::C {
        let object = Box::new(Self { c: UnsafeCell::new(c), room: [0; ROOM], mark: AtomicU64::new(P::MARK), part });
        Box::into_raw(object).cast()
    }

    /// The structure of C.
    pub fn c(&self) -> *mut P::C {
        self.c.get()
    }

    /// True while it lives: the first thing that calls of the data path ask.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.mark.load(Ordering::Relaxed) == P::MARK
    }

    /// Ends the object: its part is dropped, its memory rests in the graveyard. False if another thread was first.
    ///
    /// # Safety
    /// `c` is an object of this kind, alive or buried just before, and nobody uses it any more.
    pub unsafe fn bury(c: *mut P::C) -> bool {
        let object = c.cast::<Self>();
        // SAFETY: the caller's promise; memory of buried objects is still there.
        if unsafe { &(*object).mark }.swap(0, Ordering::AcqRel) != P::MARK {
            return false;
        }
        // SAFETY: whoever takes the mark away is the only one who comes here; the context is the first member of every
        // structure.
        unsafe {
            std::ptr::drop_in_place(&raw mut (*object).part);
            object.cast::<*mut abi::Context>().write(context::grave());
        }
        rest(object.cast(), Layout::new::<Self>());
        true
    }
}

/// The object behind a pointer of C whose context is known to be ours.
///
/// # Safety
/// `c` is null or points to the structure of an object that our device made, alive or buried.
#[inline]
pub unsafe fn alive<'a, P: Part>(c: *mut P::C) -> Option<&'a Object<P>> {
    // SAFETY: the caller's promise. References live as long as the program leaves the object alone, as the contract of
    // libibverbs says.
    let object = unsafe { c.cast::<Object<P>>().as_ref()? };
    object.is_alive().then_some(object)
}

/// As [`alive`], with the error that says what is wrong.
///
/// # Safety
/// As [`alive`].
pub unsafe fn of<'a, P: Part>(c: *mut P::C) -> Outcome<&'a Object<P>> {
    // SAFETY: the caller's promise.
    unsafe { alive(c) }.ok_or_else(|| stale(P::NAME))
}

/// As [`of`], for an object that comes as an argument beside one of ours: it must be ours, too.
///
/// # Safety
/// `c` is null or points to a structure of libibverbs whose first member is its context.
pub unsafe fn beside<'a, P: Part>(c: *mut P::C) -> Outcome<&'a Object<P>> {
    // SAFETY: the caller's promise.
    if !unsafe { is_ours(c) } {
        return Err(stale(P::NAME));
    }
    // SAFETY: it is ours.
    unsafe { of(c) }
}

/// True if an object is one of our devices', alive or buried; false for null.
///
/// # Safety
/// `c` is null or points to a structure whose first member is its context.
#[inline]
pub unsafe fn is_ours<C>(c: *mut C) -> bool {
    // SAFETY: the caller's promise.
    !c.is_null() && unsafe { context::is_ours(*c.cast::<*mut abi::Context>()) }
}

/// Numbers for the members called `handle`: the kernel's in libibverbs, ours here.
pub fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

struct Grave(*mut u8, Layout);
// SAFETY: the memory belongs to the graveyard alone.
unsafe impl Send for Grave {}

static GRAVEYARD: Lock<VecDeque<Grave>> = Lock::new(VecDeque::new());

fn rest(memory: *mut u8, layout: Layout) {
    let mut graves = GRAVEYARD.lock();
    graves.push_back(Grave(memory, layout));
    if graves.len() > GRAVES
        && let Some(Grave(memory, layout)) = graves.pop_front()
    {
        // SAFETY: it was made by `Box` with this layout, and its contents were dropped.
        unsafe { dealloc(memory, layout) };
    }
}

/// A pthread mutex and condition as they lie in CQs, QPs and SRQs, with the counters that `destroy` waits for.
pub mod events {
    use std::sync::atomic::{AtomicU32, Ordering};

    use scalefabric_ibv::abi::{Condition, Mutex};

    /// A counter that only grows, guarded by the object's mutex.
    pub type Count = u32;

    /// Adds to a counter of acknowledged events and wakes who waits for it.
    ///
    /// # Safety
    /// All three lie in a live object.
    pub unsafe fn acknowledge(mutex: *mut Mutex, cond: *mut Condition, count: *mut Count, add: u32) {
        // SAFETY: the caller's promise; both were initialised when the object was made.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            *count = (*count).wrapping_add(add);
            libc::pthread_cond_broadcast(cond);
            libc::pthread_mutex_unlock(mutex);
        }
    }

    /// Waits until as many events are acknowledged as were given out.
    ///
    /// # Safety
    /// All three lie in a live object.
    pub unsafe fn wait(mutex: *mut Mutex, cond: *mut Condition, count: *mut Count, given: &AtomicU32) {
        // SAFETY: the caller's promise.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            while *count != given.load(Ordering::Acquire) {
                libc::pthread_cond_wait(cond, mutex);
            }
            libc::pthread_mutex_unlock(mutex);
        }
    }
}
