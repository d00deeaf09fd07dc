//! The open device: where all other objects come from (clause 11.2.1).

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use scalefabric_transport::DropReason;
use scalefabric_verbs::{
    AsyncEvent, CompletionChannel, CompletionQueue, Context, CqFlags, CqInit, DeviceAttr, DeviceInfo, DeviceMemory,
    Errno, Gid, GidEntry, GidType, OpKind, PKey, PortAttr, PortState, ProtectionDomain, QpType, Qpn, QueuePair,
    VerbsError, XrcDomain, XrcdInit,
};

use super::completion_queue::{ChannelObject, CqObject};
use super::device_memory::DmObject;
use super::ours;
use super::protection_domain::PdObject;
use super::queue_pair::QpObject;
use super::xrc_domain::XrcdObject;
use crate::engine::drive::Core;
use crate::events::Events;
use crate::port::faults::Verb;
use crate::post::MAX_INLINE;

/// What the objects of a context share.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) core: Arc<Core>,
    pub(crate) events: Arc<Events>,
    /// Number among the contexts of this process.
    pub(crate) number: u32,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.core.unlisten(&self.events);
    }
}

/// An open device. A NIC may be opened several times in a process: each context has its own objects and events, and all
/// share the device's limits.
#[derive(Debug)]
pub struct NicContext {
    device: Arc<Device>,
}

impl NicContext {
    /// Opens the NIC of this process. Fails when no descriptor is left for its events.
    pub fn new(core: &Arc<Core>) -> Result<Arc<Self>, VerbsError> {
        let events = Arc::new(Events::new()?);
        let number = core.listen(&events);
        Ok(Arc::new(Self { device: Arc::new(Device { core: core.clone(), events, number }) }))
    }

    /// The engine behind it.
    pub fn core(&self) -> &Arc<Core> {
        &self.device.core
    }
}

/// Width and speed codes of a port (`ibv_port_attr`): the smallest pair that carries `mbps`; 4x EDR (100 Gb/s) if unknown.
pub fn width_and_speed(mbps: u32) -> (u8, u8) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    match mbps {
        1..=2_500 => (X1, 1),
        2_501..=5_000 => (X1, 2),
        5_001..=10_000 => (X4, 1),
        10_001..=25_000 => (X1, 32),
        25_001..=40_000 => (X4, 4),
        40_001..=50_000 => (X1, 64),
        0 | 50_001..=100_000 => (X4, 32),
        100_001..=200_000 => (X4, 64),
        _ => (X4, 128),
    }
}

impl Context for NicContext {
    fn device(&self) -> DeviceInfo {
        self.core().config().device.clone()
    }

