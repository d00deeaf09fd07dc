//! Quantities as a person writes them: "100G", "1us", "32MiB". A bare number is refused, because nobody can tell what it was meant to be.

use super::super::time::Ps;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// Splits "1.5us" into 1.5 and "us".
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

fn read(text: &str, most: f64, units: &[(&str, f64)]) -> Option<u64> {
    let (number, unit) = split(text)?;
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    let value = (number * factor).round();
    (0.0..=most).contains(&value).then_some(value as u64)
}

macro_rules! quantity {
    ($(#[$m:meta])* $name:ident($inner:ty), $wrap:expr, $expected:literal, $most:literal, $units:expr) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub $inner);

        impl $name {
            /// Reads it from text.
            pub fn parse(text: &str) -> Option<Self> {
                read(text, $most, $units).map($wrap).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Words;
                impl Visitor<'_> for Words {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: Error>(self, text: &str) -> Result<$name, E> {
                        $name::parse(text).ok_or_else(|| E::custom(format!("{text:?}: expected {}", $expected)))
                    }
                }
                deserializer.deserialize_str(Words)
            }
        }
    };
}

quantity!(
    /// Bits a second.
    Speed(u64), |bps| bps, "a rate with its unit, such as \"100G\" or \"400Gbps\"", 1.8e19,
    &[("M", 1e6), ("Mbps", 1e6), ("G", 1e9), ("Gbps", 1e9), ("T", 1e12), ("Tbps", 1e12), ("bps", 1.0), ("K", 1e3), ("Kbps", 1e3)]
);

quantity!(
    /// A time.
    Time(Ps), Ps, "a time with its unit, such as \"1us\", \"600ns\" or \"5ms\", at most \"10000s\"", 1e16,
    &[("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("µs", 1e6), ("ms", 1e9), ("s", 1e12)]
);

quantity!(
    /// Bytes.
    Size(u64), |bytes| bytes, "a size with its unit, such as \"64KiB\", \"1MB\" or \"500B\"", 1.8e19,
    &[("B", 1.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(Speed::parse("100G"), Some(Speed(100_000_000_000)));
        assert_eq!(Time::parse("1.5us"), Some(Time(Ps(1_500_000))));
        assert_eq!(Size::parse("32 MiB"), Some(Size(32 << 20)));
        for wrong in ["100", "G", "", "-1G", "1e3G", "100 g", "1..5G", "99999999999T"] {
            assert_eq!(Speed::parse(wrong), None, "{wrong}");
        }
    }
}
