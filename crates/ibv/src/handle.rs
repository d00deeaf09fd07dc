//! What an object of C needs to be safe in Rust: it is not used after it was destroyed, not destroyed while a call uses it,
//! not destroyed before what hangs on it, and not touched in a forked child, which shares the kernel's object with its parent.

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_verbs::{Errno, PostError, VerbsError};

/// Set in the state of a handle whose object is destroyed, or being destroyed. Below it, calls inside are counted.
const ENDED: u32 = 1 << 31;

/// A pointer to an object of libibverbs.
pub(crate) struct Handle<T> {
    pointer: *mut T,
    state: AtomicU32,
    process: u32,
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.state.load(Ordering::Relaxed) & ENDED != 0;
        write!(f, "{:p}{}", self.pointer, if ended { " (destroyed)" } else { "" })
    }
}

// SAFETY: libibverbs' objects may be used from any thread (its manual: the library is fully thread safe), and the handle
// itself is an address and a counter.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: likewise; destroying waits for every call inside.
unsafe impl<T> Sync for Handle<T> {}

/// A call is inside: the object stays until this is dropped.
pub(crate) struct Inside<'a, T> {
    handle: &'a Handle<T>,
}

impl<T> Inside<'_, T> {
    /// The object, valid while `self` lives.
    pub(crate) fn pointer(&self) -> *mut T {
        self.handle.pointer
    }
}

impl<T> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        self.handle.state.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Handle<T> {
    /// Takes what a `create` function gave, which is not null.
    pub(crate) fn new(pointer: *mut T) -> Self {
        debug_assert!(!pointer.is_null());
        Self { pointer, state: AtomicU32::new(0), process: process::id() }
    }

    /// Enters it; `None` once it is destroyed.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_, T>> {
        let before = self.state.fetch_add(1, Ordering::Acquire);
        let inside = Inside { handle: self };
        if before & ENDED == 0 { Some(inside) } else { None }
    }

    /// Enters it for a verb that explains itself.
    pub(crate) fn enter_or(&self, what: &str) -> Result<Inside<'_, T>, VerbsError> {
        self.enter().ok_or_else(|| stale(what))
    }

    /// Enters it for a posting verb.
    #[inline]
    pub(crate) fn enter_to_post(&self, destroyed: &'static str) -> Result<Inside<'_, T>, PostError> {
        self.enter().ok_or(PostError { index: 0, errno: Errno::EINVAL, reason: destroyed })
    }

    /// True in a forked child: the object is the parent's.
    pub(crate) fn is_inherited(&self) -> bool {
        process::id() != self.process
    }

    /// Waits until no call is inside, and destroys by `destroy`, which gives 0 or an errno. `Ok(false)`: it was destroyed
    /// before, or is the parent's.
    pub(crate) fn end(&self, destroy: impl FnOnce(*mut T) -> i32) -> Result<bool, i32> {
        if self.is_inherited() || self.state.fetch_or(ENDED, Ordering::AcqRel) & ENDED != 0 {
            return Ok(false);
        }
        while self.state.load(Ordering::Acquire) != ENDED {
            std::thread::yield_now();
        }
        match destroy(self.pointer) {
            0 => Ok(true),
            errno => {
                self.state.fetch_and(!ENDED, Ordering::Release);
                Err(errno)
            }
        }
    }
}

pub(crate) fn stale(what: &str) -> VerbsError {
    VerbsError::invalid(format!("this {what} was destroyed: the handle is stale"))
}

/// An object that others hang on.
pub(crate) trait Parent {
    /// How many.
    fn uses(&self) -> &AtomicUsize;
}

/// A use of a parent: the parent stays, and cannot be destroyed.
#[derive(Debug)]
pub(crate) struct Use<P: Parent>(Arc<P>);

impl<P: Parent> Use<P> {
    pub(crate) fn of(parent: &Arc<P>) -> Self {
        parent.uses().fetch_add(1, Ordering::AcqRel);
        Self(parent.clone())
    }
}

impl<P: Parent> Deref for Use<P> {
    type Target = P;
    fn deref(&self) -> &P {
        &self.0
    }
}

impl<P: Parent> Drop for Use<P> {
    fn drop(&mut self) {
        self.0.uses().fetch_sub(1, Ordering::AcqRel);
    }
}

/// What an object hangs on; gone once it is destroyed, whoever still has a handle.
#[derive(Debug)]
pub(crate) struct Parents<T>(Mutex<Option<T>>);

impl<T> Parents<T> {
    pub(crate) fn new(parents: T) -> Self {
        Self(Mutex::new(Some(parents)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Destroys an object that nothing hangs on: the whole of `destroy` of every trait.
pub(crate) fn destroy<T, P>(
    handle: &Handle<T>,
    parents: &Parents<P>,
    uses: Option<&AtomicUsize>,
    what: &str,
    call: impl FnOnce(*mut T) -> i32,
) -> Result<(), VerbsError> {
    if handle.is_inherited() {
        return Ok(());
    }
    let used = uses.map_or(0, |uses| uses.load(Ordering::Acquire));
    if used > 0 {
        let objects = if used == 1 { "1 object".to_owned() } else { format!("{used} objects") };
        return Err(VerbsError::misuse(
            Errno::EBUSY,
            format!("the {what} is used by {objects}: destroy what was made of it first"),
        ));
    }
    match handle.end(call) {
        Ok(true) => {
            *parents.lock() = None;
            Ok(())
        }
        Ok(false) => Err(stale(what)),
        Err(errno) => Err(crate::explain::failed(&format!("destroy the {what}"), errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(AtomicUsize);
    impl Parent for Thing {
        fn uses(&self) -> &AtomicUsize {
            &self.0
        }
    }

    fn made() -> (Handle<u8>, Box<u8>) {
        let mut object = Box::new(7);
        (Handle::new(&raw mut *object), object)
    }

    #[test]
    fn a_destroyed_object_is_not_entered() {
        let (handle, _object) = made();
        assert!(handle.enter().is_some());
        assert_eq!(handle.end(|_| 0), Ok(true));
        assert!(handle.enter().is_none());
        assert_eq!(handle.end(|_| unreachable!("destroyed twice")), Ok(false));
    }

    #[test]
    fn a_refused_destroy_leaves_the_object_in_use() {
        let (handle, _object) = made();
        assert_eq!(handle.end(|_| libc::EBUSY), Err(libc::EBUSY));
        assert!(handle.enter().is_some());
    }

    #[test]
    fn destroying_waits_for_the_calls_inside() {
        let (handle, _object) = made();
        let inside = handle.enter().expect("it lives");
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| handle.end(|_| 0));
            while handle.state.load(Ordering::Acquire) & ENDED == 0 {
                std::thread::yield_now();
            }
            assert!(!ending.is_finished());
            drop(inside);
            assert_eq!(ending.join().expect("it ends"), Ok(true));
        });
    }

    #[test]
    fn a_parent_with_children_is_busy() {
        let (handle, _object) = made();
        let parents = Parents::new(());
        let thing = Arc::new(Thing(AtomicUsize::new(0)));
        let child = Use::of(&thing);
        let error = destroy(&handle, &parents, Some(thing.uses()), "thing", |_| 0).unwrap_err();
        assert_eq!(error.errno, Errno::EBUSY);
        assert!(error.message.contains("used by 1 object"), "{error}");
        drop(child);
        assert!(destroy(&handle, &parents, Some(thing.uses()), "thing", |_| 0).is_ok());
        assert!(parents.lock().is_none());
    }
}
