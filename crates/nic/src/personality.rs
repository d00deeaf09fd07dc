//! Personalities (D7): what another NIC can do, as data, put over what the software NIC can. A program meets that NIC's
//! limits and is refused what it lacks, with the errno that its driver gives; the wire stays RoCEv2.
//!
//! A personality only takes away: a figure that is larger than ours leaves ours, and one that nobody knows is not in its
//! list. Vendor and part number stay our own, since programs would use the private interface of the hardware they name;
//! `fw_ver` tells the personality.

mod table;

use scalefabric_verbs::{
    AtomicCap, Errno, Mtu, OdpCaps, OdpFlags, OdpTransport, OpKind, QpType, VerbsError, op_allowed,
};

use crate::config::NicConfig;

pub use table::PERSONALITIES;

/// What a device refuses beyond its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// QP types that it has. Default: all.
    pub qp_types: &'static [QpType],
    /// Operations that it lacks although the QP type has them. Default: none.
    pub without: &'static [OpKind],
    /// Whether CQs change their size. Default true.
    pub resize_cq: bool,
    /// The largest MTU of a port. Default 4096.
    pub max_mtu: Mtu,
}

impl Default for Rules {
    fn default() -> Self {
        Self { qp_types: &QpType::ALL, without: &[], resize_cq: true, max_mtu: Mtu::Mtu4096 }
    }
}

impl Rules {
    /// True if a QP of this type can be made and has the operation.
    #[inline]
    pub fn supports(&self, qp_type: QpType, kind: OpKind) -> bool {
        op_allowed(qp_type, kind) && self.qp_types.contains(&qp_type) && !self.without.contains(&kind)
    }

    /// `EOPNOTSUPP` for a QP type that the device lacks.
    pub(crate) fn check_type(&self, qp_type: QpType) -> Result<(), VerbsError> {
        if self.qp_types.contains(&qp_type) {
            return Ok(());
        }
        let has: Vec<_> = self.qp_types.iter().map(|t| t.as_str()).collect();
        Err(VerbsError::misuse(
            Errno::EOPNOTSUPP,
            format!("this device has no {qp_type} QPs (its personality has {}): use one of these", has.join(", ")),
        ))
    }

    /// Whether it has atomics at all.
    pub(crate) fn has_atomics(&self) -> bool {
        !self.without.contains(&OpKind::CompareSwap) || !self.without.contains(&OpKind::FetchAdd)
    }
}

/// Something that was found out, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cited<T> {
    /// What.
    pub value: T,
    /// Where it stands.
    pub source: &'static str,
}

/// A figure of a personality.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Of what.
    pub field: Field,
    /// How much.
    pub value: u64,
    /// Where it stands.
    pub source: &'static str,
}

/// Another NIC, as far as a program can tell.
#[derive(Debug, PartialEq, Eq)]
pub struct Personality {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its name in words.
    pub title: &'static str,
    /// What a user must know: what is modelled, and what is not.
    pub about: &'static str,
    /// QP types that it has.
    pub qp_types: Cited<&'static [QpType]>,
    /// Operations that it lacks.
    pub without: Cited<&'static [OpKind]>,
    /// Its figures; what is not here is not known, and ours.
    pub figures: &'static [Figure],
}

impl Personality {
    /// The personality of that name, case and `_` for `-` aside. `EINVAL` names those that there are.
    pub fn find(name: &str) -> Result<&'static Self, VerbsError> {
        let wanted = name.to_ascii_lowercase().replace('_', "-");
        PERSONALITIES.iter().find(|p| p.name == wanted).ok_or_else(|| {
            let names: Vec<_> = PERSONALITIES.iter().map(|p| p.name).collect();
            VerbsError::invalid(format!("personality {name:?} is not known: there are {}", names.join(", ")))
        })
    }

    /// Puts it over a device.
    pub fn apply(&self, config: &mut NicConfig) {
        config.rules.qp_types = self.qp_types.value;
        config.rules.without = self.without.value;
        config.attr.fw_ver = format!("{} as {}", config.attr.fw_ver, self.name);
        for figure in self.figures {
            figure.field.put(figure.value, config);
        }
        // What follows from the figures.
        let attr = &mut config.attr;
        let has = |bit: bool, bits: u32| if bit { 0 } else { bits };
        attr.device_cap_flags &= !(has(self.qp_types.value.contains(&QpType::XrcSend), 1 << 20)
            | has(attr.max_mw > 0, 1 << 17 | 1 << 24)
            | has(attr.max_srq > 0, 1 << 13)
            | has(self.qp_types.value.contains(&QpType::Ud), 1 << 6)
            | has(!self.without.value.contains(&OpKind::LocalInv), 1 << 21));
        if attr.odp.general.is_empty() {
            attr.odp = OdpCaps::default();
        }
        for port in &mut config.ports {
            port.active_mtu = port.active_mtu.min(config.rules.max_mtu);
            port.gids.truncate(port.gid_table_len as usize);
            port.pkeys.truncate(usize::from(config.attr.max_pkeys));
        }
    }
}

