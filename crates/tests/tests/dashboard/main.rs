//! The dashboard in Debian's Chromium, over a real replica and a fabric that is played: every view shows what it must, by mouse and by keyboard, with 4 nodes and with 512,
//! and the console stays silent. Without a Chromium it is skipped, and says so.

mod browser;
mod fabric;

use browser::Page;
use fabric::{Fabric, Plan};
use scalefabric_control::rebalance::driver;
use scalefabric_control::service::access::{Access, Token};
use serde_json::Value;
use std::path::PathBuf;

/// The browser, or the reason why there is none.
fn chromium() -> Option<PathBuf> {
    let found = browser::program();
    if found.is_none() {
        println!("skipped: the dashboard in a browser: no `chromium` is installed; install the package chromium");
    }
    found
}

fn small() -> Fabric {
    let fabric = Fabric::new(Plan { nodes: 4, each: 16, access: Access::default() });
    fabric.set_tenants(
        "[[tenant]]\nname = \"training\"\npkey = 0x8001\nservices = [\"allreduce\"]\nquota = { qps = 80, memory_bytes = 134217728, rate_bps = 40000000000 }\n\
         [[tenant]]\nname = \"storage\"\npkey = 0x8002\nservices = [\"checkpoint\"]\nquota = { qps = 1000 }\n\
         [[tenant]]\nname = \"serving\"\npkey = 0x8003\nservices = [\"kv-cache\"]\n\
         [[allow]]\nfrom = \"training\"\nto = \"storage\"\npkey = 0x8004\n",
    );
    fabric
}

fn no_errors(page: &Page) {
    assert!(page.errors.is_empty(), "the console shows {:?}", page.errors);
}

#[test]
fn four_nodes_are_shown_on_every_view_and_the_console_is_silent() {
    let Some(program) = chromium() else { return };
    let fabric = small();
    let mut page = Page::open(&program, 1280, 800);
    page.go(&fabric.address());
    // The overview, and each node with its ports in Gb/s.
    page.wait_for_text("control1");
    page.wait("all connections", "document.querySelector('#summary').innerText.includes('64')");
    page.wait("four cards", "document.querySelectorAll('.card').length === 4");
    page.wait("cables to four ends of two switches", "document.querySelectorAll('.cables line').length === 8");
    page.wait("a port that sends", "Number(document.querySelector('.card .bar .num').textContent) > 0");
    for text in ["node1", "node4", "leaf1", "leaf2", "sf0/1", "QPs", "8 of 8", "embedded, in sync"] {
        page.wait_for_text(text);
    }
    // node3 began with nearly all on one port: it is relieved, and the moves are explained.
    page.click("nav a[href='#/moves']");
    page.wait_for_text("of its capacity; this round's moves bring it to");
    page.wait_for_text("done, data paused");
    page.click(".decisions summary");
    page.wait_for_text("Rules: hot above 70 %");
    // A node: ports, a page of connections, moves.
    page.click("nav a[href='#/']");
    page.click(".card[href='#/node/node3']");
    page.wait("its two ports", "document.querySelectorAll('table.ports tbody tr').length === 2");
    page.wait("its connections", "document.querySelectorAll('.pages tbody tr').length >= 16");
    page.wait_for_text("leaf1 Ethernet3");
    page.wait("its moves", "document.querySelector('.plain-list').innerText.includes('moved from node3/sf0/1')");
    // A port that goes down is told, everywhere.
    fabric.set_port(0, 1, false);
    page.wait("one port down", "document.querySelector('#summary').innerText.includes('7 of 8')");
    page.click("nav a[href='#/events']");
    page.wait_for_text("node1/sf0/2 is down");
    page.fill("input[type=search][placeholder^=Word]", "is down");
    page.wait(
        "only that",
        "[...document.querySelectorAll('.events tbody tr')].every((row) => row.innerText.includes('down'))",
    );
    // Connections: looked up, and one of them.
    page.click("nav a[href='#/connections']");
    page.wait("a page", "document.querySelectorAll('.pages tbody tr').length === 50");
    page.click(".pages p button:nth-child(2)");
    page.wait_for_text("51 to 100, and more");
    page.fill("input[name=tenant]", "storage");
    page.click(".filter button[type=submit]");
    page.wait("one tenant's", "document.querySelectorAll('.pages tbody tr').length === 32");
    page.wait_for_text("1 to 32, the last");
    page.click(".pages tbody tr td:last-child a");
    page.wait_for_text("Why it moved");
    page.wait_for_text("Flow label");
    // Tenants with what they have and may have.
    page.click("nav a[href='#/tenants']");
    page.wait_for_text("0x8001");
    // What its agents tell: two ends of each of 32 connections, a region of 2 MiB for each.
    page.wait_for_text("80 % of 80");
    page.wait_for_text("100 % of 128 MiB");
    page.wait_for_text("Leave between tenants");
    no_errors(&page);
}

