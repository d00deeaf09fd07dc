//! The directory of a process without its thread and its socket: what it would send is taken, and what it would hear is given, one thing at a time. For the simulation.

use super::{AgentDirectory, Judge, Shared, State, link};
use crate::local::{FromProcess, ToProcess};
use crate::memory::Memory;
use std::sync::{Arc, Condvar, Mutex};

impl AgentDirectory {
    /// One that remembers, and has no agent yet.
    pub(crate) fn by_hand(memory: Memory, judge: Judge) -> Self {
        let state = State { memory, ..State::default() };
        let shared = Shared { state: Mutex::new(state), wake: Condvar::new(), looks: Mutex::default() };
        Self { shared: Arc::new(shared), judge, thread: None }
    }

    /// The agent is there: everything is told anew.
    pub(crate) fn link(&self) {
        let mut state = self.shared.state();
        state.link += 1;
        state.linked = true;
        link::anew(&mut state);
    }

    /// The agent is gone.
    pub(crate) fn unlink(&self) {
        let mut state = self.shared.state();
        state.linked = false;
        state.orders.clear();
        state.given.clear();
    }

    /// What there is to send.
    pub(crate) fn take(&self) -> Vec<FromProcess> {
        link::take(&mut self.shared.state())
    }

    /// The agent says something; false: it makes no sense.
    pub(crate) fn hear(&self, message: ToProcess) -> bool {
        link::hear(&mut self.shared.state(), message)
    }

    /// What it remembers.
    pub(crate) fn memory(&self) -> Memory {
        self.shared.state().memory.clone()
    }
}
