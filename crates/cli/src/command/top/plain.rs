//! One look as text, for pipes and mails: the summary, the busiest ports, the last moves and events.

use super::model::{Model, Picture};
use super::screen::{bar_of, rate, speed};
use crate::table::{Align, Table};
use std::fmt::Write;

/// Ports that are listed.
const PORTS: usize = 20;
/// Events that are listed.
const EVENTS: usize = 10;

/// The text.
pub fn text(model: &Model) -> String {
    let Some(Picture { overview, .. }) = &model.picture else { return String::new() };
    let mut text = String::new();
    if let Some(second) = &overview.second {
        let all = &second.summary;
        let _ = writeln!(
            text,
            "{} nodes, {} of {} ports up, {} hot, {} down, {} connections, {} sent, {} moves/min",
            all.nodes,
            all.up,
            all.ports,
            all.hot,
            all.down,
            all.ends / 2,
            rate(all.tx_bps),
            all.moves_per_minute
        );
    }
    let store = &overview.store;
    let reason = store.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let dry = if overview.rebalance.dry_run { ", dry run" } else { "" };
    let _ = writeln!(
        text,
        "store {} {}{reason}, leader {}, freeze {}{dry}, asked {}\n",
        store.kind,
        store.health.replace('-', " "),
        overview.leader.as_deref().unwrap_or("none"),
        overview.rebalance.freeze,
        overview.replica
    );
    let rows = model.ports();
    let mut ports = Table::new(&[
        ("port", Align::Left),
        ("speed", Align::Right),
        ("busier", Align::Left),
        ("sent", Align::Right),
        ("received", Align::Right),
        ("QPs", Align::Right),
        ("state", Align::Left),
        ("switch", Align::Left),
    ]);
    for row in rows.iter().take(PORTS) {
        let carried = |permille: i32| {
            if permille < 0 || row.rate_mbps == 0 {
                "-".to_owned()
            } else {
                rate(f64::from(permille) * row.rate_mbps as f64 * 1e3)
            }
        };
        ports.row(vec![
            row.name(),
            speed(row.rate_mbps),
            bar_of(row.busier(), 10, false),
            carried(row.tx),
            carried(row.rx),
            row.connections.to_string(),
            row.state().to_owned(),
            row.switch.clone(),
        ]);
    }
    let _ = write!(text, "{ports}");
    if rows.len() > PORTS {
        let _ = writeln!(text, "… and {} ports more", rows.len() - PORTS);
    }
    let events = model.events();
    if !events.is_empty() {
        let _ = writeln!(text);
    }
    for event in events.iter().take(EVENTS) {
        let why = event.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let _ = writeln!(text, "{} s ago: {}{why}", model.seconds_since(event.at_ms), event.text);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_look_is_a_table_that_can_be_cut() {
        insta::assert_snapshot!("once", super::text(&super::super::screen::tests::model()));
    }
}
