//! The target of a demo: prepares memory and receives as each step needs them, drives its queue pairs until the initiator
//! has sent everything, and then compares every byte that arrived.

use crate::demo::atomics;
use crate::demo::endpoint::{Endpoint, SMALL_SLOT, Side, succeeded};
use crate::demo::exchange::{Link, Message, PeerInfo, Verdict, unexpected};
use crate::demo::pattern::{self, Mismatch};
use crate::demo::step::{GRH_BYTES, Operation, Step, Transport};
use crate::failure::{During, Failure};
use scalefabric_verbs::{QKey, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, UdAddress, WcFlags, WorkCompletion};
use std::time::{Duration, Instant};

/// How long the initiator may think.
const INITIATOR_LIMIT: Duration = Duration::from_secs(120);

/// On an unreliable transport, nothing more comes when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(10);

/// wr_id of receives for markers.
const MARKER: u64 = 1 << 32;

/// wr_id of answers.
const CREDIT: u64 = 2 << 32;

/// The target with its connection to the initiator.
pub struct Target<'a> {
    side: &'a Side,
    link: Link,
    connected: Option<(Endpoint, PeerInfo)>,
}

/// What arrived during a step, in order: slot, immediate, bytes.
struct Arrival {
    slot: u32,
    imm: Option<u32>,
    bytes: u32,
}

impl<'a> Target<'a> {
    /// A target that has exchanged greetings.
    pub fn new(side: &'a Side, link: Link) -> Self {
        Self { side, link, connected: None }
    }

