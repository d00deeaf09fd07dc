//! The tests of this folder once more, in a process whose requests to this host go the other way: what they say holds on both.

use std::process::Command;

use scalefabric_nic::options::RequestPath;

/// Not this test, which would begin anew, nor the one that takes longest and shows by ten thousand moves what another shows by a few hundred.
const SKIPPED: [&str; 4] = ["--skip", "paths::all_of_this_holds_on_the_other_path", "--skip", "ten_thousand"];

#[test]
fn all_of_this_holds_on_the_other_path() {
    if std::env::var_os("SCALEFABRIC_PATH").is_some() {
        return println!("the path was chosen by whoever runs the tests");
    }
    let other = if RequestPath::default() == RequestPath::Auto { "wire" } else { "auto" };
    let program = std::env::current_exe().expect("this program");
    let run = Command::new(program).args(SKIPPED).env("SCALEFABRIC_PATH", other).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "with SCALEFABRIC_PATH={other}:\n{out}\n{err}");
    let passed = out.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed > 20, "only {passed} tests ran:\n{out}");
}
