//! The tables in `abi/` against this crate's mirrors of the structures, against the headers that are installed, and against the
//! libraries that are installed. A public function of an installed library that the table does not know fails here: the C door
//! would let it fall through to the real library with a context of ours.

use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use scalefabric_ibv::abi::*;

const LAYOUTS: &str = include_str!("../abi/layouts.txt");
const SYMBOLS: &str = include_str!("../abi/symbols.txt");
const RDMACM: &str = include_str!("../abi/rdmacm.txt");
/// The releases that the tables cover.
const OLDEST: u32 = 28;
const NEWEST: u32 = 65;

macro_rules! mirrors {
    ($( $c:ident $rust:ident $( { $( $member:ident $( = $field:ident )? ),* } )? ; )*) => {
        /// Every structure and member that `layouts.txt` names, as the compiler laid it out here.
        fn mirrors() -> BTreeMap<String, usize> {
            let mut facts = BTreeMap::new();
            $(
                facts.insert(stringify!($c).to_owned(), size_of::<$rust>());
                $( $( facts.insert(
                    concat!(stringify!($c), ".", stringify!($member)).to_owned(),
                    mirrors!(@offset $rust $member $( $field )?),
                ); )* )?
            )*
            facts
        }
    };
    (@offset $rust:ident $member:ident) => { offset_of!($rust, $member) };
    (@offset $rust:ident $member:ident $field:ident) => { offset_of!($rust, $field) };
}

mirrors! {
    ibv_device Device { node_type, name, dev_name, dev_path, ibdev_path };
    ibv_context Context { ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat };
    ibv_context_ops ContextOps { alloc_mw, bind_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv };
    verbs_context VerbsContext { query_port, create_cq_ex, priv = private, query_device_ex, create_qp_ex, close_xrcd, sz, context, alloc_dmah, dealloc_dmah, reg_mr_ex, dm_export_dmabuf_fd, alloc_buf, free_buf };
    ibv_device_attr DeviceAttr { vendor_id, max_srq_sge, phys_port_cnt };
    ibv_device_attr_ex DeviceAttrEx { odp_caps, device_cap_flags_ex, tm_caps, max_dm_size, xrc_odp_caps, phys_port_cnt_ex };
    ibv_odp_caps OdpCaps;
    ibv_tso_caps TsoCaps;
    ibv_rss_caps RssCaps;
    ibv_packet_pacing_caps PacketPacingCaps;
    ibv_tm_caps TmCaps;
    ibv_cq_moderation_caps CqModerationCaps;
    ibv_pci_atomic_caps PciAtomicCaps;
    ibv_query_device_ex_input QueryDeviceExInput;
    ibv_port_attr PortAttr { link_layer, flags, port_cap_flags2, active_speed_ex };
    ibv_gid_entry GidEntry { gid_index, ndev_ifindex };
    ibv_values_ex ValuesEx;
    ibv_async_event AsyncEvent { event_type };
    ibv_ece Ece;
    ibv_pd Pd;
    ibv_td Td;
    ibv_td_init_attr TdInitAttr;
    ibv_parent_domain_init_attr ParentDomainInitAttr { comp_mask, pd_context };
    ibv_xrcd Xrcd;
    ibv_xrcd_init_attr XrcdInitAttr;
    ibv_mr Mr { lkey, rkey };
    ibv_mr_init_attr MrInitAttr { access, comp_mask, iova, fd, dmah, buf };
    ibv_dmah Dmah;
    ibv_dmah_init_attr DmahInitAttr { tph_mem_type };
    ibv_mw Mw { rkey };
    ibv_mw_bind_info MwBindInfo;
    ibv_mw_bind MwBind { bind_info };
    ibv_dm Dm { comp_mask, handle };
    ibv_alloc_dm_attr AllocDmAttr;
    ibv_global_route GlobalRoute;
    ibv_grh Grh;
    ibv_ah_attr AhAttr { port_num };
    ibv_ah Ah;
    ibv_comp_channel CompChannel { refcnt };
    ibv_wq Wq;
    ibv_wq_init_attr WqInitAttr;
    ibv_wc Wc { imm_data, dlid_path_bits };
    ibv_sge Sge;
    ibv_send_wr SendWr { imm_data, wr, qp_type = remote_srqn, bind_mw };
    ibv_recv_wr RecvWr;
    ibv_data_buf DataBuf;
    ibv_cq Cq { cqe, comp_events_completed, async_events_completed };
    ibv_poll_cq_attr PollCqAttr;
    ibv_cq_ex CqEx { status, wr_id, start_poll, read_completion_wallclock_ns };
    ibv_cq_init_attr_ex CqInitAttrEx { wc_flags, flags, parent_domain };
    ibv_modify_cq_attr ModifyCqAttr;
    ibv_srq_attr SrqAttr;
    ibv_srq_init_attr SrqInitAttr;
    ibv_srq_init_attr_ex SrqInitAttrEx { comp_mask, cq, tm_cap = max_num_tags };
    ibv_srq Srq { events_completed };
    ibv_qp_cap QpCap;
    ibv_qp_init_attr QpInitAttr { qp_type, sq_sig_all };
    ibv_qp_init_attr_ex QpInitAttrEx { comp_mask, xrcd, source_qpn, send_ops_flags };
    ibv_qp_open_attr QpOpenAttr;
    ibv_qp_attr QpAttr { cap, ah_attr, pkey_index, rate_limit };
    ibv_qp_rate_limit_attr QpRateLimitAttr;
    ibv_qp Qp { qp_num, state, events_completed };
    ibv_qp_ex QpEx { comp_mask, wr_id, wr_atomic_cmp_swp, wr_start, wr_abort, wr_atomic_write, wr_flush };
    ibv_ops_wr OpsWr;
    ibv_flow Flow;
    ibv_comp_cntr CompCntr;
    ibv_comp_cntr_caps CompCntrCaps;
    ibv_comp_cntr_init_attr CompCntrInitAttr;
    ibv_qp_attach_comp_cntr_attr QpAttachCompCntrAttr;
    rdma_event_channel CmChannel;
    rdma_ib_addr CmIbAddr;
    rdma_addr CmAddr;
    rdma_route CmRoute { path_rec };
    rdma_cm_id CmId { channel, qp, route, ps, port_num, event, qp_type };
    rdma_conn_param CmConnParam { srq, qp_num };
    rdma_ud_param CmUdParam { ah_attr, qkey };
    rdma_cm_event CmEvent { event, param };
    rdma_addrinfo CmAddrInfo { ai_next };
    rdma_cm_join_mc_attr_ex CmJoinMcAttrEx;
    ibv_sa_path_rec SaPathRec;
}

