//! What a connection carries, counted on its way: plain counters that the sending and the receiving half write under their own locks and the fabric's
//! thread reads without one. The thread tells the directory, if that wants to know; it judges nothing.

use super::link::lock;
use super::service::Shared;
use crate::directory::{Carried, ConnectionId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of one connection since it was made.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    sent: AtomicU64,
    read: AtomicU64,
    received: AtomicU64,
}

/// Each counter has one writer at a time, who holds the lock of its half: no locked instruction is needed.
fn add(counter: &AtomicU64, bytes: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
}

impl Traffic {
    /// An operation of the sending half that sends has ended.
    pub fn sent(&self, bytes: u64) {
        add(&self.sent, bytes);
    }

    /// An operation of the sending half that reads has ended.
    pub fn read(&self, bytes: u64) {
        add(&self.read, bytes);
    }

    /// The receiving half has taken a message.
    pub fn received(&self, bytes: u64) {
        add(&self.received, bytes);
    }

    /// Bytes sent, and bytes received or read.
    fn totals(&self) -> (u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.sent), of(&self.read).wrapping_add(of(&self.received)))
    }
}

/// The counters of all connections, with what was told of them.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    connections: HashMap<ConnectionId, (Arc<Traffic>, (u64, u64))>,
}

impl Counted {
    pub fn add(&mut self, id: ConnectionId, traffic: Arc<Traffic>) {
        self.connections.insert(id, (traffic, (0, 0)));
    }

    pub fn forget(&mut self, id: &ConnectionId) {
        self.connections.remove(id);
    }

    /// What was carried since it was asked last.
    fn take(&mut self) -> Vec<Carried> {
        let since = |(id, (traffic, before)): (&ConnectionId, &mut (Arc<Traffic>, (u64, u64)))| {
            let now = traffic.totals();
            let (tx_bytes, rx_bytes) = (now.0.wrapping_sub(before.0), now.1.wrapping_sub(before.1));
            *before = now;
            let carried = Carried { id: id.clone(), tx_bytes, rx_bytes, packets: 0, retransmitted: 0 };
            ((tx_bytes, rx_bytes) != (0, 0)).then_some(carried)
        };
        self.connections.iter_mut().filter_map(since).collect()
    }
}

/// Tells the directory what connections carry, as often as it wants, for as long as the fabric lives.
pub(crate) async fn tell(shared: Arc<Shared>) {
    let Some(interval) = shared.directory.load_interval() else { return };
    let mut tick = tokio::time::interval(interval.max(Duration::from_millis(1)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = tokio::time::Instant::now();
    loop {
        tick.tick().await;
        let carried = lock(&shared.counted).take();
        // A tick that came late tells of more time.
        let now = tokio::time::Instant::now();
        let passed = now.saturating_duration_since(last).max(Duration::from_millis(1));
        last = now;
        if !carried.is_empty() {
            shared.directory.carried(passed, carried);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_carried_is_told_once() {
        let (mut counted, traffic) = (Counted::default(), Arc::new(Traffic::default()));
        let id = ConnectionId { origin: "n1/1".into(), serial: 1 };
        counted.add(id.clone(), traffic.clone());
        assert!(counted.take().is_empty());
        traffic.sent(100);
        traffic.read(20);
        traffic.received(3);
        let told = counted.take();
        assert_eq!((told.len(), told[0].tx_bytes, told[0].rx_bytes), (1, 100, 23));
        assert!(counted.take().is_empty());
        traffic.sent(1);
        counted.forget(&id);
        assert!(counted.take().is_empty());
    }
}
