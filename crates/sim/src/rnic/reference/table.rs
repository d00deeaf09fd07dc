//! Tables of measured points, as text with commas: the first line names the columns. The tables are the crate's own; one that cannot be read is a fault.

/// A table.
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<&'static str>>,
}

/// A row with its columns.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    columns: &'a [&'static str],
    cells: &'a [&'static str],
}

impl Table {
    /// Reads a table of the crate.
    pub fn of(text: &'static str) -> Table {
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let columns = lines.next().expect("a table names its columns");
        Table { columns, rows: lines.filter(|cells| cells.len() > 1).collect() }
    }

    /// Its rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| {
            assert_eq!(cells.len(), self.columns.len(), "{cells:?} does not fit {:?}", self.columns);
            Row { columns: &self.columns, cells }
        })
    }
}

impl Row<'_> {
    /// A cell.
    pub fn text(&self, column: &str) -> &'static str {
        let at = self.columns.iter().position(|have| *have == column);
        self.cells[at.unwrap_or_else(|| panic!("no column {column} among {:?}", self.columns))]
    }

    /// A number; 0 for an empty cell.
    pub fn number(&self, column: &str) -> f64 {
        match self.text(column) {
            "" => 0.0,
            text => text.parse().unwrap_or_else(|_| panic!("{column} is `{text}`, no number")),
        }
    }

    /// A whole number; 0 for an empty cell.
    pub fn count(&self, column: &str) -> u32 {
        self.number(column) as u32
    }
}
