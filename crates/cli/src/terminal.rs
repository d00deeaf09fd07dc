//! What goes to a person at a terminal: colours and a progress line. Neither appears when the output is a file or a pipe,
//! and colours not when `NO_COLOR` is set.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};

/// Prints a line on standard output. Unlike `println!` it does not mind a reader that has gone (`| head`).
macro_rules! say {
    ($($argument:tt)*) => { $crate::terminal::print(format_args!("{}\n", format_args!($($argument)*))) };
}
pub(crate) use say;

/// Prints on standard output. A closed pipe is nobody's fault: the rest is for nobody, and the work goes on, since a demo
/// still has namespaces to remove. Any other failure (a full disk) ends the program with 1.
pub fn print(text: fmt::Arguments<'_>) {
    match std::io::stdout().write_fmt(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("sfab: standard output: {error}");
            std::process::exit(1);
        }
        _ => {}
    }
}

/// Green or red on a terminal.
pub fn verdict(good: bool, text: &str) -> String {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match (colours, good) {
        (false, _) => text.to_owned(),
        (true, true) => format!("\x1b[32m{text}\x1b[0m"),
        (true, false) => format!("\x1b[31m{text}\x1b[0m"),
    }
}

/// A line on standard error that is rewritten in place.
pub struct Progress {
    shown: bool,
    total: usize,
    done: usize,
}

impl Progress {
    /// Shows nothing unless standard error is a terminal.
    pub fn new(total: usize) -> Self {
        Self { shown: std::io::stderr().is_terminal(), total, done: 0 }
    }

    /// One more of `total` begins.
    pub fn next(&mut self, what: &str) {
        self.done += 1;
        self.show(what);
    }

    /// More of the one that has begun.
    pub fn again(&self, what: &str) {
        self.show(what);
    }

    fn show(&self, what: &str) {
        if !self.shown {
            return;
        }
        const WIDTH: usize = 24;
        let full = (WIDTH * self.done.min(self.total)).checked_div(self.total).unwrap_or(0);
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
        let mut line = format!("[{bar}] {}/{} {what}", self.done, self.total);
        line.truncate(line.char_indices().nth(79).map_or(line.len(), |(at, _)| at));
        let _ = write!(std::io::stderr(), "\r\x1b[2K{line}");
    }

    /// Removes the line.
    pub fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
