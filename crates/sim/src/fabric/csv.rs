//! Strict tables: comma-separated, one head line, numbers only where numbers belong. Every error names file, line, field and what was expected there.

use std::str::Lines;

/// The rows of a table after its head.
pub struct Rows<'a> {
    lines: Lines<'a>,
    number: usize,
    name: &'a str,
    head: Vec<&'a str>,
}

/// One row.
pub struct Row<'a> {
    fields: Vec<&'a str>,
    /// Its line, from 1 on.
    pub line: usize,
    name: &'a str,
    head: Vec<&'a str>,
}

/// Begins a table. Its first line must be `head`; fields in brackets at the end may be missing.
pub fn rows<'a>(text: &'a str, name: &'a str, head: &'static str) -> Result<Rows<'a>, String> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or("").trim_start_matches('\u{feff}').trim_end();
    let found: Vec<&str> = first.split(',').collect();
    let required = head.split('[').next().unwrap_or(head);
    let all: Vec<&str> =
        head.split(['[', ',']).map(|field| field.trim_end_matches(']')).filter(|f| !f.is_empty()).collect();
    let least = required.split(',').filter(|field| !field.is_empty()).count();
    if found.len() < least || found.len() > all.len() || found.iter().zip(&all).any(|(a, b)| a != b) {
        return Err(format!("{name}:1: the head is {first:?}; expected {head:?}"));
    }
    Ok(Rows { lines, number: 1, name, head: found })
}

impl<'a> Rows<'a> {
    /// The next row; empty lines are passed over.
    pub fn next_row(&mut self) -> Result<Option<Row<'a>>, String> {
        for line in self.lines.by_ref() {
            self.number += 1;
            let line = line.trim_end();
            if line.is_empty() {
                continue;
            }
            let fields: Vec<&str> = line.split(',').collect();
            if fields.len() != self.head.len() {
                return Err(format!(
                    "{}:{}: {} fields; expected {} ({})",
                    self.name,
                    self.number,
                    fields.len(),
                    self.head.len(),
                    self.head.join(",")
                ));
            }
            return Ok(Some(Row { fields, line: self.number, name: self.name, head: self.head.clone() }));
        }
        Ok(None)
    }
}

impl<'a> Row<'a> {
    /// A field as it stands; empty if the table has no such column.
    pub fn text(&self, field: usize) -> &'a str {
        self.fields.get(field).copied().unwrap_or("")
    }

    /// An error at a field.
    pub fn wrong(&self, field: usize, expected: &str) -> String {
        let (name, line) = (self.name, self.line);
        let column = self.head.get(field).copied().unwrap_or("?");
        format!("{name}:{line}: {column} is {:?}; expected {expected}", self.text(field))
    }

    /// A whole number of `least..=most`.
    pub fn number(&self, field: usize, least: u64, most: u64) -> Result<u64, String> {
        match self.text(field).parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(self.wrong(field, &format!("a whole number from {least} to {most}"))),
        }
    }

    /// A number of `least..=most`.
    pub fn real(&self, field: usize, least: f64, most: f64) -> Result<f64, String> {
        match self.text(field).parse::<f64>() {
            Ok(number) if number >= least && number <= most => Ok(number),
            _ => Err(self.wrong(field, &format!("a number from {least} to {most}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_placed() {
        let mut table = rows("a,b,c\n1,2,3\n\n4,x,6\n", "f.csv", "a,b[,c]").unwrap();
        assert_eq!(table.next_row().unwrap().unwrap().number(2, 0, 9), Ok(3));
        let row = table.next_row().unwrap().unwrap();
        assert_eq!(row.number(1, 0, 9).unwrap_err(), "f.csv:4: b is \"x\"; expected a whole number from 0 to 9");
        assert!(row.number(0, 0, 3).is_err() && row.real(0, 0.0, 4.0).is_ok());
        assert!(table.next_row().unwrap().is_none());
        assert!(rows("a,b\n", "f.csv", "a,b[,c]").is_ok());
        assert!(rows("a\n", "f.csv", "a,b[,c]").is_err() && rows("a,c\n", "f.csv", "a,b").is_err());
    }
}
