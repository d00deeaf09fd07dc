//! Asks the node's LLDP daemon who is at the other ends of its cables, now and then, by the program that prints what it has learnt (`lldpctl -f json0`). A
//! node without one is a node whose cables the configuration tells of. It judges nothing.

use crate::topology::{SwitchPort, parse_lldpctl};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often it is asked. LLDP itself tells every 30 s.
const INTERVAL: Duration = Duration::from_secs(30);

/// What is known, by network interface.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(Arc<Mutex<BTreeMap<String, SwitchPort>>>);

impl Neighbours {
    /// Who is at the other end of an interface's cable.
    pub fn of(&self, interface: &str) -> Option<SwitchPort> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(interface).cloned()
    }

    /// Asks for as long as the agent lives. A program that is not there is looked for again: it may be installed.
    pub async fn run(self, program: PathBuf) {
        loop {
            let (answer, answered) = oneshot::channel();
            let asking = program.clone();
            // A thread of its own: a daemon that does not answer holds up nobody, and is not asked again.
            let thread = std::thread::Builder::new().name("sfab-lldp".into()).spawn(move || {
                let _ = answer.send(ask(&asking));
            });
            if thread.is_err() {
                return;
            }
            if let Ok(Some(found)) = answered.await {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

fn ask(program: &PathBuf) -> Option<BTreeMap<String, SwitchPort>> {
    let output =
        Command::new(program).args(["-f", "json0"]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| parse_lldpctl(&text).ok()).flatten()
}
