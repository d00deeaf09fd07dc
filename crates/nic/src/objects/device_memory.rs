//! Device memory as an object: zeroed pages that this process never sees by address, as those of a NIC's own memory. Copies
//! and regions reach them; they live as long as any region does.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use scalefabric_verbs::{DeviceMemory, Errno, VerbsError};

use super::{Alive, Registry};
use crate::engine::drive::Core;
use crate::memory::Allocation;

/// Bytes that are given out, and how many there are.
#[derive(Debug)]
pub(crate) struct DeviceBytes {
    limit: u64,
    used: AtomicU64,
}

impl DeviceBytes {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    fn take(&self, length: u64) -> Result<(), VerbsError> {
        let take = |used: u64| used.checked_add(length).filter(|&sum| sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map(|_| ()).map_err(|used| {
            VerbsError::environment(
                Errno::ENOMEM,
                format!("{length} bytes of device memory: {} of {} are left; free some", self.limit - used, self.limit),
            )
        })
    }
}

/// What the regions over a piece of device memory hold.
#[derive(Debug)]
pub(crate) struct Dm {
    core: Arc<Core>,
    pub(crate) allocation: Arc<Allocation>,
    length: u64,
    users: AtomicU32,
    alive: Alive,
}

impl Dm {
    fn registry(&self) -> &Registry {
        self.core.registry()
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        self.registry().device_bytes.used.fetch_sub(self.length, Ordering::Relaxed);
    }
}

/// A use of a piece of device memory, for as long as it is held.
#[derive(Debug)]
pub(crate) struct DmUse(pub(crate) Arc<Dm>);

impl Drop for DmUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A piece of device memory.
#[derive(Debug)]
pub struct DmObject {
    pub(super) core: Arc<Core>,
    dm: Arc<Dm>,
}

impl DmObject {
    pub(crate) fn new(core: &Arc<Core>, length: u64, log_align: u32) -> Result<Self, VerbsError> {
        core.home().check("device")?;
        let limit = core.config().attr.max_dm_size;
        if limit == 0 {
            return Err(VerbsError::misuse(Errno::EOPNOTSUPP, "this device has no device memory (max_dm_size is 0)"));
        }
        if length == 0 || length > limit {
            return Err(VerbsError::invalid(format!("{length} bytes of device memory: 1 to max_dm_size {limit} go")));
        }
        // Nobody sees addresses of device memory, so every alignment that fits in it is kept.
        if log_align >= 64 || 1u64 << log_align > limit.next_power_of_two() {
            return Err(VerbsError::invalid(format!("alignment 2^{log_align} is more than max_dm_size {limit}")));
        }
        core.registry().device_bytes.take(length)?;
        let allocation = core.memory().allocate_pages(length as usize).inspect_err(|_| {
            core.registry().device_bytes.used.fetch_sub(length, Ordering::Relaxed);
        })?;
        let dm = Dm {
            core: core.clone(),
            allocation: Arc::new(allocation),
            length,
            users: AtomicU32::new(0),
            alive: Alive::new(),
        };
        Ok(Self { core: core.clone(), dm: Arc::new(dm) })
    }

    /// Begins a use of `length` bytes at `offset`.
    pub(crate) fn enter(&self, offset: u64, length: usize) -> Result<DmUse, VerbsError> {
        self.dm.alive.check("device memory")?;
        self.check_range(offset, length)?;
        self.dm.users.fetch_add(1, Ordering::AcqRel);
        Ok(DmUse(self.dm.clone()))
    }

    fn check_range(&self, offset: u64, length: usize) -> Result<(), VerbsError> {
        let size = self.dm.length;
        if offset > size || length as u64 > size - offset {
            return Err(VerbsError::invalid(format!(
                "{length} bytes at offset {offset} leave the {size} bytes of device memory"
            )));
        }
        Ok(())
    }
}

impl DeviceMemory for DmObject {
    fn length(&self) -> u64 {
        self.dm.length
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError> {
        self.dm.alive.check("device memory")?;
        self.check_range(offset, data.len())?;
        self.dm.allocation.write(offset as usize, data)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VerbsError> {
        self.dm.alive.check("device memory")?;
        self.check_range(offset, out.len())?;
        self.dm.allocation.read(offset as usize, out)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.dm.alive.is_inherited() {
            return Ok(());
        }
        self.dm.alive.check("device memory")?;
        let users = self.dm.users.load(Ordering::Acquire);
        if users > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("the device memory is used by {users} memory regions: deregister them first"),
            ));
        }
        self.dm.alive.end();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
