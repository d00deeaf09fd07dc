//! Acting: posting, modifying, playing the peer, letting time pass, breaking things.

use scalefabric_verbs::{AccessFlags, OpKind, QpAttr, QpAttrMask, SendFlags};
use scalefabric_wire::{Gid, PKey, Qpn, Srqn};

use super::{Runner, Step, compare};
use crate::script::{Pairs, Ref, SendSpec, Slice, SliceBase, Statement};
use crate::stage::{Bind, Piece, PlainSend, Target};

impl Runner<'_> {
    pub(super) fn act(&mut self, statement: &Statement) -> Step {
        match statement {
            Statement::Modify { qp, pairs, refused } => self.modify(qp, pairs, refused.as_deref()),
            Statement::Post { qp, kind, spec, refused } => {
                let wr = self.send(qp, *kind, spec)?;
                let outcome = self.stage.post_send(self.actor(qp)?.qp, &wr);
                self.say(format!("post {qp} {} wr={}", kind.as_str(), spec.wr));
                if spec.ah.is_some() && self.stage.name() == "engine" {
                    self.evidence.saw("object", "address handle");
                }
                self.evidence.saw("operation", format!("{} {}", self.actor(qp)?.qp_type, kind.as_str()));
                self.check_refusal(outcome, refused.as_deref())
            }
            Statement::Recv { target, wr, local, refused } => {
                let pieces = self.pieces(local)?;
                let place = match self.srqs.get(target) {
                    Some(srq) => Target::Srq(*srq),
                    None => Target::Qp(self.actor(target)?.qp),
                };
                let outcome = self.stage.post_recv(place, *wr, &pieces);
                self.check_refusal(outcome, refused.as_deref())
            }
            Statement::Inject { from, to, opcode, fields } => {
                let packet = self.build(from, to, *opcode, fields)?;
                let node = self.actor(to)?.node;
                self.say(format!("inject {from} -> {to}: {}", compare::describe(&packet)));
                self.evidence.saw("opcode", opcode.info().name);
                self.hand_over(node, packet);
                Ok(())
            }
            Statement::Deliver { name } => {
                let (node, packet) = self.held.remove(name).ok_or_else(|| format!("no packet is held as {name}"))?;
                self.say(format!("deliver {name}"));
                self.hand_over(node, packet);
                Ok(())
            }
            Statement::Batch { begin: true } => {
                self.batch = Some(Vec::new());
                Ok(())
            }
            Statement::Batch { begin: false } => self.end_batch(),
            Statement::At { ns, relative } => self.advance(*ns, *relative),
            Statement::PKey { node, port, index, value } => {
                let node = self.node(node)?;
                self.stage.set_pkey(node, *port, *index, PKey(*value));
                Ok(())
            }
            Statement::PortChange { node, port, change } => {
                let node = self.node(node)?;
                self.stage.change_port(node, *port, change)
            }
            Statement::Poll { qp, on } => {
                let target = Target::Qp(self.actor(qp)?.qp);
                if *on {
                    self.unpolled.remove(&target);
                } else {
                    self.unpolled.insert(target);
                }
                Ok(())
            }
            Statement::FailDevice { node } => {
                let node = self.node(node)?;
                self.stage.fail_device(node)
            }
            Statement::Attach { qp, group, join, refused } => {
                let qp = self.actor(qp)?.qp;
                let gid = self.ghosts.get(group).ok_or_else(|| format!("no group is called {group}"))?.gids[0];
                let outcome = if *join { self.stage.attach(qp, gid) } else { self.stage.detach(qp, gid) };
                self.evidence.saw("object", "multicast attach");
                self.check_refusal(outcome, refused.as_deref())
            }
            Statement::Gone { region } => {
                let region = self.region(region)?;
                self.stage.gone(region)
            }
            Statement::Dereg { region } => {
                let region = self.region(region)?;
                self.stage.dereg(region)
            }
            Statement::Fail { qp, status } => {
                let qp = self.actor(qp)?.qp;
                self.stage.fail(qp, *status)
            }
            Statement::Arm { srq, limit } => {
                let srq = *self.srqs.get(srq).ok_or_else(|| format!("no SRQ is called {srq}"))?;
                self.stage.arm(srq, *limit)
            }
            Statement::Destroy { qp: name, refused } => {
                let qp = self.actor(name)?.qp;
                let outcome = self.stage.destroy(qp);
                if outcome.is_ok() {
                    self.actors.remove(name);
                }
                self.check_refusal(outcome, refused.as_deref())
            }
            _ => unreachable!("sorted by the caller"),
        }
    }

    fn modify(&mut self, name: &str, pairs: &Pairs, refused: Option<&str>) -> Step {
        let actor = self.actor(name)?;
        let (qp, qp_type) = (actor.qp, actor.qp_type);
        let from = self.stage.query(qp).qp_state;
        let mut attr = QpAttr { qp_state: from, ..actor.attr };
        let mask = self.apply(&mut attr, pairs)?;
        let to = if mask.contains(QpAttrMask::STATE) { attr.qp_state } else { from };
        let outcome = self.stage.modify(qp, &attr, mask);
        self.say(format!("modify {name} {from} -> {to}: {}", if outcome.is_ok() { "done" } else { "refused" }));
        match &outcome {
            Ok(()) => {
                if let Some(actor) = self.actors.get_mut(name) {
                    actor.attr = attr;
                }
                self.evidence.saw("transition", format!("{qp_type} {from} -> {to}"));
            }
            Err(_) => self.evidence.saw("refused", format!("{qp_type} {from} -> {to}")),
        }
        self.check_refusal(outcome.map_err(|e| e.to_string()), refused)
    }

    fn pieces(&self, slices: &[Slice]) -> Result<Vec<Piece>, String> {
        slices
            .iter()
            .map(|slice| match &slice.base {
                SliceBase::Key(key) => Ok(Piece { addr: slice.offset, length: slice.length, lkey: *key }),
                SliceBase::Region(name) => {
                    let info = self.stage.region(self.region(name)?);
                    Ok(Piece { addr: info.addr + slice.offset, length: slice.length, lkey: info.lkey })
                }
            })
            .collect()
    }

    fn send(&self, qp: &str, kind: OpKind, spec: &SendSpec) -> Result<PlainSend, String> {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, !spec.unsignaled);
        flags.set(SendFlags::FENCE, spec.fence);
        flags.set(SendFlags::SOLICITED, spec.solicited);
        flags.set(SendFlags::INLINE, spec.inline);
        let remote_addr = match &spec.to {
            Some(place) => self.address(place)?,
            None => 0,
        };
        // `to` names the key, too, unless another is given.
        let rkey = match (&spec.rkey, &spec.to) {
            (Some(key), _) => self.key(key)?,
            (None, Some(Ref::Name(name, _))) => self.key(&Ref::Name(name.clone(), 0))?,
            _ => 0,
        };
        let ud = match &spec.ah {
            None => None,
            Some(name) => {
                let (dgid, qpn) = self.destination(name)?;
                let qkey = spec.qkey.unwrap_or(0x1111_1111);
                Some((dgid, spec.dest.map_or(qpn, Qpn::new), qkey))
            }
        };
        let bind = match &spec.window {
            None => None,
            Some(name) => {
                let window = *self.windows.get(name).ok_or_else(|| format!("no window is called {name}"))?;
                let rkey = self.stage.window_rkey(window, spec.tag);
                let (region, addr, length) = match &spec.bind_to {
                    Some(Slice { base: SliceBase::Region(name), offset, length }) => {
                        let region = self.region(name)?;
                        (Some(region), self.stage.region(region).addr + offset, u64::from(*length))
                    }
                    _ => (None, 0, 0),
                };
                let access = spec.access.unwrap_or(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE);
                Some(Bind { window, region, addr, length, access, rkey })
            }
        };
        Ok(PlainSend {
            wr: spec.wr,
            kind,
            flags,
            pieces: self.pieces(&spec.local)?,
            remote_addr,
            rkey,
            imm: spec.imm.unwrap_or(0),
            inv: spec.inv.as_ref().map_or(Ok(0), |key| self.key(key))?,
            compare: spec.compare,
            swap: spec.swap,
            add: spec.add,
            length: spec.length,
            placement: spec.placement,
            whole_region: spec.whole_region,
            ud,
            srqn: match &spec.srqn {
                Some(srq) => Some(Srqn::new(self.srqn(srq)?)),
                None => None,
            },
            bind,
        })
        .and_then(|wr| {
            self.actor(qp)?;
            Ok(wr)
        })
    }

    /// Where a datagram goes: a QP, ghost or group.
    fn destination(&self, name: &str) -> Result<(Gid, Qpn), String> {
        self.peer(name, 1).map(|(gid, qpn, _)| (gid, qpn))
    }

    fn end_batch(&mut self) -> Step {
        let batch = self.batch.take().ok_or("there is no batch to end")?;
        let mut rest = &batch[..];
        while let Some((node, _)) = rest.first() {
            let count = rest.iter().take_while(|(n, _)| n == node).count();
            let packets: Vec<_> = rest[..count].iter().map(|(_, packet)| packet.clone()).collect();
            self.stage.deliver(*node, &packets);
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Lets time pass. What is sent meanwhile waits on the wire; before it passes, nothing may wait there.
    pub(super) fn advance(&mut self, ns: u64, relative: bool) -> Step {
        if !self.pending.is_empty() {
            return self.quiet("time should pass");
        }
        let end = if relative { self.stage.now() + ns } else { ns };
        if end < self.stage.now() {
            return Err(format!("it is {} ns already", self.stage.now()));
        }
        let mut stuck = 0;
        while let Some(next) = self.stage.next_deadline().filter(|t| *t <= end) {
            let next = next.max(self.stage.now());
            stuck = if next == self.stage.now() { stuck + 1 } else { 0 };
            if stuck > 100 {
                return Err(format!("a timer is due at {next} ns and stays due"));
            }
            self.stage.set_now(next);
            self.turn();
        }
        self.stage.set_now(end);
        Ok(())
    }

    fn check_refusal(&self, outcome: Result<(), String>, refused: Option<&str>) -> Step {
        match (outcome, refused) {
            (Ok(()), None) => Ok(()),
            (Err(error), None) => Err(format!("refused: {error}")),
            (Ok(()), Some(text)) => Err(format!("should have been refused with \"{text}\", but was accepted")),
            (Err(_), Some(_)) if self.stage.judges_errno_only() => Ok(()),
            (Err(error), Some(text)) if error.contains(text) => Ok(()),
            (Err(error), Some(text)) => Err(format!("should have been refused with \"{text}\", but with: {error}")),
        }
    }
}
