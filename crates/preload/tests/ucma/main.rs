//! The protocol of the connection manager device, byte for byte: what a librdmacm of any version writes, and what the kernel
//! would answer. Behind it stands a backend that only takes notes.

mod any_bytes;
mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::Channel;
use scalefabric_preload::{hooks, ucma};
use scalefabric_verbs::CmEventType;

const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const BIND_IP: u32 = 2;
const RESOLVE_IP: u32 = 3;
const QUERY_ROUTE: u32 = 5;
const CONNECT: u32 = 6;
const LISTEN: u32 = 7;
const ACCEPT: u32 = 8;
const REJECT: u32 = 9;
const INIT_QP_ATTR: u32 = 11;
const GET_EVENT: u32 = 12;
const GET_OPTION: u32 = 13;
const SET_OPTION: u32 = 14;
const NOTIFY: u32 = 15;
const JOIN_IP_MCAST: u32 = 16;
const LEAVE_MCAST: u32 = 17;
const MIGRATE_ID: u32 = 18;
const QUERY: u32 = 19;
const BIND: u32 = 20;

/// An open device over a channel.
struct File {
    fd: i32,
    channel: Arc<Channel>,
}

impl File {
    fn open(flags: i32) -> Self {
        let channel = Channel::new();
        let fd = ucma::open_channel(channel.clone(), flags).unwrap();
        Self { fd, channel }
    }

    /// `write(2)` of a command: its header, and `body`.
    fn command(&self, number: u32, body: &[u8], room: usize) -> Result<usize, i32> {
        write(self.fd, &message(number, body, room))
    }

    /// A new identifier.
    fn id(&self, uid: u64) -> u32 {
        let mut id = [0; 4];
        self.command(CREATE_ID, &create_id(uid, 0x106, address_of(&mut id)), 4).unwrap();
        self.channel.calls();
        u32::from_ne_bytes(id)
    }
}

fn write(fd: i32, bytes: &[u8]) -> Result<usize, i32> {
    hooks::find(fd).expect("the descriptor leads to the device").write(bytes)
}

fn message(number: u32, body: &[u8], room: usize) -> Vec<u8> {
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.extend((body.len() as u16).to_ne_bytes());
    bytes.extend((room as u16).to_ne_bytes());
    bytes.extend(body);
    bytes
}

fn address_of<T>(place: &mut [T]) -> u64 {
    place.as_mut_ptr().expose_provenance() as u64
}

/// Fields one after the other, in the machine's order.
macro_rules! body {
    ($($field:expr),* $(,)?) => { [$( &$field.to_ne_bytes()[..] ),*].concat() };
}

fn create_id(uid: u64, space: u16, response: u64) -> Vec<u8> {
    [body![uid, response, space], vec![2, 0, 0, 0, 0, 0]].concat()
}

/// `sockaddr_in` in the room of a `sockaddr_in6`.
fn sockaddr(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut bytes = [body![2_u16], port.to_be_bytes().to_vec(), ip.to_vec()].concat();
    bytes.resize(28, 0);
    bytes
}

/// `rdma_ucm_conn_param` with a QP number and private data.
fn conn_param(qp_num: u32, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = body![qp_num, 0_u32];
    bytes.extend(private_data);
    bytes.resize(8 + 256, 0);
    bytes.extend([private_data.len() as u8, 0, 1, 1, 0, 7, 7, 1]);
    bytes
}

#[test]
fn a_message_shorter_than_it_says_is_einval() {
    let file = File::open(0);
    let mut id = [0; 4];
    let whole = message(CREATE_ID, &create_id(1, 0x106, address_of(&mut id)), 4);
    assert_eq!(write(file.fd, &whole[..7]), Err(libc::EINVAL), "no whole header");
    assert_eq!(write(file.fd, &whole[..whole.len() - 1]), Err(libc::EINVAL), "less than hdr.in");
    assert_eq!(file.command(CREATE_ID, &[0; 23], 4), Err(libc::EINVAL), "hdr.in is less than the command");
    assert_eq!(file.channel.calls(), Vec::<String>::new());
    assert_eq!(write(file.fd, &whole), Ok(whole.len()));
    assert_eq!(file.channel.calls(), ["create_id Tcp Rc 1"]);
}

