//! Multicast groups of an identifier. The device gives the events of a join the address of its [`Group`].

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use scalefabric_ibv::abi::ucma::{self, Command};
use scalefabric_ibv::abi::{CmId, CmJoinMcAttrEx, Gid};

use crate::address::storage;
use crate::command::ask;
use crate::engine::*;
use crate::id::{complete, place, private, state};

const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 1 << 1;
const FULL_MEMBER: u32 = 0;
const SEND_ONLY_FULL_MEMBER: u32 = 1;

/// A join.
pub struct Group {
    /// Who joined.
    pub id: *mut CmId,
    /// The program's.
    pub context: *mut c_void,
    /// Number in the device.
    handle: u32,
    flags: u32,
    address: [u8; 128],
    /// Where the QP was attached.
    mgid: Gid,
    mlid: u16,
    /// Events that were acknowledged.
    completed: u32,
}

/// The join's events come to an end: one is acknowledged. The identifier's count follows by its own call.
pub fn acknowledge(group: *mut Group) {
    // SAFETY: a group lives until its events are acknowledged; its count is written under the identifier's lock.
    unsafe {
        let _state = state((*group).id);
        (*group).completed += 1;
    }
}

/// The group is joined: the identifier's QP is attached to it, unless it only sends.
pub fn joined(group: *mut Group, mgid: Gid, mlid: u16) -> Result<(), Errno> {
    // SAFETY: a group lives until its events are acknowledged; so does its identifier.
    unsafe {
        let (id, flags) = {
            let _state = state((*group).id);
            ((*group).mgid, (*group).mlid) = (mgid, mlid);
            ((*group).id, (*group).flags)
        };
        if (*id).qp.is_null() || flags == SEND_ONLY_FULL_MEMBER {
            return Ok(());
        }
        done(ibv_attach_mcast((*id).qp, &raw const mgid, mlid))
    }
}

unsafe fn join(id: *mut CmId, addr: *const sockaddr, flags: u32, context: *mut c_void) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let (address, addr_size) = unsafe { storage(addr)? };
    let group = Group { id, context, handle: 0, flags, address, mgid: Gid::default(), mlid: 0, completed: 0 };
    let group = Box::into_raw(Box::new(group));
    let (fd, handle) = place(id);
    state(id).groups.push(group);
    let answer = ask(fd, Command::JoinMcast, |response| ucma::JoinMcast {
        response,
        uid: group.expose_provenance() as u64,
        id: handle,
        addr_size,
        join_flags: flags as u16,
        addr: address,
    });
    match answer {
        Ok(ucma::Word { value }) => {
            // SAFETY: written under the identifier's lock.
            unsafe {
                let _state = state(id);
                (*group).handle = value;
            }
            complete(id)
        }
        Err(errno) => {
            state(id).groups.retain(|known| *known != group);
            // SAFETY: the device does not know it, and nobody else.
            drop(unsafe { Box::from_raw(group) });
            Err(errno)
        }
    }
}

unsafe fn leave(id: *mut CmId, addr: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let (address, _) = unsafe { storage(addr)? };
    let group = {
        let mut state = state(id);
        // SAFETY: groups in the list live.
        let at = state.groups.iter().position(|&group| unsafe { (*group).address == address });
        state.groups.remove(at.ok_or(libc::EADDRNOTAVAIL)?)
    };
    // SAFETY: the group is ours until it is freed; the QP lives.
    let (mgid, mlid, number, attached) = unsafe {
        let group = &*group;
        (group.mgid, group.mlid, group.handle, !(*id).qp.is_null() && group.flags != SEND_ONLY_FULL_MEMBER)
    };
    if attached {
        // SAFETY: the identifier's QP.
        unsafe { ibv_detach_mcast((*id).qp, &raw const mgid, mlid) };
    }
    let answer =
        ask(place(id).0, Command::LeaveMcast, |response| ucma::DestroyId { response, id: number, reserved: 0 });
    let left = answer.map(|ucma::Word { value }| {
        // SAFETY: the group lives, and its count is read under the identifier's lock.
        private(id).wait(|_| unsafe { (*group).completed >= value });
    });
    // SAFETY: nobody has it any more.
    drop(unsafe { Box::from_raw(group) });
    left
}

/// `rdma_join_multicast`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut CmId, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { join(id, addr, FULL_MEMBER, context) })
}

/// `rdma_join_multicast_ex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut CmId,
    attr: *mut CmJoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's struct.
    let attr = unsafe { &*attr };
    let known = ATTR_ADDRESS | ATTR_JOIN_FLAGS;
    status(if attr.comp_mask & !known != 0 {
        Err(libc::EOPNOTSUPP)
    } else if attr.comp_mask != known || attr.join_flags > SEND_ONLY_FULL_MEMBER {
        Err(libc::EINVAL)
    } else {
        // SAFETY: the caller's.
        unsafe { join(id, attr.addr, attr.join_flags, context) }
    })
}

/// `rdma_leave_multicast`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut CmId, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { leave(id, addr) })
}
