//! Pictures as SVG: curves over a logarithmic axis, and the components of a latency as one bar. Text only; the same data give the same bytes.

use super::path::{Component, Place};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const COLOURS: &[&str] = &["#2563a8", "#c2571a", "#2f7d4f", "#8a3f8f", "#8c6d1f", "#555555"];

/// One line of a plot.
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Points; x above 0.
    pub points: Vec<(f64, f64)>,
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn head(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    )
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(what));
}

/// A number in few places.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 && value % 1e6 == 0.0 => format!("{}M", value / 1e6),
        size if size >= 1e4 && value % 1e3 == 0.0 => format!("{}k", value / 1e3),
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Where the rounding of a y axis ends: 1, 2 or 5 times a power of ten.
fn step(top: f64) -> f64 {
    let mut step = 1e-6;
    while step * 6.0 < top {
        for factor in [2.0, 2.5, 2.0] {
            step *= factor;
            if step * 6.0 >= top {
                break;
            }
        }
    }
    step
}

/// Lines over a logarithmic x axis; y begins at 0.
pub fn plot(title: &str, x_name: &str, y_name: &str, lines: &[Line]) -> String {
    const HEIGHT: f64 = 420.0;
    let (left, right, top, bottom) = (70.0, WIDTH - 30.0, 50.0, HEIGHT - 60.0);
    let mut xs: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|point| point.0.max(1.0))).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let highest = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    let step = step(highest.max(1e-3));
    let ceiling = (highest / step).ceil().max(1.0) * step;
    let (first, last) = (xs.first().copied().unwrap_or(1.0), xs.last().copied().unwrap_or(1.0));
    // The place on the axis needs few digits, and these do not differ between machines.
    let logarithm = |x: f64| f64::from((x.max(1.0).log2() * 4096.0).round() as i32) / 4096.0;
    let span = (logarithm(last) - logarithm(first)).max(1e-9);
    let place_x = |x: f64| left + (logarithm(x) - logarithm(first)) / span * (right - left);
    let place_y = |y: f64| bottom - y / ceiling * (bottom - top);
    let mut svg = head(HEIGHT, title);
    let mut y = 0.0;
    while y <= ceiling + step / 2.0 {
        let at = place_y(y);
        let _ = writeln!(svg, "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#dddddd\"/>");
        text(&mut svg, left - 6.0, at + 4.0, "end", &short(y));
        y += step;
    }
    let mut free = f64::MIN;
    for x in &xs {
        let at = place_x(*x);
        if at > free {
            text(&mut svg, at, bottom + 18.0, "middle", &short(*x));
            free = at + 42.0;
        }
    }
    text(&mut svg, (left + right) / 2.0, bottom + 38.0, "middle", x_name);
    text(&mut svg, left - 50.0, top - 10.0, "start", y_name);
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut path = String::new();
        for (x, y) in &line.points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", place_x(*x), place_y(*y));
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>",
                place_x(*x),
                place_y(*y)
            );
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>");
        let at = HEIGHT - 8.0;
        let x = left + index as f64 * 160.0;
        let _ =
            writeln!(svg, "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>", at - 9.0);
        text(&mut svg, x + 14.0, at, "start", &line.name);
    }
    svg + "</svg>\n"
}

/// The colour of a place.
pub fn colour(place: Place) -> &'static str {
    match place {
        Place::Cpu => COLOURS[0],
        Place::Bus => COLOURS[1],
        Place::Nic => COLOURS[2],
        Place::Wire => COLOURS[5],
        Place::Responder => COLOURS[3],
    }
}

/// Components, one below the other, each where its time lies.
pub fn bars(title: &str, components: &[Component]) -> String {
    const ROW: f64 = 22.0;
    let height = 60.0 + ROW * components.len() as f64 + 30.0;
    let total: u64 = components.iter().map(|component| component.ps).sum::<u64>().max(1);
    let (left, right) = (230.0, WIDTH - 90.0);
    let mut svg = head(height, title);
    let mut begun = 0;
    for (index, component) in components.iter().enumerate() {
        let y = 44.0 + ROW * index as f64;
        let at = |ps: u64| left + ps as f64 / total as f64 * (right - left);
        let (from, to) = (at(begun), at(begun + component.ps));
        text(&mut svg, left - 8.0, y + 13.0, "end", component.name);
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"16\" fill=\"{}\"/>",
            (to - from).max(0.8),
            colour(component.place)
        );
        text(&mut svg, to + 5.0, y + 13.0, "start", &format!("{} ns", short(component.ps as f64 / 1000.0)));
        begun += component.ps;
    }
    let sum = format!("sum {} ns", short(total as f64 / 1000.0));
    text(&mut svg, left, height - 16.0, "start", &sum);
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_holds_its_points_and_escapes_its_words() {
        let line = Line { name: "a<b".to_owned(), points: vec![(32.0, 100.0), (4096.0, 25.0)] };
        let svg = plot("rate & QPs", "QPs", "M/s", &[line]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("rate &amp; QPs") && svg.contains("a&lt;b"));
    }

    #[test]
    fn steps_are_round() {
        for (top, expected) in [(123.0, 50.0), (9.0, 2.0), (0.5, 0.1), (215.0, 50.0)] {
            assert!((step(top) / expected - 1.0).abs() < 1e-6, "{top}: {}", step(top));
        }
    }
}
