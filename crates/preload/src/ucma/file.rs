//! An open file of the connection manager device. Each command finds its identifier by number, calls the contract, and answers.
//! Nothing is locked here: the channel does that. What is wrong with a command is answered in the kernel's order: its length,
//! its number, the room for the response, the identifier, the call itself.

use std::any::Any;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use scalefabric_ibv::abi::ucma::{self as abi, Command, Plain};
use scalefabric_verbs::{
    CmAddr, CmChannel, CmEvent, CmId, CmOption, EventType, JoinFlags, PortSpace, QpState, QpType, VerbsError,
};

use super::{address, convert, memory};
use crate::hooks::{self, Device, Node, device::Errno};
use scalefabric_nic::process::Descriptor;

use crate::verbs::answer::tell;

/// Largest backlog (`net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: u32 = 1024;
/// Largest value of an option.
const MAX_OPTION_BYTES: u32 = 1 << 16;
/// Reject reason where the caller names none.
const CONSUMER_DEFINED: u8 = scalefabric_verbs::cm::reject_reason::CONSUMER_DEFINED;

/// An open file.
#[derive(Debug)]
struct CmFile {
    channel: Arc<dyn CmChannel>,
    /// A second descriptor of the file description that the application has, to see its `O_NONBLOCK`.
    description: Descriptor,
    /// The process that opened it. Another one, a forked child, has none of what is behind it.
    pid: libc::pid_t,
}

/// Makes a descriptor for a channel: an epoll descriptor in which the channel's own stands, so that it is readable while an event
/// waits and still has flags of its own. `flags` are those of `open`.
pub fn open(channel: Arc<dyn CmChannel>, flags: i32) -> Result<RawFd, Errno> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::epoll_create1(flags & libc::O_CLOEXEC) })?;
    let file = match prepare(&channel, fd, flags) {
        Ok(file) => Arc::new(file),
        Err(errno) => {
            close(fd);
            channel.close();
            return Err(errno);
        }
    };
    hooks::register(fd, Arc::clone(&file) as Arc<dyn Device>).inspect_err(|_| {
        close(fd);
        file.close();
    })?;
    Ok(fd)
}

fn prepare(channel: &Arc<dyn CmChannel>, fd: RawFd, flags: i32) -> Result<CmFile, Errno> {
    let mut interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: `interest` lives through the call.
    check(unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, channel.fd(), &raw mut interest) })?;
    if flags & libc::O_NONBLOCK != 0 {
        // SAFETY: no memory is passed.
        check(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK) } as i32)?;
    }
    // SAFETY: no memory is passed.
    let description =
        Descriptor::make(|| unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) } as i32)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    // SAFETY: getpid has no conditions.
    Ok(CmFile { channel: Arc::clone(channel), description, pid: unsafe { libc::getpid() } })
}

