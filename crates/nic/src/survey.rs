//! A look at a device from outside: its ports with their counters, the processes that share it, and what each of them has. Whoever
//! looks does not become a member, opens no socket of the device and starts no thread.
//!
//! The host answers with the device segment, which holds port tables and counters; every member answers for itself what it has,
//! so it is always current and costs nothing until somebody asks. A member that does not answer within 100 ms (it is stopped, or the machine is
//! very busy) is listed without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scalefabric_transport::Counter;
use scalefabric_verbs::{Errno, Gid, Mtu, PKey, PortState, VerbsError};
use serde::{Deserialize, Serialize};

use crate::counters::PortCounters;
use crate::discovery::{self, DevicePlan};
use crate::netlink;
use crate::resources::Resources;
use crate::share::holder;
use crate::share::link::{self, Link, Message, Received};
use crate::share::membership::{effective_uid, meeting_point};
use crate::share::segment::{PKEYS, PortTables, SLOTS, Segment, SlotState, VERSION};

/// How long a member may take to answer.
const MEMBERS: Duration = Duration::from_millis(100);
/// How long the host may take.
const HOST: Duration = Duration::from_secs(2);

/// A process that shares the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Its slot: the upper 8 bits of its numbers.
    pub slot: u8,
    /// Process ID in the PID namespace of whoever looks; `None` if the process is not in it.
    pub pid: Option<u32>,
    /// Process ID in its own PID namespace.
    pub own_pid: u32,
    /// Name of its program; empty if it did not answer and cannot be seen.
    pub comm: String,
    /// It serves the others.
    pub is_host: bool,
    /// What it has; `None` if it did not answer in time.
    pub resources: Option<Resources>,
}

/// A port, as it was when it was looked at.
#[derive(Clone, Debug)]
pub struct PortSurvey {
    /// Number, from 1.
    pub port_num: u8,
    /// Name of its interface.
    pub interface: String,
    /// Index of the interface; 0 if it is gone.
    pub ifindex: u32,
    /// State.
    pub state: PortState,
    /// Largest path MTU.
    pub active_mtu: Mtu,
    /// Mb/s, 0 unknown.
    pub speed_mbps: u32,
    /// GIDs with their indexes.
    pub gids: Vec<(u32, Gid)>,
    /// P_Key table.
    pub pkeys: Vec<PKey>,
    /// Counters of the whole device; all 0 while no process has it open.
    pub counters: Vec<(String, u64)>,
}

/// A device as it was when it was looked at.
#[derive(Debug)]
pub struct DeviceSurvey {
    /// Name, GUID and interfaces.
    pub plan: DevicePlan,
    /// Processes that share it, by slot.
    pub members: Vec<Member>,
    segment: Option<Arc<Segment>>,
}

impl DeviceSurvey {
    /// A device that could not be looked at: as if nobody had it open.
    pub fn unseen(plan: DevicePlan) -> Self {
        Self { plan, members: Vec::new(), segment: None }
    }

    /// The ports as they are now: their tables and counters are shared memory, so looking again is cheap. Not to be kept when
    /// the last member has gone: the device then begins anew, elsewhere.
    pub fn ports(&self) -> Result<Vec<PortSurvey>, VerbsError> {
        let tables: Vec<PortTables> = match &self.segment {
            Some(segment) => (0..self.plan.ports.len()).map(|port| segment.port(port).read()).collect(),
            None => planned(&self.plan)?,
        };
        let zero = || PortCounters::default().all().map(|(name, value)| (name.to_owned(), value)).collect();
        let ports = tables.into_iter().enumerate().map(|(index, tables)| PortSurvey {
            port_num: index as u8 + 1,
            interface: self.plan.ports[index].interface.clone(),
            ifindex: tables.ifindex,
            state: tables.state,
            active_mtu: tables.mtu,
            speed_mbps: tables.speed_mbps,
            gids: (0..).zip(&tables.gids).filter(|(_, slot)| slot.present).map(|(n, slot)| (n, slot.gid)).collect(),
            pkeys: tables.pkeys,
            counters: self.segment.as_ref().map_or_else(zero, |segment| segment.all_counters(index)),
        });
        Ok(ports.collect())
    }

    /// Whether a process has it open. When the last one has gone the device begins anew, elsewhere: look again.
    pub fn is_open(&self) -> bool {
        self.segment.as_ref().is_some_and(|segment| living(segment).next().is_some())
    }

    /// What each port has counted of these, as it is now; 0 while no process has the device open. It allocates one list and makes no system call.
    pub fn counted<const N: usize>(&self, which: [Counter; N]) -> Vec<[u64; N]> {
        let of = |port| self.segment.as_ref().map_or([0; N], |segment| segment.some_counters(port, which));
        (0..self.plan.ports.len()).map(of).collect()
    }

