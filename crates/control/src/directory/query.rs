//! What may be asked of the directory, and the answer.

use super::Located;
use crate::store::Revision;
use scalefabric_fabric::directory::ConnectionRecord;

/// Most connections of one answer.
pub const MAX_LIMIT: usize = 10_000;

/// Which connections; all that is given must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Node that told of it.
    pub node: Option<String>,
    /// Local QP number.
    pub qp_num: Option<u32>,
    /// Tenant.
    pub tenant: Option<String>,
    /// Service.
    pub service: Option<String>,
    /// Device of the path in use.
    pub device: Option<String>,
    /// Port of the path in use.
    pub port_num: Option<u8>,
    /// At most so many; 0: 100; at most 10,000.
    pub limit: usize,
    /// Begin after this, as [`Found::next`] told. Empty: from the first.
    pub after: String,
}

impl Query {
    /// How many at most.
    pub fn limit(&self) -> usize {
        if self.limit == 0 { 100 } else { self.limit.min(MAX_LIMIT) }
    }

    /// Whether a connection is meant.
    pub fn fits(&self, node: &str, record: &ConnectionRecord) -> bool {
        fn is<A: PartialEq<B> + ?Sized, B>(wanted: Option<&B>, is: &A) -> bool {
            wanted.is_none_or(|wanted| *is == *wanted)
        }
        is(self.node.as_ref(), node)
            && is(self.qp_num.as_ref(), &record.qp_num)
            && is(self.tenant.as_ref(), &record.tenant)
            && is(self.service.as_ref(), &record.service)
            && is(self.device.as_ref(), &record.path.device)
            && is(self.port_num.as_ref(), &record.path.port_num)
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Found {
    /// In order of their keys.
    pub connections: Vec<Located>,
    /// There are more after this one.
    pub next: Option<String>,
    /// What the answer shows at least.
    pub revision: Revision,
}
