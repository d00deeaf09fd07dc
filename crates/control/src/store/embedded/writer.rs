//! The one thread that writes. It takes all jobs that wait, applies them one after the other, commits once, and only then answers. Its state in
//! memory changes with the commit or not at all: after a commit that failed it answers everybody with the failure and writes nothing more.

use super::super::{Change, Event, Guard, LeaseId, Revision, StoreError};
use super::file::{self, ENTRIES, HEADER, LEASES, broken};
use super::history::History;
use super::lease::{Leases, SharedLeases};
use super::{Clock, EXPIRY_INTERVAL};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, Table, WriteTransaction};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Jobs that are written together at most.
const TOGETHER: usize = 1024;

/// What is asked of the writer.
pub enum Work {
    Transact { guards: Vec<Guard>, changes: Vec<Change> },
    Grant { ttl: Duration },
    Revoke { lease: LeaseId },
    Expire,
}

/// Revision or number of the lease; `None` if a guard did not hold.
type Answer = Result<Option<u64>, StoreError>;

/// A job and where its answer goes.
pub struct Job {
    pub work: Work,
    pub answer: oneshot::Sender<Answer>,
}

/// What the writer keeps in memory.
pub struct State {
    revision: Revision,
    last_lease: i64,
    leases: Arc<SharedLeases>,
}

impl State {
    /// Reads the whole store, each entry of which is checked. Leases begin anew.
    pub fn load(database: &Database, now: Duration) -> Result<Self, StoreError> {
        let reading = database.begin_read().map_err(broken)?;
        let header = reading.open_table(HEADER).map_err(broken)?;
        let last_lease = header.get("lease").map_err(broken)?.map_or(0, |lease| lease.value());
        let mut leases = Leases::new(now);
        for pair in reading.open_table(LEASES).map_err(broken)?.iter().map_err(broken)? {
            let (id, ttl_ms) = pair.map_err(broken)?;
            leases.add(LeaseId(id.value()), Duration::from_millis(ttl_ms.value()), now);
        }
        let (entries, revision) = file::list(&reading, "")?;
        for entry in entries {
            if entry.revision > revision {
                let (key, of) = (&entry.key, entry.revision.0);
                return Err(StoreError::Broken(format!("`{key}` is of revision {of}, the store of {}", revision.0)));
            }
            leases.hang(&entry.key, None, entry.lease);
        }
        Ok(Self { revision, last_lease: last_lease.cast_signed(), leases: Arc::new(SharedLeases::new(leases)) })
    }

    /// The leases, for those who keep them alive.
    pub fn leases(&self) -> Arc<SharedLeases> {
        Arc::clone(&self.leases)
    }

    /// The latest revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }
}

