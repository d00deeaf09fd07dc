//! The personalities. Each figure tells where it stands; what is not given is not known, and the software NIC's own.
//!
//! Names of files are those of the Linux kernel unless another project is named. Outputs of `ibv_devinfo -v` are those
//! that users showed in the named issues.

use scalefabric_verbs::{OpKind, QpType};

use super::{Cited, Field, Figure, Personality};

const fn figures<const N: usize>(source: &'static str, of: [(Field, u64); N]) -> [Figure; N] {
    let mut all = [Figure { field: Field::MaxQp, value: 0, source }; N];
    let mut i = 0;
    while i < N {
        all[i] = Figure { field: of[i].0, value: of[i].1, source };
        i += 1;
    }
    all
}

/// Joins lists of figures.
const fn join<const A: usize, const B: usize, const N: usize>(a: [Figure; A], b: [Figure; B]) -> [Figure; N] {
    assert!(A + B == N, "the length of the joined list");
    let mut all = [Figure { field: Field::MaxQp, value: 0, source: "" }; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < A { a[i] } else { b[i - A] };
        i += 1;
    }
    all
}

/// Every operation of newer standards, which no driver here has in this form.
const NEWER: &[OpKind] = &[OpKind::Flush, OpKind::AtomicWrite];

/// What iWARP lacks: immediate data and atomics (RFC 5040 has neither), and siw no windows.
const NOT_IWARP: &[OpKind] = &[
    OpKind::SendWithImm,
    OpKind::WriteWithImm,
    OpKind::CompareSwap,
    OpKind::FetchAdd,
    OpKind::BindMw,
    OpKind::Flush,
    OpKind::AtomicWrite,
];

/// No atomics.
const NO_ATOMICS: &[OpKind] = &[OpKind::CompareSwap, OpKind::FetchAdd, OpKind::Flush, OpKind::AtomicWrite];

/// Sends only.
const SENDS: &[OpKind] = &[
    OpKind::Write,
    OpKind::WriteWithImm,
    OpKind::Read,
    OpKind::CompareSwap,
    OpKind::FetchAdd,
    OpKind::LocalInv,
    OpKind::BindMw,
    OpKind::SendWithInv,
    OpKind::Flush,
    OpKind::AtomicWrite,
];

const RXE: &[Figure] = &join::<25, 8, 33>(
    figures(
        "drivers/infiniband/sw/rxe/rxe_param.h, Linux 6.1",
        [
            (Field::MaxMrSize, u64::MAX),
            (Field::MaxQp, (1 << 20) - 16),
            (Field::MaxQpWr, 1 << 20),
            (Field::MaxSge, 32),
            (Field::MaxSgeRd, 32),
            // RXE_MAX_INLINE_DATA: 32 SGEs of 16 bytes.
            (Field::MaxInlineData, 512),
            (Field::MaxCq, 1 << 20),
            // RXE_MAX_LOG_CQE 15.
            (Field::MaxCqe, (1 << 15) - 1),
            (Field::MaxMr, (1 << 19) - 1),
            (Field::MaxPd, 1 << 20),
            (Field::MaxQpRdAtom, 128),
            (Field::MaxQpInitRdAtom, 128),
            (Field::MaxResRdAtom, 0x3f000),
            (Field::MaxMw, (1 << 19) - 1),
            (Field::MaxMcastGrp, 8_192),
            (Field::MaxMcastQpAttach, 56),
            (Field::MaxTotalMcastQpAttach, 0x7_0000),
            (Field::MaxAh, (1 << 15) - 1),
            (Field::MaxSrqWr, 1 << 20),
            (Field::MaxSrqSge, 27),
            (Field::MaxPkeys, 64),
            (Field::LocalCaAckDelay, 15),
            (Field::GidTblLen, 1_024),
            (Field::MaxMtu, 4_096),
            (Field::AtomicCap, 1),
        ],
    ),
    figures(
        "drivers/infiniband/sw/rxe/rxe_verbs.c and rxe_resp.c, Linux 6.1",
        [
            (Field::MaxDmSize, 0),
            (Field::OnDemand, 0),
            (Field::HcaCoreClock, 0),
            (Field::MaxCqCount, 0),
            (Field::MaxCqPeriod, 0),
            (Field::RateLimitMax, 0),
            (Field::ResizeCq, 1),
            (Field::AdvertiseCredits, 0),
        ],
    ),
);

