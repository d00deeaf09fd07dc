//! How whoever waits passes the time: first it looks again at once (spin), then it lets others onto the processor between two looks
//! (yield), then it sleeps until it is woken. Plain data and its text form; the [worker](crate::worker) and who waits for a completion
//! channel keep to it.
//!
//! A wake takes 5 to 6 µs, so spinning for longer than that pays only where the next event comes soon; and who spins keeps others off
//! the processor, so it must be short where processors are few.

use std::str::FromStr;
use std::time::Duration;

/// Thresholds. The text form is `spin=20us,yield=0us,aside=1ms`; what it does not name stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// Nothing happened for this long: no more spinning. Default 20 µs; 0 to 1 s. 0: each wait is a sleep; large: a processor for each
    /// who waits.
    pub spin: Duration,
    /// Nothing happened for this much longer: sleep. Default 0; 0 to 1 s. In between others have the processor if they want it, so
    /// that a long time costs power, and processes that nobody pays for, but no one's speed.
    pub yielding: Duration,
    /// How often the worker, which stands aside while callers poll, looks whether they still do. Default 1 ms; 100 µs to 1 s. Large: a
    /// program that stops polling stays deaf for so long; small: the looks take the processor from those who poll. An ACK that a
    /// poller keeps back for the next post waits at most this long, too, if it is less than 1 ms.
    pub aside: Duration,
}

impl Default for Polling {
    fn default() -> Self {
        Self { spin: Duration::from_micros(20), yielding: Duration::ZERO, aside: Duration::from_millis(1) }
    }
}

/// The longest of each.
const LONGEST: Duration = Duration::from_secs(1);
/// The shortest look from aside.
const SHORTEST_ASIDE: Duration = Duration::from_micros(100);

impl Polling {
    /// Takes over what the text says. Errors say which word is wrong and what could stand there.
    pub fn read(&mut self, text: &str) -> Result<(), String> {
        let mut new = *self;
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let (place, least) = match name {
                "spin" => (&mut new.spin, Duration::ZERO),
                "yield" => (&mut new.yielding, Duration::ZERO),
                "aside" => (&mut new.aside, SHORTEST_ASIDE),
                _ => return Err(format!("{word:?}: `spin=TIME`, `yield=TIME` and `aside=TIME` are possible")),
            };
            let time = time(value).filter(|time| (least..=LONGEST).contains(time));
            *place =
                time.ok_or_else(|| format!("{word:?}: {name} takes a time from {least:?} to 1s, such as 20us or 1ms"))?;
        }
        *self = new;
        Ok(())
    }

    /// Whether a wait is a sleep at once.
    pub fn spins_never(&self) -> bool {
        (self.spin, self.yielding) == (Duration::ZERO, Duration::ZERO)
    }

    /// What to do next when nothing has happened for `quiet_ns`.
    #[inline]
    pub fn after(&self, quiet_ns: u64) -> Pass {
        if quiet_ns < self.spin.as_nanos() as u64 {
            Pass::Spin
        } else if quiet_ns < (self.spin + self.yielding).as_nanos() as u64 {
            Pass::Yield
        } else {
            Pass::Sleep
        }
    }
}

impl FromStr for Polling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut polling = Self::default();
        polling.read(text).map(|()| polling)
    }
}

/// A way to pass the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Look again at once.
    Spin,
    /// Let others onto the processor, and look again.
    Yield,
    /// Until woken.
    Sleep,
}

/// `20us`, `1.5ms`, `1s`, `0`.
fn time(text: &str) -> Option<Duration> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = match units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size))) {
        Some((number, size)) => number.parse::<f64>().ok()? * size,
        None => text.parse::<u8>().ok().filter(|zero| *zero == 0)?.into(),
    };
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_changes_what_it_names() {
        let micros = Duration::from_micros;
        let polling: Polling = "spin=0,yield=1.5ms".parse().unwrap();
        assert_eq!(polling, Polling { spin: Duration::ZERO, yielding: micros(1500), aside: micros(1000) });
        assert_eq!("aside=100us spin=1s".parse::<Polling>().unwrap().spin, Duration::from_secs(1));
        assert_eq!("".parse::<Polling>().unwrap(), Polling::default());
    }

    #[test]
    fn a_wrong_word_is_named_and_changes_nothing() {
        for (text, part) in [
            ("spin=20", "spin=20"),
            ("spin=2s", "to 1s"),
            ("spin=-1us", "spin"),
            ("aside=99us", "100µs"),
            ("sleep=1ms", "yield=TIME"),
            ("yield", "yield takes"),
            ("spin=1us,aside=x", "aside"),
        ] {
            let mut polling = Polling::default();
            let error = polling.read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
            assert_eq!(polling, Polling::default(), "{text}");
        }
    }

    #[test]
    fn first_it_spins_then_it_yields_then_it_sleeps() {
        let polling: Polling = "spin=20us,yield=30us".parse().unwrap();
        let passes = [0, 19_999, 20_000, 49_999, 50_000].map(|ns| polling.after(ns));
        assert_eq!(passes, [Pass::Spin, Pass::Spin, Pass::Yield, Pass::Yield, Pass::Sleep]);
        assert_eq!(Polling::default().after(20_000), Pass::Sleep);
    }
}
