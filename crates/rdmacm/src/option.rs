//! Options of an identifier, and its ECE option.

use std::ffi::{c_int, c_void};

use scalefabric_ibv::abi::ucma::{self, Command};
use scalefabric_ibv::abi::{CmId, Ece};

use crate::command::tell;
use crate::engine::*;
use crate::id::{place, state};

/// `RDMA_OPTION_IB`.
pub const LEVEL_IB: c_int = 1;
/// `RDMA_OPTION_IB_PATH`.
pub const OPTION_IB_PATH: c_int = 1;

/// Sets an option. The device reads the value.
pub unsafe fn set_option(
    id: *mut CmId,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    let (fd, handle) = place(id);
    let command = ucma::SetOption {
        optval: value.expose_provenance() as u64,
        id: handle,
        level: level.cast_unsigned(),
        optname: name.cast_unsigned(),
        optlen: u32::try_from(length).map_err(|_| libc::EINVAL)?,
    };
    tell(fd, Command::SetOption, &command)
}

/// `rdma_set_option`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut CmId,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { set_option(id, level, optname, optval, optlen) })
}

/// `rdma_set_local_ece`: of identifiers without a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
    // SAFETY: null, or the caller's.
    let (owner, ece) = unsafe { (id.as_ref(), ece.as_ref()) };
    status(match (owner, ece) {
        (Some(owner), Some(ece)) if owner.qp.is_null() && ece.vendor_id != 0 && ece.comp_mask == 0 => {
            state(id).local_ece = ucma::Ece { vendor_id: ece.vendor_id, attr_mod: ece.options };
            Ok(())
        }
        _ => Err(libc::EINVAL),
    })
}

/// `rdma_get_remote_ece`: of identifiers without a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
    // SAFETY: null, or the caller's.
    let (owner, place) = unsafe { (id.as_ref(), ece.as_mut()) };
    status(match (owner, place) {
        (Some(owner), Some(place)) if owner.qp.is_null() => {
            let remote = state(id).remote_ece;
            *place = Ece { vendor_id: remote.vendor_id, options: remote.attr_mod, comp_mask: 0 };
            Ok(())
        }
        _ => Err(libc::EINVAL),
    })
}
