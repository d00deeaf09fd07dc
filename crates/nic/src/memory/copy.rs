//! Copies in and out of memory that may go away under us.

use scalefabric_verbs::Sge;

/// The memory is not mapped, or its protection forbids the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Copies the bytes that SGEs name by address into `out` (INLINE by SGEs: lkeys are not looked at). Returns how many.
/// The caller has checked that they fit.
///
/// # Safety
/// The SGEs name memory that the calling thread may read.
pub unsafe fn gather_raw(_sges: &[Sge], _out: &mut [u8]) -> Result<usize, Gone> {
    todo!()
}
