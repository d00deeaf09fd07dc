//! Medians, spreads and ratios of repeated measurements.

use crate::table::{Align, Table};
use crate::terminal::say;
use serde_json::json;
use std::time::Duration;

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// RC WRITE of 64 KiB.
    Write64K,
    /// RC WRITE of 1 MiB.
    Write1M,
    /// UDP with GSO and GRO, 64 KiB at a time.
    Datagram64K,
    /// UDP with GSO and GRO, 1 MiB at a time.
    Datagram1M,
    /// TCP.
    Stream,
    /// 8-byte WRITE there and back.
    WriteLatency,
    /// 8-byte SEND there and back.
    SendLatency,
    /// Datagram there and back.
    DatagramLatency,
    /// 8-byte WRITEs, 32 to a doorbell.
    Rate32,
    /// 8-byte WRITEs, one to a doorbell.
    Rate1,
}

impl Quantity {
    /// All, in the order in which a repetition measures them: each beside what it is compared with.
    pub const ALL: [Self; 10] = [
        Self::Datagram64K,
        Self::Write64K,
        Self::Stream,
        Self::Write1M,
        Self::Datagram1M,
        Self::WriteLatency,
        Self::DatagramLatency,
        Self::SendLatency,
        Self::Rate32,
        Self::Rate1,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write64K => "RC WRITE 64 KiB",
            Self::Write1M => "RC WRITE 1 MiB",
            Self::Datagram64K => "raw UDP GSO/GRO 64 KiB",
            Self::Datagram1M => "raw UDP GSO/GRO 1 MiB",
            Self::Stream => "TCP as iperf3 drives it",
            Self::WriteLatency => "8-byte WRITE, one way",
            Self::SendLatency => "8-byte SEND, one way",
            Self::DatagramLatency => "raw UDP, one way",
            Self::Rate32 => "8-byte WRITEs, 32 a doorbell",
            Self::Rate1 => "8-byte WRITEs, 1 a doorbell",
        }
    }

    /// Unit of its numbers.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::WriteLatency | Self::SendLatency | Self::DatagramLatency => "us",
            Self::Rate32 | Self::Rate1 => "M/s",
            _ => "Gb/s",
        }
    }
}

/// Ratios that matter: over, under, and the aim in words.
pub const RATIOS: &[(Quantity, Quantity, &str)] = &[
    (Quantity::Write64K, Quantity::Datagram64K, "at least 0.7"),
    (Quantity::Write1M, Quantity::Datagram1M, "at least 0.7"),
    (Quantity::Write64K, Quantity::Stream, ""),
    (Quantity::Write1M, Quantity::Stream, ""),
    (Quantity::WriteLatency, Quantity::DatagramLatency, "at most 1.5"),
    (Quantity::SendLatency, Quantity::DatagramLatency, "at most 1.5"),
];

/// Median of what was measured; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Median of times in µs.
pub fn median_us(samples: &mut [Duration]) -> f64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

/// All repetitions.
#[derive(Default)]
pub struct Summary {
    values: Vec<(Quantity, Vec<f64>)>,
}

impl Summary {
    /// One more measurement.
    pub fn add(&mut self, quantity: Quantity, value: f64) {
        match self.values.iter_mut().find(|(other, _)| *other == quantity) {
            Some((_, values)) => values.push(value),
            None => self.values.push((quantity, vec![value])),
        }
    }

    fn of(&self, quantity: Quantity) -> Option<&[f64]> {
        self.values.iter().find(|(other, _)| *other == quantity).map(|(_, values)| values.as_slice())
    }

    /// The ratio of each repetition: what was measured side by side is compared, not what a quiet moment favoured.
    fn ratios(&self, over: Quantity, under: Quantity) -> Option<Vec<f64>> {
        let pairs = self.of(over)?.iter().zip(self.of(under)?);
        Some(pairs.filter(|(_, under)| **under > 0.0).map(|(over, under)| over / under).collect())
    }

    /// Prints medians with their spread, then ratios.
    pub fn print(&self) {
        let right = Align::Right;
        let head = [("", Align::Left), ("median", right), ("least", right), ("most", right), ("unit", Align::Left)];
        let mut table = Table::new(&head);
        for (quantity, values) in &self.values {
            table.row(row(quantity.name().to_owned(), values, quantity.unit()));
        }
        say!("{table}");
        let mut table = Table::new(&[&head[..4], &[("aim", Align::Left)]].concat());
        for (over, under, aim) in RATIOS {
            if let Some(ratios) = self.ratios(*over, *under) {
                table.row(row(format!("{} / {}", over.name(), under.name()), &ratios, aim));
            }
        }
        crate::terminal::print(format_args!("{table}"));
    }

    /// The same as JSON.
    pub fn as_json(&self) -> serde_json::Value {
        let values = self.values.iter().map(|(quantity, values)| {
            json!({ "what": quantity.name(), "unit": quantity.unit(), "median": median(values), "all": values })
        });
        let ratios = RATIOS.iter().filter_map(|(over, under, aim)| {
            let ratios = self.ratios(*over, *under)?;
            Some(json!({ "over": over.name(), "under": under.name(), "aim": aim, "median": median(&ratios) }))
        });
        json!({ "values": values.collect::<Vec<_>>(), "ratios": ratios.collect::<Vec<_>>() })
    }
}

fn row(name: String, values: &[f64], last: &str) -> Vec<String> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    let shown = |value: f64| format!("{value:.2}");
    vec![name, shown(median(values)), shown(least), shown(most), last.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_what_was_measured_side_by_side() {
        let mut summary = Summary::default();
        for (udp, write) in [(10.0, 8.0), (100.0, 80.0), (50.0, 40.0)] {
            summary.add(Quantity::Datagram1M, udp);
            summary.add(Quantity::Write1M, write);
        }
        let ratios = summary.ratios(Quantity::Write1M, Quantity::Datagram1M).unwrap();
        assert!(ratios.iter().all(|ratio| (ratio - 0.8).abs() < 1e-9));
        assert_eq!(summary.ratios(Quantity::Write1M, Quantity::Stream), None);
    }
}
