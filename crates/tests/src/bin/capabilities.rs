//! Prints `docs/capabilities.md`. `cargo xtask capabilities` writes it to its place.

use std::process::ExitCode;

fn main() -> ExitCode {
    match scalefabric_tests::capabilities::page() {
        Ok(page) => {
            print!("{}", page.text);
            for gap in &page.gaps {
                eprintln!("gap: {gap}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
