//! `sfab sim nic compare` and `validate`: what is taught beside what was measured, and every reference point beside what the model gives.

use super::Chosen;
use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::terminal::{say, verdict};
use clap::Args;
use scalefabric_sim::rnic::reference::{self, Expected, Point, Role, Verdict};
use scalefabric_sim::rnic::{compare, svg};
use serde_json::json;

/// Taught figures beside measured ones, with what explains a contradiction; nothing is averaged.
#[derive(Args)]
pub struct CompareOptions {}

/// Every reference point: expected, got, tolerance, source; exit code 1 if one fails.
#[derive(Args)]
pub struct ValidateOptions {
    /// Only points whose name, kind or source has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Threads that compute [default: as many as cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: Option<u32>,
}

/// The command `compare`.
pub fn compare(chosen: &Chosen) -> Result<(), Failure> {
    if chosen.profile_file.is_some() {
        return Err(Failure::usage("compare is about the two profiles of a NIC; use --profile"));
    }
    let rows = compare::rows(&chosen.profile).map_err(Failure::usage)?;
    let value = |value: f64| svg::short(value);
    if chosen.json {
        let rows = rows.iter().map(|row| {
            let [course, measured] = row.values;
            json!({
                "what": row.question.what, "unit": row.question.unit, "course_says": row.question.course,
                "measured_says": row.question.measured, "course_model": course, "measured_model": measured,
                "contradicts": row.contradicts(), "remark": row.question.remark,
            })
        });
        say!("{:#}", json!({ "profile": chosen.profile, "rows": rows.collect::<Vec<_>>() }));
        return Ok(());
    }
    say!("{}: the model with taught figures, and with measured ones", chosen.profile);
    if chosen.profile != "cx6" {
        say!("The quotations are about ConnectX-6.");
    }
    for row in rows {
        let [course, measured] = row.values;
        let unit = row.question.unit;
        let mark = if row.contradicts() { "  CONTRADICTION" } else { "" };
        say!("\n{} ({unit}){mark}", row.question.what);
        let said = |text: &'static str| if text.is_empty() { "says nothing" } else { text };
        say!("  course    model {:>8}   says: {}", value(course), said(row.question.course));
        say!("  measured  model {:>8}   says: {}", value(measured), said(row.question.measured));
        if !row.question.remark.is_empty() {
            say!("  {}", row.question.remark);
        }
    }
    Ok(())
}

fn expected(point: &Point) -> (String, String) {
    match point.expected {
        Expected::About(value) => (svg::short(value), format!("{:.0} %", reference::TOLERANCE * 100.0)),
        Expected::Within(low, high) if low == high => (svg::short(low), "exact".to_owned()),
        Expected::Within(low, high) => (format!("{}..{}", svg::short(low), svg::short(high)), "range".to_owned()),
    }
}

fn role(point: &Point) -> &'static str {
    match point.role {
        Role::Fitted => "fitted",
        Role::Predicted => "predicted",
    }
}

/// The command `validate`.
pub fn validate(chosen: &Chosen, options: &ValidateOptions) -> Result<(), Failure> {
    let mut points = reference::points();
    if let Some(text) = &options.only {
        let has = |field: &str| field.to_lowercase().contains(&text.to_lowercase());
        points.retain(|point| has(&point.name) || has(point.kind.label()) || has(point.source));
        if points.is_empty() {
            return Err(Failure::usage(format!("no reference point has `{text}` in its name, kind or source")));
        }
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let judged = reference::judge_all(&points, options.jobs.map_or_else(cores, |jobs| jobs as usize));
    let count = |wanted: Verdict| judged.iter().filter(|(_, verdict)| *verdict == wanted).count();
    let failed = judged.iter().filter(|(_, verdict)| verdict.is_failure()).count();
    if chosen.json {
        let rows = points.iter().zip(&judged).map(|(point, (got, verdict))| {
            let (low, high) = match point.expected {
                Expected::About(value) => (value * (1.0 - reference::TOLERANCE), value * (1.0 + reference::TOLERANCE)),
                Expected::Within(low, high) => (low, high),
            };
            json!({
                "name": point.name, "profile": point.profile, "kind": point.kind.label(), "unit": point.unit,
                "expected": expected(point).0, "low": low, "high": high, "got": got.as_ref().ok(),
                "error": got.as_ref().err(), "role": role(point), "source": point.source, "verdict": verdict.label(),
                "why": point.excuse,
            })
        });
        say!("{:#}", json!({ "points": rows.collect::<Vec<_>>(), "failed": failed }));
    } else {
        let mut table = Table::new(&[
            ("kind", Align::Left),
            ("point", Align::Left),
            ("expected", Align::Right),
            ("got", Align::Right),
            ("unit", Align::Left),
            ("tolerance", Align::Right),
            ("", Align::Left),
            ("", Align::Left),
            ("source", Align::Left),
        ]);
        for (point, (got, judgement)) in points.iter().zip(&judged) {
            let (value, tolerance) = expected(point);
            let got = got.as_ref().map_or_else(|_| "-".to_owned(), |got| svg::short(*got));
            table.row(vec![
                point.kind.label().to_owned(),
                point.name.clone(),
                value,
                got,
                point.unit.to_owned(),
                tolerance,
                role(point).to_owned(),
                judgement.label().to_owned(),
                point.source.to_owned(),
            ]);
        }
        crate::terminal::print(format_args!("{table}"));
        for (point, (got, judgement)) in points.iter().zip(&judged) {
            if let Err(error) = got {
                say!("\n{}: {error}", point.name);
            }
            match (judgement, point.excuse) {
                (Verdict::Differs, Some(why)) => say!("\n{} differs: {why}", point.name),
                (Verdict::Stale, Some(why)) => say!("\n{} agrees, but is said to differ: {why}", point.name),
                _ => {}
            }
        }
        let predicted = points
            .iter()
            .zip(&judged)
            .filter(|(point, (_, verdict))| point.role == Role::Predicted && *verdict == Verdict::Agrees);
        say!(
            "\n{} points: {} ok ({} of them predicted, the rest fitted), {} differ for a reason that is given, {}",
            points.len(),
            count(Verdict::Agrees),
            predicted.count(),
            count(Verdict::Differs),
            verdict(failed == 0, &format!("{failed} fail"))
        );
    }
    if failed > 0 { Err(Failure::failed(format!("{failed} reference points fail"))) } else { Ok(()) }
}