#[test]
fn the_past_is_looked_at_and_left_again() {
    let Some(program) = chromium() else { return };
    let fabric = small();
    let mut page = Page::open(&program, 1280, 800);
    page.go(&fabric.address());
    page.wait("a port that sends", "Number(document.querySelector('.card .bar .num')?.textContent) > 0");
    page.wait("some seconds", "/hot, 0 down/.test(document.querySelector('.moment').textContent)");
    // By the keyboard: a second back, and another.
    page.ask("document.querySelector('#time input').focus()");
    page.press("ArrowLeft");
    page.press("ArrowLeft");
    page.wait("the past", "document.body.classList.contains('past')");
    page.click("#time button");
    page.wait("now", "!document.body.classList.contains('past')");
    let model = "import('/dashboard/fabric.js').then(({ fabric }) =>";
    let before = page.ask(&format!("{model} fabric.second.at_ms)"));
    fabric.set_port(0, 1, false);
    page.wait("it is down now", "document.querySelector('#summary').innerText.includes('7 of 8')");
    page.wait("on its card", "document.querySelectorAll('.port.down').length === 1");
    let back = page.ask(&format!("{model} String(600 - Math.round((fabric.second.at_ms - {before}) / 1000)))"));
    page.fill("#time input", back.as_str().expect("a place of the time line"));
    page.wait("the past", "/ago/.test(document.querySelector('.moment').textContent)");
    page.wait("it was up then", "document.querySelector('#summary').innerText.includes('8 of 8')");
    page.wait("no port of the past is down", "document.querySelectorAll('.port.down').length === 0");
    page.click("#time button");
    page.wait("the port is down now", "document.querySelectorAll('.port.down').length === 1");
    no_errors(&page);
}

#[test]
fn what_the_operator_changes_is_confirmed_first_and_then_holds() {
    let Some(program) = chromium() else { return };
    let fabric = small();
    let mut page = Page::open(&program, 1280, 800);
    page.go(&fabric.address());
    page.wait("it may be changed", "document.querySelector('#controls button')?.disabled === false");
    let settings = || fabric.block_on(driver::settings(&fabric.replica().shared)).expect("settings");
    // Asked, and not done.
    page.click("#controls button");
    page.wait("it asks", "document.querySelector('dialog').open");
    page.click("dialog button.plain");
    page.wait("it is closed", "!document.querySelector('dialog').open");
    assert!(!settings().dry_run);
    page.click("#controls button");
    page.wait("it asks", "document.querySelector('dialog').open");
    page.click("dialog button[type=submit]");
    page.wait("it is a dry run", "document.querySelector('#controls button').getAttribute('aria-pressed') === 'true'");
    assert!(settings().dry_run);
    page.fill("#controls select", "all");
    page.wait_for_text("Freeze everything");
    page.click("dialog button[type=submit]");
    page.wait_for_text("frozen, dry run");
    page.go(&format!("{}#/node/node2", fabric.address()));
    page.click("table.ports tbody tr:nth-child(2) button");
    page.wait_for_text("All connections are ordered off node2/sf0/2");
    page.click("dialog button[type=submit]");
    page.wait_for_text("Use again");
    let now = settings();
    assert_eq!(now.drained.iter().map(ToString::to_string).collect::<Vec<_>>(), ["node2/sf0/2"]);
    assert_eq!(now.freeze, scalefabric_fabric::balance::Freeze::All);
    page.click("nav a[href='#/events']");
    page.wait_for_text("node2/sf0/2 is drained");
    page.wait_for_text("dry run on");
    no_errors(&page);
}

#[test]
fn the_page_asks_for_the_token_and_goes_in_with_the_right_one() {
    let Some(program) = chromium() else { return };
    let token = "0123456789abcdef-operator";
    let access = Access { token: Token::new(token).ok(), ..Access::default() };
    let fabric = Fabric::new(Plan { nodes: 2, each: 4, access });
    let mut page = Page::open(&program, 1024, 700);
    page.go(&fabric.address());
    page.wait_for_text("Who are you?");
    page.fill("#token", "0123456789abcdef-stranger");
    page.click("dialog button[type=submit]");
    page.wait_for_text("Control did not take that token.");
    page.fill("#token", token);
    page.click("dialog button[type=submit]");
    page.wait("two cards", "document.querySelectorAll('.card').length === 2");
    assert_eq!(page.ask("localStorage.length + document.cookie.length"), Value::from(0), "the tab forgets it");
    // Refused calls stand in the console as the browser's own words, and nothing else does.
    assert!(page.errors.iter().all(|error| error.contains("401")), "{:?}", page.errors);
}

