//! Who belongs to which tenant, who may connect to whom, and how much each may have: the policy as people write it (TOML, or JSON over the API), checked as a whole
//! before any of it counts. Pure; who enforces it asks it.

use super::quota::Quota;
use scalefabric_verbs::PKey;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// P_Keys of tenants that a node's ports have room for: a table of 64 whose first entry is the default P_Key.
pub const MAX_PKEYS: usize = 63;

/// A P_Key as people write it: a number or `"0x8011"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "PKeyText", into = "PKeyText")]
pub struct Partition(u16);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PKeyText {
    Number(u64),
    Text(String),
}

impl TryFrom<PKeyText> for Partition {
    type Error = String;

    fn try_from(value: PKeyText) -> Result<Self, String> {
        let number = match &value {
            PKeyText::Number(number) => Some(*number),
            PKeyText::Text(text) => match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            },
        };
        let shown = match value {
            PKeyText::Number(number) => format!("{number:#x}"),
            PKeyText::Text(text) => text,
        };
        // The upper bit says full member (10.9.1.1); all members of a tenant are. 0x7FFF is the default partition, 0 is no P_Key.
        match number {
            Some(number @ 1..=0x7ffe) => Ok(Self(number as u16)),
            Some(number @ 0x8001..=0xfffe) => Ok(Self(number as u16 & 0x7fff)),
            _ => Err(format!("`{shown}` is no P_Key for a tenant: use 0x8001 to 0xfffe")),
        }
    }
}

impl From<Partition> for PKeyText {
    fn from(partition: Partition) -> Self {
        Self::Text(format!("{:#06x}", partition.pkey().0))
    }
}

impl Partition {
    /// The P_Key of a full member.
    pub fn pkey(self) -> PKey {
        PKey(self.0 | 0x8000)
    }
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Its partition: packets of others are dropped by the NIC.
    pub pkey: Partition,
    /// Services that it offers: names, or beginnings of names with `*` at the end.
    #[serde(default)]
    pub services: Vec<String>,
    /// Nodes that its processes may run on. Default: all.
    #[serde(default)]
    pub nodes: Option<BTreeSet<String>>,
    /// How much it may have, on all nodes together. Default: no limit.
    #[serde(default)]
    pub quota: Quota,
}

/// Leave for one tenant to connect to services of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allow {
    /// Who connects.
    pub from: String,
    /// Whose services.
    pub to: String,
    /// Which of them: names, or beginnings with `*`. Default: all.
    #[serde(default = "everything")]
    pub services: Vec<String>,
    /// The partition that both are in for this. It belongs to nobody else.
    pub pkey: Partition,
}

fn everything() -> Vec<String> {
    vec!["*".into()]
}

/// The policy.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tenants {
    /// Tenants.
    #[serde(rename = "tenant")]
    pub tenants: Vec<Tenant>,
    /// What is allowed between them.
    pub allow: Vec<Allow>,
}

/// Leave to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The P_Key that both QPs use.
    pub pkey: PKey,
}

/// Why a connection is refused. It says who must act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No tenant of this name.
    UnknownTenant(String),
    /// The service belongs to another tenant, and no rule lets this one in.
    NotAllowed {
        /// Who asked.
        tenant: String,
        /// For what.
        service: String,
        /// Whose it is.
        owner: String,
    },
    /// Nobody's service, and the tenant has none of this name.
    UnknownService {
        /// Who asked.
        tenant: String,
        /// For what.
        service: String,
    },
    /// The service is another tenant's.
    NotOwner {
        /// Who wants to offer it.
        tenant: String,
        /// What.
        service: String,
        /// Whose it is.
        owner: String,
    },
    /// The tenant may not run on this node.
    WrongNode {
        /// Who.
        tenant: String,
        /// Where.
        node: String,
    },
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTenant(tenant) => write!(f, "there is no tenant `{tenant}`: ask the operator to add it"),
            Self::NotAllowed { tenant, service, owner } => write!(
                f,
                "`{tenant}` may not connect to `{service}`, which belongs to `{owner}`: ask the operator for an [[allow]] from `{tenant}` to `{owner}`"
            ),
            Self::UnknownService { tenant, service } => write!(
                f,
                "no tenant offers `{service}`: correct the name, or ask the operator to add it to the services of `{tenant}` or another tenant"
            ),
            Self::NotOwner { tenant, service, owner } => write!(
                f,
                "`{tenant}` may not offer `{service}`, which belongs to `{owner}`: choose another name, or ask the operator to give the service to `{tenant}`"
            ),
            Self::WrongNode { tenant, node } => {
                write!(f, "`{tenant}` may not run on node `{node}`: ask the operator to add the node to its `nodes`")
            }
        }
    }
}

