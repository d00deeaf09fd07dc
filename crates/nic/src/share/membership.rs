//! A process's membership in a device: how it joins, what it holds, and what it does when something changes.
//!
//! One member is the **host**: it serves the rendezvous (an abstract Unix socket whose descriptor every member has),
//! follows the network interfaces, opens sockets and gives them to everybody. The others are **guests**. When the host
//! dies its connections end; the guest that first puts its slot in the segment's `host` word takes over, the others
//! connect to it, and both sides tell each other which descriptors they hold, so that nothing is lost.
//!
//! **Why the place in the SO_REUSEPORT group is the slot.** Sockets of an address are opened in the order of their slots
//! by one process at a time, and no member closes one before it leaves. If a host dies while it gives a new socket away,
//! either nobody has it, and it closes as the last of its group, which moves nobody; or somebody has it, and the next host
//! learns of it before it opens another ([`Host::awaited`]).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use scalefabric_transport::Time;
use scalefabric_verbs::{Errno, Gid, PKey, PortState, VerbsError};

use super::connections::Orphan;
use super::holder;
use super::link::{self, Key, Kind, Link, Message, Received};
use super::neighbourhood::Neighbourhood;
use super::segment::{PKEYS, PortTables, SLOTS, Segment, SlotState, VERSION};
use crate::clock;
use crate::discovery::{self, DevicePlan, PortFacts};
use crate::engine::drive::Core;
use crate::memory::OwnFile;
use crate::netlink::{self, Monitor};
use crate::port::udp::{AddressSockets, LocalAddress, Neighbours, ReceiveOptions, Sockets, socket};
use crate::process::{Descriptor, Home, Making, Own};
use crate::resources::SameHostReport;
use crate::survey;
use crate::tables::PortChange;
use crate::worker::Duty;

/// How long a process tries to join before it gives up.
const JOIN: Duration = Duration::from_secs(5);
/// How long a new host waits for members that have not come back before it lets others join, ns.
const GATHER_NS: u64 = 2_000_000_000;
/// How long a guest waits for a new host's answer, ns.
const REJOIN_NS: u64 = 1_000_000_000;
/// How soon something that could not be done is tried again, ns.
const RETRY_NS: u64 = 200_000_000;
/// The highest slot that is given out.
const LAST_SLOT: u8 = (SLOTS - 2) as u8;

/// A guest as the host sees it.
#[derive(Debug)]
struct Guest {
    link: Link,
    /// `None` if the process could not make one: then only the link tells of its end.
    pidfd: Option<Descriptor>,
}

/// A descriptor of the device with its name.
type HeldFd = (Key, Arc<Descriptor>);

/// What only the host has.
#[derive(Debug)]
struct Host {
    guests: HashMap<u8, Guest>,
    /// Connections that have not said what they want.
    strangers: Vec<Link>,
    /// Processes that want a slot.
    waiting: Vec<(Link, Option<Descriptor>, u32, u64)>,
    /// After a take-over: members that have not come back yet. Nobody joins and nothing is opened before they have, or
    /// before the time has passed: they may hold sockets that we do not know of.
    awaited: BTreeSet<u8>,
    awaited_until: Time,
    monitor: Option<Monitor>,
    /// Something could not be done and will be tried again then.
    retry_at: Option<Time>,
}

#[derive(Debug)]
enum Role {
    Host(Host),
    /// The link to the host, whose slot it is; the time by which a new host must have answered.
    Guest {
        link: Link,
        host: u8,
        answer_by: Option<Time>,
    },
    /// The others have given this process's slot away: it was stopped for too long.
    Outcast,
}

#[derive(Debug)]
struct State {
    held: HashMap<Key, Arc<Descriptor>>,
    /// `None`: the process is alone and shares nothing.
    listener: Option<Arc<Descriptor>>,
    role: Role,
    /// The tables that the engine was told last, by port.
    told: Vec<PortTables>,
    /// What went wrong since the start and did not end anything, newest last.
    problems: Vec<String>,
}

/// Who ends the connections of processes that have died.
pub trait OrphanSink: Send + Sync + std::fmt::Debug {
    /// Takes them. Must not wait.
    fn take(&self, core: &Arc<Core>, orphans: Vec<Orphan>);
}

