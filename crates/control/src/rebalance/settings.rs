//! What an operator sets of rebalancing: the rules, what is stopped, pinned, drained and wished, and whether it is only thought of. One value in the store, the same for
//! all replicas, checked as a whole before any of it counts. It decides nothing.

use super::decider::OperatorWishes;
use crate::topology::PortName;
use scalefabric_fabric::balance::{Freeze, Policy};
use scalefabric_fabric::directory::ConnectionId;
use scalefabric_fabric::{FabricError, Path};
use serde::{Deserialize, Serialize};

/// A connection that should go to a certain path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WishedMove {
    /// Whose.
    pub connection: ConnectionId,
    /// Where to: one of the paths that its record names.
    pub path: Path,
}

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The rules.
    pub policy: Policy,
    /// What is stopped. Default: nothing.
    pub freeze: Freeze,
    /// Decide and explain, order nothing. Default false.
    pub dry_run: bool,
    /// Connections that only the operator moves.
    pub pinned: Vec<ConnectionId>,
    /// Ports that should be empty.
    pub drained: Vec<PortName>,
    /// Connections that should go somewhere, and stay there.
    pub moves: Vec<WishedMove>,
}

impl Settings {
    /// Reads and checks them.
    pub fn from_json(bytes: &[u8]) -> Result<Self, FabricError> {
        let wrong = |error| FabricError::misuse(format!("settings of rebalancing: {error}"));
        // An object: a list would be taken for the fields in their order, and an empty one for the default.
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).map_err(wrong)?;
        let settings: Self = serde_json::from_value(object.into()).map_err(wrong)?;
        settings.check().map(|()| settings)
    }

    /// Refuses what contradicts itself.
    pub fn check(&self) -> Result<(), FabricError> {
        self.policy.check()?;
        for (n, wish) in self.moves.iter().enumerate() {
            if self.moves[..n].iter().any(|other| other.connection == wish.connection) {
                let ConnectionId { origin, serial } = &wish.connection;
                return Err(FabricError::misuse(format!(
                    "connection {origin} {serial} is wished to two places: leave one out"
                )));
            }
        }
        Ok(())
    }

    /// What the decider takes of them.
    pub fn wishes(&self) -> OperatorWishes {
        OperatorWishes {
            freeze: self.freeze,
            pinned: self.pinned.iter().cloned().collect(),
            drained: self.drained.iter().cloned().collect(),
            moves: self.moves.iter().map(|wish| (wish.connection.clone(), wish.path.clone())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_back_and_mistakes_are_named() {
        let text = br#"{"freeze":"optional","policy":{"hot_permille":800},"drained":[{"node":"n1","device":"sf0","port_num":1}],
            "pinned":[{"origin":"n1/7","serial":3}]}"#;
        let settings = Settings::from_json(text).unwrap();
        assert_eq!(
            (settings.freeze, settings.policy.hot_permille, settings.policy.cool_permille),
            (Freeze::Optional, 800, 600)
        );
        assert_eq!(Settings::from_json(&serde_json::to_vec(&settings).unwrap()), Ok(settings.clone()));
        assert_eq!(settings.wishes().drained.len(), 1);
        let wrong = |text: &str| Settings::from_json(text.as_bytes()).unwrap_err().message;
        assert!(wrong(r#"{"policy":{"cool_permille":900}}"#).contains("below hot_permille"));
        assert!(wrong(r#"{"frieze":"all"}"#).contains("frieze"));
        let path = r#"{"device":"sf0","port_num":1,"sgid":"::1","dgid":"::2","flow_label":0,"dscp":0}"#;
        let wish = format!(r#"{{"connection":{{"origin":"n1/7","serial":3}},"path":{path}}}"#);
        assert!(wrong(&format!(r#"{{"moves":[{wish},{wish}]}}"#)).contains("two places"));
    }
}
