//! The open device: where all other objects come from.

use std::any::Any;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use scalefabric_verbs::{
    AsyncEvent, CompletionChannel, CompletionQueue, Context, CqInit, DeviceAttr, DeviceInfo, DeviceMemory,
    EventSubject, EventType, Gid, GidEntry, PKey, PortAttr, ProtectionDomain, Qpn, QueuePair, Srqn, VerbsError,
    XrcDomain, XrcdInit,
};

use crate::abi;
use crate::explain;
use crate::library::last_errno;
use crate::objects::completion_queue::{Channel, CompletionQueueObject};
use crate::objects::device::{Device, interface_name, operation};
use crate::objects::device_memory::DeviceMemoryObject;
use crate::objects::protection_domain::PdObject;
use crate::objects::queue_pair::QpObject;
use crate::objects::xrc_domain::XrcdObject;
use crate::objects::{deadline, ours, readable};
use crate::translate;

/// An open device of libibverbs.
#[derive(Debug)]
pub struct IbvContext {
    device: Arc<Device>,
}

impl IbvContext {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self { device }
    }

    /// The driver, if it is one that [`crate::vendor`] knows.
    pub fn vendor(&self) -> Option<&'static crate::vendor::Vendor> {
        self.device.vendor()
    }

    /// What an event happened to; `None` for events that this contract does not have. Its object stays until it is
    /// acknowledged.
    fn translate(event: &abi::AsyncEvent) -> Option<AsyncEvent> {
        let event_type = EventType::from_raw(event.event_type)?;
        // SAFETY: which member of the union counts is told by the type of the event; the object is destroyed only after the
        // event was acknowledged, which our caller does later. The contexts of our CQs and SRQs are their numbers.
        let subject = unsafe {
            match event_type {
                EventType::CqErr => {
                    let cq = event.element.object.cast::<abi::Cq>();
                    EventSubject::CompletionQueue((*cq).cq_context as usize as u32)
                }
                EventType::SrqErr | EventType::SrqLimitReached => {
                    let srq = event.element.object.cast::<abi::Srq>();
                    EventSubject::SharedReceiveQueue(Srqn::new((*srq).srq_context as usize as u32))
                }
                EventType::QpFatal
                | EventType::QpReqErr
                | EventType::QpAccessErr
                | EventType::CommEst
                | EventType::SqDrained
                | EventType::PathMig
                | EventType::PathMigErr
                | EventType::QpLastWqeReached => {
                    let qp = event.element.object.cast::<abi::Qp>();
                    EventSubject::QueuePair(Qpn::new((*qp).qp_num))
                }
                EventType::PortActive
                | EventType::PortErr
                | EventType::LidChange
                | EventType::PkeyChange
                | EventType::SmChange
                | EventType::ClientReregister
                | EventType::GidChange => EventSubject::Port(u8::try_from(event.element.port_num).unwrap_or(0)),
                EventType::DeviceFatal | EventType::WqFatal => EventSubject::Device,
            }
        };
        Some(AsyncEvent { event_type, subject })
    }

    /// Entries by one call of libibverbs, or none where it does not have it.
    fn gid_table_at_once(&self) -> Option<Vec<GidEntry>> {
        let query = self.device.verbs.query_gid_table?;
        let ports = self.device.attr().ok()?.phys_port_cnt;
        let room: u32 = (1..=ports).map(|port| self.device.port(port).map_or(0, |attr| attr.gid_tbl_len)).sum();
        let empty = abi::GidEntry { gid: [0; 16], gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut entries = vec![empty; room as usize];
        let inside = self.device.context();
        // SAFETY: room for so many entries of this size.
        let count =
            unsafe { query(inside.pointer(), entries.as_mut_ptr(), entries.len(), 0, size_of::<abi::GidEntry>()) };
        entries.truncate(usize::try_from(count).ok()?);
        let entry = |entry: &abi::GidEntry| GidEntry {
            gid: Gid(entry.gid),
            gid_index: entry.gid_index,
            port_num: entry.port_num as u8,
            gid_type: translate::gid_type(entry.gid_type),
            ndev_ifindex: entry.ndev_ifindex,
            ndev_name: interface_name(entry.ndev_ifindex),
        };
        Some(entries.iter().map(entry).collect())
    }

    /// One by one, with the types of sysfs.
    fn gid_table_one_by_one(&self) -> Result<Vec<GidEntry>, VerbsError> {
        let mut table = Vec::new();
        for port_num in 1..=self.device.attr()?.phys_port_cnt {
            let attributes = self.device.sysfs.join(format!("ports/{port_num}/gid_attrs"));
            for gid_index in 0..self.device.port(port_num)?.gid_tbl_len {
                let gid = self.device.query_gid(port_num, gid_index)?;
                if gid.is_zero() {
                    continue;
                }
                let read = |kind: &str| {
                    let text = fs::read_to_string(attributes.join(format!("{kind}/{gid_index}")));
                    text.map(|text| text.trim().to_owned()).unwrap_or_default()
                };
                let ndev_name = read("ndevs");
                let ndev_ifindex = std::ffi::CString::new(ndev_name.as_str())
                    // SAFETY: a string that ends in 0.
                    .map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) });
                let gid_type = translate::gid_type(if read("types") == "RoCE v2" { 2 } else { 1 });
                table.push(GidEntry { gid, gid_index, port_num, gid_type, ndev_ifindex, ndev_name });
            }
        }
        Ok(table)
    }
}

