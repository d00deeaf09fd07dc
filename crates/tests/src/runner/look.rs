//! Looking: packets, completions, events, memory, states, counters.

use std::fmt::Write as _;

use scalefabric_verbs::{WcFlags, WcStatus};
use scalefabric_wire::RKey;
use scalefabric_wire::opcode::Opcode;

use super::{Runner, Step, compare};
use crate::script::{Expect, Fate, Field, Queue, Ref, SliceBase, Statement, WcSpec};
use crate::stage::{Done, Packet, Subject, Target};

/// A completion in the words of a script.
pub fn describe_done(queue: Queue, done: &Done) -> String {
    let wc = &done.wc;
    let queue = if queue == Queue::Send { "send" } else { "recv" };
    let mut text = format!("{queue} wr={} {} op={} len={}", wc.wr_id, wc.status.info().name, wc.opcode, wc.byte_len);
    if wc.flags.contains(WcFlags::WITH_IMM) {
        let _ = write!(text, " imm={:#x}", wc.imm);
    }
    if wc.flags.contains(WcFlags::WITH_INV) {
        let _ = write!(text, " inv={}", wc.invalidated_rkey);
    }
    if wc.flags.contains(WcFlags::GRH) {
        text += " grh";
    }
    if done.solicited == Some(true) {
        text += " solicited";
    }
    text
}

