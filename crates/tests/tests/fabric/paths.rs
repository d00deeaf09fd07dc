//! What is about one-sided operations, keys and ports once more, in a process whose requests to this host go the other way: what these tests say holds on both. Messages
//! (SEND) are packets on both, and what happens to them is not seen twice.

use std::process::Command;

use scalefabric_nic::options::RequestPath;

/// Modules of this folder; one test at a time, since this process has its own at work beside it.
const ARGUMENTS: [&str; 6] = ["basics::", "devices::", "keys::", "ports::", "rails::", "--test-threads=1"];

#[test]
fn all_of_this_holds_on_the_other_path() {
    if std::env::var_os("SCALEFABRIC_PATH").is_some() {
        return println!("the path was chosen by whoever runs the tests");
    }
    let other = if RequestPath::default() == RequestPath::Auto { "wire" } else { "auto" };
    let program = std::env::current_exe().expect("this program");
    let run = Command::new(program).args(ARGUMENTS).env("SCALEFABRIC_PATH", other).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "with SCALEFABRIC_PATH={other}:\n{out}\n{err}");
    let passed = out.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed > 20, "only {passed} tests ran:\n{out}");
}
