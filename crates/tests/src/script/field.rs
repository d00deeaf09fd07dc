//! Fields of packets as scripts name them. The same list is a pattern (what must be there; what is not named is not looked
//! at) and a recipe (what an injected packet carries).

use scalefabric_wire::packet::{NakCode, Syndrome};

use crate::script::words::{ScriptError, Word, Words};

/// A number, or something with a name, plus an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ref {
    /// A number.
    Number(u64),
    /// A name and an offset.
    Name(String, i64),
}

impl Ref {
    /// `5`, `0x5`, `m`, `m+8`, `m-8`.
    pub fn parse(text: &str) -> Self {
        if let Some(number) = parse_number(text) {
            return Self::Number(number);
        }
        for (sign, separator) in [(1, '+'), (-1, '-')] {
            if let Some((name, offset)) = text.split_once(separator)
                && let Some(offset) = parse_number(offset).and_then(|o| i64::try_from(o).ok())
            {
                return Self::Name(name.to_string(), sign * offset);
            }
        }
        Self::Name(text.to_string(), 0)
    }
}

/// A number: decimal, or hexadecimal with `0x`; `_` separates digits.
pub fn parse_number(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A time with its unit: `67.1ms`, `4096ns`, `10us`, `2s`.
pub fn parse_time(text: &str) -> Option<u64> {
    let units = [("ns", 1u64), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (number, unit) = units.iter().find_map(|(name, ns)| {
        let number = text.strip_suffix(name)?;
        number.ends_with(|c: char| c.is_ascii_digit()).then_some((number, *ns))
    })?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut ns = parse_number(whole)?.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.chars() {
        place /= 10;
        ns += u64::from(digit.to_digit(10)?) * place;
    }
    Some(ns)
}

/// What a piece of memory is filled with, or what a payload must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zeros,
    /// Byte i is (7 i + seed) modulo 256.
    Count(u8),
    /// This text, then zeros.
    Text(Vec<u8>),
    /// What a region holds at an offset.
    Region(String, u64),
}

impl Fill {
    /// `zeros`, `count`, `count:3`, `"text"`, `0x0011…` (bytes in order), `m+4`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "zeros" {
            return Some(Self::Zeros);
        }
        if text == "count" {
            return Some(Self::Count(0));
        }
        if let Some(seed) = text.strip_prefix("count:") {
            return seed.parse().ok().map(Self::Count);
        }
        if let Some(text) = text.strip_prefix('"') {
            return Some(Self::Text(text.strip_suffix('"')?.as_bytes().to_vec()));
        }
        if let Some(hex) = text.strip_prefix("0x") {
            let bytes =
                (0..hex.len()).step_by(2).map(|at| hex.get(at..at + 2).and_then(|h| u8::from_str_radix(h, 16).ok()));
            return bytes.collect::<Option<Vec<u8>>>().map(Self::Text);
        }
        match Ref::parse(text) {
            Ref::Name(name, offset) => u64::try_from(offset).ok().map(|offset| Self::Region(name, offset)),
            Ref::Number(_) => None,
        }
    }

    /// The bytes; those of a region are the caller's business.
    pub fn bytes(&self, length: usize) -> Vec<u8> {
        match self {
            Self::Zeros | Self::Region(..) => vec![0; length],
            Self::Count(seed) => (0..length).map(|i| (7 * i + usize::from(*seed)) as u8).collect(),
            Self::Text(text) => (0..length).map(|i| text.get(i).copied().unwrap_or(0)).collect(),
        }
    }
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Field {
    Psn(u32),
    Len(usize),
    AckReq(bool),
    Solicited(bool),
    MigReq(bool),
    Becn(bool),
    Fecn(bool),
    Pad(u8),
    TVer(u8),
    PKey(u16),
    Dest(Ref),
    Va(Ref),
    RKey(Ref),
    DmaLen(u32),
    Compare(u64),
    /// Swap or add.
    Swap(u64),
    Imm(u32),
    Inv(Ref),
    Syndrome(Syndrome),
    /// An ACK, whatever its credits.
    Ack,
    Msn(u32),
    Original(u64),
    QKey(u32),
    SrcQp(Ref),
    Srqn(Ref),
    Placement(u8),
    Selectivity(u8),
    Tc(u8),
    Hop(u8),
    Port(u8),
    Src(String),
    Dst(String),
    Data(Fill),
}

