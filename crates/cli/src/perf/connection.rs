//! One end of a measurement: memory, completion queues and queue pairs, and the ways to post and to wait that all tests share. Written
//! against the verbs contract alone.
//!
//! Memory is areas of two halves: what is sent lies in the first, what arrives in the second. A message ends where its half ends, so that
//! its last byte is the last of an aligned word and can be polled whatever the size.

use crate::demo::endpoint::{random_psn, succeeded};
use crate::demo::step::{GRH_BYTES, Transport};
use crate::failure::{During, Failure};
use crate::perf::device::Device;
use crate::perf::exchange::{Memory, Plan, SideInfo, Verb, qp_type};
use crate::perf::heap::HeapRegion;
use crate::perf::processor::Share;
use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, CompletionChannel, CompletionQueue, Gid, MemoryRegion, Mtu,
    ProtectionDomain, Psn, QKey, QpAttr, QpAttrMask, QpCap, QpInit, Qpn, QueuePair, RKey, RecvWr, SendFlags, SendOp,
    SendWr, Sge, UdAddress, Word, WorkCompletion,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Q_Key of datagram queue pairs.
const QKEY: QKey = QKey(0x1e_4792);

/// Memory that areas take together, unless one alone needs more.
const AREAS_BYTES: u64 = 256 << 20;

/// Local ACK timeout, 4.096 µs x 2^16 = 268 ms: longer than a busy machine lets a process wait.
const ACK_TIMEOUT: u8 = 16;

/// The same for many queue pairs, of which each waits for its turn: 2.1 s.
const ACK_TIMEOUT_OF_MANY: u8 = 19;

/// So many are many.
const MANY: u32 = 512;

/// Looks at memory before the NIC is driven again, one right after the other, as programs look that wait for a byte: about as long together as a turn of the NIC.
const LOOKS: u32 = 128;

/// Completions taken at once.
pub const BATCH: usize = 64;

/// How long a sleep on the completion channel lasts at most: whoever sleeps must also look after the exchange.
const NAP: Duration = Duration::from_millis(50);

/// A queue pair with what is needed to post to it.
pub struct Lane {
    /// The queue pair.
    pub queue_pair: Arc<dyn QueuePair>,
    /// First PSN.
    pub psn: Psn,
    /// Its area, from 0.
    pub area: u32,
    /// The word in which what arrives ends, where it can be looked at as a program looks at its own memory.
    pub landing: Option<Arc<dyn Word>>,
    /// Its peer, once connected.
    pub far: Option<FarLane>,
}

/// The other end of a lane.
pub struct FarLane {
    /// Its queue pair.
    pub qpn: Qpn,
    /// Address of its area.
    pub area: u64,
    /// Where datagrams go.
    pub handle: Option<Arc<dyn AddressHandle>>,
}

/// One end.
pub struct Connection {
    /// The device.
    pub device: Device,
    /// What was agreed on.
    pub plan: Plan,
    /// All areas.
    pub region: Arc<dyn MemoryRegion>,
    /// Half of an area, bytes.
    pub stride: u64,
    /// Areas.
    pub areas: u32,
    /// Queue pairs.
    pub lanes: Vec<Lane>,
    /// Completions of sends.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Completions of receives.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Inline bytes that the queue pairs have.
    pub inline_bytes: u32,
    channel: Option<Arc<dyn CompletionChannel>>,
    domain: Arc<dyn ProtectionDomain>,
    far_rkey: RKey,
    far_stride: u64,
    /// Goes last: queue pairs and completions before the memory that they use.
    _heap: Option<HeapRegion>,
}

/// Half of an area, and how many areas there are.
pub fn layout(plan: &Plan) -> (u64, u32) {
    let grh = if plan.transport == Transport::Ud { GRH_BYTES } else { 0 };
    // Small ones lie close, so that many queue pairs do not need a page each, and far enough not to share a pair of cache lines.
    let step = if plan.largest < 4096 { 128 } else { 4096 };
    let stride = (u64::from(plan.largest) + u64::from(grh)).next_multiple_of(step);
    let areas = (AREAS_BYTES / (2 * stride)).clamp(1, plan.qps.into()) as u32;
    (stride, areas)
}

