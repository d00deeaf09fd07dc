//! Which congestion controller a QP gets: what the configuration says, rule by rule, and what it becomes on a port of a given
//! speed. The controllers are the transport's; nothing here measures or sends.
//!
//! ```toml
//! [congestion]
//! algorithm = "dcqcn"             # docs/configuration.md has the names; default "none"
//! line_rate_gbps = 25             # default: what the interface says, else 10
//! base_rtt_us = 100               # round trip through an empty network; default 100
//! hops = 2                        # switches on the way; default 1
//! burst_bytes = 65536             # what a late turn may make up for; default 64 KiB
//! telemetry = true                # switches write INT, and packets have room for it; default false
//! without_telemetry = "dcqcn"     # what hpcc becomes where none comes; without telemetry it is refused if this is not said
//! parameters = { rpg_ai_rate_bps = 5000000 }
//!
//! [[congestion.qp]]               # the first that fits counts; what it does not say stays
//! to = "10.1.0.0/16"              # peers
//! service_level = 3
//! algorithm = "swift"
//! ```

use std::net::IpAddr;

use scalefabric_transport::congestion::{Invalid, Profile, Route};
use scalefabric_verbs::{AddressVector, Mtu, VerbsError};
use serde::Deserialize;

use crate::netlink::Address;

/// Line rate of a port whose interface does not tell, bit/s: about what the software NIC does with one processor.
const DEFAULT_LINE_BPS: u64 = 10_000_000_000;

/// Round trip of an empty network, ns: two turns of an engine and a switch. It depends on processors more than on cables.
const DEFAULT_BASE_RTT_NS: u64 = 100_000;

/// What a sender may make up for at once after a late turn, bytes. Less than a train makes each train several; more is a burst
/// that switches have to take.
const DEFAULT_BURST_BYTES: u64 = 64 << 10;

/// One choice, as TOML has it. What is not there is taken from the choice before it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Name of a profile.
    pub algorithm: Option<String>,
    /// Rate of the link, Gb/s.
    pub line_rate_gbps: Option<f64>,
    /// Round trip through an empty network, µs. 0.001 to 10,000,000. Too small: delays look like queues, and Swift and TIMELY slow
    /// down for nothing. Too large: queues look like distance.
    pub base_rtt_us: Option<f64>,
    /// Switches on the way. More than there are: Swift accepts more queue.
    pub hops: Option<u8>,
    /// What a late turn may make up for, bytes. 0: nothing, and what the engine sleeps is lost.
    pub burst_bytes: Option<u64>,
    /// Whether switches here write telemetry: packets have room for it, the path MTU is smaller by that, and peers are told. A peer
    /// that does not know of it gets packets without.
    pub telemetry: Option<bool>,
    /// The profile instead of one that needs telemetry, where there is none, or where none comes.
    pub without_telemetry: Option<String>,
    /// Parameters of the algorithm, by name.
    #[serde(default)]
    pub parameters: toml::Table,
}

/// The table `[congestion]`: a choice for all QPs, and in `qp` choices for some.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct CongestionTable {
    choice: Choice,
    rules: Vec<(Which, Choice)>,
}

impl TryFrom<toml::Table> for CongestionTable {
    type Error = String;

    fn try_from(mut table: toml::Table) -> Result<Self, String> {
        let mut rules = Vec::new();
        if let Some(qp) = table.remove("qp") {
            let each: Vec<toml::Table> = qp
                .try_into()
                .map_err(|_| "congestion.qp: an array of tables, [[congestion.qp]], is expected".to_owned())?;
            for (n, mut qp) in each.into_iter().enumerate() {
                let which = Which::take(&mut qp).map_err(|e| format!("congestion.qp {}: {e}", n + 1))?;
                let choice = choice(qp).map_err(|e| format!("congestion.qp {}: {e}", n + 1))?;
                rules.push((which, choice));
            }
        }
        Ok(Self { choice: choice(table).map_err(|e| format!("congestion: {e}"))?, rules })
    }
}

fn choice(table: toml::Table) -> Result<Choice, String> {
    table.try_into().map_err(|e: toml::de::Error| e.message().to_owned())
}

/// For whom a choice is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Which {
    to: Option<Address>,
    service_level: Option<u8>,
}

