//! Any UDP payload: parsing never panics, what parses is emitted and read back as the same packet, and checking its ICRC
//! never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scalefabric_wire::describe;
use scalefabric_wire::icrc::{Flow, InverseCache};
use scalefabric_wire::packet::Packet;

fuzz_target!(|bytes: &[u8]| {
    let mut cache = InverseCache::new();
    let _ = Flow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000).check(0, bytes, &mut cache);
    let Ok(packet) = Packet::parse(bytes) else { return };
    assert_eq!(packet.len(), bytes.len());
    let _ = describe::packet(&packet);
    let mut out = vec![0; packet.len()];
    // Pads of more than the payload needs are legal to receive and never sent.
    if usize::from(packet.headers.bth.pad_count) == packet.payload.len().wrapping_neg() % 4 {
        assert_eq!(packet.emit(&mut out), Ok(bytes.len()));
        assert_eq!(Packet::parse(&out), Ok(packet));
    }
});