#[test]
fn commands_that_nobody_knows_are_einval_and_those_that_we_lack_enosys() {
    let file = File::open(0);
    assert_eq!(file.command(25, &[0; 64], 64), Err(libc::EINVAL));
    assert_eq!(file.command(u32::MAX, &[], 0), Err(libc::EINVAL));
    for command in [GET_OPTION, 23, 24] {
        assert_eq!(file.command(command, &[0; 64], 64), Err(libc::ENOSYS), "{command}");
    }
}

#[test]
fn a_response_without_room_or_place_leaves_no_identifier() {
    let file = File::open(0);
    let mut id = [0; 4];
    assert_eq!(file.command(CREATE_ID, &create_id(1, 0x106, address_of(&mut id)), 3), Err(libc::ENOSPC));
    assert_eq!(file.channel.calls(), Vec::<String>::new());
    assert_eq!(file.command(CREATE_ID, &create_id(1, 0x106, 0), 4), Err(libc::EFAULT));
    assert_eq!(file.channel.calls(), ["create_id Tcp Rc 1", "destroy"]);
    assert_eq!(file.command(CREATE_ID, &create_id(1, 0x107, address_of(&mut id)), 4), Err(libc::EINVAL), "port space");
}

#[test]
fn destroy_says_how_many_events_were_reported() {
    let file = File::open(0);
    let id = file.id(9);
    file.channel.raise(id, CmEventType::AddrResolved, &[]);
    let mut event = [0_u8; 336];
    file.command(GET_EVENT, &body![address_of(&mut event)], 336).unwrap();
    let mut reported = [0; 4];
    let destroy = body![address_of(&mut reported), id, 0_u32];
    file.command(DESTROY_ID, &destroy, 4).unwrap();
    assert_eq!(reported, body![1_u32][..]);
    assert_eq!(file.command(DESTROY_ID, &destroy, 4), Err(libc::ENOENT));
}

#[test]
fn an_event_is_as_long_as_the_caller_knows_it() {
    let file = File::open(0);
    let id = file.id(0x1122_3344_5566);
    for (room, given) in [(324, 324), (328, 328), (336, 336), (400, 336)] {
        file.channel.raise(id, CmEventType::Rejected, b"why");
        let mut event = [0xee_u8; 400];
        file.command(GET_EVENT, &body![address_of(&mut event)], room).unwrap();
        assert_eq!(event[..20], body![0x1122_3344_5566_u64, id, 8_u32, -5_i32], "uid, id, event, status");
        assert_eq!((&event[28..31], event[20 + 264]), (&b"why"[..], 3), "private data and its length");
        if given == 336 {
            assert_eq!(event[328..336], body![0x15b3_u32, 1_u32], "ECE");
        }
        assert!(event[given..].iter().all(|&byte| byte == 0xee), "nothing beyond {given}");
    }
    file.channel.raise(id, CmEventType::Rejected, &[]);
    let mut event = [0_u8; 336];
    assert_eq!(file.command(GET_EVENT, &body![address_of(&mut event)], 323), Err(libc::ENOSPC));
    assert_eq!(file.command(GET_EVENT, &body![8_u64], 336), Err(libc::EFAULT));
    file.command(GET_EVENT, &body![address_of(&mut event)], 336).expect("the event waits still");
}

#[test]
fn get_event_waits_unless_the_descriptor_says_otherwise() {
    let file = File::open(libc::O_NONBLOCK);
    let id = file.id(1);
    let mut event = [0_u8; 336];
    let get_event = body![address_of(&mut event)];
    assert_eq!(file.command(GET_EVENT, &get_event, 336), Err(libc::EAGAIN));
    assert_eq!(ready(file.fd), 0);
    // A duplicate's flags are those of the descriptor.
    // SAFETY: no memory is passed.
    unsafe { libc::fcntl(libc::dup(file.fd), libc::F_SETFL, 0) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            file.channel.raise(id, CmEventType::Established, &[]);
        });
        file.command(GET_EVENT, &get_event, 336).unwrap();
    });
    file.channel.raise(id, CmEventType::Disconnected, &[]);
    assert_eq!(ready(file.fd), 1);
    file.command(GET_EVENT, &get_event, 336).unwrap();
    assert_eq!(ready(file.fd), 0);
}

