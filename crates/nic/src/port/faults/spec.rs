//! What faults are wanted, as text: `drop=1%`, `drop packet=17`, `reorder=2%,delay=1ms`, `corrupt=0.1% qp=0x10011`.
//!
//! ```text
//! spec  = part *( "," part )
//! part  = rule | device | "seed=" NUMBER                              device: see [`device`]
//! rule  = kind [ "=" amount ] *( " " word )
//! kind  = "drop" | "dup" | "reorder" | "corrupt" | "delay" | "ce"
//! amount: delay takes a time (10ns, 5us, 1ms, 2s), the others a chance (1%, 0.01)
//! word  = "chance=" CHANCE | "packet=" N [ ".." M ] | "every=" N      which datagrams; without one: all
//!       | "dir=rx" | "dir=tx" | "dir=both"                            default rx: what comes in
//!       | "qp=" QPN                                                   only those to this destination QP
//!       | "qp=client" | "qp=server" | "qp=#" N                      only those to (rx) or from (tx) these QPs of the process
//!       | "by=" N | "for=" TIME                                       reorder: behind N others (1), after at most TIME (1ms)
//! ```

use std::fmt;
use std::str::FromStr;

use scalefabric_wire::Qpn;

pub mod device;

pub use device::{DeviceKind, DeviceRule, Verb};

/// What is done to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It vanishes; counted as a dropped packet with reason `Fault`.
    Drop,
    /// It comes twice.
    Duplicate,
    /// It comes behind `by` later ones, or after `limit_ns` if fewer come.
    Reorder {
        /// Datagrams that overtake it, at least 1.
        by: u32,
        /// The longest it is held, ns.
        limit_ns: u64,
    },
    /// One bit behind the BTH is turned, so that the ICRC is wrong.
    Corrupt,
    /// It comes later. Others that are not delayed overtake it.
    Delay {
        /// How much later, ns.
        ns: u64,
    },
    /// Its ECN bits become "congestion experienced", whether the sender said it understands them or not.
    Mark,
}

/// Which datagrams, of those that direction and QP select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// Each with this chance, in parts of 10^9.
    Chance(u32),
    /// Numbers `0` to `1`, counted from 1, both included.
    Packets(u64, u64),
    /// Each n-th.
    Every(u64),
}

/// Which QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpSelect {
    /// The one of this number.
    Number(Qpn),
    /// QPs of this process that sent a request before they got one: they speak first.
    Client,
    /// QPs of this process that got a request before they sent one.
    Server,
    /// The n-th QP that this process made on the device, from 1.
    Nth(u32),
}

/// Directions, seen from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What comes in.
    Receive,
    /// What goes out.
    Send,
    /// Both; numbers count each direction for itself.
    Both,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is done.
    pub kind: Kind,
    /// To which.
    pub when: When,
    /// In which direction.
    pub direction: Direction,
    /// Only those whose destination QP this is, or that go to or come from these QPs of the process.
    pub qp: Option<QpSelect>,
}

/// All rules. Each datagram passes every rule, in order; a drop ends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// The rules.
    pub rules: Vec<Rule>,
    /// What else goes wrong.
    pub device: Vec<DeviceRule>,
    /// Seed of all chances. Default 0. The same seed and the same datagrams give the same faults.
    pub seed: u64,
}

/// A text that is not a fault specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// Byte of the text at which it goes wrong, from 0.
    pub position: usize,
    /// What stands there.
    pub found: String,
    /// What could stand there.
    pub expected: &'static str,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = if self.found.is_empty() { "nothing".into() } else { format!("`{}`", self.found) };
        write!(f, "fault specification, at position {}: expected {}, found {found}", self.position, self.expected)
    }
}

impl std::error::Error for SpecError {}

const KINDS: &str = "one of drop, dup, reorder, corrupt, delay, ce, port-down, gid-change, device-fatal, qp-error, wc, rnr, \
                     reg-mr, create-qp and other verbs (or seed=NUMBER)";
const QP: &str = "a QP number (0 to 0xffffff), client, server, or #N for the n-th QP of the process";
const CHANCE: &str = "a chance such as 1% or 0.01, from 0 to 100%";
const TIME: &str = "a time such as 500ns, 5us, 1ms or 2s";
const WORDS: &str = "one of chance=, packet=, every=, dir=, qp= (reorder also by=, for=)";

