//! What is kept where in the store. The parts of a key are separated by `/`; a part that a person or a program chose is escaped ([`part`]), so that
//! it never looks like two. All values are JSON.
//!
//! | key | value | lives | written by |
//! |---|---|---|---|
//! | `nodes/<node>` | [`crate::directory::NodeRecord`] | lease of the agent | the replica that the agent joined |
//! | `connections/<node>/<process>/<origin>/<serial>` | [`scalefabric_fabric::directory::ConnectionRecord`] | lease of the agent | the same |
//! | `services/<service>/<node>/<exchange>` | [`scalefabric_fabric::directory::ServiceAddress`] | lease of the agent | the same |
//! | `holdings/<node>` | what tenants have on a node: [`scalefabric_fabric::directory::Holdings`] by tenant | lease of the agent | the same |
//! | `loads/<replica>` | [`crate::load::Loads`] of the agents of a replica | lease of the replica | each replica, twice a second |
//! | `replicas/<replica>` | [`crate::service::ReplicaRecord`] | lease of the replica | each replica |
//! | `hot` | names of the ports that are judged to be hot: [`crate::topology::PortName`]s | lease of who rebalances | who rebalances, when it changes |
//! | `leaders/<duty>` | name of the replica that has the duty; the revision of its making, counted from `epoch`, is the fencing token | lease of that replica | [`crate::leader`] |
//! | `orders/<node>/<id>` | [`crate::order::OrderRecord`], its answer included | until it is swept away, 10 minutes after its end | who orders, then the replica of the agent |
//! | `epoch` | when the store was first used, milliseconds since 1970 | for ever | [`crate::leader`] |
//! | `topology/file` | the operator's topology file, its TOML as a JSON string | for ever | the replica that was started with one |
//! | `tenants/rules` | [`crate::tenant::Tenants`], whole | for ever | an operator, over HTTP |
//! | `rebalance/settings` | [`crate::rebalance::Settings`]: rules, freeze, wishes | for ever | [`crate::rebalance`] |
//! | `keys/…` | schedule of key rotation, when it was followed, the last rotations; never a key | for ever | [`crate::rotation`] |
//! | `~…` | what a store needs for itself | | the store |

use scalefabric_fabric::directory::{ConnectionId, ServiceAddress};
use std::borrow::Cow;

/// Nodes.
pub const NODES: &str = "nodes/";
/// Connections.
pub const CONNECTIONS: &str = "connections/";
/// Services.
pub const SERVICES: &str = "services/";
/// What tenants have, by node.
pub const HOLDINGS: &str = "holdings/";
/// Loads by replica.
pub const LOADS: &str = "loads/";
/// Replicas.
pub const REPLICAS: &str = "replicas/";
/// Ports that are hot.
pub const HOT: &str = "hot";
/// Duties and who has them.
pub const LEADERS: &str = "leaders/";
/// Orders and their answers.
pub const ORDERS: &str = "orders/";
/// Switches and links.
pub const TOPOLOGY: &str = "topology/";
/// The operator's topology file.
pub const TOPOLOGY_FILE: &str = "topology/file";
/// Tenants.
pub const TENANTS: &str = "tenants/";
/// The part of [`TENANTS`] that holds the rules.
pub const TENANT_RULES: &str = "rules";
/// Rebalancing.
pub const REBALANCE: &str = "rebalance/";
/// When the store was first used.
pub const EPOCH: &str = "epoch";
/// Key rotation.
pub const KEYS: &str = "keys/";

/// A part of a key: `/`, `%`, `~` and control characters become `%` and two hexadecimal digits.
pub fn part(text: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte > b' ' && byte != 0x7f && !b"/%~".contains(&byte);
    if text.bytes().all(plain) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if u8::try_from(character).is_ok_and(|byte| byte < 0x80 && !plain(byte)) {
            escaped.push_str(&format!("%{:02x}", u32::from(character)));
        } else {
            escaped.push(character);
        }
    }
    escaped.into()
}

/// What [`part`] was made from; `None` if it was not made by it.
pub fn unescape(part: &str) -> Option<String> {
    let mut pieces = part.split('%');
    let mut text = pieces.next()?.to_owned();
    for piece in pieces {
        let code = u8::from_str_radix(piece.get(..2)?, 16).ok().filter(u8::is_ascii)?;
        text.push(char::from(code));
        text.push_str(&piece[2..]);
    }
    Some(text)
}

/// Of a node.
pub fn node(node: &str) -> String {
    format!("{NODES}{}", part(node))
}

/// Of all connections of a node.
pub fn connections_of(node: &str) -> String {
    format!("{CONNECTIONS}{}/", part(node))
}

/// Of one end of a connection.
pub fn connection(node: &str, process: &str, id: &ConnectionId) -> String {
    format!("{CONNECTIONS}{}/{}/{}/{}", part(node), part(process), part(&id.origin), id.serial)
}

/// Of an address of a service.
pub fn service(address: &ServiceAddress) -> String {
    format!("{SERVICES}{}/{}/{}", part(&address.service), part(&address.node), part(&address.exchange))
}

/// Of what tenants have on a node.
pub fn holdings(node: &str) -> String {
    format!("{HOLDINGS}{}", part(node))
}

/// Of an order.
pub fn order(node: &str, id: &str) -> String {
    format!("{ORDERS}{}/{}", part(node), part(id))
}

/// The parts of a key after its first, as they were before [`part`].
pub fn parts(key: &str) -> Option<Vec<String>> {
    key.split('/').skip(1).map(unescape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_never_looks_like_two_and_comes_back() {
        for text in ["node3", "node3/4711", "a%2fb", "~x", "ü/\n", "", "100%"] {
            let escaped = part(text);
            assert!(!escaped.contains('/') && !escaped.starts_with('~'), "{escaped}");
            assert_eq!(unescape(&escaped).as_deref(), Some(text));
        }
        assert_eq!(unescape("a%"), None);
        assert_eq!(unescape("%zz"), None);
        assert_eq!(unescape("%ff"), None);
    }

    #[test]
    fn the_keys_of_two_connections_differ_where_the_connections_do() {
        let id = |origin: &str, serial| ConnectionId { origin: origin.into(), serial };
        assert_ne!(connection("a", "1", &id("b/1", 2)), connection("a", "1", &id("b", 12)));
        let key = connection("n", "7", &id("n/7", 9));
        assert_eq!(parts(&key), Some(vec!["n".into(), "7".into(), "n/7".into(), "9".into()]));
    }
}
