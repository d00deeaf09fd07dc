//! The part of etcd's API (version 3) that a mailbox needs, as messages and five calls. Field numbers are those of etcd's `rpc.proto` and `kv.proto`. They
//! are written out so that nobody needs a protobuf compiler to build the fabric library.

use crate::error::FabricError;
use prost::Message;
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeAnswer {
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

/// What is not looked at.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ignored {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Op {
    #[prost(oneof = "OpKind", tags = "1, 2, 3")]
    pub(super) kind: Option<OpKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum OpKind {
    #[prost(message, tag = "1")]
    Range(Range),
    #[prost(message, tag = "2")]
    Put(Put),
    /// `DeleteRangeRequest` has the same first two fields.
    #[prost(message, tag = "3")]
    Delete(Range),
}

impl From<OpKind> for Op {
    fn from(kind: OpKind) -> Self {
        Self { kind: Some(kind) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OpAnswer {
    #[prost(oneof = "OpAnswerKind", tags = "1, 2, 3")]
    pub(super) kind: Option<OpAnswerKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum OpAnswerKind {
    #[prost(message, tag = "1")]
    Range(RangeAnswer),
    #[prost(message, tag = "2")]
    Put(Ignored),
    #[prost(message, tag = "3")]
    Delete(Ignored),
}

/// `Compare` of a create revision with a number; `result` 0 is "equal", `target` 1 is the create revision.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    /// Optional, so that zero is written, too: it is part of a `oneof`.
    #[prost(int64, optional, tag = "5")]
    pub(super) create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnAnswer {
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<OpAnswer>,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseId {
    #[prost(int64, tag = "1")]
    id: i64,
}

/// `LeaseGrantResponse` and `LeaseKeepAliveResponse`.
#[derive(Clone, PartialEq, Message)]
struct LeaseAnswer {
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<Range>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchAnswer {
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
}

/// A connection.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) channel: Channel,
    pub(super) called: String,
}

impl Api {
    fn failed(&self, status: &Status) -> FabricError {
        let text = format!("{} refuses ({:?}: {})", self.called, status.code(), status.message());
        match status.code() {
            tonic::Code::Unauthenticated | tonic::Code::PermissionDenied => FabricError::misuse(format!(
                "{text}: give this node a certificate or a role that may write keys that begin with sfab/"
            )),
            _ => FabricError::unreachable(format!("{text}: is it running, and has it a leader? Dial again")),
        }
    }

    async fn unary<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        question: Q,
    ) -> Result<A, FabricError> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let away = |error| {
            FabricError::unreachable(format!("{} cannot be reached ({error}): is it running? Dial again", self.called))
        };
        grpc.ready().await.map_err(away)?;
        let answer =
            grpc.unary(Request::new(question), PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(&status))
    }

    async fn streaming<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, FabricError> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let away = |error| {
            FabricError::unreachable(format!("{} cannot be reached ({error}): is it running? Dial again", self.called))
        };
        grpc.ready().await.map_err(away)?;
        let answer = grpc
            .streaming(Request::new(questions), PathAndQuery::from_static(path), ProstCodec::<Q, A>::default())
            .await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(&status))
    }

    /// Carries out the operations if the comparisons hold.
    pub(super) async fn txn(&self, compare: Vec<Compare>, success: Vec<Op>) -> Result<TxnAnswer, FabricError> {
        self.unary("/etcdserverpb.KV/Txn", Txn { compare, success }).await
    }

    /// A lease of so many seconds.
    pub(super) async fn grant(&self, ttl_s: i64) -> Result<i64, FabricError> {
        let answer: LeaseAnswer = self.unary("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl: ttl_s }).await?;
        Ok(answer.id)
    }

    /// Ends a lease, and everything under it.
    pub(super) async fn revoke(&self, id: i64) -> Result<(), FabricError> {
        self.unary::<_, Ignored>("/etcdserverpb.Lease/LeaseRevoke", LeaseId { id }).await.map(drop)
    }

    /// Renews a lease; false if it has expired.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<bool, FabricError> {
        let mut answers: Streaming<LeaseAnswer> =
            self.streaming("/etcdserverpb.Lease/LeaseKeepAlive", tokio_stream::once(LeaseId { id })).await?;
        let answer = answers.message().await.map_err(|status| self.failed(&status))?;
        Ok(answer.is_some_and(|answer| answer.ttl > 0))
    }

    /// Watches keys that begin so; it watches when this returns.
    pub(super) async fn watch(&self, prefix: &str) -> Result<Streaming<WatchAnswer>, FabricError> {
        let request = WatchRequest { create: Some(prefixed(prefix)) };
        // The request's side stays open: closing it would end the watch.
        let questions = tokio_stream::once(request).chain(tokio_stream::pending());
        let mut answers: Streaming<WatchAnswer> = self.streaming("/etcdserverpb.Watch/Watch", questions).await?;
        match answers.message().await.map_err(|status| self.failed(&status))? {
            Some(WatchAnswer { created: true, canceled: false }) => Ok(answers),
            _ => Err(FabricError::unreachable(format!("{} gives no watch: dial again", self.called))),
        }
    }
}

/// All keys that begin so.
pub(super) fn prefixed(prefix: &str) -> Range {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        // Ours are ASCII, so that there is a next letter.
        *last += 1;
    }
    Range { key: prefix.as_bytes().to_vec(), range_end: end }
}