/// Past the hooks: this descriptor was never theirs.
fn close(fd: RawFd) {
    // SAFETY: the descriptor is ours.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

fn check(result: i32) -> Result<i32, Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A struct from the front of a command's bytes.
fn parse<T: Plain>(bytes: &[u8]) -> Result<T, Errno> {
    T::read(bytes).ok_or(libc::EINVAL)
}

/// The errno of a refusal, which is explained where the user asked for it.
fn errno(error: VerbsError) -> Errno {
    tell("rdma_cm", &error)
}

/// Where a response goes and how much of it the caller takes.
#[derive(Clone, Copy)]
struct Answer {
    address: u64,
    room: usize,
}

impl Answer {
    /// `ENOSPC` unless there is room for `least` bytes.
    fn new(address: u64, room: u16, least: usize) -> Result<Self, Errno> {
        let room = usize::from(room);
        if room < least { Err(libc::ENOSPC) } else { Ok(Self { address, room }) }
    }

    /// Copies as much of the response as the caller knows of.
    fn give(self, bytes: &[u8]) -> Result<(), Errno> {
        memory::put(self.address, &bytes[..bytes.len().min(self.room)])
    }

    fn give_word(self, value: u32) -> Result<(), Errno> {
        self.give(abi::Word { value }.bytes())
    }
}

impl Device for CmFile {
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let header: abi::Header = parse(bytes)?;
        // SAFETY: getpid has no conditions.
        if unsafe { libc::getpid() } != self.pid {
            // What is behind belongs to the parent, whose events must not be taken from it.
            return Err(libc::EACCES);
        }
        let command = Command::from_raw(header.cmd).ok_or(libc::EINVAL)?;
        let body = bytes.get(8..8 + usize::from(header.size_in)).ok_or(libc::EINVAL)?;
        let execute = AssertUnwindSafe(|| self.execute(command, body, header.size_out));
        catch_unwind(execute).unwrap_or(Err(libc::EIO))?;
        Ok(bytes.len())
    }

    fn node(&self) -> Node {
        Node::Character(crate::tree::rdma_cm_device())
    }

    fn close(&self) {
        // SAFETY: getpid has no conditions.
        if unsafe { libc::getpid() } == self.pid {
            self.channel.close();
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl CmFile {
    fn execute(&self, command: Command, body: &[u8], room: u16) -> Result<(), Errno> {
        match command {
            Command::CreateId => self.create_id(&parse(body)?, room),
            Command::DestroyId => self.destroy_id(parse(body)?, room),
            Command::BindIp => self.bind_ip(&parse(body)?),
            Command::Bind => self.bind(&parse(body)?),
            Command::ResolveIp => self.resolve_ip(&parse(body)?),
            Command::ResolveAddr => self.resolve_addr(&parse(body)?),
            Command::ResolveRoute => {
                let raw: abi::ResolveRoute = parse(body)?;
                self.find(raw.id)?.resolve_route(raw.timeout_ms).map_err(errno)
            }
            Command::QueryRoute => self.query_route(parse(body)?, room),
            Command::Query => self.query(parse(body)?, room),
            Command::Connect => self.connect(&parse(body)?, trailing_ece::<abi::Connect>(body)),
            Command::Listen => {
                let raw: abi::Listen = parse(body)?;
                self.find(raw.id)?.listen(if raw.backlog < MAX_BACKLOG { raw.backlog } else { 0 }).map_err(errno)
            }
            Command::Accept => self.accept(&parse(body)?, trailing_ece::<abi::Accept>(body)),
            Command::Reject => {
                let raw: abi::Reject = parse(body)?;
                let reason = if raw.reason == 0 { CONSUMER_DEFINED } else { raw.reason };
                let data = &raw.private_data[..usize::from(raw.private_data_len)];
                self.find(raw.id)?.reject(data, reason).map_err(errno)
            }
            Command::Disconnect => self.find(parse::<abi::Disconnect>(body)?.id)?.disconnect().map_err(errno),
            Command::InitQpAttr => self.init_qp_attr(parse(body)?, room),
            Command::GetEvent => self.get_event(parse(body)?, room),
            Command::SetOption => self.set_option(parse(body)?),
            Command::Notify => {
                let raw: abi::Notify = parse(body)?;
                let id = self.find(raw.id)?;
                id.notify(EventType::from_raw(raw.event).ok_or(libc::EINVAL)?).map_err(errno)
            }
            Command::JoinIpMcast => {
                let raw: abi::JoinIpMcast = parse(body)?;
                let group = address::parse(&raw.addr).ok_or(libc::EINVAL);
                self.join(raw.id, group, 0, raw.uid, raw.response, room)
            }
            Command::JoinMcast => {
                let raw: abi::JoinMcast = parse(body)?;
                let group = address::parse_sized(&raw.addr, raw.addr_size).ok_or(libc::EINVAL);
                self.join(raw.id, group, raw.join_flags, raw.uid, raw.response, room)
            }
            Command::LeaveMcast => {
                let raw: abi::DestroyId = parse(body)?;
                let answer = Answer::new(raw.response, room, 4)?;
                answer.give_word(self.channel.leave_multicast(raw.id).map_err(errno)?)
            }
            Command::MigrateId => self.migrate_id(parse(body)?, room),
            // The kernel never had the first; the others belong to InfiniBand services, which a RoCE network does not have.
            Command::GetOption | Command::ResolveIbService | Command::WriteCmEvent => Err(libc::ENOSYS),
        }
    }

    fn find(&self, id: u32) -> Result<Arc<dyn CmId>, Errno> {
        self.channel.find_id(id).map_err(errno)
    }

    fn create_id(&self, raw: &abi::CreateId, room: u16) -> Result<(), Errno> {
        let answer = Answer::new(raw.response, room, 4)?;
        let space = PortSpace::from_raw(raw.ps).ok_or(libc::EINVAL)?;
        let asked = match space {
            PortSpace::Ib => QpType::from_raw(u32::from(raw.qp_type)).ok_or(libc::EINVAL)?,
            _ => QpType::Rc,
        };
        let id = self.channel.create_id(space, space.qp_type(asked), raw.uid).map_err(errno)?;
        answer.give_word(id.id()).inspect_err(|_| drop(id.destroy()))
    }

    fn destroy_id(&self, raw: abi::DestroyId, room: u16) -> Result<(), Errno> {
        let answer = Answer::new(raw.response, room, 4)?;
        answer.give_word(self.find(raw.id)?.destroy().map_err(errno)?)
    }

    fn bind_ip(&self, raw: &abi::BindIp) -> Result<(), Errno> {
        let local = address::parse(&raw.addr).ok_or(libc::EINVAL)?;
        self.find(raw.id)?.bind_addr(local).map_err(errno)
    }

    fn bind(&self, raw: &abi::Bind) -> Result<(), Errno> {
        if raw.reserved != 0 {
            return Err(libc::EINVAL);
        }
        let local = address::parse_sized(&raw.addr, raw.addr_size).ok_or(libc::EINVAL)?;
        self.find(raw.id)?.bind_addr(local).map_err(errno)
    }

    fn resolve_ip(&self, raw: &abi::ResolveIp) -> Result<(), Errno> {
        let source = match raw.src_addr {
            [0, 0, ..] => None,
            _ => Some(address::parse(&raw.src_addr).ok_or(libc::EINVAL)?),
        };
        let destination = address::parse(&raw.dst_addr).ok_or(libc::EINVAL)?;
        self.find(raw.id)?.resolve_addr(source, destination, raw.timeout_ms).map_err(errno)
    }

    fn resolve_addr(&self, raw: &abi::ResolveAddr) -> Result<(), Errno> {
        if raw.reserved != 0 {
            return Err(libc::EINVAL);
        }
        let source = match raw.src_size {
            0 => None,
            size => Some(address::parse_sized(&raw.src_addr, size).ok_or(libc::EINVAL)?),
        };
        let destination = address::parse_sized(&raw.dst_addr, raw.dst_size).ok_or(libc::EINVAL)?;
        self.find(raw.id)?.resolve_addr(source, destination, raw.timeout_ms).map_err(errno)
    }

    fn query_route(&self, raw: abi::Query, room: u16) -> Result<(), Errno> {
        let answer = Answer::new(raw.response, room, abi::QUERY_ROUTE_RESP_MIN)?;
        let id = self.find(raw.id)?;
        let bound = id.query_addr();
        let mut response = abi::QueryRouteResp::zeroed();
        response.src_addr = address::emit_ip(bound.local);
        response.dst_addr = address::emit_ip(bound.peer);
        if let Some(device) = &bound.device {
            response.node_guid_be = device.node_guid.to_be();
            response.ibdev_index = device.index;
            response.port_num = device.port_num;
            let paths = id.query_route();
            response.num_paths = paths.len().min(2) as u32;
            for (place, path) in response.ib_route.iter_mut().zip(&paths) {
                *place = convert::user_path(path);
            }
            if paths.is_empty() {
                response.ib_route[0] = convert::user_path_of_gids(bound.gids.0, bound.gids.1, device.pkey.0);
            }
        }
        answer.give(response.bytes())
    }

    fn query(&self, raw: abi::Query, room: u16) -> Result<(), Errno> {
        let id = self.find(raw.id)?;
        match raw.option {
            abi::query_option::ADDR => {
                let answer = Answer::new(raw.response, room, abi::QUERY_ADDR_RESP_MIN)?;
                let bound = id.query_addr();
                answer.give(ends(&bound, bound.local, bound.peer).bytes())
            }
            abi::query_option::GID => {
                let answer = Answer::new(raw.response, room, abi::QUERY_ADDR_RESP_MIN)?;
                let bound = id.query_addr();
                let pkey = bound.device.as_ref().map_or(0, |device| device.pkey.0);
                let as_ib = |end, gid| Some(address::as_ib(end, gid, pkey, id.port_space()));
                answer.give(ends(&bound, as_ib(bound.local, bound.gids.0), as_ib(bound.peer, bound.gids.1)).bytes())
            }
            abi::query_option::PATH => {
                let answer = Answer::new(raw.response, room, size_of::<abi::QueryPathResp>())?;
                let paths = id.query_route();
                let mut bytes = abi::QueryPathResp { num_paths: paths.len() as u32, reserved: 0 }.bytes().to_vec();
                for path in &paths {
                    // A path for which there is no room is counted and not given.
                    if bytes.len() + size_of::<abi::PathRecData>() <= answer.room {
                        bytes.extend_from_slice(convert::path_data(path).bytes());
                    }
                }
                answer.give(&bytes)
            }
            _ => Err(libc::ENOSYS),
        }
    }

    fn connect(&self, raw: &abi::Connect, ece: Option<abi::Ece>) -> Result<(), Errno> {
        if raw.conn_param.valid == 0 {
            return Err(libc::EINVAL);
        }
        let id = self.find(raw.id)?;
        if let Some(ece) = ece {
            id.set_local_ece(convert::ece(ece)).map_err(errno)?;
        }
        id.connect(&convert::conn_param(&raw.conn_param, is_ib(id.as_ref()))).map_err(errno)
    }

    fn accept(&self, raw: &abi::Accept, ece: Option<abi::Ece>) -> Result<(), Errno> {
        let id = self.find(raw.id)?;
        let ece = ece.map(convert::ece).unwrap_or_default();
        if raw.conn_param.valid == 0 {
            return id.accept(None, None, ece).map_err(errno);
        }
        let param = convert::conn_param(&raw.conn_param, is_ib(id.as_ref()));
        id.accept(Some(&param), Some(raw.uid), ece).map_err(errno)
    }

    fn init_qp_attr(&self, raw: abi::InitQpAttr, room: u16) -> Result<(), Errno> {
        let answer = Answer::new(raw.response, room, size_of::<abi::UserQpAttr>())?;
        let id = self.find(raw.id)?;
        let state = QpState::from_raw(raw.qp_state).ok_or(libc::EINVAL)?;
        let (attr, mask) = id.init_qp_attr(state).map_err(errno)?;
        answer.give(convert::qp_attr(&attr, mask).bytes())
    }

    fn get_event(&self, raw: abi::GetEvent, room: u16) -> Result<(), Errno> {
        let answer = Answer::new(raw.response, room, abi::EVENT_RESP_MIN)?;
        // An event that cannot be handed over must not be taken.
        answer.give(abi::EventResp::zeroed().bytes())?;
        let event = loop {
            if let Some(event) = self.channel.get_event(Some(Duration::ZERO)).map_err(errno)? {
                break event;
            }
            if self.nonblocking() {
                return Err(libc::EAGAIN);
            }
            self.wait()?;
        };
        let CmEvent { request, .. } = &event;
        debug_assert!(
            request.as_ref().is_none_or(|id| id.id() == event.id),
            "the number of a request is its identifier's"
        );
        answer.give(convert::event(&event).bytes())
    }

    fn nonblocking(&self) -> bool {
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::syscall(libc::SYS_fcntl, self.description.as_raw_fd(), libc::F_GETFL) };
        flags >= 0 && flags as i32 & libc::O_NONBLOCK != 0
    }

    /// Sleeps until an event is there. The kernel restarts `poll` after no signal; it would restart `write` after those whose
    /// handlers ask for it, and so do we when all do.
    fn wait(&self) -> Result<(), Errno> {
        let mut interest = libc::pollfd { fd: self.channel.fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: one valid entry.
            match check(unsafe { libc::poll(&raw mut interest, 1, -1) }) {
                Ok(_) => return Ok(()),
                Err(libc::EINTR) if crate::signal::handlers_restart() => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn set_option(&self, raw: abi::SetOption) -> Result<(), Errno> {
        use abi::option;
        let id = self.find(raw.id)?;
        if raw.optlen > MAX_OPTION_BYTES {
            return Err(libc::EINVAL);
        }
        let value = memory::get(raw.optval, raw.optlen as usize)?;
        let byte = || <[u8; 1]>::try_from(&value[..]).map(|[byte]| byte).map_err(|_| libc::EINVAL);
        let int = || <[u8; 4]>::try_from(&value[..]).map(|int| int != [0; 4]).map_err(|_| libc::EINVAL);
        let option = match (raw.level, raw.optname) {
            (option::LEVEL_ID, option::ID_TOS) => CmOption::Tos(byte()?),
            (option::LEVEL_ID, option::ID_REUSEADDR) => CmOption::ReuseAddr(int()?),
            (option::LEVEL_ID, option::ID_AFONLY) => CmOption::AfOnly(int()?),
            (option::LEVEL_ID, option::ID_ACK_TIMEOUT) => CmOption::AckTimeout(byte()?),
            (option::LEVEL_IB, option::IB_PATH) => CmOption::IbPath(primary_path(&value)?),
            _ => return Err(libc::ENOSYS),
        };
        id.set_option(option).map_err(errno)
    }

    fn join(
        &self,
        id: u32,
        group: Result<CmAddr, Errno>,
        flags: u16,
        uid: u64,
        response: u64,
        room: u16,
    ) -> Result<(), Errno> {
        let answer = Answer::new(response, room, 4)?;
        let group = group?;
        let flags = match flags {
            0 => JoinFlags::FullMember,
            1 => JoinFlags::SendOnlyFullMember,
            _ => return Err(libc::EINVAL),
        };
        let number = self.find(id)?.join_multicast(group, flags, uid).map_err(errno)?;
        answer.give_word(number).inspect_err(|_| drop(self.channel.leave_multicast(number)))
    }

    /// The identifier comes to this file from the one whose descriptor the command names.
    fn migrate_id(&self, raw: abi::MigrateId, room: u16) -> Result<(), Errno> {
        let answer = Answer::new(raw.response, room, 4)?;
        let from = hooks::find(raw.fd.cast_signed()).ok_or(libc::ENOENT)?;
        let from = from.as_any().and_then(|file| file.downcast_ref::<Self>()).ok_or(libc::EINVAL)?;
        answer.give_word(from.find(raw.id)?.migrate(&self.channel).map_err(errno)?)
    }
}

/// The ECE option behind a command, if the command is long enough to have one.
fn trailing_ece<T: Plain>(body: &[u8]) -> Option<abi::Ece> {
    body.get(size_of::<T>()..).and_then(abi::Ece::read)
}

fn is_ib(id: &dyn CmId) -> bool {
    matches!(id.query_addr().local, Some(CmAddr::Ib(_)))
}

/// The response of QUERY with two addresses in it.
fn ends(
    bound: &scalefabric_verbs::CmAddresses,
    source: Option<CmAddr>,
    destination: Option<CmAddr>,
) -> abi::QueryAddrResp {
    let mut response = abi::QueryAddrResp::zeroed();
    (response.src_addr, response.src_size) = address::emit(source);
    (response.dst_addr, response.dst_size) = address::emit(destination);
    if let Some(device) = &bound.device {
        response.node_guid_be = device.node_guid.to_be();
        response.ibdev_index = device.index;
        response.port_num = device.port_num;
        response.pkey_be = device.pkey.0.to_be();
    }
    response
}

/// The path among those of an option that is the primary one, in both directions.
fn primary_path(value: &[u8]) -> Result<scalefabric_verbs::PathRecord, Errno> {
    if !value.len().is_multiple_of(size_of::<abi::PathRecData>()) {
        return Err(libc::EINVAL);
    }
    let records = value.chunks_exact(size_of::<abi::PathRecData>()).filter_map(abi::PathRecData::read);
    let mut primary = records.filter(|record| record.flags == abi::PATH_PRIMARY_BOTH_WAYS);
    primary.next().and_then(|record| convert::path_record(&record)).ok_or(libc::EINVAL)
}
