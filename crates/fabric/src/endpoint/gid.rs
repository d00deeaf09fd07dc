//! Which GID to use, chosen by what it means: kind, address family, scope, nearness to the peer. Indexes move when addresses come and go, so none is ever
//! asked for or remembered. Pure functions over a table.

use crate::error::FabricError;
use scalefabric_verbs::{Gid, GidEntry, GidType};
use std::net::{IpAddr, Ipv6Addr};

/// What a GID should be.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Want {
    /// On this port only.
    pub port_num: Option<u8>,
    /// Exactly this one.
    pub gid: Option<Gid>,
    /// Of the family of this address, and as near to it as can be (longest common prefix).
    pub peer: Option<Gid>,
    /// IPv4 (true) or IPv6; `None`: the peer's, or else IPv4 first.
    pub ipv4: Option<bool>,
    /// Whether link-local addresses will do. They reach no other subnet, so by default they do not, unless the peer's is one.
    pub link_local: bool,
}

/// The best entry. An error that lists what there was, and why it would not do.
pub fn choose<'a>(device: &str, table: &'a [GidEntry], want: &Want) -> Result<&'a GidEntry, FabricError> {
    let mut best: Option<(&GidEntry, (u32, bool))> = None;
    let mut refused = Vec::new();
    for entry in table {
        match objection(entry, want) {
            Some(why) => refused.push(format!("{} on port {} ({why})", address(entry.gid), entry.port_num)),
            None => {
                let near = want.peer.map_or(0, |peer| common_prefix(entry.gid, peer));
                let rank = (near, entry.gid.is_ipv4());
                // The first of equals: active ports come first.
                if best.is_none_or(|(_, other)| rank > other) {
                    best = Some((entry, rank));
                }
            }
        }
    }
    if let Some((entry, _)) = best {
        return Ok(entry);
    }
    let seen = if refused.is_empty() { "it has none".into() } else { refused.join(", ") };
    Err(FabricError::environment(format!(
        "{device} has no GID that is {}: {seen}; add an address to its interface, or ask for another kind",
        describe(want)
    )))
}

fn objection(entry: &GidEntry, want: &Want) -> Option<&'static str> {
    if entry.gid.is_zero() {
        return Some("empty");
    }
    if entry.gid_type != GidType::RoceV2 {
        return Some("not RoCEv2");
    }
    if want.port_num.is_some_and(|port| port != entry.port_num) {
        return Some("another port");
    }
    if let Some(gid) = want.gid {
        return (gid != entry.gid).then_some("another address");
    }
    let family = want.ipv4.or(want.peer.map(|peer| peer.is_ipv4()));
    if family.is_some_and(|ipv4| ipv4 != entry.gid.is_ipv4()) {
        return Some("another address family");
    }
    let wants_local = want.link_local || want.peer.is_some_and(is_link_local);
    if is_link_local(entry.gid) && !wants_local {
        return Some("link-local");
    }
    None
}

/// Whether an address reaches its own link only.
pub fn is_link_local(gid: Gid) -> bool {
    match address(gid) {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// The IP address of a GID.
pub fn address(gid: Gid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}

fn common_prefix(one: Gid, other: Gid) -> u32 {
    (u128::from_be_bytes(one.0) ^ u128::from_be_bytes(other.0)).leading_zeros()
}

fn describe(want: &Want) -> String {
    let mut words = vec!["RoCEv2".to_owned()];
    if let Some(gid) = want.gid {
        words.push(address(gid).to_string());
    } else {
        match want.ipv4.or(want.peer.map(|peer| peer.is_ipv4())) {
            Some(true) => words.push("IPv4".into()),
            Some(false) => words.push("IPv6".into()),
            None => {}
        }
        if !want.link_local && !want.peer.is_some_and(is_link_local) {
            words.push("not link-local".into());
        }
    }
    if let Some(port) = want.port_num {
        words.push(format!("on port {port}"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(port_num: u8, text: &str, gid_type: GidType) -> GidEntry {
        let gid = Gid::from_ip(text.parse().unwrap());
        GidEntry { gid, gid_index: 0, port_num, gid_type, ndev_ifindex: 1, ndev_name: "eth".into() }
    }

    fn table() -> Vec<GidEntry> {
        vec![
            entry(1, "fe80::1", GidType::RoceV2),
            entry(1, "10.0.0.1", GidType::RoceV1),
            entry(1, "10.0.0.1", GidType::RoceV2),
            entry(2, "10.1.0.1", GidType::RoceV2),
            entry(2, "2001:db8::1", GidType::RoceV2),
        ]
    }

    fn chosen(want: &Want) -> String {
        let table = table();
        let entry = choose("sf0", &table, want).unwrap();
        format!("{}/{}", entry.port_num, address(entry.gid))
    }

    fn near(text: &str) -> Want {
        Want { peer: Some(Gid::from_ip(text.parse().unwrap())), ..Want::default() }
    }

    #[test]
    fn a_gid_is_chosen_by_kind_family_and_nearness() {
        assert_eq!(chosen(&Want::default()), "1/10.0.0.1");
        assert_eq!(chosen(&near("10.1.0.9")), "2/10.1.0.1");
        assert_eq!(chosen(&near("10.0.0.9")), "1/10.0.0.1");
        assert_eq!(chosen(&near("2001:db8::9")), "2/2001:db8::1");
        assert_eq!(chosen(&Want { port_num: Some(2), ..near("10.0.0.9") }), "2/10.1.0.1");
    }

    #[test]
    fn link_local_only_when_asked_or_when_the_peer_is() {
        assert_eq!(chosen(&Want { ipv4: Some(false), ..Want::default() }), "2/2001:db8::1");
        assert_eq!(chosen(&near("fe80::9")), "1/fe80::1");
        let want = Want { ipv4: Some(false), port_num: Some(1), ..Want::default() };
        let table = table();
        assert!(choose("sf0", &table, &want).is_err());
        assert!(choose("sf0", &table, &Want { link_local: true, ..want }).is_ok());
    }

    #[test]
    fn an_error_lists_what_there_was_and_why_it_would_not_do() {
        let want = Want { ipv4: Some(false), port_num: Some(1), ..Want::default() };
        let message = choose("sf0", &table(), &want).unwrap_err().message;
        for part in ["sf0", "IPv6", "fe80::1 on port 1 (link-local)", "10.0.0.1 on port 1 (not RoCEv2)", "another port"]
        {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
    }
}
