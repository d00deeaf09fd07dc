//! What can be computed by hand: serialisation, bandwidth-delay products, queues of an incast, the first burst of a window, the threshold of PFC, the
//! efficiency of go-back-N, the share of marked packets.

use super::super::model::Model;
use super::super::time::Ps;
use super::super::topology::Topology;
use super::super::workload::flow_list::{Flow, FlowList};
use super::Check;
use super::trial::{Trial, WIRE, profile};

const GROUP: &str = "closed forms";

fn incast(n: u32, bytes: u64) -> Vec<Flow> {
    FlowList::incast(0..n, n, bytes, Ps::ZERO)
}

/// All closed forms.
pub(super) fn checks() -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    checks.extend(lone_packet()?);
    checks.extend(incast_without_control()?);
    checks.extend(window_burst()?);
    checks.extend(steady_hpcc()?);
    checks.extend(pfc_threshold()?);
    checks.extend(go_back_n()?);
    checks.extend(marking()?);
    Ok(checks)
}

/// One packet over each kind of fabric takes exactly its serialisation and the delays.
fn lone_packet() -> Result<Vec<Check>, String> {
    let none = profile("none", &[])?;
    let flow = |from, to| vec![Flow { start: Ps::ZERO, from, to, bytes: 1000 }];
    let star = Trial::star(2, none, flow(0, 1)).run()?;
    // 1048 B twice, 60 B twice, four wires.
    let expected = 2.0 * 83.84 + 2.0 * 4.8 + 4_000.0;
    let mut checks =
        vec![Check::new(GROUP, "one packet on a star", expected, star.makespan.0 as f64 / 1e3, 1e-6, "ns")];
    let tree = Topology::fat_tree(4, WIRE, super::super::topology::Wire { bps: 400_000_000_000, ..WIRE });
    let trial = Trial { topology: tree, ..Trial::star(2, none, flow(0, 15)) };
    // Two wires of 100 Gb/s and four of 400 Gb/s, there and back.
    let expected = 2.0 * (83.84 + 4.8) + 4.0 * (20.96 + 1.2) + 12_000.0;
    checks.push(Check::new(
        GROUP,
        "one packet through a fat tree",
        expected,
        trial.run()?.makespan.0 as f64 / 1e3,
        1e-6,
        "ns",
    ));
    Ok(checks)
}

fn incast_without_control() -> Result<Vec<Check>, String> {
    let out = Trial::star(17, profile("none", &[])?, incast(16, 1_000_000)).run()?;
    // The last link never idles from the first packet on: N packets of each flow, and the way there and back.
    let expected = (83.84 + 1_000.0 + 16_000.0 * 83.84 + 1_000.0 + 2.0 * 4.8 + 2_000.0) / 1e3;
    Ok(vec![
        Check::new(GROUP, "incast 16 x 1 MB: last completion", expected, out.makespan.as_us(), 1e-6, "µs"),
        Check::new(
            GROUP,
            "incast 16 x 1 MB: (N-1)/N of the bytes wait",
            15.0 / 16.0 * 16_000.0 * 1048.0,
            f64::from(out.queue_peak),
            0.05,
            "B",
        ),
        Check::new(GROUP, "incast 16 x 1 MB: drops", 0.0, out.counters.dropped() as f64, 0.0, ""),
    ])
}

fn window_burst() -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for (n, bytes) in [(16, 1_000_000), (8, 4_000_000)] {
        let out = Trial::star(n + 1, profile("hpcc", &[])?, incast(n, bytes)).run()?;
        // A window of 52,000 B is 52 packets of 1090 B from each but the one whose packets pass.
        let expected = f64::from(n - 1) * 52.0 * 1090.0;
        let name = format!("HPCC: first burst of {n} windows");
        checks.push(Check::new(GROUP, name, expected, f64::from(out.queue_peak), 2.0, "B"));
    }
    Ok(checks)
}

