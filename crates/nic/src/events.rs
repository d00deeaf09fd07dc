//! Asynchronous events (clause 11.6.3): each open device has a queue of its own, and this is who hears what. What
//! happens to a QP, CQ or SRQ is told to the context that made it; what happens to a port or the device, to all.
//!
//! Nothing here makes a system call; queues that got something are woken after the turn.

use std::collections::VecDeque;
use std::sync::Arc;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{AsyncEvent, EventSubject};

use crate::completion::EventQueue;

/// The events of one context.
pub type Events = EventQueue<AsyncEvent>;

/// The contexts of a NIC, and which of them are to be woken.
#[derive(Debug, Default)]
pub struct Listeners {
    contexts: Vec<Arc<Events>>,
    wakes: VecDeque<Arc<Events>>,
}

impl Listeners {
    /// A context was opened.
    pub fn add(&mut self, events: &Arc<Events>) {
        self.contexts.push(events.clone());
        self.wakes.reserve(self.contexts.len());
    }

    /// A context was closed.
    pub fn remove(&mut self, events: &Arc<Events>) {
        self.contexts.retain(|e| !Arc::ptr_eq(e, events));
    }

    /// Something happened to an object of one context.
    pub fn tell(&mut self, events: &Arc<Events>, event_type: EventType, subject: EventSubject) {
        events.push(AsyncEvent { event_type, subject });
        if !self.wakes.iter().any(|e| Arc::ptr_eq(e, events)) {
            self.wakes.push_back(events.clone());
        }
    }

    /// Something happened to a port or the device.
    pub fn tell_all(&mut self, event_type: EventType, subject: EventSubject) {
        for index in 0..self.contexts.len() {
            let events = self.contexts[index].clone();
            self.tell(&events, event_type, subject);
        }
    }

    /// A queue to wake; `None` when all are.
    pub fn next_wake(&mut self) -> Option<Arc<Events>> {
        self.wakes.pop_front()
    }
}
