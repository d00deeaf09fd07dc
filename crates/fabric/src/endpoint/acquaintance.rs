//! Who the peer was at first contact, and whether who calls later is the same. A certificate's name where the exchange proves one; else node and process as the
//! peer tells them, which keeps out strangers and restarted processes, and nobody who lies. It knows no channel.

use crate::error::FabricError;
use crate::exchange::Identity;

/// What is known of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acquaintance {
    identity: Option<Identity>,
    from: Option<String>,
}

impl Acquaintance {
    /// Who it is, as far as the exchange proved it when it was there last.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// A channel is there, and this is what its exchange says of who is behind it. The first one is believed.
    pub fn admit(&mut self, new: &Identity) -> Result<(), FabricError> {
        if let Some(known) = self.identity.as_ref().filter(|known| known.proven) {
            if !new.proven {
                return Err(FabricError::peer(format!(
                    "refused: the connection's peer proved to be `{}`, and who calls now (`{}`) proves nothing; use the same exchange, with its certificate",
                    known.name, new.name
                )));
            }
            if known.name != new.name {
                return Err(FabricError::peer(format!(
                    "refused: the connection belongs to `{}`, and `{}` calls now; only the former may take it up again",
                    known.name, new.name
                )));
            }
        }
        self.identity = Some(new.clone());
        Ok(())
    }

    /// Somebody speaks in the name of this node and process; empty: it does not say. With a proven name the process does not matter: the node
    /// answers for it.
    pub fn hear(&mut self, from: &str) -> Result<(), FabricError> {
        let proven = self.identity.as_ref().is_some_and(|identity| identity.proven);
        match &self.from {
            Some(known) if !proven && !from.is_empty() && known != from => Err(FabricError::peer(format!(
                "refused: the connection's peer is process `{known}`, and `{from}` is there now: the process was restarted, or the address is another's; \
                 connect anew"
            ))),
            Some(_) => Ok(()),
            None => {
                self.from = (!from.is_empty()).then(|| from.to_owned());
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, proven: bool) -> Identity {
        Identity { name: name.into(), proven, local: true }
    }

    #[test]
    fn a_proven_name_stays_and_cannot_be_replaced_by_another_or_by_none() {
        let mut known = Acquaintance::default();
        known.admit(&identity("node1", true)).unwrap();
        known.hear("node1/7").unwrap();
        known.admit(&identity("node1", true)).unwrap();
        // The node answers for its processes.
        known.hear("node1/8").unwrap();
        let other = known.admit(&identity("node2", true)).unwrap_err();
        assert!(other.message.contains("`node1`") && other.message.contains("`node2`"), "{other}");
        assert!(known.admit(&identity("node1", false)).is_err());
        assert_eq!(known.identity(), Some(&identity("node1", true)));
    }

    #[test]
    fn without_proof_the_process_is_what_it_said_first() {
        let mut known = Acquaintance::default();
        known.admit(&identity("127.0.0.1", false)).unwrap();
        known.hear("").unwrap();
        known.hear("node1/7").unwrap();
        known.admit(&identity("127.0.0.2", false)).unwrap();
        known.hear("node1/7").unwrap();
        let other = known.hear("node1/8").unwrap_err();
        assert!(other.message.contains("node1/7") && other.message.contains("node1/8"), "{other}");
        // One that does not say it may be older.
        known.hear("").unwrap();
    }
}