/// A piece of the text that knows where it stands.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Piece<'a> {
    fn error(self, expected: &'static str) -> SpecError {
        SpecError { position: self.at, found: self.text.to_owned(), expected }
    }

    /// Pieces between separators, without surrounding spaces.
    fn split(self, separator: char) -> impl Iterator<Item = Piece<'a>> {
        let mut at = self.at;
        self.text.split(separator).map(move |text| {
            let piece = Piece { text: text.trim(), at: at + (text.len() - text.trim_start().len()) };
            at += text.len() + separator.len_utf8();
            piece
        })
    }

    /// Cuts at the first `=`.
    fn key_value(self) -> (&'a str, Option<Piece<'a>>) {
        match self.text.split_once('=') {
            Some((key, value)) => (key.trim_end(), Some(Piece { text: value, at: self.at + key.len() + 1 })),
            None => (self.text, None),
        }
    }

    fn number(self, expected: &'static str) -> Result<u64, SpecError> {
        let parsed = match self.text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => self.text.parse(),
        };
        parsed.map_err(|_| self.error(expected))
    }

    fn positive(self, expected: &'static str) -> Result<u64, SpecError> {
        self.number(expected).and_then(|n| if n == 0 { Err(self.error(expected)) } else { Ok(n) })
    }

    fn chance(self) -> Result<When, SpecError> {
        let (text, scale) = match self.text.strip_suffix('%') {
            Some(percent) => (percent, 0.01),
            None => (self.text, 1.0),
        };
        let value = text.parse::<f64>().map_err(|_| self.error(CHANCE))? * scale;
        // A NaN fails the comparison, too.
        if !(0.0..=1.0).contains(&value) {
            return Err(self.error(CHANCE));
        }
        Ok(When::Chance((value * 1e9).round() as u32))
    }

    fn time_ns(self) -> Result<u64, SpecError> {
        let digits = self.text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.text.len());
        let (number, unit) = self.text.split_at(digits);
        let scale = match unit.trim() {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return Err(self.error(TIME)),
        };
        number.parse::<f64>().map(|n| (n * scale) as u64).map_err(|_| self.error(TIME))
    }
}

/// What a word that chooses says; `None` if it is none.
fn when(key: &str, value: Piece<'_>) -> Result<Option<When>, SpecError> {
    Ok(match key {
        "chance" => Some(value.chance()?),
        "every" => Some(When::Every(value.positive("a number from 1")?)),
        "packet" => Some(packets(value)?),
        _ => None,
    })
}

fn select(value: Piece<'_>) -> Result<QpSelect, SpecError> {
    match value.text {
        "client" => return Ok(QpSelect::Client),
        "server" => return Ok(QpSelect::Server),
        _ => {}
    }
    if let Some(nth) = value.text.strip_prefix('#') {
        let nth = nth.parse().ok().filter(|&n: &u32| n > 0);
        return nth.map(QpSelect::Nth).ok_or_else(|| value.error(QP));
    }
    let number = u32::try_from(value.number(QP)?).ok().filter(|&n| n <= 0xff_ffff);
    number.map(|n| QpSelect::Number(Qpn::new(n))).ok_or_else(|| value.error(QP))
}

fn rule<'a>(head: Piece<'a>, words: impl Iterator<Item = Piece<'a>>) -> Result<Rule, SpecError> {
    let (name, amount) = head.key_value();
    let mut kind = match name {
        "drop" => Kind::Drop,
        "dup" | "duplicate" => Kind::Duplicate,
        "reorder" => Kind::Reorder { by: 1, limit_ns: 1_000_000 },
        "corrupt" => Kind::Corrupt,
        "delay" => Kind::Delay { ns: 0 },
        "ce" => Kind::Mark,
        _ => return Err(head.error(KINDS)),
    };
    let mut chosen = None;
    match (&mut kind, amount) {
        (Kind::Delay { ns }, Some(amount)) => *ns = amount.time_ns()?,
        (Kind::Delay { .. }, None) => return Err(head.error("delay=TIME, such as delay=1ms")),
        (_, Some(amount)) => chosen = Some(amount.chance()?),
        (_, None) => {}
    }
    let mut rule = Rule { kind, when: When::Always, direction: Direction::Receive, qp: None };
    for word in words {
        let (key, Some(value)) = word.key_value() else { return Err(word.error(WORDS)) };
        if let Some(selects) = when(key, value)? {
            if chosen.replace(selects).is_some() {
                return Err(word.error("only one of a chance, packet= and every= in a rule"));
            }
            continue;
        }
        match (key, &mut rule.kind) {
            ("qp", _) => rule.qp = Some(select(value)?),
            ("dir", _) => {
                rule.direction = match value.text {
                    "rx" => Direction::Receive,
                    "tx" => Direction::Send,
                    "both" => Direction::Both,
                    _ => return Err(value.error("rx, tx or both")),
                };
            }
            ("by", Kind::Reorder { by, .. }) => {
                *by = u32::try_from(value.positive("a number from 1")?)
                    .map_err(|_| value.error("a number below 2^32"))?;
            }
            ("for", Kind::Reorder { limit_ns, .. }) => *limit_ns = value.time_ns()?,
            _ => return Err(word.error(WORDS)),
        }
    }
    rule.when = chosen.unwrap_or(When::Always);
    Ok(rule)
}

