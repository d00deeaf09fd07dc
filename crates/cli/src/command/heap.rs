//! How the C library's heap behaves in a process that lives long. It sets that at the start, before there are threads, and does nothing else.

/// With two, look-ups wait for the thread that decides (p99 10 ms instead of 4 at 512 agents); with sixteen, memory is not bounded as it should be.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 4;

/// Keeps to four heaps. By default glibc makes one for each of many threads, and memory that one thread let go does not serve the next: at 512 agents and 100,000
/// connections control holds 630 MiB that way, 480 MiB this way. Other C libraries do not have this trait.
pub fn few_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain call that takes two numbers. WHY: the environment variable of the same meaning is read before `main`.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}
