//! A timing model of real NICs: what an operation costs and where, what batching, inline data, signalling and huge pages save, how the rate falls with QPs,
//! regions and small pages, and where atomics reach their ceiling. It is a model of timing only: no packet is formed and no memory moved; it knows nothing
//! of the shipped engine.
//!
//! A profile ([`profile`]) is a table of figures with a source each, in two kinds: what engineers are taught, and what was measured. The way of one operation
//! through idle parts is a closed form ([`path`]); queues, locks and caches are simulated by events ([`engine`]), in picoseconds, by a seed. [`mod@reference`]
//! holds the points of both sources and says which of them the figures were chosen by. The reasons stand in `docs/decisions/rnic.md`.

pub mod atomic;
pub mod cache;
pub mod compare;
pub mod curve;
pub mod engine;
pub mod load;
pub mod parameter;
pub mod path;
pub mod profile;
pub mod reference;
pub mod savings;
pub mod server;
pub mod shape;
pub mod svg;

pub use engine::Outcome;
pub use load::Load;
pub use parameter::{Key, PARAMETERS, Parameter};
pub use path::{Component, Path};
pub use profile::{Kind, Profile, Wrong};
pub use shape::{Op, Setting, Shape, Transport};
