//! Devices, ports and their tables.

use scalefabric_verbs::{Errno, PKey, PortState};

use super::bench::{Bench, refused};
use super::{Outcome, cases, ensure, same};

cases![
    a_list_of_devices_is_stable_and_has_each_once,
    an_unknown_device_is_enodev_and_the_others_are_named,
    a_device_says_of_itself_what_the_list_says,
    ports_are_numbered_from_one_and_no_other_exists,
    gids_are_those_of_the_table_and_empty_slots_are_zero,
    the_default_pkey_is_there_and_the_table_ends,
    counters_have_names_and_each_once,
    a_device_can_be_opened_twice,
];

fn a_list_of_devices_is_stable_and_has_each_once(bench: &Bench) -> Outcome {
    let (once, again) = (bench.provider.devices()?, bench.provider.devices()?);
    same!(once, again, "the list");
    for (index, device) in once.iter().enumerate() {
        let twice = once[..index].iter().any(|other| other.name == device.name || other.index == device.index);
        ensure!(!twice, "{} or its index is there twice", device.name);
    }
    ensure!(once.contains(&bench.context.device()), "{} is not in the list", bench.name());
    Ok(())
}

fn an_unknown_device_is_enodev_and_the_others_are_named(bench: &Bench) -> Outcome {
    let error = refused(bench.provider.open("nobody's device"), Errno::ENODEV, "opening a device that is not there")?;
    ensure!(error.message.contains(&bench.name()), "`{}` does not name {}", error.message, bench.name());
    Ok(())
}

fn a_device_says_of_itself_what_the_list_says(bench: &Bench) -> Outcome {
    let attr = &bench.attr;
    same!(attr.node_guid, bench.context.device().node_guid, "the GUID");
    let limits = [attr.max_qp, attr.max_qp_wr, attr.max_sge, attr.max_cq, attr.max_cqe, attr.max_mr, attr.max_pd];
    ensure!(limits.iter().all(|limit| *limit > 0), "a limit is 0: {attr:?}");
    ensure!(attr.phys_port_cnt > 0 && attr.num_comp_vectors > 0, "no port or no completion vector");
    Ok(())
}

fn ports_are_numbered_from_one_and_no_other_exists(bench: &Bench) -> Outcome {
    for port in [0, bench.attr.phys_port_cnt + 1] {
        refused(bench.context.query_port(port), Errno::EINVAL, "a port that does not exist")?;
    }
    let port = &bench.port;
    same!(port.state, PortState::Active, "the port's state");
    ensure!(port.active_mtu <= port.max_mtu, "the MTU {:?} is above its maximum", port.active_mtu);
    ensure!(port.gid_tbl_len > 0 && port.pkey_tbl_len > 0 && port.max_msg_sz > 0, "an empty table: {port:?}");
    same!(port.link_layer, 2, "the link layer (Ethernet)");
    Ok(())
}

fn gids_are_those_of_the_table_and_empty_slots_are_zero(bench: &Bench) -> Outcome {
    let table = bench.context.query_gid_table()?;
    ensure!(!table.is_empty(), "no GID");
    for entry in &table {
        let gid = bench.context.query_gid(entry.port_num, entry.gid_index)?;
        same!(gid, entry.gid, "the GID at its index");
        ensure!(!gid.is_zero(), "a zero GID is in the table");
    }
    let in_use = |index: u32| table.iter().any(|entry| entry.port_num == bench.port_num && entry.gid_index == index);
    if let Some(empty) = (0..bench.port.gid_tbl_len).find(|index| !in_use(*index)) {
        ensure!(bench.context.query_gid(bench.port_num, empty)?.is_zero(), "the empty slot {empty} is not zero");
    }
    let beyond = bench.context.query_gid(bench.port_num, bench.port.gid_tbl_len);
    refused(beyond, Errno::EINVAL, "a GID beyond the table")?;
    Ok(())
}

fn the_default_pkey_is_there_and_the_table_ends(bench: &Bench) -> Outcome {
    same!(bench.context.query_pkey(bench.port_num, 0)?, PKey(0xffff), "P_Key 0");
    let beyond = bench.context.query_pkey(bench.port_num, bench.port.pkey_tbl_len);
    refused(beyond, Errno::EINVAL, "a P_Key beyond the table")?;
    Ok(())
}

fn counters_have_names_and_each_once(bench: &Bench) -> Outcome {
    let mut names: Vec<String> = bench.context.hw_counters(bench.port_num)?.into_iter().map(|(name, _)| name).collect();
    ensure!(names.iter().all(|name| !name.is_empty()), "a counter without a name");
    let all = names.len();
    names.sort();
    names.dedup();
    same!(names.len(), all, "names of counters");
    Ok(())
}

fn a_device_can_be_opened_twice(bench: &Bench) -> Outcome {
    let second = bench.provider.open(&bench.name())?;
    let pd = second.alloc_pd()?;
    let cq = bench.context.create_cq(1, None, 0)?;
    // Objects of two contexts do not mix.
    let init = scalefabric_verbs::QpInit {
        qp_type: scalefabric_verbs::QpType::Ud,
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        cap: super::bench::Shape::new(scalefabric_verbs::QpType::Ud).cap,
        sq_sig_all: false,
    };
    let _ = pd.create_qp(&init);
    pd.destroy()?;
    drop(second);
    bench.context.query_device()?;
    Ok(())
}