impl Connection {
    /// Makes memory and queue pairs, those in RESET.
    pub fn new(device: &Device, plan: &Plan) -> Result<Self, Failure> {
        let limits = device.context.query_device().during(|| "query the device")?;
        let name = &device.name;
        let within = |option: &str, asked: u64, most: u64, what: &str| {
            if asked <= most {
                Ok(())
            } else {
                Err(Failure::usage(format!("{option} {asked}: device {name} has at most {most} {what}")))
            }
        };
        within("-t", plan.tx_depth.into(), limits.max_qp_wr.into(), "requests in a queue")?;
        within("-r", plan.rx_depth.into(), limits.max_qp_wr.into(), "requests in a queue")?;
        within("-I", plan.inline_bytes.into(), limits.max_inline_data.into(), "inline bytes")?;
        within("-q", plan.qps.into(), limits.max_qp.into(), "queue pairs")?;
        if let Some(bytes) = plan.path_mtu {
            within("-m", bytes.into(), device.path_mtu.bytes().into(), "bytes of path MTU on this port")?;
        }
        let (stride, areas) = layout(plan);
        let domain = device.context.alloc_pd().during(|| "make a protection domain")?;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let bytes = 2 * stride * u64::from(areas);
        let length = usize::try_from(bytes).during(|| "size of the memory")?;
        let (region, heap) = match plan.memory {
            Memory::Device => (domain.alloc_mr(length, access).during(|| format!("register {bytes} bytes"))?, None),
            Memory::Heap => {
                let heap = HeapRegion::new(domain.as_ref(), length, access)?;
                (heap.region(), Some(heap))
            }
        };
        touch(region.as_ref())?;
        let channel = if plan.events {
            Some(device.context.create_comp_channel().during(|| "make a completion channel")?)
        } else {
            None
        };
        // A send completes once in so many, and one more when a measurement ends; a receive completes each time.
        let signals = u64::from(plan.qps) * u64::from(plan.tx_depth / plan.signal_every + 2) + BATCH as u64;
        let make = |entries: u64, what: &str| {
            let entries = u32::try_from(entries).unwrap_or(u32::MAX);
            within("-q, -t and -r need completion queues of", entries.into(), limits.max_cqe.into(), what)?;
            device.context.create_cq(entries, channel.clone(), 0).during(|| format!("make a CQ of {entries} entries"))
        };
        let send_cq = make(signals, "entries for sends")?;
        let receives = if plan.verb == Verb::Send { u64::from(plan.qps) * u64::from(plan.rx_depth) } else { 1 };
        let recv_cq = make(receives, "entries for receives")?;
        let mut made = Self {
            device: device.clone(),
            plan: plan.clone(),
            region,
            stride,
            areas,
            lanes: Vec::with_capacity(plan.qps as usize),
            send_cq,
            recv_cq,
            inline_bytes: 0,
            channel,
            domain,
            far_rkey: RKey(0),
            far_stride: 0,
            _heap: heap,
        };
        for index in 0..plan.qps {
            let lane = made.lane(index)?;
            made.lanes.push(lane);
        }
        Ok(made)
    }

