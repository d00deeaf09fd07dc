//! The initiator of a demo: plans the steps, sends, measures, and checks what comes back. One step is many messages of
//! one operation and size; nothing that prepares or compares bytes is inside the measured time.

use crate::demo::atomics;
use crate::demo::endpoint::{Endpoint, SMALL_SLOT, Side, succeeded};
use crate::demo::event::{Event, Measured, Reporter};
use crate::demo::exchange::{Link, Message, PeerInfo, VERSION, Verdict, unexpected};
use crate::demo::pattern;
use crate::demo::step::{GRH_BYTES, Operation, Row, Step, Transport};
use crate::failure::{During, Failure};
use scalefabric_verbs::{QKey, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, UdAddress, WcFlags, WorkCompletion};
use std::time::{Duration, Instant};

/// Work requests posted with one call.
const CHAIN: u32 = 32;

/// A completion that takes longer than this will not come.
const COMPLETION_LIMIT: Duration = Duration::from_secs(60);

/// How long the target's answer on an unreliable transport may take before its message counts as lost.
const CREDIT_LIMIT: Duration = Duration::from_millis(20);

/// How long the target may take to prepare or compare.
const TARGET_LIMIT: Duration = Duration::from_secs(60);

/// The initiator with its connection to the target.
pub struct Initiator<'a> {
    side: &'a Side,
    link: Link,
    reporter: &'a Reporter,
    connected: Option<(Endpoint, PeerInfo)>,
    scratch: Vec<u8>,
}

/// What a step took.
#[derive(Default)]
struct Timing {
    samples: Vec<Duration>,
    elapsed: Duration,
}

impl<'a> Initiator<'a> {
    /// Greets the target.
    pub fn new(side: &'a Side, mut link: Link, reporter: &'a Reporter) -> Result<Self, Failure> {
        link.send(&Message::Hello { version: VERSION, region_bytes: side.region.length() as u64 })?;
        match link.receive(TARGET_LIMIT, "its greeting")? {
            Message::Hello { version: VERSION, .. } => {}
            Message::Hello { version, .. } => {
                return Err(Failure::failed(format!(
                    "the other process speaks version {version} of the exchange, this one {VERSION}: use one version of sfab"
                )));
            }
            other => return Err(unexpected("a greeting", &other)),
        }
        Ok(Self { side, link, reporter, connected: None, scratch: Vec::new() })
    }

    /// Runs all rows, then says goodbye. A failure is told to the target, too.
    pub fn run(mut self, rows: &[Row]) -> Result<(), Failure> {
        let outcome = rows.iter().try_for_each(|row| self.row(row));
        if let Err(failure) = &outcome {
            let _ = self.link.send(&Message::Trouble(failure.to_string()));
            return outcome;
        }
        self.link.send(&Message::Finish)
    }

