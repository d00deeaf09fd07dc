//! The provider: finds devices, opens them, makes objects. Handles are `Arc`s; an object keeps its parents alive.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Debug;
use core::time::Duration;

use scalefabric_wire::{Gid, PKey, Qpn, RKey, Srqn};

use crate::access::AccessFlags;
use crate::attribute::{AddressVector, DeviceAttr, GidEntry, PortAttr, QpCap};
use crate::cm::CmChannel;
use crate::completion_queue::{CompletionChannel, CompletionQueue, CqInit};
use crate::device_memory::DeviceMemory;
use crate::error::{Errno, PostError, VerbsError};
use crate::event::AsyncEvent;
use crate::on_demand::MrAdvice;
use crate::operation::{OpKind, op_allowed};
use crate::queue_pair::QueuePair;
use crate::shared_memory::SharedMemory;
use crate::state::QpType;
use crate::work_completion::WorkCompletion;
use crate::work_request::{LKey, RecvWr, Sge};

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name, such as `sf0`.
    pub name: String,
    /// EUI-64.
    pub node_guid: u64,
    /// Index, stable while the device exists.
    pub index: u32,
    /// The network interfaces of its ports, in port order.
    pub interfaces: Vec<String>,
}

/// A backend.
pub trait Provider: Send + Sync + Debug {
    /// All devices, in a stable order.
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError>;

    /// Opens a device by name. `ENODEV` names those that exist.
    fn open(&self, name: &str) -> Result<Arc<dyn Context>, VerbsError>;

    /// Opens an event channel of the communication manager. `EOPNOTSUPP` where there is none.
    fn event_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError> {
        Err(VerbsError::environment(
            Errno::EOPNOTSUPP,
            "this backend has no communication manager: exchange QP numbers by other means, or choose a backend with rdma_cm",
        ))
    }
}

/// An open device.
pub trait Context: Send + Sync + Debug {
    /// What was opened.
    fn device(&self) -> DeviceInfo;
    /// Limits and identity.
    fn query_device(&self) -> Result<DeviceAttr, VerbsError>;
    /// State of a port, from 1.
    fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbsError>;
    /// GID at an index; zero for an empty slot, `EINVAL` beyond the table.
    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid, VerbsError>;
    /// All GIDs of all ports.
    fn query_gid_table(&self) -> Result<Vec<GidEntry>, VerbsError>;
    /// P_Key at an index.
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey, VerbsError>;

    /// Whether QPs of a type have an operation on this device: what `send_ops_flags` of `ibv_create_qp_ex` may ask for. False
    /// for types that it does not have at all.
    fn supports(&self, qp_type: QpType, kind: OpKind) -> bool {
        op_allowed(qp_type, kind)
    }

    /// Whether `rq_psn` of a QP in ERR says exactly which requests of its peer were executed: all before it, none from it on. A
    /// device may have fetched more than it executed, so by default it does not.
    fn rq_psn_is_executed_prefix(&self) -> bool {
        false
    }

    /// Whether a connected QP whose queue is drained (SQD) takes a new address vector, on another port too, and goes on by it (clause 11.2.5.2).
    /// Many devices and Linux's rxe do not, and no attribute says so; by default it does not.
    fn takes_vector_in_sqd(&self) -> bool {
        false
    }

