//! What a pool is told when it is made, and in which pages its memory may lie. Data only.

use std::fmt;

use scalefabric_verbs::{AccessFlags, DeviceInfo};

/// 1 GiB.
pub const GIB: usize = 1 << 30;
/// 2 MiB.
pub const MIB2: usize = 2 << 20;

/// Pages of an arena, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageKind {
    /// 1 GiB pages that the administrator reserved.
    Huge1G,
    /// 2 MiB pages that the administrator reserved.
    Huge2M,
    /// Ordinary memory which the kernel was asked to back with 2 MiB pages (`MADV_HUGEPAGE`).
    Transparent,
    /// 4 KiB pages.
    Plain,
}

impl PageKind {
    /// Every kind, best first.
    pub const ALL: [Self; 4] = [Self::Huge1G, Self::Huge2M, Self::Transparent, Self::Plain];

    /// Whether the administrator has reserved them.
    pub const fn is_reserved(self) -> bool {
        matches!(self, Self::Huge1G | Self::Huge2M)
    }

    /// Bytes by which an arena of this kind is mapped.
    pub const fn unit(self) -> usize {
        match self {
            Self::Huge1G => GIB,
            Self::Huge2M | Self::Transparent => MIB2,
            Self::Plain => 4096,
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge1G => "1 GiB pages",
            Self::Huge2M => "2 MiB pages",
            Self::Transparent => "transparent 2 MiB pages",
            Self::Plain => "4 KiB pages",
        })
    }
}

/// When bytes of a buffer are set to zero. Memory fresh from the kernel always is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Zeroing {
    /// Never: a buffer shows what its last owner left. Right where all peers trust one another.
    #[default]
    Never,
    /// When it is allocated; costs a pass over the buffer. Wanted where buffers are lent to peers of different tenants.
    OnAlloc,
}

/// What [`super::Pool::new`] takes.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Bytes that are mapped and registered at start. Default 1 GiB; 0: the first allocation makes the first arena.
    pub initial_bytes: usize,
    /// Bytes of each further arena. Default 256 MiB. A larger single allocation gets an arena of its size.
    pub arena_bytes: usize,
    /// Bytes that all arenas may have together; beyond it an allocation fails with `ENOMEM`. Default 16 GiB. Below `initial_bytes` it is an error.
    pub limit_bytes: usize,
    /// What peers may do with it. Default: local writes, remote reads, writes and atomics. Without remote rights [`crate::Local::remote`] is `None`;
    /// with `MW_BIND` it can be lent by windows ([`crate::endpoint::Config::lend_by_windows`]).
    pub access: AccessFlags,
    /// The best pages that are tried. Default [`PageKind::Huge1G`].
    pub best_pages: PageKind,
    /// The least that will do; what is worse is an error. Default [`PageKind::Plain`].
    pub least_pages: PageKind,
    /// Whether memory that other processes of this host map goes before private memory, where the device has such memory (the software NIC, unless all its requests
    /// are packets): WRITEs, READs and atomics of neighbours are then plain loads and stores. Reserved huge pages are private and come before it, as who reserved
    /// them wishes; transparent ones come within it, and private transparent ones only where `least_pages` refuses the rest. Default true. False: pages decide alone, and
    /// neighbours go through the kernel, with atomics as packets.
    pub shared: bool,
    /// NUMA node of the memory. Default `None`: that of the thread which makes the arena, as the kernel decides.
    pub numa_node: Option<u32>,
    /// When bytes are zeroed. Default never.
    pub zeroing: Zeroing,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            initial_bytes: GIB,
            arena_bytes: 256 << 20,
            limit_bytes: 16 * GIB,
            access: AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            best_pages: PageKind::Huge1G,
            least_pages: PageKind::Plain,
            shared: true,
            numa_node: None,
            zeroing: Zeroing::Never,
        }
    }
}

impl PoolConfig {
    /// The same, near this device, if the machine says where that is.
    #[must_use]
    pub fn near(mut self, device: &DeviceInfo) -> Self {
        self.numa_node = super::pages::node_of(device);
        self
    }
}

/// What an arena became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaReport {
    /// Bytes.
    pub bytes: usize,
    /// Its pages.
    pub pages: PageKind,
    /// Why each better kind was not taken, with what to do about it.
    pub refused: Vec<(PageKind, String)>,
    /// Bytes that really lie in huge pages, as the kernel counts them; less than `bytes` where transparent pages were not to be had.
    pub huge_bytes: usize,
    /// Whether other processes of this host map it, or why not.
    pub shared: Result<(), String>,
    /// NUMA node it was bound to, or why it was not.
    pub node: Result<u32, String>,
}

impl fmt::Display for ArenaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB in {} ({} MiB huge)", self.bytes >> 20, self.pages, self.huge_bytes >> 20)?;
        match &self.shared {
            Ok(()) => f.write_str(", mapped by neighbours")?,
            Err(why) => write!(f, ", not mapped by neighbours: {why}")?,
        }
        match &self.node {
            Ok(node) => write!(f, ", on node {node}")?,
            Err(why) => write!(f, ", {why}")?,
        }
        for (kind, why) in &self.refused {
            write!(f, "; no {kind}: {why}")?;
        }
        Ok(())
    }
}
