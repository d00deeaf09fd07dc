//! Requests of NETLINK_RDMA with any content: each is answered by whole messages that repeat its number, or not at all, and nothing
//! panics. The fuzz target `netlink` plays the same; here the bytes come from seeds.

use scalefabric_preload::{hooks, netlink};

const HEAD: usize = 16;

/// Plays the bytes: two for each request's type and flags, two for how much follows and how it lies about its length.
///
/// # Panics
/// If an answer is not what netlink says an answer is.
pub fn play(bytes: &[u8]) {
    let fd = netlink::open(libc::SOCK_RAW | libc::SOCK_NONBLOCK).unwrap();
    let (mut rest, mut sequence) = (bytes, 100_u32);
    while let [kind, flags, length, lie, more @ ..] = rest {
        let (body, behind) = more.split_at(usize::from(*length).min(more.len()));
        rest = behind;
        sequence += 1;
        let client = if kind & 0x80 == 0 { 5_u16 } else { u16::from(*kind) & 0x3f };
        let body = attributes(body);
        let said = (HEAD + body.len()) as u32;
        let said = if *lie < 0x20 { said.wrapping_add(u32::from(*lie)).wrapping_sub(16) } else { said };
        let flags: u16 = [0, 4, 0x300, 0x304, 1][usize::from(*flags) % 5];
        let mut datagram = said.to_ne_bytes().to_vec();
        datagram.extend((client << 10 | u16::from(kind & 0x1f)).to_ne_bytes());
        datagram.extend(flags.to_ne_bytes());
        datagram.extend(sequence.to_ne_bytes());
        datagram.extend(7_u32.to_ne_bytes());
        datagram.extend(&body);
        let device = hooks::find(fd).expect("the descriptor leads to the socket");
        assert_eq!(device.write(&datagram), Ok(datagram.len()));
        // What is cut short goes on as another request.
        answers(fd, Some(sequence).filter(|_| said as usize == HEAD + body.len()));
    }
    hooks::device::close(fd);
}

/// Attributes of small types and lengths where the bytes say so, else the bytes as they are.
fn attributes(body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    for chunk in body.chunks(8) {
        match chunk {
            [kind, odd, value @ ..] if odd & 1 == 0 => {
                let length = if odd & 0x38 == 0 { u16::from(*odd) } else { 8 };
                all.extend(length.to_ne_bytes());
                all.extend(u16::from(kind % 100).to_ne_bytes());
                all.extend([value.first().copied().unwrap_or(0) % 3, 0, 0, 0]);
            }
            other => all.extend(other),
        }
    }
    all
}

fn answers(fd: i32, sequence: Option<u32>) {
    let mut buffer = vec![0_u8; 1 << 16];
    loop {
        // SAFETY: the buffer is writable for its length.
        let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
        let Ok(n) = usize::try_from(n) else { return };
        let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
        assert!(n >= HEAD && word(0) as usize <= n && word(0) as usize >= HEAD, "{:?}", &buffer[..n]);
        assert!(sequence.is_none_or(|sequence| word(8) == sequence), "whose answer is it?");
    }
}

#[test]
fn requests_of_any_content_are_answered_by_whole_messages() {
    for seed in 0..40 {
        let played = std::panic::catch_unwind(|| play(&bytes_of(seed, 600)));
        assert!(played.is_ok(), "seed {seed}");
    }
}

/// A byte string from a seed (SplitMix64).
fn bytes_of(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}