    fn row(&mut self, row: &Row) -> Result<(), Failure> {
        self.reporter.tell(&Event::Begin { name: row.latency.to_string() });
        let mut measured = Measured::new(&row.latency);
        let (timing, verdict) = self.step(&row.latency)?;
        measured.latency(timing.samples, row.latency.count, &verdict);
        for step in &row.bandwidth {
            let (timing, verdict) = self.step(step)?;
            measured.bandwidth(timing.elapsed, step.count, &verdict);
        }
        self.reporter.tell(&Event::Result(measured));
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(Timing, Verdict), Failure> {
        self.prepare(step)?;
        self.link.send(&Message::Step(*step))?;
        let (endpoint, peer) = self.connect(step.transport)?;
        if !step.transport.is_reliable() {
            self.post_credit_receives(&endpoint, step)?;
        }
        match self.link.receive(TARGET_LIMIT, "its buffers")? {
            Message::Go => {}
            other => return Err(unexpected("go", &other)),
        }
        let timing = if step.transport.is_reliable() {
            self.reliable(&endpoint, &peer, step)
        } else {
            self.unreliable(&endpoint, &peer, step)
        };
        let timing = timing.map_err(|failure| failure.during(step))?;
        self.connected = Some((endpoint, peer));
        self.link.send(&Message::Sent)?;
        let mut verdict = match self.link.receive(TARGET_LIMIT, "its verdict")? {
            Message::Verdict(verdict) => verdict,
            other => return Err(unexpected("a verdict", &other)),
        };
        if let Some(mismatch) = &verdict.mismatch {
            return Err(Failure::failed(format!("{step}: the target found other bytes than were sent: {mismatch}")));
        }
        verdict.verified_bytes += self.compare(step)?;
        if step.transport.is_reliable() && verdict.arrived != u64::from(step.count) {
            let (arrived, count) = (verdict.arrived, step.count);
            return Err(Failure::failed(format!(
                "{step}: {arrived} of {count} messages arrived on a reliable transport"
            )));
        }
        Ok((timing, verdict))
    }

    /// Reliable queue pairs serve many steps. Unreliable ones are new for each, since a lost message leaves its receive.
    fn connect(&mut self, transport: Transport) -> Result<(Endpoint, PeerInfo), Failure> {
        if transport.is_reliable()
            && let Some((endpoint, peer)) = self.connected.take()
            && endpoint.local.transport == transport
        {
            return Ok((endpoint, peer));
        }
        self.connected = None;
        let mut endpoint = self.side.endpoint(transport)?;
        self.link.send(&Message::QueuePair(endpoint.local.clone()))?;
        let peer = match self.link.receive(TARGET_LIMIT, "its queue pair")? {
            Message::QueuePair(peer) => peer,
            other => return Err(unexpected("a queue pair", &other)),
        };
        self.side.connect(&mut endpoint, &peer)?;
        self.link.send(&Message::Ready)?;
        match self.link.receive(TARGET_LIMIT, "its queue pair to be ready")? {
            Message::Ready => Ok((endpoint, peer)),
            other => Err(unexpected("ready", &other)),
        }
    }

    /// Fills what will be sent, and clears where something will arrive.
    fn prepare(&mut self, step: &Step) -> Result<(), Failure> {
        self.scratch.resize((step.size as usize).max(8), 0);
        for index in 0..step.count {
            let bytes = &mut self.scratch[..step.size as usize];
            match step.operation {
                Operation::Read | Operation::CompareSwap | Operation::FetchAdd => bytes.fill(pattern::UNTOUCHED),
                _ => pattern::fill(step.seed, index.into(), bytes),
            }
            self.side.region.write(step.offset(index) as usize, bytes).during(|| "fill the region")?;
        }
        Ok(())
    }

    /// Compares what READs and atomics brought; returns the bytes compared.
    fn compare(&mut self, step: &Step) -> Result<u64, Failure> {
        let mut found = vec![0; step.size as usize];
        let atomics = atomics::expected(step).0;
        if step.operation != Operation::Read && !step.operation.is_atomic() {
            return Ok(0);
        }
        for index in 0..step.count {
            self.side.region.read(step.offset(index) as usize, &mut found).during(|| "read the region")?;
            if step.operation == Operation::Read {
                pattern::compare(step.seed, index.into(), &found, &mut self.scratch).map_err(|mismatch| {
                    Failure::failed(format!("{step}: read other bytes than are there: {mismatch}"))
                })?;
                continue;
            }
            let old = found.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            let expected = atomics[index as usize].old;
            if old != expected {
                return Err(Failure::failed(format!(
                    "{step}: operation {index} returned {old:#x}, but the word held {expected:#x}: not done exactly once"
                )));
            }
        }
        Ok(u64::from(step.count) * u64::from(step.size))
    }

    /// Many messages, all of which complete.
    fn reliable(&self, endpoint: &Endpoint, peer: &PeerInfo, step: &Step) -> Result<Timing, Failure> {
        let requests = Requests::new(self.side, endpoint, peer, step)?;
        let mut timing = Timing { samples: Vec::with_capacity(step.count as usize), elapsed: Duration::ZERO };
        let window = step.window.min(endpoint.send_depth);
        let chain = (window / 2).clamp(1, CHAIN);
        let (mut posted, mut done) = (0, 0);
        let begin = Instant::now();
        while done < step.count {
            let posting = Instant::now();
            while posted < step.count && posted + chain.min(step.count - posted) - done <= window {
                let length = chain.min(step.count - posted);
                requests.post(posted, length)?;
                posted += length;
            }
            done = requests.wait_beyond(done)?;
            if step.window == 1 {
                timing.samples.push(posting.elapsed());
            }
        }
        timing.elapsed = begin.elapsed();
        Ok(timing)
    }

    /// Windows of messages, after each of which the target answers. What does not come in time is lost, and that is legal.
    fn unreliable(&self, endpoint: &Endpoint, peer: &PeerInfo, step: &Step) -> Result<Timing, Failure> {
        let requests = Requests::new(self.side, endpoint, peer, step)?;
        let mut timing = Timing::default();
        let mut posted = 0;
        let begin = Instant::now();
        for window in 0..step.windows() {
            let sending = Instant::now();
            let end = (posted + step.window).min(step.count);
            let mut done = posted;
            while posted < end {
                let length = CHAIN.min(end - posted);
                requests.post(posted, length)?;
                posted += length;
            }
            if step.operation == Operation::Write {
                requests.post_marker(window)?;
            }
            while done < end {
                done = requests.wait_beyond(done)?;
            }
            if requests.wait_credit(window, sending + CREDIT_LIMIT)? && step.window == 1 {
                // There and back: one way is half of it.
                timing.samples.push(sending.elapsed() / 2);
            }
        }
        timing.elapsed = begin.elapsed();
        Ok(timing)
    }

    fn post_credit_receives(&self, endpoint: &Endpoint, step: &Step) -> Result<(), Failure> {
        let small = &self.side.small;
        for index in 0..u64::from(step.windows()) {
            let sge = Sge { addr: small.addr() + index * SMALL_SLOT, length: SMALL_SLOT as u32, lkey: small.lkey() };
            let receive = RecvWr { wr_id: index, sg_list: &[sge] };
            endpoint.queue_pair.post_recv(&[receive]).during(|| "post a receive for the target's answers")?;
        }
        Ok(())
    }
}

/// The work requests of one step.
struct Requests<'a> {
    side: &'a Side,
    endpoint: &'a Endpoint,
    peer: &'a PeerInfo,
    step: &'a Step,
    /// The bytes of all messages if they go inline, else empty.
    inline: Vec<u8>,
    atomics: Vec<atomics::Expected>,
}

