//! A test that waits for ever must not take the whole run with it: the test binaries below a command are described, thread by
//! thread, and ended; they count as died, and the others run. It decides nothing about when, and ends nothing but test binaries.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

/// Ends the test binaries that this command has started, and says what they were doing.
pub fn end_test_binaries(command: &Child) {
    for pid in test_binaries(command.id()) {
        println!("==> the test binary {pid} waits for ever and is ended. Its threads:");
        threads(pid).iter().for_each(|line| println!("    {line}"));
        let _ = Command::new("kill").args(["-ABRT", &pid.to_string()]).status();
    }
}

/// Processes below `root` whose program lies in a folder `deps`, as cargo names that of its test binaries.
fn test_binaries(root: u32) -> Vec<u32> {
    let is_one = |pid: &u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program.parent().and_then(Path::file_name).is_some_and(|folder| folder == "deps")
    };
    below(root).into_iter().filter(is_one).collect()
}

/// `root`, its children and theirs.
fn below(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        next += 1;
    }
    found
}

/// A line for each thread: its name, which is that of the test if it runs one, and where the kernel holds it. Then the stacks,
/// where the machine has gdb.
fn threads(pid: u32) -> Vec<String> {
    let read = |path: &Path, file: &str| fs::read_to_string(path.join(file)).unwrap_or_default().trim().to_owned();
    let mut lines: Vec<String> = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| format!("{:16} {}", read(&task.path(), "comm"), read(&task.path(), "wchan")))
        .collect();
    let stacks = Command::new("gdb").args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 30"]).output();
    if let Ok(stacks) = stacks {
        lines.extend(String::from_utf8_lossy(&stacks.stdout).lines().map(str::to_owned));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::time::Duration;

    /// A program in a folder `deps`, below a shell: what cargo's test binaries look like.
    fn test_binary(folder: &str) -> (std::path::PathBuf, Child) {
        let place = std::env::temp_dir().join(format!("scalefabric-watchdog-{}-{folder}", std::process::id()));
        fs::create_dir_all(place.join(folder)).unwrap();
        let program = place.join(folder).join("waits");
        fs::copy("/bin/sleep", &program).unwrap();
        let mut shell = Command::new("/bin/sh");
        // What follows keeps the shell from giving its process to the program.
        shell.arg("-c").arg(format!("{} 600; exit $?", program.display())).stdin(Stdio::null());
        (place, shell.spawn().unwrap())
    }

    #[test]
    fn a_test_binary_is_ended_and_the_command_is_not() {
        let (place, mut shell) = test_binary("deps");
        while test_binaries(shell.id()).is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        end_test_binaries(&shell);
        // The shell lives and says how its child ended.
        let status = shell.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(128 + 6), None));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn what_is_no_test_binary_is_left_alone() {
        let (place, mut shell) = test_binary("bin");
        while below(shell.id()).len() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        end_test_binaries(&shell);
        let child = below(shell.id())[1].to_string();
        assert_eq!(shell.try_wait().unwrap(), None);
        Command::new("kill").args(["-KILL", &child]).status().unwrap();
        assert_eq!(shell.wait().unwrap().code(), Some(128 + 9));
        fs::remove_dir_all(place).unwrap();
    }
}
