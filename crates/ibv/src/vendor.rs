//! How the drivers of RDMA devices differ, as data. What a device says of itself (`query_device`, `query_port`) always wins;
//! this table has what it does not say, or says only by failing: which types of QPs it has, how much goes inline, which rules
//! its GIDs follow, and what is known of it. Each row has its source.

use scalefabric_verbs::QpType;

/// What goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// RoCEv2 (and InfiniBand where the port is one).
    Roce,
    /// iWARP: connections are made by rdma_cm only, there are no PSNs.
    Iwarp,
    /// The vendor's own.
    Own,
}

/// A driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// Name of the driver as rdma-core has it.
    pub driver: &'static str,
    /// Names that the kernel's driver has in `device/driver`.
    pub kernel_drivers: &'static [&'static str],
    /// `vendor_id` of its devices.
    pub vendor_ids: &'static [u32],
    /// `vendor_part_id`, where the vendor's number is not enough.
    pub part_id: Option<u32>,
    /// What goes over the wire.
    pub wire: Wire,
    /// The types of QPs that a verbs program can make.
    pub types: &'static [QpType],
    /// Inline bytes of a send WR with one SGE; `None`: it depends on the device and is tried out.
    pub max_inline: Option<u32>,
    /// Atomics.
    pub atomics: &'static str,
    /// Shared receive queues.
    pub srq: &'static str,
    /// Memory windows.
    pub windows: &'static str,
    /// Which GID to take.
    pub gid_rule: &'static str,
    /// What to know when `modify` refuses what is right by the standard; empty: nothing.
    pub modify_note: &'static str,
    /// Its user library reads the region of a bind also when it unbinds, and there is none then.
    pub unbind_reads_region: bool,
    /// What else is known.
    pub quirks: &'static [&'static str],
    /// Where all this comes from.
    pub source: &'static str,
}

const ALL: &[QpType] = &[QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];
const NO_XRC: &[QpType] = &[QpType::Rc, QpType::Uc, QpType::Ud];
const RC_UD: &[QpType] = &[QpType::Rc, QpType::Ud];
const BY_ADDRESS: &str =
    "one GID for each IP address and RoCE version: take the index of the address whose type is RoCE v2";

