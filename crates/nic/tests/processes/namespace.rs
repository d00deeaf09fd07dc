//! Network namespaces for one test.

use std::process::Command;

pub struct Namespace(String);

impl Namespace {
    /// Makes one.
    pub fn new(name: &str) -> Self {
        let name = format!("sf-{name}-{}", std::process::id());
        let namespace = Self(name);
        run(Command::new("ip").args(["netns", "add", &namespace.0]));
        namespace.ip("link set lo up");
        namespace
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs `ip` inside.
    pub fn ip(&self, arguments: &str) {
        run(Command::new("ip").args(["-n", &self.0]).args(arguments.split(' ')));
    }

    /// Runs a program inside, if it is installed.
    pub fn run(&self, program: &str, arguments: &str) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]).args(arguments.split(' '));
        if let Ok(output) = command.output()
            && !output.status.success()
        {
            eprintln!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
