//! What a scenario assumes of hosts and switches, and its congestion control.

use super::super::engine::MOST_HOSTS;
use super::super::model::{Balance, EngineModel, Marking, Model, Notification, Recovery};
use super::super::time::{Ps, Rate};
use super::file::{BalanceName, HostKind, ModelName, RecoveryName};
use super::{Refusal, Scenario};
use scalefabric_transport::congestion::Profile;
use scalefabric_verbs::Mtu;

/// Below it a watchdog would do nothing but look.
const LEAST_WATCHDOG: Ps = Ps(1_000_000);

impl Scenario {
    pub(super) fn build_model(&mut self) -> Result<(), Refusal> {
        let mut model = match self.file.model.unwrap_or(ModelName::Roce) {
            ModelName::Roce => Model::roce(),
            ModelName::Reference => Model::reference(),
        };
        let host = &self.file.host;
        if let Some(mtu) = host.mtu {
            model.host.mtu = self.within(mtu, "host.mtu", 64, 9_000)?;
        }
        if let Some(bytes) = host.header_bytes {
            model.host.header_bytes = self.within(bytes, "host.header_bytes", 0, 512)?;
        }
        if let Some(every) = host.ack_every {
            model.host.ack_every = self.within(every, "host.ack_every", 1, 1_024)?;
        }
        if let Some(timeout) = host.timeout {
            model.host.timeout = (timeout.0 != Ps::ZERO).then_some(timeout.0);
        }
        if let Some(count) = host.retry_cnt {
            model.host.retry_cnt = self.within(count, "host.retry_cnt", 0, 1_000)?;
        }
        match (host.recovery, host.reorder) {
            (Some(RecoveryName::Selective), reorder) => {
                let reorder = self.within(reorder.unwrap_or(64), "host.reorder", 1, 65_536)?;
                model.host.recovery = Recovery::Selective { reorder };
            }
            (_, Some(_)) => return Err(self.refuse("host.reorder", "counts only with recovery = \"selective\"")),
            _ => {}
        }
        if let Some(interval) = host.cnp_interval {
            model.host.notification = match interval.0 {
                Ps::ZERO => Notification::InAck,
                interval => Notification::Packets { interval },
            };
        }
        model.host.flight_limit = host.flight_limit.map_or(model.host.flight_limit, |size| size.0);
        if let Some(rate) = host.qp_rate {
            let rate = if rate.0 == 0 { None } else { self.rate(Some(rate), "host.qp_rate")? };
            model.host.qp_rate = rate.map(|bps| Rate::new(bps, false));
        }
        model.ns3_quantum = host.ns3_quantum.unwrap_or(model.ns3_quantum);
        self.build_switch(&mut model)?;
        let spread = model.switch.balance != Balance::Hash;
        if spread && model.host.recovery == Recovery::GoBackN {
            let message = "packets of a QP overtake each other, and go-back-N takes that for loss: set host.recovery = \"selective\"";
            return Err(self.refuse("switch.balance", message));
        }
        self.model = model;
        Ok(())
    }

    fn bits(&self, list: &[u8], place: &str) -> Result<u8, Refusal> {
        let mut bits = 0;
        for &priority in list {
            if priority > 7 {
                return Err(self.refuse(place, &format!("has {priority}; expected priorities from 0 to 7")));
            }
            bits |= 1 << priority;
        }
        Ok(bits)
    }

