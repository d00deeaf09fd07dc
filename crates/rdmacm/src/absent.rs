//! What this librdmacm does not have. rsockets need the distribution's librdmacm, which runs on the same engine below `sfab run`; names
//! of InfiniBand services need a subnet administrator, which RoCE does not have. Each is there, so that programs load, and fails with a
//! clear errno.

use crate::engine::status;

/// Functions that return -1 (as an int, a ssize_t or an off_t) with an errno.
macro_rules! absent {
    ($errno:ident: $($name:ident)*) => { $(
        /// Not there.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> isize {
            status(Err(libc::$errno)) as isize
        }
    )* };
}

absent! { EOPNOTSUPP:
    rsocket rbind rlisten raccept rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rread rreadv rsend rsendto rsendmsg rwrite
    rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl riomap riounmap riowrite repoll_create repoll_ctl
    repoll_wait
}

absent! { ENOSYS: rdma_resolve_addrinfo rdma_query_addrinfo rdma_write_cm_event }
