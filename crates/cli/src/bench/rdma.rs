//! What is measured: one RC queue pair over loopback, as `ib_write_bw`, `ib_write_lat` and `ib_send_lat` do it.

use crate::demo::endpoint::{Endpoint, Side, succeeded};
use crate::demo::exchange::PeerInfo;
use crate::failure::{During, Failure};
use scalefabric_verbs::{RecvWr, SendFlags, SendOp, SendWr, Sge, WorkCompletion};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where the initiator's word lies in the target's region and the other way round, for WRITE ping-pong.
const WORD: u64 = 0;

/// Receives kept posted for SEND ping-pong.
const RECEIVES: u64 = 64;

/// How a target behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Service {
    /// It polls its completion queue, in which nothing ever arrives.
    Passive,
    /// It answers each WRITE of a word by a WRITE of the same word.
    EchoWrite,
    /// It answers each SEND by a SEND.
    EchoSend,
}

/// A connected endpoint.
pub struct Connection<'a> {
    side: &'a Side,
    endpoint: Endpoint,
    peer: PeerInfo,
    /// The word before the peer could write to it.
    first_word: u64,
}

impl<'a> Connection<'a> {
    /// Connects, and posts the receives that SEND ping-pong needs.
    pub fn new(side: &'a Side, mut endpoint: Endpoint, peer: PeerInfo) -> Result<Self, Failure> {
        // Before the peer is told that it may begin: a worker takes its first WRITE while this thread is still elsewhere.
        let first_word = side.region.load_u64(WORD as usize).during(|| "load the word")?;
        side.connect(&mut endpoint, &peer)?;
        let connection = Self { side, endpoint, peer, first_word };
        for slot in 0..RECEIVES {
            connection.post_receive(slot)?;
        }
        Ok(connection)
    }

    fn post_receive(&self, slot: u64) -> Result<(), Failure> {
        let small = &self.side.small;
        let sge = [Sge { addr: small.addr() + slot * 64, length: 64, lkey: small.lkey() }];
        let receive = RecvWr { wr_id: slot, sg_list: &sge };
        self.endpoint.queue_pair.post_recv(&[receive]).during(|| "post a receive")
    }

    fn post_word(&self, word: u64, op: SendOp<'_>) -> Result<(), Failure> {
        let bytes = word.to_ne_bytes();
        let mut request = SendWr::new(word, op);
        request.flags = SendFlags::SIGNALED | SendFlags::INLINE;
        request.inline_data = &bytes;
        self.endpoint.queue_pair.post_send(&[request]).during(|| "post a word")
    }

    fn write_word(&self, word: u64) -> Result<(), Failure> {
        let rkey = Side::rkey_of(&self.peer);
        self.post_word(word, SendOp::Write { remote_addr: self.peer.addr + WORD, rkey })
    }

    /// Takes send completions; gives how many.
    fn reap(&self) -> Result<usize, Failure> {
        let mut done = [WorkCompletion::default(); 16];
        let count = self.endpoint.send_cq.poll(&mut done).during(|| "poll the send CQ")?;
        for completion in &done[..count] {
            succeeded(completion, "bench")?;
        }
        Ok(count)
    }