/// What a figure can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Field {
    MaxMrSize,
    MaxQp,
    MaxQpWr,
    MaxSge,
    MaxSgeRd,
    MaxInlineData,
    MaxCq,
    MaxCqe,
    MaxMr,
    MaxPd,
    MaxQpRdAtom,
    MaxQpInitRdAtom,
    MaxResRdAtom,
    /// `enum ibv_atomic_cap`.
    AtomicCap,
    MaxMw,
    MaxMcastGrp,
    MaxMcastQpAttach,
    MaxTotalMcastQpAttach,
    MaxAh,
    MaxSrq,
    MaxSrqWr,
    MaxSrqSge,
    /// P_Keys of each port.
    MaxPkeys,
    LocalCaAckDelay,
    GidTblLen,
    /// Bytes.
    MaxMtu,
    NumCompVectors,
    MaxDmSize,
    /// 0: no on-demand paging; 1: what mlx5 has of it.
    OnDemand,
    /// 0: completions carry no timestamps.
    HcaCoreClock,
    MaxCqCount,
    MaxCqPeriod,
    RateLimitMax,
    /// 0: CQs keep their size.
    ResizeCq,
    /// Completions that become visible together.
    CompletionBatch,
    /// The smallest `timeout` code that it really uses.
    LeastTimeout,
    /// What the ACK timer is a multiple of.
    TimeoutMultiple,
    /// 0: ACKs tell no credits.
    AdvertiseCredits,
}

/// What mlx5 tells of on-demand paging (its `ibv_devinfo -v`): RC and XRC without atomics, UD sends only.
const MLX5_ON_DEMAND: OdpCaps = {
    use OdpTransport as T;
    let connected = T::SEND.union(T::WRITE).union(T::READ).union(T::SRQ_RECV);
    OdpCaps {
        general: OdpFlags::SUPPORT.union(OdpFlags::SUPPORT_IMPLICIT),
        rc: connected.union(T::RECV),
        uc: T::empty(),
        ud: T::SEND,
        xrc: connected,
    }
};

fn less(have: &mut u32, value: u64) {
    *have = u64::from(*have).min(value) as u32;
}

