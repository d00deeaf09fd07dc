//! The software provider: finds devices, opens them, and joins engine, ports, worker and the shared device to one whole.
//!
//! A process has each device once: opening it again gives another context on the same engine. It lives as long as any object
//! of it; the last one to go ends the worker, closes the sockets and gives the slot back.

use std::any::Any;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use scalefabric_transport::Time;
use scalefabric_verbs::{
    AsyncEvent, CmChannel, CompletionChannel, CompletionQueue, Context, CqInit, DeviceAttr, DeviceInfo, DeviceMemory,
    Errno, Gid, GidEntry, OpKind, PKey, PortAttr, ProtectionDomain, Provider, QpType, Qpn, QueuePair, VerbsError,
    XrcDomain, XrcdInit, read_places,
};

use crate::clock;
use crate::cm;
use crate::config::{NicConfig, PortConfig};
use crate::counters::{COUNTERS, CountersHandle, DROPS};
use crate::discovery::{self, DevicePlan};
use crate::engine::direct::Setup;
use crate::engine::drive::{Core, Kick};
use crate::faults::FaultSetup;
use crate::netlink;
use crate::objects::NicContext;
use crate::options::{Options, RequestPath, SocketKind};
use crate::port::Port;
use crate::port::capture::{Capture, CapturePort, Tape};
use crate::port::faults::{FaultCounters, FaultPort, FaultSpec};
use crate::port::udp::{ReceiveOptions, Sockets, UdpOptions, UdpPort};
use crate::port::xdp::{XdpCounters, XdpPort};
use crate::process;
use crate::resources::{Resources, SameHostReport};
use crate::share::membership::Membership;
use crate::share::segment::{PKEYS, Segment, SlotCounters, SlotState};
use crate::survey::{self, DeviceSurvey};
use crate::worker::{Drive, Source, Worker};

/// How long each step of an end may take: a process that has to go goes.
const LAST: Duration = Duration::from_millis(20);
const LAST_NS: u64 = LAST.as_nanos() as u64;

/// What this process has open.
#[derive(Default)]
struct Opened {
    /// Devices, by name.
    devices: Mutex<HashMap<String, Weak<OpenDevice>>>,
    /// Capture files that it writes.
    captures: Mutex<HashMap<PathBuf, Weak<Capture>>>,
    /// The communication manager.
    cm: cm::Whole,
}

/// Made when it is first asked for, and never freed. A pointer, so that a forked child forgets it whatever locks were held.
static OPENED: AtomicPtr<Opened> = AtomicPtr::new(std::ptr::null_mut());

fn opened() -> &'static Opened {
    let known = OPENED.load(Ordering::Acquire);
    let known = if known.is_null() {
        let new = Box::into_raw(Box::<Opened>::default());
        match OPENED.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            // Another thread was faster; what this one made is a few bytes.
            Err(first) => first,
        }
    } else {
        known
    };
    // SAFETY: it was made by the lines above and is never freed.
    unsafe { &*known }
}

/// The process ends: what is due leaves, and its slots are free.
pub(crate) fn end_all() {
    let known = OPENED.load(Ordering::Acquire);
    if known.is_null() {
        return;
    }
    // SAFETY: it is never freed.
    let known = unsafe { &*known };
    known.cm.end();
    let until = Instant::now() + LAST;
    let devices = loop {
        match known.devices.try_lock() {
            Ok(devices) => break devices,
            Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
            // Another thread is just opening one. The kernel tells the others that we are gone.
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    };
    for device in devices.values().filter_map(Weak::upgrade) {
        device.end();
        // Not dropped here: the last handle may be this one.
        std::mem::forget(device);
    }
}

/// The communication manager of this process.
pub(crate) fn communication() -> &'static cm::Whole {
    &opened().cm
}

/// A forked child has nothing open.
pub(crate) fn forget_all() {
    OPENED.store(std::ptr::null_mut(), Ordering::Release);
}

/// The software NICs of this machine.
#[derive(Clone, Debug, Default)]
pub struct SoftwareProvider {
    options: Options,
}

impl SoftwareProvider {
    /// A provider with these options. Options of a device are those of its first opening in the process.
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// A provider with the options of the environment ([`Options::from_environment`]).
    pub fn from_environment() -> Result<Self, VerbsError> {
        Options::from_environment().map(Self::new)
    }

