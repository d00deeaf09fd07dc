//! The messages of etcd's API, version 3, as far as they are used. Names and numbers are those of etcd's `rpc.proto` and `kv.proto`. They are written out so that nobody
//! needs a protobuf compiler to build the fabric library.

use prost::{Enumeration, Message, Oneof};

/// What every answer begins with.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ResponseHeader {
    /// Revision of the store.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key and what it holds.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// Value.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    /// Lease that it hangs on; 0: none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Reads keys.
#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    /// First key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Key after the last; empty: only the first.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// At most so many; 0: all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As the store was at this revision; 0: as it is.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Without values.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
}

impl RangeRequest {
    /// One key.
    pub fn of(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// All keys that begin so.
    pub fn prefixed(prefix: impl Into<Vec<u8>>) -> Self {
        let key = prefix.into();
        Self { range_end: after_prefix(&key), key, ..Self::default() }
    }
}

/// What was read.
#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    /// When.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// What.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left some out.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Writes a key.
#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    /// Key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// Lease that it shall hang on; 0: none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Removes keys.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    /// First key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Key after the last; empty: only the first.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

/// An answer that is not looked at.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Ignored {}

/// An operation of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    /// Which.
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    pub request: Option<Operation>,
}

/// Operations.
#[derive(Clone, PartialEq, Oneof)]
pub enum Operation {
    /// Reads.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Writes.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Removes.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

impl From<Operation> for RequestOp {
    fn from(operation: Operation) -> Self {
        Self { request: Some(operation) }
    }
}

/// The answer to an operation of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    /// Which.
    #[prost(oneof = "Outcome", tags = "1, 2, 3")]
    pub response: Option<Outcome>,
}

/// Answers to operations.
#[derive(Clone, PartialEq, Oneof)]
pub enum Outcome {
    /// What was read.
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    /// It is written.
    #[prost(message, tag = "2")]
    Put(Ignored),
    /// It is removed.
    #[prost(message, tag = "3")]
    Delete(Ignored),
}

/// How a comparison compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    /// It is this.
    Equal = 0,
    /// It is above.
    Greater = 1,
    /// It is below.
    Less = 2,
    /// It is another.
    NotEqual = 3,
}

/// What a comparison looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    /// Changes since the key was made.
    Version = 0,
    /// Revision at which it was made.
    Create = 1,
    /// Revision of its last change.
    Mod = 2,
    /// Its value.
    Value = 3,
    /// Its lease.
    Lease = 4,
}

/// What a key is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub enum CompareWith {
    /// Revision of the last change; 0: the key is not there.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// How.
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    /// What of the key.
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    /// Key.
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// With what.
    #[prost(oneof = "CompareWith", tags = "6")]
    pub with: Option<CompareWith>,
}

impl Compare {
    /// The key was changed last at this revision; 0: it is not there.
    pub fn unchanged(key: impl Into<Vec<u8>>, revision: i64) -> Self {
        Self {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.into(),
            with: Some(CompareWith::ModRevision(revision)),
        }
    }
}

/// A transaction: if all conditions hold, the first operations, else the second.
#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    /// Conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// If they hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// If not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// What a transaction came to.
#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    /// When.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether the conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// Answers in the order of the operations.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub revision: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    #[prost(int64, tag = "2")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// How a lease is.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseResponse {
    /// Its number.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Seconds that it has; 0 or less: it has ended.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Watches keys.
#[derive(Clone, PartialEq, Message)]
pub struct WatchCreateRequest {
    /// First key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Key after the last; empty: only the first.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// From this revision on; 0: from now on.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Whether a long answer may come in pieces.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

impl WatchCreateRequest {
    /// All keys that begin so.
    pub fn prefixed(prefix: impl Into<Vec<u8>>) -> Self {
        let key = prefix.into();
        Self { range_end: after_prefix(&key), key, ..Self::default() }
    }
}

/// Ours always creates; etcd's is a choice of three.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreateRequest>,
}

/// What a watch saw.
#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    /// It begins to watch.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// It watches no longer.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// If that is because history was forgotten: the first revision that is still known.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// More of the same revision follows.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    /// What.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum EventType {
    /// It was written.
    Put = 0,
    /// It was removed.
    Delete = 1,
}

/// A change of a key.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Of which kind.
    #[prost(enumeration = "EventType", tag = "1")]
    pub kind: i32,
    /// The key, with its value if it has one.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// The end of the range of all keys with a prefix: the prefix with its last byte that can be raised raised.
pub fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_byte_is_raised() {
        assert_eq!(after_prefix(b"a/"), b"a0");
        assert_eq!(after_prefix(b"a\xff"), b"b");
        assert_eq!(after_prefix(b"\xff"), [0]);
    }

    #[test]
    fn messages_are_etcds_to_the_byte() {
        // Field 3 is the key, 2 the target, 6 the revision: written although it is 0, since it is a choice of several.
        let absent = Compare::unchanged("k", 0);
        assert_eq!(absent.encode_to_vec(), [0x10, 2, 0x1a, 1, b'k', 0x30, 0]);
        let put = PutRequest { key: b"k".to_vec(), value: b"v".to_vec(), lease: 5 };
        let txn = TxnRequest {
            compare: Vec::new(),
            success: vec![Operation::Put(put).into()],
            failure: vec![Operation::Range(RangeRequest::of("k")).into()],
        };
        let bytes =
            [&[0x12, 10, 0x12, 8, 0x0a, 1, b'k', 0x12, 1, b'v', 0x18, 5][..], &[0x1a, 5, 0x0a, 3, 0x0a, 1, b'k']];
        assert_eq!(txn.encode_to_vec(), bytes.concat());
        let watch =
            WatchRequest { create: Some(WatchCreateRequest { fragment: true, ..WatchCreateRequest::prefixed("a") }) };
        assert_eq!(watch.encode_to_vec(), [0x0a, 8, 0x0a, 1, b'a', 0x12, 1, b'b', 0x40, 1]);
        assert_eq!(LeaseGrantRequest { ttl: 3, id: 7 }.encode_to_vec(), [0x08, 3, 0x10, 7]);
    }

    #[test]
    fn an_answer_of_a_later_etcd_is_read() {
        // A field that is not known stands before those that are.
        let bytes = [0x7a, 1, 0xff, 0x20, 1, 0x28, 9, 0x5a, 8, 0x08, 1, 0x12, 4, 0x0a, 2, b'a', b'b'];
        let answer = WatchResponse::decode(&bytes[..]).expect("it can be read");
        assert!(answer.canceled && !answer.created && answer.compact_revision == 9);
        assert_eq!(
            (answer.events[0].kind(), answer.events[0].kv.as_ref().map(|kv| kv.key.as_slice())),
            (EventType::Delete, Some(&b"ab"[..]))
        );
        assert!(WatchResponse::decode(&bytes[..bytes.len() - 1]).is_err(), "the twin that was cut");
    }
}