/// A wr_id beyond those of messages: markers.
const MARKER: u64 = 1 << 32;

impl<'a> Requests<'a> {
    fn new(side: &'a Side, endpoint: &'a Endpoint, peer: &'a PeerInfo, step: &'a Step) -> Result<Self, Failure> {
        let goes_inline = step.size <= endpoint.inline_bytes
            && matches!(step.operation, Operation::Send | Operation::Write | Operation::WriteWithImm);
        let mut inline = vec![0; if goes_inline { step.size as usize * step.count as usize } else { 0 }];
        for (index, bytes) in inline.chunks_mut((step.size as usize).max(1)).enumerate() {
            pattern::fill(step.seed, index as u64, bytes);
        }
        let atomics = if step.operation.is_atomic() { atomics::expected(step).0 } else { Vec::new() };
        let end = step.offset(step.count - 1) + u64::from(step.size) + u64::from(GRH_BYTES);
        if end > peer.length {
            let length = peer.length;
            return Err(Failure::failed(format!(
                "the target's region of {length} bytes is too small: {end} are needed"
            )));
        }
        Ok(Self { side, endpoint, peer, step, inline, atomics })
    }

    /// Posts messages `first` to `first + length - 1` as one chain, the last of them signaled.
    fn post(&self, first: u32, length: u32) -> Result<(), Failure> {
        let region = &self.side.region;
        let sge_of = |index: u32| Sge {
            addr: region.addr() + self.step.offset(index),
            length: self.step.size,
            lkey: region.lkey(),
        };
        if length == 1 {
            let sge = [sge_of(first)];
            return self.post_chain(&[self.request(first, &sge, true)]);
        }
        let sges: Vec<[Sge; 1]> = (first..first + length).map(|index| [sge_of(index)]).collect();
        let chain: Vec<SendWr<'_>> = (first..first + length)
            .zip(&sges)
            .map(|(index, sge)| self.request(index, sge, index == first + length - 1))
            .collect();
        self.post_chain(&chain)
    }

