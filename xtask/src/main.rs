//! Every developer command. It starts binaries; it links no product crate.

fn main() {}
