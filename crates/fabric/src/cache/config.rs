//! What a cache is told when it is made, and what it tells of itself. Data only.

use std::fmt;

use scalefabric_verbs::AccessFlags;

/// How a cache learns that memory went away. Without a way to learn it, nothing is kept across calls: a registration that outlives its memory would
/// send bytes that are no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Watching {
    /// The kernel tells (`userfaultfd`), where it does; else as [`Self::Never`]. The default.
    #[default]
    Kernel,
    /// The application promises to call [`super::Cache::forget`] before any cached range is unmapped, remapped, shrunk or discarded, and not to ask for it
    /// again until that is done.
    Promised,
    /// Nobody tells: every call registers.
    Never,
}

impl fmt::Display for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "the kernel tells what goes away",
            Self::Promised => "the application tells what goes away",
            Self::Never => "every call registers",
        })
    }
}

/// What [`super::Cache::new`] takes.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Most bytes that unused registrations may keep. Default 4 GiB. 0 keeps none. A region above it is registered for its use only.
    pub max_bytes: usize,
    /// Most registrations that are kept. Default 4096, at most 65,536. 0 keeps none.
    pub max_entries: usize,
    /// A new range is joined with those it touches if the whole is at most this large; ranges that overlap are joined up to `max_bytes`. Default 1 MiB.
    pub merge_bytes: usize,
    /// What peers may do with it. Default: local writes, remote reads, writes and atomics. Memory that may not be written needs a cache without
    /// LOCAL_WRITE.
    pub access: AccessFlags,
    /// Registrations that are put by before they are deregistered together, in a thread of the cache's own. Default 64. 1 deregisters at once, in the
    /// thread that gave the region back. When four times as many wait, who gives back helps.
    pub batch: usize,
    /// How it learns that memory went away. Default: the kernel tells.
    pub watching: Watching,
    /// A part of the protection to leave out, so that a test can see itself fail.
    #[doc(hidden)]
    pub weakness: Weakness,
}

/// What [`CacheConfig::weakness`] leaves out. For canaries only: each makes hits stale.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Weakness {
    /// Nothing.
    #[default]
    None,
    /// The question to the kernel at each hit: memory that was unmapped and mapped anew before the event was read looks as before.
    NoQuestion,
    /// The time during which memory that is being discarded is not kept.
    NoQuarantine,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            max_bytes: 4 << 30,
            max_entries: 4096,
            merge_bytes: 1 << 20,
            access: AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            batch: 64,
            watching: Watching::Kernel,
            weakness: Weakness::None,
        }
    }
}

/// What a cache has and did. Numbers count from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// How it learns that memory went away, as it turned out.
    pub watching: Watching,
    /// Why it is not as configured.
    pub reason: Option<String>,
    /// Registrations that are kept now.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Registrations that wait to be deregistered.
    pub waiting: usize,
    /// Registrations that the device did not give up (a memory window is bound); they are tried again.
    pub stuck: usize,
    /// Bytes that a `madvise` is discarding and that are not kept until every thread has been seen outside it.
    pub quarantined_bytes: usize,
    /// Calls that found what they asked for.
    pub hits: u64,
    /// Calls that registered and kept it.
    pub kept: u64,
    /// Kept registrations that took others into themselves.
    pub joined: u64,
    /// Kept registrations that made room for others.
    pub evicted: u64,
    /// Kept registrations whose memory went away, or was forgotten.
    pub invalidated: u64,
    /// Calls that registered for their use only, by reason.
    pub passing: Passing,
    /// Deregistrations.
    pub deregistered: u64,
}

/// Why a call's registration was not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passing {
    /// Nothing is kept: [`Watching::Never`], or a maximum of 0.
    pub by_configuration: u64,
    /// Larger than the cache.
    pub too_large: u64,
    /// Files and shared memory, which other processes can truncate without a word.
    pub unwatchable: u64,
    /// Memory changed while it was being registered.
    pub changed: u64,
    /// A thread is discarding the memory.
    pub quarantined: u64,
    /// Everything that is kept is in use.
    pub full: u64,
}
