//! A port around a port that writes what passes to a pcapng file, so that Wireshark and `sfab decode` can read it.
//!
//! A UDP socket shows no headers: Ethernet, IP and UDP headers are made here from what the port knows. The IPv4
//! identification is the one the packet travelled with (for received ones: the predicted one, or the one that makes the
//! ICRC right), so that a third-party ICRC check agrees. Each port of the device is two interfaces in the file, one for each
//! way. What cannot be written ends the capture, never the traffic.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use scalefabric_transport::DropReason;
use scalefabric_wire::icrc::{Check, Flow, InverseCache};
use scalefabric_wire::pcap::{Endian, LinkType};
use scalefabric_wire::pcapng::Writer;

use super::frame::{HEADERS, Macs, write_headers};
use super::{Datagram, Port, Sent, Train};
use crate::process::{Descriptor, Home, Making, Own};

/// Bytes that wait before they are written.
const BUFFER: usize = 64 << 10;
/// Longest time that something waits, ns.
const FLUSH_NS: u64 = 100_000_000;

struct Output {
    file: Descriptor,
    writer: Writer,
    buffer: Vec<u8>,
    interfaces: u32,
    flushed_ns: u64,
    error: Option<io::Error>,
    cache: InverseCache,
    frame: Vec<u8>,
    /// What happened since the last packet.
    notes: Vec<String>,
}

impl Output {
    fn write_out(&mut self) {
        if self.error.is_none()
            && !self.buffer.is_empty()
            && let Err(error) = (&self.file).write_all(&self.buffer)
        {
            self.error = Some(error);
        }
        self.buffer.clear();
    }
}

/// A capture file; any number of ports may write to it.
pub struct Capture {
    home: Home,
    output: Own<Mutex<Output>>,
    /// Added to the engine's clock to get the time of day.
    epoch_offset_ns: u64,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capture")
    }
}

impl Capture {
    /// Creates or overwrites the file. While another process captures to it (the parent of a forked child, another rank of a
    /// job), the file is called `<file>.<pid>` instead. `epoch_offset_ns` is what has to be added to the engine's clock to get nanoseconds
    /// since 1970; 0 for simulated time.
    pub fn create(path: &Path, epoch_offset_ns: u64) -> io::Result<Arc<Self>> {
        let file = claim(path)?;
        let file = {
            let _making = Making::begin();
            Descriptor::keep(file.into())
        };
        let mut buffer = Vec::with_capacity(2 * BUFFER);
        let writer = Writer::new(&mut buffer, Endian::Little);
        let output = Output {
            file,
            writer,
            buffer,
            interfaces: 0,
            flushed_ns: 0,
            error: None,
            cache: InverseCache::new(),
            frame: Vec::new(),
            notes: Vec::new(),
        };
        Ok(Arc::new(Self { home: Home::here(), output: Own::new(Mutex::new(output)), epoch_offset_ns }))
    }

    fn output(&self) -> std::sync::MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tape for one port of a device, named as in `sf0/1`.
    pub fn tape(self: &Arc<Self>, name: &str) -> Tape {
        let mut output = self.output();
        let Output { writer, buffer, .. } = &mut *output;
        writer.interface(buffer, LinkType::ETHERNET, &format!("{name} in"));
        writer.interface(buffer, LinkType::ETHERNET, &format!("{name} out"));
        let first = output.interfaces;
        output.interfaces += 2;
        drop(output);
        Tape { capture: self.clone(), first }
    }

    /// Notes something that no packet shows. The next packet that is recorded carries it in its comment.
    pub fn note(&self, text: &str) {
        let notes = &mut self.output().notes;
        if notes.len() < 64 {
            notes.push(text.to_owned());
        }
    }

    /// Writes what waits. The error that ended the capture, if one did.
    pub fn finish(&self) -> io::Result<()> {
        let mut output = self.output();
        output.write_out();
        match &output.error {
            Some(error) => Err(io::Error::new(error.kind(), format!("the capture ended early: {error}"))),
            None => Ok(()),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // What waits is the parent's to write.
        if self.home.is_here() {
            let _ = self.finish();
        }
    }
}

/// The file, empty and ours alone; or the one beside it that has our process's number.
fn claim(path: &Path) -> io::Result<File> {
    let open = |path: &Path| OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let mut file = open(path)?;
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        let mut own = path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        file = open(own.as_ref())?;
        let _ = file.try_lock();
    }
    // A pipe or a terminal has no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Which way a datagram went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It was received.
    In,
    /// It was sent.
    Out,
}

/// One port's part of a capture.
#[derive(Clone, Debug)]
pub struct Tape {
    capture: Arc<Capture>,
    first: u32,
}