    fn post_chain(&self, chain: &[SendWr<'_>]) -> Result<(), Failure> {
        self.endpoint.queue_pair.post_send(chain).during(|| format!("post {} sends", chain.len()))
    }

    fn request<'b>(&'b self, index: u32, sge: &'b [Sge], is_signaled: bool) -> SendWr<'b> {
        let rkey = Side::rkey_of(self.peer);
        let slot = self.peer.addr + self.step.offset(index);
        let op = match self.step.operation {
            Operation::Send => SendOp::Send,
            Operation::Write => SendOp::Write { remote_addr: slot, rkey },
            Operation::WriteWithImm => SendOp::WriteWithImm { remote_addr: slot, rkey, imm: index },
            Operation::Read => SendOp::Read { remote_addr: slot, rkey },
            Operation::CompareSwap => {
                let expected = self.atomics[index as usize];
                let (compare, swap) = (expected.compare, expected.operand);
                SendOp::CompareSwap { remote_addr: self.peer.addr, rkey, compare, swap }
            }
            Operation::FetchAdd => {
                SendOp::FetchAdd { remote_addr: self.peer.addr, rkey, add: self.atomics[index as usize].operand }
            }
        };
        let mut request = SendWr::new(index.into(), op);
        if is_signaled {
            request.flags |= SendFlags::SIGNALED;
        }
        if self.inline.is_empty() {
            request.sg_list = sge;
        } else {
            let size = self.step.size as usize;
            request.flags |= SendFlags::INLINE;
            request.inline_data = &self.inline[index as usize * size..][..size];
        }
        request.ud = self.datagram();
        request
    }

    fn datagram(&self) -> Option<UdAddress<'_>> {
        let ah = self.endpoint.datagram_path.as_deref()?;
        Some(UdAddress { ah, remote_qpn: Qpn::new(self.peer.qpn), remote_qkey: QKey(self.peer.qkey) })
    }

    /// An 8-byte SEND after a window of plain WRITEs, of which the target would not know otherwise.
    fn post_marker(&self, window: u32) -> Result<(), Failure> {
        let mut marker = SendWr::new(MARKER, SendOp::SendWithImm { imm: window });
        marker.flags = SendFlags::SIGNALED;
        self.post_chain(&[marker])
    }

    /// Waits until more messages are done than `done`; gives how many.
    fn wait_beyond(&self, done: u32) -> Result<u32, Failure> {
        let mut completions = [WorkCompletion::default(); 16];
        let mut beyond = done;
        let deadline = Instant::now() + COMPLETION_LIMIT;
        let mut polls = 0u32;
        loop {
            let count = self.endpoint.send_cq.poll(&mut completions).during(|| "poll the send CQ")?;
            for completion in &completions[..count] {
                succeeded(completion, format_args!("message {}", completion.wr_id))?;
                if completion.wr_id < MARKER {
                    beyond = completion.wr_id as u32 + 1;
                }
            }
            if beyond > done {
                return Ok(beyond);
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(1024) {
                std::thread::yield_now();
                if Instant::now() > deadline {
                    let limit = COMPLETION_LIMIT.as_secs();
                    return Err(Failure::failed(format!("no completion within {limit} s after message {done}")));
                }
            }
        }
    }

    /// Waits for the target's answer to a window; false if it does not come in time.
    fn wait_credit(&self, window: u32, deadline: Instant) -> Result<bool, Failure> {
        let mut completions = [WorkCompletion::default(); 4];
        let mut polls = 0u32;
        loop {
            let count = self.endpoint.recv_cq.poll(&mut completions).during(|| "poll the receive CQ")?;
            for completion in &completions[..count] {
                succeeded(completion, "answer of the target")?;
                if completion.flags.contains(WcFlags::WITH_IMM) && completion.imm == window {
                    return Ok(true);
                }
            }
            if count == 0 {
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(256) {
                    // With fewer processors than processes the target may be waiting for this one.
                    std::thread::yield_now();
                }
                if Instant::now() > deadline {
                    return Ok(false);
                }
            }
        }
    }
}