/// The drivers that are known here.
pub const VENDORS: &[Vendor] = &[
    Vendor {
        driver: "mlx5",
        kernel_drivers: &["mlx5_core"],
        vendor_ids: &[0x02c9],
        part_id: None,
        wire: Wire::Roce,
        types: ALL,
        max_inline: None,
        atomics: "HCA: atomic among the QPs of one device, not with the processor",
        srq: "yes, and for XRC",
        windows: "type 1 and type 2B",
        gid_rule: BY_ADDRESS,
        modify_note: "the path MTU may not exceed the port's, and a VLAN of the GID must exist on the interface",
        unbind_reads_region: false,
        quirks: &[
            "inline bytes depend on the SGEs asked for: both share a WQE",
            "queues are rounded up to powers of two, and `cap` says what came out",
            "a resized CQ keeps its old size until it is polled",
        ],
        source: "rdma-core providers/mlx5/verbs.c; Linux drivers/infiniband/hw/mlx5/main.c",
    },
    Vendor {
        driver: "bnxt_re",
        kernel_drivers: &["bnxt_re", "bnxt_en", "bnxt_en.rdma"],
        vendor_ids: &[0x14e4],
        part_id: None,
        wire: Wire::Roce,
        types: RC_UD,
        max_inline: Some(96),
        atomics: "HCA, where PCIe atomics reach the memory; else none",
        srq: "yes; not for XRC",
        windows: "type 1 and type 2B",
        gid_rule: BY_ADDRESS,
        modify_note: "the path MTU may not exceed the interface's less 64 bytes",
        unbind_reads_region: false,
        quirks: &["96 inline bytes with WQEs of fixed size (P5 and before), more with variable ones (P7)"],
        source: "rdma-core providers/bnxt_re/bnxt_re-abi.h (BNXT_RE_MAX_INLINE_SIZE), verbs.c",
    },
    Vendor {
        driver: "irdma",
        kernel_drivers: &["irdma", "ice", "i40e", "idpf", "irdma.gen_2"],
        vendor_ids: &[0x8086],
        part_id: None,
        wire: Wire::Roce,
        types: RC_UD,
        max_inline: Some(101),
        atomics: "none before the third generation (E830)",
        srq: "none before the third generation",
        windows: "type 1 and type 2B",
        gid_rule: BY_ADDRESS,
        modify_note: "E810 starts as RoCEv2 or iWARP by a module option: as iWARP it takes no modify to RTR from programs",
        unbind_reads_region: false,
        quirks: &["X722 is iWARP only, with 48 inline bytes"],
        source: "Linux drivers/infiniband/hw/irdma/user.h (IRDMA_MAX_INLINE_DATA_SIZE), i40iw_hw.h",
    },
    Vendor {
        driver: "efa",
        kernel_drivers: &["efa"],
        vendor_ids: &[0x1d0f],
        part_id: None,
        wire: Wire::Own,
        types: &[QpType::Ud],
        max_inline: Some(32),
        atomics: "none",
        srq: "none",
        windows: "none",
        gid_rule: "one GID, which is the device's own address and no IP address: index 0",
        modify_note: "only STATE, PKEY_INDEX, PORT, QKEY, SQ_PSN and RNR_RETRY can be set",
        unbind_reads_region: false,
        quirks: &[
            "UD, and SRD through efadv_create_driver_qp, which this contract does not have",
            "query_qp refuses attributes that it does not have",
            "no completion vectors before EFA 2; no resizing of CQs",
        ],
        source: "Linux drivers/infiniband/hw/efa/efa_verbs.c (efa_qp_validate_attr, efa_query_qp)",
    },
    Vendor {
        driver: "erdma",
        kernel_drivers: &["erdma"],
        vendor_ids: &[0x1ded],
        part_id: None,
        wire: Wire::Iwarp,
        types: &[QpType::Rc],
        max_inline: Some(96),
        atomics: "8 bytes, where the device says so",
        srq: "none",
        windows: "none",
        gid_rule: "one GID, made of the MAC address: index 0; connections go by rdma_cm",
        modify_note: "a QP is connected by rdma_cm, not by modify to RTR",
        unbind_reads_region: false,
        quirks: &["max_send_wr and max_recv_wr of 0 are refused, also without receives", "one SGE in a receive WR"],
        source: "Linux drivers/infiniband/hw/erdma/erdma_verbs.c (erdma_qp_validate_cap), erdma_verbs.h",
    },
    Vendor {
        driver: "hns",
        kernel_drivers: &["hns_roce", "hns_roce_hw_v2", "hns3"],
        vendor_ids: &[0x19e5],
        part_id: None,
        wire: Wire::Roce,
        types: ALL,
        max_inline: Some(32),
        atomics: "HCA, 8 bytes",
        srq: "yes, and for XRC",
        windows: "type 1",
        gid_rule: BY_ADDRESS,
        modify_note: "",
        unbind_reads_region: false,
        quirks: &["32 inline bytes on HIP08, 1024 on HIP09", "queues are rounded up to powers of two"],
        source: "rdma-core providers/hns/hns_roce_u.h (HNS_ROCE_MAX_RC_INL_INN_SZ); Linux hns_roce_hw_v2.h",
    },
    Vendor {
        driver: "rxe",
        kernel_drivers: &[],
        vendor_ids: &[0x00ff_ffff, 0],
        part_id: Some(0),
        wire: Wire::Roce,
        types: NO_XRC,
        max_inline: Some(512),
        atomics: "HCA; with FLUSH and ATOMIC WRITE since Linux 6.2",
        srq: "yes",
        windows: "type 1 and type 2B",
        gid_rule: "GID 0 is the link-local address of the MAC; IP addresses follow",
        modify_note: "",
        unbind_reads_region: true,
        quirks: &[
            "no XRC, whatever its capability flags say",
            "atomics are atomic among its own QPs only",
            "a path MTU above the port's is taken; the port's is 1024 at an interface MTU of 1500",
            "max_inline_data is rounded up to whole SGEs of 16 bytes",
            "an atomic that is not aligned is refused when it is posted",
            "where it departs from the contract: the table of deviations in the contract's own tests",
        ],
        source: "Linux drivers/infiniband/sw/rxe/rxe_param.h, rxe_qp.c (rxe_qp_chk_init)",
    },
    Vendor {
        driver: "siw",
        kernel_drivers: &[],
        vendor_ids: &[0x0062_6d74],
        part_id: Some(0),
        wire: Wire::Iwarp,
        types: &[QpType::Rc],
        max_inline: Some(80),
        atomics: "none",
        srq: "yes",
        windows: "none",
        gid_rule: "one GID, made of the MAC address: index 0; connections go by rdma_cm",
        modify_note: "a QP is connected by rdma_cm, not by modify to RTR",
        unbind_reads_region: false,
        quirks: &["one SGE in a READ", "no immediate data"],
        source: "Linux drivers/infiniband/sw/siw/siw.h, include/uapi/rdma/siw-abi.h (SIW_MAX_INLINE)",
    },
    Vendor {
        driver: "scalefabric",
        kernel_drivers: &[],
        vendor_ids: &[0x00ff_ffff],
        part_id: Some(4096),
        wire: Wire::Roce,
        types: ALL,
        max_inline: None,
        atomics: "GLOB: atomic with the processor, too",
        srq: "yes, and for XRC",
        windows: "type 1 and type 2B",
        gid_rule: BY_ADDRESS,
        modify_note: "",
        unbind_reads_region: false,
        quirks: &["this project's software NIC, seen through its C door; a personality changes what it has"],
        source: "crates/nic/src/config.rs",
    },
];

