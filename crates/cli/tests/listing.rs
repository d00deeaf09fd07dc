//! What a listing shows when one of the devices cannot be opened. A binary of its own: it takes the loopback's port 4791
//! away, which other tests need.

use std::net::UdpSocket;
use std::process::Command;

#[test]
fn a_device_that_another_program_holds_does_not_hide_the_others() {
    let config = std::env::temp_dir().join(format!("scalefabric-listing-{}.toml", std::process::id()));
    std::fs::write(
        &config,
        "[[device]]\nname = \"other\"\n[[device.port]]\ninterface = \"lo\"\naddresses = [\"127.77.9.9\"]\n",
    )
    .expect("a file in the temporary folder");
    let _holder = UdpSocket::bind("127.0.0.1:4791").expect("nobody has the loopback's port 4791");
    let sfab = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sfab"));
        command.args(arguments).env("SCALEFABRIC_CONFIG", &config).output().expect("sfab starts")
    };
    for list in ["gids", "devices"] {
        let output = sfab(&[list]);
        let (shown, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{list}: {told}");
        assert!(shown.contains("other"), "{list}: {shown}");
        assert!(!shown.contains("sflo") && told.contains("sflo") && told.contains("127.0.0.1"), "{list}: {told}");
    }
    // Counters are read without opening anything.
    let output = sfab(&["counters"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("sflo port 1\n  no process has it open") && shown.contains("other port 1"), "{shown}");
    // Who asks for that device alone is told why, and nothing else.
    assert_eq!(sfab(&["gids", "--device", "sflo"]).status.code(), Some(1));
    let _ = std::fs::remove_file(&config);
}
