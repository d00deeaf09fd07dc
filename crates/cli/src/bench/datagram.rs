//! The yardstick: plain UDP with GSO and GRO, as fast as it goes, with nothing on top but a count of bytes that came
//! back so that the sender does not overrun the receiver. The only file of this crate with system calls of its own.

use crate::failure::{During, Failure};
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Payload of a datagram that counts, as a RoCE packet of path MTU 4096 carries it.
const PAYLOAD: usize = 4096;

/// What a RoCE packet of a WRITE has beside it: BTH and ICRC.
const OVERHEAD: usize = 16;

/// Datagrams in one GSO send: 15 of 4112 bytes are below 65,507.
const TRAIN: usize = 15;

/// Bytes of a datagram.
const SEGMENT: usize = PAYLOAD + OVERHEAD;

/// A socket on any port of the loopback address, non-blocking, with a large buffer.
pub fn socket() -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind("127.0.0.1:0").during(|| "bind a UDP socket")?;
    socket.set_nonblocking(true).during(|| "make it non-blocking")?;
    let bytes: libc::c_int = 16 << 20;
    // Forced beyond the limit if we may, else as far as the limit lets us.
    if set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes).during(|| "set SO_RCVBUF")?;
    }
    Ok(socket)
}

fn set_option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> std::io::Result<()> {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed; the option value is a c_int that lives across
    // the call, and its size is given.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Bytes that may be under way: what the receive buffer surely holds, at most 1 MiB.
fn window(socket: &UdpSocket) -> usize {
    let mut bytes: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: as in `set_option`; the kernel writes at most `length` bytes.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw mut bytes).cast(),
            &raw mut length,
        )
    };
    let buffer = if outcome == 0 { bytes.max(0) as usize } else { 0 };
    // The kernel counts its own overhead, up to the data again.
    (buffer / 4).clamp(2 * TRAIN * SEGMENT, 1 << 20)
}

/// Receives until told to stop; answers each receive with the bytes received so far.
pub fn sink(socket: &UdpSocket, stop: &AtomicBool) -> Result<(), Failure> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1).during(|| "switch GRO on")?;
    let mut buffer = vec![0; 1 << 16];
    let mut received = 0u64;
    let mut idle = 0u32;
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((count, from)) => {
                idle = 0;
                received += (count.div_ceil(SEGMENT) * PAYLOAD) as u64;
                let _ = socket.send_to(&received.to_le_bytes(), from);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => pause(&mut idle),
            Err(error) => return Err(Failure::failed(format!("receive datagrams: {error}"))),
        }
    }
    Ok(())
}

/// Sends messages of `size` bytes for `duration`; gives payload bytes that arrived and the time.
pub fn stream(to: SocketAddr, size: usize, duration: Duration) -> Result<(u64, Duration), Failure> {
    let socket = socket()?;
    let segment = libc::c_int::try_from(SEGMENT).unwrap_or(0);
    set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, segment).during(|| "switch GSO on")?;
    let packets = size.div_ceil(PAYLOAD);
    let bytes = vec![0x5a; TRAIN * SEGMENT];
    let window = window(&socket) as u64;
    let (mut sent, mut arrived, mut left) = (0u64, 0u64, packets);
    let begin = Instant::now();
    let mut heard = begin;
    let mut idle = 0u32;
    while begin.elapsed() < duration {
        let mut answer = [0; 8];
        while socket.recv(&mut answer).is_ok() {
            arrived = arrived.max(u64::from_le_bytes(answer));
            heard = Instant::now();
        }
        if sent - arrived.min(sent) >= window {
            if heard.elapsed() > Duration::from_millis(50) {
                // Lost datagrams are never answered: forget them.
                sent = arrived;
            }
            pause(&mut idle);
            continue;
        }
        idle = 0;
        let train = left.min(TRAIN);
        match socket.send_to(&bytes[..train * SEGMENT], to) {
            Ok(_) => {
                sent += (train * PAYLOAD) as u64;
                left = if left == train { packets } else { left - train };
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(Failure::failed(format!("send a train of datagrams: {error}"))),
        }
    }
    Ok((arrived, begin.elapsed()))
}

/// Sends each datagram back until told to stop.
pub fn echo(socket: &UdpSocket, stop: &AtomicBool) -> Result<(), Failure> {
    let mut buffer = [0; 2048];
    let mut idle = 0u32;
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((count, from)) => {
                idle = 0;
                let _ = socket.send_to(&buffer[..count], from);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => pause(&mut idle),
            Err(error) => return Err(Failure::failed(format!("receive datagrams: {error}"))),
        }
    }
    Ok(())
}

/// There and back for `duration`, busily polling, with datagrams as long as an 8-byte WRITE's; gives one-way times.
pub fn ping_pong(to: SocketAddr, duration: Duration) -> Result<Vec<Duration>, Failure> {
    const BYTES: usize = 12 + 16 + 8 + 4;
    let socket = socket()?;
    let mut buffer = [0; BYTES];
    let mut samples = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    while begin.elapsed() < duration {
        let sending = Instant::now();
        socket.send_to(&[1; BYTES], to).during(|| "send a datagram")?;
        loop {
            if socket.recv(&mut buffer).is_ok() {
                samples.push(sending.elapsed() / 2);
                break;
            }
            if sending.elapsed() > Duration::from_millis(100) {
                break;
            }
        }
    }
    Ok(samples)
}

/// Spins for a while, then lets others run: with two cores and other work a pure spin would only steal the other's time.
pub fn pause(idle: &mut u32) {
    *idle = idle.saturating_add(1);
    if *idle > 10_000 {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
