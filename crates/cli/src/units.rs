//! Numbers for people: sizes in B, KiB, MiB; rates in Gb/s and messages a second; times in µs. And sizes back from text.

use std::time::Duration;

/// `4096` as `4 KiB`; sizes that are no whole multiple stay in bytes.
pub fn size(bytes: u64) -> String {
    const STEPS: &[(u64, &str)] = &[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (step, name) in STEPS {
        if bytes >= *step && bytes.is_multiple_of(*step) {
            return format!("{} {name}", bytes / step);
        }
    }
    format!("{bytes} B")
}

/// Time in µs with three significant places.
pub fn micros(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    if us < 100.0 { format!("{us:.1} us") } else { format!("{us:.0} us") }
}

/// Bits a second.
pub fn bandwidth(bytes: u64, time: Duration) -> String {
    let bits = rate(bytes * 8, time);
    if bits >= 1e9 { format!("{:.2} Gb/s", bits / 1e9) } else { format!("{:.1} Mb/s", bits / 1e6) }
}

/// Messages a second.
pub fn message_rate(messages: u64, time: Duration) -> String {
    let rate = rate(messages, time);
    match rate {
        r if r >= 1e6 => format!("{:.2} M/s", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k/s", r / 1e3),
        r => format!("{r:.0} /s"),
    }
}

/// Things a second; 0 for no time at all.
pub fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Reads `8`, `64K`, `64KiB`, `1M`, `1 MiB` (powers of two, upper or lower case).
pub fn parse_size(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        other => return Err(format!("`{other}` is no unit of size; use B, K, M or G, as in 64K")),
    };
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is no size; use a number and a unit, as in 64K"))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= 1 << 31);
    bytes.map(|bytes| bytes as u32).ok_or_else(|| format!("`{text}` is more than a message can hold, 2^31 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for bytes in [0u32, 8, 1000, 4096, 65536, 1 << 20, 1 << 30, 1 << 31] {
            assert_eq!(parse_size(&size(bytes.into())), Ok(bytes));
        }
        assert_eq!(parse_size("64k"), Ok(65536));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "k", "12q", "-1", "3G", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
