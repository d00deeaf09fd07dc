//! The folder of a run: a summary as JSON, the tables as CSV and, if they are asked for, as Parquet, and pictures.

use super::super::plot::{self, Line};
use super::super::recorder::Sample;
use super::{Bin, Report, parquet};

/// A file: its name and what stands in it.
pub type File = (String, Vec<u8>);

impl Report {
    /// All files; the summary is the first. With `with_parquet` each table stands there a second time, as Parquet. The error is that of the Parquet writer.
    pub fn files(&self, with_parquet: bool) -> Result<Vec<File>, String> {
        let json = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        let mut files = vec![("summary.json".to_owned(), json.into_bytes())];
        for table in self.tables() {
            files.push((format!("{}.csv", table.name), table.csv().into_bytes()));
            if with_parquet {
                files.push((format!("{}.parquet", table.name), parquet::write(self, &table)?));
            }
        }
        files.extend(self.pictures().into_iter().map(|(name, text)| (name.to_owned(), text.into_bytes())));
        Ok(files)
    }

    fn pictures(&self) -> Vec<(&'static str, String)> {
        let over_time = |name: &str, of: &dyn Fn(&Sample) -> f64| Line {
            name: name.to_owned(),
            points: self.samples.iter().map(|sample| (sample.at.as_us(), of(sample))).collect(),
        };
        let queue = over_time("longest queue", &|sample| f64::from(sample.worst_queue) / 1e3);
        let goodput = over_time("goodput", &|sample| sample.goodput_gbps);
        let known = self.samples.iter().filter_map(|sample| Some((sample.at.as_us(), sample.jain?)));
        let jain = Line { name: "Jain's index".to_owned(), points: known.collect() };
        let mut pictures = vec![
            ("queue.svg", plot::lines("Longest queue", "time, µs", "kB", &[queue], false)),
            ("goodput.svg", plot::lines("Goodput of all", "time, µs", "Gb/s", &[goodput], false)),
            ("fairness.svg", plot::lines("Fairness", "time, µs", "Jain's index", &[jain], false)),
        ];
        if self.flows.ended > 0 {
            pictures.push(("slowdown.svg", slowdown_by_size(std::slice::from_ref(self))));
        }
        pictures
    }
}

/// The picture of slowdowns by size, one pair of lines for each report.
pub fn slowdown_by_size(reports: &[Report]) -> String {
    let mut lines = Vec::new();
    for report in reports {
        let name = if reports.len() == 1 { String::new() } else { format!("{} ", report.algorithm) };
        for (label, of) in [("p50", (|bin: &Bin| bin.p50) as fn(&Bin) -> f64), ("p99", |bin| bin.p99)] {
            let points = report.flows.bins.iter().map(|bin| (bin.max_bytes as f64, of(bin))).collect();
            lines.push(Line { name: format!("{name}{label}"), points });
        }
    }
    plot::lines("Slowdown by size", "flow size, bytes", "slowdown", &lines, true)
}
