//! Which algorithm with which parameters: by name, with defaults for a line rate, and changed parameter by parameter.

use super::dcqcn::{self, Dcqcn};
use super::hpcc::{self, Hpcc};
use super::moment::Moment;
use super::swift::{self, Swift};
use super::timely::{self, Timely};
use super::{Controller, Event, Invalid, Parameter, Route};

/// An algorithm and its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Profile {
    /// No control.
    #[default]
    None,
    /// DCQCN.
    Dcqcn(dcqcn::Parameters),
    /// TIMELY.
    Timely(timely::Parameters),
    /// HPCC.
    Hpcc(hpcc::Parameters),
    /// Swift.
    Swift(swift::Parameters),
}

/// A profile that has a name.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name.
    pub name: &'static str,
    /// What it is.
    pub meaning: &'static str,
    make: fn(u64) -> Profile,
}

/// All names.
pub const PROFILES: &[Named] = &[
    Named { name: "none", meaning: "No control: line rate, and the device's window.", make: |_| Profile::None },
    Named {
        name: "dcqcn",
        meaning: "DCQCN with the timers and the byte counter of ConnectX's firmware.",
        make: |rate| Profile::Dcqcn(dcqcn::Parameters::connectx(rate)),
    },
    Named {
        name: "dcqcn-paper",
        meaning: "DCQCN as its paper has it: a CNP in 50 us at most, and each one cuts.",
        make: |rate| Profile::Dcqcn(dcqcn::Parameters::paper(rate)),
    },
    Named {
        name: "dcqcn-reference",
        meaning: "DCQCN as HPCC's simulator has it: the firmware's timers, no byte counter.",
        make: |rate| Profile::Dcqcn(dcqcn::Parameters::reference(rate)),
    },
    Named {
        name: "dcqcn-reference-paper",
        meaning: "The same with timers of 50 and 55 us.",
        make: |rate| Profile::Dcqcn(dcqcn::Parameters::reference_paper(rate)),
    },
    Named {
        name: "timely",
        meaning: "TIMELY with the paper's thresholds, which were made for 10 Gb/s.",
        make: |rate| Profile::Timely(timely::Parameters::paper(rate)),
    },
    Named {
        name: "timely-scaled",
        meaning: "TIMELY with thresholds that are the same bytes of queue at every rate.",
        make: |rate| Profile::Timely(timely::Parameters::scaled(rate)),
    },
    Named {
        name: "hpcc",
        meaning: "HPCC: needs switches that write telemetry.",
        make: |rate| Profile::Hpcc(hpcc::Parameters::reference(rate)),
    },
    Named {
        name: "hpcc-pint",
        meaning: "HPCC with one byte of telemetry.",
        make: |rate| Profile::Hpcc(hpcc::Parameters::pint(rate)),
    },
    Named {
        name: "swift",
        meaning: "Swift: a delay target, and windows below one packet.",
        make: |_| Profile::Swift(swift::Parameters::google()),
    },
];

impl Profile {
    /// The profile of a name, with its defaults for a line rate.
    pub fn named(name: &str, line_rate_bps: u64) -> Result<Self, Invalid> {
        PROFILES.iter().find(|named| named.name == name).map(|named| (named.make)(line_rate_bps)).ok_or_else(|| {
            let names: alloc::vec::Vec<&str> = PROFILES.iter().map(|named| named.name).collect();
            Invalid(alloc::format!("no congestion control `{name}`: there are {}", names.join(", ")))
        })
    }