    fn lane(&mut self, index: u32) -> Result<Lane, Failure> {
        let plan = &self.plan;
        let cap = QpCap {
            max_send_wr: plan.tx_depth + 1,
            max_recv_wr: if plan.verb == Verb::Send { plan.rx_depth } else { 1 },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: plan.inline_bytes,
        };
        let limits = self.device.context.query_device().during(|| "query the device")?;
        let init = QpInit {
            qp_type: qp_type(plan.transport),
            send_cq: Arc::clone(&self.send_cq),
            recv_cq: Arc::clone(&self.recv_cq),
            srq: None,
            cap: QpCap { max_send_wr: cap.max_send_wr.min(limits.max_qp_wr), ..cap },
            sq_sig_all: false,
        };
        let queue_pair =
            self.domain.create_qp(&init).during(|| format!("make queue pair {} of {}", index + 1, plan.qps))?;
        let (_, made) = queue_pair.query().during(|| "query a queue pair")?;
        self.inline_bytes = made.cap.max_inline_data;
        let psn = random_psn(queue_pair.qp_num());
        let mut lane = Lane { queue_pair, psn, area: index % self.areas, landing: None, far: None };
        lane.landing = self.region.word(self.landing_word(&lane)).during(|| "look at the last word")?;
        Ok(lane)
    }

    /// What the other end must know.
    pub fn info(&self, cm_port: Option<u16>) -> SideInfo {
        SideInfo {
            device: self.device.name.clone(),
            port_num: self.device.port_num,
            gid: self.device.gid.to_ip().to_string(),
            gid_index: self.device.gid_index,
            path_mtu: self.device.path_mtu.bytes(),
            inline_bytes: self.inline_bytes,
            rkey: self.region.rkey().0,
            addr: self.region.addr(),
            stride: self.stride,
            areas: self.areas,
            qps: self.lanes.iter().map(|lane| (lane.queue_pair.qp_num().get(), lane.psn.get())).collect(),
            cm_port,
        }
    }

    /// What the peer may do through a queue pair.
    pub fn rights(&self) -> AccessFlags {
        match self.plan.transport {
            Transport::Rc => AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
            Transport::Uc => AccessFlags::REMOTE_WRITE,
            Transport::Ud => AccessFlags::empty(),
        }
    }