/// What `poll` says at once.
fn ready(fd: i32) -> i32 {
    let mut interest = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut interest, 1, 0) }
}

#[test]
fn addresses_are_taken_apart() {
    let file = File::open(0);
    let id = file.id(1);
    file.command(BIND_IP, &[body![0_u64], sockaddr([127, 0, 0, 9], 7174), body![id]].concat(), 0).unwrap();
    file.command(RESOLVE_IP, &[vec![0; 28], sockaddr([10, 0, 0, 2], 5), body![id, 2000_u32]].concat(), 0).unwrap();
    assert_eq!(file.channel.calls(), ["bind 127.0.0.9:7174", "resolve_addr None Ip(10.0.0.2:5) 2000"]);
    let mut bind = [body![id, 16_u16, 0_u16], sockaddr([1, 2, 3, 4], 5)].concat();
    bind.resize(136, 0);
    file.command(BIND, &bind, 0).unwrap();
    bind[4] = 28;
    assert_eq!(file.command(BIND, &bind, 0), Err(libc::EINVAL), "28 bytes are no sockaddr_in");
    let unspecified = [body![0_u64], vec![0; 28], body![id]].concat();
    assert_eq!(file.command(BIND_IP, &unspecified, 0), Err(libc::EINVAL));
}

#[test]
fn af_ib_is_not_available_so_that_librdmacm_takes_the_ip_commands() {
    let file = File::open(0);
    let id = file.id(1);
    let mut bind = body![id, 48_u16, 0_u16, 27_u16];
    bind.resize(136, 0);
    assert_eq!(file.command(BIND, &bind, 0), Err(libc::EADDRNOTAVAIL));
}

#[test]
fn connect_and_accept_with_and_without_an_ece_option() {
    let file = File::open(0);
    let id = file.id(1);
    let old = [conn_param(17, b"hi"), body![id, 0_u32]].concat();
    file.command(CONNECT, &old, 0).unwrap();
    assert_eq!(file.channel.calls(), ["connect [104, 105] qp 17"]);
    file.command(CONNECT, &[&old[..], &body![0x15b3_u32, 7_u32]].concat(), 0).unwrap();
    assert_eq!(file.channel.calls(), ["set_local_ece 0x15b3", "connect [104, 105] qp 17"]);
    let mut invalid = old.clone();
    invalid[271] = 0;
    assert_eq!(file.command(CONNECT, &invalid, 0), Err(libc::EINVAL));
    assert_eq!(file.command(CONNECT, &old[..279], 0), Err(libc::EINVAL));

    let accept = [body![5_u64], old].concat();
    file.command(ACCEPT, &accept, 0).unwrap();
    file.command(ACCEPT, &[&accept[..], &body![0x15b3_u32, 7_u32]].concat(), 0).unwrap();
    let mut rtu = accept;
    rtu[8 + 271] = 0;
    file.command(ACCEPT, &rtu, 0).unwrap();
    assert_eq!(
        file.channel.calls(),
        ["accept true Some(5) 0x0", "accept true Some(5) 0x15b3", "accept false None 0x0"]
    );
}

#[test]
fn a_reject_without_a_reason_is_the_consumers() {
    let file = File::open(0);
    let id = file.id(1);
    let mut reject = body![id, 2_u8, 0_u8, 0_u16];
    reject.extend([1, 2]);
    reject.resize(264, 0);
    file.command(REJECT, &reject, 0).unwrap();
    reject[5] = 35;
    file.command(REJECT, &reject, 0).unwrap();
    assert_eq!(file.channel.calls(), ["reject [1, 2] 28", "reject [1, 2] 35"]);
    for backlog in [0_u32, 5, 100_000] {
        file.command(LISTEN, &body![id, backlog], 0).unwrap();
    }
    assert_eq!(file.channel.calls(), ["listen 0", "listen 5", "listen 0"]);
}