impl Which {
    /// Takes its keys out of a table.
    fn take(table: &mut toml::Table) -> Result<Self, String> {
        let to = match table.remove("to") {
            None => None,
            Some(toml::Value::String(text)) => Some(network(&text)?),
            Some(other) => return Err(format!("to is of type {}: a text is expected", other.type_str())),
        };
        let service_level = match table.remove("service_level") {
            None => None,
            Some(toml::Value::Integer(sl @ 0..=15)) => Some(sl as u8),
            Some(_) => return Err("service_level: 0 to 15 is possible".into()),
        };
        Ok(Self { to, service_level })
    }

    fn fits(&self, av: &AddressVector) -> bool {
        self.to.is_none_or(|net| net.covers(av.dgid.to_ip())) && self.service_level.is_none_or(|sl| sl == av.sl)
    }
}

/// What a device is told: rules in order, the last of them for everybody.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Congestion {
    rules: Vec<(Which, Choice)>,
    general: Choice,
}

/// What a QP gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// Algorithm and parameters.
    pub profile: Profile,
    /// What it becomes when it needs telemetry and hears none.
    pub fallback: Profile,
    /// What it controls.
    pub route: Route,
    /// What a late turn may make up for.
    pub burst_bytes: u64,
}

impl Choice {
    /// `self`, and for what it leaves open `general`. Parameters belong to their algorithm: another one has none of them.
    fn over(&self, general: &Self) -> Self {
        let same = self.algorithm.is_none() || self.algorithm == general.algorithm;
        let mut parameters = if same { general.parameters.clone() } else { toml::Table::new() };
        parameters.extend(self.parameters.clone());
        Self {
            algorithm: self.algorithm.clone().or_else(|| general.algorithm.clone()),
            line_rate_gbps: self.line_rate_gbps.or(general.line_rate_gbps),
            base_rtt_us: self.base_rtt_us.or(general.base_rtt_us),
            hops: self.hops.or(general.hops),
            burst_bytes: self.burst_bytes.or(general.burst_bytes),
            telemetry: self.telemetry.or(general.telemetry),
            without_telemetry: self.without_telemetry.clone().or_else(|| general.without_telemetry.clone()),
            parameters,
        }
    }

    /// What it is on a port of `speed_mbps` (0: unknown) for packets of `mtu`.
    fn on(&self, speed_mbps: u32, mtu: Mtu) -> Result<Chosen, Invalid> {
        let positive = |name: &str, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                Ok(value)
            } else {
                Err(Invalid(format!("{name} is {value}: {least} to {most} is possible")))
            }
        };
        let line_rate_bps = match self.line_rate_gbps {
            Some(gbps) => (positive("line_rate_gbps", gbps, 0.001, 10_000.0)? * 1e9) as u64,
            None if speed_mbps > 0 => u64::from(speed_mbps) * 1_000_000,
            None => DEFAULT_LINE_BPS,
        };
        let base_rtt_ps = match self.base_rtt_us {
            Some(us) => (positive("base_rtt_us", us, 0.001, 1e7)? * 1e6) as u64,
            None => DEFAULT_BASE_RTT_NS * 1_000,
        };
        let route = Route { line_rate_bps, base_rtt_ps, packet_bytes: mtu.bytes(), hops: self.hops.unwrap_or(1) };
        let mut profile = Profile::named(self.algorithm.as_deref().unwrap_or("none"), line_rate_bps)?;
        for (name, value) in &self.parameters {
            profile.set(name, number(name, value)?)?;
        }
        let instead = self.without_telemetry.as_deref();
        let fallback = Profile::named(instead.unwrap_or("dcqcn-paper"), line_rate_bps)?;
        if fallback.needs_telemetry() {
            return Err(Invalid("without_telemetry names an algorithm that needs telemetry, too".into()));
        }
        if profile.get("pint") == Some(1.0) {
            return Err(Invalid("hpcc-pint is for simulation: no packet of ours has its byte".into()));
        }
        if profile.needs_telemetry() && self.telemetry != Some(true) {
            if instead.is_none() {
                return Err(Invalid(format!(
                    "{} needs telemetry that switches write on packets: say telemetry = true if they do, or which algorithm it \
                     becomes where they do not with without_telemetry",
                    profile.algorithm()
                )));
            }
            profile = fallback;
        }
        profile.check(&route)?;
        Ok(Chosen { profile, fallback, route, burst_bytes: self.burst_bytes.unwrap_or(DEFAULT_BURST_BYTES) })
    }
}

