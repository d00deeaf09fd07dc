//! The communication manager of the contract over librdmacm, which is loaded when a channel is first asked for.
//!
//! The contract is that of the kernel's interface, librdmacm's is a layer above: an identifier never has a QP of librdmacm
//! here, so that the application moves its own, and the connection is finished by `rdma_establish`. Identifiers belong to
//! their channel until they are destroyed, whoever still has a handle.

mod address;
mod channel;
mod event;
mod id;

pub(crate) use channel::IbvCmChannel;

use scalefabric_verbs::{Errno, VerbsError};

use crate::explain;
use crate::library::last_errno;

/// What a call of librdmacm left in `errno`, in the words of connections.
pub(crate) fn failed(what: &str) -> VerbsError {
    let raw = last_errno();
    let reason = match raw {
        libc::EADDRINUSE => "another listener has this address and port: choose another port, or 0 for a free one",
        libc::EADDRNOTAVAIL => "no interface of an RDMA device has this address: see the GIDs of the devices",
        libc::ENODEV => "no RDMA device serves this address, or rdma_ucm is not loaded",
        libc::EINVAL => "the identifier is not in the state for it, or an argument is out of its range",
        libc::ECONNREFUSED => "nobody listens there",
        libc::ENETUNREACH | libc::EHOSTUNREACH => "there is no route to this address",
        libc::EISCONN => "it is connected already",
        libc::ENOTCONN => "it is not connected",
        _ => return explain::failed(what, raw),
    };
    let errno = Errno::from_raw(raw).unwrap_or(Errno::EIO);
    let text = format!("cannot {what}: {reason}");
    if raw == libc::EINVAL { VerbsError::invalid(text) } else { VerbsError::environment(errno, text) }
}

/// 0, or what is in `errno`.
pub(crate) fn done(code: i32, what: &str) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(failed(what)) }
}
