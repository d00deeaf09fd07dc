//! The public structures of `infiniband/verbs.h` as they lie in memory on 64-bit Linux: facts, no behaviour.
//!
//! Names are those of C without `ibv_`, in Rust's spelling; members keep their names. Every size and
//! every offset is held against the newest row of `abi/layouts.txt` when this compiles. Across rdma-core v28 to v65 these
//! structures only grew at their tails: whoever makes one for a program leaves room behind it, and whoever reads an `…_ex`
//! input looks only at members that its `comp_mask` names. Which release had which layout stands in that table, and which
//! functions in `abi/symbols.txt` and `abi/rdmacm.txt`; tests compare all three with what is installed. Enumerations are
//! `u32` here: a program may pass any value.

#![allow(missing_docs)]

mod communication;
mod context;
mod device;
pub mod layouts;
mod objects;
mod queue;
pub mod ucma;

pub use communication::*;
pub use context::*;
pub use device::*;
pub use objects::*;
pub use queue::*;

/// Holds structures and their members against the table when the crate compiles. A member is named as in C, with ` = ` and
/// its place here where that differs. The names are [`MIRRORED`], by files.
macro_rules! layout {
    ($( $c:ident = $rust:ident { $( $first:ident $(. $rest:ident)* $( = $to:ident $(. $on:ident)* )? ),* $(,)? } ; )*) => {
        $(
            const _: () = assert!(size_of::<$rust>() == layouts::newest(stringify!($c)), concat!("size of ", stringify!($c)));
            $( const _: () = assert!(
                layout!(@offset $rust, $first $(. $rest)* $( = $to $(. $on)* )?)
                    == layouts::newest(concat!(stringify!($c), ".", stringify!($first) $(, ".", stringify!($rest))*)),
                concat!("offset of ", stringify!($c), ".", stringify!($first) $(, ".", stringify!($rest))*)
            ); )*
        )*
        pub(super) const NAMES: &[&str] = &[ $(
            stringify!($c),
            $( concat!(stringify!($c), ".", stringify!($first) $(, ".", stringify!($rest))*), )*
        )* ];
    };
    (@offset $rust:ident, $first:ident $(. $rest:ident)*) => { core::mem::offset_of!($rust, $first $(. $rest)*) };
    (@offset $rust:ident, $first:ident $(. $rest:ident)* = $to:ident $(. $on:ident)*) => {
        core::mem::offset_of!($rust, $to $(. $on)*)
    };
}
pub(crate) use layout;

/// Every structure and member that is held against the table, as the table names them.
pub const MIRRORED: [&[&str]; 5] = [communication::NAMES, context::NAMES, device::NAMES, objects::NAMES, queue::NAMES];

/// A pthread mutex as C sees it: never touched by us, only room.
pub type Mutex = libc::pthread_mutex_t;
/// A pthread condition variable, likewise.
pub type Condition = libc::pthread_cond_t;

/// Opaque function slot of a table that no header calls.
pub type Unused = Option<unsafe extern "C" fn()>;
