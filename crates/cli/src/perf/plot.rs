//! The picture of `--plot`: size against bandwidth, and size against latency, one above the other, as SVG.

use crate::failure::Failure;
use crate::perf::client::{Measured, Way};
use crate::units;
use plotters::coord::Shift;
use plotters::coord::ranged1d::AsRangedCoord;
use plotters::prelude::*;
use std::path::Path;

/// Size of a part, pixels.
const PART: (u32, u32) = (860, 400);

/// A line of a part.
struct Curve {
    name: &'static str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// A part of the picture.
struct Part {
    title: String,
    unit: &'static str,
    /// Times span decades, and so does what is drawn of them.
    is_logarithmic: bool,
    curves: Vec<Curve>,
}

const BLUE: RGBColor = RGBColor(31, 119, 180);
const GREY: RGBColor = RGBColor(150, 150, 150);
const RED: RGBColor = RGBColor(214, 39, 40);

/// Says before anything is measured that the file cannot be written.
pub fn check(file: &Path) -> Result<(), Failure> {
    let existed = file.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| Failure::usage(format!("--plot {}: cannot be written: {error}", file.display())))?;
    if !existed {
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Draws it.
pub fn draw(measured: &Measured, file: &Path) -> Result<(), Failure> {
    let parts = parts(measured);
    let fail = |error: &dyn std::fmt::Display| Failure::failed(format!("--plot {}: {error}", file.display()));
    let size = (PART.0, PART.1 * parts.len().max(1) as u32);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE).map_err(|error| fail(&error))?;
    for (part, place) in parts.iter().zip(area.split_evenly((parts.len().max(1), 1))) {
        part.draw(&place).map_err(|error| fail(&error))?;
    }
    area.present().map_err(|error| fail(&error))
}

fn parts(measured: &Measured) -> Vec<Part> {
    let name = format!("{} over {}", measured.plan.verb.name(), measured.plan.transport.name());
    let rows = || measured.rows.iter();
    let of_bandwidth = |value: fn(&crate::perf::client::Bandwidth) -> f64| -> Vec<(f64, f64)> {
        rows().filter_map(|row| Some((f64::from(row.size), value(row.bandwidth.as_ref()?)))).collect()
    };
    let of_latency = |value: fn(&crate::perf::histogram::Latency) -> f64| -> Vec<(f64, f64)> {
        rows().filter_map(|row| Some((f64::from(row.size), value(row.latency.as_ref()?.latency.as_ref()?)))).collect()
    };
    let mut parts = Vec::new();
    if rows().any(|row| row.bandwidth.is_some()) {
        parts.push(Part {
            title: format!("{name}: bandwidth"),
            unit: "Gb/s",
            is_logarithmic: false,
            curves: vec![
                Curve { name: "best 5 ms", colour: GREY, points: of_bandwidth(|told| told.peak_gbits) },
                Curve { name: "average", colour: BLUE, points: of_bandwidth(|told| told.average_gbits) },
            ],
        });
    }
    if let Some(timing) = rows().find_map(|row| row.latency) {
        let way = if timing.of == Way::OneWay { "one way" } else { "round trip" };
        parts.push(Part {
            title: format!("{name}: latency, {way}"),
            unit: "µs",
            is_logarithmic: true,
            curves: vec![
                Curve { name: "p99.9", colour: GREY, points: of_latency(|told| told.p999_us) },
                Curve { name: "p99", colour: RED, points: of_latency(|told| told.p99_us) },
                Curve { name: "median", colour: BLUE, points: of_latency(|told| told.p50_us) },
            ],
        });
    }
    parts
}

impl Part {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn std::error::Error>> {
        let all = || self.curves.iter().flat_map(|curve| &curve.points);
        let most = all().map(|point| point.1).fold(0.0, f64::max).max(1e-3);
        let least = all().map(|point| point.1).fold(most, f64::min).max(1e-3);
        if self.is_logarithmic {
            self.draw_on(area, (least / 1.5..most * 1.5).log_scale())
        } else {
            self.draw_on(area, 0.0..most * 1.1)
        }
    }

    fn draw_on<Y>(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, y: Y) -> Result<(), Box<dyn std::error::Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: plotters::coord::ranged1d::ValueFormatter<f64>,
    {
        let sizes = self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
        let (first, last) = sizes.fold((f64::INFINITY, 0.0f64), |(low, high), size| (low.min(size), high.max(size)));
        let sizes = first.min(last)..last.max(first + 1.0);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(sizes.log_scale().base(2.0), y)?;
        chart
            .configure_mesh()
            .x_desc("message size")
            .y_desc(self.unit)
            .x_labels(12)
            .x_label_formatter(&|size| units::size(*size as u64).replace("iB", ""))
            .y_label_formatter(&|value| short(*value))
            .light_line_style(WHITE)
            .draw()?;
        for curve in &self.curves {
            let colour = curve.colour;
            chart
                .draw_series(LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)).point_size(3))?
                .label(curve.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(GREY)
            .draw()?;
        Ok(())
    }
}

/// `0.5`, `20`, `1500`.
fn short(value: f64) -> String {
    let text = if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        assert_eq!([0.5, 20.0, 1500.0, 3.25, 1.0, 0.0].map(short), ["0.5", "20", "1500", "3.25", "1", "0"]);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_wrong_use() {
        assert!(check(Path::new("/nonexistent/a.svg")).unwrap_err().is_usage());
    }
}
