//! Where the control plane keeps its state: keys and values with revisions, leases and watches, as etcd has them. etcd and the embedded store speak
//! through the same trait and pass the same conformance suite. It knows nothing of what the values mean.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub mod embedded;
pub mod etcd;
mod rules;

pub use embedded::Embedded;
pub use etcd::Etcd;
pub use rules::{MAX_KEY, MAX_TRANSACTION, MAX_VALUE};

/// A boxed future, so that the trait can be used as an object.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Counts all changes of the store. A key's revision is that of its last change; 0 for a key that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

/// A lease: keys that hang on it go when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key, UTF-8, parts separated by `/`.
    pub key: String,
    /// Value.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub revision: Revision,
    /// The lease it hangs on.
    pub lease: Option<LeaseId>,
}

/// A condition of [`Store::transact`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Key.
    pub key: String,
    /// Its revision must be this; 0: it must not be there.
    pub revision: Revision,
}

/// A change of [`Store::transact`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Put a value.
    Put {
        /// Key.
        key: String,
        /// Value.
        value: Vec<u8>,
        /// Lease it hangs on.
        lease: Option<LeaseId>,
    },
    /// Delete a key; no error if it is not there.
    Delete {
        /// Key.
        key: String,
    },
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key has a new value.
    Put(Entry),
    /// A key is gone, by deletion or because its lease ended.
    Delete {
        /// Key.
        key: String,
        /// Revision of the deletion.
        revision: Revision,
    },
}

/// A stream of changes, in order of revision, without a gap.
pub trait Watch: Send {
    /// The next changes: at least one; all of a revision together. [`StoreError::Compacted`] if it fell too far behind: read again and watch anew.
    fn next(&mut self) -> Pending<'_, Vec<Event>>;
}

/// The store.
pub trait Store: Send + Sync + fmt::Debug {
    /// Name for people: `etcd` or `embedded`.
    fn kind(&self) -> &'static str;

    /// Reads a key.
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>>;

    /// Reads all keys with a prefix, in order of key, and the revision at which they were all so.
    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, (Vec<Entry>, Revision)>;

    /// Puts a value; its revision.
    fn put<'a>(&'a self, key: &'a str, value: Vec<u8>, lease: Option<LeaseId>) -> Pending<'a, Revision> {
        Box::pin(async move {
            let change = Change::Put { key: key.to_owned(), value, lease };
            self.transact(Vec::new(), vec![change])
                .await?
                .ok_or_else(|| StoreError::Broken("a guardless change was refused".into()))
        })
    }

    /// Puts a value if the key's revision is `expected` (0: is not there). `None` if it is another.
    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Revision,
        value: Vec<u8>,
        lease: Option<LeaseId>,
    ) -> Pending<'a, Option<Revision>> {
        let guard = Guard { key: key.to_owned(), revision: expected };
        let change = Change::Put { key: key.to_owned(), value, lease };
        self.transact(vec![guard], vec![change])
    }

    /// All changes at one revision if all guards hold, else nothing and `None`. At most [`MAX_TRANSACTION`] guards and changes together, no key
    /// changed twice. Deleting what is not there changes nothing: the revision told is then that of the store.
    fn transact(&self, guards: Vec<Guard>, changes: Vec<Change>) -> Pending<'_, Option<Revision>>;

    /// Makes a lease of `ttl`, at least 1 s, whole seconds.
    fn grant(&self, ttl: Duration) -> Pending<'_, LeaseId>;

    /// Keeps a lease alive for its whole `ttl` again. [`StoreError::LeaseEnded`] if it has ended.
    fn keep_alive(&self, lease: LeaseId) -> Pending<'_, ()>;

    /// Ends a lease and deletes what hangs on it.
    fn revoke(&self, lease: LeaseId) -> Pending<'_, ()>;

    /// Watches all keys with a prefix, from the change after `after`.
    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> Pending<'a, Box<dyn Watch>>;

    /// Forgets what watches would need to begin before `up_to`. What is stored now stays. Done before, or beyond the present: no error.
    fn compact(&self, up_to: Revision) -> Pending<'_, ()>;
}

/// Why the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It cannot be reached, or has no leader, and it could not be found out in time whether what was asked was done. Read before asking again.
    Unavailable(String),
    /// It cannot be reached, or has no leader. What was asked was surely not done: ask again.
    NotDone(String),
    /// The lease has ended.
    LeaseEnded(LeaseId),
    /// History up to this revision is gone.
    Compacted(Revision),
    /// The caller asked for what cannot be.
    Invalid(String),
    /// What is stored cannot be read: it is left alone, and the message says what to do.
    Broken(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "the store cannot be reached: {why}"),
            Self::NotDone(why) => write!(f, "the store cannot be reached, nothing was changed: {why}"),
            Self::LeaseEnded(lease) => write!(f, "the lease {:x} has ended", lease.0),
            Self::Compacted(revision) => {
                write!(f, "changes up to revision {} are no longer kept: read again", revision.0)
            }
            Self::Invalid(why) => f.write_str(why),
            Self::Broken(why) => write!(f, "the store is broken: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}

impl StoreError {
    /// Whether the same call may succeed later, when the store can be reached again.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::NotDone(_))
    }
}
