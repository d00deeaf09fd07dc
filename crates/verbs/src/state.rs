//! QP types, QP states and the table of transitions (clause 10.3 and 11.2.5.2).

/// Type of a QP. Values are those of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connection, initiator (a send queue only).
    XrcSend = 9,
    /// Extended reliable connection, target (no queues of its own: SRQs of its XRC domain).
    XrcRecv = 10,
}

/// State of a QP. Values are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}
