//! `sfab`, the one binary of scaleFabric. Each command is one file; this file only parses the command line.

fn main() {}