    /// Its options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// All devices with their ports.
    pub fn plans(&self) -> Result<Vec<DevicePlan>, VerbsError> {
        let interfaces = netlink::interfaces().map_err(|e| {
            VerbsError::environment(Errno::EIO, format!("network interfaces cannot be listed (rtnetlink): {e}"))
        })?;
        Ok(discovery::devices(&interfaces, &self.options))
    }

    /// Looks at a device from outside: its ports and counters, its processes and what each has. Opens nothing.
    pub fn survey(&self, name: &str) -> Result<DeviceSurvey, VerbsError> {
        let plan = discovery::find(self.plans()?, name)?;
        let own = opened().devices.lock().unwrap_or_else(PoisonError::into_inner).get(name).and_then(Weak::upgrade);
        if let Some(device) = own
            && !device.membership.is_shared()
            && let Some(core) = device.core.upgrade()
        {
            let membership = &device.membership;
            let resources = Resources { same_host: membership.same_host(), ..core.resources() };
            return Ok(survey::look_at_own(plan, membership.segment().clone(), membership.slot(), resources));
        }
        survey::look(plan)
    }

    /// Looks at the ports of a device and their counters, as [`SoftwareProvider::survey`], without its processes: nobody is asked, which makes it cheap enough to be
    /// done every second.
    pub fn survey_ports(&self, name: &str) -> Result<DeviceSurvey, VerbsError> {
        let plan = discovery::find(self.plans()?, name)?;
        let own = opened().devices.lock().unwrap_or_else(PoisonError::into_inner).get(name).and_then(Weak::upgrade);
        if let Some(device) = own
            && !device.membership.is_shared()
        {
            return Ok(survey::look_at_own_ports(plan, device.membership.segment().clone()));
        }
        survey::look_at_ports(plan)
    }

    /// Sets the P_Key table of all ports of a device, for all processes that have it open; the rest of the table is emptied. Nothing is opened: who sets it is not
    /// a member of the device. False: nobody has it open, and so it has no table yet; ask again when somebody has.
    pub fn set_pkeys(&self, name: &str, pkeys: &[PKey]) -> Result<bool, VerbsError> {
        let plan = discovery::find(self.plans()?, name)?;
        let own = opened().devices.lock().unwrap_or_else(PoisonError::into_inner).get(name).and_then(Weak::upgrade);
        if let Some(device) = own {
            let ports = 0..plan.ports.len();
            let padded = pkeys.iter().copied().chain(std::iter::repeat(PKey(0))).take(pkeys.len().max(PKEYS));
            let table: Vec<(u16, PKey)> = (0..).zip(padded).collect();
            let set = |port| table.iter().try_for_each(|(index, pkey)| device.membership.set_pkey(port, *index, *pkey));
            return ports.into_iter().try_for_each(set).map(|()| true);
        }
        survey::set_pkeys(&plan, pkeys)
    }

    /// What a device says of itself, its personality included. Nothing is opened.
    pub fn attr(&self, plan: &DevicePlan) -> DeviceAttr {
        let ports = plan.ports.iter().map(|port| PortConfig::new(port.interface.clone(), Vec::new())).collect();
        let mut config = NicConfig::new(plan.info.name.clone(), ports);
        config.attr.node_guid = plan.info.node_guid;
        config.attr.sys_image_guid = plan.info.node_guid;
        if let Some(personality) = self.options.personality {
            personality.apply(&mut config);
        }
        config.attr
    }

    /// Opens a device by name, as [`Provider::open`], keeping what only the software NIC can do.
    pub fn open_software(&self, name: &str) -> Result<Arc<SoftwareContext>, VerbsError> {
        process::check_not_ending()?;
        let mut open = opened().devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(name).and_then(Weak::upgrade)
            && let Some(core) = device.core.upgrade()
        {
            return SoftwareContext::new(device, &core);
        }
        let plan = discovery::find(self.plans()?, name)?;
        let (device, core) = OpenDevice::open(&plan, &self.options)?;
        open.insert(name.to_owned(), Arc::downgrade(&device));
        SoftwareContext::new(device, &core)
    }
}