fn steady_hpcc() -> Result<Vec<Check>, String> {
    let flows = vec![
        Flow { start: Ps::ZERO, from: 0, to: 2, bytes: 20_000_000 },
        Flow { start: Ps::from_ns(300_000), from: 1, to: 2, bytes: 8_000_000 },
    ];
    let trial = Trial { sample: Ps::from_ns(10_000), ..Trial::star(3, profile("hpcc", &[])?, flows) };
    let (rates, jain) = trial.run()?.rates(Ps::from_ns(900_000), Ps::from_ns(1_200_000));
    Ok(vec![
        Check::new(GROUP, "HPCC, two flows: eta x C x 1000/1090", 0.95 * 100_000.0 / 1090.0, rates.iter().sum(), 0.5, "Gb/s"),
        Check::new(GROUP, "HPCC, two flows: Jain after 600 µs", 1.0, jain, 0.5, "")
            .because("40 Mb/s more in a round trip makes rates equal slowly, and which flow is ahead follows from phases of a nanosecond"),
    ])
}

fn pfc_threshold() -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for n in [4_u32, 8] {
        let out = Trial::star(n + 1, profile("none", &[])?, incast(n, 8_000_000)).run()?;
        let ports = f64::from(n + 1);
        // What reserves (4096 B) and headrooms (37,500 B) of all ports leave of 32 MiB is shared; alpha 1/8.
        let shared = 33_554_432.0 - ports * (37_500.0 + 4_096.0);
        let senders = f64::from(n);
        // What is on both wires when the pause is told, and a packet or two, still comes in.
        let on_the_way = senders * 12.5 * (2.0 * 1_000.0 + 1.5 * 83.84);
        let expected = senders * 4_096.0 + senders * shared / (8.0 + senders) + on_the_way;
        let name = format!("PFC: {n} ports fill up to the threshold");
        checks.push(Check::new(GROUP, name, expected, f64::from(out.queue_peak), 1.0, "B"));
        checks.push(Check::new(GROUP, format!("PFC: {n} ports, drops"), 0.0, out.counters.dropped() as f64, 0.0, ""));
    }
    Ok(checks)
}

/// A packet in 1/p is lost, and with it what was sent until the sender hears of it: k packets.
fn go_back_n() -> Result<Vec<Check>, String> {
    let (loss, seeds) = (1e-4, 12);
    let mut sum = 0.0;
    for seed in 0..seeds {
        let flow = vec![Flow { start: Ps::ZERO, from: 0, to: 2, bytes: 20_000_000 }];
        let mut trial = Trial { seed, ..Trial::star(3, profile("none", &[])?, flow) };
        trial.topology.links[0].loss_e7 = (loss * 1e7) as u32;
        // Lost answers are a matter of timers; here the answer comes.
        trial.model.host.timeout = Some(Ps::from_ns(100_000));
        sum += trial.run()?.makespan.as_us();
    }
    let alone = 4.16 + 20_000.0 * 0.083_84;
    // Round trip of a packet whose successor tells of it: 4.2 µs, and the packet itself.
    let k = 4_177.28 / 83.84 + 1.0;
    let expected = alone * (1.0 + loss * k);
    Ok(vec![
        Check::new(GROUP, "go-back-N, 1 loss in 10,000", expected, sum / seeds as f64, 1.0, "µs")
            .because("a lost answer costs more than a lost packet, and chance remains in 12 runs of 20,000 packets"),
    ])
}

/// Two senders into one link fill its queue evenly up to what one of them sends, and it drains as evenly.
fn marking() -> Result<Vec<Check>, String> {
    let bytes = 2_000_000_u64;
    let mut trial = Trial::star(3, profile("none", &[])?, incast(2, bytes));
    trial.model = Model::reference();
    let out = trial.run()?;
    let most = bytes as f64 * 1.048;
    let (kmin, kmax, pmax) = (400e3, 1_600e3, 0.2);
    let expected = ((kmax - kmin) * pmax / 2.0 + (most - kmax)) / most;
    let got = out.counters.marked as f64 / out.counters.data_packets as f64;
    Ok(vec![Check::new(GROUP, "ECN: share of marked packets", expected * 100.0, got * 100.0, 3.0, "%")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_closed_form_is_met() {
        let wrong: Vec<Check> = checks().unwrap().into_iter().filter(|check| !check.agrees()).collect();
        assert!(wrong.is_empty(), "\n{}", super::super::table(&wrong));
    }
}
