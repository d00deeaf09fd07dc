//! What `sfab top` draws: two lines of summary, the view, a line of keys. It fits 80 columns and 24 lines; states are words before they are colours, and bars are of `#` where
//! the terminal's language has no blocks.

use super::Sort;
use super::keys::Keys;
use super::model::{EventEntry, Model, Overview, PortRow, View};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

/// What the terminal can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Colours.
    pub colour: bool,
    /// More than ASCII.
    pub blocks: bool,
}

impl Look {
    /// Without colours if `NO_COLOR` is set or the terminal is `dumb`; in ASCII unless its language is UTF-8.
    pub fn of_this_terminal() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let language = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
        Self {
            colour: set("NO_COLOR").is_none() && set("TERM").as_deref() != Some("dumb"),
            blocks: language.contains("utf-8") || language.contains("utf8"),
        }
    }

    fn style(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn warn(self) -> Style {
        self.style(Color::Indexed(208)).add_modifier(Modifier::BOLD)
    }

    fn quiet(self) -> Style {
        if self.colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    fn dash(self) -> &'static str {
        if self.blocks { "–" } else { "-" }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model, keys: &Keys, look: Look) {
    let [head, tabs, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(summary(model, look)), head);
    frame.render_widget(Paragraph::new(titles(model, look)), tabs);
    view(frame, body, model, look);
    frame.render_widget(Paragraph::new(bottom(model, keys, look)), foot);
    if keys.help {
        explain(frame);
    }
}

/// Two lines.
fn summary(model: &Model, look: Look) -> Vec<Line<'static>> {
    let Some(overview) = model.picture.as_ref().map(|picture| &picture.overview) else { return Vec::new() };
    let mut first = vec![Span::styled("scaleFabric ", Style::new().add_modifier(Modifier::BOLD))];
    let mut second = vec![Span::raw(" ".repeat(12))];
    match &overview.second {
        None => first.push(Span::raw("nothing is measured yet")),
        Some(now) => {
            let all = &now.summary;
            first.push(Span::raw(format!("{} nodes, {} of {} ports up, ", all.nodes, all.up, all.ports)));
            let warn = |count: u32| if count > 0 { look.warn() } else { Style::new() };
            first.push(Span::styled(format!("{} hot", all.hot), warn(all.hot)));
            first.push(Span::raw(", "));
            first.push(Span::styled(format!("{} down", all.down), warn(all.down)));
            first.push(Span::raw(format!(", {} connections", all.ends / 2)));
            second.push(Span::raw(format!("{} sent, {} moves/min, ", rate(all.tx_bps), all.moves_per_minute)));
        }
    }
    second.extend(standing(overview, look));
    vec![Line::from(first), Line::from(second)]
}

/// Store, leader, what is frozen.
fn standing(overview: &Overview, look: Look) -> Vec<Span<'static>> {
    let store = &overview.store;
    let health = if store.health == "in-sync" { Style::new() } else { look.warn() };
    let leader = overview.leader.clone();
    let frozen = match overview.rebalance.freeze.as_str() {
        "no" => None,
        "optional" => Some("frozen, but what must"),
        _ => Some("frozen"),
    };
    let mut parts = vec![
        Span::styled(format!("store {}", store.health.replace('-', " ")), health),
        Span::raw(", "),
        Span::styled(
            format!("leader {}", leader.as_deref().unwrap_or("none")),
            if leader.is_some() { Style::new() } else { look.warn() },
        ),
    ];
    let dry = overview.rebalance.dry_run.then_some("dry run");
    for word in frozen.into_iter().chain(dry) {
        parts.push(Span::raw(", "));
        parts.push(Span::styled(word, look.warn()));
    }
    parts
}

fn titles(model: &Model, look: Look) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, view, title) in [
        (1, View::Ports, "Ports"),
        (2, View::Connections, "Connections"),
        (3, View::Moves, "Moves"),
        (4, View::Events, "Events"),
    ] {
        let style = if view == model.view { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(format!(" {number} {title} "), style));
        spans.push(Span::raw(" "));
    }
    let mut more = Vec::new();
    if let (View::Connections, Some((node, device, port_num))) = (model.view, &model.of_port) {
        more.push(format!("of {node}/{device}/{port_num}"));
    }
    if model.view == View::Ports {
        let word = match model.sort {
            Sort::Load => "load",
            Sort::Sent => "sent",
            Sort::Received => "received",
            Sort::Connections => "connections",
            Sort::Name => "name",
        };
        more.push(format!("by {word}{}", if model.reversed { ", reversed" } else { "" }));
    }
    if !model.filter.is_empty() {
        more.push(format!("with \"{}\"", model.filter));
    }
    if model.paused {
        more.push("PAUSED".into());
    }
    spans.push(Span::styled(more.join(" "), look.quiet()));
    Line::from(spans)
}