    /// The path MTU of this connection.
    pub fn path_mtu(&self, far: &SideInfo) -> Result<Mtu, Failure> {
        let most = self.device.path_mtu.bytes().min(far.path_mtu);
        let bytes = self.plan.path_mtu.unwrap_or(most);
        if bytes > most {
            return Err(Failure::usage(format!("-m {bytes}: the ports have a path MTU of {most} at most")));
        }
        Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes).ok_or_else(|| {
            Failure::failed(format!("the other end tells of a path MTU of {} bytes, which is none", far.path_mtu))
        })
    }

    /// Notes where the other end's queue pairs and memory are.
    pub fn meet(&mut self, far: &SideInfo) -> Result<(), Failure> {
        let (stride, areas) = layout(&self.plan);
        if far.qps.len() != self.lanes.len() || far.stride != stride || far.areas != areas {
            return Err(Failure::failed("the other end made other queue pairs or memory than were agreed on"));
        }
        self.far_rkey = RKey(far.rkey);
        self.far_stride = far.stride;
        for (index, (lane, (qpn, _))) in self.lanes.iter_mut().zip(&far.qps).enumerate() {
            let area = far.addr.wrapping_add(2 * stride * (index as u64 % u64::from(areas)));
            lane.far = Some(FarLane { qpn: Qpn::new(*qpn), area, handle: None });
        }
        Ok(())
    }

    /// Takes all queue pairs to RTS with what the other end said.
    pub fn connect(&mut self, far: &SideInfo) -> Result<(), Failure> {
        self.meet(far)?;
        let address: IpAddr = far.gid.parse().during(|| format!("the other end's GID `{}`", far.gid))?;
        let path = AddressVector::new(self.device.port_num, self.device.gid_index, Gid::from_ip(address));
        let (mtu, rights) = (self.path_mtu(far)?, self.rights());
        let limits = self.device.context.query_device().during(|| "query the device")?;
        let handle = match self.plan.transport {
            Transport::Ud => {
                Some(self.domain.create_ah(&path).during(|| format!("make an address handle to {address}"))?)
            }
            _ => None,
        };
        for (lane, (qpn, psn)) in self.lanes.iter_mut().zip(&far.qps) {
            let kind = lane.queue_pair.qp_type();
            let (init, rtr) = match self.plan.transport {
                Transport::Ud => (QpAttr::init_ud(self.device.port_num, QKEY), QpAttr::rtr_ud()),
                _ => (
                    QpAttr::init(kind, self.device.port_num, rights),
                    QpAttr::rtr(kind, Qpn::new(*qpn), Psn::new(*psn), mtu, path),
                ),
            };
            let mut steps = [init, rtr, QpAttr::rts(kind, lane.psn)];
            for (attr, mask) in &mut steps {
                attr.timeout = if self.plan.qps < MANY { ACK_TIMEOUT } else { ACK_TIMEOUT_OF_MANY };
                attr.max_rd_atomic = limits.max_qp_init_rd_atom.min(16) as u8;
                attr.max_dest_rd_atomic = limits.max_qp_rd_atom.min(16) as u8;
                let state = attr.qp_state;
                lane.queue_pair.modify(attr, *mask).during(|| format!("a queue pair to {state:?}"))?;
            }
            if let Some(far) = &mut lane.far {
                far.handle = handle.clone();
            }
        }
        Ok(())
    }

    /// Address of the message of `size` bytes that a lane sends, or that its READ brings.
    pub fn outgoing(&self, lane: &Lane, size: u32) -> u64 {
        self.region.addr() + 2 * self.stride * u64::from(lane.area) + self.stride - u64::from(size)
    }

    /// Offset of the word in which a message for this lane ends.
    pub fn landing_word(&self, lane: &Lane) -> usize {
        (2 * self.stride * u64::from(lane.area) + 2 * self.stride - 8) as usize
    }

    /// Offset of the word in which a message of this lane ends.
    pub fn outgoing_word(&self, lane: &Lane) -> usize {
        (2 * self.stride * u64::from(lane.area) + self.stride - 8) as usize
    }

    /// The operation of a lane for messages of `size` bytes.
    pub fn operation(&self, lane: &Lane, size: u32) -> SendOp<'static> {
        let far = lane.far.as_ref().map_or(0, |far| far.area);
        let remote_addr = far.wrapping_add(2 * self.far_stride - u64::from(size));
        let rkey = self.far_rkey;
        match self.plan.verb {
            Verb::Write => SendOp::Write { remote_addr, rkey },
            Verb::Read => SendOp::Read { remote_addr, rkey },
            Verb::Send => SendOp::Send,
            Verb::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            Verb::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 0 },
        }
    }

    /// Where datagrams of a lane go; `None` for connected ones.
    pub fn datagram_address<'a>(&self, lane: &'a Lane) -> Option<UdAddress<'a>> {
        let far = lane.far.as_ref()?;
        Some(UdAddress { ah: far.handle.as_deref()?, remote_qpn: far.qpn, remote_qkey: QKEY })
    }

    /// The SGE of a lane's messages.
    pub fn sge(&self, lane: &Lane, size: u32) -> Sge {
        Sge { addr: self.outgoing(lane, size), length: size, lkey: self.region.lkey() }
    }

    /// Posts one signalled message of `size` bytes on a lane, whose last byte is `last`. `scratch` holds it if it goes inline.
    pub fn post_marked(&self, lane: &Lane, size: u32, last: u8, scratch: &mut Vec<u8>) -> Result<(), Failure> {
        let sge;
        let mut request = SendWr::new(u64::from(last), self.operation(lane, size));
        request.flags = SendFlags::SIGNALED;
        request.ud = self.datagram_address(lane);
        if self.goes_inline(size) {
            scratch.resize(size as usize, 0x5a);
            if let Some(byte) = scratch.last_mut() {
                *byte = last;
            }
            request.flags |= SendFlags::INLINE;
            request.inline_data = scratch;
        } else {
            let word = u64::from_ne_bytes([0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, last]);
            self.region.store_u64(self.outgoing_word(lane), word).during(|| "mark the message")?;
            sge = [self.sge(lane, size)];
            request.sg_list = &sge;
        }
        lane.queue_pair.post_send(std::slice::from_ref(&request)).during(|| "post a message")
    }

    /// Whether messages of this size carry their bytes in the request.
    pub fn goes_inline(&self, size: u32) -> bool {
        !self.plan.verb.is_round_trip() && size <= self.plan.inline_bytes
    }

    /// The last byte of what arrived for a lane.
    #[inline]
    pub fn last_byte(&self, lane: &Lane) -> Result<u8, Failure> {
        let word = match &lane.landing {
            Some(word) => word.load(),
            None => self.region.load_u64(self.landing_word(lane)).during(|| "load the last word")?,
        };
        Ok(word.to_ne_bytes()[7])
    }

    /// The same, looked at until it `is` what is waited for, or a few times: a look costs a fraction of what driving the NIC does. Once only while
    /// completions are owed (`untaken`): what brings them may bring the message, too.
    pub fn last_byte_soon(&self, lane: &Lane, untaken: usize, is: impl Fn(u8) -> bool) -> Result<u8, Failure> {
        let mut byte = self.last_byte(lane)?;
        let looks = match (&lane.landing, untaken) {
            (Some(_), 0) => LOOKS,
            (None, 0) => LOOKS / 8,
            _ => 1,
        };
        for _ in 1..looks {
            if is(byte) {
                break;
            }
            byte = self.last_byte(lane)?;
        }
        Ok(byte)
    }

    /// Copies out the message of `size` bytes that arrived for a lane, if that is asked for.
    pub fn read_data(&self, lane: &Lane, size: u32, out: &mut Vec<u8>) -> Result<(), Failure> {
        if !self.plan.reads_data {
            return Ok(());
        }
        out.resize(size as usize, 0);
        let offset = self.landing_word(lane) + 8 - size as usize;
        self.region.read(offset, out).during(|| "read what arrived")
    }

    /// Forgets what arrived for a lane.
    pub fn clear_landing(&self, lane: &Lane) -> Result<(), Failure> {
        self.region.store_u64(self.landing_word(lane), 0).during(|| "clear the last word")
    }

    /// Fills the receive queues.
    pub fn post_receives(&self) -> Result<(), Failure> {
        for index in 0..self.lanes.len() {
            let mut left = self.plan.rx_depth as usize;
            while left > 0 {
                let some = left.min(BATCH);
                self.post_receives_of(index, some)?;
                left -= some;
            }
        }
        Ok(())
    }

    /// Posts up to [`BATCH`] receives on a lane. They share their bytes: nobody looks at them.
    pub fn post_receives_of(&self, index: usize, count: usize) -> Result<(), Failure> {
        let Some(lane) = self.lanes.get(index) else { return Ok(()) };
        let addr = self.region.addr() + 2 * self.stride * u64::from(lane.area) + self.stride;
        let length = u32::try_from(self.stride).unwrap_or(u32::MAX);
        let list = [Sge { addr, length, lkey: self.region.lkey() }];
        let chain = [RecvWr { wr_id: index as u64, sg_list: &list }; BATCH];
        lane.queue_pair.post_recv(&chain[..count.min(BATCH)]).during(|| "post receives")
    }

    /// Takes completions of sends, which must have succeeded.
    pub fn take_sends(&self, done: &mut [WorkCompletion; BATCH]) -> Result<usize, Failure> {
        let count = self.send_cq.poll(done).during(|| "poll the CQ of sends")?;
        for completion in &done[..count] {
            succeeded(completion, self.plan.verb.name())?;
        }
        Ok(count)
    }

    /// Takes completions of receives and posts as many receives again; gives how many.
    pub fn take_receives(&self, done: &mut [WorkCompletion; BATCH]) -> Result<usize, Failure> {
        let count = self.recv_cq.poll(done).during(|| "poll the CQ of receives")?;
        let mut from = 0;
        for (at, completion) in done[..count].iter().enumerate() {
            succeeded(completion, "receive")?;
            let is_last_of_lane = at + 1 == count || done[at + 1].wr_id != completion.wr_id;
            if is_last_of_lane {
                self.post_receives_of(completion.wr_id as usize, at + 1 - from)?;
                from = at + 1;
            }
        }
        Ok(count)
    }

    /// Whether it is time to read the clock and look around, after so many empty looks: rarely while polling, where each costs latency.
    pub fn is_to_look(&self, idle: u32) -> bool {
        self.channel.is_some() || idle % 64 == 63
    }

    /// With `-e`: sleeps until a completion comes, at most a short while. Without: spins, and after a while lets others run.
    pub fn pause(&self, idle: &mut u32) -> Result<(), Failure> {
        let Some(channel) = &self.channel else {
            crate::bench::datagram::pause(idle);
            return Ok(());
        };
        self.sleep_on(channel, idle)
    }

    /// As [`Connection::pause`], for the target of one-sided requests, which never sees that there is work: it spins without end while it has a
    /// processor for itself, and lets others run after each look where it shares it.
    pub fn pause_as_target(&self, idle: &mut u32, share: &Share) -> Result<(), Failure> {
        if let Some(channel) = &self.channel {
            return self.sleep_on(channel, idle);
        }
        *idle = idle.wrapping_add(1);
        if share.is_shared() {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn sleep_on(&self, channel: &Arc<dyn CompletionChannel>, idle: &mut u32) -> Result<(), Failure> {
        *idle = idle.saturating_add(1);
        if *idle % 2 == 1 {
            // Armed; what came before is found by the caller's next look, and only then it sleeps.
            self.send_cq.req_notify(false).during(|| "arm the CQ of sends")?;
            return self.recv_cq.req_notify(false).during(|| "arm the CQ of receives");
        }
        channel.wait(Some(NAP)).map(drop).during(|| "sleep on the completion channel")
    }
}

/// The mask of a transition as rdma_cm gives it, with our rights in it.
pub fn with_rights(attr: &mut QpAttr, mask: QpAttrMask, rights: AccessFlags) {
    if mask.contains(QpAttrMask::ACCESS_FLAGS) {
        attr.qp_access_flags = rights;
    }
}

/// Makes all pages be there, so that no measurement waits for them.
fn touch(region: &dyn MemoryRegion) -> Result<(), Failure> {
    let bytes = [0x5a; 65_536];
    let mut offset = 0;
    while offset < region.length() {
        let length = bytes.len().min(region.length() - offset);
        region.write(offset, &bytes[..length]).during(|| "touch the memory")?;
        offset += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(transport: Transport, largest: u32, qps: u32) -> Plan {
        Plan {
            verb: Verb::Send,
            transport,
            largest,
            qps,
            tx_depth: 128,
            rx_depth: 512,
            post_list: 1,
            signal_every: 1,
            inline_bytes: 0,
            both_directions: false,
            events: false,
            path_mtu: None,
            rdma_cm: false,
            reads_data: false,
            waits_for_completion: false,
            memory: Memory::Device,
        }
    }

    #[test]
    fn areas_hold_the_largest_message_and_share_memory_when_there_are_many() {
        assert_eq!(layout(&plan(Transport::Rc, 8, 1)), (128, 1));
        assert_eq!(layout(&plan(Transport::Rc, 4096, 4)), (4096, 4));
        assert_eq!(layout(&plan(Transport::Ud, 4096, 1)), (8192, 1), "room for the GRH");
        let (stride, areas) = layout(&plan(Transport::Rc, 8 << 20, 100));
        assert_eq!((stride, areas), (8 << 20, 16));
        assert_eq!(layout(&plan(Transport::Rc, 1 << 30, 9)), (1 << 30, 1));
    }
}