#[test]
fn a_route_stands_where_librdmacm_reads_it() {
    let file = File::open(0);
    let id = file.id(1);
    let mut route = [0xee_u8; 216];
    file.command(QUERY_ROUTE, &body![address_of(&mut route), id, 0_u32], 208).unwrap();
    assert_eq!(route[..8], 0x0200_00ff_fe00_0001_u64.to_be_bytes(), "node GUID, big endian");
    assert_eq!((&route[8..24], &route[24..40]), (&[2; 16][..], &[1; 16][..]), "dgid and sgid of the first path");
    assert_eq!(route[8 + 54], 64, "hop limit: a GRH is needed");
    assert_eq!(route[136..164], sockaddr([10, 0, 0, 1], 100));
    assert_eq!(route[164..192], sockaddr([10, 0, 0, 2], 200));
    assert_eq!(route[192..208], [body![1_u32], vec![1, 0, 0, 0], body![4_u32, 0_u32]].concat(), "paths, port, index");
    assert_eq!(route[208..], [0xee; 8]);
    // Before the device's index came into the struct.
    let mut old = [0xee_u8; 208];
    file.command(QUERY_ROUTE, &body![address_of(&mut old), id, 0_u32], 200).unwrap();
    assert_eq!((old[200..].to_vec(), &old[..200]), (vec![0xee; 8], &route[..200]));
    assert_eq!(file.command(QUERY_ROUTE, &body![address_of(&mut old), id, 0_u32], 199), Err(libc::ENOSPC));
}

#[test]
fn queries_of_addresses_gids_and_paths() {
    let file = File::open(0);
    let id = file.id(1);
    let query = |option: u32, place: &mut [u8], room| file.command(QUERY, &body![address_of(place), id, option], room);
    let mut ends = [0_u8; 280];
    query(0, &mut ends, 280).unwrap();
    assert_eq!(ends[8..16], [vec![1, 0, 0xff, 0xff], body![16_u16, 16_u16]].concat(), "port, P_Key, sizes");
    assert_eq!(ends[16..44], sockaddr([10, 0, 0, 1], 100));
    query(2, &mut ends, 280).unwrap();
    assert_eq!(ends[12..16], body![48_u16, 48_u16]);
    assert_eq!((&ends[16..18], &ends[24..40]), (&27_u16.to_ne_bytes()[..], &[1; 16][..]), "AF_IB and the local GID");
    assert_eq!(ends[144 + 24..144 + 32], 0x0106_00c8_u64.to_be_bytes(), "the peer's service ID");
    let mut paths = [0xee_u8; 88];
    query(1, &mut paths, 80).unwrap();
    assert_eq!(paths[..12], body![1_u32, 0_u32, 43_u32], "one path; GMP, primary, both ways");
    assert_eq!(paths[80..], [0xee; 8]);
    query(1, &mut paths, 8).expect("only the number of paths");
    assert_eq!(query(1, &mut paths, 7), Err(libc::ENOSPC));
    assert_eq!(query(3, &mut paths, 80), Err(libc::ENOSYS));
}

#[test]
fn qp_attributes_stand_where_librdmacm_reads_them() {
    let file = File::open(0);
    let id = file.id(1);
    let mut attr = [0_u8; 144];
    file.command(INIT_QP_ATTR, &body![address_of(&mut attr), id, 2_u32], 144).unwrap();
    assert_eq!(attr[..8], body![1_u32 | 1 << 7 | 1 << 8 | 1 << 9, 2_u32], "mask and state");
    assert_eq!(attr[40..56], [2; 16], "dgid");
    assert_eq!((attr[60], attr[61], attr[69], attr[70]), (1, 64, 1, 1), "sgid_index, hop_limit, is_global, port_num");
    assert_eq!(attr[134], 19, "timeout");
    assert_eq!(file.command(INIT_QP_ATTR, &body![address_of(&mut attr), id, 7_u32], 144), Err(libc::EINVAL));
    assert_eq!(file.command(INIT_QP_ATTR, &body![address_of(&mut attr), id, 2_u32], 143), Err(libc::ENOSPC));
}