fn view(frame: &mut Frame<'_>, area: Rect, model: &Model, look: Look) {
    let width = usize::from(area.width);
    let (head, rows): (String, Vec<Line<'static>>) = match model.view {
        View::Ports => {
            let columns = Columns::of(width);
            (columns.head(), model.ports().into_iter().map(|row| port(&row, columns, look)).collect())
        }
        View::Connections => {
            let cells = ["node", "QP", "tenant", "service", "port", "state", "sent", "received"].map(str::to_owned);
            let rows = model.connections().into_iter().map(|one| Line::raw(spread(&connection(one, look), width)));
            (spread(&cells, width), rows.collect())
        }
        View::Moves | View::Events => {
            let kind = if model.view == View::Events { format!("{:<21}", "kind") } else { String::new() };
            let head = format!("{:>7}  {kind}what", "ago");
            (head, model.events().into_iter().map(|event| happening(event, model, look)).collect())
        }
    };
    let whole = if matches!(model.view, View::Moves | View::Events) { 3 } else { 0 };
    let [top, list, chosen] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(whole)]).areas(area);
    if let Some(event) = model.events().get(model.chosen).filter(|_| whole > 0) {
        let why = event.why.as_ref().map(|why| format!(", because {why}")).unwrap_or_default();
        let text = Paragraph::new(format!("{}{why}", event.text)).style(look.quiet());
        frame.render_widget(text.wrap(Wrap { trim: true }), chosen);
    }
    frame.render_widget(Paragraph::new(Line::styled(head, look.quiet().add_modifier(Modifier::UNDERLINED))), top);
    let height = usize::from(list.height).max(1);
    let first = (model.chosen + 1).saturating_sub(height);
    let none = rows.is_empty();
    let shown = rows.into_iter().enumerate().skip(first).take(height).map(|(at, row)| {
        if at == model.chosen { row.patch_style(Style::new().add_modifier(Modifier::REVERSED)) } else { row }
    });
    let mut lines: Vec<Line<'static>> = shown.collect();
    if none {
        lines.push(Line::styled(nothing(model), look.quiet()));
    }
    frame.render_widget(Paragraph::new(lines), list);
}

fn nothing(model: &Model) -> &'static str {
    match model.view {
        _ if !model.filter.is_empty() => "Nothing fits the filter; Esc takes it back.",
        View::Ports => "No agent has joined: `sfab agent` on each node.",
        View::Connections => "No connections, or they are just being asked for.",
        View::Moves => "Nothing has moved.",
        View::Events => "Nothing has happened.",
    }
}

/// What of a port is shown in a terminal of some width: the name is what nobody can do without.
#[derive(Clone, Copy)]
struct Columns {
    name: usize,
    /// Width of the bar, with the switch behind all; 0: there is no room for either.
    bar: usize,
    /// Whether speed and QPs are shown.
    speed: bool,
}

impl Columns {
    fn of(width: usize) -> Self {
        match width {
            72.. => {
                let bar = (width - 71).clamp(6, 40);
                Self { name: width - 57 - bar, bar, speed: true }
            }
            // Speed, sent, received, QPs and state take 45.
            58.. => Self { name: width - 45, bar: 0, speed: true },
            _ => Self { name: width.saturating_sub(28).max(8), bar: 0, speed: false },
        }
    }

    fn head(self) -> String {
        let busier = if self.bar < 16 { "busier" } else { "busier direction" };
        let bar = format!("  {busier:>bar$}", bar = self.bar);
        self.line("port", "speed", if self.bar > 0 { &bar } else { "" }, ["sent", "received", "QPs"])
            + &self.end("state", "switch")
    }

    fn line(self, name: &str, speed: &str, bar: &str, [sent, received, qps]: [&str; 3]) -> String {
        let name = format!("{name:<width$}", width = self.name);
        match self.speed {
            true => format!("{name} {speed:>9}{bar} {sent:>8} {received:>8} {qps:>6}  "),
            false => format!("{name} {sent:>8} {received:>8}  "),
        }
    }

    fn end(self, state: &str, switch: &str) -> String {
        format!("{state:<8}{}", if self.bar > 0 { switch } else { "" })
    }
}

