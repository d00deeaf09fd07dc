//! Who holds an address: what `/proc` tells about the sockets on a UDP port, for the error that a second user gets.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use scalefabric_verbs::{Errno, VerbsError};

use crate::port::udp::socket::ROCE_PORT;

/// A socket bound to the RoCE port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Address it is bound to.
    pub ip: IpAddr,
    /// User that made it.
    pub uid: u32,
    /// Inode, by which its process is found.
    pub inode: u64,
}

/// Sockets of this network namespace that are bound to UDP port 4791.
pub fn holders() -> Vec<Holder> {
    let mut all = Vec::new();
    for path in ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"] {
        let text = fs::read_to_string(path).unwrap_or_default();
        all.extend(text.lines().skip(1).filter_map(parse).filter(|(port, _)| *port == ROCE_PORT).map(|(_, h)| h));
    }
    all
}

/// One line: `sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode …`. Words of addresses are printed in
/// host order, each 32 bits.
fn parse(line: &str) -> Option<(u16, Holder)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    let word = |i: usize| Some(u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for i in 0..4 {
                octets[i * 4..i * 4 + 4].copy_from_slice(&word(i)?);
            }
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((port, Holder { ip, uid: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()? }))
}

/// The process that has a socket, if we may see that: its number and name.
fn process_of(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(fds) = fs::read_dir(entry.path().join("fd")) else { continue };
        if fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str())) {
            return Some((pid, program(pid)));
        }
    }
    None
}

/// Name of a process's program.
pub fn program(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

fn user(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.map_or_else(|| format!("user {uid}"), |name| format!("user {uid} ({name})"))
}

/// The error for an address whose port 4791 somebody else has: who, and the ways out.
pub fn address_in_use(device: &str, ip: IpAddr) -> VerbsError {
    let all = holders();
    let same_family = |h: &&Holder| h.ip.is_ipv4() == ip.is_ipv4();
    let holder =
        all.iter().find(|h| h.ip == ip).or_else(|| all.iter().filter(same_family).find(|h| h.ip.is_unspecified()));
    let (who, other) = match holder {
        Some(holder) => {
            let process = match process_of(holder.inode) {
                Some((pid, name)) => format!("process {pid} ({name}) of "),
                None => "a process of ".into(),
            };
            // SAFETY: plain system call that cannot fail.
            let own = unsafe { libc::geteuid() };
            (format!("{process}{}", user(holder.uid)), holder.uid != own)
        }
        None => ("somebody (the kernel's own RoCE driver does not show up as a process)".into(), true),
    };
    let rule = if other {
        "Processes share a device only within one user."
    } else {
        "It does not share its device (it was started with share = false, or is another program)."
    };
    VerbsError::environment(
        Errno::EADDRINUSE,
        format!(
            "device {device}: UDP port {ROCE_PORT} of {ip} is held by {who}. {rule} Ways out: end that process; give this \
             one an address of its own (a [[device]] with `addresses` in the file that SCALEFABRIC_CONFIG names); or run it \
             in a network namespace of its own (`ip netns add`, `ip netns exec`)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_families_are_read() {
        let v4 = "  10: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000 0 4242 2 0 0";
        let (port, holder) = parse(v4).unwrap();
        assert_eq!((port, holder), (4791, Holder { ip: Ipv4Addr::LOCALHOST.into(), uid: 1000, inode: 4242 }));
        let v6 = "  11: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 \
                  00000000:00000000 00:00000000 00000000 0 0 7 2 0 0";
        assert_eq!(parse(v6).unwrap().1.ip, IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_eq!(parse("garbage"), None);
        assert_eq!(parse("1: xx:1 2 3 4 5 6 7 8 9"), None);
    }

    #[test]
    fn the_error_names_this_very_process() {
        use crate::port::udp::socket::{LocalAddress, ReceiveOptions, open_receive, own_loopback};
        let ip = own_loopback(30);
        let options = ReceiveOptions { reuse_port: false, ..ReceiveOptions::default() };
        let _socket = open_receive(LocalAddress { ip, ifindex: 1 }, options).unwrap();
        let error = address_in_use("sf0", ip);
        assert_eq!(error.errno, Errno::EADDRINUSE);
        let text = error.message;
        assert!(text.contains(&format!("process {} (", std::process::id())), "{text}");
        assert!(text.contains(&ip.to_string()) && text.contains("ip netns"), "{text}");
    }
}