/// Rows of a table: three words each.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str, u32)> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 3, "three words in `{line}`");
        (words[0], words[1], words[2].parse().expect("a release"))
    })
}

/// The layouts as a release has them.
fn layouts(release: u32) -> BTreeMap<String, usize> {
    let mut known = BTreeMap::new();
    for (name, value, since) in rows(LAYOUTS) {
        if since <= release {
            known.insert(name.to_owned(), value.parse().expect("bytes"));
        }
    }
    known
}

/// An installed shared library, and the release of rdma-core that its file name ends in (`.so.1.14.44.0` is 44).
fn installed(name: &str) -> Option<(PathBuf, u32)> {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let path = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists())?;
    let path = fs::canonicalize(path).ok()?;
    let file = path.file_name()?.to_str()?.to_owned();
    let release = file.rsplit('.').nth(1)?.parse().ok()?;
    Some((path, release))
}

/// Public functions of a library as `name node`, by `nm`; none without it.
fn exports(library: &Path) -> Option<Vec<(String, String)>> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, symbol] = words[..] else { continue };
        if !matches!(kind, "T" | "W" | "D" | "i") {
            continue;
        }
        let (name, node) = symbol.split_once('@')?;
        found.push((name.to_owned(), node.trim_start_matches('@').to_owned()));
    }
    Some(found)
}

/// Compares a library with its table; every difference is a line.
fn compare(exports: &[(String, String)], table: &'static str, release: u32) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, node) in exports {
        let superseded =
            node == "IBVERBS_1.0" && exports.iter().any(|(other, newer)| other == name && newer == "IBVERBS_1.1");
        if node.contains("PRIVATE") || superseded {
            continue;
        }
        if !rows(table).any(|(known, at, _)| known == name && at == node) {
            wrong.push(format!("{name}@{node} is not in the table: add it, and export it from the C door"));
        }
    }
    for (name, node, since) in rows(table).filter(|row| row.2 <= release) {
        if !exports.iter().any(|(found, at)| found == name && at == node) {
            wrong.push(format!("{name}@{node} is said to exist since v{since}, but v{release} does not have it"));
        }
    }
    wrong
}

