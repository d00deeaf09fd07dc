//! Any payload of QP 1: parsing never panics, and what parses is emitted and read back as the same message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scalefabric_wire::cm::{CmMad, IpAddressing, Message};
use scalefabric_wire::describe;

fuzz_target!(|bytes: &[u8]| {
    let _ = IpAddressing::parse(bytes);
    if let Ok(mad) = CmMad::parse(bytes) {
        let _ = describe::cm(&mad);
        assert_eq!(CmMad::parse(&mad.emit()), Ok(mad));
    }
    // Past the header quickly: the first byte chooses the message.
    if let Some((&first, rest)) = bytes.split_first() {
        let mut data = [0; 232];
        let length = rest.len().min(232);
        data[..length].copy_from_slice(&rest[..length]);
        let id = Message::ATTRIBUTES[usize::from(first) % Message::ATTRIBUTES.len()].0;
        let message = Message::parse(id, &data).expect("every bit pattern of a known message parses");
        let mut again = [0; 232];
        message.emit(&mut again);
        assert_eq!(Message::parse(id, &again), Ok(message));
    }
});
