//! Commands with any content. The first byte of each says how much of its body follows and from what it is made: bytes as they
//! are, or words that mean something (an identifier, an address with room behind it, one without). Whatever they say, each is
//! taken whole or refused with an errno, and EIO, which stands for a panic, is none of them.
//!
//! The fuzz target `ucma` plays the same; here the bytes come from seeds.

use crate::fake::Channel;
use crate::{address_of, message, write};
use scalefabric_preload::{hooks, ucma};
use scalefabric_verbs::CmEventType;

/// More than any response, and more than the largest option.
const ROOM: usize = 1 << 17;

/// Plays the bytes.
///
/// # Panics
/// If a command ends in another way.
pub fn play(bytes: &[u8]) {
    let mut room = vec![0_u8; ROOM];
    let place = address_of(&mut room);
    let channel = Channel::new();
    let fd = ucma::open_channel(channel.clone(), libc::O_NONBLOCK).unwrap();
    let mut ids = vec![0_u32];
    let mut rest = bytes;
    while let [command, shape, more @ ..] = rest {
        let length = usize::from(*shape) * 2;
        let (raw, behind) = more.split_at(length.min(more.len()));
        rest = behind;
        // A word takes the place of eight bytes, so that no address is there by chance.
        let words = raw.chunks(8).map(|chunk| {
            let kind = chunk[0];
            let id = ids[usize::from(chunk[chunk.len() - 1]) % ids.len()];
            let small = u64::from(kind >> 3);
            match kind % 8 {
                0 | 1 => place,
                2 => u64::from(id),
                3 => u64::from(id) << 32 | small,
                4 => u64::from(id) | small << 32,
                5 => small,
                6 => 0x0100_007f_0700_0002 | small << 16,
                _ => u64::MAX,
            }
        });
        let mut body: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        body.truncate(length);
        let number = u32::from(command % 26);
        let size_out = [0, 4, 8, 144, 336, usize::from(u16::MAX)][usize::from(command / 26) % 6];
        match write(fd, &message(number, &body, size_out)) {
            Ok(taken) => {
                assert_eq!(taken, body.len() + 8);
                if number == 0 {
                    ids.push(u32::from_ne_bytes([room[0], room[1], room[2], room[3]]));
                    channel.raise(ids[ids.len() - 1], CmEventType::ConnectResponse, &body);
                }
            }
            Err(errno) => assert!(errno > 0 && errno != libc::EIO, "command {number} of {body:?}: errno {errno}"),
        }
    }
    hooks::device::close(fd);
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

#[test]
fn commands_of_any_content_are_taken_or_refused() {
    for seed in 0..500 {
        let played = std::panic::catch_unwind(|| play(&bytes_of(seed, 4000)));
        assert!(played.is_ok(), "seed {seed}");
    }
}
