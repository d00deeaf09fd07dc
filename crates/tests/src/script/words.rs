//! Words of a script line, and the errors that name line and word.
//!
//! A word is bare (`send`), a pair (`psn=5`) or quoted text. A comment begins with `#`.

use core::fmt;

use crate::script::field::{Ref, parse_number};
use crate::script::{Slice, SliceBase};

/// What is wrong with a script, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// One word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// `send`
    Bare(String),
    /// `psn=5`, `data="x"`
    Pair(String, String),
    /// `"some text"`
    Text(String),
}

/// The words of one line, taken from the front.
#[derive(Clone, Debug)]
pub struct Words {
    line: usize,
    words: std::collections::VecDeque<Word>,
}

impl Words {
    /// Splits a line. A `#` outside quotes ends it.
    pub fn split(line: usize, text: &str) -> Result<Self, ScriptError> {
        let mut words = std::collections::VecDeque::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() && !rest.starts_with('#') {
            let mut word = String::new();
            let mut quoted = None;
            let mut end = rest.len();
            for (at, c) in rest.char_indices() {
                if c.is_whitespace() {
                    end = at;
                    break;
                }
                if c == '"' {
                    let Some(close) = rest[at + 1..].find('"') else {
                        return Err(ScriptError { line, message: format!("text is not closed: {rest}") });
                    };
                    quoted = Some(rest[at + 1..at + 1 + close].to_string());
                    end = at + close + 2;
                    break;
                }
                word.push(c);
            }
            rest = rest[end..].trim_start();
            words.push_back(match (word.split_once('='), quoted) {
                (Some((key, "")), Some(text)) => Word::Pair(key.to_string(), format!("\"{text}\"")),
                (Some((key, value)), None) if !key.is_empty() => Word::Pair(key.to_string(), value.to_string()),
                (_, Some(text)) if word.is_empty() => Word::Text(text),
                (_, None) => Word::Bare(word),
                (_, Some(_)) => return Err(ScriptError { line, message: format!("quotes in the middle of {word}") }),
            });
        }
        Ok(Self { line, words })
    }

    /// The line.
    pub const fn line(&self) -> usize {
        self.line
    }

    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// An error in this line.
    pub fn error<T>(&self, message: impl Into<String>) -> Result<T, ScriptError> {
        Err(ScriptError { line: self.line, message: message.into() })
    }

    /// The next word must be a bare one.
    pub fn bare(&mut self, what: &str) -> Result<String, ScriptError> {
        match self.words.pop_front() {
            Some(Word::Bare(word)) => Ok(word),
            Some(other) => self.error(format!("expected {what}, found {other:?}")),
            None => self.error(format!("expected {what} at the end of the line")),
        }
    }

    /// Takes the next word if it is this bare one.
    pub fn next_is(&mut self, word: &str) -> bool {
        let is = matches!(self.words.front(), Some(Word::Bare(w)) if w == word);
        if is {
            self.words.pop_front();
        }
        is
    }

    /// Takes the bare word wherever it stands.
    pub fn flag(&mut self, word: &str) -> bool {
        let at = self.words.iter().position(|w| matches!(w, Word::Bare(b) if b == word));
        at.map(|at| self.words.remove(at)).is_some()
    }

    /// Takes the value of a pair wherever it stands.
    pub fn pair(&mut self, key: &str) -> Option<String> {
        let at = self.words.iter().position(|w| matches!(w, Word::Pair(k, _) if k == key))?;
        match self.words.remove(at) {
            Some(Word::Pair(_, value)) => Some(value),
            _ => None,
        }
    }

    /// As [`Words::pair`], and it must be there.
    pub fn need(&mut self, key: &str) -> Result<String, ScriptError> {
        match self.pair(key) {
            Some(value) => Ok(value),
            None => self.error(format!("{key}=… is missing")),
        }
    }

    /// A number in a pair.
    pub fn number(&mut self, key: &str) -> Result<Option<u64>, ScriptError> {
        match self.pair(key) {
            None => Ok(None),
            Some(value) => match parse_number(&value) {
                Some(number) => Ok(Some(number)),
                None => self.error(format!("{key}={value} is not a number")),
            },
        }
    }

    /// A number in a pair that must be there.
    pub fn need_number(&mut self, key: &str) -> Result<u64, ScriptError> {
        match self.number(key)? {
            Some(number) => Ok(number),
            None => self.error(format!("{key}=… is missing")),
        }
    }

    /// A reference in a pair.
    pub fn reference(&mut self, key: &str) -> Option<Ref> {
        self.pair(key).map(|value| Ref::parse(&value))
    }

    /// Quoted text that stands alone.
    pub fn text(&mut self) -> Option<String> {
        let at = self.words.iter().position(|w| matches!(w, Word::Text(_)))?;
        match self.words.remove(at) {
            Some(Word::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// All pairs that are left.
    pub fn pairs(&mut self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        self.words.retain(|w| match w {
            Word::Pair(key, value) => {
                pairs.push((key.clone(), value.clone()));
                false
            }
            _ => true,
        });
        pairs
    }

    /// The next word, whatever it is.
    pub fn next_word(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    /// Splits off what follows the bare word, if it is there.
    pub fn split_at(&mut self, word: &str) -> Option<Words> {
        let at = self.words.iter().position(|w| matches!(w, Word::Bare(b) if b == word))?;
        let mut tail = self.words.split_off(at);
        tail.pop_front();
        Some(Words { line: self.line, words: tail })
    }

    /// `m+4:16,n:3` or `0xkey@addr:len`.
    pub fn slices(&mut self, key: &str) -> Result<Vec<Slice>, ScriptError> {
        let Some(value) = self.pair(key) else { return Ok(Vec::new()) };
        value.split(',').map(|part| self.slice(part)).collect()
    }

    /// One slice.
    pub fn slice(&self, text: &str) -> Result<Slice, ScriptError> {
        let wrong = || ScriptError {
            line: self.line,
            message: format!(
                "{text} is no piece of memory: write region+offset:length, region:length or key@address:length"
            ),
        };
        let (place, length) = text.rsplit_once(':').ok_or_else(wrong)?;
        let length = parse_number(length).and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong)?;
        if let Some((key, address)) = place.split_once('@') {
            let key = parse_number(key).and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong)?;
            let offset = parse_number(address).ok_or_else(wrong)?;
            return Ok(Slice { base: SliceBase::Key(key), offset, length });
        }
        let (name, offset) = match place.split_once('+') {
            Some((name, offset)) => (name, parse_number(offset).ok_or_else(wrong)?),
            None => (place, 0),
        };
        Ok(Slice { base: SliceBase::Region(name.to_string()), offset, length })
    }

    /// Nothing may be left.
    pub fn finish(&self) -> Result<(), ScriptError> {
        match self.words.front() {
            None => Ok(()),
            Some(Word::Pair(key, value)) => self.error(format!("{key}={value} means nothing here")),
            Some(Word::Bare(word) | Word::Text(word)) => self.error(format!("'{word}' means nothing here")),
        }
    }
}
