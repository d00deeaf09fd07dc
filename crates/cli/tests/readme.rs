//! What the README shows is what compiles: its Rust lines stand in the example, in this order.

use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).expect(path)
}

#[test]
fn the_code_in_the_readme_is_part_of_the_example() {
    let readme = read("README.md");
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of Rust");
    let trim = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n");
    assert!(
        trim(&read("examples/first_transfer.rs")).contains(trim(shown).trim()),
        "the README differs from the example"
    );
}
