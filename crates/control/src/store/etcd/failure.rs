//! What etcd's refusals mean: who must act, and above all whether the request may have been carried out. etcd tells by gRPC code and sentence.

use super::super::{LeaseId, StoreError};
use std::error::Error;
use tonic::{Code, Status};

/// How a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It never reached a member that would do it.
    NotDone(String),
    /// Nobody can say.
    InDoubt(String),
    /// No such lease.
    NoLease,
    /// The lease is there already.
    LeaseThere,
    /// The revision is no longer kept.
    Compacted,
    /// The revision has not been yet.
    Future,
    /// The request cannot be.
    Invalid(String),
}

impl Failed {
    /// For requests that change nothing, or that may be carried out twice.
    pub fn surely_not_done(self) -> Self {
        match self {
            Self::InDoubt(why) => Self::NotDone(why),
            other => other,
        }
    }

    /// The store's error, of a call about `lease` if there is one.
    pub fn error(self, lease: Option<LeaseId>) -> StoreError {
        match self {
            Self::NotDone(why) => StoreError::NotDone(why),
            Self::InDoubt(why) => StoreError::Unavailable(why),
            Self::NoLease => StoreError::LeaseEnded(lease.unwrap_or(LeaseId(0))),
            Self::LeaseThere => StoreError::Invalid("etcd has a lease of that number already".into()),
            Self::Compacted => StoreError::Compacted(super::Revision(0)),
            Self::Future => StoreError::Invalid("a revision that has not been yet".into()),
            Self::Invalid(why) => StoreError::Invalid(why),
        }
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        let said = status.message();
        let has = |part: &str| said.contains(part);
        let sentence = || format!("etcd: {said}");
        if never_connected(&status) {
            return Self::NotDone(format!("etcd does not answer: {said}"));
        }
        match status.code() {
            // Members refuse these before they propose anything.
            _ if has("no leader") || has("too many requests") => Self::NotDone(sentence()),
            Code::ResourceExhausted if has("space exceeded") => Self::NotDone(format!(
                "etcd has no more space: compact and defragment it, then `etcdctl alarm disarm` ({said})"
            )),
            Code::NotFound if has("lease not found") => Self::NoLease,
            Code::FailedPrecondition if has("lease already exists") => Self::LeaseThere,
            Code::OutOfRange if has("future") => Self::Future,
            Code::OutOfRange => Self::Compacted,
            Code::InvalidArgument | Code::Unimplemented => Self::Invalid(sentence()),
            Code::Unauthenticated | Code::PermissionDenied => {
                Self::Invalid(format!("etcd refuses us: check its users and our certificate ({said})"))
            }
            _ => Self::InDoubt(sentence()),
        }
    }
}

/// Whether the request failed before a connection was there to send it on.
fn never_connected(status: &Status) -> bool {
    let mut cause: Option<&dyn Error> = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_before_the_proposal_is_told_from_a_lost_answer() {
        let of = |code, message: &str| Failed::from(Status::new(code, message));
        assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), Failed::NotDone(_)));
        assert!(matches!(of(Code::Unavailable, "etcdserver: request timed out"), Failed::InDoubt(_)));
        assert!(matches!(of(Code::Unavailable, "etcdserver: leader changed"), Failed::InDoubt(_)));
        assert!(matches!(of(Code::Unknown, "h2 protocol error: broken pipe"), Failed::InDoubt(_)));
        assert!(matches!(of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), Failed::NotDone(_)));
        assert_eq!(of(Code::NotFound, "etcdserver: requested lease not found"), Failed::NoLease);
        assert_eq!(of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"), Failed::Compacted);
    }
}
