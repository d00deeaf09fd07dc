//! Which scripts make sense on Linux, and which node of each. Everything that is left out is left out by a rule here, and a
//! rule has its reason. What Linux has and does otherwise is not a matter for rules but for the table
//! (`rig/linux-differs.txt`).

use scalefabric_verbs::{OpKind, QpType};

use super::linux_has;
use crate::script::{Field, Script, Statement};

/// The nodes of a script in the order in which they are made.
pub fn nodes(script: &Script) -> Vec<String> {
    let mut nodes: Vec<String> = Vec::new();
    for (_, statement) in &script.statements {
        let name = match statement {
            Statement::Node { name, .. } => name,
            Statement::Region { node, .. }
            | Statement::Window { node, .. }
            | Statement::Srq { node, .. }
            | Statement::Qp { node, .. } => node,
            _ => continue,
        };
        if !nodes.contains(name) {
            nodes.push(name.clone());
        }
    }
    nodes
}

/// True if the script lets time pass.
pub fn lets_time_pass(script: &Script) -> bool {
    script.statements.iter().any(|(_, statement)| matches!(statement, Statement::At { .. }))
}

/// A script as seen from the node that shall be Linux.
struct View<'a> {
    script: &'a Script,
    node: &'a str,
    /// The QPs of the node.
    qps: Vec<(&'a str, QpType)>,
}

impl View<'_> {
    fn any(&self, is: impl Fn(&Statement) -> bool) -> bool {
        self.script.statements.iter().any(|(_, statement)| is(statement))
    }

    fn has(&self, name: &str) -> bool {
        self.qps.iter().any(|(qp, _)| *qp == name)
    }

    fn second_port(&self) -> bool {
        self.any(|statement| match statement {
            Statement::Modify { pairs, .. } | Statement::Qp { pairs, .. } | Statement::Query { pairs, .. } => {
                pairs.iter().any(|(key, value)| {
                    ["mig", "alt", "alt_port", "alt_timeout", "alt_pkey_index"].contains(&key.as_str())
                        || (key == "port" && value != "1" && value != "3")
                        || (key == "av" && value.ends_with(":2"))
                })
            }
            Statement::Packet { fields, .. } | Statement::Inject { fields, .. } => {
                fields.iter().any(|field| matches!(field, Field::Port(port) if *port != 1))
            }
            _ => false,
        })
    }
}

/// The shortest time that a script may let pass when Linux asks: its timers run on jiffies (4 ms in Debian's kernel, 1 ms
/// at best).
const A_JIFFY_NS: u64 = 1_000_000;

/// A rule: what it looks for, and why that makes no sense on Linux.
type Rule = (fn(&View<'_>) -> bool, &'static str);

const RULES: &[Rule] = &[
    (|view| view.qps.is_empty(), "the node has no QP"),
    (
        |view| {
            view.any(|s| match s {
                Statement::Qp { qp_type, .. } => !linux_has(*qp_type),
                Statement::Srq { xrc, .. } => *xrc,
                _ => false,
            })
        },
        "XRC: rxe has none",
    ),
    (
        |view| {
            view.any(|s| matches!(s, Statement::Post { kind: OpKind::Flush | OpKind::AtomicWrite, refused: None, .. }))
        },
        "FLUSH and ATOMIC WRITE: Linux 6.1 has neither",
    ),
    (|view| view.second_port(), "a second port and path migration: rxe has neither"),
    (
        |view| view.any(|s| matches!(s, Statement::Group { .. } | Statement::Attach { .. })),
        "multicast: the wire of this stage has sockets for single hosts only",
    ),
    (
        |view| {
            view.any(|s| match s {
                Statement::PKey { .. } => true,
                Statement::Node { pkeys, .. } => pkeys.as_slice() != [0xffff],
                _ => false,
            })
        },
        "partitions: rxe's P_Key table has one entry that nobody can change",
    ),
    (
        |view| {
            let inner = |s: &Statement| match s {
                Statement::Fail { qp, .. } => view.has(qp),
                Statement::FailDevice { node } | Statement::PortChange { node, .. } => node == view.node,
                _ => false,
            };
            view.any(inner)
        },
        "the script breaks the device from inside",
    ),
    (|view| view.any(|s| matches!(s, Statement::Gone { .. })), "memory that goes away: Linux pins what is registered"),
    (
        |view| view.any(|s| matches!(s, Statement::Poll { qp, .. } if view.has(qp))),
        "an overrun CQ: rxe rounds the number of entries up as it likes",
    ),
    (
        |view| {
            view.any(|s| match s {
                Statement::Qp { node, pairs, .. } => {
                    node == view.node && pairs.iter().any(|(key, _)| key == "rate_limit" || key == "cq")
                }
                Statement::Modify { pairs, .. } => pairs.iter().any(|(key, _)| key == "rate_limit"),
                _ => false,
            })
        },
        "rate limits: rxe has none",
    ),
    (
        |view| {
            let posts = view.any(|s| matches!(s, Statement::Post { qp, refused: None, .. } if view.has(qp)));
            posts && view.any(|s| matches!(s, Statement::At { ns, relative: true } if *ns < A_JIFFY_NS))
        },
        "exact timers of the requester: the script counts less than a jiffy",
    ),
];

/// Why a script is not played with `node` as Linux; `None`: it is played.
pub fn left_out(script: &Script, node: &str) -> Option<&'static str> {
    let mut qps = Vec::new();
    for (_, statement) in &script.statements {
        if let Statement::Qp { name, node: at, qp_type, .. } = statement
            && at == node
        {
            qps.push((name.as_str(), *qp_type));
        }
    }
    let view = View { script, node, qps };
    RULES.iter().find(|(matches, _)| matches(&view)).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::{RULES, left_out, nodes};
    use crate::library::scripts;

    /// A rule that no script falls under is not needed, and one under which all fall leaves nothing.
    #[test]
    fn every_rule_leaves_something_out_and_something_is_left() {
        let scripts = scripts().unwrap();
        let reasons: Vec<_> = scripts
            .iter()
            .flat_map(|entry| nodes(&entry.script).into_iter().map(|node| left_out(&entry.script, &node)))
            .collect();
        for (_, reason) in RULES {
            assert!(reasons.contains(&Some(*reason)), "no script falls under the rule '{reason}'");
        }
        let played = reasons.iter().filter(|reason| reason.is_none()).count();
        assert!(played >= 110, "only {played} plays are left");
    }
}
