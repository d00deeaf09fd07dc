//! What many regions cost: registering and ending one, and a WRITE to one of them.

use super::pair::{RIGHTS, World, cost_ns, on_processor, take_all};
use super::{Limits, Table, count, ratio};
use scalefabric_verbs::*;
use std::sync::Arc;

/// Bytes of a region.
const BYTES: usize = 4096;

/// Registration, and WRITEs to regions in turn, as their number grows.
pub fn growing(limits: &Limits) -> Table {
    let mut table = Table::new(
        "N regions of 4 KiB in ordinary memory",
        &[
            "N",
            "register one, ns",
            "deregister one, ns",
            "8 B WRITE to one in turn, ns of processor",
            "WRITE / that of 1",
        ],
    );
    let world = World::new();
    let cq = world.cq(64);
    let queue_pair = world.connected(1, &cq).remove(0);
    // Regions share pages: what is registered is what the table must hold.
    let mut memory = vec![0u64; 64 * BYTES / 8];
    let base = memory.as_mut_ptr().cast::<u8>();
    let mut regions: Vec<Arc<dyn MemoryRegion>> = Vec::new();
    let mut first = None;
    for n in [1, 1_000, 10_000, 100_000].into_iter().filter(|n| *n <= limits.most) {
        let more = n as usize - regions.len();
        let before = on_processor();
        for index in 0..more {
            let at = base.wrapping_add(index % 64 * BYTES);
            // SAFETY: the memory lives as long as the regions, and nobody looks into it.
            let region = unsafe { world.domain.reg_mr(at, BYTES, at as u64, RIGHTS) };
            regions.push(region.expect("a region"));
        }
        let register = (on_processor() - before).as_nanos() as f64 / more as f64;
        let mut next = 0;
        let write = cost_ns(limits.ms, || {
            let region = &regions[next];
            queue_pair.post_send(&[World::write(&**region)]).expect("post");
            next = (next + 7919) % regions.len();
            take_all(&*cq, 1);
            1
        });
        // As many as there are are ended and made again, so that ending is measured beside as many.
        let again = regions.len().min(1000);
        let before = on_processor();
        for region in regions.drain(regions.len() - again..) {
            region.destroy().expect("it ends");
        }
        let end = (on_processor() - before).as_nanos() as f64 / again as f64;
        let first_write = *first.get_or_insert(write);
        table.row([
            count(n),
            format!("{register:.0}"),
            format!("{end:.0}"),
            format!("{write:.0}"),
            ratio(write / first_write),
        ]);
    }
    drop(regions);
    drop(memory);
    table
}