#[test]
fn the_newest_layouts_are_those_of_the_mirrors() {
    let (table, mirrors) = (layouts(NEWEST), mirrors());
    for (name, value) in &table {
        assert_eq!(mirrors.get(name), Some(value), "{name}");
    }
    assert_eq!(table.len(), mirrors.len(), "every mirror has its row");
}

#[test]
fn tables_are_well_formed_and_grow_only() {
    let mut last = BTreeMap::new();
    for (name, value, since) in rows(LAYOUTS) {
        assert!((OLDEST..=NEWEST).contains(&since), "{name} {since}");
        let bytes: usize = value.parse().expect("bytes");
        let (structure, member) = name.split_once('.').unwrap_or((name, ""));
        if let Some((before, release)) = last.insert(name, (bytes, since)) {
            assert!(release < since, "{name}: rows in the order of releases");
            // `verbs_context` grows in front: its members move up. Everything else keeps its members and grows behind them.
            assert!(
                bytes > before && (member.is_empty() || structure == "verbs_context"),
                "{name} changed from {before} to {bytes}"
            );
        }
    }
    for table in [SYMBOLS, RDMACM] {
        let mut names: Vec<&str> = rows(table).map(|row| row.0).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a name stands once");
        assert!(rows(table).all(|row| (OLDEST..=NEWEST).contains(&row.2)));
    }
}

#[test]
fn a_function_that_the_table_lacks_is_found() {
    let new = [("ibv_newest_idea".to_owned(), "IBVERBS_1.99".to_owned())];
    let wrong = compare(&new, SYMBOLS, 0);
    assert_eq!(wrong.len(), 1);
    assert!(wrong[0].contains("ibv_newest_idea@IBVERBS_1.99"), "{wrong:?}");
    let private = [("ibv_cmd_anything".to_owned(), "IBVERBS_PRIVATE_99".to_owned())];
    assert!(compare(&private, SYMBOLS, 0).is_empty());
}

#[test]
fn installed_libraries_have_the_functions_of_their_release_and_no_others() {
    let mut wrong = Vec::new();
    for (name, table) in [("libibverbs.so.1", SYMBOLS), ("librdmacm.so.1", RDMACM)] {
        let Some((path, release)) = installed(name) else {
            println!("skipped: {name} is not installed");
            continue;
        };
        let Some(exports) = exports(&path) else {
            println!("skipped: nm is not installed");
            return;
        };
        assert!(exports.len() > 50, "{} exports", exports.len());
        wrong.extend(compare(&exports, table, release).into_iter().map(|line| format!("{}: {line}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn installed_headers_have_the_layouts_of_their_release() {
    let headers = ["verbs.h", "sa.h"].iter().all(|name| Path::new("/usr/include/infiniband").join(name).exists())
        && Path::new("/usr/include/rdma/rdma_cma.h").exists();
    let (Some((_, release)), true) = (installed("libibverbs.so.1"), headers) else {
        println!("skipped: the headers of libibverbs and librdmacm (libibverbs-dev, librdmacm-dev) are not installed");
        return;
    };
    // One program prints everything that a release of this number has.
    let mut program = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    let table = layouts(release);
    for name in table.keys() {
        let value = match name.split_once('.') {
            Some((structure, member)) => format!("offsetof(struct {structure}, {member})"),
            None => format!("sizeof(struct {name})"),
        };
        program += &format!("  printf(\"{name} %zu\\n\", {value});\n");
    }
    program += "  return 0;\n}\n";
    let folder = std::env::temp_dir().join(format!("scalefabric-layouts-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (source, binary) = (folder.join("layouts.c"), folder.join("layouts"));
    fs::write(&source, program).expect("the source");
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let Ok(compiled) = compiled else {
        println!("skipped: no C compiler (cc)");
        return;
    };
    let errors = String::from_utf8_lossy(&compiled.stderr).into_owned();
    assert!(compiled.status.success(), "v{release} lacks what the table says: {errors}");
    let printed = Command::new(&binary).output().expect("the program runs").stdout;
    let _ = fs::remove_dir_all(&folder);
    let mut seen = 0;
    for line in String::from_utf8(printed).expect("text").lines() {
        let (name, value) = line.split_once(' ').expect("two words");
        assert_eq!(table[name], value.parse::<usize>().expect("bytes"), "{name} of v{release}");
        seen += 1;
    }
    assert_eq!(seen, table.len());
}
