//! Plain tables that fit a terminal of 80 to 100 columns. No colours, no lines: they can be read, pasted and cut.

use std::fmt;

/// How a column is set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under a head.
pub struct Table {
    head: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(head: &[(&'static str, Align)]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head: Vec<String> = self.head.iter().map(|(name, _)| (*name).to_owned()).collect();
        let all = std::iter::once(&head).chain(&self.rows);
        let mut widths = vec![0; self.head.len()];
        for row in all.clone() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in all {
            let mut line = String::new();
            for (column, (_, align)) in self.head.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                let space = " ".repeat(widths[column] - cell.chars().count());
                let gap = if column == 0 { "" } else { "  " };
                line += gap;
                line += &if *align == Align::Left { format!("{cell}{space}") } else { format!("{space}{cell}") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_lines_end_without_blanks() {
        let mut table = Table::new(&[("operation", Align::Left), ("size", Align::Right), ("", Align::Left)]);
        table.row(vec!["SEND".to_owned(), "8 B".to_owned()]);
        table.row(vec!["WRITE".to_owned(), "64 KiB".to_owned(), "ok".to_owned()]);
        assert_eq!(table.to_string(), "operation    size\nSEND          8 B\nWRITE      64 KiB  ok\n");
    }
}
