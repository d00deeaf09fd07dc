//! The files that tools look for, as programs see them, and the tools themselves.

use super::{run, said, sfab};
use std::path::Path;

fn python(script: &str) -> Option<String> {
    let sfab = sfab()?;
    if !Path::new("/usr/bin/python3").exists() {
        println!("skipped: python3 is missing");
        return None;
    }
    Some(said(&run(sfab, &[], "/usr/bin/python3", &["-c", script])))
}

#[test]
fn nodes_are_character_devices_and_opening_one_says_why_not() {
    let script = "
import os, stat, errno
node = next(n for n in sorted(os.listdir('/dev/infiniband')) if n.startswith('uverbs'))
path = '/dev/infiniband/' + node
status = os.stat(path)
assert stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(231, 192 + int(node[6:])), status
assert os.access(path, os.R_OK | os.W_OK)
folder = os.open('/dev/infiniband', os.O_RDONLY)
assert stat.S_ISCHR(os.stat(node, dir_fd=folder).st_mode)
assert [e.is_file() for e in os.scandir('/dev/infiniband')].count(True) == 0
try:
    os.open(path, os.O_RDWR)
    print('opened')
except OSError as error:
    print(errno.errorcode[error.errno])
";
    if let Some(text) = python(script) {
        assert!(text == "EOPNOTSUPP\n" || text == "ENOTSUP\n", "{text}");
    }
}

#[test]
fn paths_lead_into_the_tree_and_its_own_place_is_not_seen() {
    let script = "
import os, glob
print(os.path.realpath('/sys/class/infiniband/sflo'))
print(os.path.realpath('/sys/class/infiniband/sflo/device'))
print(glob.glob('/sys/class/infiniband/sfl*/ports/1/gid_attrs/types/0'))
os.chdir('/sys/class/infiniband/sflo')
print(os.getcwd(), open('node_type').read().strip(), os.path.exists('ports/1/state'), os.path.exists('ports/2'))
print(os.listdir('device/net'))
print(open('/sys/class/infiniband/../infiniband//sflo/ports/1/gid_attrs/ndevs/0').read().strip())
";
    if let Some(text) = python(script) {
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "/sys/devices/virtual/scalefabric/sflo/infiniband/sflo");
        assert_eq!(lines[1], "/sys/devices/virtual/scalefabric/sflo");
        assert_eq!(lines[2], "['/sys/class/infiniband/sflo/ports/1/gid_attrs/types/0']");
        assert_eq!(lines[3], "/sys/devices/virtual/scalefabric/sflo/infiniband/sflo 1: CA True False");
        assert_eq!(lines[4..], ["['lo']", "lo"]);
    }
}

#[test]
fn nothing_is_left_when_the_program_has_ended() {
    let Some(sfab) = sfab() else { return };
    // Both ends: `exit` of ls, and `_exit` of the shell whose child was ls.
    for program in
        [&["ls", "/sys/class/infiniband"][..], &["sh", "-c", "ls /sys/class/infiniband; echo $SCALEFABRIC_TREE"]]
    {
        let mut with_place = program.to_vec();
        if program[0] == "ls" {
            with_place = vec!["sh", "-c", "echo $SCALEFABRIC_TREE; exec ls /sys/class/infiniband"];
        }
        let text = said(&run(sfab, &[], with_place[0], &with_place[1..]));
        let place = text.lines().find(|line| line.contains("scalefabric-")).unwrap_or_else(|| panic!("{text}"));
        assert!(text.contains("sflo"), "{text}");
        assert!(!Path::new(place).exists(), "{place} is left");
    }
}

#[test]
fn the_diagnostic_tools_find_the_device() {
    let Some(sfab) = sfab() else { return };
    for (tool, arguments, words) in [
        ("/usr/sbin/ibstat", &["sflo"][..], &["CA 'sflo'", "Link layer: Ethernet"][..]),
        ("/usr/sbin/ibstatus", &["sflo"], &["Infiniband device 'sflo' port 1 status", "4X EDR"]),
        ("/usr/bin/rdma", &["link", "show", "sflo/1"], &["link sflo/1", "netdev lo"]),
        ("/usr/bin/rdma", &["-d", "dev"], &["sflo: node_type ca", "MEM_WINDOW_TYPE_2B"]),
        ("/usr/bin/rdma", &["-j", "statistic", "show", "link", "sflo/1"], &["\"ifname\":\"sflo\"", "sent_pkts"]),
        ("/usr/bin/rdma", &["system"], &["netns"]),
        ("/usr/bin/find", &["/dev/infiniband", "-type", "c", "-name", "rdma_cm"], &["/dev/infiniband/rdma_cm"]),
    ] {
        if !Path::new(tool).exists() {
            println!("skipped: {tool} is missing; install infiniband-diags and iproute2");
            continue;
        }
        let text = said(&run(sfab, &[], tool, arguments));
        for word in words {
            assert!(text.contains(word), "{tool} {arguments:?} lacks {word:?}: {text}");
        }
    }
}

#[test]
fn only_the_named_device_is_seen() {
    let Some(sfab) = sfab() else { return };
    let text = said(&run(sfab, &["--device", "sflo"], "ls", &["/sys/class/infiniband"]));
    assert_eq!(text, "sflo\n");
}
