//! The thread behind [`super::AgentDirectory`]: it dials the agent, tells everything anew on each new link, then what changes; a second thread
//! reads. Both end with the link, and the first tries again.

use super::{Settings, Shared, State};
use crate::local::{Carried, FromProcess, MAX_CARRIED, MAX_LINE, PROTOCOL, ToProcess, line};
use scalefabric_fabric::directory::{FencingToken, Order, OrderResult};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Between two attempts to reach the agent: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the agent may take to read.
const PATIENCE: Duration = Duration::from_secs(5);
/// Orders that wait for the process at most; the agent hears of more that they were not carried out.
const MAX_ORDERS: usize = 4096;

/// Runs until the directory is dropped.
pub fn run(shared: &Arc<Shared>, settings: &Settings) {
    let mut pause = PAUSE.0;
    loop {
        if let Ok(stream) = UnixStream::connect(&settings.socket) {
            pause = PAUSE.0;
            serve(shared, settings, stream);
        }
        if sleep(shared, pause) {
            return;
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Waits; true if the directory ends.
fn sleep(shared: &Shared, pause: Duration) -> bool {
    let state = shared.state();
    let ended = shared.wake.wait_timeout_while(state, pause, |state| !state.ending);
    ended.map(|(state, _)| state.ending).unwrap_or(true)
}

fn serve(shared: &Arc<Shared>, settings: &Settings, mut stream: UnixStream) {
    let Ok(reading) = stream.try_clone() else { return };
    if stream.set_write_timeout(Some(PATIENCE)).is_err() {
        return;
    }
    let link = {
        let mut state = shared.state();
        state.link += 1;
        state.linked = true;
        anew(&mut state);
        state.link
    };
    let theirs = Arc::clone(shared);
    let reader = std::thread::Builder::new().name("sfab-dir-read".into()).spawn(move || read(&theirs, reading, link));
    if reader.is_ok() {
        let _ = write(shared, settings, &mut stream, link);
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
    if let Ok(reader) = reader {
        let _ = reader.join();
    }
    let mut state = shared.state();
    state.linked = false;
    // What was not answered cannot be any more: the agent has told control that nobody answered.
    state.orders.clear();
    state.given.clear();
}

/// Everything that a new agent must hear.
pub(super) fn anew(state: &mut State) {
    let mut queue = VecDeque::new();
    queue.push_back(FromProcess::Hello { protocol: PROTOCOL, pid: std::process::id() });
    queue.extend(state.wants.iter().map(|service| FromProcess::Want { service: service.clone() }));
    queue.extend(state.offers.values().map(|address| FromProcess::Offer { address: address.clone() }));
    state.queue = queue;
    state.answered.clear();
    state.held = state.holdings.keys().cloned().collect();
    state.closed.clear();
    state.carried.clear();
    state.changed = state.records.keys().cloned().collect();
}

fn write(shared: &Shared, settings: &Settings, stream: &mut UnixStream, link: u64) -> std::io::Result<()> {
    loop {
        let (messages, memory) = {
            let idle = |state: &mut State| {
                let work = !state.queue.is_empty()
                    || !state.changed.is_empty()
                    || !state.closed.is_empty()
                    || !state.held.is_empty();
                state.linked && !state.ending && !work && !state.remember && state.carried.is_empty()
            };
            let state = shared.state();
            let mut state = shared.wake.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            if state.ending || !state.linked || state.link != link {
                // What was said last is still said, above all that connections are closed.
                let last = take(&mut state);
                drop(state);
                return last.iter().try_for_each(|message| stream.write_all(&line(message)));
            }
            let memory = std::mem::take(&mut state.remember).then(|| state.memory.clone());
            (take(&mut state), memory)
        };
        for message in &messages {
            stream.write_all(&line(message))?;
        }
        if let (Some(memory), Some(path)) = (memory, &settings.memory) {
            // A memory that cannot be written is only a memory.
            let _ = memory.store_with_others(path);
        }
    }
}

pub(super) fn take(state: &mut State) -> Vec<FromProcess> {
    let mut messages: Vec<FromProcess> = state.queue.drain(..).collect();
    messages.extend(state.closed.drain(..).map(|record| FromProcess::Publish { record }));
    let mut changed = std::mem::take(&mut state.changed);
    changed.sort_unstable();
    changed.dedup();
    let records = changed.iter().filter_map(|id| state.records.get(id));
    messages.extend(records.map(|record| FromProcess::Publish { record: record.clone() }));
    for tenant in std::mem::take(&mut state.held) {
        let holdings = state.holdings.get(&tenant).copied().unwrap_or_default();
        messages.push(FromProcess::Hold { tenant, holdings });
    }
    messages.extend(carried(state));
    messages
}

/// The busiest connections. Usually all of them were counted over the same interval, which makes one message.
fn carried(state: &mut State) -> Vec<FromProcess> {
    let mut all: Vec<(Carried, u64)> = state.carried.drain().map(|(_, one)| one).collect();
    if all.len() > MAX_CARRIED {
        all.sort_unstable_by_key(|(one, _)| std::cmp::Reverse(one.tx_bytes.saturating_add(one.rx_bytes)));
        all.truncate(MAX_CARRIED);
    }
    let mut by_interval: BTreeMap<u32, Vec<Carried>> = BTreeMap::new();
    for (one, interval_us) in all {
        by_interval.entry(u32::try_from(interval_us).unwrap_or(u32::MAX)).or_default().push(one);
    }
    let message = |(interval_us, connections)| FromProcess::Carried { interval_us, connections };
    by_interval.into_iter().map(message).collect()
}

fn read(shared: &Shared, stream: UnixStream, link: u64) {
    let mut reader = BufReader::new(stream);
    let mut text = Vec::new();
    loop {
        text.clear();
        let limit = MAX_LINE as u64 + 1;
        let whole =
            matches!(reader.by_ref().take(limit).read_until(b'\n', &mut text), Ok(1..)) && text.last() == Some(&b'\n');
        let message = whole.then(|| serde_json::from_slice::<ToProcess>(&text).ok()).flatten();
        let is_policy = matches!(message, Some(ToProcess::Policy { .. }));
        let go_on = shared.change(|state| match message {
            Some(message) if state.link == link && !state.ending => hear(state, message),
            _ => false,
        });
        if !go_on {
            shared.change(|state| state.linked = false);
            return;
        }
        if is_policy {
            shared.look();
        }
    }
}

pub(super) fn hear(state: &mut State, message: ToProcess) -> bool {
    match message {
        ToProcess::Welcome { protocol, node } => {
            state.node = Some(node);
            return protocol == PROTOCOL;
        }
        ToProcess::Services { service, addresses } => {
            state.answered.insert(service.clone());
            // Nobody offers it now: whoever did is remembered, for it may be the directory that has lost its memory.
            if !addresses.is_empty() || !state.memory.services.contains_key(&service) {
                state.memory.services.insert(service, addresses);
                state.remember = true;
            }
        }
        ToProcess::Policy { tenants } => {
            state.quotas = super::quotas(Some(&tenants));
            state.memory.policy = Some(tenants);
            state.remember = true;
        }
        ToProcess::Elsewhere { tenants } => state.elsewhere = tenants,
        ToProcess::Order { id, order } => {
            let admitted = state.memory.token.admit(token(&order));
            let refusal = match admitted {
                Err(highest) => Some(OrderResult::Fenced { highest }),
                Ok(()) if state.orders.len() >= MAX_ORDERS => {
                    Some(OrderResult::RolledBack { reason: "the process takes no more orders".into() })
                }
                Ok(()) => None,
            };
            match refusal {
                Some(outcome) => state.queue.push_back(FromProcess::Answer { id, outcome }),
                None => state.orders.push_back((id, order)),
            }
            state.remember = true;
        }
    }
    true
}

/// Its authority.
pub fn token(order: &Order) -> FencingToken {
    match order {
        Order::Move { token, .. } | Order::RotateKeys { token, .. } | Order::Close { token, .. } => *token,
    }
}
