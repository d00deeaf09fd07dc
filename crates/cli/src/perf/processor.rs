//! The processor as a measurement sees it: which one the measuring thread runs on, how much of it the process used, and what reading the clock
//! costs.

use crate::failure::{During, Failure};
use quanta::Instant;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs::read_to_string;
use std::time::Duration;

/// Where the processors are listed.
const CPUS: &str = "/sys/devices/system/cpu/online";

/// Where the memory nodes are listed.
const NODES: &str = "/sys/devices/system/node/online";

/// Binds the calling thread to a processor, or to those of a memory node, so that memory it touches first is of that node. Threads
/// that it starts later are bound, too; those that run already (a software NIC's worker) are not.
pub fn pin(cpu: Option<usize>, node: Option<usize>) -> Result<(), Failure> {
    let cpus = match (cpu, node) {
        (None, None) => return Ok(()),
        (Some(cpu), None) => vec![existing(cpu)?],
        (cpu, Some(node)) => of_node(cpu, node)?,
    };
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).map_err(|error| {
        let allowed = sched_getaffinity(None).map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect());
        let allowed: Vec<usize> = allowed.unwrap_or_default();
        Failure::failed(format!("this process may not run on CPU {cpus:?} ({error}): it is bound to {allowed:?}"))
    })
}

fn existing(cpu: usize) -> Result<usize, Failure> {
    let text = read_to_string(CPUS).during(|| format!("read {CPUS}"))?;
    if list(&text).contains(&cpu) {
        return Ok(cpu);
    }
    Err(Failure::usage(format!("--cpu {cpu}: there is no such CPU here; those online are {}", text.trim())))
}

fn of_node(cpu: Option<usize>, node: usize) -> Result<Vec<usize>, Failure> {
    let nodes = read_to_string(NODES).unwrap_or_default();
    if !list(&nodes).contains(&node) {
        let there = if nodes.trim().is_empty() {
            "this kernel tells of none".to_owned()
        } else {
            format!("those online are {}", nodes.trim())
        };
        return Err(Failure::usage(format!("--numa {node}: there is no such memory node here; {there}")));
    }
    let file = format!("/sys/devices/system/node/node{node}/cpulist");
    let text = read_to_string(&file).during(|| format!("read {file}"))?;
    let cpus = list(&text);
    match cpu {
        _ if cpus.is_empty() => Err(Failure::usage(format!("--numa {node}: this node has memory but no CPU"))),
        Some(cpu) if !cpus.contains(&existing(cpu)?) => {
            Err(Failure::usage(format!("--cpu {cpu} is not of --numa {node}, which has {}", text.trim())))
        }
        Some(cpu) => Ok(vec![cpu]),
        None => Ok(cpus),
    }
}

/// Reads `0-3,8` as the kernel writes lists; what is no number is left out.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Processor time of this process, all threads, user and system.
pub fn time_used() -> Duration {
    let spec = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spec.tv_sec.max(0) as u64, spec.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Whether a thread that spins has its processor for itself: told by how much of the time it ran.
pub struct Share {
    since: Instant,
    used: Duration,
    is_shared: bool,
}

impl Share {
    /// How long it looks before it judges: some slices of the kernel's scheduler.
    const WINDOW: Duration = Duration::from_millis(10);

    /// Begins now, as if the processor were its own.
    pub fn new() -> Self {
        Self { since: Instant::now(), used: of_thread(), is_shared: false }
    }

    /// To be called now and then by the thread that made it.
    pub fn look(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= Self::WINDOW {
            let used = of_thread();
            // What wakes for a moment (a worker, a timer) takes less than an eighth.
            self.is_shared = used.saturating_sub(self.used) < passed * 7 / 8;
            (self.since, self.used) = (now, used);
        }
    }

    /// Whether others ran, or wanted to, for a good part of the last window.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// Processor time of the calling thread.
fn of_thread() -> Duration {
    let spec = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spec.tv_sec.max(0) as u64, spec.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Resident memory of this process, bytes; 0 where the kernel does not tell.
pub fn resident_bytes() -> u64 {
    let text = read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// What reading the clock costs, ns: the median of some batches.
pub fn clock_cost_ns() -> f64 {
    const READS: u32 = 1000;
    let mut costs: Vec<f64> = (0..15)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..READS {
                std::hint::black_box(Instant::now());
            }
            begin.elapsed().as_nanos() as f64 / f64::from(READS)
        })
        .collect();
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(list("0\n"), [0]);
        assert_eq!(list("\n"), [0usize; 0]);
    }

    #[test]
    fn what_is_not_there_is_wrong_use() {
        for failure in [pin(Some(99_999), None), pin(None, Some(99_999))] {
            let failure = failure.unwrap_err();
            assert!(failure.is_usage() && failure.to_string().contains("99999"), "{failure}");
        }
    }

    #[test]
    fn a_thread_is_bound_where_it_was_told() {
        let first = (0..CpuSet::MAX_CPU).find(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu)).unwrap();
        std::thread::spawn(move || {
            pin(Some(first), None).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_ran_for_half_of_the_time_shares_its_processor() {
        let mut share = Share::new();
        assert!(!share.is_shared());
        std::thread::sleep(Share::WINDOW);
        share.look(Instant::now());
        assert!(share.is_shared(), "who slept did not run");
        share.look(Instant::now());
        assert!(share.is_shared(), "no window has passed since");
        while of_thread() < Share::WINDOW {
            std::hint::spin_loop();
        }
        let now = Instant::now();
        let mut own = Share { since: now - Share::WINDOW, used: Duration::ZERO, is_shared: true };
        own.look(now);
        assert!(!own.is_shared(), "who ran all the time has it for itself");
    }

    #[test]
    fn work_uses_processor_time() {
        let before = time_used();
        let mut sum = 0u64;
        while time_used() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(time_used() > before && clock_cost_ns() > 0.0);
        assert!(resident_bytes() > 100 << 10, "a process has some pages");
    }
}