    fn query_device(&self) -> Result<DeviceAttr, VerbsError> {
        let mut attr = self.core().config().attr.clone();
        attr.max_inline_data = attr.max_inline_data.min(MAX_INLINE as u32);
        Ok(attr)
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbsError> {
        let held = self.core().enter()?;
        let port = held.engine.tables().port_or_err(port_num)?;
        let drops = |reason| self.core().counters(port_num).map_or(0, |c| c.block().drops(reason)) as u32;
        let (active_width, active_speed) = width_and_speed(port.speed_mbps());
        Ok(PortAttr {
            state: port.state(),
            max_mtu: self.core().config().rules.max_mtu,
            active_mtu: port.mtu(),
            gid_tbl_len: port.gid_table_len(),
            // CM_SUP and IP_BASED_GIDS.
            port_cap_flags: (1 << 16) | (1 << 26),
            max_msg_sz: 1 << 31,
            bad_pkey_cntr: drops(DropReason::BadPKey),
            qkey_viol_cntr: drops(DropReason::BadQKey),
            pkey_tbl_len: port.pkey_table_len(),
            lid: 0,
            sm_lid: 0,
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width,
            active_speed,
            // LinkUp or Disabled.
            phys_state: if port.state() == PortState::Active { 5 } else { 3 },
            link_layer: 2,
            port_cap_flags2: 0,
            active_speed_ex: port.speed_mbps(),
        })
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid, VerbsError> {
        let held = self.core().enter()?;
        let port = held.engine.tables().port_or_err(port_num)?;
        port.gid(index).ok_or_else(|| {
            VerbsError::invalid(format!(
                "GID index {index} is beyond the table of port {port_num} ({} entries)",
                port.gid_table_len()
            ))
        })
    }

    fn query_gid_table(&self) -> Result<Vec<GidEntry>, VerbsError> {
        let held = self.core().enter()?;
        let tables = held.engine.tables();
        let ports = (1..=tables.len()).filter_map(|n| Some((n, tables.port(n)?)));
        let entries = ports.flat_map(|(port_num, port)| {
            let (name, ifindex) = port.interface();
            port.gids().map(move |(index, gid)| GidEntry {
                gid,
                gid_index: u32::from(index),
                port_num,
                gid_type: GidType::RoceV2,
                ndev_ifindex: ifindex,
                ndev_name: name.to_owned(),
            })
        });
        Ok(entries.collect())
    }

    fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey, VerbsError> {
        let held = self.core().enter()?;
        let port = held.engine.tables().port_or_err(port_num)?;
        port.pkey(index).ok_or_else(|| {
            VerbsError::invalid(format!(
                "P_Key index {index} is beyond the table of port {port_num} ({} entries)",
                port.pkey_table_len()
            ))
        })
    }

    fn supports(&self, qp_type: QpType, kind: OpKind) -> bool {
        self.core().config().rules.supports(qp_type, kind)
    }

    /// A responder executes a packet as it takes it.
    fn rq_psn_is_executed_prefix(&self) -> bool {
        true
    }

    /// The QP goes to the vector's port, if its path MTU fits there.
    fn takes_vector_in_sqd(&self) -> bool {
        true
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        self.core().home().check("device")?;
        self.core().check_verb(Verb::AllocPd)?;
        let token = self.core().registry().pds.take()?;
        let id = self.core().registry().pd_number();
        Ok(Arc::new(PdObject::new(&self.device, id, token)))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.core().home().check("device")?;
        Ok(Arc::new(ChannelObject::new(self.core())?))
    }

    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Arc<dyn CompletionChannel>>,
        comp_vector: u32,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.create_cq_with(&CqInit { cqe, channel, comp_vector, flags: CqFlags::empty() })
    }

    fn create_cq_with(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        let CqInit { cqe, channel, comp_vector, flags } = init;
        let (comp_vector, unknown) = (*comp_vector, flags.difference(CqFlags::all()));
        if !unknown.is_empty() {
            return Err(VerbsError::invalid(format!("completion queue flags {:#x} are not known", unknown.bits())));
        }
        if flags.contains(CqFlags::TIMESTAMP) && self.core().config().attr.hca_core_clock == 0 {
            return Err(VerbsError::misuse(
                Errno::EOPNOTSUPP,
                "this device does not stamp completions (hca_core_clock is 0)",
            ));
        }
        self.core().check_verb(Verb::CreateCq)?;
        let vectors = self.core().config().attr.num_comp_vectors;
        if comp_vector >= vectors {
            return Err(VerbsError::invalid(format!("comp_vector {comp_vector} is out of range 0 to {}", vectors - 1)));
        }
        let channel = match channel {
            None => None,
            Some(channel) => {
                Some(ours::<ChannelObject>(self.core(), channel.as_any(), "completion channel")?.shared.clone())
            }
        };
        Ok(CqObject::new(&self.device, *cqe, channel, *flags)?)
    }

    fn query_rt_values(&self) -> Result<u64, VerbsError> {
        if self.core().config().attr.hca_core_clock == 0 {
            return Err(VerbsError::misuse(Errno::EOPNOTSUPP, "this device has no raw clock (hca_core_clock is 0)"));
        }
        Ok(self.core().now().0)
    }

    fn wallclock_ns(&self, raw_ns: u64) -> Result<u64, VerbsError> {
        self.query_rt_values()?;
        Ok(raw_ns.wrapping_add(self.core().epoch_offset_ns()))
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<Arc<dyn DeviceMemory>, VerbsError> {
        Ok(Arc::new(DmObject::new(self.core(), length, log_align)?))
    }

    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.open_xrcd_with(&XrcdInit::default())
    }

    fn open_xrcd_with(&self, init: &XrcdInit) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        Ok(Arc::new(XrcdObject::new(self.core(), init)?))
    }

    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, qp_num: Qpn) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let xrcd = ours::<XrcdObject>(self.core(), xrcd.as_any(), "XRC domain")?;
        Ok(Arc::new(QpObject::open_xrc_target(&self.device, xrcd, qp_num)?))
    }

    fn create_xrc_target(&self, xrcd: &Arc<dyn XrcDomain>) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.core().check_verb(Verb::CreateQp)?;
        let xrcd = ours::<XrcdObject>(self.core(), xrcd.as_any(), "XRC domain")?;
        Ok(Arc::new(QpObject::new_xrc_target(&self.device, xrcd)?))
    }

    fn async_fd(&self) -> i32 {
        self.device.events.fd()
    }

    fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, VerbsError> {
        self.core().home().check("device")?;
        self.core().someone_sleeps();
        self.device.events.wait(timeout)
    }

    fn hw_counters(&self, port_num: u8) -> Result<Vec<(String, u64)>, VerbsError> {
        self.core().enter()?.engine.tables().port_or_err(port_num)?;
        let counters = self.core().counters(port_num);
        Ok(counters.map_or_else(Vec::new, |c| c.block().all().map(|(n, v)| (n.to_owned(), v)).collect()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