fn packets(value: Piece<'_>) -> Result<When, SpecError> {
    const EXPECTED: &str = "a packet number from 1, or a range such as 17..20";
    match value.text.split_once("..") {
        None => value.positive(EXPECTED).map(|n| When::Packets(n, n)),
        Some((first, last)) => {
            let first = Piece { text: first, at: value.at }.positive(EXPECTED)?;
            let last = Piece { text: last, at: value.at + value.text.len() - last.len() }.positive(EXPECTED)?;
            if first > last { Err(value.error(EXPECTED)) } else { Ok(When::Packets(first, last)) }
        }
    }
}

impl FromStr for FaultSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        for piece in (Piece { text, at: 0 }).split(',') {
            match piece.key_value() {
                ("seed", Some(value)) => spec.seed = value.number("a number")?,
                _ => {
                    let mut words = piece.split(' ').filter(|w| !w.text.is_empty());
                    let head = words.next().ok_or_else(|| piece.error(KINDS))?;
                    let rest: Vec<_> = words.collect();
                    match device::rule(head, rest.iter().copied()) {
                        Some(found) => spec.device.push(found?),
                        None => spec.rules.push(rule(head, rest.into_iter())?),
                    }
                }
            }
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Rule {
        let spec: FaultSpec = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(spec.rules.len(), 1, "{text}");
        spec.rules[0]
    }

    fn error(text: &str) -> SpecError {
        text.parse::<FaultSpec>().expect_err(text)
    }

    #[test]
    fn the_forms_of_the_manual_are_understood() {
        let plain = Rule { kind: Kind::Drop, when: When::Always, direction: Direction::Receive, qp: None };
        assert_eq!(one("drop"), plain);
        assert_eq!(one("drop=1%"), Rule { when: When::Chance(10_000_000), ..plain });
        assert_eq!(one("drop=0.5"), Rule { when: When::Chance(500_000_000), ..plain });
        assert_eq!(one("drop packet=17"), Rule { when: When::Packets(17, 17), ..plain });
        assert_eq!(
            one(" drop  packet=17..20 dir=tx"),
            Rule { when: When::Packets(17, 20), direction: Direction::Send, ..plain }
        );
        assert_eq!(
            one("corrupt every=9 qp=0x10011"),
            Rule { kind: Kind::Corrupt, when: When::Every(9), qp: Some(QpSelect::Number(Qpn::new(0x10011))), ..plain }
        );
        assert_eq!(
            one("delay=1.5ms chance=5% dir=both"),
            Rule {
                kind: Kind::Delay { ns: 1_500_000 },
                when: When::Chance(50_000_000),
                direction: Direction::Both,
                ..plain
            }
        );
        assert_eq!(one("reorder=2% by=3 for=2us").kind, Kind::Reorder { by: 3, limit_ns: 2_000 });
        assert_eq!(one("drop qp=client packet=17").qp, Some(QpSelect::Client));
        assert_eq!(one("dup=100%").when, When::Chance(1_000_000_000));
        let spec: FaultSpec = "reorder=2%,delay=1ms, ce=5% ,seed=7".parse().unwrap();
        assert_eq!((spec.rules.len(), spec.seed), (3, 7));
    }

    #[test]
    fn errors_say_where_and_what() {
        assert_eq!((error("").position, error("").found.as_str()), (0, ""));
        assert_eq!(error("drop=x").position, 5);
        assert_eq!(error("drop=1%, lose=3").position, 9);
        assert_eq!(error("drop=1%, lose=3").found, "lose=3");
        assert_eq!(error("drop=101%").expected, CHANCE);
        assert_eq!(error("drop=-1%").expected, CHANCE);
        assert_eq!(error("drop=NaN").expected, CHANCE);
        assert_eq!(error("delay=5").expected, TIME);
        assert_eq!(error("delay").position, 0);
        assert_eq!(error("drop packet=0").position, 12);
        assert_eq!(error("drop packet=5..4").position, 12);
        assert_eq!(error("drop every=0").position, 11);
        assert_eq!(error("drop=1% every=2").position, 8);
        assert_eq!(error("drop qp=0x1000000").position, 8);
        assert_eq!(error("drop dir=up").position, 9);
        assert_eq!(error("drop by=2").position, 5);
        assert_eq!(error("drop=1%,").position, 8);
        let text = error("drop=x").to_string();
        assert!(text.contains("position 5") && text.contains("`x`") && text.contains("1%"), "{text}");
    }
}