impl Context for IbvContext {
    fn device(&self) -> DeviceInfo {
        self.device.info.clone()
    }

    fn query_device(&self) -> Result<DeviceAttr, VerbsError> {
        self.device.attr()
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbsError> {
        self.device.port(port_num)
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid, VerbsError> {
        self.device.query_gid(port_num, index)
    }

    fn query_gid_table(&self) -> Result<Vec<GidEntry>, VerbsError> {
        match self.gid_table_at_once() {
            Some(table) => Ok(table),
            None => self.gid_table_one_by_one(),
        }
    }

    fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey, VerbsError> {
        self.device.query_pkey(port_num, index)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(PdObject::alloc(&self.device)?)
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        Ok(Channel::create(&self.device)?)
    }

    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Arc<dyn CompletionChannel>>,
        comp_vector: u32,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.create_cq_with(&CqInit { cqe, channel, comp_vector, ..CqInit::default() })
    }

    fn create_cq_with(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Ok(CompletionQueueObject::create(&self.device, init)?)
    }

    fn query_rt_values(&self) -> Result<u64, VerbsError> {
        let inside = self.device.context();
        let query = operation!(inside.pointer(), query_rt_values).ok_or_else(|| explain::unsupported("a raw clock"))?;
        let mut values = abi::ValuesEx { comp_mask: 1, raw_clock: libc::timespec { tv_sec: 0, tv_nsec: 0 } };
        // SAFETY: the operation's own signature.
        match unsafe { query(inside.pointer(), &mut values) } {
            0 => {
                // mlx5 puts ticks into tv_nsec and leaves tv_sec 0; the clock's frequency makes ns of them.
                let raw = values.raw_clock.tv_sec as u64 * 1_000_000_000 + values.raw_clock.tv_nsec as u64;
                Ok(nanoseconds(raw, self.device.attr()?.hca_core_clock))
            }
            code => Err(explain::failed("read the raw clock", super::returned(code))),
        }
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<Arc<dyn DeviceMemory>, VerbsError> {
        Ok(DeviceMemoryObject::alloc(&self.device, length, log_align)?)
    }

    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.open_xrcd_with(&XrcdInit { fd: None, create: true, exclusive: false })
    }

    fn open_xrcd_with(&self, init: &XrcdInit) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        Ok(XrcdObject::open(&self.device, init)?)
    }

    fn create_xrc_target(&self, xrcd: &Arc<dyn XrcDomain>) -> Result<Arc<dyn QueuePair>, VerbsError> {
        Ok(QpObject::xrc_target(&self.device, xrcd)?)
    }

    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, qp_num: Qpn) -> Result<Arc<dyn QueuePair>, VerbsError> {
        ours::<XrcdObject>(&self.device, xrcd.as_any(), "XRC domain")?;
        Ok(QpObject::open(&self.device, xrcd, qp_num)?)
    }

    fn async_fd(&self) -> i32 {
        self.device.async_fd
    }

    fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, VerbsError> {
        let until = deadline(timeout);
        loop {
            let inside = self.device.context();
            let mut event =
                abi::AsyncEvent { element: abi::AsyncElement { object: core::ptr::null_mut() }, event_type: 0 };
            // SAFETY: an open context, and an event of ours to fill.
            if unsafe { (self.device.verbs.get_async_event)(inside.pointer(), &mut event) } == 0 {
                let told = Self::translate(&event);
                // SAFETY: the event that was just taken, acknowledged once.
                unsafe { (self.device.verbs.ack_async_event)(&mut event) };
                match told {
                    Some(told) => return Ok(Some(told)),
                    None => continue,
                }
            }
            match last_errno() {
                libc::EAGAIN | libc::EINTR => {}
                raw => return Err(explain::failed("take an asynchronous event", raw)),
            }
            if !readable(self.device.async_fd, until)? {
                return Ok(None);
            }
        }
    }

    fn hw_counters(&self, port_num: u8) -> Result<Vec<(String, u64)>, VerbsError> {
        self.device.port(port_num)?;
        let folder = self.device.sysfs.join(format!("ports/{port_num}/hw_counters"));
        let mut counters = Vec::new();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let value = fs::read_to_string(entry.path()).ok().and_then(|text| text.trim().parse().ok());
            if let Some(value) = value {
                counters.push((entry.file_name().to_string_lossy().into_owned(), value));
            }
        }
        counters.retain(|(name, _): &(String, u64)| name != "lifespan");
        counters.sort();
        Ok(counters)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Ticks of a clock of so many kHz as ns; of none, as they are.
pub(crate) fn nanoseconds(ticks: u64, khz: u64) -> u64 {
    if khz == 0 { ticks } else { (u128::from(ticks) * 1_000_000 / u128::from(khz)) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds_by_the_clock() {
        assert_eq!(nanoseconds(1000, 1_000_000), 1000);
        assert_eq!(nanoseconds(156_250, 156_250), 1_000_000);
        assert_eq!(nanoseconds(7, 0), 7);
    }
}
