//! Line plots as SVG, plain enough to be read as text. Numbers are rounded, so that the same run draws the same bytes.

use std::fmt::Write;

/// A line of a plot.
pub struct Line {
    /// Its name in the legend; empty: no legend.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
/// Up to so many points of a line are drawn as points, too.
const FEW: usize = 12;
const COLOURS: [&str; 8] = ["#1f5fa8", "#c2571a", "#2a7f46", "#8a3fa0", "#a88a1f", "#17808c", "#a83250", "#555555"];

/// Steps of an axis: about five round numbers, or powers of ten.
fn ticks(low: f64, high: f64, by_powers: bool) -> Vec<f64> {
    if by_powers {
        let mut power = 1.0;
        while power * 10.0 <= low {
            power *= 10.0;
        }
        // Powers of ten alone are too few for less than three of them.
        let between: &[f64] = if high < low * 1000.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut all = Vec::new();
        while power <= high * 1.001 {
            let these = between.iter().map(|times| power * times);
            all.extend(these.filter(|at| (low * 0.999..=high * 1.001).contains(at)));
            power *= 10.0;
        }
        return all;
    }
    let span = (high - low).max(1e-9);
    let mut step = 1.0;
    while step * 10.0 < span {
        step *= 10.0;
    }
    while step > span {
        step /= 10.0;
    }
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| step * times).find(|step| span / step <= 6.0).unwrap_or(step);
    let mut at = (low / step).ceil() * step;
    let mut all = Vec::new();
    while at <= high + step * 1e-6 {
        all.push(at);
        at += step;
    }
    all
}

fn label(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        v if v >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The power of ten of a number above 0, between powers in proportion: smooth enough to place points, and made of the four operations.
fn powers(value: f64) -> f64 {
    let (mut exponent, mut rest) = (0.0, value.max(1e-12));
    while rest >= 10.0 {
        rest /= 10.0;
        exponent += 1.0;
    }
    while rest < 1.0 {
        rest *= 10.0;
        exponent -= 1.0;
    }
    // log10 of 1..10 by its series around the geometric mean.
    let z = (rest - 3.162_277_660_168_379_5) / (rest + 3.162_277_660_168_379_5);
    let (square, mut power, mut sum, mut n) = (z * z, z, 0.0, 1.0);
    while n < 40.0 {
        sum += power / n;
        power *= square;
        n += 2.0;
    }
    exponent + 0.5 + 2.0 * sum / std::f64::consts::LN_10
}

/// Draws lines; with `by_powers` the x axis counts powers of ten.
pub fn lines(title: &str, x_name: &str, y_name: &str, lines: &[Line], by_powers: bool) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let low_x = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high_x = all().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
    let high_y = all().map(|point| point.1).fold(0.0, f64::max);
    let (low_x, high_x) =
        if low_x.is_finite() { (if by_powers { low_x.max(1.0) } else { 0.0 }, high_x) } else { (0.0, 1.0) };
    let high_x = if high_x > low_x { high_x } else { low_x + 1.0 };
    let high_y = if high_y > 0.0 { high_y * 1.05 } else { 1.0 };
    let place = |x: f64| {
        let part = if by_powers {
            (powers(x.max(low_x)) - powers(low_x)) / (powers(high_x) - powers(low_x)).max(1e-9)
        } else {
            (x - low_x) / (high_x - low_x)
        };
        LEFT + part * (WIDTH - LEFT - RIGHT)
    };
    let height = |y: f64| HEIGHT - BOTTOM - y / high_y * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" fill=\"#222222\">{}</text>\n",
        escaped(title)
    );
    for x in ticks(low_x, high_x, by_powers) {
        let at = place(x);
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"#e6e6e6\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444444\">{}</text>",
            bottom + 16.0,
            label(x)
        );
    }
    for y in ticks(0.0, high_y, false) {
        let at = height(y);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#e6e6e6\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#444444\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            label(y)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#222222\">{}</text>\n\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#222222\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0,
        escaped(x_name),
        (TOP + HEIGHT - BOTTOM) / 2.0,
        escaped(y_name)
    );
    let legend_top = legend_top(lines, &place, &height);
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut path = String::new();
        for (number, (x, y)) in line.points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if number == 0 { "M" } else { "L" }, place(*x), height(*y));
        }
        if path.is_empty() {
            continue;
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>");
        // Few points are figures of their own.
        for (x, y) in line.points.iter().filter(|_| line.points.len() <= FEW) {
            let (x, y) = (place(*x), height(*y));
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        if lines.len() > 1 && !line.name.is_empty() {
            let y = legend_top + 14.0 + 15.0 * index as f64;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>",
                LEFT + 10.0,
                escaped(&line.name)
            );
        }
    }
    svg + "</svg>\n"
}

/// Where the names of lines begin: at the top on the left, or at the bottom, where fewer lines are in their way.
fn legend_top(lines: &[Line], place: &impl Fn(f64) -> f64, height: &impl Fn(f64) -> f64) -> f64 {
    let (tall, wide) = (15.0 * lines.len() as f64 + 6.0, LEFT + 170.0);
    let bottom = HEIGHT - BOTTOM - tall;
    let crossings = |top: f64| {
        let between = |pair: &[(f64, f64)]| {
            let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (place(x), height(y)));
            (0..=20)
                .map(f64::from)
                .filter(|step| {
                    let (x, y) = (x0 + (x1 - x0) * step / 20.0, y0 + (y1 - y0) * step / 20.0);
                    x < wide && y > top && y < top + tall
                })
                .count()
        };
        lines.iter().flat_map(|line| line.points.windows(2)).map(between).sum::<usize>()
    };
    if crossings(bottom) < crossings(TOP) { bottom } else { TOP }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(0.0, 10.0, false), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(300.0, 2e6, true), [1e3, 1e4, 1e5, 1e6]);
        assert_eq!(ticks(8.0, 128.0, true), [10.0, 20.0, 50.0, 100.0]);
        assert_eq!(label(1_500_000.0), "1.5M");
        for value in [1.0, 2.0, 9.99, 10.0, 12_345.0, 0.02] {
            assert!((powers(value) - value.log10()).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn names_stand_where_lines_do_not() {
        let along = |y: f64| Line { name: format!("at {y}"), points: vec![(0.0, y), (1.0, y)] };
        let row = |svg: &str| svg.lines().any(|line| line.contains("y=\"50.0\"") && line.contains("at "));
        assert!(row(&lines("t", "x", "y", &[along(1.0), along(2.0), along(40.0)], false)), "at the top");
        assert!(!row(&lines("t", "x", "y", &[along(38.0), along(39.0), along(40.0)], false)), "at the bottom");
    }

    #[test]
    fn a_plot_is_well_formed_and_empty_ones_are_too() {
        let line = Line { name: "a<b".to_owned(), points: vec![(1.0, 2.0), (10.0, 3.0)] };
        let svg = lines("t & u", "x", "y", &[line, Line { name: "c".to_owned(), points: vec![(5.0, 1.0)] }], true);
        assert!(
            svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("a&lt;b") && svg.contains("t &amp; u")
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(!lines("t", "x", "y", &[], false).contains("NaN"));
    }
}