    fn build_switch(&self, model: &mut Model) -> Result<(), Refusal> {
        let table = &self.file.switch;
        let switch = &mut model.switch;
        switch.buffer = table.buffer.map_or(switch.buffer, |size| size.0);
        if switch.buffer > u64::from(u32::MAX) {
            return Err(self.refuse("switch.buffer", "is above 4 GiB"));
        }
        if let Some(list) = &table.pfc {
            switch.pfc.priorities = self.bits(list, "switch.pfc")?;
        }
        if let Some(alpha) = table.alpha {
            switch.pfc.alpha_1024 = (self.part(alpha, "switch.alpha", 64.0)? * 1024.0) as u32;
            if switch.pfc.alpha_1024 == 0 {
                return Err(self.refuse("switch.alpha", "is below 1/1024: every packet would cause a pause"));
            }
        }
        if let Some(alpha) = table.lossy_alpha {
            switch.lossy_alpha_1024 = (self.part(alpha, "switch.lossy_alpha", 64.0)? * 1024.0) as u32;
        }
        if let Some(headroom) = table.headroom {
            switch.pfc.headroom_delays = 0;
            switch.pfc.headroom_bytes = u32::try_from(headroom.0).unwrap_or(u32::MAX);
        }
        if let Some(size) = table.resume_below {
            if size.0 >= switch.buffer {
                let message = format!("is {} B, and the buffer {} B: a pause would never end", size.0, switch.buffer);
                return Err(self.refuse("switch.resume_below", &message));
            }
            switch.pfc.resume_below = u32::try_from(size.0).unwrap_or(u32::MAX);
        }
        if let Some(quanta) = table.quanta {
            switch.pfc.quanta = (quanta != 0).then_some(quanta);
        }
        if let Some(watchdog) = table.watchdog {
            if watchdog.0 != Ps::ZERO && watchdog.0 < LEAST_WATCHDOG {
                let message = format!("is {}; expected \"1us\" or more, or \"0ns\" for none", watchdog.0);
                return Err(self.refuse("switch.watchdog", &message));
            }
            switch.pfc.watchdog = (watchdog.0 != Ps::ZERO).then_some(watchdog.0);
        }
        let any = table.kmin.is_some() || table.kmax.is_some() || table.pmax.is_some() || table.ecn_scaled.is_some();
        match (table.ecn, any) {
            (Some(false), true) => return Err(self.refuse("switch.ecn", "is off, but thresholds are given")),
            (Some(false), false) => switch.marking = None,
            _ => {
                let old = switch.marking.unwrap_or(Marking { kmin: 100_000, kmax: 400_000, pmax: 0.2, scaled: true });
                // Thresholds of one's own are meant as they stand.
                let own = table.kmin.is_some() || table.kmax.is_some();
                let marking = Marking {
                    kmin: table.kmin.map_or(old.kmin, |size| size.0),
                    kmax: table.kmax.map_or(old.kmax, |size| size.0),
                    pmax: self.part(table.pmax.unwrap_or(old.pmax), "switch.pmax", 1.0)?,
                    scaled: table.ecn_scaled.unwrap_or(!own && old.scaled),
                };
                if marking.kmin > marking.kmax {
                    let message = format!("{} B is above kmax, {} B", marking.kmin, marking.kmax);
                    return Err(self.refuse("switch.kmin", &message));
                }
                switch.marking = Some(marking);
            }
        }
        if let Some(list) = &table.strict {
            switch.schedule.strict = self.bits(list, "switch.strict")?;
        }
        if let Some(weights) = &table.weights {
            switch.schedule.weights = weights
                .as_slice()
                .try_into()
                .map_err(|_| self.refuse("switch.weights", &format!("has {} values; expected 8", weights.len())))?;
            if weights.contains(&0) {
                return Err(self.refuse("switch.weights", "has 0: that priority would never send; expected 1 to 255"));
            }
        }
        switch.balance = match table.balance {
            None => switch.balance,
            Some(BalanceName::Hash) => Balance::Hash,
            Some(BalanceName::Spray) => Balance::Spray,
            Some(BalanceName::Adaptive) => Balance::Adaptive,
        };
        switch.reconvergence = table.reconvergence.map_or(switch.reconvergence, |time| time.0);
        Ok(())
    }

    pub(super) fn build_profile(&mut self) -> Result<(), Refusal> {
        let name = self.file.congestion.algorithm.clone().unwrap_or_else(|| "dcqcn".to_owned());
        let line = self.topology.links.iter().find(|link| link.a < self.topology.hosts || link.b < self.topology.hosts);
        let line = line.map_or(100_000_000_000, |link| link.bps);
        let mut profile =
            Profile::named(&name, line).map_err(|error| self.refuse("congestion.algorithm", &error.to_string()))?;
        for (parameter, value) in &self.file.congestion.set {
            let place = format!("congestion.set.{parameter}");
            let number = match value {
                toml::Value::Integer(number) => *number as f64,
                toml::Value::Float(number) => *number,
                toml::Value::Boolean(yes) => f64::from(u8::from(*yes)),
                other => return Err(self.refuse(&place, &format!("is {other}; expected a number, true or false"))),
            };
            profile.set(parameter, number).map_err(|error| self.refuse(&place, &error.to_string()))?;
        }
        // The receiver's part of the profile, unless the file says otherwise.
        let own = profile.cnp_interval_ns().filter(|_| self.file.host.cnp_interval.is_none());
        if let (Some(ns), Notification::Packets { interval }) = (own, &mut self.model.host.notification) {
            *interval = Ps::from_ns(ns);
        }
        self.profile = profile;
        self.algorithm = name;
        self.build_engine()
    }

    /// Hosts with the whole engine: what the light host only has is refused.
    fn build_engine(&mut self) -> Result<(), Refusal> {
        let host = &self.file.host;
        if host.kind != Some(HostKind::Engine) {
            return Ok(());
        }
        for (given, field) in [
            (host.header_bytes.is_some(), "header_bytes"),
            (host.recovery == Some(RecoveryName::Selective), "recovery"),
            (host.flight_limit.is_some(), "flight_limit"),
            (host.qp_rate.is_some(), "qp_rate"),
            (host.ns3_quantum.is_some(), "ns3_quantum"),
        ] {
            if given {
                return Err(self.refuse(&format!("host.{field}"), "counts only with kind = \"light\""));
            }
        }
        if self.model.host.notification == Notification::InAck {
            return Err(
                self.refuse("host.kind", "the engine sends CNPs of its own; model = \"reference\" has them in ACKs")
            );
        }
        if self.topology.hosts > MOST_HOSTS {
            let message = format!("there are {} hosts; engines run on at most {MOST_HOSTS}", self.topology.hosts);
            return Err(self.refuse("host.kind", &message));
        }
        if Mtu::from_bytes(self.model.host.mtu).is_none() {
            let message = format!("is {}; engines know 256, 512, 1024, 2048 and 4096", self.model.host.mtu);
            return Err(self.refuse("host.mtu", &message));
        }
        if self.profile.needs_telemetry() {
            let message = "switches here do not write the live trailer of telemetry: use \"light\" hosts for it";
            return Err(self.refuse("host.kind", message));
        }
        let parameters = self.file.congestion.set.keys();
        let parameters = parameters.filter_map(|name| Some((name.clone(), self.profile.get(name)?))).collect();
        self.model.host.engine = Some(EngineModel { algorithm: self.algorithm.clone(), parameters });
        Ok(())
    }
}
