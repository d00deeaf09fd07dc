//! What a workload asks for and hears of: messages, posts, notices. Nothing here moves a packet.

use super::super::time::Ps;

/// A message: what a workload posts and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Payload.
    pub bytes: u64,
    /// When it was posted.
    pub posted: Ps,
    /// When its last byte was acknowledged; [`Ps::NEVER`] before.
    pub acked: Ps,
    /// When its last byte arrived; [`Ps::NEVER`] before.
    pub delivered: Ps,
    /// What it would take alone.
    pub ideal: Ps,
    /// What the workload calls it.
    pub tag: u64,
}

/// What a workload wants to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Payload.
    pub bytes: u64,
    /// Priority.
    pub priority: u8,
    /// The QP that it goes by: posts of the same lane between the same hosts share one. None: one of its own.
    pub lane: Option<u32>,
    /// The UDP source port that switches hash. None: the QP's own, by its number or its lane.
    pub source_port: Option<u16>,
    /// What the workload calls it.
    pub tag: u64,
}

/// Something that a workload hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The last byte of the message arrived.
    Delivered(u32),
    /// The last byte of the message was acknowledged.
    Acked(u32),
}

/// Who asks for traffic.
pub trait Workload {
    /// When it next wants to post by the clock; [`Ps::NEVER`]: only after notices.
    fn next(&self) -> Ps;
    /// What it posts now.
    fn due(&mut self, now: Ps, posts: &mut Vec<Post>);
    /// It hears of a message and may post.
    fn hear(&mut self, now: Ps, notice: Notice, message: &Message, posts: &mut Vec<Post>);
    /// True if it will post no more, once everything posted is done.
    fn is_done(&self) -> bool;
    /// All that it will post, if it knows; 0 if not. Only for progress.
    fn bytes(&self) -> u64 {
        0
    }
}