    /// Name of the algorithm.
    pub const fn algorithm(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Dcqcn(_) => "dcqcn",
            Self::Timely(_) => "timely",
            Self::Hpcc(_) => "hpcc",
            Self::Swift(_) => "swift",
        }
    }

    /// Its parameters.
    pub const fn table(&self) -> &'static [Parameter] {
        match self {
            Self::None => &[],
            Self::Dcqcn(_) => dcqcn::Parameters::TABLE,
            Self::Timely(_) => timely::Parameters::TABLE,
            Self::Hpcc(_) => hpcc::Parameters::TABLE,
            Self::Swift(_) => swift::Parameters::TABLE,
        }
    }

    /// Sets a parameter by its name; true and false are 1 and 0.
    pub fn set(&mut self, parameter: &str, value: f64) -> Result<(), Invalid> {
        match self {
            Self::None => {
                Err(Invalid(alloc::format!("`{parameter}`: without congestion control there are no parameters")))
            }
            Self::Dcqcn(p) => p.set(parameter, value),
            Self::Timely(p) => p.set(parameter, value),
            Self::Hpcc(p) => p.set(parameter, value),
            Self::Swift(p) => p.set(parameter, value),
        }
    }

    /// A parameter by its name.
    pub fn get(&self, parameter: &str) -> Option<f64> {
        match self {
            Self::None => None,
            Self::Dcqcn(p) => p.get(parameter),
            Self::Timely(p) => p.get(parameter),
            Self::Hpcc(p) => p.get(parameter),
            Self::Swift(p) => p.get(parameter),
        }
    }

    /// Whether the parameters make sense together and on this route.
    pub fn check(&self, route: &Route) -> Result<(), Invalid> {
        if route.line_rate_bps == 0 || route.packet_bytes == 0 {
            return Err(Invalid("congestion control needs the line rate and the size of a packet: one is 0".into()));
        }
        match self {
            Self::None => Ok(()),
            Self::Dcqcn(p) => p.check(route),
            Self::Timely(p) => p.check(route),
            Self::Hpcc(p) => p.check(route),
            Self::Swift(p) => p.check(route),
        }
    }

    /// Whether it learns from telemetry only, so that a network without it leaves it blind.
    pub const fn needs_telemetry(&self) -> bool {
        matches!(self, Self::Hpcc(_))
    }

    /// Of the receiver: the least time between two CNPs for a QP, ns. `None`: the device's own.
    pub const fn cnp_interval_ns(&self) -> Option<u64> {
        match self {
            Self::Dcqcn(p) => Some(p.min_time_between_cnps_ns),
            _ => None,
        }
    }

    /// A controller for a route. `burst_bytes`: what a sender whose turns come late may make up for at once; 0 where time is exact.
    pub fn controller(&self, route: &Route, burst_bytes: u64) -> Control {
        match self {
            Self::None => Control::None { line_rate_bps: route.line_rate_bps.max(1) },
            Self::Dcqcn(p) => Control::Dcqcn(Dcqcn::new(*p, route, burst_bytes)),
            Self::Timely(p) => Control::Timely(Timely::new(*p, route, burst_bytes)),
            Self::Hpcc(p) => Control::Hpcc(Hpcc::new(*p, route, burst_bytes)),
            Self::Swift(p) => Control::Swift(Swift::new(*p, route, burst_bytes)),
        }
    }
}

/// A controller of any algorithm. It is large: whoever has many puts it behind a pointer, where one more inside would be a second
/// look-up for each packet.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, clippy::large_enum_variant)]
pub enum Control {
    None { line_rate_bps: u64 },
    Dcqcn(Dcqcn),
    Timely(Timely),
    Hpcc(Hpcc),
    Swift(Swift),
}

macro_rules! each {
    ($self:ident, $none:expr, $controller:ident => $call:expr) => {
        match $self {
            Self::None { .. } => $none,
            Self::Dcqcn($controller) => $call,
            Self::Timely($controller) => $call,
            Self::Hpcc($controller) => $call,
            Self::Swift($controller) => $call,
        }
    };
}

impl Controller for Control {
    fn handle(&mut self, now: Moment, event: Event<'_>) {
        each!(self, (), c => c.handle(now, event));
    }

    fn window_bytes(&self) -> u64 {
        each!(self, u64::MAX, c => c.window_bytes())
    }

    fn rate_bps(&self) -> u64 {
        match self {
            Self::None { line_rate_bps } => *line_rate_bps,
            Self::Dcqcn(c) => c.rate_bps(),
            Self::Timely(c) => c.rate_bps(),
            Self::Hpcc(c) => c.rate_bps(),
            Self::Swift(c) => c.rate_bps(),
        }
    }

    fn next_send(&self) -> Moment {
        each!(self, Moment(0), c => c.next_send())
    }

    fn next_timer(&self) -> Option<Moment> {
        each!(self, None, c => c.next_timer())
    }
}