const SIW: &[Figure] = &join::<15, 14, 29>(
    figures(
        "drivers/infiniband/sw/siw/siw.h and include/uapi/rdma/siw-abi.h",
        [
            (Field::MaxQp, 1024 * 100),
            (Field::MaxQpWr, 1024 * 32),
            (Field::MaxSge, 6),
            (Field::MaxSgeRd, 1),
            // Inline bytes take the place of all SGEs but one, 16 bytes each.
            (Field::MaxInlineData, 80),
            (Field::MaxCq, 1024 * 100),
            (Field::MaxCqe, 1024 * 32 * 100),
            (Field::MaxMr, 1024 * 1000),
            (Field::MaxPd, 1024 * 100),
            (Field::MaxQpRdAtom, 128),
            (Field::MaxQpInitRdAtom, 128),
            (Field::MaxMw, 0),
            (Field::MaxSrq, 1024 * 100),
            (Field::MaxSrqWr, 1024 * 320),
            (Field::MaxSrqSge, 6),
        ],
    ),
    figures(
        "drivers/infiniband/sw/siw/siw_verbs.c and siw_main.c: not in its attributes or operations",
        [
            (Field::AtomicCap, 0),
            (Field::MaxMcastGrp, 0),
            (Field::MaxMcastQpAttach, 0),
            (Field::MaxTotalMcastQpAttach, 0),
            (Field::MaxAh, 0),
            (Field::LocalCaAckDelay, 0),
            (Field::MaxDmSize, 0),
            (Field::OnDemand, 0),
            (Field::HcaCoreClock, 0),
            (Field::MaxCqCount, 0),
            (Field::MaxCqPeriod, 0),
            (Field::RateLimitMax, 0),
            (Field::ResizeCq, 0),
            (Field::MaxResRdAtom, 1024 * 100 * 128),
        ],
    ),
);

/// What ConnectX-5 and later NICs of mlx5 have in common.
const MLX5_COMMON: [Figure; 34] = join::<33, 1, 34>(
    join::<27, 6, 33>(
        figures(
            "ibv_devinfo -v: open-mpi/ompi PR 6137, openucx/ucx issues 9830 and 8229; rest of the output: issues 5148 and 9727",
            [
                (Field::MaxMrSize, u64::MAX),
                (Field::MaxQp, 262_144),
                (Field::MaxQpWr, 32_768),
                (Field::MaxSge, 30),
                (Field::MaxSgeRd, 30),
                (Field::MaxCq, 1 << 24),
                (Field::MaxCqe, 4_194_303),
                (Field::MaxMr, 1 << 24),
                (Field::MaxPd, 1 << 24),
                (Field::MaxQpRdAtom, 16),
                (Field::MaxQpInitRdAtom, 16),
                (Field::MaxResRdAtom, 4_194_304),
                (Field::AtomicCap, 1),
                (Field::MaxMw, 1 << 24),
                (Field::MaxMcastGrp, 2_097_152),
                (Field::MaxMcastQpAttach, 240),
                (Field::MaxTotalMcastQpAttach, 503_316_480),
                (Field::MaxAh, 0x7fff_ffff),
                (Field::MaxSrq, 8_388_608),
                (Field::MaxSrqWr, 32_767),
                (Field::MaxSrqSge, 31),
                (Field::LocalCaAckDelay, 16),
                (Field::OnDemand, 1),
                (Field::HcaCoreClock, 156_250),
                (Field::MaxMtu, 4_096),
                (Field::GidTblLen, 256),
                (Field::MaxPkeys, 1),
            ],
        ),
        figures(
            "ibv_devinfo -v: openucx/ucx issue 10430 (pacing for raw packets only)",
            [
                (Field::MaxDmSize, 131_072),
                (Field::MaxCqCount, 65_535),
                (Field::MaxCqPeriod, 4_095),
                (Field::RateLimitMax, 0),
                (Field::NumCompVectors, 63),
                (Field::ResizeCq, 1),
            ],
        ),
    ),
    // 988 on RC, 512 on UD of a ConnectX-4 (MT4115).
    figures("ofiwg/libfabric PR 3790", [(Field::MaxInlineData, 988)]),
);