fn number(name: &str, value: &toml::Value) -> Result<f64, Invalid> {
    match value {
        toml::Value::Integer(whole) => Ok(*whole as f64),
        toml::Value::Float(float) => Ok(*float),
        toml::Value::Boolean(yes) => Ok(f64::from(u8::from(*yes))),
        other => Err(Invalid(format!("{name} is of type {}: a number, true or false is expected", other.type_str()))),
    }
}

fn network(text: &str) -> Result<Address, String> {
    let wrong = || format!("to = {text:?}: an address, or a network as 10.1.0.0/16, is expected");
    let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let prefix_len = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
    if prefix_len > most { Err(wrong()) } else { Ok(Address { ip, prefix_len }) }
}

impl Congestion {
    /// Takes over what a file says. Every rule is tried, so that a wrong one is refused here and not when a QP meets it.
    pub fn read(&mut self, table: CongestionTable) -> Result<(), VerbsError> {
        let wrong = |place: String, e: &Invalid| VerbsError::invalid(format!("{place}: {e}"));
        let general = table.choice.over(&self.general);
        // What an interface says is not known yet: any speed does for the names and bounds.
        general.on(0, Mtu::Mtu1024).map_err(|e| wrong("congestion".into(), &e))?;
        let mut rules = Vec::new();
        for (n, (which, choice)) in table.rules.into_iter().enumerate() {
            let choice = choice.over(&general);
            choice.on(0, Mtu::Mtu1024).map_err(|e| wrong(format!("congestion.qp {}", n + 1), &e))?;
            rules.push((which, choice));
        }
        (self.general, self.rules) = (general, rules);
        Ok(())
    }

    /// Takes over a name, as an environment variable gives it: for every QP, with the parameters of a file if those are this
    /// algorithm's.
    pub fn set_algorithm(&mut self, name: &str, origin: &str) -> Result<(), VerbsError> {
        let choice = Choice { algorithm: Some(name.to_owned()), ..Choice::default() }.over(&self.general);
        choice.on(0, Mtu::Mtu1024).map_err(|e| VerbsError::invalid(format!("{origin}: {e}")))?;
        self.general = choice;
        self.rules.clear();
        Ok(())
    }

    /// What a QP gets that sends along `av` from a port of `speed_mbps` with path MTU `mtu`.
    pub fn choose(&self, av: &AddressVector, speed_mbps: u32, mtu: Mtu) -> Result<Chosen, VerbsError> {
        let rule = self.rules.iter().find(|(which, _)| which.fits(av)).map_or(&self.general, |(_, choice)| choice);
        rule.on(speed_mbps, mtu).map_err(|e| VerbsError::invalid(format!("congestion: {e}")))
    }

    /// The same for a QP whose owner names the algorithm.
    pub fn choose_named(&self, name: &str, speed_mbps: u32, mtu: Mtu) -> Result<Chosen, VerbsError> {
        let choice = Choice { algorithm: Some(name.to_owned()), ..Choice::default() }.over(&self.general);
        choice.on(speed_mbps, mtu).map_err(|e| VerbsError::invalid(e.0))
    }

    /// Whether packets have room for telemetry.
    pub fn has_telemetry(&self) -> bool {
        self.general.telemetry == Some(true)
    }

    /// True if nobody gets a controller.
    pub fn is_none(&self) -> bool {
        let none = |choice: &Choice| choice.algorithm.as_deref().is_none_or(|name| name == "none");
        none(&self.general) && self.rules.iter().all(|(_, choice)| none(choice))
    }
}

#[cfg(test)]
mod tests {
    use scalefabric_verbs::Gid;

    use super::*;

    fn read(text: &str) -> Result<Congestion, VerbsError> {
        #[derive(Deserialize)]
        struct File {
            congestion: CongestionTable,
        }
        let file: File = toml::from_str(text).map_err(|e| VerbsError::invalid(e.to_string()))?;
        let mut congestion = Congestion::default();
        congestion.read(file.congestion).map(|()| congestion)
    }

    fn to(ip: [u8; 4], sl: u8) -> AddressVector {
        AddressVector { dgid: Gid::from_ip(ip.into()), sl, ..AddressVector::default() }
    }

