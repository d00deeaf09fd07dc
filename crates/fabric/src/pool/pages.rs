//! What the machine says about huge pages and NUMA nodes: files under `/sys` and `/proc`. It maps nothing.

use std::fs;
use std::path::Path;

use scalefabric_verbs::DeviceInfo;

use super::config::PageKind;

/// Why reserved pages of a kind cannot be had, in the words of the files that count them.
pub fn why_no_huge_pages(kind: PageKind, wanted_bytes: usize) -> String {
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", kind.unit() >> 10);
    let count = |name: &str| {
        fs::read_to_string(format!("{folder}/{name}")).ok().and_then(|text| text.trim().parse::<usize>().ok())
    };
    let wanted = wanted_bytes.div_ceil(kind.unit());
    match (count("free_hugepages"), count("nr_hugepages")) {
        (Some(free), Some(all)) => format!(
            "{wanted} wanted, {free} of {all} are free: write {} to {folder}/nr_hugepages",
            all + wanted.saturating_sub(free)
        ),
        _ => "this kernel or processor does not have them".into(),
    }
}

/// Why the kernel will not give transparent pages, if it will not. Memory of files and shared memory has a switch of its own.
pub fn why_no_transparent_pages(shared: bool) -> Option<String> {
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let (name, off): (_, &[&str]) =
        if shared { ("shmem_enabled", &["[never]", "[deny]"]) } else { ("enabled", &["[never]"]) };
    let (file, what) = (format!("{folder}/{name}"), if shared { "advise" } else { "madvise" });
    match fs::read_to_string(&file) {
        Err(_) => Some("this kernel does not have them".into()),
        Ok(text) if off.iter().any(|word| text.contains(word)) => Some(format!("switched off: write {what} to {file}")),
        Ok(_) => None,
    }
}

/// Bytes of the mapping at `at` that lie in huge pages, as `/proc/self/smaps` counts them. `None` where it cannot be read.
pub fn huge_bytes(at: usize) -> Option<usize> {
    let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
    let start = format!("{at:x}-");
    let mut inside = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        let is_header = line.split_whitespace().next().is_some_and(|word| word.contains('-') && !word.ends_with(':'));
        if is_header {
            if inside {
                break;
            }
            inside = line.starts_with(&start);
            continue;
        }
        let counts = ["AnonHugePages:", "ShmemPmdMapped:", "Private_Hugetlb:", "Shared_Hugetlb:"];
        if inside && counts.iter().any(|name| line.starts_with(name)) {
            bytes += line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) << 10;
        }
    }
    inside.then_some(bytes)
}

/// Number of NUMA nodes with memory; 1 where the machine does not say.
pub fn nodes() -> usize {
    let Ok(text) = fs::read_to_string("/sys/devices/system/node/has_memory") else { return 1 };
    let count = |range: &str| match range.split_once('-') {
        Some((from, to)) => to.parse::<usize>().ok()?.checked_sub(from.parse().ok()?).map(|n| n + 1),
        None => range.parse::<usize>().ok().map(|_| 1),
    };
    text.trim().split(',').filter_map(count).sum::<usize>().max(1)
}

/// NUMA node of a device: that of its entry among RDMA devices, else that of its first interface. `None` for software devices and where the machine has no say.
pub fn node_of(device: &DeviceInfo) -> Option<u32> {
    let interfaces = device.interfaces.iter().map(|name| ("net", name.as_str()));
    std::iter::once(("infiniband", device.name.as_str())).chain(interfaces).find_map(|(class, name)| {
        if name.contains('/') {
            return None;
        }
        let file = Path::new("/sys/class").join(class).join(name).join("device/numa_node");
        // The kernel writes -1 where the firmware does not tell.
        fs::read_to_string(file).ok()?.trim().parse::<u32>().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_node_and_reasons() {
        assert!(nodes() >= 1);
        assert!(why_no_huge_pages(PageKind::Huge1G, 3 << 30).contains("nr_hugepages") || nodes() == 1);
        let nowhere = DeviceInfo { name: "no-such".into(), node_guid: 0, index: 0, interfaces: vec!["../x".into()] };
        assert_eq!(node_of(&nowhere), None);
    }
}
