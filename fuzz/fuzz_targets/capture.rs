//! Any file: reading it as pcap or pcapng never panics and always ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scalefabric_wire::frame::{Capture, Frame};

fuzz_target!(|bytes: &[u8]| {
    let Ok(capture) = Capture::new(bytes) else { return };
    let mut kept = 0;
    for record in capture {
        let Ok(record) = record else { continue };
        kept += record.data.len();
        assert!(kept <= bytes.len(), "a record's bytes are part of the file, and none is read twice");
        let _ = Frame::parse(record.link, record.data);
    }
});