    #[test]
    fn the_example_of_the_manual_chooses_by_peer_and_service_level() {
        let example: String = include_str!("congestion.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
            .collect();
        let congestion = read(&example).unwrap();
        let chosen = |av| congestion.choose(&av, 40_000, Mtu::Mtu4096).unwrap();
        let general = chosen(to([10, 2, 0, 1], 3));
        assert_eq!(general.profile.algorithm(), "dcqcn");
        assert_eq!(general.profile.get("rpg_ai_rate_bps"), Some(5e6));
        assert_eq!(
            general.route,
            Route { line_rate_bps: 25_000_000_000, base_rtt_ps: 100_000_000, packet_bytes: 4096, hops: 2 }
        );
        assert_eq!(chosen(to([10, 1, 7, 1], 3)).profile.algorithm(), "swift");
        assert_eq!(chosen(to([10, 1, 7, 1], 0)).profile.algorithm(), "dcqcn");
    }

    #[test]
    fn without_a_word_nobody_is_controlled_and_the_interface_tells_its_rate() {
        let none = Congestion::default();
        assert!(none.is_none());
        assert_eq!(none.choose(&to([10, 0, 0, 1], 0), 0, Mtu::Mtu1024).unwrap().profile, Profile::None);
        let mut some = none;
        some.set_algorithm("timely-scaled", "SCALEFABRIC_CONGESTION").unwrap();
        let rate = |speed| some.choose(&to([10, 0, 0, 1], 0), speed, Mtu::Mtu1024).unwrap().route.line_rate_bps;
        assert_eq!((rate(100_000), rate(0)), (100_000_000_000, 10_000_000_000));
        assert!(!some.is_none());
    }

    #[test]
    fn parameters_of_one_algorithm_do_not_meet_another() {
        let congestion = read("[congestion]\nalgorithm = \"dcqcn\"\nparameters = { rpg_threshold = 3 }").unwrap();
        let swift = congestion.choose_named("swift", 0, Mtu::Mtu1024).unwrap();
        assert_eq!(swift.profile.algorithm(), "swift");
        let dcqcn = congestion.choose_named("dcqcn", 0, Mtu::Mtu1024).unwrap();
        assert_eq!(dcqcn.profile.get("rpg_threshold"), Some(3.0));
    }

    #[test]
    fn what_needs_telemetry_is_refused_or_becomes_what_the_file_says() {
        let refused = read("[congestion]\nalgorithm = \"hpcc\"").unwrap_err().message;
        assert!(refused.contains("without_telemetry"), "{refused}");
        let hpcc = read("[congestion]\nalgorithm = \"hpcc\"\ntelemetry = true").unwrap();
        let chosen = hpcc.choose(&to([10, 0, 0, 1], 0), 0, Mtu::Mtu1024).unwrap();
        assert_eq!((chosen.profile.algorithm(), chosen.fallback.algorithm()), ("hpcc", "dcqcn"));
        assert!(hpcc.has_telemetry());
        let congestion = read("[congestion]\nalgorithm = \"hpcc\"\nwithout_telemetry = \"swift\"").unwrap();
        assert_eq!(congestion.choose(&to([10, 0, 0, 1], 0), 0, Mtu::Mtu1024).unwrap().profile.algorithm(), "swift");
        let circle = read("[congestion]\nalgorithm = \"hpcc\"\nwithout_telemetry = \"hpcc-pint\"").unwrap_err().message;
        assert!(circle.contains("too"), "{circle}");
    }

    #[test]
    fn mistakes_are_named_with_what_could_be_there() {
        let message = |text: &str| read(text).unwrap_err().message;
        let unknown = message("[congestion]\nalgorithm = \"dctcp\"");
        assert!(unknown.contains("dctcp") && unknown.contains("timely-scaled"), "{unknown}");
        let parameter = message("[congestion]\nalgorithm = \"swift\"\nparameters = { bta = 1 }");
        assert!(parameter.contains("bta") && parameter.contains("max_mdf"), "{parameter}");
        let text = message("[congestion]\nalgorithm = \"swift\"\nparameters = { beta = \"big\" }");
        assert!(text.contains("beta is of type string"), "{text}");
        let place = message("[[congestion.qp]]\nto = \"10.0.0.0/33\"\nalgorithm = \"swift\"");
        assert!(place.contains("congestion.qp 1") && place.contains("10.0.0.0/33"), "{place}");
        let key = message("[congestion]\nalgoritm = \"swift\"");
        assert!(key.contains("algoritm") && key.contains("algorithm"), "{key}");
        let rate = message("[congestion]\nalgorithm = \"swift\"\nline_rate_gbps = 0");
        assert!(rate.contains("line_rate_gbps is 0"), "{rate}");
    }
}