    /// The target: serves until told to stop.
    pub fn serve(&self, service: Service, stop: &AtomicBool) -> Result<(), Failure> {
        let mut last = self.first_word;
        let mut idle = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut busy = match service {
                Service::Passive => self.received()?,
                Service::EchoSend => {
                    let received = self.received()?;
                    if received {
                        self.post_word(1, SendOp::Send)?;
                    }
                    received
                }
                Service::EchoWrite => {
                    let word = self.side.region.load_u64(WORD as usize).during(|| "load the word")?;
                    let changed = word != last;
                    if changed {
                        last = word;
                        self.write_word(word)?;
                    }
                    changed
                }
            };
            busy |= self.reap()? > 0;
            if busy { idle = 0 } else { super::datagram::pause(&mut idle) }
        }
        Ok(())
    }

    /// Takes one receive completion and posts the receive again.
    fn received(&self) -> Result<bool, Failure> {
        let mut done = [WorkCompletion::default()];
        if self.endpoint.recv_cq.poll(&mut done).during(|| "poll the receive CQ")? == 0 {
            return Ok(false);
        }
        succeeded(&done[0], "bench")?;
        self.post_receive(done[0].wr_id)?;
        Ok(true)
    }

    /// One-way times of 8-byte WRITEs there and back.
    pub fn write_ping_pong(&self, duration: Duration) -> Result<Vec<Duration>, Failure> {
        let mut samples = Vec::with_capacity(1 << 20);
        let mut word = self.side.region.load_u64(WORD as usize).during(|| "load the word")?;
        let begin = Instant::now();
        while begin.elapsed() < duration {
            let sending = Instant::now();
            word += 1;
            self.write_word(word)?;
            while self.side.region.load_u64(WORD as usize).during(|| "load the word")? != word {
                self.reap()?;
                check(sending)?;
            }
            samples.push(sending.elapsed() / 2);
        }
        self.drain()?;
        Ok(samples)
    }

    /// One-way times of 8-byte SENDs there and back.
    pub fn send_ping_pong(&self, duration: Duration) -> Result<Vec<Duration>, Failure> {
        let mut samples = Vec::with_capacity(1 << 20);
        let begin = Instant::now();
        while begin.elapsed() < duration {
            let sending = Instant::now();
            self.post_word(2, SendOp::Send)?;
            while !self.received()? {
                self.reap()?;
                check(sending)?;
            }
            samples.push(sending.elapsed() / 2);
        }
        self.drain()?;
        Ok(samples)
    }

    /// Lets the last sends complete, so that the next measurement starts with an empty queue.
    fn drain(&self) -> Result<(), Failure> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(2) {
            self.reap()?;
        }
        Ok(())
    }

    /// WRITEs of `size` bytes for `duration`, `chain` to a doorbell, at most `window` under way; gives messages completed
    /// and the time.
    pub fn write_stream(
        &self,
        size: u32,
        chain: u32,
        window: u32,
        duration: Duration,
    ) -> Result<(u64, Duration), Failure> {
        let rkey = Side::rkey_of(&self.peer);
        let region = &self.side.region;
        let inline = vec![0x5a; if size <= self.endpoint.inline_bytes { size as usize } else { 0 }];
        let sge = [Sge { addr: region.addr() + 4096, length: size, lkey: region.lkey() }];
        let mut request = SendWr::new(u64::from(chain), SendOp::Write { remote_addr: self.peer.addr + 4096, rkey });
        if inline.is_empty() {
            request.sg_list = &sge;
        } else {
            request.flags = SendFlags::INLINE;
            request.inline_data = &inline;
        }
        let mut requests = vec![request; chain as usize];
        if let Some(last) = requests.last_mut() {
            last.flags |= SendFlags::SIGNALED;
        }
        let window = u64::from(window.min(self.endpoint.send_depth));
        let (mut posted, mut completed) = (0u64, 0u64);
        let begin = Instant::now();
        let mut heard = begin;
        loop {
            let is_over = begin.elapsed() >= duration;
            if is_over && completed == posted {
                return Ok((completed, begin.elapsed()));
            }
            while !is_over && posted + u64::from(chain) - completed <= window {
                self.endpoint.queue_pair.post_send(&requests).during(|| "post a chain of WRITEs")?;
                posted += u64::from(chain);
            }
            match self.reap()? {
                0 => check(heard)?,
                count => {
                    completed += count as u64 * u64::from(chain);
                    heard = Instant::now();
                }
            }
        }
    }
}

fn check(since: Instant) -> Result<(), Failure> {
    if since.elapsed() < Duration::from_secs(20) {
        return Ok(());
    }
    Err(Failure::failed("nothing arrived for 20 s: the other process has stopped"))
}