#[test]
fn options_have_a_level_a_name_and_a_length() {
    let file = File::open(0);
    let id = file.id(1);
    let set = |level: u32, name: u32, value: &mut [u8]| {
        file.command(SET_OPTION, &body![address_of(value), id, level, name, value.len() as u32], 0)
    };
    set(0, 0, &mut [0x60]).unwrap();
    set(0, 1, &mut [1, 0, 0, 0]).unwrap();
    set(0, 2, &mut [0, 0, 0, 0]).unwrap();
    set(0, 3, &mut [21]).unwrap();
    assert_eq!(
        file.channel.calls(),
        ["set_option Tos(96)", "set_option ReuseAddr(true)", "set_option AfOnly(false)", "set_option AckTimeout(21)"]
    );
    assert_eq!(set(0, 0, &mut [1, 0, 0, 0]), Err(libc::EINVAL), "one byte is meant");
    assert_eq!(set(0, 1, &mut [1]), Err(libc::EINVAL), "an int is meant");
    assert_eq!(set(0, 4, &mut [1]), Err(libc::ENOSYS));
    assert_eq!(set(2, 0, &mut [1]), Err(libc::ENOSYS));
    let huge = body![0_u64, id, 0_u32, 0_u32, u32::MAX];
    assert_eq!(file.command(SET_OPTION, &huge, 0), Err(libc::EINVAL));

    let mut path = [0xee_u8; 80];
    file.command(QUERY, &body![address_of(&mut path), id, 1_u32], 80).unwrap();
    set(1, 1, &mut path[8..]).expect("a path that was queried can be set");
    assert_eq!(file.channel.calls(), [format!("set_option {:?}", scalefabric_verbs::CmOption::IbPath(fake::path()))]);
    assert_eq!(set(1, 1, &mut path[9..]), Err(libc::EINVAL));
    path[8] = 0;
    assert_eq!(set(1, 1, &mut path[8..]), Err(libc::EINVAL), "none is the primary path");
    assert_eq!(set(1, 1, &mut []), Err(libc::EINVAL));
}

#[test]
fn groups_are_joined_and_left_by_number() {
    let file = File::open(0);
    let id = file.id(1);
    let mut number = [0; 4];
    let join = [body![address_of(&mut number), 8_u64], sockaddr([239, 0, 0, 1], 0), body![id]].concat();
    file.command(JOIN_IP_MCAST, &join, 4).unwrap();
    assert_eq!(number, body![77_u32][..]);
    file.command(LEAVE_MCAST, &body![address_of(&mut number), 77_u32, 0_u32], 4).unwrap();
    assert_eq!(number, body![3_u32][..], "events that were reported");
    assert_eq!(file.channel.calls(), ["join Ip(239.0.0.1:0) FullMember 8", "leave 77"]);
    file.command(NOTIFY, &body![id, 4_u32], 0).unwrap();
    assert_eq!(file.channel.calls(), ["notify CommEst"]);
    assert_eq!(file.command(NOTIFY, &body![id, 400_u32], 0), Err(libc::EINVAL));
}

#[test]
fn an_identifier_moves_to_the_file_that_is_written_to() {
    let (old, new) = (File::open(0), File::open(0));
    let id = old.id(1);
    let mut reported = [0xff; 4];
    let migrate = |fd: i32, reported: &mut [u8]| body![address_of(reported), id, fd];
    assert_eq!(new.command(MIGRATE_ID, &migrate(1_000_000, &mut reported), 4), Err(libc::ENOENT));
    assert_eq!(new.command(MIGRATE_ID, &migrate(new.fd, &mut reported), 4), Err(libc::ENOENT), "it is not there yet");
    new.command(MIGRATE_ID, &migrate(old.fd, &mut reported), 4).unwrap();
    assert_eq!(reported, [0; 4]);
    assert_eq!(old.command(LISTEN, &body![id, 1_u32], 0), Err(libc::ENOENT));
    new.command(LISTEN, &body![id, 1_u32], 0).unwrap();
}

#[test]
fn a_forked_child_gets_errors_and_closes_nothing() {
    let file = File::open(0);
    let id = file.id(1);
    file.channel.raise(id, CmEventType::AddrResolved, &[]);
    let mut event = [0_u8; 336];
    let get_event = message(GET_EVENT, &body![address_of(&mut event)], 336);
    let device = hooks::find(file.fd).unwrap();
    // SAFETY: the child calls what a forked child may call, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let refused = device.write(&get_event) == Err(libc::EACCES);
            device.close();
            let closed = file.channel.calls.try_lock().is_ok_and(|calls| calls.contains(&"close".to_owned()));
            // SAFETY: no destructor of the parent's runs.
            unsafe { libc::_exit(if refused && !closed { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` lives through the call.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "refused, and not closed");
        }
    }
    device.write(&get_event).expect("the parent's event is still there");
    device.close();
    assert_eq!(file.channel.calls(), ["close"]);
}