/// CQE compression writes up to 8 completions of one kind at once.
const BATCH: [Figure; 1] = figures(
    "rdma-core, providers/mlx5: arrays of 8 mini CQEs; that it is always on is our choice",
    [(Field::CompletionBatch, 8)],
);

const TWICE: &str = "the ACK timer takes about twice its time: NVIDIA developer forum, thread 281789";
const PITFALLS: &str =
    "Fukuoka, Sato, Taura: Pitfalls of InfiniBand with On-Demand Paging, ISPASS 2021, measured timeouts";

const CONNECTX_5: &[Figure] = &join::<35, 2, 37>(
    join::<34, 1, 35>(MLX5_COMMON, BATCH),
    join::<1, 1, 2>(figures(PITFALLS, [(Field::LeastTimeout, 12)]), figures(TWICE, [(Field::TimeoutMultiple, 2)])),
);

const CONNECTX_6: &[Figure] = &join::<35, 2, 37>(
    join::<34, 1, 35>(MLX5_COMMON, BATCH),
    join::<1, 1, 2>(figures(PITFALLS, [(Field::LeastTimeout, 16)]), figures(TWICE, [(Field::TimeoutMultiple, 2)])),
);

const CONNECTX_7: &[Figure] = &join::<34, 1, 35>(MLX5_COMMON, BATCH);

const EFA: &[Figure] = &join::<5, 18, 23>(
    join::<1, 4, 5>(
        figures("ofiwg/libfabric PR 12858: a send queue entry holds at most 32 bytes", [(Field::MaxInlineData, 32)]),
        figures(
            "drivers/infiniband/hw/efa/efa_verbs.c, query_port",
            [(Field::GidTblLen, 1), (Field::MaxPkeys, 1), (Field::MaxMtu, 4_096), (Field::LocalCaAckDelay, 0)],
        ),
    ),
    figures(
        "drivers/infiniband/hw/efa/efa_verbs.c and efa_main.c: not in its attributes or operations",
        [
            (Field::MaxSrq, 0),
            (Field::MaxSrqWr, 0),
            (Field::MaxSrqSge, 0),
            (Field::MaxMw, 0),
            (Field::AtomicCap, 0),
            (Field::MaxQpRdAtom, 0),
            (Field::MaxQpInitRdAtom, 0),
            (Field::MaxResRdAtom, 0),
            (Field::MaxMcastGrp, 0),
            (Field::MaxMcastQpAttach, 0),
            (Field::MaxTotalMcastQpAttach, 0),
            (Field::MaxDmSize, 0),
            (Field::OnDemand, 0),
            (Field::HcaCoreClock, 0),
            (Field::MaxCqCount, 0),
            (Field::MaxCqPeriod, 0),
            (Field::RateLimitMax, 0),
            (Field::ResizeCq, 0),
        ],
    ),
);