/// Where datagrams for other slots go: the writing ends of their mailboxes, for one port.
#[derive(Debug, Default)]
struct Mailboxes {
    segment: OnceLock<Arc<Segment>>,
    ends: Mutex<HashMap<u8, Arc<Descriptor>>>,
}

impl Neighbours for Mailboxes {
    fn mailbox(&self, slot: u8) -> Option<RawFd> {
        // A dead slot's mailbox is kept, but nobody would read it.
        if self.segment.get()?.slot(slot).state() != SlotState::Alive {
            return None;
        }
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).get(&slot).map(|fd| fd.as_raw_fd())
    }
}

/// One port of the device, as this process has it.
#[derive(Debug)]
struct OwnPort {
    sockets: Arc<Sockets>,
    mailboxes: Arc<Mailboxes>,
}

/// A process's membership in a device. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Membership {
    plan: DevicePlan,
    name: String,
    slot: u8,
    segment: Arc<Segment>,
    receive: ReceiveOptions,
    epoll: Descriptor,
    ports: Own<Vec<OwnPort>>,
    core: OnceLock<Weak<Core>>,
    orphans: OnceLock<Box<dyn OrphanSink>>,
    /// The others, as the same-host path reaches them; `None` if this process cannot make a file of its own.
    neighbourhood: Option<Arc<Neighbourhood>>,
    /// Why all requests are packets; `None`: those to this host are not.
    packets_because: OnceLock<String>,
    /// The end that nobody else has: it closes when this process dies or runs another program.
    _life: Option<Descriptor>,
    home: Home,
    state: Own<Mutex<State>>,
}

fn environment(errno: Errno, message: String) -> VerbsError {
    VerbsError::environment(errno, message)
}

fn failed(device: &str, what: &str, error: &io::Error) -> VerbsError {
    let errno = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => Errno::EADDRINUSE,
        Some(libc::EADDRNOTAVAIL) => Errno::EADDRNOTAVAIL,
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE) => Errno::ENOMEM,
        Some(libc::EACCES | libc::EPERM) => Errno::EACCES,
        _ => Errno::EIO,
    };
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    };
    environment(errno, format!("device {device}: {what}: {error}{remedy}"))
}

/// Where the members of a device meet.
pub(crate) fn meeting_point(device: &str) -> String {
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let namespace: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    // Abstract names belong to a network namespace anyway; the number is there for whoever reads /proc/net/unix.
    format!("scalefabric/{namespace}/{}/{device}", effective_uid())
}

pub(crate) fn effective_uid() -> u32 {
    // SAFETY: plain system call that cannot fail.
    unsafe { libc::geteuid() }
}

/// Start time of a process, in clock ticks since boot: field 22 of its stat file.
fn start_time(pid: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Two sockets that know nobody but each other.
fn socket_pair(kind: i32) -> io::Result<(Descriptor, Descriptor)> {
    let mut pair = [0; 2];
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let making = Making::begin();
    // SAFETY: room for two descriptors, which nobody else owns if the call succeeds.
    let (reader, writer) = unsafe {
        if libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) < 0 {
            return Err(io::Error::last_os_error());
        }
        (Descriptor::keep(OwnedFd::from_raw_fd(pair[0])), Descriptor::keep(OwnedFd::from_raw_fd(pair[1])))
    };
    drop(making);
    Ok((reader, writer))
}

/// Makes a slot's two mailbox ends.
fn mailbox() -> io::Result<(Descriptor, Descriptor)> {
    let (reader, writer) = socket_pair(libc::SOCK_DGRAM)?;
    // A whole super-packet of another slot may have to wait here.
    let _ = socket::set(writer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &(1i32 << 20));
    Ok((reader, writer))
}

/// What of the present members is named like their files.
fn of_member(kind: Kind, slot: u8, generation: u32) -> Key {
    Key { kind, port: 0, slot, local: LocalAddress { ifindex: generation, ..NOWHERE } }
}

const NOWHERE: LocalAddress = LocalAddress { ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED), ifindex: 0 };

/// How often an address is tried while a process that is just ending may still hold it.
const ENDING_TRIES: u32 = 25;