    /// Serves steps until the initiator has finished. A failure is told to the initiator, too.
    pub fn serve(mut self) -> Result<(), Failure> {
        loop {
            match self.link.receive(INITIATOR_LIMIT, "the next step")? {
                Message::Finish => return Ok(()),
                Message::Step(step) => {
                    if let Err(failure) = self.step(&step) {
                        let _ = self.link.send(&Message::Trouble(failure.to_string()));
                        return Err(failure.during(step));
                    }
                }
                other => return Err(unexpected("a step", &other)),
            }
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), Failure> {
        if step.count == 0 || step.window == 0 || step.offset(step.count) > self.side.region.length() as u64 {
            let length = self.side.region.length();
            return Err(Failure::failed(format!("{} messages do not fit in a region of {length} bytes", step.count)));
        }
        self.prepare(step)?;
        let (endpoint, peer) = self.connect(step.transport)?;
        self.post_receives(&endpoint, step)?;
        self.link.send(&Message::Go)?;
        let arrivals = self.drive(&endpoint, &peer, step)?;
        let verdict = self.compare(step, &arrivals)?;
        self.connected = Some((endpoint, peer));
        self.link.send(&Message::Verdict(verdict))
    }

    /// The mirror of the initiator's `connect`.
    fn connect(&mut self, transport: Transport) -> Result<(Endpoint, PeerInfo), Failure> {
        if transport.is_reliable()
            && let Some((endpoint, peer)) = self.connected.take()
            && endpoint.local.transport == transport
        {
            return Ok((endpoint, peer));
        }
        self.connected = None;
        let peer = match self.link.receive(INITIATOR_LIMIT, "its queue pair")? {
            Message::QueuePair(peer) => peer,
            other => return Err(unexpected("a queue pair", &other)),
        };
        let mut endpoint = self.side.endpoint(transport)?;
        self.link.send(&Message::QueuePair(endpoint.local.clone()))?;
        self.side.connect(&mut endpoint, &peer)?;
        self.link.send(&Message::Ready)?;
        match self.link.receive(INITIATOR_LIMIT, "its queue pair to be ready")? {
            Message::Ready => Ok((endpoint, peer)),
            other => Err(unexpected("ready", &other)),
        }
    }

    fn prepare(&self, step: &Step) -> Result<(), Failure> {
        match step.operation {
            Operation::CompareSwap | Operation::FetchAdd => {
                self.side.region.store_u64(0, 0).during(|| "store the word")
            }
            Operation::Read => {
                let mut bytes = vec![0; step.size as usize];
                for index in 0..step.count {
                    pattern::fill(step.seed, index.into(), &mut bytes);
                    self.side.region.write(step.offset(index) as usize, &bytes).during(|| "fill the region")?;
                }
                Ok(())
            }
            Operation::Send | Operation::Write | Operation::WriteWithImm => {
                self.side.clear(step.offset(step.count) as usize)
            }
        }
    }

    fn post_receives(&self, endpoint: &Endpoint, step: &Step) -> Result<(), Failure> {
        let (region, small) = (&self.side.region, &self.side.small);
        let grh = if step.transport == Transport::Ud { GRH_BYTES } else { 0 };
        if step.operation.takes_receive() {
            for index in 0..step.count {
                let (addr, length) = match step.operation {
                    Operation::Send => (region.addr() + step.offset(index), step.size + grh),
                    _ => (small.addr(), 0),
                };
                let sge = [Sge { addr, length, lkey: if length == 0 { small.lkey() } else { region.lkey() } }];
                let receive = RecvWr { wr_id: index.into(), sg_list: &sge };
                endpoint.queue_pair.post_recv(&[receive]).during(|| format!("post receive {index}"))?;
            }
        } else if !step.transport.is_reliable() {
            for index in 0..u64::from(step.windows()) {
                let addr = small.addr() + index * SMALL_SLOT;
                let sge = [Sge { addr, length: SMALL_SLOT as u32, lkey: small.lkey() }];
                let receive = RecvWr { wr_id: MARKER + index, sg_list: &sge };
                endpoint.queue_pair.post_recv(&[receive]).during(|| "post a receive for a marker")?;
            }
        }
        Ok(())
    }

    /// Polls until the initiator has sent everything and everything that must arrive has.
    fn drive(&mut self, endpoint: &Endpoint, peer: &PeerInfo, step: &Step) -> Result<Vec<Arrival>, Failure> {
        let mut arrivals = Vec::with_capacity(step.count as usize);
        let mut completions = [WorkCompletion::default(); 16];
        let mut all_sent = None;
        let mut last = Instant::now();
        let started = last;
        let must_arrive = if step.operation.takes_receive() { step.count as usize } else { 0 };
        let mut idle = 0u32;
        loop {
            let count = endpoint.recv_cq.poll(&mut completions).during(|| "poll the receive CQ")?;
            for completion in &completions[..count] {
                succeeded(completion, format_args!("receive {}", completion.wr_id))?;
                let window = self.record(completion, step, &mut arrivals)?;
                if let Some(window) = window.filter(|_| !step.transport.is_reliable()) {
                    self.answer(endpoint, peer, window)?;
                }
            }
            if count > 0 {
                last = Instant::now();
                idle = 0;
                continue;
            }
            idle = idle.wrapping_add(1);
            if !idle.is_multiple_of(64) {
                continue;
            }
            std::thread::yield_now();
            let now = Instant::now();
            if all_sent.is_none() {
                match self.link.try_receive()? {
                    Some(Message::Sent) => all_sent = Some(now),
                    Some(other) => return Err(unexpected("sent", &other)),
                    None if now - started > INITIATOR_LIMIT => {
                        return Err(Failure::failed("the initiator did not finish the step: is it stopped?"));
                    }
                    None => {}
                }
            }
            if let Some(at) = all_sent {
                let complete = arrivals.len() >= must_arrive && step.transport.is_reliable();
                if complete || (!step.transport.is_reliable() && now - last.max(at) > QUIET) {
                    return Ok(arrivals);
                }
                if now - at > INITIATOR_LIMIT {
                    let arrived = arrivals.len();
                    return Err(Failure::failed(format!("{arrived} of {must_arrive} messages made a completion")));
                }
            }
        }
    }

    /// Notes what a completion says; gives the number of the window that it ends.
    fn record(
        &self,
        completion: &WorkCompletion,
        step: &Step,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<Option<u32>, Failure> {
        let imm = completion.flags.contains(WcFlags::WITH_IMM).then_some(completion.imm);
        if completion.wr_id >= MARKER {
            return Ok(imm);
        }
        let slot = completion.wr_id as u32;
        arrivals.push(Arrival { slot, imm, bytes: completion.byte_len });
        if step.transport.is_reliable() {
            return Ok(None);
        }
        let number = match imm {
            Some(imm) => u64::from(imm),
            None => self.number_in(step, slot)?.unwrap_or(u64::MAX),
        };
        let ends_window = number < step.count.into()
            && (number + 1 == u64::from(step.count) || (number + 1).is_multiple_of(step.window.into()));
        Ok(ends_window.then(|| (number / u64::from(step.window)) as u32))
    }

    /// The number that the message in a slot says it has.
    fn number_in(&self, step: &Step, slot: u32) -> Result<Option<u64>, Failure> {
        let mut bytes = [0; 8];
        if step.size < 8 {
            return Ok(None);
        }
        self.side.region.read(self.payload(step, slot), &mut bytes).during(|| "read the region")?;
        Ok(pattern::number(&bytes))
    }

    fn payload(&self, step: &Step, slot: u32) -> usize {
        let grh = if step.transport == Transport::Ud { GRH_BYTES } else { 0 };
        (step.offset(slot) + u64::from(grh)) as usize
    }

    fn answer(&self, endpoint: &Endpoint, peer: &PeerInfo, window: u32) -> Result<(), Failure> {
        let mut done = [WorkCompletion::default(); 8];
        // Signaled, so that the send queue never fills with what nobody retires.
        while endpoint.send_cq.poll(&mut done).during(|| "poll the send CQ")? == done.len() {}
        let mut credit = SendWr::new(CREDIT, SendOp::SendWithImm { imm: window });
        credit.flags = SendFlags::SIGNALED;
        credit.ud = endpoint.datagram_path.as_deref().map(|ah| UdAddress {
            ah,
            remote_qpn: Qpn::new(peer.qpn),
            remote_qkey: QKey(peer.qkey),
        });
        endpoint.queue_pair.post_send(&[credit]).during(|| "post an answer")
    }

    /// Compares everything that arrived with everything that was sent.
    fn compare(&self, step: &Step, arrivals: &[Arrival]) -> Result<Verdict, Failure> {
        let mut verdict = match step.operation {
            // The initiator compares what it read.
            Operation::Read => return Ok(Verdict { arrived: step.count.into(), ..Verdict::default() }),
            Operation::CompareSwap | Operation::FetchAdd => return self.compare_word(step),
            Operation::Send => self.compare_sends(step, arrivals)?,
            Operation::Write | Operation::WriteWithImm => self.compare_writes(step, arrivals)?,
        };
        if step.transport.is_reliable() && verdict.mismatch.is_none() {
            verdict.mismatch = in_order(step, arrivals);
        }
        Ok(verdict)
    }

    fn compare_word(&self, step: &Step) -> Result<Verdict, Failure> {
        let (expected, found) = (atomics::expected(step).1, self.side.region.load_u64(0).during(|| "load the word")?);
        if expected != found {
            return Err(Failure::failed(format!(
                "after {} operations the word holds {found:#x}, not {expected:#x}: not each was done exactly once",
                step.count
            )));
        }
        Ok(Verdict { arrived: step.count.into(), verified_bytes: 8, mismatch: None })
    }

    fn compare_sends(&self, step: &Step, arrivals: &[Arrival]) -> Result<Verdict, Failure> {
        let mut verdict = Verdict::default();
        let (mut found, mut scratch) = (vec![0; step.size as usize], vec![0; step.size as usize]);
        let mut seen = vec![false; step.count as usize];
        let grh = if step.transport == Transport::Ud { GRH_BYTES } else { 0 };
        for arrival in arrivals {
            if arrival.bytes != step.size + grh {
                let bytes = arrival.bytes;
                return Err(Failure::failed(format!("a completion says {bytes} bytes, {} were sent", step.size + grh)));
            }
            let number = if step.transport.is_reliable() {
                u64::from(arrival.slot)
            } else {
                self.number_in(step, arrival.slot)?.unwrap_or(u64::MAX)
            };
            self.side.region.read(self.payload(step, arrival.slot), &mut found).during(|| "read the region")?;
            if let Err(mismatch) = pattern::compare(step.seed, number, &found, &mut scratch) {
                verdict.mismatch.get_or_insert(mismatch);
            }
            verdict.verified_bytes += u64::from(step.size);
            match seen.get_mut(number as usize) {
                // A datagram may be duplicated on its way; it is one message all the same.
                Some(seen) => verdict.arrived += u64::from(!std::mem::replace(seen, true)),
                None => {
                    let message = number;
                    verdict.mismatch.get_or_insert(Mismatch { message, byte: 0, expected: 0, found: found[0] });
                }
            }
        }
        Ok(verdict)
    }

    fn compare_writes(&self, step: &Step, arrivals: &[Arrival]) -> Result<Verdict, Failure> {
        let mut verdict = Verdict::default();
        let (mut found, mut scratch) = (vec![0; step.size as usize], vec![0; step.size as usize]);
        let mut must_be_whole = vec![step.transport.is_reliable(); step.count as usize];
        for arrival in arrivals {
            let index = arrival.imm.unwrap_or(u32::MAX);
            match must_be_whole.get_mut(index as usize) {
                Some(whole) => *whole = true,
                None => return Err(Failure::failed(format!("immediate data {index:#x} was never sent"))),
            }
        }
        for index in 0..step.count {
            self.side.region.read(step.offset(index) as usize, &mut found).during(|| "read the region")?;
            let outcome = if must_be_whole[index as usize] {
                pattern::compare(step.seed, index.into(), &found, &mut scratch).map(|()| true)
            } else {
                pattern::compare_lossy(step.seed, index.into(), &found, &mut scratch)
            };
            verdict.verified_bytes += u64::from(step.size);
            match outcome {
                Ok(whole) => verdict.arrived += u64::from(whole),
                Err(mismatch) => {
                    verdict.mismatch.get_or_insert(mismatch);
                }
            }
        }
        Ok(verdict)
    }
}

/// On a reliable transport receives complete in the order of the sends, and immediates come in that order, too.
fn in_order(step: &Step, arrivals: &[Arrival]) -> Option<Mismatch> {
    let wrong = |(place, arrival): (usize, &Arrival)| {
        let number = arrival.imm.unwrap_or(arrival.slot);
        let found = number != place as u32 || arrival.slot != place as u32;
        found.then_some(Mismatch { message: place as u64, byte: 0, expected: place as u8, found: number as u8 })
    };
    arrivals.iter().enumerate().filter(|_| step.operation.takes_receive()).find_map(wrong)
}