const BNXT_RE: &[Figure] = &join::<9, 11, 20>(
    figures(
        "drivers/infiniband/hw/bnxt_re/{qplib_sp.c,qplib_sp.h,bnxt_re.h}, chip generation P5",
        [
            (Field::MaxMrSize, 1 << 39),
            // What a 16-bit field can say, less the 128 that the driver keeps (BNXT_QPLIB_RESERVED_QP_WRS).
            (Field::MaxQpWr, 65_535 - 128),
            (Field::MaxSge, 6),
            (Field::MaxSgeRd, 6),
            (Field::MaxPd, 65_536),
            // BNXT_QPLIB_MAX_OUT_RD_ATOM.
            (Field::MaxQpRdAtom, 126),
            (Field::MaxQpInitRdAtom, 126),
            (Field::GidTblLen, 256),
            // BNXT_RE_DEFAULT_ACK_DELAY.
            (Field::LocalCaAckDelay, 16),
        ],
    ),
    figures(
        "drivers/infiniband/hw/bnxt_re/ib_verbs.c, query_device: zero, or not in its attributes",
        [
            (Field::AtomicCap, 0),
            (Field::MaxResRdAtom, 0),
            (Field::MaxMcastGrp, 0),
            (Field::MaxMcastQpAttach, 0),
            (Field::MaxTotalMcastQpAttach, 0),
            (Field::MaxDmSize, 0),
            (Field::OnDemand, 0),
            (Field::HcaCoreClock, 0),
            (Field::MaxCqCount, 0),
            (Field::MaxCqPeriod, 0),
            (Field::RateLimitMax, 0),
        ],
    ),
);

const IONIC: &[Figure] = &join::<12, 14, 26>(
    figures(
        "drivers/infiniband/hw/ionic/{ionic_ibdev.c,ionic_ibdev.h,ionic_lif_cfg.h,ionic_fw.h}",
        [
            // IONIC_MAX_DEPTH.
            (Field::MaxQpWr, 0xffff),
            // IONIC_SPEC_HIGH is the most.
            (Field::MaxSge, 8),
            (Field::MaxSgeRd, 8),
            // IONIC_MAX_CQ_DEPTH less IONIC_CQ_GRACE.
            (Field::MaxCqe, 0xffff - 100),
            (Field::MaxPd, 1_024),
            (Field::MaxQpRdAtom, 16),
            (Field::MaxQpInitRdAtom, 16),
            (Field::MaxResRdAtom, 16),
            (Field::AtomicCap, 2),
            (Field::GidTblLen, 256),
            (Field::MaxPkeys, 1),
            (Field::LocalCaAckDelay, 0),
        ],
    ),
    figures(
        "drivers/infiniband/hw/ionic/ionic_ibdev.c: not in its attributes or operations",
        [
            (Field::MaxSrq, 0),
            (Field::MaxSrqWr, 0),
            (Field::MaxSrqSge, 0),
            (Field::MaxMcastGrp, 0),
            (Field::MaxMcastQpAttach, 0),
            (Field::MaxTotalMcastQpAttach, 0),
            (Field::MaxDmSize, 0),
            (Field::OnDemand, 0),
            (Field::HcaCoreClock, 0),
            (Field::MaxCqCount, 0),
            (Field::MaxCqPeriod, 0),
            (Field::RateLimitMax, 0),
            (Field::ResizeCq, 0),
            (Field::MaxMtu, 4_096),
        ],
    ),
);

const RC_UC_UD: &[QpType] = &[QpType::Rc, QpType::Uc, QpType::Ud];
const ALL: &[QpType] = &QpType::ALL;

const MLX5_TYPES: Cited<&[QpType]> = Cited { value: ALL, source: "drivers/infiniband/hw/mlx5/qp.c, create_qp" };
const MLX5_WITHOUT: Cited<&[OpKind]> = Cited { value: NEWER, source: "rdma-core, providers/mlx5/qp.c" };

