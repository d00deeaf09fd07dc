//! Any captured frame, on any link: taken apart without a panic, described, and made again from its structs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scalefabric_wire::describe;
use scalefabric_wire::frame::Frame;
use scalefabric_wire::pcap::LinkType;

fuzz_target!(|input: (u8, &[u8])| {
    let (link, bytes) = input;
    let links = [LinkType::ETHERNET, LinkType::RAW, LinkType::LINUX_SLL, LinkType::LINUX_SLL2, LinkType(9)];
    match Frame::parse(links[usize::from(link) % links.len()], bytes) {
        Ok(frame) => {
            let _ = describe::line(0, &frame);
            let _ = frame.emit(&mut Vec::new());
        }
        Err(reason) => {
            let _ = describe::not_roce(0, 0, &reason);
        }
    }
});