    /// Makes a protection domain.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError>;
    /// Makes a completion channel.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError>;
    /// Makes a CQ of at least `cqe` entries. `comp_vector` must be below `num_comp_vectors`.
    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Arc<dyn CompletionChannel>>,
        comp_vector: u32,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError>;
    /// Makes a CQ as [`Context::create_cq`], with what only `ibv_create_cq_ex` can ask for. `EOPNOTSUPP` names a flag that
    /// the device does not have.
    fn create_cq_with(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        if init.flags.is_empty() {
            return self.create_cq(init.cqe, init.channel.clone(), init.comp_vector);
        }
        Err(unsupported("flags of completion queues"))
    }
    /// The raw clock now, ns, by which completions are stamped (`ibv_query_rt_values_ex`).
    fn query_rt_values(&self) -> Result<u64, VerbsError> {
        Err(unsupported("a raw clock"))
    }
    /// The time of day, ns since 1970, at which the raw clock showed `raw_ns`.
    fn wallclock_ns(&self, _raw_ns: u64) -> Result<u64, VerbsError> {
        Err(unsupported("a raw clock"))
    }
    /// Allocates device memory: `length` bytes, at a multiple of 2^`log_align` in it. `ENOMEM` when there is not so much
    /// left, `EINVAL` for 0 bytes or more than `max_dm_size`.
    fn alloc_dm(&self, _length: u64, _log_align: u32) -> Result<Arc<dyn DeviceMemory>, VerbsError> {
        Err(unsupported("device memory"))
    }
    /// Opens an XRC domain by a file: all who open it through the same file (inode) get the same domain. `EBADF` for a
    /// descriptor that is none, `EOPNOTSUPP` if the domain belongs to another process and the device cannot share it.
    fn open_xrcd_with(&self, init: &XrcdInit) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        if init.fd.is_none() {
            return self.open_xrcd();
        }
        Err(unsupported("XRC domains that are shared through a file"))
    }
    /// Another handle of an XRC target QP, by its number (`ibv_open_qp`); events come to each of them. The QP lives until
    /// its last handle is gone. `EINVAL` if the domain has no such QP.
    fn open_qp(&self, _xrcd: &Arc<dyn XrcDomain>, _qp_num: Qpn) -> Result<Arc<dyn QueuePair>, VerbsError> {
        Err(unsupported("opening an XRC target QP by its number"))
    }
    /// Opens an XRC domain of this process.
    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>, VerbsError>;
    /// Makes an XRC target QP, which belongs to an XRC domain and not to a PD.
    fn create_xrc_target(&self, xrcd: &Arc<dyn XrcDomain>) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// Descriptor that becomes readable when an asynchronous event is there.
    fn async_fd(&self) -> i32;
    /// Waits for an asynchronous event and takes it; `None` when `timeout` passes; without one, when a
    /// signal handler ran meanwhile.
    fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, VerbsError>;

    /// Hardware counters: name and value, with the names of Linux's drivers.
    fn hw_counters(&self, port_num: u8) -> Result<Vec<(String, u64)>, VerbsError>;
    /// Reads some of them, for who reads them often: `places` are indices in that list, which stay as they are while the device is open; their values
    /// go to `out`. `EINVAL` for a place beyond the list, and for an `out` of another length. A backend that can does it without allocating; the
    /// default reads the whole list.
    fn read_hw_counters(&self, port_num: u8, places: &[u32], out: &mut [u64]) -> Result<(), VerbsError> {
        let all = self.hw_counters(port_num)?;
        let values = |place: u32| all.get(place as usize).map(|(_, value)| *value);
        read_places(places, out, values)
    }

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// Values by their places.
pub fn read_places(places: &[u32], out: &mut [u64], value: impl Fn(u32) -> Option<u64>) -> Result<(), VerbsError> {
    if places.len() != out.len() {
        return Err(VerbsError::invalid(format!("{} counters do not fit {} values", places.len(), out.len())));
    }
    for (place, out) in places.iter().zip(out) {
        *out = value(*place)
            .ok_or_else(|| VerbsError::invalid(format!("the port has no counter at place {place}: list them anew")))?;
    }
    Ok(())
}

fn unsupported(what: &str) -> VerbsError {
    VerbsError::misuse(Errno::EOPNOTSUPP, alloc::format!("this device does not have {what}"))
}