fn port(row: &PortRow, columns: Columns, look: Look) -> Line<'static> {
    let style = match (row.is_up(), row.is_hot()) {
        (false, _) | (_, true) => look.warn(),
        _ => Style::new(),
    };
    let heat = if row.is_hot() { look.warn() } else { look.style(Color::Indexed(heat(row.busier()))) };
    let name = cut_front(&row.name(), columns.name);
    let (speed, qps) = (speed(row.rate_mbps), row.connections.to_string());
    let carried = [&*gbps(row.tx, row.rate_mbps, look), &gbps(row.rx, row.rate_mbps, look), &qps];
    let mut spans = Vec::new();
    if columns.bar > 0 {
        // The bar has a colour of its own.
        const MARK: &str = "\u{0}";
        let line = columns.line(&name, &speed, MARK, carried);
        let (before, after) = line.split_once(MARK).unwrap_or((&line, ""));
        spans.push(Span::raw(format!("{before}  ")));
        spans.push(Span::styled(bar_of(row.busier(), columns.bar, look.blocks), heat));
        spans.push(Span::raw(after.to_owned()));
    } else {
        spans.push(Span::raw(columns.line(&name, &speed, "", carried)));
    }
    spans.push(Span::styled(columns.end(row.state(), ""), style));
    if columns.bar > 0 {
        spans.push(Span::raw(row.switch.clone()));
    }
    Line::from(spans)
}

/// From blue to pale: an order that every eye sees.
fn heat(permille: i32) -> u8 {
    const STEPS: [u8; 5] = [25, 32, 39, 81, 159];
    STEPS[usize::try_from(permille / 200).unwrap_or(0).min(4)]
}

/// A bar of eighths of a character, or of `#`.
pub fn bar_of(permille: i32, width: usize, blocks: bool) -> String {
    let permille = usize::try_from(permille.clamp(0, 1000)).unwrap_or(0);
    if !blocks {
        let full = (permille * width + 500) / 1000;
        return format!("{}{}", "#".repeat(full), ".".repeat(width - full));
    }
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (permille * width * 8 + 500) / 1000;
    let part = PARTS[eighths % 8];
    let full = eighths / 8;
    format!("{}{part}{}", "█".repeat(full), " ".repeat(width - full - usize::from(!part.is_empty())))
}

/// A connection, cell by cell.
fn connection(one: &super::model::ConnectionEntry, look: Look) -> [String; 8] {
    let load = |of: fn(&super::model::LoadEntry) -> f64| {
        one.load.as_ref().map_or_else(|| look.dash().to_owned(), |load| rate(of(load)))
    };
    [
        one.node.clone(),
        format!("{:#08x}", one.qp_num),
        one.tenant.clone(),
        one.service.clone(),
        format!("{}/{}", one.path.device, one.path.port_num),
        one.state.clone(),
        load(|load| load.tx_bps),
        load(|load| load.rx_bps),
    ]
}

/// Cells of a connection as a line: all of them from 80 columns on, with wider names in wider terminals; in a narrow one those that say which it is and what it does.
fn spread(cells: &[String; 8], width: usize) -> String {
    let [node, qp, tenant, service, port, state, sent, received] = cells;
    if width < 80 {
        let services = width.saturating_sub(45).max(6);
        return format!(
            "{:<10} {:<services$} {:<10} {:<10} {sent:>9}",
            cut(node, 10),
            cut(service, services),
            cut_front(port, 10),
            cut(state, 10)
        );
    }
    let more = (width - 80) / 4;
    let (wide, tenants, services, ports) = (12 + more, 8 + more, 10 + more, 7 + more);
    format!(
        "{:<wide$} {qp:>8} {:<tenants$} {:<services$} {:<ports$} {:<10} {sent:>9} {received:>9}",
        cut(node, wide),
        cut(tenant, tenants),
        cut(service, services),
        cut_front(port, ports),
        cut(state, 10)
    )
}

fn happening(event: &EventEntry, model: &Model, look: Look) -> Line<'static> {
    let bad = ["port-down", "port-hot", "node-gone", "order-failed", "store-away", "connection-rebuilding"];
    let style = if bad.contains(&event.kind.as_str()) { look.warn() } else { Style::new() };
    let mut spans = vec![Span::raw(format!("{:>7}  ", ago(model.seconds_since(event.at_ms))))];
    if model.view == View::Events {
        spans.push(Span::styled(format!("{:<21}", event.kind.replace('-', " ")), style));
    }
    spans.push(Span::raw(event.text.clone()));
    if let Some(why) = &event.why {
        spans.push(Span::styled(format!(" ({why})"), look.quiet()));
    }
    Line::from(spans)
}