impl Provider for SoftwareProvider {
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        Ok(self.plans()?.into_iter().map(|plan| plan.info).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>, VerbsError> {
        Ok(self.open_software(name)?)
    }

    fn event_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError> {
        cm::open_channel(self)
    }
}

/// A capture file; ports that name the same one write to the same one.
fn capture(path: &Path) -> Result<Arc<Capture>, VerbsError> {
    let mut captures = opened().captures.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(capture) = captures.get(path).and_then(Weak::upgrade) {
        return Ok(capture);
    }
    let capture = Capture::create(path, clock::epoch_offset_ns()).map_err(|e| {
        VerbsError::environment(Errno::EACCES, format!("capture file {} cannot be made: {e}", path.display()))
    })?;
    captures.insert(path.to_owned(), Arc::downgrade(&capture));
    Ok(capture)
}

/// What belongs to an open device beside its engine.
#[derive(Debug)]
struct OpenDevice {
    core: Weak<Core>,
    membership: Arc<Membership>,
    worker: OnceLock<Weak<Worker>>,
    /// What each port has of AF_XDP, or why it has none although it was wanted where it could be.
    xdp: Vec<OfXdp>,
    faults: Vec<Arc<FaultCounters>>,
    device_faults: Option<FaultSetup>,
    capture: Option<Arc<Capture>>,
}

/// Kept by the engine: lives exactly as long as it does. Fields go in this order.
struct Keeper {
    kick: Box<dyn Kick>,
    _worker: Arc<Worker>,
    _device: Arc<OpenDevice>,
}

impl Kick for Keeper {
    fn kick(&self, at: Time) {
        self.kick.kick(at);
    }
}

impl OpenDevice {
    fn open(plan: &DevicePlan, options: &Options) -> Result<(Arc<Self>, Arc<Core>), VerbsError> {
        let name = &plan.info.name;
        let receive = ReceiveOptions { buffer_bytes: options.receive_buffer, reuse_port: options.share };
        let membership = Membership::open(plan, receive, options.share)?;
        let capture = options.capture_path().map(|path| capture(&path)).transpose()?;
        let device_faults = options.faults.as_ref().map(|spec| FaultSetup::new(spec, capture.clone()));
        let mut faults = Vec::new();
        let mut ports: Vec<Box<dyn Port>> = Vec::new();
        let mut counters: Vec<CountersHandle> = Vec::new();
        let mut tapes = Vec::new();
        let mut xdp = Vec::new();
        for index in 0..plan.ports.len() {
            let udp = UdpOptions {
                index: index as u8,
                slot: membership.slot(),
                source_ports: options.source_ports,
                gso: options.gso,
                ..UdpOptions::default()
            };
            let port = UdpPort::new(membership.sockets(index).clone(), membership.neighbours(index), udp);
            let (port, of_port) =
                with_sockets(port, &plan.ports[index].interface, options.sockets(name), membership.slot())?;
            xdp.push(of_port);
            let tape = capture.as_ref().map(|capture| capture.tape(&format!("{name}/{}", index + 1)));
            tapes.extend(tape.clone());
            ports.push(match (&device_faults, tape) {
                (Some(FaultSetup { spec, watch, .. }), tape) => {
                    // Two ports must not have the same luck.
                    let spec = FaultSpec { seed: spec.seed.wrapping_add(index as u64), ..spec.clone() };
                    let port = FaultPort::new(port, &spec, tape).with_watch(watch);
                    faults.push(port.counters().clone());
                    Box::new(port)
                }
                (None, Some(tape)) => Box::new(CapturePort::new(port, tape)),
                (None, None) => port,
            });
            counters.push(Arc::new(SlotCounters::new(membership.segment().clone(), membership.slot(), index)));
        }
        let mut config = config(plan, options, &membership);
        config.congestion = options.congestion(&plan.info.name)?;
        config.polling = options.polling(&plan.info.name)?;
        let polling = config.polling;
        config.transport.telemetry = config.congestion.has_telemetry();
        let direct = direct(options, &membership, tapes);
        let core = match direct {
            Ok(setup) => Core::new_direct(config, ports, counters, setup)?,
            Err(why) => {
                membership.set_packets_because(why);
                Core::new(config, ports, counters)?
            }
        };
        if let Some(setup) = &device_faults {
            core.install_faults(setup);
        }
        let device = Arc::new(Self {
            core: Arc::downgrade(&core),
            membership,
            worker: OnceLock::new(),
            xdp,
            faults,
            device_faults,
            capture,
        });
        let sources = (0..plan.ports.len()).map(|i| device.membership.sockets(i).clone() as Arc<dyn Source>).collect();
        let drive: Weak<dyn Drive> = Arc::downgrade(&core) as Weak<dyn Drive>;
        let worker =
            Worker::start(name, drive, sources, Some(device.membership.clone()), options.worker.then_some(polling))
                .map_err(|e| {
                    VerbsError::environment(Errno::ENOMEM, format!("device {name}: no progress thread: {e}"))
                })?;
        let worker = Arc::new(worker);
        let _ = device.worker.set(Arc::downgrade(&worker));
        let kick: Box<dyn Kick> = Box::new(worker.kick());
        core.set_kick(Box::new(Keeper { kick, _worker: worker, _device: device.clone() }));
        let membership = &device.membership;
        let neighbours = (0..plan.ports.len()).map(|index| membership.neighbours(index)).collect();
        let router = cm::Router::new(membership.segment().clone(), membership.slot(), neighbours);
        core.open_gsi_to(Arc::new(cm::Post), Some(Box::new(router)));
        membership.set_orphan_sink(Box::new(cm::Post));
        membership.attach(Arc::downgrade(&core));
        Ok((device, core))
    }