/// What [`Context::open_xrcd_with`] takes (`ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct XrcdInit {
    /// Descriptor of the file that names the domain; `None` (-1 in C): a domain of one's own.
    pub fd: Option<i32>,
    /// Make it if it is not there (`O_CREAT`); without it `EAGAIN`, as Linux gives it.
    pub create: bool,
    /// With `create`: it may not be there yet (`O_EXCL`), else `EINVAL`, as Linux gives it.
    pub exclusive: bool,
}

/// What `create_qp` takes.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Type; not `XrcRecv` (see [`Context::create_xrc_target`]).
    pub qp_type: QpType,
    /// Where send completions go.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Where receive completions go.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Receives come from here if given.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send WR makes a completion.
    pub sq_sig_all: bool,
}

/// What `create_srq` takes.
#[derive(Clone, Debug)]
pub struct SrqInit {
    /// Outstanding WRs.
    pub max_wr: u32,
    /// SGEs in a WR.
    pub max_sge: u32,
    /// Limit event threshold. Not looked at when an SRQ is made, as in libibverbs: an empty one is below any limit. Arm it
    /// with `modify` when WRs are posted.
    pub srq_limit: u32,
    /// For XRC: its domain and its CQ.
    pub xrc: Option<(Arc<dyn XrcDomain>, Arc<dyn CompletionQueue>)>,
}

/// Type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MwType {
    /// Bound by a verb; the device chooses the rkey.
    Type1,
    /// Bound by a WR; the consumer chooses the low 8 bits of the rkey; tied to a QP once bound (type 2B).
    Type2,
}

/// A protection domain.
pub trait ProtectionDomain: Send + Sync + Debug {
    /// Number within the device.
    fn pd_num(&self) -> u32;

    /// Registers memory that the caller owns.
    ///
    /// # Safety
    /// Peers and the device read and write the range until the region is gone; the caller must keep it mapped or accept
    /// failed operations (never a signal), and must not hold Rust references to bytes that may be written.
    #[allow(unsafe_code)]
    unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError>;

    /// Allocates zeroed memory and registers it; it lives as long as the region. The safe way.
    fn alloc_mr(&self, length: usize, access: AccessFlags) -> Result<Arc<dyn MemoryRegion>, VerbsError>;

    /// Zeroed memory that belongs to no region yet, and that neighbours on this host reach by mapping once a region lies over it: `length` bytes, at least one, rounded up to
    /// pages. `EOPNOTSUPP` from a backend that shares nothing (hardware reaches all memory alike), `ENOMEM` without room.
    fn alloc_shared(&self, _length: usize) -> Result<Arc<dyn SharedMemory>, VerbsError> {
        Err(unsupported("memory that other processes of this host map"))
    }

    /// Registers a part of a piece of device memory (`ibv_reg_dm_mr`). Its addresses start at zero: ZERO_BASED must be given.
    /// `EINVAL` outside the piece.
    fn reg_dm_mr(
        &self,
        _dm: &Arc<dyn DeviceMemory>,
        _offset: u64,
        _length: usize,
        _access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        Err(unsupported("device memory"))
    }

    /// Gives advice on ranges of on-demand regions of this PD (`ibv_advise_mr`). With `flush` the pages are there when it
    /// returns and errors are told; without, it may happen later and page faults are nobody's error. `EINVAL` for a
    /// region that is not on-demand, `ENOENT` for a key that is none, `EFAULT` beyond a region or without pages, `EPERM`
    /// to write where the region may not be written.
    fn advise_mr(&self, _advice: MrAdvice, _flush: bool, _sg_list: &[Sge]) -> Result<(), VerbsError> {
        Err(unsupported("on-demand paging"))
    }

    /// Makes a memory window.
    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn MemoryWindow>, VerbsError>;

    /// Makes a QP.
    fn create_qp(&self, init: &QpInit) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// Makes an SRQ.
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError>;

    /// Makes an address handle.
    fn create_ah(&self, av: &AddressVector) -> Result<Arc<dyn AddressHandle>, VerbsError>;