/// All of them.
pub const PERSONALITIES: &[Personality] = &[
    Personality {
        name: "rxe",
        title: "Linux Soft-RoCE (rdma_rxe)",
        about: "As in Debian 12's kernel. No XRC, no credits in ACKs, CQs of 32767 entries.",
        qp_types: Cited { value: RC_UC_UD, source: "drivers/infiniband/sw/rxe/rxe_qp.c, rxe_qp_chk_init" },
        without: Cited { value: NEWER, source: "drivers/infiniband/sw/rxe/rxe_opcode.c, Linux 6.1" },
        figures: RXE,
    },
    Personality {
        name: "siw",
        title: "Linux SoftiWARP (siw)",
        about: "What iWARP can do, over RoCE: RC only, no immediate data, no atomics, no windows, READ into one SGE. The wire \
                is RoCEv2, not iWARP; the GID table is RoCE's.",
        qp_types: Cited { value: &[QpType::Rc], source: "drivers/infiniband/sw/siw/siw_verbs.c, siw_create_qp" },
        without: Cited { value: NOT_IWARP, source: "drivers/infiniband/sw/siw/siw_verbs.c, siw_post_send" },
        figures: SIW,
    },
    Personality {
        name: "connectx-5",
        title: "NVIDIA ConnectX-5 (mlx5)",
        about: "Completions come in batches; an ACK timeout below 16.8 ms (code 12) is that, and takes twice its time.",
        qp_types: MLX5_TYPES,
        without: MLX5_WITHOUT,
        figures: CONNECTX_5,
    },
    Personality {
        name: "connectx-6",
        title: "NVIDIA ConnectX-6 (mlx5)",
        about: "As ConnectX-5, but an ACK timeout below 268 ms (code 16) is that, so that a lost packet costs half a second.",
        qp_types: MLX5_TYPES,
        without: MLX5_WITHOUT,
        figures: CONNECTX_6,
    },
    Personality {
        name: "connectx-7",
        title: "NVIDIA ConnectX-7 (mlx5)",
        about: "The limits of ConnectX-6, which its users see, too; its retry timing is not known and ours.",
        qp_types: MLX5_TYPES,
        without: MLX5_WITHOUT,
        figures: CONNECTX_7,
    },
    Personality {
        name: "efa",
        title: "Amazon Elastic Fabric Adapter",
        about: "UD only: its reliable datagrams (SRD) are a driver QP type that is not available here. Queue sizes are the \
                firmware's, not known, and ours.",
        qp_types: Cited {
            value: &[QpType::Ud],
            source: "drivers/infiniband/hw/efa/efa_verbs.c, efa_qp_validate_attr (EOPNOTSUPP for others)",
        },
        without: Cited { value: SENDS, source: "rdma-core, providers/efa/verbs.c: UD posts sends only" },
        figures: EFA,
    },
    Personality {
        name: "bnxt-re",
        title: "Broadcom NetXtreme-E (bnxt_re)",
        about: "Thor generation: no UC, no XRC, no multicast, no atomics, 6 SGEs. Numbers of QPs, CQs, MRs and SRQs are the \
                firmware's, not known, and ours.",
        qp_types: Cited {
            value: &[QpType::Rc, QpType::Ud],
            source: "drivers/infiniband/hw/bnxt_re/ib_verbs.c, __from_ib_qp_type",
        },
        without: Cited {
            value: NO_ATOMICS,
            source: "drivers/infiniband/hw/bnxt_re/qplib_sp.c: is_atomic is false unless the PCIe path has them",
        },
        figures: BNXT_RE,
    },
    Personality {
        name: "ionic",
        title: "AMD Pensando (ionic)",
        about: "No SRQ, no XRC, no multicast, CQs keep their size. Numbers of QPs, CQs, MRs and the inline size are the \
                firmware's, not known, and ours.",
        qp_types: Cited { value: RC_UC_UD, source: "drivers/infiniband/hw/ionic/ionic_controlpath.c, ionic_create_qp" },
        without: Cited { value: NEWER, source: "drivers/infiniband/hw/ionic/ionic_datapath.c" },
        figures: IONIC,
    },
];