    /// The process ends. The engine first: whatever it still sends is acknowledged or not by then; a successor in the slot must
    /// find that nobody else reads its sockets.
    fn end(&self) {
        if let Some(core) = self.core.upgrade() {
            core.end(LAST_NS);
            std::mem::forget(core);
        }
        if let Some(worker) = self.worker.get().and_then(Weak::upgrade) {
            worker.end(LAST);
            std::mem::forget(worker);
        }
        self.membership.leave(LAST);
        if let Some(capture) = &self.capture {
            let _ = capture.finish();
        }
    }

    fn port_sockets(&self, index: usize) -> &Arc<Sockets> {
        self.membership.sockets(index)
    }
}

/// What a port has of AF_XDP: its counters, or why there is none although it was wanted where possible.
type OfXdp = Option<Result<Arc<XdpCounters>, String>>;

/// Puts the sockets that are wanted beside a UDP port.
fn with_sockets(
    udp: UdpPort,
    interface: &str,
    wanted: SocketKind,
    slot: u8,
) -> Result<(Box<dyn Port>, OfXdp), VerbsError> {
    if wanted == SocketKind::Udp {
        return Ok((Box::new(udp), None));
    }
    match XdpPort::new(udp, interface, slot) {
        Ok(port) => {
            let counters = port.counters().clone();
            Ok((Box::new(port), Some(Ok(counters))))
        }
        Err((udp, error)) if wanted == SocketKind::XdpOrUdp => Ok((Box::new(*udp), Some(Err(error.message)))),
        Err((_, error)) => Err(error),
    }
}

/// What the same-host path needs, or why all requests are packets.
fn direct(options: &Options, membership: &Membership, tapes: Vec<Tape>) -> Result<Setup, String> {
    let neighbours = membership.neighbourhood().ok_or("this process could not make a file to share with others")?;
    if options.path == RequestPath::Wire {
        return Err("path is \"wire\"".into());
    }
    if options.faults.is_some() {
        return Err("faults happen to packets".into());
    }
    if let Some(personality) = options.personality {
        return Err(format!("the personality {:?} shapes what is on the wire", personality.name));
    }
    if !options.worker {
        return Err("without a worker nobody would notice that another process is gone".into());
    }
    Ok(Setup { file: neighbours.file().clone(), neighbours: Some(neighbours.clone()), tapes })
}

/// What the engine is told about the device.
fn config(plan: &DevicePlan, options: &Options, membership: &Membership) -> NicConfig {
    let ports = plan.ports.iter().enumerate().map(|(index, port)| {
        let tables = membership.tables(index);
        PortConfig {
            interface: port.interface.clone(),
            ifindex: tables.ifindex,
            gids: tables.gids.iter().map(|slot| if slot.present { slot.gid } else { Gid::ZERO }).collect(),
            gid_table_len: tables.gids.len() as u32,
            pkeys: tables.pkeys,
            active_mtu: tables.mtu,
            state: tables.state,
            speed_mbps: tables.speed_mbps,
        }
    });
    let mut config = NicConfig::new(plan.info.name.clone(), ports.collect());
    config.device = plan.info.clone();
    config.attr.node_guid = plan.info.node_guid;
    config.attr.sys_image_guid = plan.info.node_guid;
    config.attr.max_pkeys = PKEYS as u16;
    config.slot = membership.slot();
    config.solve_ip_ids = options.solve_ip_ids;
    // A new member's QP numbers begin elsewhere than those of the slot's last one.
    let generation = membership.segment().slot(membership.slot()).generation.load(Ordering::Relaxed);
    config.seed = u64::from(generation).wrapping_mul(251);
    // What is under way must fit the peer's receive buffer, which is taken to be like ours. The kernel counts up to twice
    // the bytes of a datagram, and several QPs share it.
    let buffer = (0..plan.ports.len()).filter_map(|i| membership.sockets(i).receive_buffer_bytes()).min();
    if let Some(buffer) = buffer {
        let most = config.transport.max_inflight_bytes;
        config.transport.max_inflight_bytes = most.min((buffer / 4).max(64 << 10) as u32);
        // Of many QPs together less: a datagram of 8 bytes takes ten times what it is counted for.
        config.window_bytes = ((buffer / 16) as u64).max(config.transport.max_inflight_bytes.into());
    }
    if let Some(personality) = options.personality {
        personality.apply(&mut config);
    }
    config
}

/// An open software NIC.
#[derive(Debug)]
pub struct SoftwareContext {
    inner: Arc<NicContext>,
    device: Arc<OpenDevice>,
}

impl SoftwareContext {
    fn new(device: Arc<OpenDevice>, core: &Arc<Core>) -> Result<Arc<Self>, VerbsError> {
        Ok(Arc::new(Self { inner: NicContext::new(core)?, device }))
    }

