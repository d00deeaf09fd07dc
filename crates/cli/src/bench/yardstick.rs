//! Yardsticks of the same-host path, without anything of ours in them: a cache line handed from one core to another, a copy of hot memory,
//! the kernel's copy between address spaces, and a copy that another core then reads. `sfab bench --yardstick`.

use crate::failure::{During, Failure};
use crate::terminal::say;
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use serde_json::json;
use std::hint::{black_box, spin_loop};
use std::io::IoSlice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Sizes that are copied.
const SIZES: [usize; 2] = [64 << 10, 1 << 20];

/// Measurements within the time; the median of them counts.
const WINDOWS: u32 = 40;

/// A word that shares its cache line, and the next one that processors fetch with it, with nobody.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Prints all of them as JSON, each measured for `duration`.
pub fn run(duration: Duration) -> Result<(), Failure> {
    let copies: Vec<_> = SIZES
        .iter()
        .map(|size| {
            Ok(json!({
                "size": size,
                "copy_us": copy(*size, duration),
                "process_vm_writev_us": between_address_spaces(*size, duration)?,
                "delivered_us": delivered(*size, duration),
            }))
        })
        .collect::<Result<_, Failure>>()?;
    say!("{:#}", json!({ "cache_line_one_way_us": cache_line(duration), "copies": copies }));
    Ok(())
}

/// Median of windows of `work`, which gives how long each of its parts took, µs.
fn windows(duration: Duration, mut work: impl FnMut(Duration) -> f64) -> f64 {
    let values: Vec<f64> = (0..WINDOWS).map(|_| work(duration / WINDOWS)).collect();
    super::summary::median(&values)
}

/// Repeats `work` for a time; µs of one.
fn each(time: Duration, mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut count = 0u32;
    while begin.elapsed() < time {
        for _ in 0..16 {
            work();
        }
        count += 16;
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(count.max(1))
}

/// One way of a word that goes there and back.
fn cache_line(duration: Duration) -> f64 {
    let (there, back) = (Line::default(), Line::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while last != u64::MAX {
                let word = there.0.load(Ordering::Acquire);
                if word == last {
                    spin_loop();
                } else {
                    last = word;
                    back.0.store(word, Ordering::Release);
                }
            }
        });
        let mut word = 0;
        let told = windows(duration, |time| {
            each(time, || {
                word += 1;
                there.0.store(word, Ordering::Release);
                while back.0.load(Ordering::Acquire) != word {
                    spin_loop();
                }
            }) / 2.0
        });
        there.0.store(u64::MAX, Ordering::Release);
        told
    })
}

/// A copy between two buffers that stay in the cache.
fn copy(size: usize, duration: Duration) -> f64 {
    let (from, mut to) = (vec![0x5a_u8; size], vec![0_u8; size]);
    windows(duration, |time| each(time, || black_box(&mut to).copy_from_slice(black_box(&from))))
}

/// The kernel's copy into an address space; our own, which takes the same way through the kernel.
fn between_address_spaces(size: usize, duration: Duration) -> Result<f64, Failure> {
    let (from, mut to) = (vec![0x5a_u8; size], vec![0_u8; size]);
    let remote = [RemoteIoVec { base: to.as_mut_ptr() as usize, len: size }];
    let own = nix::unistd::getpid();
    process_vm_writev(own, &[IoSlice::new(&from)], &remote).during(|| "process_vm_writev")?;
    let told = windows(duration, |time| {
        each(time, || {
            let _ = black_box(process_vm_writev(own, &[IoSlice::new(black_box(&from))], &remote));
        })
    });
    black_box(&to);
    Ok(told)
}

/// One way of a buffer that is copied to where another core sees it, announced, and copied out there; and back the same way.
fn delivered(size: usize, duration: Duration) -> f64 {
    let shared = [Mutex::new(vec![0_u8; size]), Mutex::new(vec![0_u8; size])];
    let (there, back) = (Line::default(), Line::default());
    let put = |place: usize, bytes: &[u8], line: &Line, word: u64| {
        shared[place].lock().unwrap_or_else(std::sync::PoisonError::into_inner).copy_from_slice(bytes);
        line.0.store(word, Ordering::Release);
    };
    let take = |place: usize, out: &mut [u8]| {
        out.copy_from_slice(&shared[place].lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        black_box(out);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (own, mut out) = (vec![0x5a_u8; size], vec![0_u8; size]);
            let mut last = 0;
            while last != u64::MAX {
                let word = there.0.load(Ordering::Acquire);
                if word == last {
                    spin_loop();
                    continue;
                }
                last = word;
                if word != u64::MAX {
                    take(0, &mut out);
                    put(1, &own, &back, word);
                }
            }
        });
        let (own, mut out) = (vec![0x5a_u8; size], vec![0_u8; size]);
        let mut word = 0;
        let told = windows(duration, |time| {
            each(time, || {
                word += 1;
                put(0, &own, &there, word);
                while back.0.load(Ordering::Acquire) != word {
                    spin_loop();
                }
                take(1, &mut out);
            }) / 2.0
        });
        there.0.store(u64::MAX, Ordering::Release);
        told
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_yardstick_takes_some_time_and_larger_copies_take_longer() {
        let short = Duration::from_millis(8);
        assert!(copy(4 << 20, short) > copy(4096, short));
        assert!(between_address_spaces(4096, short).unwrap() > 0.0);
        assert!(cache_line(short) > 0.0 && delivered(4096, short) > 0.0);
    }
}
