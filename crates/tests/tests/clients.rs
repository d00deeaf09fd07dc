//! The table of real clients: it can be read, no two cases share a name, each starts something, and the page shows it.
//! `cargo xtask clients` runs them.

use scalefabric_tests::clients::{case, folder, page, pyverbs};

#[test]
fn every_case_starts_something() {
    for case in case::all(&folder()).unwrap() {
        let what = &case.what;
        assert!(what.client.is_empty() != what.script.is_empty(), "{}: a client or a script, not both", case.id());
        let known = ["server", "client", "server6", "client6", "dev", "netdev", "gid", "gid6", "port", "tmp", "sfab"];
        let known = [&known[..], &["cases", "pyverbs", "libraries", "on_server", "on_client"]].concat();
        for text in
            [&what.name, &what.server, &what.client, &what.script, &what.run, &what.run_client, &what.run_server]
        {
            for word in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(word, _)| word) {
                assert!(known.contains(&word), "{}: nothing fills {{{word}}}", case.id());
            }
        }
        if let Some(script) = what.script.split(' ').next().filter(|script| !script.is_empty()) {
            assert!(folder().join(script).is_file(), "{}: {script} is not there", case.id());
        }
    }
}

#[test]
fn the_list_of_skips_has_reasons() {
    assert!(pyverbs::read(&folder().join("pyverbs-skips.txt")).is_ok());
}

#[test]
fn the_page_shows_the_cases() {
    let page = std::fs::read_to_string(page::path()).unwrap();
    assert!(page == page::made().unwrap(), "docs/clients.md is old: run `cargo xtask clients --page`");
}
