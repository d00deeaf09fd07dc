//! Messages over the RC QP that rdma_cm has brought up: a task owns QP, memory and identifier. A message is cut into fragments, each a SEND whose immediate
//! data says what it is. The receiver posts a receive again only when the application has taken the message, so that a slow reader holds up the
//! sender (RNR NAKs, clause 9.7.5.2.8) and nothing grows. No message is looked into.

use super::{MAX_MESSAGE, Patience};
use crate::endpoint::descriptor;
use crate::error::{FabricError, Fault};
use scalefabric_verbs::{
    AccessFlags, CmChannel, CmEvent, CmEventType, CmId, CompletionChannel, CompletionQueue, Context, MemoryRegion,
    PostError, Provider, QpCap, QpInit, QpState, Qpn, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge, WcFlags,
    WcOpcode, WcStatus, WorkCompletion,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

/// Bytes of a fragment.
const FRAGMENT: usize = 16 * 1024;
/// Receives posted. A message needs at most four.
const RECEIVES: usize = 32;
/// First bytes of the private data: letters and version.
const GREETING: [u8; 8] = *b"SFABXCH\x01";
/// Bytes of a name in private data: what is left of the shortest (a REQ's).
const NAME: usize = 40;

/// Immediate data: more of this message follows.
const MORE: u32 = 1;
/// The message's last fragment.
const LAST: u32 = 2;
/// Nothing: asks whether the peer is there.
const PROBE: u32 = 3;
/// The channel is closed.
const GOODBYE: u32 = 4;

/// `wr_id` of what is sent; receives have the number of their piece.
const SENT: u64 = 1 << 32;

/// A message, and where to say that it was taken.
pub(super) type Outgoing = (Vec<u8>, oneshot::Sender<Result<(), FabricError>>);

/// What the private data of a request or reply says.
pub(super) fn greeting(name: &str) -> Vec<u8> {
    let mut end = name.len().min(NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let mut said = GREETING.to_vec();
    said.push(end as u8);
    said.extend_from_slice(&name.as_bytes()[..end]);
    said
}

/// The peer's name.
pub(super) fn hear_greeting(said: &[u8], peer: SocketAddr) -> Result<String, FabricError> {
    let rest = said.strip_prefix(&GREETING);
    let name = rest.and_then(|rest| {
        let (length, rest) = rest.split_first()?;
        String::from_utf8(rest.get(..usize::from(*length))?.to_vec()).ok()
    });
    name.ok_or_else(|| FabricError::peer(format!("rdma-cm://{peer} is no scaleFabric exchange of this version (its private data is another's): check the port")))
}

fn watch(fd: RawFd) -> Result<AsyncFd<OwnedFd>, FabricError> {
    descriptor::watch(fd).ok_or_else(|| {
        FabricError::environment("a descriptor of the device cannot be waited for: are descriptors short (ulimit -n)?")
    })
}

/// An identifier with an event channel of its own; destroyed with it.
pub(super) struct CmLink {
    readable: AsyncFd<OwnedFd>,
    id: Arc<dyn CmId>,
    channel: Arc<dyn CmChannel>,
}

impl CmLink {
    /// A new identifier, or one that came with a request.
    pub(super) fn new(provider: &dyn Provider, id: Option<Arc<dyn CmId>>) -> Result<Self, FabricError> {
        let channel = provider.event_channel()?;
        let id = match id {
            Some(id) => {
                id.migrate(&channel)?;
                id
            }
            None => channel.create_id(super::rdma_cm::SPACE.0, super::rdma_cm::SPACE.1, 1)?,
        };
        Ok(Self { readable: watch(channel.fd())?, id, channel })
    }

    pub(super) fn id(&self) -> &Arc<dyn CmId> {
        &self.id
    }

    /// The next event. May be given up.
    pub(super) async fn event(&self) -> Result<CmEvent, FabricError> {
        loop {
            if let Some(event) = self.channel.get_event(Some(Duration::ZERO))? {
                return Ok(event);
            }
            let ready = self.readable.readable().await;
            let mut ready =
                ready.map_err(|error| FabricError::environment(format!("waiting for rdma_cm failed: {error}")))?;
            if let Some(event) = self.channel.get_event(Some(Duration::ZERO))? {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }
}

impl Drop for CmLink {
    fn drop(&mut self) {
        let _ = self.id.destroy();
    }
}

fn not_posted(error: PostError) -> FabricError {
    FabricError::unreachable(format!(
        "the exchange's QP takes nothing more ({:?}: {}): dial again",
        error.errno, error.reason
    ))
}

/// QP, queues and memory of a channel.
pub(super) struct Messenger {
    readable: AsyncFd<OwnedFd>,
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    rings: Arc<dyn CompletionChannel>,
    /// Receive pieces, then the outgoing message.
    memory: Arc<dyn MemoryRegion>,
}

impl Messenger {
    pub(super) fn new(context: &Arc<dyn Context>) -> Result<Self, FabricError> {
        let pd = context.alloc_pd()?;
        let rings = context.create_comp_channel()?;
        let cq = context.create_cq(2 * RECEIVES as u32, Some(rings.clone()), 0)?;
        let memory = pd.alloc_mr(RECEIVES * FRAGMENT + MAX_MESSAGE, AccessFlags::LOCAL_WRITE)?;
        let cap = QpCap {
            max_send_wr: 8,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit {
            qp_type: super::rdma_cm::SPACE.1,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap,
            sq_sig_all: false,
        };
        let qp = pd.create_qp(&init)?;
        Ok(Self { readable: watch(rings.fd())?, qp, cq, rings, memory })
    }

    pub(super) fn qp_num(&self) -> Qpn {
        self.qp.qp_num()
    }

    pub(super) fn bring(&self, id: &dyn CmId, state: QpState) -> Result<(), FabricError> {
        let (attr, mask) = id.init_qp_attr(state)?;
        Ok(self.qp.modify(&attr, mask)?)
    }

    pub(super) fn post_all_receives(&self) -> Result<(), FabricError> {
        (0..RECEIVES as u64).try_for_each(|piece| self.post_receive(piece))
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.memory.addr() + offset as u64, length: length as u32, lkey: self.memory.lkey() }
    }

    fn post_receive(&self, piece: u64) -> Result<(), FabricError> {
        let place = [self.sge(piece as usize * FRAGMENT, FRAGMENT)];
        self.qp.post_recv(&[RecvWr { wr_id: piece, sg_list: &place }]).map_err(not_posted)
    }

    fn post(&self, kind: u32, pieces: &[Sge]) -> Result<(), FabricError> {
        let more = kind == MORE;
        let wr = SendWr {
            wr_id: SENT | u64::from(kind),
            op: SendOp::SendWithImm { imm: kind },
            flags: if more { SendFlags::empty() } else { SendFlags::SIGNALED },
            sg_list: pieces,
            inline_data: &[],
            ud: None,
            xrc_srqn: None,
        };
        self.qp.post_send(&[wr]).map_err(not_posted)
    }

    /// All fragments of a message; the last one makes a completion.
    fn post_message(&self, message: &[u8]) -> Result<(), FabricError> {
        let start = RECEIVES * FRAGMENT;
        self.memory.write(start, message)?;
        let mut offset = 0;
        while message.len() - offset > FRAGMENT {
            self.post(MORE, &[self.sge(start + offset, FRAGMENT)])?;
            offset += FRAGMENT;
        }
        self.post(LAST, &[self.sge(start + offset, message.len() - offset)])
    }

    /// Returns when the queue has rung. May be given up.
    async fn rung(&self) -> Result<(), FabricError> {
        let ready = self.readable.readable().await;
        let mut ready =
            ready.map_err(|error| FabricError::environment(format!("waiting for completions failed: {error}")))?;
        while self.rings.wait(Some(Duration::ZERO))?.is_some() {}
        ready.clear_ready();
        Ok(())
    }
}

/// What a channel's task knows.
struct Work {
    messenger: Messenger,
    peer: SocketAddr,
    /// The message that is on its way.
    sending: Option<oneshot::Sender<Result<(), FabricError>>>,
    /// A probe or goodbye is on its way.
    probing: bool,
    /// Fragments of a message that is not whole yet, and their receives.
    begun: (Vec<u8>, Vec<u64>),
    /// Whole messages that the application has not taken, and their receives.
    whole: VecDeque<(Vec<u8>, Vec<u64>)>,
    /// The peer has said goodbye.
    closed: bool,
    /// Our goodbye was taken.
    parted: bool,
}

/// The task of a channel: until the application has let go of it, or it breaks.
pub(super) async fn work(
    link: CmLink,
    messenger: Messenger,
    peer: SocketAddr,
    patience: Patience,
    mut outgoing: mpsc::Receiver<Outgoing>,
    to_application: mpsc::Sender<Result<Vec<u8>, FabricError>>,
) {
    let mut work = Work {
        messenger,
        peer,
        sending: None,
        probing: false,
        begun: Default::default(),
        whole: VecDeque::new(),
        closed: false,
        parted: false,
    };
    if let Err(error) = work.carry(&link, patience, &mut outgoing, &to_application).await {
        for (message, _) in std::mem::take(&mut work.whole) {
            let _ = to_application.send(Ok(message)).await;
        }
        if let Some(done) = work.sending.take() {
            let _ = done.send(Err(error.clone()));
        }
        outgoing.close();
        let _ = to_application.send(Err(error)).await;
    } else {
        let _ = timeout(patience.silence, work.part(&link)).await;
    }
    let _ = link.id().disconnect();
    let _ = work.messenger.qp.destroy();
}

impl Work {
    async fn carry(
        &mut self,
        link: &CmLink,
        patience: Patience,
        outgoing: &mut mpsc::Receiver<Outgoing>,
        to_application: &mpsc::Sender<Result<Vec<u8>, FabricError>>,
    ) -> Result<(), FabricError> {
        let mut heard = Instant::now();
        loop {
            if self.drain()? {
                heard = Instant::now();
            }
            if self.closed && self.whole.is_empty() {
                return Err(FabricError::new(Fault::Closed, format!("{} has closed the channel", self.peer)));
            }
            self.messenger.cq.req_notify(false)?;
            if self.drain()? {
                continue;
            }
            tokio::select! {
                next = outgoing.recv(), if self.sending.is_none() => match next {
                    Some((message, done)) => {
                        self.sending = Some(done);
                        self.messenger.post_message(&message)?;
                    }
                    None => return Ok(()),
                },
                room = to_application.reserve(), if !self.whole.is_empty() => {
                    let (Ok(room), Some((message, pieces))) = (room, self.whole.pop_front()) else { return Ok(()) };
                    room.send(Ok(message));
                    for piece in pieces {
                        self.messenger.post_receive(piece)?;
                    }
                }
                () = to_application.closed() => return Ok(()),
                rung = self.messenger.rung() => rung?,
                event = link.event() => self.hear(&event?)?,
                () = sleep_until(heard + patience.silence / 4) => {
                    heard = Instant::now();
                    if self.sending.is_none() && !self.probing {
                        self.probing = true;
                        self.messenger.post(PROBE, &[])?;
                    }
                }
            }
        }
    }

    /// An event of the connection. What came before it is taken first.
    fn hear(&mut self, event: &CmEvent) -> Result<(), FabricError> {
        match event.event {
            CmEventType::Disconnected | CmEventType::DeviceRemoval | CmEventType::TimewaitExit => {
                self.drain()?;
                if self.closed {
                    return Ok(());
                }
                Err(self.gone("it has disconnected"))
            }
            _ => Ok(()),
        }
    }

    fn gone(&self, how: &str) -> FabricError {
        FabricError::unreachable(format!(
            "{} is gone without a goodbye ({how}; its process has probably ended, or the way to it is cut): dial again",
            self.peer
        ))
    }

    /// Takes all completions. True if there was one.
    fn drain(&mut self) -> Result<bool, FabricError> {
        let mut any = false;
        loop {
            let mut completions = [WorkCompletion::default(); 16];
            let count = self.messenger.cq.poll(&mut completions)?;
            for completion in &completions[..count] {
                any = true;
                self.complete(completion)?;
            }
            if count < completions.len() {
                return Ok(any);
            }
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) -> Result<(), FabricError> {
        if completion.status != WcStatus::Success {
            return if self.closed { Ok(()) } else { Err(self.gone(&format!("{:?}", completion.status))) };
        }
        if completion.wr_id & SENT != 0 {
            match (completion.wr_id & !SENT) as u32 {
                LAST => {
                    if let Some(done) = self.sending.take() {
                        let _ = done.send(Ok(()));
                    }
                }
                GOODBYE => self.parted = true,
                _ => self.probing = false,
            }
            return Ok(());
        }
        if completion.opcode != WcOpcode::Recv {
            return Ok(());
        }
        let piece = completion.wr_id;
        let kind = if completion.flags.contains(WcFlags::WITH_IMM) { completion.imm } else { 0 };
        match kind {
            MORE | LAST => {
                let start = self.begun.0.len();
                let length = completion.byte_len as usize;
                if start + length > MAX_MESSAGE {
                    return Err(FabricError::peer(format!(
                        "{} sends a message of more than {MAX_MESSAGE} bytes: is it a scaleFabric of this version?",
                        self.peer
                    )));
                }
                self.begun.0.resize(start + length, 0);
                self.messenger.memory.read(piece as usize * FRAGMENT, &mut self.begun.0[start..])?;
                self.begun.1.push(piece);
                if kind == LAST {
                    self.whole.push_back(std::mem::take(&mut self.begun));
                }
                Ok(())
            }
            PROBE => self.messenger.post_receive(piece),
            GOODBYE => {
                self.closed = true;
                Ok(())
            }
            _ => Err(FabricError::peer(format!(
                "{} sends what is no message (immediate data {kind:#x}): check the port",
                self.peer
            ))),
        }
    }

    /// Says goodbye, behind what is on its way, and waits until the peer has taken it.
    async fn part(&mut self, link: &CmLink) -> Result<(), FabricError> {
        if !self.closed {
            self.messenger.post(GOODBYE, &[])?;
        }
        while !self.parted && !self.closed {
            // What comes now, nobody reads; but its receives are posted again, so that the peer's goodbye gets in.
            for (_, pieces) in std::mem::take(&mut self.whole) {
                pieces.into_iter().try_for_each(|piece| self.messenger.post_receive(piece))?;
            }
            self.messenger.cq.req_notify(false)?;
            if self.drain()? {
                continue;
            }
            tokio::select! {
                rung = self.messenger.rung() => rung?,
                event = link.event() => self.hear(&event?)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_carries_a_name_that_fits_and_others_are_refused() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 7471));
        let long = "ü".repeat(30);
        for (name, heard) in [("node3", "node3"), ("", ""), (long.as_str(), &long[..40])] {
            let mut said = greeting(name);
            assert!(said.len() <= scalefabric_verbs::cm::MAX_CONNECT_PRIVATE_DATA);
            // rdma_cm pads with zeros.
            said.resize(196, 0);
            assert_eq!(hear_greeting(&said, peer).unwrap(), heard);
        }
        for wrong in [&b""[..], b"SFABXCH\x02\x00", b"SFABXCH\x01", b"SFABXCH\x01\x05abc", b"SFABXCH\x01\x01\xff"] {
            assert_eq!(hear_greeting(wrong, peer).unwrap_err().fault, Fault::Peer);
        }
    }
}