/// Works until the queue is closed.
pub fn run(mut state: State, database: &Database, history: &History, queue: &Receiver<Job>, clock: &dyn Clock) {
    loop {
        let mut jobs = Vec::new();
        let mut closed = false;
        match queue.recv_timeout(EXPIRY_INTERVAL) {
            Ok(job) => jobs.push(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => closed = true,
        }
        while jobs.len() < TOGETHER
            && let Ok(job) = queue.try_recv()
        {
            jobs.push(job);
        }
        if closed {
            return;
        }
        if let Err(error) = turn(&mut state, database, history, jobs, clock.now()) {
            eprintln!("sfab: the store is broken: {error}");
            // Whoever asks from now on finds the queue closed.
            return;
        }
    }
}

/// One commit, if anything is to be written, and the answers.
fn turn(
    state: &mut State,
    database: &Database,
    history: &History,
    jobs: Vec<Job>,
    now: Duration,
) -> Result<(), StoreError> {
    let ended = state.leases.lock().ended(now);
    if ended.is_empty() && jobs.iter().all(|job| matches!(job.work, Work::Expire)) {
        jobs.into_iter().for_each(|job| drop(job.answer.send(Ok(None))));
        return Ok(());
    }
    let mut answers = Vec::with_capacity(jobs.len());
    let happened = write(state, database, jobs, &ended, now, &mut answers);
    let failed = happened.as_ref().err().cloned();
    if let Ok(happened) = happened {
        history.add(happened);
    }
    for (answer, outcome) in answers {
        let _ = answer.send(failed.clone().map_or(outcome, Err));
    }
    failed.map_or(Ok(()), Err)
}

type Answers = Vec<(oneshot::Sender<Answer>, Answer)>;
type Happened = Vec<(Revision, Vec<Event>)>;

fn write(
    state: &mut State,
    database: &Database,
    jobs: Vec<Job>,
    ended: &[LeaseId],
    now: Duration,
    answers: &mut Answers,
) -> Result<Happened, StoreError> {
    // All waiting jobs are answered with the failure, also those that were not reached.
    let mut jobs = jobs.into_iter();
    let outcome = (|| {
        let mut writing = database.begin_write().map_err(broken)?;
        writing.set_durability(Durability::Immediate).map_err(broken)?;
        let happened = {
            let mut turn = Turn::new(&writing, state, now)?;
            for lease in ended {
                turn.end(*lease)?;
            }
            for Job { work, answer } in jobs.by_ref() {
                match turn.apply(work) {
                    Err(broken @ StoreError::Broken(_)) => {
                        answers.push((answer, Ok(None)));
                        return Err(broken);
                    }
                    outcome => answers.push((answer, outcome)),
                }
            }
            turn.finish()?
        };
        writing.commit().map_err(broken)?;
        Ok(happened)
    })();
    answers.extend(jobs.map(|job| (job.answer, Ok(None))));
    outcome
}

/// The tables during one commit.
struct Turn<'t, 's> {
    header: Table<'t, &'static str, u64>,
    entries: Table<'t, &'static str, &'static [u8]>,
    leases: Table<'t, i64, u64>,
    state: &'s mut State,
    now: Duration,
    happened: Happened,
}

impl<'t, 's> Turn<'t, 's> {
    fn new(writing: &'t WriteTransaction, state: &'s mut State, now: Duration) -> Result<Self, StoreError> {
        Ok(Self {
            header: writing.open_table(HEADER).map_err(broken)?,
            entries: writing.open_table(ENTRIES).map_err(broken)?,
            leases: writing.open_table(LEASES).map_err(broken)?,
            state,
            now,
            happened: Vec::new(),
        })
    }

    fn apply(&mut self, work: Work) -> Answer {
        match work {
            Work::Transact { guards, changes } => self.transact(&guards, changes),
            Work::Grant { ttl } => self.grant(ttl),
            Work::Revoke { lease } => {
                if !self.state.leases.lock().has(lease) {
                    return Err(StoreError::LeaseEnded(lease));
                }
                self.end(lease).map(|()| None)
            }
            Work::Expire => Ok(None),
        }
    }

    fn revision_of(&self, key: &str) -> Result<(Revision, Option<LeaseId>), StoreError> {
        let found = self.entries.get(key).map_err(broken)?;
        let entry = found.map(|bytes| file::decode(key, bytes.value())).transpose()?;
        Ok(entry.map_or((Revision(0), None), |entry| (entry.revision, entry.lease)))
    }

    fn transact(&mut self, guards: &[Guard], changes: Vec<Change>) -> Answer {
        for guard in guards {
            if self.revision_of(&guard.key)?.0 != guard.revision {
                return Ok(None);
            }
        }
        for change in &changes {
            if let Change::Put { lease: Some(lease), .. } = change
                && !self.state.leases.lock().has(*lease)
            {
                return Err(StoreError::LeaseEnded(*lease));
            }
        }
        let revision = Revision(self.state.revision.0 + 1);
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            match change {
                Change::Put { key, value, lease } => {
                    let (_, before) = self.revision_of(&key)?;
                    let bytes = file::encode(&key, revision, lease, &value);
                    self.entries.insert(key.as_str(), bytes.as_slice()).map_err(broken)?;
                    self.state.leases.lock().hang(&key, before, lease);
                    events.push(Event::Put(super::Entry { key, value, revision, lease }));
                }
                Change::Delete { key } => self.delete(key, revision, &mut events)?,
            }
        }
        self.close(revision, events);
        Ok(Some(self.state.revision.0))
    }

    fn delete(&mut self, key: String, revision: Revision, events: &mut Vec<Event>) -> Result<(), StoreError> {
        let (found, lease) = self.revision_of(&key)?;
        if found != Revision(0) {
            self.entries.remove(key.as_str()).map_err(broken)?;
            self.state.leases.lock().hang(&key, lease, None);
            events.push(Event::Delete { key, revision });
        }
        Ok(())
    }

    /// A revision is used up only by something that changed.
    fn close(&mut self, revision: Revision, events: Vec<Event>) {
        if !events.is_empty() {
            self.state.revision = revision;
            self.happened.push((revision, events));
        }
    }

    fn grant(&mut self, ttl: Duration) -> Answer {
        let id = self.state.last_lease + 1;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.header.insert("lease", id.cast_unsigned()).map_err(broken)?;
        self.leases.insert(id, ttl_ms).map_err(broken)?;
        self.state.last_lease = id;
        self.state.leases.lock().add(LeaseId(id), ttl, self.now);
        Ok(Some(id.cast_unsigned()))
    }

    /// Ends a lease and deletes what hangs on it, at one revision.
    fn end(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let removed = self.state.leases.lock().remove(lease);
        let Some(keys) = removed else { return Ok(()) };
        self.leases.remove(lease.0).map_err(broken)?;
        let revision = Revision(self.state.revision.0 + 1);
        let mut events = Vec::with_capacity(keys.len());
        for key in keys {
            self.delete(key, revision, &mut events)?;
        }
        self.close(revision, events);
        Ok(())
    }

    fn finish(mut self) -> Result<Happened, StoreError> {
        self.header.insert("revision", self.state.revision.0).map_err(broken)?;
        Ok(self.happened)
    }
}