fn bottom(model: &Model, keys: &Keys, look: Look) -> Line<'static> {
    if let Some(change) = &keys.asking {
        return Line::styled(format!("{}  [y/n]", change.question()), look.warn());
    }
    if keys.typing {
        return Line::raw(format!("filter: {}_   Enter keeps it, Esc takes it back", model.filter));
    }
    if let Some(why) = &model.trouble {
        return Line::styled(why.clone(), look.warn());
    }
    if let Some(notice) = &model.notice {
        return Line::styled(notice.clone(), look.warn());
    }
    Line::styled("q quit  s sort  / filter  Enter its QPs  f freeze  t dry run  d drain  ? help", look.quiet())
}

fn explain(frame: &mut Frame<'_>) {
    const KEYS: &[(&str, &str)] = &[
        ("1 2 3 4, Tab", "ports, connections, moves, events"),
        ("arrows, j k", "choose a row; PgUp PgDn Home End"),
        ("Enter", "connections of the chosen port"),
        ("Esc", "back; no filter"),
        ("s, r", "sort by another column; reversed"),
        ("/", "filter by node, port, switch, word"),
        ("f", "freeze: what can wait, all, nothing"),
        ("t", "dry run (try): decide, order nothing"),
        ("d", "drain the chosen port, or use it again"),
        ("p", "pause the picture"),
        ("q, Ctrl-C", "quit"),
    ];
    let height = KEYS.len() as u16 + 2;
    let area = frame.area();
    let (width, height) = (area.width.min(60), area.height.min(height));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    let lines: Vec<Line<'_>> = KEYS.iter().map(|(key, what)| Line::raw(format!(" {key:<14} {what}"))).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys; any key closes this ")), place);
}

/// The first characters of a name, with a mark where it was cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// The last characters of a name whose end tells it from others, with a mark where it was cut.
fn cut_front(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    ['~'].into_iter().chain(text.chars().skip(count - width.saturating_sub(1))).collect()
}

/// A port's speed. Ports of software NICs may have none.
pub fn speed(mbps: u64) -> String {
    if mbps == 0 {
        "unknown".to_owned()
    } else if mbps >= 1000 {
        format!("{} Gb/s", mbps as f64 / 1000.0)
    } else {
        format!("{mbps} Mb/s")
    }
}

/// A share of a port, Gb/s.
fn gbps(permille: i32, rate_mbps: u64, look: Look) -> String {
    if permille < 0 || rate_mbps == 0 {
        return look.dash().to_owned();
    }
    let value = f64::from(permille) * rate_mbps as f64 / 1e6;
    format!("{value:.places$}", places = if value >= 100.0 { 0 } else { 1 + usize::from(value < 10.0) })
}