impl Field {
    /// Its name, as verbs spell it where they have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxMrSize => "max_mr_size",
            Self::MaxQp => "max_qp",
            Self::MaxQpWr => "max_qp_wr",
            Self::MaxSge => "max_sge",
            Self::MaxSgeRd => "max_sge_rd",
            Self::MaxInlineData => "max_inline_data",
            Self::MaxCq => "max_cq",
            Self::MaxCqe => "max_cqe",
            Self::MaxMr => "max_mr",
            Self::MaxPd => "max_pd",
            Self::MaxQpRdAtom => "max_qp_rd_atom",
            Self::MaxQpInitRdAtom => "max_qp_init_rd_atom",
            Self::MaxResRdAtom => "max_res_rd_atom",
            Self::AtomicCap => "atomic_cap",
            Self::MaxMw => "max_mw",
            Self::MaxMcastGrp => "max_mcast_grp",
            Self::MaxMcastQpAttach => "max_mcast_qp_attach",
            Self::MaxTotalMcastQpAttach => "max_total_mcast_qp_attach",
            Self::MaxAh => "max_ah",
            Self::MaxSrq => "max_srq",
            Self::MaxSrqWr => "max_srq_wr",
            Self::MaxSrqSge => "max_srq_sge",
            Self::MaxPkeys => "max_pkeys",
            Self::LocalCaAckDelay => "local_ca_ack_delay",
            Self::GidTblLen => "gid_tbl_len",
            Self::MaxMtu => "max_mtu",
            Self::NumCompVectors => "num_comp_vectors",
            Self::MaxDmSize => "max_dm_size",
            Self::OnDemand => "odp",
            Self::HcaCoreClock => "hca_core_clock",
            Self::MaxCqCount => "max_cq_count",
            Self::MaxCqPeriod => "max_cq_period",
            Self::RateLimitMax => "rate_limit_max",
            Self::ResizeCq => "resize_cq",
            Self::CompletionBatch => "completion_batch",
            Self::LeastTimeout => "least_timeout",
            Self::TimeoutMultiple => "timeout_multiple",
            Self::AdvertiseCredits => "advertise_credits",
        }
    }

    /// What a device has of it.
    pub fn of(self, config: &NicConfig) -> u64 {
        let attr = &config.attr;
        match self {
            Self::MaxMrSize => attr.max_mr_size,
            Self::MaxQp => attr.max_qp.into(),
            Self::MaxQpWr => attr.max_qp_wr.into(),
            Self::MaxSge => attr.max_sge.into(),
            Self::MaxSgeRd => attr.max_sge_rd.into(),
            Self::MaxInlineData => attr.max_inline_data.into(),
            Self::MaxCq => attr.max_cq.into(),
            Self::MaxCqe => attr.max_cqe.into(),
            Self::MaxMr => attr.max_mr.into(),
            Self::MaxPd => attr.max_pd.into(),
            Self::MaxQpRdAtom => attr.max_qp_rd_atom.into(),
            Self::MaxQpInitRdAtom => attr.max_qp_init_rd_atom.into(),
            Self::MaxResRdAtom => attr.max_res_rd_atom.into(),
            Self::AtomicCap => attr.atomic_cap as u64,
            Self::MaxMw => attr.max_mw.into(),
            Self::MaxMcastGrp => attr.max_mcast_grp.into(),
            Self::MaxMcastQpAttach => attr.max_mcast_qp_attach.into(),
            Self::MaxTotalMcastQpAttach => attr.max_total_mcast_qp_attach.into(),
            Self::MaxAh => attr.max_ah.into(),
            Self::MaxSrq => attr.max_srq.into(),
            Self::MaxSrqWr => attr.max_srq_wr.into(),
            Self::MaxSrqSge => attr.max_srq_sge.into(),
            Self::MaxPkeys => attr.max_pkeys.into(),
            Self::LocalCaAckDelay => attr.local_ca_ack_delay.into(),
            Self::GidTblLen => config.ports.first().map_or(0, |port| port.gid_table_len.into()),
            Self::MaxMtu => config.rules.max_mtu.bytes().into(),
            Self::NumCompVectors => attr.num_comp_vectors.into(),
            Self::MaxDmSize => attr.max_dm_size,
            Self::OnDemand => attr.odp.general.contains(OdpFlags::SUPPORT).into(),
            Self::HcaCoreClock => attr.hca_core_clock,
            Self::MaxCqCount => attr.max_cq_count.into(),
            Self::MaxCqPeriod => attr.max_cq_period.into(),
            Self::RateLimitMax => attr.rate_limit_max.into(),
            Self::ResizeCq => config.rules.resize_cq.into(),
            Self::CompletionBatch => config.completion_batch.into(),
            Self::LeastTimeout => config.transport.least_timeout.into(),
            Self::TimeoutMultiple => config.transport.timeout_multiple.into(),
            Self::AdvertiseCredits => config.transport.advertise_credits.into(),
        }
    }

    fn put(self, value: u64, config: &mut NicConfig) {
        let attr = &mut config.attr;
        match self {
            Self::MaxMrSize => attr.max_mr_size = attr.max_mr_size.min(value),
            Self::MaxQp => less(&mut attr.max_qp, value),
            Self::MaxQpWr => less(&mut attr.max_qp_wr, value),
            Self::MaxSge => less(&mut attr.max_sge, value),
            Self::MaxSgeRd => less(&mut attr.max_sge_rd, value),
            Self::MaxInlineData => less(&mut attr.max_inline_data, value),
            Self::MaxCq => less(&mut attr.max_cq, value),
            Self::MaxCqe => less(&mut attr.max_cqe, value),
            Self::MaxMr => less(&mut attr.max_mr, value),
            Self::MaxPd => less(&mut attr.max_pd, value),
            Self::MaxQpRdAtom => less(&mut attr.max_qp_rd_atom, value),
            Self::MaxQpInitRdAtom => less(&mut attr.max_qp_init_rd_atom, value),
            Self::MaxResRdAtom => less(&mut attr.max_res_rd_atom, value),
            Self::AtomicCap => {
                attr.atomic_cap = match value {
                    0 => AtomicCap::None,
                    1 => AtomicCap::Hca,
                    _ => AtomicCap::Glob,
                }
            }
            Self::MaxMw => less(&mut attr.max_mw, value),
            Self::MaxMcastGrp => less(&mut attr.max_mcast_grp, value),
            Self::MaxMcastQpAttach => less(&mut attr.max_mcast_qp_attach, value),
            Self::MaxTotalMcastQpAttach => less(&mut attr.max_total_mcast_qp_attach, value),
            Self::MaxAh => less(&mut attr.max_ah, value),
            Self::MaxSrq => less(&mut attr.max_srq, value),
            Self::MaxSrqWr => less(&mut attr.max_srq_wr, value),
            Self::MaxSrqSge => less(&mut attr.max_srq_sge, value),
            Self::MaxPkeys => attr.max_pkeys = u64::from(attr.max_pkeys).min(value) as u16,
            Self::LocalCaAckDelay => attr.local_ca_ack_delay = value as u8,
            Self::GidTblLen => config.ports.iter_mut().for_each(|port| less(&mut port.gid_table_len, value)),
            Self::MaxMtu => config.rules.max_mtu = Mtu::from_bytes(value as u32).unwrap_or(Mtu::Mtu4096),
            Self::NumCompVectors => less(&mut attr.num_comp_vectors, value),
            Self::MaxDmSize => attr.max_dm_size = attr.max_dm_size.min(value),
            Self::OnDemand => attr.odp = if value == 0 { OdpCaps::default() } else { MLX5_ON_DEMAND },
            Self::HcaCoreClock if value == 0 => (attr.hca_core_clock, attr.completion_timestamp_mask) = (0, 0),
            // The clock counts ns, whatever the other NIC's counts.
            Self::HcaCoreClock => {}
            Self::MaxCqCount => attr.max_cq_count = u64::from(attr.max_cq_count).min(value) as u16,
            Self::MaxCqPeriod => attr.max_cq_period = u64::from(attr.max_cq_period).min(value) as u16,
            Self::RateLimitMax => {
                less(&mut attr.rate_limit_max, value);
                attr.rate_limit_min = attr.rate_limit_min.min(attr.rate_limit_max);
            }
            Self::ResizeCq => config.rules.resize_cq = value != 0,
            Self::CompletionBatch => config.completion_batch = value as u32,
            Self::LeastTimeout => config.transport.least_timeout = value as u8,
            Self::TimeoutMultiple => config.transport.timeout_multiple = value as u8,
            Self::AdvertiseCredits => config.transport.advertise_credits = value != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PortConfig;
    use scalefabric_verbs::Gid;

    fn plain() -> NicConfig {
        let gids = (1..=3).map(|n| Gid::from_ip(std::net::Ipv4Addr::new(10, 0, 0, n).into())).collect();
        NicConfig::new("test", vec![PortConfig::new("wire", gids)])
    }

    #[test]
    fn a_personality_only_takes_away() {
        for personality in PERSONALITIES {
            let (ours, mut theirs) = (plain(), plain());
            personality.apply(&mut theirs);
            for figure in personality.figures {
                let (field, have, got) = (figure.field, figure.field.of(&ours), figure.field.of(&theirs));
                let name = field.name();
                let exact = matches!(
                    field,
                    Field::LocalCaAckDelay
                        | Field::CompletionBatch
                        | Field::LeastTimeout
                        | Field::TimeoutMultiple
                        | Field::AtomicCap
                        | Field::OnDemand
                );
                match field {
                    Field::HcaCoreClock => assert_eq!(got, if figure.value == 0 { 0 } else { have }),
                    _ if exact => assert_eq!(got, figure.value, "{} {name}", personality.name),
                    _ => assert_eq!(got, figure.value.min(have), "{} {name}", personality.name),
                }
                assert!(!figure.source.is_empty(), "{} {name} has no source", personality.name);
            }
            assert_eq!((theirs.attr.vendor_id, theirs.attr.vendor_part_id), (ours.attr.vendor_id, 4096));
            assert!(theirs.attr.fw_ver.ends_with(personality.name));
            assert!(!personality.qp_types.source.is_empty() && !personality.about.is_empty());
        }
    }

    #[test]
    fn a_figure_is_given_once_and_a_name_is_one_word() {
        for personality in PERSONALITIES {
            let mut names: Vec<_> = personality.figures.iter().map(|f| f.field.name()).collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "{}", personality.name);
            assert!(personality.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        }
    }

    #[test]
    fn a_name_is_found_however_it_is_written_and_a_wrong_one_names_the_right_ones() {
        assert_eq!(Personality::find("ConnectX_5").unwrap().name, "connectx-5");
        let error = Personality::find("connectx-99").unwrap_err();
        assert!(error.message.contains("connectx-5") && error.message.contains("rxe"), "{error}");
    }

    #[test]
    fn flags_and_tables_follow_the_figures() {
        let mut efa = plain();
        Personality::find("efa").unwrap().apply(&mut efa);
        assert_eq!(efa.attr.device_cap_flags & (1 << 20 | 1 << 17 | 1 << 24 | 1 << 13), 0);
        assert_eq!((efa.ports[0].gids.len(), efa.ports[0].pkeys.len()), (1, 1));
        assert!(efa.rules.supports(QpType::Ud, OpKind::Send) && !efa.rules.supports(QpType::Rc, OpKind::Send));
    }
}
