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
    /// With their numbers, which count from 1 and do not come again.
    contexts: Vec<(u32, Arc<Events>)>,
    opened: u32,
    wakes: VecDeque<Arc<Events>>,
}

impl Listeners {
    /// A context was opened; its number.
    pub fn add(&mut self, events: &Arc<Events>) -> u32 {
        self.opened = self.opened.wrapping_add(1);
        self.contexts.push((self.opened, events.clone()));
        self.wakes.reserve(self.contexts.len());
        self.opened
    }

    /// A context was closed.
    pub fn remove(&mut self, events: &Arc<Events>) {
        self.contexts.retain(|(_, e)| !Arc::ptr_eq(e, events));
    }

    /// The contexts with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, Arc<Events>)> + '_ {
        self.contexts.iter().cloned()
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
            let events = self.contexts[index].1.clone();
            self.tell(&events, event_type, subject);
        }
    }

    /// True if a queue is to be woken.
    pub fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// A queue to wake; `None` when all are.
    pub fn next_wake(&mut self) -> Option<Arc<Events>> {
        self.wakes.pop_front()
    }
}