    /// Members that did not answer.
    pub fn silent(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.resources.is_none())
    }

    /// Everything of one kind, with whose it is: `survey.all(|r| &r.qps)`.
    pub fn all<'s, T: 's>(
        &'s self,
        kind: impl Fn(&'s Resources) -> &'s Vec<T> + 's,
    ) -> impl Iterator<Item = (&'s Member, &'s T)> + 's {
        let answered = self.members.iter().filter_map(|member| Some((member, member.resources.as_ref()?)));
        answered.flat_map(move |(member, resources)| kind(resources).iter().map(move |one| (member, one)))
    }
}

/// The tables that a device would have if somebody opened it.
fn planned(plan: &DevicePlan) -> Result<Vec<PortTables>, VerbsError> {
    let interfaces = netlink::interfaces().map_err(|e| {
        VerbsError::environment(Errno::EIO, format!("network interfaces cannot be listed (rtnetlink): {e}"))
    })?;
    let ports = plan.ports.iter().map(|port| {
        let facts = discovery::facts(port, &interfaces);
        let (mtu, ifindex) = (facts.mtu, facts.ifindex);
        let mut tables =
            PortTables { state: facts.state, mtu, speed_mbps: facts.speed_mbps, ifindex, ..PortTables::default() };
        debug_assert_eq!(tables.pkeys.len(), PKEYS);
        let gids: Vec<Gid> = facts.addresses.iter().map(|&ip| Gid::from_ip(ip)).collect();
        tables.set_gids(&gids);
        tables
    });
    Ok(ports.collect())
}

/// What a member tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pid: u32,
    comm: String,
    resources: Resources,
}