#[test]
fn five_hundred_and_twelve_nodes_are_walked_through_by_keyboard() {
    let Some(program) = chromium() else { return };
    let fabric = Fabric::new(Plan { nodes: 512, each: 8, access: Access::default() });
    let mut page = Page::open(&program, 1280, 800);
    page.go(&fabric.address());
    page.wait("a cell a node", "document.querySelectorAll('.cell').length === 512");
    page.wait("16 pairs of leaves", "document.querySelectorAll('.group').length === 16");
    page.wait("ports that send", "document.querySelectorAll('.cell i[data-h=\"u\"]').length === 0");
    page.wait("all is counted", "document.querySelector('#summary').innerText.includes('1,024 of 1,024')");
    page.wait(
        "everything fits without scrolling",
        "document.querySelector('#view').scrollHeight <= document.querySelector('#view').clientHeight + 1",
    );
    page.ask("document.querySelector('.cell').focus()");
    page.press("ArrowRight");
    page.wait("the next", "document.activeElement.getAttribute('aria-label') === 'node2'");
    page.press("ArrowDown");
    page.wait("one further down", "!['node1', 'node2'].includes(document.activeElement.getAttribute('aria-label'))");
    page.press("End");
    page.wait("the last", "document.activeElement.getAttribute('aria-label') === 'node512'");
    page.wait("it is told", "document.querySelector('.inspector').textContent.startsWith('node512: sf0/1')");
    page.press("Enter");
    page.wait("its page", "document.querySelector('h2').textContent === 'node512'");
    page.wait("its connections", "document.querySelectorAll('.pages tbody tr').length >= 8");
    page.fill("#jump-to", "node77");
    page.ask("document.querySelector('#jump').requestSubmit()");
    page.wait("another node's page", "document.querySelector('h2').textContent === 'node77'");
    for (view, text) in
        [("moves", "this round's moves bring it to"), ("tenants", "no rules"), ("events", "connection moved")]
    {
        page.click(&format!("nav a[href='#/{view}']"));
        page.wait_for_text(text);
    }
    page.click("nav a[href='#/connections']");
    page.wait("a page of many", "document.querySelectorAll('.pages tbody tr').length === 50");
    page.wait_for_text("1 to 50, and more");
    no_errors(&page);
}

/// `cargo xtask pictures` runs it: it looks for minutes, so that the time line has something to show.
#[test]
#[ignore = "writes the pictures of the documentation"]
fn pictures() {
    let program = chromium().expect("a browser");
    let folder = std::env::var_os("SFAB_PICTURES").map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds: u64 = std::env::var("SFAB_PICTURES_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let pause = |seconds: u64| std::thread::sleep(std::time::Duration::from_secs(seconds));
    let save = |page: &mut Page, name: &str| {
        let picture = page.picture();
        println!("{name}: {} KB", picture.len() / 1024);
        std::fs::write(folder.join(format!("{name}.png")), picture).expect("written");
    };
    let fabric = small();
    let mut page = Page::open(&program, 1120, 620);
    page.scheme("light");
    page.go(&fabric.address());
    page.wait("four cards", "document.querySelectorAll('.card').length === 4");
    pause(seconds / 3);
    fabric.set_port(0, 1, false);
    pause(seconds / 3);
    save(&mut page, "topology");
    page.click(".card[href='#/node/node3']");
    page.wait("its connections", "document.querySelectorAll('.pages tbody tr').length >= 16");
    pause(3);
    save(&mut page, "node");
    page.click("nav a[href='#/moves']");
    page.wait_for_text("this round's moves bring it to");
    page.click(".decisions summary");
    pause(1);
    save(&mut page, "moves");
    page.scheme("dark");
    page.click("nav a[href='#/events']");
    pause(1);
    save(&mut page, "events-dark");
    page.click("nav a[href='#/tenants']");
    page.wait_for_text("0x8001");
    save(&mut page, "tenants-dark");
    page.click("nav a[href='#/']");
    pause(2);
    save(&mut page, "topology-dark");
    page.click("nav a[href='#/connections']");
    page.wait("a page", "document.querySelectorAll('.pages tbody tr').length === 50");
    save(&mut page, "connections-dark");
    drop((page, fabric));
    let fabric = Fabric::new(Plan { nodes: 512, each: 8, access: Access::default() });
    fabric.set_port(100, 0, false);
    fabric.set_port(301, 1, false);
    let mut page = Page::open(&program, 1280, 700);
    page.scheme("light");
    page.go(&fabric.address());
    page.wait("a cell a node", "document.querySelectorAll('.cell').length === 512");
    pause(seconds / 3);
    page.ask("document.querySelectorAll('.cell')[77].focus()");
    save(&mut page, "topology-512");
    page.scheme("dark");
    pause(2);
    save(&mut page, "topology-512-dark");
}