    /// The engine behind it.
    pub fn core(&self) -> &Arc<Core> {
        self.inner.core()
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        self.device.membership.segment()
    }

    /// This process's slot in the shared device.
    pub fn slot(&self) -> u8 {
        self.device.membership.slot()
    }

    /// True if this process serves the device's other processes.
    pub fn is_host(&self) -> bool {
        self.device.membership.is_host()
    }

    /// Processes that share the device now, this one included.
    pub fn members(&self) -> usize {
        let segment = self.device.membership.segment();
        (1..255).filter(|&slot| segment.slot(slot).state() == SlotState::Alive).count()
    }

    /// Bytes of receive buffer that the kernel gave to each socket of a port, from 1; `None` while it has no address.
    pub fn receive_buffer_bytes(&self, port_num: u8) -> Option<usize> {
        self.core().home().check("device").ok()?;
        let index = self.index(port_num).ok()?;
        self.device.port_sockets(index).receive_buffer_bytes()
    }

    /// Which way requests to QPs of the same host go, and why.
    pub fn same_host(&self) -> SameHostReport {
        self.device.membership.same_host()
    }

    /// What went wrong and did not end anything: addresses that could not be opened, full tables.
    pub fn problems(&self) -> Vec<String> {
        let without = self.device.xdp.iter().flatten().filter_map(|of_port| of_port.as_ref().err().cloned());
        self.device.membership.problems().into_iter().chain(without).collect()
    }

    /// By which sockets a port, from 1, sends and receives: `UDP`, or `AF_XDP` and how.
    pub fn sockets(&self, port_num: u8) -> Result<&'static str, VerbsError> {
        Ok(match &self.device.xdp[self.index(port_num)?] {
            Some(Ok(xdp)) if xdp.is_zero_copy() => "AF_XDP, zero copy",
            Some(Ok(_)) => "AF_XDP, copy mode",
            Some(Err(_)) | None => "UDP",
        })
    }

    /// Changes a P_Key of a port, from 1, for all processes of the device; they get PKEY_CHANGE.
    pub fn set_pkey(&self, port_num: u8, index: u16, pkey: PKey) -> Result<(), VerbsError> {
        self.device.membership.set_pkey(self.index(port_num)?, index, pkey)
    }

    /// Writes out what the capture holds back. The error that ended it early, if one did.
    pub fn flush_capture(&self) -> Result<(), VerbsError> {
        match &self.device.capture {
            Some(_) if !self.core().home().is_here() => Ok(()),
            Some(capture) => capture.finish().map_err(|e| VerbsError::environment(Errno::EIO, e.to_string())),
            None => Ok(()),
        }
    }

    fn index(&self, port_num: u8) -> Result<usize, VerbsError> {
        let count = self.core().config().ports.len();
        match usize::from(port_num).checked_sub(1) {
            Some(index) if index < count => Ok(index),
            _ => {
                Err(VerbsError::invalid(format!("port {port_num} does not exist: this device has ports 1 to {count}")))
            }
        }
    }
}

impl Context for SoftwareContext {
    fn device(&self) -> DeviceInfo {
        self.inner.device()
    }