impl Answer {
    pub(crate) fn new(resources: Resources) -> Self {
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self { pid: std::process::id(), comm: comm.trim().to_owned(), resources }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Looks at a device that shares. A host that ends before it has answered is no answer: its successor is asked, or there is nobody.
pub(crate) fn look(plan: DevicePlan) -> Result<DeviceSurvey, VerbsError> {
    let give_up = Instant::now() + HOST;
    loop {
        if let Some(survey) = ask(plan.clone(), give_up)? {
            return Ok(survey);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A connection to the host; `None`: nobody has the device open.
fn connect(plan: &DevicePlan) -> Result<Option<Link>, VerbsError> {
    let Ok(link) = Link::connect_signed(&meeting_point(&plan.info.name)) else { return Ok(None) };
    match link.peer() {
        Ok((_, uid)) if uid == effective_uid() => Ok(Some(link)),
        Ok((pid, uid)) => {
            let text = format!("it belongs to user {uid} (process {pid}, {})", holder::program(pid));
            Err(refusal(plan, Errno::EACCES, &text))
        }
        Err(_) => Ok(None),
    }
}

fn refusal(plan: &DevicePlan, errno: Errno, text: &str) -> VerbsError {
    VerbsError::environment(errno, format!("device {}: {text}", plan.info.name))
}

const SILENT: &str = "the process that serves its others does not answer; is it stopped (by a debugger, or SIGSTOP)?";

/// Looks at the tables and counters of a device that shares; its members are not asked and not listed.
pub(crate) fn look_at_ports(plan: DevicePlan) -> Result<DeviceSurvey, VerbsError> {
    let Some(mut link) = connect(&plan)? else { return Ok(DeviceSurvey::unseen(plan)) };
    link.queue(&Message::Look { version: VERSION }, Vec::new());
    if link.flush().is_err() {
        return Ok(DeviceSurvey::unseen(plan));
    }
    match link.wait(HOST) {
        Received::Message(Message::Roster { .. }, fds) => {
            let Some(fd) = fds.into_iter().next() else { return Ok(DeviceSurvey::unseen(plan)) };
            let segment = Segment::join(fd)
                .map_err(|e| refusal(&plan, Errno::EPROTO, &format!("its shared segment is refused: {e}")))?;
            Ok(DeviceSurvey { plan, members: Vec::new(), segment: Some(segment) })
        }
        Received::Message(Message::Refuse { text }, _) => Err(refusal(&plan, Errno::EPROTO, &text)),
        Received::Nothing => Err(refusal(&plan, Errno::ETIMEDOUT, SILENT)),
        // The host has ended meanwhile: whoever is next is found at the next look.
        _ => Ok(DeviceSurvey::unseen(plan)),
    }
}

/// Asks the host that is there now; `None` if it ended before it answered, and there is time to ask the next.
fn ask(plan: DevicePlan, give_up: Instant) -> Result<Option<DeviceSurvey>, VerbsError> {
    let nobody = |plan| Ok(Some(DeviceSurvey::unseen(plan)));
    let Some(mut link) = connect(&plan)? else { return nobody(plan) };
    link.queue(&Message::Survey { version: VERSION }, Vec::new());
    if link.flush().is_err() {
        return nobody(plan);
    }
    let mut end = Instant::now() + HOST;
    let (mut segment, mut host) = (None, 0);
    let mut members: Vec<Member> = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let (received, sender) = link.wait_signed(left);
        match received {
            Received::Message(Message::Roster { host: slot }, fds) => {
                let Some(fd) = fds.into_iter().next() else { return nobody(plan) };
                let joined = match Segment::join(fd) {
                    Ok(joined) => joined,
                    Err(e) => {
                        return Err(refusal(&plan, Errno::EPROTO, &format!("its shared segment is refused: {e}")));
                    }
                };
                (segment, host) = (Some(joined), slot);
                end = Instant::now() + MEMBERS;
            }
            Received::Message(Message::Report { slot }, fds) => {
                let text = fds.first().and_then(|file| link::read_report(file).ok()).unwrap_or_default();
                if let Ok(Answer { pid, comm, resources }) = serde_json::from_slice(&text) {
                    let (sender, resources) = ((sender != 0).then_some(sender), Some(resources));
                    members.push(Member { slot, pid: sender, own_pid: pid, comm, is_host: false, resources });
                }
            }
            Received::Message(Message::Refuse { text }, _) => return Err(refusal(&plan, Errno::EPROTO, &text)),
            Received::Message(_, _) => {}
            Received::Closed if segment.is_none() && Instant::now() < give_up => return Ok(None),
            // The host has ended, or all have answered and let go.
            Received::Closed => break,
            Received::Nothing if left.is_zero() => break,
            Received::Nothing => {}
        }
        let answered = |slot: u8| members.iter().any(|member| member.slot == slot);
        if segment.as_ref().is_some_and(|segment| living(segment).all(answered)) {
            break;
        }
    }
    let Some(segment) = segment else {
        return Err(refusal(&plan, Errno::ETIMEDOUT, SILENT));
    };
    for slot in living(&segment) {
        if members.iter().all(|member| member.slot != slot) {
            let own_pid = segment.slot(slot).pid.load(std::sync::atomic::Ordering::Relaxed);
            let (pid, comm) = (None, String::new());
            members.push(Member { slot, pid, own_pid, comm, is_host: false, resources: None });
        }
    }
    members.sort_by_key(|member| member.slot);
    members.iter_mut().for_each(|member| member.is_host = member.slot == host);
    Ok(Some(DeviceSurvey { plan, members, segment: Some(segment) }))
}

/// Sets the P_Key tables of a device's ports for all its processes; entries beyond are 0, which is no P_Key. False: nobody has the device open, and so it has no
/// tables.
pub(crate) fn set_pkeys(plan: &DevicePlan, pkeys: &[PKey]) -> Result<bool, VerbsError> {
    let mut table: Vec<u16> = pkeys.iter().map(|pkey| pkey.0).collect();
    table.resize(table.len().max(PKEYS), 0);
    for port in 0..plan.ports.len() {
        let Some(mut link) = connect(plan)? else { return Ok(false) };
        link.queue(&Message::SetPkeys { version: VERSION, port: port as u8, pkeys: table.clone() }, Vec::new());
        if link.flush().is_err() {
            return Ok(false);
        }
        match link.wait(HOST) {
            Received::Message(Message::Ready, _) => {}
            Received::Message(Message::Refuse { text }, _) => return Err(refusal(plan, Errno::EINVAL, &text)),
            Received::Nothing => return Err(refusal(plan, Errno::ETIMEDOUT, SILENT)),
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn living(segment: &Segment) -> impl Iterator<Item = u8> + '_ {
    (1..(SLOTS - 1) as u8).filter(|&slot| segment.slot(slot).state() == SlotState::Alive)
}

/// Looks at a device of this process that shares with nobody.
pub(crate) fn look_at_own(plan: DevicePlan, segment: Arc<Segment>, slot: u8, resources: Resources) -> DeviceSurvey {
    let Answer { pid, comm, resources } = Answer::new(resources);
    let member = Member { slot, pid: Some(pid), own_pid: pid, comm, is_host: true, resources: Some(resources) };
    DeviceSurvey { plan, members: vec![member], segment: Some(segment) }
}

/// The same, without what it has.
pub(crate) fn look_at_own_ports(plan: DevicePlan, segment: Arc<Segment>) -> DeviceSurvey {
    DeviceSurvey { plan, members: Vec::new(), segment: Some(segment) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::link;
    use scalefabric_verbs::DeviceInfo;
    use std::os::fd::AsRawFd;

    /// A host that hangs up without a word, as one does that is about to exit.
    #[test]
    fn a_host_that_ends_before_it_answers_is_not_one_that_is_stopped() {
        let name = format!("gone{}", std::process::id());
        let info = DeviceInfo { name: name.clone(), node_guid: 1, index: 0, interfaces: Vec::new() };
        let listener = link::listen(&meeting_point(&name)).expect("nobody else has this name");
        let host = std::thread::spawn(move || {
            let caller = loop {
                match Link::accept(listener.as_raw_fd()) {
                    Some(caller) => break caller,
                    None => std::thread::yield_now(),
                }
            };
            drop(listener);
            drop(caller);
        });
        let survey = look(DevicePlan { info, ports: Vec::new() });
        host.join().expect("the host ends");
        assert!(survey.expect("an answer").members.is_empty());
    }
}
