//! The table of docs/clients.md: made of the cases, so that the page cannot say what is not run.

use super::case::{Template, read};
use super::folder;
use super::layout::Kind;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- made of crates/tests/clients by `cargo xtask clients --page` -->\n";
const END: &str = "<!-- end -->\n";

/// The page.
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clients.md")
}

/// The page as it must be: what stands there, with the tables made anew.
pub fn made() -> Result<String, String> {
    let page = std::fs::read_to_string(path()).map_err(|error| format!("docs/clients.md: {error}"))?;
    let (head, rest) = page.split_once(BEGIN).ok_or("docs/clients.md has lost the line where its tables begin")?;
    let (_, tail) = rest.split_once(END).ok_or("docs/clients.md has lost the line where its tables end")?;
    Ok(format!("{head}{BEGIN}{}{END}{tail}", tables()?))
}

fn tables() -> Result<String, String> {
    let mut text = String::new();
    for (title, templates) in read(&folder())? {
        let _ = writeln!(text, "\n### {title}\n\n| case | where | server; client | remark |\n|---|---|---|---|");
        for template in &templates {
            let places: Vec<&str> = template.layouts.iter().map(|kind: &Kind| kind.word()).collect();
            let name = template.name.replace('|', "\\|");
            let (places, commands) = (places.join(", "), commands(template).replace('|', "\\|"));
            let _ = writeln!(text, "| `{name}` | {places} | {commands} | {} |", remark(template));
        }
    }
    text.push('\n');
    Ok(text)
}

fn commands(template: &Template) -> String {
    if !template.script.is_empty() {
        return format!("`crates/tests/clients/{}`", template.script.split(' ').next().unwrap_or_default())
            + &template.script.split_once(' ').map_or_else(String::new, |(_, words)| format!(" `{words}`"));
    }
    let with_options = |own: &str, command: &str| {
        let options = format!("{} {own}", template.run);
        let options = options.trim();
        if options.is_empty() { format!("`{command}`") } else { format!("`sfab run {options} -- {command}`") }
    };
    let client = with_options(&template.run_client, &template.client);
    if template.server.is_empty() {
        return client;
    }
    format!("{}; {client}", with_options(&template.run_server, &template.server))
}

fn remark(template: &Template) -> String {
    let values = template.each.iter().map(|(key, values)| {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        format!("{{{key}}}: {}", values.join(" "))
    });
    let mut parts: Vec<String> = Vec::new();
    if !template.remark.is_empty() {
        parts.push(template.remark.clone());
    }
    parts.extend(values);
    parts.join("; ").replace('|', "\\|")
}
