//! The public structures of `infiniband/verbs.h` as they lie in memory on 64-bit Linux: facts, no behaviour.
//!
//! Names are those of C without `ibv_`, in Rust's spelling; members keep their names. Every size and the offsets that
//! matter are asserted when this compiles. Across rdma-core v28 to v65 these structures only grew at their tails:
//! whoever makes one for a program leaves room behind it, and whoever reads an `…_ex` input looks only at members that
//! its `comp_mask` names. Which release had which layout stands in `abi/layouts.txt`, and which functions in
//! `abi/symbols.txt` and `abi/rdmacm.txt`; tests compare them with this and with what is installed. Enumerations are `u32` here: a program may pass any value.

#![allow(missing_docs)]

mod communication;
mod context;
mod device;
mod objects;
mod queue;
pub mod ucma;

pub use communication::*;
pub use context::*;
pub use device::*;
pub use objects::*;
pub use queue::*;

/// Asserts sizes, and offsets of members, when the crate compiles.
macro_rules! layout {
    ($( $type:ident $size:literal $( { $( $member:ident $offset:literal ),* } )? ; )*) => {
        $(
            const _: () = assert!(size_of::<$type>() == $size, concat!("size of ", stringify!($type)));
            $( $( const _: () = assert!(core::mem::offset_of!($type, $member) == $offset,
                concat!("offset of ", stringify!($type), ".", stringify!($member))); )* )?
        )*
    };
}
pub(crate) use layout;

/// A pthread mutex as C sees it: never touched by us, only room.
pub type Mutex = libc::pthread_mutex_t;
/// A pthread condition variable, likewise.
pub type Condition = libc::pthread_cond_t;

/// Opaque function slot of a table that no header calls.
pub type Unused = Option<unsafe extern "C" fn()>;