impl Tape {
    /// Records a datagram with a comment, which may be empty.
    pub fn record(&mut self, now_ns: u64, way: Way, datagram: &Datagram<'_>, comment: &str) {
        let mut output = self.capture.output();
        let Output { writer, buffer, cache, frame, error, notes, .. } = &mut *output;
        if error.is_some() {
            return;
        }
        let mut datagram = *datagram;
        if let (Way::In, IpAddr::V4(src), IpAddr::V4(dst)) = (way, datagram.src, datagram.dst)
            && let Check::OkWithId(id) =
                Flow::v4(src, dst, datagram.src_port).check(datagram.ip_id, datagram.bytes, cache)
        {
            datagram.ip_id = id;
        }
        if !make_frame(frame, &datagram) {
            return;
        }
        let interface = self.first + u32::from(way == Way::Out);
        let time_ns = now_ns.wrapping_add(self.capture.epoch_offset_ns);
        if notes.is_empty() {
            writer.packet(buffer, interface, time_ns, frame.len() as u32, frame, comment);
        } else {
            if !comment.is_empty() {
                notes.push(comment.to_owned());
            }
            writer.packet(buffer, interface, time_ns, frame.len() as u32, frame, &notes.join("; "));
            notes.clear();
        }
        if buffer.len() >= BUFFER {
            output.write_out();
        }
    }

    /// Records datagram `index` of a train.
    pub fn record_sent(&mut self, now_ns: u64, train: &Train<'_>, index: usize, bytes: &[u8], comment: &str) {
        let datagram = Datagram {
            src: train.src,
            src_port: train.src_port,
            dst: train.dst,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit,
            flow_label: train.flow_label,
            ip_id: index as u16,
            bytes,
        };
        self.record(now_ns, Way::Out, &datagram, comment);
    }

    /// Writes what has waited long enough.
    pub fn flush(&mut self, now_ns: u64) {
        let mut output = self.capture.output();
        if now_ns.wrapping_sub(output.flushed_ns) >= FLUSH_NS {
            output.flushed_ns = now_ns;
            output.write_out();
        }
    }
}

/// Makes the frame that the datagram travelled in. False if it cannot have been one.
fn make_frame(frame: &mut Vec<u8>, datagram: &Datagram<'_>) -> bool {
    let mac = |ip: IpAddr| match ip {
        // Multicast addresses have theirs (RFC 1112, RFC 2464); the others' are made up from the IP address.
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            [0x33, 0x33, a, b, c, d]
        }
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x02, 0x00, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [0x02, 0x06, a, b, c, d]
        }
    };
    let mut headers = [0; HEADERS];
    let macs = Macs { dst: mac(datagram.dst), src: mac(datagram.src) };
    let Some(len) = write_headers(&mut headers, macs, datagram) else { return false };
    frame.clear();
    frame.extend_from_slice(&headers[..len]);
    frame.extend_from_slice(datagram.bytes);
    true
}

/// A port that records.
#[derive(Debug)]
pub struct CapturePort<P> {
    inner: P,
    tape: Tape,
    now_ns: u64,
}

impl<P: Port> CapturePort<P> {
    /// Puts a tape around a port.
    pub fn new(mut inner: P, tape: Tape) -> Self {
        inner.tell_headers();
        Self { inner, tape, now_ns: 0 }
    }
}

impl<P: Port> Port for CapturePort<P> {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let Self { inner, tape, now_ns } = self;
        inner.receive(max, &mut |datagram| {
            tape.record(*now_ns, Way::In, datagram, "");
            sink(datagram);
        })
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let sent = self.inner.send(train);
        if sent == Sent::Done {
            for (index, bytes) in train.bytes.chunks(train.segment.max(1)).enumerate() {
                self.tape.record_sent(self.now_ns, train, index, bytes, "");
            }
        }
        sent
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.inner.set_time(now_ns);
    }

    fn look_everywhere(&mut self) {
        self.inner.look_everywhere();
    }

    fn take_drops(&mut self, sink: &mut dyn FnMut(DropReason, u64)) {
        self.inner.take_drops(sink);
    }

    fn flush(&mut self) {
        self.inner.flush();
        self.tape.flush(self.now_ns);
    }

    fn source_port(&self, src: IpAddr, flow: u32) -> u16 {
        self.inner.source_port(src, flow)
    }

    fn named_source_port(&self, src: IpAddr, wanted: u16) -> Option<u16> {
        self.inner.named_source_port(src, wanted)
    }

    fn max_train(&self) -> usize {
        self.inner.max_train()
    }

    fn deadline(&self) -> Option<u64> {
        self.inner.deadline()
    }

    fn tell_headers(&mut self) {
        self.inner.tell_headers();
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.leave(group)
    }
}

#[cfg(test)]
mod tests;
