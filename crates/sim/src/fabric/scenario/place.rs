//! Where a field stands in a scenario file, and what the reader of TOML finds wrong, in the words of that place.

use super::Refusal;
use toml::de::{DeTable, DeValue};

/// The line of `table.field` or `workload[0].field`; if the text does not have it, of the table that would hold it. 0: of neither.
pub(super) fn line_of(text: &str, place: &str) -> usize {
    let names: Vec<String> = place.split('.').flat_map(|part| part.split('[')).map(|n| n.replace(']', "")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    line_at(text, &names)
}

/// As [`line_of`], for a name in each step, which may have a dot.
pub(super) fn line_at(text: &str, names: &[&str]) -> usize {
    let Ok(root) = DeTable::parse(text) else { return 0 };
    offset(root.get_ref(), names).map_or(0, |offset| line(text, offset))
}

fn line(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

/// The deepest of the names that is there.
fn offset(table: &DeTable<'_>, names: &[&str]) -> Option<usize> {
    let (first, rest) = names.split_first()?;
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    let deeper = match value.get_ref() {
        DeValue::Table(inner) => offset(inner, rest),
        DeValue::Array(list) => rest.split_first().and_then(|(index, rest)| {
            let item = list.get(index.parse::<usize>().ok()?)?;
            let deeper = if let DeValue::Table(inner) = item.get_ref() { offset(inner, rest) } else { None };
            Some(deeper.unwrap_or(item.span().start))
        }),
        _ => None,
    };
    Some(deeper.unwrap_or(key.span().start))
}

/// The place that holds an offset of the text, as [`line_of`] takes it.
fn place_at(table: &DeTable<'_>, at: usize, holder: &str) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let place = if holder.is_empty() { key.to_string() } else { format!("{holder}.{key}") };
        let deeper = match value.get_ref() {
            DeValue::Table(inner) => place_at(inner, at, &place),
            DeValue::Array(list) => list.iter().enumerate().find_map(|(index, item)| {
                let place = format!("{place}[{index}]");
                let deeper =
                    if let DeValue::Table(inner) = item.get_ref() { place_at(inner, at, &place) } else { None };
                deeper.or_else(|| item.span().contains(&at).then_some(place))
            }),
            _ => None,
        };
        deeper.or_else(|| (key.span().contains(&at) || value.span().contains(&at)).then_some(place))
    })
}

/// A refusal of the reader: with line, place and what was expected.
pub(super) fn explain(text: &str, path: &str, error: &toml::de::Error) -> Refusal {
    let message = in_words(error.message());
    let Some(at) = error.span().map(|span| span.start) else { return Refusal(format!("{path}: {message}")) };
    let place = DeTable::parse(text).ok().and_then(|root| place_at(root.get_ref(), at, ""));
    Refusal(match place {
        Some(place) => format!("{path}:{}: {place}: {message}", line(text, at)),
        // What is missing in the whole file has no line.
        None if message.contains("is missing") => format!("{path}: {message}"),
        None => format!("{path}:{}: {message}", line(text, at)),
    })
}

/// What a field's absence means, by its name.
const MISSING: &[(&str, &str)] = &[
    ("topology", "a table [topology] with its kind"),
    ("workload", "a table [[workload]] with its kind, once or more"),
    ("kind", "a word, such as kind = \"star\" of a topology, \"incast\" of a workload, \"link-down\" of a fault"),
    ("at", "a time, such as at = \"20us\""),
];

/// Types of Rust, as they stand in the reader's messages.
const TYPES: &[(&str, &str)] = &[
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a string", "a text in quotes"),
    ("a sequence", "a list in brackets"),
    ("a map", "a table"),
];

/// The reader's message for who writes TOML and not Rust.
pub(super) fn in_words(message: &str) -> String {
    let message = message.trim_end();
    if let Some(field) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        let expected = MISSING.iter().find(|(name, _)| *name == field).map_or("a value", |(_, expected)| expected);
        return format!("{field} is missing; expected {expected}");
    }
    let Some((found, expected)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let words = TYPES.iter().find(|(name, _)| *name == expected).map(|(_, words)| *words);
    match words {
        Some(words) => format!("{found}expected {words}"),
        None if expected.starts_with("struct ") => format!("{found}expected a table"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "seed = 1\ntopology.kind = \"star\"\n\n[host]\n# mtu = 3\n\"mtu\" = 4\n[[workload]]\nkind = 'incast'\n\
        \n[[workload]]\nbytes = '''\n1MB'''\nset = { a = 1, b = 2 }\n[sweep]\n\"host.mtu\" = [1,\n 2]\n";

    #[test]
    fn a_field_has_its_line_and_one_that_is_not_there_that_of_its_table() {
        for (place, line) in [
            ("seed", 1),
            ("topology.kind", 2),
            ("topology.hosts", 2),
            ("host", 4),
            ("host.mtu", 6),
            ("host.kind", 4),
            ("workload[0].kind", 8),
            ("workload[0].load", 7),
            ("workload[1].bytes", 11),
            ("workload[1].load", 10),
            ("workload[1].set.b", 13),
            ("workload[2].set", 7),
            ("switch.buffer", 0),
        ] {
            assert_eq!(line_of(TEXT, place), line, "{place}");
        }
        assert_eq!(line_at(TEXT, &["sweep", "host.mtu"]), 15);
        assert_eq!(line_of("a = ", "a"), 0, "not even TOML");
    }

    #[test]
    fn types_of_rust_are_told_in_words() {
        for (message, words) in [
            (
                "invalid type: string \"x\", expected u32",
                "invalid type: string \"x\", expected a whole number from 0 to 4294967295",
            ),
            ("invalid type: integer `5`, expected struct TopologyTable", "invalid type: integer `5`, expected a table"),
            ("missing field `topology`", "topology is missing; expected a table [topology] with its kind"),
            ("duplicate key", "duplicate key"),
            ("\"5\": expected a size with its unit", "\"5\": expected a size with its unit"),
        ] {
            assert_eq!(in_words(message), words);
        }
    }
}
