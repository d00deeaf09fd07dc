//! The contract that everybody signs: objects, attributes, state tables, work requests, completions, events and the
//! [`Provider`] that makes them.
//!
//! Two backends implement it (the software NIC and real hardware through libibverbs) and applications are written
//! against it. This crate holds no protocol and no I/O: what is here is types, tables and their rules. Names are those of
//! `ibv_*`, objects in full. Clauses cited are those of the IBTA specification, volume 1; chapter 11 is the verbs.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod attribute;
pub mod bring_up;
pub mod cm;
pub mod completion_queue;
pub mod device_memory;
pub mod error;
pub mod event;
pub mod limit;
pub mod on_demand;
pub mod operation;
pub mod provider;
pub mod queue_pair;
pub mod shared_memory;
pub mod state;
pub mod work_completion;
pub mod work_request;

pub use access::AccessFlags;
pub use attribute::*;
pub use cm::{
    CmAddr, CmAddresses, CmChannel, CmDevice, CmEvent, CmEventType, CmId, CmOption, ConnEvent, ConnParam, Ece,
    EventParam, JoinFlags, PathRecord, PortSpace, SockaddrIb, UdEvent,
};
pub use completion_queue::{CompletionChannel, CompletionQueue, CqFlags, CqInit};
pub use device_memory::DeviceMemory;
pub use error::{Blame, Errno, PostError, VerbsError};
pub use event::{AsyncEvent, EventSubject, EventType};
pub use limit::{DeviceLimits, check_ah, check_values};
pub use on_demand::{MrAdvice, OdpCaps, OdpFlags, OdpTransport};
pub use operation::{OpKind, OpRule, op_allowed};
pub use provider::*;
pub use queue_pair::{CongestionState, DataInOrder, QueuePair, RateLimit};
pub use scalefabric_wire::udp::{flow_label as flow_label_of, named_source_port, source_port as udp_source_port};
pub use scalefabric_wire::{Gid, PKey, Psn, QKey, Qpn, RKey, Srqn};
pub use shared_memory::SharedMemory;
pub use state::{QpState, QpType, Transition, check_modify, check_transition};
pub use work_completion::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
pub use work_request::{BindMw, FlushLevel, FlushPlacement, LKey, RecvWr, SendFlags, SendOp, SendWr, Sge, UdAddress};