impl Membership {
    /// Joins the device, or founds it. With `share` false the process has the addresses for itself.
    pub fn open(plan: &DevicePlan, receive: ReceiveOptions, share: bool) -> Result<Arc<Self>, VerbsError> {
        if !share {
            return Self::found(plan, receive, None);
        }
        let device = &plan.info.name;
        let name = meeting_point(device);
        let start = Instant::now();
        loop {
            match link::listen(&name) {
                Ok(listener) => return Self::found(plan, receive, Some((name, listener))),
                Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(e) => return Err(failed(device, "the meeting point of its processes cannot be opened", &e)),
            }
            if let Some(joined) = Self::join(plan, receive, &name, start)? {
                return Ok(joined);
            }
            if start.elapsed() > JOIN {
                return Err(environment(
                    Errno::ETIMEDOUT,
                    format!(
                        "device {device}: no process of the device let this one in within {} s; try again",
                        JOIN.as_secs()
                    ),
                ));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn build(
        plan: &DevicePlan,
        receive: ReceiveOptions,
        name: String,
        slot: u8,
        segment: Arc<Segment>,
        mut state: State,
    ) -> Result<Arc<Self>, VerbsError> {
        let device = &plan.info.name;
        let cannot = |e: io::Error| failed(device, "descriptors cannot be made", &e);
        // SAFETY: plain system call.
        let epoll = Descriptor::make(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map_err(cannot)?;
        let mut ports = Vec::new();
        for port in 0..plan.ports.len() as u8 {
            let letters = state.held.get(&Key { kind: Kind::MailIn, port, slot, local: NOWHERE });
            let letters = letters.map(|fd| fd.try_clone()).transpose().map_err(cannot)?;
            let mailboxes = Arc::new(Mailboxes::default());
            let _ = mailboxes.segment.set(segment.clone());
            ports.push(OwnPort { sockets: Sockets::new(letters).map_err(cannot)?, mailboxes });
        }
        let record = segment.slot(slot);
        record.pid.store(std::process::id(), Ordering::Relaxed);
        record.start_time.store(start_time("self").unwrap_or(0), Ordering::Relaxed);
        // Without a file of its own the process is reached by packets, as from another host.
        let (neighbourhood, life) = match OwnFile::new().and_then(|file| Ok((file, socket_pair(libc::SOCK_STREAM)?))) {
            Ok((file, (own, others))) => {
                let neighbourhood = Neighbourhood::new(segment.clone(), slot, file.clone());
                let generation = neighbourhood.generation();
                let new = [
                    (of_member(Kind::File, slot, generation), file.descriptor().clone()),
                    (of_member(Kind::Life, slot, generation), Arc::new(others)),
                ];
                if let Role::Guest { link, .. } = &mut state.role {
                    link.queue_hold(&new);
                    let _ = link.flush();
                }
                state.held.extend(new);
                (Some(neighbourhood), Some(own))
            }
            Err(error) => {
                state.problems.push(format!("no memory can be shared with processes on this host: {error}"));
                (None, None)
            }
        };
        let membership = Arc::new(Self {
            plan: plan.clone(),
            name,
            slot,
            segment,
            receive,
            epoll,
            ports: Own::new(ports),
            core: OnceLock::new(),
            orphans: OnceLock::new(),
            neighbourhood,
            packets_because: OnceLock::new(),
            _life: life,
            home: Home::here(),
            state: Own::new(Mutex::new(state)),
        });
        {
            let mut state = membership.lock();
            membership.meet(&mut state);
            membership.spread(&state).map_err(cannot)?;
            membership.watch_all(&state);
        }
        Ok(membership)
    }

    /// The first member: makes the segment and opens the first sockets.
    fn found(
        plan: &DevicePlan,
        receive: ReceiveOptions,
        meeting: Option<(String, Descriptor)>,
    ) -> Result<Arc<Self>, VerbsError> {
        let device = &plan.info.name;
        let cannot = |what: &str, e: &io::Error| failed(device, what, e);
        let segment =
            Segment::create(device, plan.ports.len()).map_err(|e| cannot("the shared segment cannot be made", &e))?;
        segment.layout().host.store(1, Ordering::Relaxed);
        let (name, listener) = match meeting {
            Some((name, listener)) => (name, Some(Arc::new(listener))),
            None => (String::new(), None),
        };
        let receive = ReceiveOptions { reuse_port: listener.is_some(), ..receive };
        let monitor = Monitor::new().map_err(|e| cannot("network interfaces cannot be watched", &e))?;
        let interfaces = netlink::interfaces().map_err(|e| cannot("network interfaces cannot be listed", &e))?;
        let host = Host {
            guests: HashMap::new(),
            strangers: Vec::new(),
            waiting: Vec::new(),
            awaited: BTreeSet::new(),
            awaited_until: Time(0),
            monitor: Some(monitor),
            retry_at: None,
        };
        let mut state =
            State { held: HashMap::new(), listener, role: Role::Host(host), told: Vec::new(), problems: Vec::new() };
        for (port, port_plan) in plan.ports.iter().enumerate() {
            let facts = discovery::facts(port_plan, &interfaces);
            if facts.ifindex == 0 {
                return Err(environment(
                    Errno::ENODEV,
                    format!("device {device}: there is no interface {:?} (port {})", port_plan.interface, port + 1),
                ));
            }
            for &ip in &facts.addresses {
                let local = LocalAddress { ip, ifindex: facts.ifindex };
                let mut tries = 0;
                let opened = loop {
                    match open_address(&mut state, receive, port as u8, local, 1) {
                        Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) && tries < ENDING_TRIES => {
                            tries += 1;
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        other => break other,
                    }
                };
                match opened {
                    Ok(()) => {}
                    Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {
                        return Err(holder::address_in_use(device, ip));
                    }
                    // It has gone since, or is not usable yet: the monitor will tell.
                    Err(e) if e.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {}
                    Err(e) => return Err(cannot(&format!("UDP port 4791 of {ip} cannot be opened"), &e)),
                }
            }
            let mut tables = PortTables::default();
            update(&mut tables, &facts, &state.held, port as u8);
            segment.port(port).write(&tables);
            state.told.push(tables);
        }
        open_mailboxes(&mut state, plan.ports.len() as u8, 1).map_err(|e| cannot("mailboxes cannot be made", &e))?;
        segment.slot(1).generation.fetch_add(1, Ordering::Relaxed);
        segment.give_out(1);
        segment.slot(1).set_state(SlotState::Alive);
        Self::build(plan, receive, name, 1, segment, state)
    }

    /// Asks the host for a slot. `Ok(None)`: it is gone or was going; try again.
    fn join(
        plan: &DevicePlan,
        receive: ReceiveOptions,
        name: &str,
        start: Instant,
    ) -> Result<Option<Arc<Self>>, VerbsError> {
        let device = &plan.info.name;
        let Ok(mut link) = Link::connect(name) else { return Ok(None) };
        let Ok((host_pid, uid)) = link.peer() else { return Ok(None) };
        if uid != effective_uid() {
            return Err(environment(
                Errno::EACCES,
                format!(
                    "device {device}: its meeting point belongs to user {uid} (process {host_pid}, {}), who is not this \
                     process's user: refused",
                    holder::program(host_pid)
                ),
            ));
        }
        let pidfd = link::own_pidfd().ok().map(Arc::new);
        let message =
            Message::Join { version: VERSION, pid: std::process::id(), start_time: start_time("self").unwrap_or(0) };
        link.queue(&message, pidfd.into_iter().collect());
        if link.flush().is_err() {
            return Ok(None);
        }
        let mut welcome = None;
        let mut held = HashMap::new();
        loop {
            let left = JOIN.saturating_sub(start.elapsed());
            match link.wait(left) {
                Received::Message(Message::Welcome { slot }, fds) => {
                    let mut fds = fds.into_iter();
                    let (Some(segment), Some(listener)) = (fds.next(), fds.next()) else { return Ok(None) };
                    let segment =
                        Segment::join(segment).map_err(|e| failed(device, "the shared segment is refused", &e))?;
                    welcome = Some((slot, segment, Arc::new(listener)));
                }
                Received::Message(Message::Refuse { text }, _) => {
                    return Err(environment(Errno::ENOSPC, format!("device {device}: {text}")));
                }
                Received::Message(Message::Hold { keys }, fds) => {
                    held.extend(keys.into_iter().zip(fds.into_iter().map(Arc::new)));
                }
                Received::Message(Message::Drop { port, local }, _) => {
                    held.retain(|key: &Key, _| !(key.port == port && key.local == local));
                }
                Received::Message(Message::Ready, _) => break,
                Received::Message(_, _) => {}
                Received::Closed => return Ok(None),
                Received::Nothing if left.is_zero() => {
                    return Err(environment(
                        Errno::ETIMEDOUT,
                        format!(
                            "device {device}: process {host_pid} ({}) shares the device but does not answer; is it \
                             stopped (by a debugger, or SIGSTOP)?",
                            holder::program(host_pid)
                        ),
                    ));
                }
                Received::Nothing => {}
            }
        }
        let Some((slot, segment, listener)) = welcome else { return Ok(None) };
        let told = (0..plan.ports.len()).map(|port| segment.port(port).read()).collect();
        let host = segment.layout().host.load(Ordering::Acquire) as u8;
        let state = State {
            held,
            listener: Some(listener),
            role: Role::Guest { link, host, answer_by: None },
            told,
            problems: Vec::new(),
        };
        Self::build(plan, receive, name.to_owned(), slot, segment, state).map(Some)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot: the upper 8 bits of this process's QPNs.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// True if this process serves the rendezvous.
    pub fn is_host(&self) -> bool {
        self.home.is_here() && matches!(self.lock().role, Role::Host(_))
    }

    /// False if the process has the device for itself.
    pub fn is_shared(&self) -> bool {
        !self.name.is_empty()
    }

    /// The device segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The other members, as the same-host path reaches them.
    pub fn neighbourhood(&self) -> Option<&Arc<Neighbourhood>> {
        self.neighbourhood.as_ref()
    }

    /// The receive sockets of a port, from index 0.
    pub fn sockets(&self, port: usize) -> &Arc<Sockets> {
        &self.ports[port].sockets
    }

    /// Where a port's datagrams for other slots go; `None` if the process is alone.
    pub fn neighbours(&self, port: usize) -> Option<Arc<dyn Neighbours>> {
        self.lock().listener.as_ref()?;
        Some(self.ports[port].mailboxes.clone())
    }

    /// The tables of a port, from index 0, as the engine must have them at its start.
    pub fn tables(&self, port: usize) -> PortTables {
        self.lock().told[port].clone()
    }

    /// What went wrong and did not end anything.
    pub fn problems(&self) -> Vec<String> {
        if self.home.is_here() { self.lock().problems.clone() } else { Vec::new() }
    }

    /// From now on the engine is told of changes, beginning with those since [`Membership::tables`].
    pub fn attach(&self, core: Weak<Core>) {
        let _ = self.core.set(core);
        self.tell(&mut self.lock());
    }

    /// Why all requests are packets, once and for all.
    pub fn set_packets_because(&self, why: String) {
        let _ = self.packets_because.set(why);
    }

    /// Which way requests to QPs of the same host go, and why.
    pub fn same_host(&self) -> SameHostReport {
        let neighbours = self.neighbourhood.as_ref().filter(|_| self.home.is_here());
        SameHostReport {
            packets_because: self.packets_because.get().cloned(),
            neighbours: neighbours.map(|all| all.report()).unwrap_or_default(),
        }
    }

    /// Who ends the connections of members that die. Only the first one counts.
    pub fn set_orphan_sink(&self, sink: Box<dyn OrphanSink>) {
        let _ = self.orphans.set(sink);
    }

    /// Changes a P_Key for all members.
    pub fn set_pkey(&self, port: usize, index: u16, pkey: PKey) -> Result<(), VerbsError> {
        self.home.check("device")?;
        if port >= self.plan.ports.len() || !self.segment.port(port).set_pkey(index, pkey) {
            return Err(VerbsError::invalid(format!(
                "P_Key index {index} of port {} is beyond the table ({} entries)",
                port + 1,
                PKEYS
            )));
        }
        let mut state = self.lock();
        self.tell(&mut state);
        self.nudge_others(&mut state, None);
        Ok(())
    }

    /// Brings the engine's tables in line with the segment's.
    fn tell(&self, state: &mut State) {
        self.meet(state);
        let Some(core) = self.core.get().and_then(Weak::upgrade) else { return };
        for (port, told) in state.told.iter_mut().enumerate() {
            let new = self.segment.port(port).read();
            for change in changes(told, &new) {
                // An index that a QP or AH of this process still holds for a former GID cannot change hands here; the
                // segment gives such slots away only when the table is full.
                if let Err(e) = core.change_port(port as u8 + 1, &change) {
                    state.problems.push(e.message);
                }
            }
            *told = new;
        }
    }

    /// Lets go of the files of members that are gone, which would keep their memory, and tells the engine who is there.
    fn meet(&self, state: &mut State) {
        let Some(neighbourhood) = &self.neighbourhood else { return };
        let is_there = |key: &Key| self.segment.is_member(key.slot, key.local.ifindex);
        state.held.retain(|key, _| !matches!(key.kind, Kind::File | Kind::Life) || is_there(key));
        let files = state.held.iter().filter(|(key, _)| key.kind == Kind::File);
        let now = files.filter_map(|(key, file)| {
            let life = state.held.get(&Key { kind: Kind::Life, ..*key })?;
            Some((key.slot, key.local.ifindex, file.clone(), life.clone()))
        });
        let left = neighbourhood.set(now.collect());
        if !left.is_empty()
            && let Some(core) = self.core.get().and_then(Weak::upgrade)
        {
            core.forget_neighbours(&left);
        }
    }

    /// Gives the port's sockets what this process holds.
    fn spread(&self, state: &State) -> io::Result<()> {
        for (port, own) in self.ports.iter().enumerate() {
            let mut addresses: HashMap<LocalAddress, AddressSockets> = HashMap::new();
            let mut ends = HashMap::new();
            for (key, fd) in state.held.iter().filter(|(key, _)| usize::from(key.port) == port) {
                match key.kind {
                    Kind::Receive if key.slot == self.slot || key.slot == 0 => {
                        let entry = AddressSockets { local: key.local, receive: Vec::new() };
                        let receive = &mut addresses.entry(key.local).or_insert(entry).receive;
                        // Its own first: that is where nearly everything comes in.
                        receive.insert(if key.slot == 0 { receive.len() } else { 0 }, fd.clone());
                    }
                    Kind::MailOut if key.slot != self.slot => {
                        ends.insert(key.slot, fd.clone());
                    }
                    _ => {}
                }
            }
            let mut addresses: Vec<_> = addresses.into_values().collect();
            addresses.sort_by_key(|a| a.local.ip);
            own.sockets.set_addresses(addresses)?;
            *own.mailboxes.ends.lock().unwrap_or_else(PoisonError::into_inner) = ends;
        }
        Ok(())
    }

    fn watch(&self, fd: RawFd) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: the event is valid; the kernel checks the descriptors. One that is watched already stays so, and a closed
        // one leaves by itself.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }

    fn watch_all(&self, state: &State) {
        match &state.role {
            Role::Outcast => {}
            Role::Guest { link, .. } => self.watch(link.fd()),
            Role::Host(host) => {
                state.listener.iter().for_each(|l| self.watch(l.as_raw_fd()));
                host.monitor.iter().for_each(|m| self.watch(m.fd()));
                let guests = host.guests.values();
                guests.clone().for_each(|g| self.watch(g.link.fd()));
                guests.for_each(|g| g.pidfd.iter().for_each(|p| self.watch(p.as_raw_fd())));
                host.strangers.iter().for_each(|l| self.watch(l.fd()));
                host.waiting.iter().for_each(|w| self.watch(w.0.fd()));
            }
        }
    }

    /// Tells the other members that the tables have changed, but for the one that told us.
    fn nudge_others(&self, state: &mut State, but: Option<u8>) {
        match &mut state.role {
            Role::Outcast => {}
            Role::Guest { link, .. } => link.queue(&Message::Nudge, Vec::new()),
            Role::Host(host) => {
                for (slot, guest) in &mut host.guests {
                    if Some(*slot) != but {
                        guest.link.queue(&Message::Nudge, Vec::new());
                    }
                }
            }
        }
        flush_links(state);
    }
}

/// Opens the sockets of an address for slots 0 (QP 1) to `top`, in order; alone, for slot 1 only.
fn open_address(state: &mut State, receive: ReceiveOptions, port: u8, local: LocalAddress, top: u8) -> io::Result<()> {
    let link_local = matches!(local.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if receive.reuse_port && !link_local && holder::holders().iter().any(|h| h.ip == local.ip) {
        // A foreign socket of our own user: binding would succeed and every slot would be off by one. (A link-local
        // address may exist on several interfaces, and the list does not tell on which.)
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    let mut opened = Vec::new();
    for slot in if receive.reuse_port { 0 } else { 1 }..=top {
        let socket = socket::open_receive(local, receive)?;
        if opened.is_empty() && receive.reuse_port {
            socket::steer(socket.as_raw_fd())?;
        }
        opened.push((Key { kind: Kind::Receive, port, slot, local }, Arc::new(socket)));
    }
    state.held.extend(opened);
    Ok(())
}

/// Makes the mailboxes of a slot, if it has none.
fn open_mailboxes(state: &mut State, ports: u8, slot: u8) -> io::Result<()> {
    for port in 0..ports {
        let key = Key { kind: Kind::MailIn, port, slot, local: NOWHERE };
        if !state.held.contains_key(&key) {
            let (reader, writer) = mailbox()?;
            state.held.insert(key, Arc::new(reader));
            state.held.insert(Key { kind: Kind::MailOut, ..key }, Arc::new(writer));
        }
    }
    Ok(())
}

/// Puts what the interface says into a port's tables. Only addresses that sockets stand on are GIDs.
fn update(tables: &mut PortTables, facts: &PortFacts, held: &HashMap<Key, Arc<Descriptor>>, port: u8) -> Vec<Gid> {
    let open = |ip: &&IpAddr| {
        let local = LocalAddress { ip: **ip, ifindex: facts.ifindex };
        held.contains_key(&Key { kind: Kind::Receive, port, slot: 1, local })
    };
    let wanted: Vec<Gid> = facts.addresses.iter().filter(open).map(|&ip| Gid::from_ip(ip)).collect();
    tables.state = facts.state;
    tables.mtu = facts.mtu;
    tables.speed_mbps = facts.speed_mbps;
    tables.ifindex = facts.ifindex;
    tables.set_gids(&wanted)
}

/// What an engine that knows `old` must be told to know `new`.
fn changes(old: &PortTables, new: &PortTables) -> Vec<PortChange> {
    let mut all = Vec::new();
    if old.mtu != new.mtu {
        all.push(PortChange::SetMtu(new.mtu));
    }
    if old.speed_mbps != new.speed_mbps {
        all.push(PortChange::SetSpeed(new.speed_mbps));
    }
    // What goes, goes first, so that a slot can change hands.
    let pairs = || old.gids.iter().zip(&new.gids).enumerate();
    for (_, (old, new)) in pairs() {
        if old.present && (!new.present || old.gid != new.gid) {
            all.push(PortChange::RemoveGid { gid: old.gid });
        }
    }
    for (index, (old, new)) in pairs() {
        if new.present && (!old.present || old.gid != new.gid) {
            all.push(PortChange::AddGid { gid: new.gid, index: Some(index as u8) });
        }
    }
    for (index, (_, &pkey)) in old.pkeys.iter().zip(&new.pkeys).enumerate().filter(|(_, (a, b))| a != b) {
        all.push(PortChange::SetPKey { index: index as u16, pkey });
    }
    match (old.state, new.state) {
        (PortState::Active, PortState::Active) => {}
        (_, PortState::Active) => all.push(PortChange::Up),
        (PortState::Active, _) => all.push(PortChange::Down),
        _ => {}
    }
    all
}

/// Sends what waits on every link.
fn flush_links(state: &mut State) {
    match &mut state.role {
        Role::Outcast => {}
        // A link that fails will be seen closed when it is read.
        Role::Guest { link, .. } => drop(link.flush()),
        Role::Host(host) => host.guests.values_mut().for_each(|guest| drop(guest.link.flush())),
    }
}

impl Membership {
    /// Gives the slot back: the process ends, and its worker has ended. One whose lock is taken for longer than `limit` is left
    /// to the others, who see it die.
    pub(crate) fn leave(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = loop {
            match self.state.try_lock() {
                Ok(state) => break state,
                Err(std::sync::TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(_) if Instant::now() >= until => return,
                Err(_) => std::thread::yield_now(),
            }
        };
        self.go(&mut state);
        // Links end here: the host buries a guest, guests choose another host.
        state.role = Role::Outcast;
    }

    /// What a host does as its last act; who is served by one is buried by it.
    fn go(&self, state: &mut State) {
        if matches!(state.role, Role::Host(_)) {
            self.segment.retire_counters(self.slot);
            self.segment.slot(self.slot).set_state(SlotState::Free);
        }
    }
}

mod duty;

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        // Whoever serves sees the link end and does the rest; alone or as the host, do it here. The sockets close with the
        // last member.
        let mut state = self.lock();
        self.go(&mut state);
    }
}

#[cfg(test)]
mod tests;