impl Tenants {
    /// Reads and checks a policy in TOML.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let policy: Self = toml::from_str(text).map_err(|e| format!("tenants: {e}"))?;
        policy.check().map(|()| policy)
    }

    /// Reads and checks a policy in JSON.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let policy: Self = serde_json::from_str(text).map_err(|e| format!("tenants: {e}"))?;
        policy.check().map(|()| policy)
    }

    /// Refuses what is ambiguous, what nobody could enforce, and what would let one tenant reach another by mistake.
    pub fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let mut partitions: BTreeMap<Partition, String> = BTreeMap::new();
        let mut patterns: BTreeMap<&str, &str> = BTreeMap::new();
        for tenant in &self.tenants {
            let name = &tenant.name;
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
                return Err(format!("tenant `{name}`: a name has 1 to 64 letters, digits, `-`, `_` or `.`"));
            }
            if !names.insert(name.as_str()) {
                return Err(format!("tenant `{name}` stands there twice: leave one out"));
            }
            tenant.quota.check().map_err(|why| format!("tenant `{name}`: {why}"))?;
            if let Some(other) = partitions.insert(tenant.pkey, format!("tenant `{name}`")) {
                return Err(format!("tenant `{name}` has the P_Key of {other}: give it another one"));
            }
            for pattern in &tenant.services {
                check_pattern(pattern).map_err(|why| format!("tenant `{name}`: {why}"))?;
                if let Some(other) = patterns.insert(pattern, name) {
                    return Err(format!("service `{pattern}` belongs to `{other}` and to `{name}`: leave one out"));
                }
            }
        }
        for Allow { from, to, services, pkey } in &self.allow {
            for name in [from, to] {
                if !names.contains(name.as_str()) {
                    return Err(format!("[[allow]] from `{from}` to `{to}`: there is no tenant `{name}`"));
                }
            }
            if from == to {
                return Err(format!("[[allow]] from `{from}` to itself: it needs none, leave it out"));
            }
            services
                .iter()
                .try_for_each(|pattern| check_pattern(pattern))
                .map_err(|why| format!("[[allow]] from `{from}` to `{to}`: {why}"))?;
            if let Some(other) = partitions.insert(*pkey, format!("the [[allow]] from `{from}` to `{to}`")) {
                return Err(format!(
                    "the [[allow]] from `{from}` to `{to}` has the P_Key of {other}: give it another one"
                ));
            }
        }
        for node in self.tenants.iter().filter_map(|tenant| tenant.nodes.as_ref()).flatten() {
            self.check_table(node)?;
        }
        // A node that no tenant names has those that may run anywhere.
        self.check_table("")
    }

    fn check_table(&self, node: &str) -> Result<(), String> {
        let count = self.partitions(node).count();
        if count > MAX_PKEYS {
            return Err(format!(
                "node `{node}` would need {count} P_Keys, its ports have room for {MAX_PKEYS}: let fewer tenants run on it (`nodes`)"
            ));
        }
        Ok(())
    }

    /// May a process of `tenant` (empty: of none) connect to `service`? Where there are no tenants everybody may, in the default partition. What no tenant
    /// offers is open to those who belong to none.
    pub fn may_connect(&self, tenant: &str, service: &str) -> Result<Grant, Denied> {
        let owner = self.owner(service);
        let default = Grant { pkey: PKey::DEFAULT };
        if tenant.is_empty() {
            return match owner {
                None => Ok(default),
                Some(owner) => Err(not_allowed(tenant, service, &owner.name)),
            };
        }
        let asks = self.find(tenant).ok_or_else(|| Denied::UnknownTenant(tenant.into()))?;
        let Some(owner) = owner else {
            return Err(Denied::UnknownService { tenant: tenant.into(), service: service.into() });
        };
        if owner.name == asks.name {
            return Ok(Grant { pkey: asks.pkey.pkey() });
        }
        let lets = |allow: &&Allow| {
            allow.from == tenant
                && allow.to == owner.name
                && allow.services.iter().any(|pattern| matches(pattern, service))
        };
        match self.allow.iter().find(lets) {
            Some(allow) => Ok(Grant { pkey: allow.pkey.pkey() }),
            None => Err(not_allowed(tenant, service, &owner.name)),
        }
    }

    /// May a process of `tenant` (empty: of none) offer `service`? What belongs to nobody anybody may: nobody who belongs to a tenant can connect to it.
    pub fn may_serve(&self, tenant: &str, service: &str) -> Result<(), Denied> {
        match self.owner(service) {
            Some(owner) if owner.name != tenant => {
                Err(Denied::NotOwner { tenant: tenant.into(), service: service.into(), owner: owner.name.clone() })
            }
            _ => Ok(()),
        }
    }

    /// May a process of `tenant` run on `node`?
    pub fn may_run(&self, tenant: &str, node: &str) -> Result<(), Denied> {
        if tenant.is_empty() {
            return Ok(());
        }
        let found = self.find(tenant).ok_or_else(|| Denied::UnknownTenant(tenant.into()))?;
        match &found.nodes {
            Some(nodes) if !nodes.contains(node) => Err(Denied::WrongNode { tenant: tenant.into(), node: node.into() }),
            _ => Ok(()),
        }
    }

    /// A tenant.
    pub fn find(&self, tenant: &str) -> Option<&Tenant> {
        self.tenants.iter().find(|other| other.name == tenant)
    }

    /// Whose service it is: an exact name counts more than a beginning, a longer beginning more than a shorter one.
    pub fn owner(&self, service: &str) -> Option<&Tenant> {
        let fits = |tenant: &Tenant| {
            let lengths = tenant.services.iter().filter(|pattern| matches(pattern, service));
            lengths.map(|pattern| (!pattern.ends_with('*'), pattern.len())).max()
        };
        self.tenants
            .iter()
            .filter_map(|tenant| Some((fits(tenant)?, tenant)))
            .max_by_key(|(fit, _)| *fit)
            .map(|(_, tenant)| tenant)
    }

    /// The P_Key table of the ports of a node: the default one, and those of the tenants that may run there, in order, so that the same policy gives the
    /// same table. What is not among them the NIC drops (9.6.1.1.3).
    pub fn pkey_table(&self, node: &str) -> Vec<PKey> {
        let tenants: BTreeSet<Partition> = self.partitions(node).collect();
        std::iter::once(PKey::DEFAULT).chain(tenants.into_iter().map(Partition::pkey)).collect()
    }

    fn partitions<'a>(&'a self, node: &'a str) -> impl Iterator<Item = Partition> + 'a {
        let runs = move |name: &str| self.may_run(name, node).is_ok();
        let own = self.tenants.iter().filter(move |tenant| runs(&tenant.name)).map(|tenant| tenant.pkey);
        let shared =
            self.allow.iter().filter(move |allow| runs(&allow.from) || runs(&allow.to)).map(|allow| allow.pkey);
        own.chain(shared)
    }
}

fn not_allowed(tenant: &str, service: &str, owner: &str) -> Denied {
    Denied::NotAllowed { tenant: tenant.into(), service: service.into(), owner: owner.into() }
}

fn check_pattern(pattern: &str) -> Result<(), String> {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    if pattern.is_empty() || name.contains('*') {
        return Err(format!("`{pattern}` is no service: write a name, or its beginning with one `*` at the end"));
    }
    Ok(())
}

fn matches(pattern: &str, service: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => service.starts_with(beginning),
        None => pattern == service,
    }
}