    /// Makes an address handle that answers a received datagram: `grh` is the first 40 bytes of its buffer.
    fn create_ah_from_wc(
        &self,
        wc: &WorkCompletion,
        grh: &[u8; 40],
        port_num: u8,
    ) -> Result<Arc<dyn AddressHandle>, VerbsError>;

    /// Destroys it: `EBUSY` while objects use it.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// An aligned word of 8 bytes that is looked at often: for who polls memory that peers write. It is there for as long as this is held, whatever becomes of the region.
pub trait Word: Send + Sync + Debug {
    /// Reads it in one piece, with acquire ordering.
    fn load(&self) -> u64;
}

/// A memory region. Its bytes are shared with peers: they are copied in and out, never borrowed.
pub trait MemoryRegion: Send + Sync + Debug {
    /// Address of its first byte, as SGEs and peers name it (iova).
    fn addr(&self) -> u64;
    /// Bytes.
    fn length(&self) -> usize;
    /// Local key.
    fn lkey(&self) -> LKey;
    /// Remote key.
    fn rkey(&self) -> RKey;
    /// Copies bytes in. `EINVAL` outside the region, `EFAULT` if the memory is gone.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError>;
    /// Copies bytes out.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError>;
    /// Reads an aligned 8-byte word in one piece, with acquire ordering.
    fn load_u64(&self, offset: usize) -> Result<u64, VerbsError>;
    /// Writes an aligned 8-byte word in one piece, with release ordering.
    fn store_u64(&self, offset: usize, value: u64) -> Result<(), VerbsError>;
    /// A word that can be looked at for the price of a load; `None`, the default, where the memory could go away meanwhile (memory that the application brought):
    /// [`MemoryRegion::load_u64`] looks each time. Errors as there.
    fn word(&self, offset: usize) -> Result<Option<Arc<dyn Word>>, VerbsError> {
        self.load_u64(offset).map(|_| None)
    }
    /// Changes access, PD or range (`ibv_rereg_mr`); `None` keeps.
    ///
    /// # Safety
    /// As [`ProtectionDomain::reg_mr`] for a new range.
    #[allow(unsafe_code)]
    unsafe fn rereg(
        &self,
        range: Option<(*mut u8, usize)>,
        pd: Option<&Arc<dyn ProtectionDomain>>,
        access: Option<AccessFlags>,
    ) -> Result<(), VerbsError>;
    /// Deregisters: when it returns, nothing touches the memory any more. `EBUSY` while windows are bound.
    fn destroy(&self) -> Result<(), VerbsError>;
    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// A memory window.
pub trait MemoryWindow: Send + Sync + Debug {
    /// Its type.
    fn mw_type(&self) -> MwType;
    /// Its present rkey.
    fn rkey(&self) -> RKey;
    /// Deallocates.
    fn destroy(&self) -> Result<(), VerbsError>;
    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// A shared receive queue.
pub trait SharedReceiveQueue: Send + Sync + Debug {
    /// Its number, for XRC.
    fn srq_num(&self) -> Srqn;
    /// Posts a chain of receive WRs.
    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError>;
    /// Changes size or arms the limit event.
    fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<(), VerbsError>;
    /// max_wr, max_sge, srq_limit.
    fn query(&self) -> Result<(u32, u32, u32), VerbsError>;
    /// Destroys it: `EBUSY` while a QP uses it.
    fn destroy(&self) -> Result<(), VerbsError>;
    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// An address handle.
pub trait AddressHandle: Send + Sync + Debug {
    /// Where it leads.
    fn address_vector(&self) -> AddressVector;
    /// Destroys it.
    fn destroy(&self) -> Result<(), VerbsError>;
    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// An XRC domain.
pub trait XrcDomain: Send + Sync + Debug {
    /// Closes it: `EBUSY` while SRQs or QPs use it.
    fn destroy(&self) -> Result<(), VerbsError>;
    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}
