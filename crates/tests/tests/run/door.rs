//! The C door's data path in a program that counts allocations: its own, libibverbs' and those of everything beneath.

use super::{cc, has_headers, run, said, sfab};
use scalefabric_tests::Folder;

const SOURCE: &str = include_str!("../../door/door.c");

#[test]
fn post_and_poll_through_the_c_door_allocate_nothing() {
    let (Some(sfab), true) = (sfab(), has_headers()) else { return };
    let folder = Folder::new("door");
    let program = cc(&folder, "door", SOURCE, &["-O1", "-libverbs"]);
    let classic = ["poll", "write8-inline", "write64", "send8", "chain64"];
    let newer = ["ex-poll", "wr-write8-inline", "wr-ex-send8", "wr-chain8-inline", "ex-chain8-inline"];
    for kind in classic.into_iter().chain(newer) {
        let text = said(&run(sfab, &[], &program, &[kind, "960"]));
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [operations, polls, allocations] = numbers[..] else { panic!("{kind}: {text}") };
        assert_eq!((operations, allocations), (960, 0), "{kind}");
        assert!(polls >= 30, "{kind}: {polls} polls");
    }
}
