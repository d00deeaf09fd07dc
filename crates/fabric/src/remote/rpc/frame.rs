//! What a message of a call looks like: 24 bytes, then the body. Little endian: kind (1), zeros (3), method (4), number of the call (8), microseconds that are left of the
//! request's deadline (8).

use crate::error::FabricError;

/// Bytes before the body.
pub(super) const HEAD: usize = 24;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request = 1,
    /// The body is the answer.
    Done = 2,
    /// The body is the handler's error, as text.
    Refused = 3,
    /// Nobody has begun with it: there are too many requests.
    Busy = 4,
    /// Nobody has begun with it: its time was over.
    Late = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) method: u32,
    pub(super) call: u64,
    pub(super) left_us: u64,
}

pub(super) fn emit(head: &Head, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEAD + body.len());
    message.extend_from_slice(&[head.kind as u8, 0, 0, 0]);
    message.extend_from_slice(&head.method.to_le_bytes());
    message.extend_from_slice(&head.call.to_le_bytes());
    message.extend_from_slice(&head.left_us.to_le_bytes());
    message.extend_from_slice(body);
    message
}

/// The head; the body is what follows it.
pub(super) fn parse(message: &[u8]) -> Result<Head, FabricError> {
    let wrong = || {
        FabricError::peer(format!(
            "a message of {} bytes that is no call of this version: both sides must speak rpc",
            message.len()
        ))
    };
    let head = message.first_chunk::<HEAD>().ok_or_else(wrong)?;
    let kind = match head[..4] {
        [1, 0, 0, 0] => Kind::Request,
        [2, 0, 0, 0] => Kind::Done,
        [3, 0, 0, 0] => Kind::Refused,
        [4, 0, 0, 0] => Kind::Busy,
        [5, 0, 0, 0] => Kind::Late,
        _ => return Err(wrong()),
    };
    let number =
        |range: std::ops::Range<usize>| head[range].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Ok(Head { kind, method: number(4..8) as u32, call: number(8..16), left_us: number(16..24) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_and_others_are_refused() {
        for kind in [Kind::Request, Kind::Done, Kind::Refused, Kind::Busy, Kind::Late] {
            let head = Head { kind, method: 0xdead_beef, call: 0x0102_0304_0506_0708, left_us: 77 };
            let message = emit(&head, b"body");
            assert_eq!(parse(&message).unwrap(), head);
            assert_eq!(&message[HEAD..], b"body");
        }
        let good = emit(&Head { kind: Kind::Request, method: 1, call: 2, left_us: 3 }, b"");
        assert!(parse(&good[..HEAD - 1]).is_err());
        for (at, value) in [(0, 0), (0, 6), (1, 1)] {
            let mut wrong = good.clone();
            wrong[at] = value;
            assert!(parse(&wrong).is_err());
        }
    }
}