impl Runner<'_> {
    pub(super) fn look(&mut self, statement: &Statement) -> Step {
        match statement {
            Statement::Packet { from, to, opcode, fields, at, fate } => {
                self.expect_packet(from, to, *opcode, fields, *at, fate)
            }
            Statement::Nothing => self.quiet("nothing should happen"),
            // What had to wait for a packet need not wait for one that was not needed.
            Statement::Silent { .. } if self.stage.executes_by_itself() => Ok(()),
            Statement::Silent { qp } => {
                let node = self.actor(qp)?.node;
                match self.pending.iter().find(|(n, _)| *n == node) {
                    None => Ok(()),
                    Some((node, packet)) => {
                        Err(format!("{qp} should be silent:\n  + {}", self.describe(*node, packet)))
                    }
                }
            }
            Statement::Completion { target, queue, spec } => self.expect_completion(target, *queue, spec),
            Statement::Event { target, event } => {
                let subject = self.subject(target)?;
                if self.stage.never_raises(subject, *event) {
                    return match self.events.iter().any(|raised| *raised == (subject, *event)) {
                        true => Err(format!("{target} raised {}, which it never does", event.info().name)),
                        false => Ok(()),
                    };
                }
                self.wait_until(|runner| runner.events.iter().any(|(s, _)| *s == subject));
                let place = self.events.iter().position(|(s, _)| *s == subject);
                let found = place.and_then(|place| self.events.remove(place)).map(|(_, event)| event);
                if found == Some(*event) {
                    self.say(format!("event {target} {}", event.info().name));
                    self.evidence.saw("event", event.info().name);
                    return Ok(());
                }
                let found = found.map_or("none", |event| event.info().name);
                Err(format!("expected event {} of {target}, found {found}", event.info().name))
            }
            Statement::Memory { at, expect } => self.expect_memory(at, expect),
            Statement::State { qp, state } => {
                let found = self.stage.query(self.actor(qp)?.qp).qp_state;
                if found == *state {
                    self.evidence.saw("state", format!("{} {state}", self.actor(qp)?.qp_type));
                    return Ok(());
                }
                Err(format!("{qp} should be in {state}, and is in {found}"))
            }
            Statement::Query { qp, pairs } => {
                let found = self.stage.query(self.actor(qp)?.qp);
                for (key, value) in pairs {
                    let text = match key.as_str() {
                        "sq_psn" => found.sq_psn.get().to_string(),
                        "rq_psn" => found.rq_psn.get().to_string(),
                        "mig" => found.path_mig_state.as_str().to_string(),
                        "port" => found.port_num.to_string(),
                        "alt_port" => found.alt_port_num.to_string(),
                        "sq_draining" => found.sq_draining.to_string(),
                        "timeout" => found.timeout.to_string(),
                        "min_rnr_timer" => found.min_rnr_timer.to_string(),
                        "mtu" => found.path_mtu.bytes().to_string(),
                        _ => return Err(format!("{key} cannot be queried")),
                    };
                    if text != *value {
                        return Err(format!("{key} of {qp}: expected {value}, found {text}"));
                    }
                }
                Ok(())
            }
            Statement::Count { node, .. } if !self.stage.counts(self.node(node)?) => Ok(()),
            Statement::Count { node, label, value } => {
                let found = self.stage.counter(self.node(node)?, label);
                if found != *value {
                    return Err(format!("counter {label} of {node}: expected {value}, found {found}"));
                }
                if *value > 0 && label.starts_with("drop_") {
                    self.evidence.saw("drop", label);
                }
                Ok(())
            }
            _ => unreachable!("sorted by the caller"),
        }
    }

    /// Lets a stage in real time come to something.
    fn wait_until(&mut self, there: impl Fn(&Self) -> bool) {
        let mut attempt = 0;
        while !there(self) && self.batch.is_none() && self.stage.wait(attempt) {
            self.turn();
            attempt += 1;
        }
    }

    fn expect_packet(
        &mut self,
        from: &str,
        to: &str,
        opcode: Opcode,
        fields: &[Field],
        at: Option<u64>,
        fate: &Fate,
    ) -> Step {
        let node = self.actor(from)?.node;
        let is_it = |runner: &Self| {
            runner.pending.iter().position(|(n, p)| *n == node && runner.receiver(p).as_deref() == Some(to))
        };
        self.wait_until(|runner| is_it(runner).is_some());
        let mut fields = fields.to_vec();
        if self.stage.executes_by_itself() {
            let is_sent = is_it(self).is_some_and(|place| self.pending[place].1.headers.bth.opcode == opcode);
            if !is_sent {
                self.say(format!("{from} -> {to}: {} was not needed", opcode.info().name));
                return Ok(());
            }
            fields.retain(|field| !matches!(field, Field::Psn(_) | Field::Msn(_)));
        }
        let Some(place) = is_it(self) else {
            let mut text = format!("{from} sends nothing to {to}");
            if !self.pending.is_empty() {
                text += "; on the wire:";
                for (node, packet) in &self.pending {
                    let _ = write!(text, "\n  + {}", self.describe(*node, packet));
                }
            }
            return Err(text);
        };
        let packet = self.pending[place].1.clone();
        let mut differences = self.differences(&packet, opcode, &fields)?;
        if let Some(at) = at.filter(|at| *at != packet.at && self.stage.counts(node)) {
            let _ = write!(differences, "\n    time: expected {at} ns, found {} ns", packet.at);
        }
        if !differences.is_empty() {
            let found = self.describe(node, &packet);
            return Err(format!("the packet is not the expected one:\n  + {found}{differences}"));
        }
        self.pending.remove(place);
        let verb = if fate.lost { " | lost" } else { "" };
        self.say(format!("{from} -> {to}: {}{verb}", compare::describe(&packet)));
        self.evidence.saw("opcode", opcode.info().name);
        self.deliver_by_fate(to, packet, fate)
    }

    pub(super) fn deliver_by_fate(&mut self, to: &str, mut packet: Packet, fate: &Fate) -> Step {
        if fate.lost {
            return Ok(());
        }
        self.edit(&mut packet, &fate.set)?;
        if fate.ce {
            packet.traffic_class |= 3;
        }
        let Some(actor) = self.actors.get(to) else {
            // A group: everybody who joined it hears it. A ghost: the script itself.
            for node in self.stage.members(packet.dst) {
                self.hand_over(node, packet.clone());
            }
            return Ok(());
        };
        let node = actor.node;
        if let Some(name) = &fate.held {
            self.held.insert(name.clone(), (node, packet));
            return Ok(());
        }
        if fate.twice {
            self.hand_over(node, packet.clone());
        }
        self.hand_over(node, packet);
        Ok(())
    }

    pub(super) fn hand_over(&mut self, node: usize, packet: Packet) {
        match &mut self.batch {
            Some(batch) => batch.push((node, packet)),
            None => self.stage.deliver(node, &[packet]),
        }
    }

    fn target(&self, name: &str) -> Result<Target, String> {
        if let Some(actor) = self.actors.get(name) {
            return Ok(Target::Qp(actor.qp));
        }
        self.srqs.get(name).map(|srq| Target::Srq(*srq)).ok_or_else(|| format!("no QP or SRQ is called {name}"))
    }

    fn subject(&self, name: &str) -> Result<Subject, String> {
        if let Some(actor) = self.actors.get(name) {
            return Ok(Subject::Qp(actor.qp));
        }
        if let Some(srq) = self.srqs.get(name) {
            return Ok(Subject::Srq(*srq));
        }
        self.nodes.get(name).map(|n| Subject::Node(*n)).ok_or_else(|| format!("no QP, SRQ or node is called {name}"))
    }

    fn expect_completion(&mut self, name: &str, queue: Queue, spec: &WcSpec) -> Step {
        let target = self.target(name)?;
        self.wait_until(|runner| runner.done.get(&(target, queue)).is_some_and(|done| !done.is_empty()));
        let Some(done) = self.done.entry((target, queue)).or_default().pop_front() else {
            return Err(format!("{name} has no completion in its {queue:?} queue"));
        };
        let wc = &done.wc;
        let mut text = String::new();
        let mut differ = |field: &str, expected: String, found: String| {
            if expected != found {
                let _ = write!(text, "\n    {field}: expected {expected}, found {found}");
            }
        };
        differ("wr", spec.wr.to_string(), wc.wr_id.to_string());
        if let Some(status) = spec.status {
            differ("status", status.info().name.into(), wc.status.info().name.into());
        }
        // Of a completion that failed only the number and the status mean anything (clause 11.4.2.1); ours say more.
        let means_all = wc.status == WcStatus::Success || !self.stage.judges_errno_only();
        if let Some(opcode) = spec.opcode.filter(|_| means_all) {
            differ("op", opcode.to_string(), wc.opcode.to_string());
        }
        if let Some(len) = spec.len {
            differ("len", len.to_string(), wc.byte_len.to_string());
        }
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        if let Some(expected) = spec.imm {
            differ("imm", format!("{:x?}", Some(expected)), format!("{imm:x?}"));
        } else if queue == Queue::Recv {
            differ("imm", "None".into(), format!("{imm:x?}"));
        }
        if let Some(inv) = &spec.inv {
            let found = wc.flags.contains(WcFlags::WITH_INV).then_some(wc.invalidated_rkey);
            differ("inv", format!("{:?}", Some(RKey(self.key(inv)?))), format!("{found:?}"));
        }
        if let Some(src) = &spec.src_qp {
            differ("src", self.qpn_of(src)?.to_string(), wc.src_qp.to_string());
        }
        if let Some(grh) = spec.grh {
            differ("grh", grh.to_string(), wc.flags.contains(WcFlags::GRH).to_string());
        }
        if let (Some(expected), Some(found)) = (spec.solicited, done.solicited) {
            differ("solicited", expected.to_string(), found.to_string());
        }
        if let Target::Qp(qp) = target {
            differ("qp_num", self.stage.qpn(qp).to_string(), wc.qp_num.to_string());
        }
        if !text.is_empty() {
            let found = describe_done(queue, &done);
            return Err(format!("the completion is not the expected one:\n  + wc {name} {found}{text}"));
        }
        self.say(format!("wc {name} {}", describe_done(queue, &done)));
        self.evidence.saw("wc", done.wc.status.info().name);
        Ok(())
    }

    fn expect_memory(&mut self, at: &Ref, expect: &Expect) -> Step {
        let Ref::Name(name, offset) = at else { return Err("memory needs the name of a region".into()) };
        let offset = u64::try_from(*offset).map_err(|_| "the offset is negative")?;
        let expected = match expect {
            Expect::Text(text) => text.clone(),
            Expect::Number(number) => number.to_le_bytes().to_vec(),
            Expect::Zeros(count) => vec![0; *count],
            Expect::Slice(slice) => {
                let SliceBase::Region(base) = &slice.base else { return Err("is= needs a region".into()) };
                self.stage.read(self.region(base)?, slice.offset, slice.length as usize)?
            }
        };
        let found = self.stage.read(self.region(name)?, offset, expected.len())?;
        if found == expected {
            return Ok(());
        }
        let place = found.iter().zip(&expected).position(|(f, e)| f != e).unwrap_or(0);
        let window = place..(place + 16).min(found.len());
        Err(format!(
            "memory {name} differs from byte {} on: expected {:02x?}, found {:02x?}",
            offset as usize + place,
            &expected[window.clone()],
            &found[window]
        ))
    }
}
