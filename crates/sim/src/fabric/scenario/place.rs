//! Where a field stands in a scenario file.

/// Where a field stands: the line of `table.field`, 0 if it is not in the text.
pub(super) fn line_of(text: &str, place: &str) -> usize {
    let (table, field) = place.rsplit_once('.').unwrap_or(("", place));
    let (table, wanted) = match table.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().unwrap_or(0)),
        None => (table, 0),
    };
    let (mut inside, mut seen, mut head) = (table.is_empty(), 0, 0);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            let name = line.trim_matches(|c| "[] ".contains(c)).split(']').next().unwrap_or("");
            inside = name == table && (!line.starts_with("[[") || seen == wanted);
            seen += usize::from(name == table);
            if inside {
                head = number + 1;
            }
        } else if inside && line.split('=').next().is_some_and(|name| name.trim().trim_matches('"') == field) {
            return number + 1;
        }
    }
    head
}