impl Field {
    /// Takes all words as fields.
    pub fn parse_all(words: &mut Words) -> Result<Vec<Self>, ScriptError> {
        let mut fields = Vec::new();
        while let Some(word) = words.next_word() {
            fields.push(Self::parse(words, word)?);
        }
        Ok(fields)
    }

    fn parse(words: &Words, word: Word) -> Result<Self, ScriptError> {
        let (key, value) = match word {
            Word::Bare(flag) => return Self::parse_flag(words, &flag),
            Word::Text(text) => return words.error(format!("\"{text}\" is no field: write data=\"{text}\"")),
            Word::Pair(key, value) => (key, value),
        };
        let number = |max: u64| match parse_number(&value) {
            Some(n) if n <= max => Ok(n),
            Some(n) => words.error(format!("{key}={n:#x} is larger than the field ({max:#x})")),
            None => words.error(format!("{key}={value} is not a number")),
        };
        Ok(match key.as_str() {
            "psn" => Self::Psn(number(0xff_ffff)? as u32),
            "len" => Self::Len(number(0xffff)? as usize),
            "pad" => Self::Pad(number(3)? as u8),
            "tver" => Self::TVer(number(15)? as u8),
            "pkey" => Self::PKey(number(0xffff)? as u16),
            "dest" => Self::Dest(Ref::parse(&value)),
            "va" => Self::Va(Ref::parse(&value)),
            "rkey" => Self::RKey(Ref::parse(&value)),
            "dmalen" => Self::DmaLen(number(u64::from(u32::MAX))? as u32),
            "compare" => Self::Compare(number(u64::MAX)?),
            "swap" | "add" => Self::Swap(number(u64::MAX)?),
            "imm" => Self::Imm(number(u64::from(u32::MAX))? as u32),
            "inv" => Self::Inv(Ref::parse(&value)),
            "credits" => Self::Syndrome(Syndrome::Ack(number(31)? as u8)),
            "rnr" => Self::Syndrome(Syndrome::RnrNak(number(31)? as u8)),
            "nak" => Self::Syndrome(Syndrome::Nak(match value.as_str() {
                "sequence" => NakCode::PsnSequenceError,
                "invalid" => NakCode::InvalidRequest,
                "access" => NakCode::RemoteAccessError,
                "operational" => NakCode::RemoteOperationalError,
                "invalid_rd" => NakCode::InvalidRdRequest,
                _ => {
                    return words
                        .error(format!("nak={value}: write sequence, invalid, access, operational or invalid_rd"));
                }
            })),
            "syndrome" => Self::Syndrome(Syndrome::Reserved(number(255)? as u8)),
            "msn" => Self::Msn(number(0xff_ffff)? as u32),
            "original" => Self::Original(number(u64::MAX)?),
            "qkey" => Self::QKey(number(u64::from(u32::MAX))? as u32),
            "srcqp" => Self::SrcQp(Ref::parse(&value)),
            "srqn" => Self::Srqn(Ref::parse(&value)),
            "placement" => Self::Placement(number(15)? as u8),
            "selectivity" => Self::Selectivity(number(3)? as u8),
            "tc" => Self::Tc(number(255)? as u8),
            "hop" => Self::Hop(number(255)? as u8),
            "port" => Self::Port(number(255)? as u8),
            "src" => Self::Src(value),
            "dst" => Self::Dst(value),
            "data" => match Fill::parse(&value) {
                Some(fill) => Self::Data(fill),
                None => {
                    return words
                        .error(format!("data={value}: write \"text\", 0xbytes, zeros, count or region+offset"));
                }
            },
            _ => return words.error(format!("{key}={value} is no field of a packet")),
        })
    }

    fn parse_flag(words: &Words, flag: &str) -> Result<Self, ScriptError> {
        let (name, set) = flag.strip_prefix('!').map_or((flag, true), |name| (name, false));
        Ok(match (name, set) {
            ("ackreq", _) => Self::AckReq(set),
            ("solicited", _) => Self::Solicited(set),
            ("mig", _) => Self::MigReq(set),
            ("becn", _) => Self::Becn(set),
            ("fecn", _) => Self::Fecn(set),
            ("ack", true) => Self::Ack,
            _ => {
                return words.error(format!(
                    "'{flag}' is no flag of a packet (ackreq, solicited, mig, becn, fecn, ack; ! for not)"
                ));
            }
        })
    }
}
