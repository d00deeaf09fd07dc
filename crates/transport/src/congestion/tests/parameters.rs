//! Parameters as a user meets them: by name, with bounds, with words.

use alloc::string::ToString;

use crate::congestion::{PROFILES, Profile, Route};

use super::{G, STAR};

#[test]
fn every_profile_is_sound_at_every_line_rate() {
    for named in PROFILES {
        for rate_mbps in [1, 10, 200, 1_000, 10_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000, 800_000] {
            let rate_bps = rate_mbps * 1_000_000;
            let profile = Profile::named(named.name, rate_bps).unwrap();
            for base_rtt_ps in [2_000_000, 12_240_000, 100_000_000] {
                let route = Route { line_rate_bps: rate_bps, base_rtt_ps, packet_bytes: 1152, hops: 5 };
                profile.check(&route).unwrap_or_else(|e| panic!("{} at {rate_mbps} Mb/s: {e}", named.name));
            }
        }
    }
}

#[test]
fn each_parameter_is_set_and_read_by_its_name_and_has_words() {
    for named in PROFILES {
        let original = Profile::named(named.name, 100 * G).unwrap();
        for row in original.table() {
            let mut profile = original;
            for value in [row.least, row.most] {
                profile.set(row.name, value).unwrap_or_else(|e| panic!("{}: {e}", row.name));
                assert_eq!(profile.get(row.name), Some(value), "{}", row.name);
            }
            let beyond = profile.set(row.name, row.most * 2.0 + 1.0).unwrap_err().to_string();
            assert!(beyond.contains(row.name) && beyond.contains("is possible"), "{beyond}");
            assert!(profile.set(row.name, f64::NAN).is_err());
            assert!(!row.meaning.is_empty() && !row.extremes.is_empty() && !row.source.is_empty());
            let says = |words: &[&str]| words.iter().any(|word| row.meaning.contains(word));
            match row.unit() {
                "ns" => assert!(says(&[", ns"]), "{}: {}", row.name, row.meaning),
                "bit/s" => assert!(says(&[", bit/s"]), "{}: {}", row.name, row.meaning),
                "packets" => assert!(says(&["packets"]), "{}: {}", row.name, row.meaning),
                "bytes" => assert!(says(&["bytes", "Bytes"]), "{}: {}", row.name, row.meaning),
                "percent" => assert!(says(&["percent"]), "{}: {}", row.name, row.meaning),
                "0 or 1" => assert_eq!((row.least, row.most), (0.0, 1.0), "{}", row.name),
                other => assert_eq!(other, "1", "{}", row.name),
            }
        }
    }
}

#[test]
fn mistakes_name_what_there_is() {
    let unknown = Profile::named("dctcp", 100 * G).unwrap_err().to_string();
    assert!(unknown.contains("dctcp") && unknown.contains("timely-scaled"), "{unknown}");
    let mut profile = Profile::named("hpcc", 100 * G).unwrap();
    let wrong = profile.set("etta", 0.9).unwrap_err().to_string();
    assert!(wrong.contains("etta") && wrong.contains("eta, max_stage"), "{wrong}");
    let half = profile.set("max_stage", 1.5).unwrap_err().to_string();
    assert!(half.contains("max_stage is 1.5") && half.contains("whole"), "{half}");
    assert!(Profile::None.set("eta", 0.9).is_err());
}

#[test]
fn what_contradicts_itself_or_the_route_is_refused() {
    let wrong = |name: &str, changes: &[(&str, f64)], route: &Route| {
        let mut profile = Profile::named(name, route.line_rate_bps).unwrap();
        for (name, value) in changes {
            profile.set(name, *value).unwrap();
        }
        profile.check(route).unwrap_err().to_string()
    };
    assert!(wrong("timely", &[("t_low_ns", 600_000.0)], &STAR).contains("t_low_ns is 600000"));
    assert!(wrong("dcqcn", &[("rpg_min_rate_bps", 2e11)], &STAR).contains("rpg_min_rate_bps"));
    assert!(wrong("dcqcn", &[("rpg_max_rate_bps", 1e9), ("rpg_min_rate_bps", 2e9)], &STAR).contains("1000000000"));
    assert!(wrong("swift", &[("fs_min_cwnd", 100.0), ("fs_max_cwnd", 50.0)], &STAR).contains("fs_max_cwnd"));
    assert!(wrong("swift", &[("max_cwnd", 0.5)], &STAR).contains("max_cwnd is 0.5"));
    assert!(wrong("hpcc", &[], &Route { base_rtt_ps: 0, ..STAR }).contains("base RTT"));
    assert!(wrong("timely", &[], &Route { base_rtt_ps: 1_000_000_000, ..STAR }).contains("beyond_base_rtt"));
    let none = Profile::named("dcqcn", 0).unwrap().check(&Route { line_rate_bps: 0, ..STAR }).unwrap_err().to_string();
    assert!(none.contains("line rate"), "{none}");
}
