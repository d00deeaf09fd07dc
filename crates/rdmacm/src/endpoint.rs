//! `rdma_create_ep`: an identifier from a resolved address, with its QP; and its end.

use std::ffi::c_int;

use scalefabric_ibv::abi::{self, CmAddrInfo, CmId};

use crate::address;
use crate::engine::*;
use crate::id::{self, create, rdma_destroy_id, state};
use crate::option::{LEVEL_IB, OPTION_IB_PATH, set_option};
use crate::queue::{create_qp, rdma_destroy_qp, rdma_destroy_srq};
use crate::resolver::PASSIVE;

/// Patience for addresses and routes.
const TIMEOUT_MS: c_int = 2000;

unsafe fn fill(id: *mut CmId, info: &CmAddrInfo, pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> Result<(), Errno> {
    // SAFETY: a new identifier; the caller's structs.
    unsafe {
        if info.ai_flags & PASSIVE != 0 {
            address::bind(id, info.ai_src_addr)?;
            if !pd.is_null() {
                (*id).pd = pd;
            }
            if !init.is_null() {
                let mut init = std::ptr::read(init);
                init.qp_type = info.ai_qp_type.cast_unsigned();
                state(id).qp_init_attr = Some(init);
            }
            return Ok(());
        }
        address::resolve(id, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS)?;
        if info.ai_route_len > 0 {
            set_option(id, LEVEL_IB, OPTION_IB_PATH, info.ai_route, info.ai_route_len)?;
            id::complete(id)?;
        } else {
            address::resolve_route(id, TIMEOUT_MS)?;
        }
        if !init.is_null() {
            (*init).qp_type = info.ai_qp_type.cast_unsigned();
            create_qp(id, pd, init)?;
        }
        if info.ai_connect_len > 0 {
            let connect = std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len);
            state(id).connect = connect.to_vec();
        }
        Ok(())
    }
}

/// `rdma_create_ep`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut CmId,
    res: *mut CmAddrInfo,
    pd: *mut abi::Pd,
    qp_init_attr: *mut abi::QpInitAttr,
) -> c_int {
    // SAFETY: the caller's.
    let info = unsafe { &*res };
    let made = create(
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        info.ai_port_space.cast_unsigned(),
        info.ai_qp_type.cast_unsigned(),
    );
    status(made.and_then(|new| {
        // SAFETY: the caller's, and the new identifier.
        unsafe {
            fill(new, info, pd, qp_init_attr).inspect_err(|_| rdma_destroy_ep(new))?;
            *id = new;
        }
        Ok(())
    }))
}

/// `rdma_destroy_ep`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut CmId) {
    // SAFETY: a living identifier, for the last time.
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}
