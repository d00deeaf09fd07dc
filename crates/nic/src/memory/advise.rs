//! Advice on on-demand regions (`ibv_advise_mr`): pages are brought in before anybody needs them. Nothing is pinned: they
//! may go again at once. Errors are those of mlx5, the one driver that has this verb.

use scalefabric_verbs::{AccessFlags, Errno, MrAdvice, Sge, VerbsError};

use super::probe;
use super::table::{Entry, MemoryTable, PdId, kind};
use crate::ring::atomic::{Ordering, fence};

impl MemoryTable {
    /// Brings in the pages of the ranges. With `flush` they are there when it returns, and pages that cannot come are
    /// `EFAULT`; without, that is nobody's error. Keys and rights are looked at in any case.
    pub fn advise(&self, pd: PdId, advice: MrAdvice, flush: bool, sges: &[Sge]) -> Result<(), VerbsError> {
        for sge in sges {
            // All are looked at first: advice is given whole or not at all.
            self.with_advised(pd, advice, sge, |_| Ok(()))?;
        }
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let brought = self.with_advised(pd, advice, sge, |entry| bring(entry, advice, sge));
            if flush {
                brought?;
            }
        }
        Ok(())
    }

    /// Runs `work` on the region of an SGE that may be advised on, while deregistration waits.
    fn with_advised(
        &self,
        pd: PdId,
        advice: MrAdvice,
        sge: &Sge,
        work: impl FnOnce(&Entry) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let key = sge.lkey.0;
        let stale = || VerbsError::misuse(Errno::ENOENT, "the lkey names no memory region");
        let entry = self.find(key).ok_or_else(stale)?;
        entry.pins.fetch_add(1, Ordering::AcqRel);
        // Pairs with the fence in `quiesce`: either we see the revocation, or it sees our pin.
        fence(Ordering::SeqCst);
        let result = if entry.key.load(Ordering::Acquire) == key {
            check(entry, pd, advice, sge).and_then(|()| work(entry))
        } else {
            Err(stale())
        };
        entry.pins.fetch_sub(1, Ordering::Release);
        result
    }
}

fn check(entry: &Entry, pd: PdId, advice: MrAdvice, sge: &Sge) -> Result<(), VerbsError> {
    if entry.kind.load(Ordering::Relaxed) != kind::REGION {
        return Err(VerbsError::invalid("the key is that of a memory window: give a region's lkey"));
    }
    if entry.pd() != pd {
        return Err(VerbsError::misuse(Errno::EPERM, "the lkey is of another protection domain"));
    }
    let access = entry.access();
    if !access.contains(AccessFlags::ON_DEMAND) {
        return Err(VerbsError::invalid(
            "the region of this lkey is not on-demand: its pages are there already; register it with ON_DEMAND",
        ));
    }
    if advice == MrAdvice::PrefetchWrite && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(VerbsError::misuse(
            Errno::EPERM,
            "the region of this lkey may not be written: add LOCAL_WRITE, or prefetch for reading",
        ));
    }
    let offset = sge.addr.wrapping_sub(entry.base.load(Ordering::Relaxed));
    let size = entry.length.load(Ordering::Relaxed);
    if offset > size || u64::from(sge.length) > size - offset {
        return Err(VerbsError::misuse(
            Errno::EFAULT,
            format!("{} bytes at {:#x} leave the region of this lkey", sge.length, sge.addr),
        ));
    }
    Ok(())
}

fn bring(entry: &Entry, advice: MrAdvice, sge: &Sge) -> Result<(), VerbsError> {
    let offset = sge.addr.wrapping_sub(entry.base.load(Ordering::Relaxed));
    let host = entry.host.load(Ordering::Relaxed).wrapping_add(offset);
    let at = std::ptr::with_exposed_provenance_mut::<u8>(host as usize);
    let length = sge.length as usize;
    let there = match advice {
        MrAdvice::PrefetchNoFault => probe::is_present(at, length),
        // SAFETY: populating pages changes no byte; the region may be written if `write` (checked above).
        _ => unsafe { probe::is_accessible(at, length, advice == MrAdvice::PrefetchWrite) },
    };
    if there {
        return Ok(());
    }
    let what = match advice {
        MrAdvice::Prefetch => "mapped and readable",
        MrAdvice::PrefetchWrite => "mapped and writable",
        MrAdvice::PrefetchNoFault => "present, and may not be brought in",
    };
    Err(VerbsError::misuse(Errno::EFAULT, format!("not all of the {length} bytes at {at:p} are {what}")))
}
