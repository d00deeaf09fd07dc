//! Distributions of flow sizes: the published ones, and points of one's own. Between two points sizes are equally likely.

use super::super::csv;
use crate::random::Random;

/// A distribution: bytes, and the per cent of flows that are not larger.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    points: Vec<(f64, f64)>,
}

/// Web search (DCTCP, SIGCOMM 2010, as the HPCC project publishes it). Mean 1.711 MB.
const WEB_SEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (10e3, 15.0),
    (20e3, 20.0),
    (30e3, 30.0),
    (50e3, 40.0),
    (80e3, 53.0),
    (200e3, 60.0),
    (1e6, 70.0),
    (2e6, 80.0),
    (5e6, 90.0),
    (10e6, 97.0),
    (30e6, 100.0),
];

/// Hadoop at Facebook (SIGCOMM 2015, as the HPCC project publishes it). Mean 120.4 kB.
const FB_HADOOP: &[(f64, f64)] = &[
    (0.0, 0.0),
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1e3, 60.0),
    (2e3, 67.0),
    (7e3, 70.0),
    (30e3, 72.0),
    (50e3, 82.0),
    (80e3, 87.0),
    (120e3, 90.0),
    (300e3, 95.0),
    (1e6, 97.5),
    (2e6, 99.0),
    (10e6, 100.0),
];

/// Storage at Alibaba (2019, as the HPCC project publishes it). Mean 40.9 kB.
const ALI_STORAGE: &[(f64, f64)] = &[
    (0.0, 0.0),
    (4e3, 22.93),
    (8e3, 69.21),
    (16e3, 80.61),
    (32e3, 90.47),
    (64e3, 93.53),
    (128e3, 96.77),
    (256e3, 97.53),
    (2e6, 100.0),
];

/// The names that [`Sizes::named`] knows.
pub const NAMES: [&str; 3] = ["web-search", "fb-hadoop", "ali-storage"];

impl Sizes {
    /// A published distribution.
    pub fn named(name: &str) -> Option<Self> {
        let points = match name {
            "web-search" => WEB_SEARCH,
            "fb-hadoop" => FB_HADOOP,
            "ali-storage" => ALI_STORAGE,
            _ => return None,
        };
        Some(Self { points: points.to_vec() })
    }

    /// All of one size.
    pub fn fixed(bytes: u64) -> Self {
        Self { points: vec![(bytes as f64, 0.0), (bytes as f64, 100.0)] }
    }

    /// Reads `bytes,percent`, rising from 0 to 100 per cent, of at most so many bytes.
    pub fn from_csv(text: &str, name: &str, most_bytes: u64) -> Result<Self, String> {
        let mut rows = csv::rows(text, name, "bytes,percent")?;
        let (mut points, mut last): (Vec<(f64, f64)>, usize) = (Vec::new(), 1);
        while let Some(row) = rows.next_row()? {
            let least = points.last().copied().unwrap_or((0.0, 0.0));
            let bytes = row.real(0, least.0, most_bytes as f64)?;
            let percent = row.real(1, least.1, 100.0)?;
            if points.is_empty() && percent != 0.0 {
                return Err(row.wrong(1, "0 in the first line"));
            }
            points.push((bytes, percent));
            last = row.line;
        }
        match points.last() {
            Some((bytes, percent)) if *percent == 100.0 && *bytes >= 1.0 => Ok(Self { points }),
            Some((_, percent)) if *percent == 100.0 => {
                Err(format!("{name}:{last}: bytes: all sizes are 0; expected 1 or more in the last line"))
            }
            _ => Err(format!("{name}:{last}: percent: the last line must be at 100")),
        }
    }

    /// The mean in bytes.
    pub fn mean(&self) -> f64 {
        self.points.windows(2).map(|pair| (pair[1].1 - pair[0].1) / 100.0 * (pair[0].0 + pair[1].0) / 2.0).sum()
    }

    /// A size, at least one byte.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let percent = (random.next() >> 11) as f64 / 9_007_199_254_740_992.0 * 100.0;
        let after = self.points.partition_point(|point| point.1 <= percent).clamp(1, self.points.len() - 1);
        let (low, high) = (self.points[after - 1], self.points[after]);
        let part = if high.1 > low.1 { (percent - low.1) / (high.1 - low.1) } else { 1.0 };
        ((low.0 + part * (high.0 - low.0)) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_the_published_ones() {
        for (name, mean) in NAMES.into_iter().zip([1_711_250.0, 120_400.0, 40_900.0]) {
            let got = Sizes::named(name).unwrap().mean();
            assert!((got / mean - 1.0).abs() < 0.005, "{name}: {got}");
        }
    }

    #[test]
    fn draws_follow_the_points() {
        let (sizes, mut random) = (Sizes::named("web-search").unwrap(), Random::new(9, 0));
        let draws: Vec<u64> = (0..100_000).map(|_| sizes.draw(&mut random)).collect();
        for (bytes, percent) in WEB_SEARCH.iter().skip(1) {
            let below = draws.iter().filter(|draw| **draw as f64 <= *bytes).count() as f64 / 1000.0;
            assert!((below - percent).abs() < 0.6, "{bytes}: {below} {percent}");
        }
        assert_eq!(Sizes::fixed(4096).draw(&mut random), 4096);
        assert_eq!(Sizes::fixed(4096).mean(), 4096.0);
    }

    #[test]
    fn own_points_are_checked() {
        assert!(Sizes::from_csv("bytes,percent\n0,0\n100,50\n1000,100\n", "d", 1 << 42).is_ok());
        for bad in ["0,0\n100,50\n90,100", "0,0\n100,50", "0,10\n100,100", "0,0\n100,50\n200,40"] {
            assert!(Sizes::from_csv(&format!("bytes,percent\n{bad}\n"), "d", 1 << 42).is_err(), "{bad}");
        }
    }
}