    fn query_device(&self) -> Result<DeviceAttr, VerbsError> {
        self.inner.query_device()
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbsError> {
        self.inner.query_port(port_num)
    }

    fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid, VerbsError> {
        self.inner.query_gid(port_num, index)
    }

    fn query_gid_table(&self) -> Result<Vec<GidEntry>, VerbsError> {
        self.inner.query_gid_table()
    }

    fn query_pkey(&self, port_num: u8, index: u16) -> Result<PKey, VerbsError> {
        self.inner.query_pkey(port_num, index)
    }

    fn supports(&self, qp_type: QpType, kind: OpKind) -> bool {
        self.inner.supports(qp_type, kind)
    }

    fn rq_psn_is_executed_prefix(&self) -> bool {
        self.inner.rq_psn_is_executed_prefix()
    }

    fn takes_vector_in_sqd(&self) -> bool {
        self.inner.takes_vector_in_sqd()
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        self.inner.alloc_pd()
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.inner.create_comp_channel()
    }

    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Arc<dyn CompletionChannel>>,
        comp_vector: u32,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.inner.create_cq(cqe, channel, comp_vector)
    }

    fn create_cq_with(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.inner.create_cq_with(init)
    }

    fn query_rt_values(&self) -> Result<u64, VerbsError> {
        self.inner.query_rt_values()
    }

    fn wallclock_ns(&self, raw_ns: u64) -> Result<u64, VerbsError> {
        self.inner.wallclock_ns(raw_ns)
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<Arc<dyn DeviceMemory>, VerbsError> {
        self.inner.alloc_dm(length, log_align)
    }

    fn open_xrcd_with(&self, init: &XrcdInit) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.inner.open_xrcd_with(init)
    }

    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, qp_num: Qpn) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.inner.open_qp(xrcd, qp_num)
    }

    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.inner.open_xrcd()
    }

    fn create_xrc_target(&self, xrcd: &Arc<dyn XrcDomain>) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.inner.create_xrc_target(xrcd)
    }

    fn async_fd(&self) -> i32 {
        self.inner.async_fd()
    }

    fn get_async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, VerbsError> {
        self.inner.get_async_event(timeout)
    }

    /// Counters of the whole device (all its processes, those that are gone included), then this process's own: sockets,
    /// hand-overs, faults.
    fn hw_counters(&self, port_num: u8) -> Result<Vec<(String, u64)>, VerbsError> {
        self.core().home().check("device")?;
        let index = self.index(port_num)?;
        let mut all: Vec<(String, u64)> = self.device.membership.segment().all_counters(index);
        let sockets = self.device.port_sockets(index);
        let udp = &sockets.counters;
        let mut add = |name: &str, value: u64| all.push((name.to_owned(), value));
        // What mlx5 calls out_of_buffer is a missing receive WQE; here the kernel had no room for a datagram.
        let xdp = self.device.xdp.get(index).and_then(|of_port| of_port.as_ref()?.as_ref().ok());
        add("rx_socket_overflow", sockets.overflow_drops() + xdp.map_or(0, |xdp| xdp.lost()));
        add("rx_socket_errors", udp.receive_errors.load(Ordering::Relaxed));
        add("tx_gso_refused", udp.gso_refused.load(Ordering::Relaxed));
        add("tx_source_port_refused", udp.unnamed.load(Ordering::Relaxed));
        add("rx_handed_over", udp.handed_over.load(Ordering::Relaxed));
        add("rx_taken_over", udp.taken_over.load(Ordering::Relaxed));
        if let Some(xdp) = xdp {
            add("rx_xdp_packets", xdp.received.load(Ordering::Relaxed));
            add("tx_xdp_packets", xdp.sent.load(Ordering::Relaxed));
            add("tx_xdp_by_udp", xdp.sent_by_udp.load(Ordering::Relaxed));
        }
        if let Some(faults) = self.device.faults.get(index) {
            faults.all().into_iter().for_each(|(name, value)| add(name, value));
        }
        // Those of the device stand with its first port, so that they are counted once.
        if let (0, Some(setup)) = (index, &self.device.device_faults) {
            setup.counters.all().into_iter().for_each(|(name, value)| add(name, value));
        }
        Ok(all)
    }

    fn read_hw_counters(&self, port_num: u8, places: &[u32], out: &mut [u64]) -> Result<(), VerbsError> {
        self.core().home().check("device")?;
        let index = self.index(port_num)?;
        let segment = self.device.membership.segment();
        if places.len() == out.len() && places.iter().all(|place| (*place as usize) < COUNTERS + DROPS) {
            out.fill(0);
            segment.read_counters(index, places, out);
            return Ok(());
        }
        // This process's own, which are few and read seldom.
        let all = self.hw_counters(port_num)?;
        read_places(places, out, |place| all.get(place as usize).map(|(_, value)| *value))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests;