/// The row of a driver, by rdma-core's name.
pub fn of_driver(driver: &str) -> Option<&'static Vendor> {
    VENDORS.iter().find(|vendor| vendor.driver == driver)
}

/// The row of a device: by the kernel's driver where sysfs has one, else by what `query_device` says.
pub fn of_device(kernel_driver: Option<&str>, vendor_id: u32, part_id: u32) -> Option<&'static Vendor> {
    let by_driver = kernel_driver.and_then(|name| VENDORS.iter().find(|vendor| vendor.kernel_drivers.contains(&name)));
    by_driver.or_else(|| {
        let same = |vendor: &&Vendor| vendor.vendor_ids.contains(&vendor_id);
        let exact = VENDORS.iter().filter(same).find(|vendor| vendor.part_id == Some(part_id));
        exact.or_else(|| VENDORS.iter().filter(same).find(|vendor| vendor.part_id.is_none()))
    })
}

/// Whether QPs of a type can be made with a driver. Of one that is not known here, nothing is denied.
pub fn has_type(driver: &str, qp_type: QpType) -> bool {
    of_driver(driver).is_none_or(|vendor| vendor.types.contains(&qp_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_stands_once_with_its_source() {
        for (index, vendor) in VENDORS.iter().enumerate() {
            assert!(VENDORS[..index].iter().all(|other| other.driver != vendor.driver), "{}", vendor.driver);
            assert!(!vendor.source.is_empty() && !vendor.gid_rule.is_empty() && !vendor.types.is_empty());
        }
        for driver in ["mlx5", "bnxt_re", "irdma", "efa", "erdma", "hns", "rxe", "siw", "scalefabric"] {
            assert!(of_driver(driver).is_some(), "{driver}");
        }
    }

    #[test]
    fn a_device_is_found_by_its_driver_or_its_numbers() {
        let found = |driver, vendor, part| of_device(driver, vendor, part).map(|vendor| vendor.driver);
        assert_eq!(found(Some("mlx5_core"), 0, 0), Some("mlx5"));
        assert_eq!(found(None, 0x02c9, 4119), Some("mlx5"));
        assert_eq!(found(None, 0x00ff_ffff, 0), Some("rxe"));
        assert_eq!(found(None, 0x00ff_ffff, 4096), Some("scalefabric"));
        assert_eq!(found(None, 0x1234, 0), None);
    }

    #[test]
    fn what_a_driver_lacks_is_known_and_nothing_is_denied_of_others() {
        assert!(!has_type("rxe", QpType::XrcSend));
        assert!(!has_type("efa", QpType::Rc));
        assert!(has_type("mlx5", QpType::XrcRecv));
        assert!(has_type("something new", QpType::XrcRecv));
    }
}