/// Bits a second.
pub fn rate(bps: f64) -> String {
    const STEPS: &[(f64, &str)] = &[(1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")];
    match STEPS.iter().find(|(step, _)| bps >= *step) {
        Some((step, unit)) if bps / step >= 99.95 => format!("{:.0} {unit}", bps / step),
        Some((step, unit)) => format!("{:.1} {unit}", bps / step),
        None => "0 Gb/s".to_owned(),
    }
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::model::Picture;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    /// A fabric of four nodes, as control tells of it.
    pub fn model() -> Model {
        let node = |number: u32| {
            let port = |port_num: u32| json!({ "device": "sf0", "port_num": port_num, "rate_mbps": 100_000, "switch": format!("leaf{port_num}") });
            json!({ "node": format!("node{number}"), "ports": [port(1), port(2)] })
        };
        let summary = json!({ "nodes": 4, "ports": 8, "up": 7, "hot": 1, "down": 1, "ends": 128, "moves_per_minute": 12, "tx_bps": 243.6e9 });
        let second = json!({ "at_ms": 100_000, "tx": [440, -1, 451, 330, 812, 90, 0, 404], "rx": [390, -1, 380, 401, 120, 60, 0, 1], "flags": [1, 0, 1, 5, 3, 1, 1, 1],
            "connections": [16, 0, 17, 14, 28, 4, 0, 9], "summary": summary });
        let overview = json!({ "replica": "control1", "store": { "kind": "etcd", "health": "in-sync", "reason": null }, "leader": "control1",
            "rebalance": { "freeze": "no", "dry_run": false }, "nodes": [node(1), node(2), node(3), node(4)], "second": second });
        let events = json!([
            { "at_ms": 97_000, "kind": "connection-moved", "text": "node3/4711 14 moved from node3/sf0/1 to sf0/2", "why": "node3/sf0/1 sends at 81.2 % of its capacity" },
            { "at_ms": 40_000, "kind": "port-down", "text": "node1/sf0/2 is down" },
            { "at_ms": 1_000, "kind": "node-joined", "text": "node4 has joined control1 with 2 ports" }]);
        let connections = json!({ "connections": [
            { "node": "node3", "tenant": "training", "service": "allreduce", "qp_num": 0x1234, "state": "up", "generation": 2, "path": { "device": "sf0", "port_num": 1 }, "load": { "tx_bps": 4.2e9, "rx_bps": 8.1e7 } },
            { "node": "node3", "tenant": "", "service": "kv-cache", "qp_num": 0xa0_0001, "state": "rebuilding", "generation": 1, "path": { "device": "sf0", "port_num": 2 }, "load": null }], "next": null });
        let mut model = Model::new(Sort::Load, "");
        model.take(Picture {
            overview: serde_json::from_value(overview).expect("an overview"),
            events: serde_json::from_value(events).expect("events"),
            connections: Some(serde_json::from_value(connections).expect("connections")),
        });
        model
    }

    const PLAIN: Look = Look { colour: false, blocks: false };

    fn drawn(model: &Model, keys: &Keys, look: Look, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, model, keys, look)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn ports_fit_eighty_columns_with_their_switch_and_state() {
        insta::assert_snapshot!("ports", drawn(&model(), &Keys::default(), PLAIN, 80, 24));
        let blocks = Look { colour: true, blocks: true };
        insta::assert_snapshot!("ports-wide", drawn(&model(), &Keys::default(), blocks, 120, 14));
    }

    #[test]
    fn the_other_views_fit_as_well() {
        let mut model = model();
        for (name, view) in [("connections", View::Connections), ("moves", View::Moves), ("events", View::Events)] {
            model.view = view;
            insta::assert_snapshot!(name, drawn(&model, &Keys::default(), PLAIN, 80, 10));
        }
        let help = Keys { help: true, ..Keys::default() };
        insta::assert_snapshot!("help", drawn(&model, &help, PLAIN, 80, 24));
    }

    #[test]
    fn in_a_narrow_terminal_ports_are_still_told_apart() {
        let mut model = model();
        for width in [40, 60, 71] {
            model.view = View::Ports;
            let ports = drawn(&model, &Keys::default(), PLAIN, width, 24);
            for seen in ["e1/sf0/1", "e1/sf0/2", "e4/sf0/2", "81.2", "HOT", "DOWN"] {
                assert!(ports.contains(seen), "{seen} at {width}:\n{ports}");
            }
            model.view = View::Connections;
            let connections = drawn(&model, &Keys::default(), PLAIN, width, 24);
            for seen in ["node3", "sf0/1", "sf0/2"] {
                assert!(connections.contains(seen), "{seen} at {width}:\n{connections}");
            }
        }
        assert_eq!(cut_front("up1234-n1/1", 7), "~4-n1/1");
    }

    #[test]
    fn trouble_questions_and_emptiness_are_told() {
        let mut model = model();
        let asking = Keys { asking: Some(super::super::keys::Change::Freeze("all")), ..Keys::default() };
        assert!(drawn(&model, &asking, PLAIN, 80, 24).contains("not even off ports that are down?  [y/n]"));
        model.trouble = Some("control does not answer".into());
        assert!(drawn(&model, &Keys::default(), PLAIN, 80, 24).contains("control does not answer"));
        model.filter = "nowhere".into();
        assert!(drawn(&model, &Keys::default(), PLAIN, 80, 24).contains("Nothing fits the filter"));
        // A terminal that is far too small is no panic.
        for (width, height) in [(1, 1), (10, 3), (40, 5), (300, 90)] {
            drawn(&model, &Keys { help: true, ..Keys::default() }, PLAIN, width, height);
        }
    }

    #[test]
    fn the_chosen_row_is_always_on_the_screen() {
        let mut model = model();
        model.chosen = 7;
        assert!(drawn(&model, &Keys::default(), PLAIN, 80, 8).contains("node1/sf0/2"), "the last by load is shown");
    }

    #[test]
    fn bars_are_as_long_as_they_say() {
        assert_eq!((bar_of(0, 8, false).as_str(), bar_of(500, 8, false).as_str()), ("........", "####...."));
        assert_eq!((bar_of(1000, 4, true).as_str(), bar_of(-1, 4, true).as_str()), ("████", "    "));
        for permille in 0..=1000 {
            assert_eq!(bar_of(permille, 13, true).chars().count(), 13, "{permille}");
            assert_eq!(bar_of(permille, 13, false).len(), 13, "{permille}");
        }
    }
}
