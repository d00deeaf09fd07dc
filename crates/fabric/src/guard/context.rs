//! The provider and its devices: everything is the other provider's, but for protection domains and XRC targets.

use super::Ledger;
use super::domain::TenantDomain;
use super::queue_pair::TenantQueuePair;
use crate::directory::{Directory, Holdings};
use scalefabric_verbs::cm::CmChannel;
use scalefabric_verbs::device_memory::DeviceMemory;
use scalefabric_verbs::event::AsyncEvent;
use scalefabric_verbs::operation::OpKind;
use scalefabric_verbs::provider::XrcdInit;
use scalefabric_verbs::{
    CompletionChannel, CompletionQueue, Context, CqInit, DeviceAttr, DeviceInfo, Gid, GidEntry, PKey, PortAttr,
    ProtectionDomain, Provider, QpType, Qpn, QueuePair, VerbsError, XrcDomain,
};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A provider for one tenant. Its communication manager makes no QPs and is the other's.
#[derive(Debug)]
pub struct TenantProvider {
    inner: Arc<dyn Provider>,
    ledger: Arc<Ledger>,
}

impl TenantProvider {
    /// Over another one. What the tenant may have, and hears of what it has, is this directory.
    /// Providers of one tenant with one directory count together.
    pub fn new(inner: Arc<dyn Provider>, directory: Arc<dyn Directory>, tenant: &str) -> Self {
        Self { inner, ledger: Ledger::of(directory, tenant) }
    }

    /// What the tenant has in this process.
    pub fn holdings(&self) -> Holdings {
        self.ledger.held().holdings
    }
}

impl Provider for TenantProvider {
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        self.inner.devices()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>, VerbsError> {
        Ok(Arc::new(TenantContext { inner: self.inner.open(name)?, ledger: Arc::clone(&self.ledger) }))
    }

    fn event_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError> {
        self.inner.event_channel()
    }
}

#[derive(Debug)]
struct TenantContext {
    inner: Arc<dyn Context>,
    ledger: Arc<Ledger>,
}

impl Context for TenantContext {
    fn device(&self) -> DeviceInfo {
        self.inner.device()
    }
    fn query_device(&self) -> Result<DeviceAttr, VerbsError> {
        self.inner.query_device()
    }
    fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbsError> {
        self.inner.query_port(port_num)
    }
    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid, VerbsError> {
        self.inner.query_gid(port_num, index)
    }
    fn query_gid_table(&self) -> Result<Vec<GidEntry>, VerbsError> {
        self.inner.query_gid_table()
    }
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey, VerbsError> {
        self.inner.query_pkey(port_num, index)
    }
    fn supports(&self, qp_type: QpType, kind: OpKind) -> bool {
        self.inner.supports(qp_type, kind)
    }
    fn rq_psn_is_executed_prefix(&self) -> bool {
        self.inner.rq_psn_is_executed_prefix()
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Arc::new(TenantDomain { inner: self.inner.alloc_pd()?, ledger: Arc::clone(&self.ledger) }))
    }
    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.inner.create_comp_channel()
    }
    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Arc<dyn CompletionChannel>>,
        comp_vector: u32,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.inner.create_cq(cqe, channel, comp_vector)
    }
    fn create_cq_with(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.inner.create_cq_with(init)
    }
    fn query_rt_values(&self) -> Result<u64, VerbsError> {
        self.inner.query_rt_values()
    }
    fn wallclock_ns(&self, raw_ns: u64) -> Result<u64, VerbsError> {
        self.inner.wallclock_ns(raw_ns)
    }
    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<Arc<dyn DeviceMemory>, VerbsError> {
        self.inner.alloc_dm(length, log_align)
    }
    fn open_xrcd_with(&self, init: &XrcdInit) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.inner.open_xrcd_with(init)
    }
    /// Another handle of a QP that is charged already.
    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, qp_num: Qpn) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.inner.open_qp(xrcd, qp_num)
    }
    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.inner.open_xrcd()
    }
    fn create_xrc_target(&self, xrcd: &Arc<dyn XrcDomain>) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let charge = self.ledger.charge(Holdings { qps: 1, ..Holdings::default() })?;
        Ok(Arc::new(TenantQueuePair::new(self.inner.create_xrc_target(xrcd)?, charge)))
    }
    fn async_fd(&self) -> i32 {
        self.inner.async_fd()
    }
    fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, VerbsError> {
        self.inner.get_async_event(timeout)
    }
    fn hw_counters(&self, port_num: u8) -> Result<Vec<(String, u64)>, VerbsError> {
        self.inner.hw_counters(port_num)
    }
    fn takes_vector_in_sqd(&self) -> bool {
        self.inner.takes_vector_in_sqd()
    }
    fn read_hw_counters(&self, port_num: u8, places: &[u32], out: &mut [u64]) -> Result<(), VerbsError> {
        self.inner.read_hw_counters(port_num, places, out)
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}
