//! Setting the scene: nodes, memory, QPs, and bringing QPs up.

use scalefabric_verbs::{AccessFlags, AddressVector, MigState, Mtu, QpAttr, QpAttrMask, QpState, QpType};
use scalefabric_wire::{Gid, PKey, Psn, QKey, Qpn};

use super::{Actor, Ghost, Runner, Step};
use crate::script::field::parse_number;
use crate::script::parse::state_of;
use crate::script::{Pairs, Statement};
use crate::stage::QpSpec;

impl Runner<'_> {
    pub(super) fn set_scene(&mut self, statement: &Statement) -> Step {
        match statement {
            Statement::Config { pairs } => self.configure(pairs),
            Statement::Node { name, v6, pkeys } => {
                let pkeys: Vec<PKey> = pkeys.iter().map(|key| PKey(*key)).collect();
                self.add_node(name, *v6, &pkeys).map(|_| ())
            }
            Statement::Region { name, node, len, fill, access, pd } => {
                let node = self.node_or_new(node)?;
                let region = self.stage.add_region(node, *pd, &fill.bytes(*len as usize), *access)?;
                self.regions.insert(name.clone(), region);
                self.evidence.saw("object", "memory region");
                Ok(())
            }
            Statement::Window { name, node, pd } => {
                let node = self.node_or_new(node)?;
                let window = self.stage.add_window(node, *pd)?;
                self.windows.insert(name.clone(), window);
                self.evidence.saw("object", "memory window type 2");
                Ok(())
            }
            Statement::Srq { name, node, xrc, limit, pd } => {
                let node = self.node_or_new(node)?;
                let srq = self.stage.add_srq(node, *pd, *xrc, *limit)?;
                self.srqs.insert(name.clone(), srq);
                self.evidence.saw("object", if *xrc { "XRC shared receive queue" } else { "shared receive queue" });
                if *xrc && self.stage.name() == "engine" {
                    self.evidence.saw("object", "XRC domain");
                }
                Ok(())
            }
            Statement::Qp { name, node, qp_type, srq, pd, pairs } => {
                self.add_qp(name, node, *qp_type, srq.as_deref(), *pd, pairs)
            }
            Statement::Ghost { name, node: _, qpn, psn, v6 } => {
                let gids = self.addresses(*v6);
                self.ghosts.insert(name.clone(), Ghost { gids, qpn: Qpn::new(*qpn), psn: *psn });
                Ok(())
            }
            Statement::Group { name, gid } => {
                self.ghosts.insert(name.clone(), Ghost { gids: vec![*gid; 2], qpn: Qpn::MULTICAST, psn: 0 });
                Ok(())
            }
            Statement::Connect { a, b } => {
                self.bring_up(a, Some(b))?;
                if self.actors.contains_key(b) { self.bring_up(b, Some(a)) } else { Ok(()) }
            }
            Statement::Up { qp } => self.bring_up(qp, None),
            _ => unreachable!("sorted by the caller"),
        }
    }

    fn configure(&mut self, pairs: &Pairs) -> Step {
        for (key, value) in pairs {
            let number = || parse_number(value).ok_or_else(|| format!("{key}={value} is not a number"));
            match key.as_str() {
                "advertise_credits" => self.config.advertise_credits = value == "true",
                "ack_req_interval" => self.config.ack_req_interval = number()? as u32,
                "max_inflight_bytes" => self.config.max_inflight_bytes = number()? as u32,
                "cnp_interval_ns" => self.config.cnp_interval_ns = number()?,
                _ => return Err(format!("{key} is no configuration of the transport")),
            }
        }
        Ok(())
    }

    /// Addresses of the next host: two ports.
    fn addresses(&mut self, v6: bool) -> Vec<Gid> {
        self.hosts += 1;
        let host = self.hosts;
        (1..=2u8)
            .map(|port| {
                let v4 = std::net::Ipv4Addr::new(10, 77, port, host);
                let v6_address = std::net::Ipv6Addr::new(0xfd77, 0, 0, u16::from(port), 0, 0, 0, u16::from(host));
                Gid::from_ip(if v6 { v6_address.into() } else { v4.into() })
            })
            .collect()
    }

    fn add_node(&mut self, name: &str, v6: bool, pkeys: &[PKey]) -> Result<usize, String> {
        if self.nodes.contains_key(name) {
            return Err(format!("node {name} is there already: name it before its QPs and regions"));
        }
        let gids = self.addresses(v6);
        let node = self.stage.add_node(&gids, pkeys, &self.config);
        self.node_gids.push(gids);
        self.nodes.insert(name.to_string(), node);
        Ok(node)
    }

    pub(super) fn node_or_new(&mut self, name: &str) -> Result<usize, String> {
        match self.nodes.get(name) {
            Some(node) => Ok(*node),
            None => self.add_node(name, false, &[PKey::DEFAULT]),
        }
    }

    fn add_qp(&mut self, name: &str, node: &str, qp_type: QpType, srq: Option<&str>, pd: u32, pairs: &Pairs) -> Step {
        let node = self.node_or_new(node)?;
        let srq = match srq {
            Some(srq) => Some(*self.srqs.get(srq).ok_or_else(|| format!("no SRQ is called {srq}"))?),
            None => None,
        };
        let mut attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE | AccessFlags::LOCAL_WRITE,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            qkey: QKey(0x1111_1111),
            ..QpAttr::default()
        };
        let (mut sig_all, mut max_send_wr, mut max_recv_wr, mut cq) = (false, 64, 64, None);
        let mut rest = Vec::new();
        for (key, value) in pairs {
            match key.as_str() {
                "psn" => attr.sq_psn = Psn::new(number(key, value)? as u32),
                "sq" => max_send_wr = number(key, value)? as u32,
                "rq" => max_recv_wr = number(key, value)? as u32,
                "cq" => cq = Some(number(key, value)? as u32),
                "sig_all" => sig_all = value == "true",
                _ => rest.push((key.clone(), value.clone())),
            }
        }
        self.apply(&mut attr, &rest)?;
        let spec = QpSpec { node, pd, qp_type, srq, sig_all, max_send_wr, max_recv_wr, cq, config: self.config };
        let qp = self.stage.add_qp(&spec)?;
        self.evidence.saw("object", format!("{qp_type} queue pair"));
        if self.stage.name() == "engine" {
            // There these objects are real, and the QP could not be made without them.
            for object in ["device context", "protection domain", "completion queue"] {
                self.evidence.saw("object", object);
            }
        }
        self.actors.insert(name.to_string(), Actor { node, qp, qp_type, attr, peer: None });
        Ok(())
    }

    /// RESET to RTS with the attributes of the QP's line.
    fn bring_up(&mut self, name: &str, peer: Option<&str>) -> Step {
        let actor = self.actor(name)?;
        let (qp, qp_type, mut attr) = (actor.qp, actor.qp_type, actor.attr);
        if let Some(peer) = peer {
            let (dgid, qpn, psn) = self.peer(peer, attr.port_num)?;
            attr.ah_attr = AddressVector { dgid, port_num: attr.port_num, ..attr.ah_attr };
            attr.dest_qp_num = qpn;
            attr.rq_psn = psn;
            if let Some(actor) = self.actors.get_mut(name) {
                actor.attr = attr;
                actor.peer = Some(peer.to_string());
            }
        }
        for (from, to) in [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)]
        {
            let row = scalefabric_verbs::state::transition(qp_type, from, to).ok_or("no such transition")?;
            let attr = QpAttr { qp_state: to, ..attr };
            self.stage
                .modify(qp, &attr, row.required | QpAttrMask::STATE)
                .map_err(|e| format!("{name} cannot be brought up: {e}"))?;
            self.evidence.saw("transition", row.to_string());
        }
        Ok(())
    }

    /// GID on a port, QPN and first PSN of a QP or ghost.
    pub(super) fn peer(&self, name: &str, port: u8) -> Result<(Gid, Qpn, Psn), String> {
        let at = |gids: &[Gid]| gids.get(usize::from(port).wrapping_sub(1)).copied().unwrap_or_default();
        if let Some(actor) = self.actors.get(name) {
            return Ok((at(&self.node_gids[actor.node]), self.stage.qpn(actor.qp), actor.attr.sq_psn));
        }
        match self.ghosts.get(name) {
            Some(ghost) => Ok((at(&ghost.gids), ghost.qpn, Psn::new(ghost.psn))),
            None => Err(format!("no QP or ghost is called {name}")),
        }
    }

    /// Sets attributes by name and returns their mask.
    pub(super) fn apply(&self, attr: &mut QpAttr, pairs: &Pairs) -> Result<QpAttrMask, String> {
        let mut mask = QpAttrMask::empty();
        for (key, value) in pairs {
            let n = || number(key, value);
            mask |= match key.as_str() {
                "state" => {
                    attr.qp_state = state_of(value).ok_or_else(|| format!("{value} is no state"))?;
                    QpAttrMask::STATE
                }
                "cur" => {
                    attr.cur_qp_state = state_of(value).ok_or_else(|| format!("{value} is no state"))?;
                    QpAttrMask::CUR_STATE
                }
                "notify" => {
                    attr.en_sqd_async_notify = value == "true";
                    QpAttrMask::EN_SQD_ASYNC_NOTIFY
                }
                "access" => {
                    let words = crate::script::words::Words::split(0, "").map_err(|e| e.message)?;
                    attr.qp_access_flags = crate::script::parse::access(&words, value).map_err(|e| e.message)?;
                    QpAttrMask::ACCESS_FLAGS
                }
                "pkey_index" => {
                    attr.pkey_index = n()? as u16;
                    QpAttrMask::PKEY_INDEX
                }
                "port" => {
                    attr.port_num = n()? as u8;
                    QpAttrMask::PORT
                }
                "qkey" => {
                    attr.qkey = QKey(n()? as u32);
                    QpAttrMask::QKEY
                }
                "av" => {
                    // NAME or NAME:port.
                    let (name, port) = value.split_once(':').unwrap_or((value, "1"));
                    let port = number("av", port)? as u8;
                    attr.ah_attr = AddressVector { dgid: self.peer(name, port)?.0, port_num: port, ..attr.ah_attr };
                    QpAttrMask::AV
                }
                "alt" => {
                    let (name, port) = value.split_once(':').unwrap_or((value, "2"));
                    let port = number("alt", port)? as u8;
                    attr.alt_ah_attr = AddressVector { dgid: self.peer(name, port)?.0, port_num: port, ..attr.ah_attr };
                    attr.alt_port_num = port;
                    attr.alt_timeout = if attr.alt_timeout == 0 { attr.timeout } else { attr.alt_timeout };
                    QpAttrMask::ALT_PATH
                }
                "alt_timeout" => {
                    attr.alt_timeout = n()? as u8;
                    QpAttrMask::ALT_PATH
                }
                "alt_pkey_index" => {
                    attr.alt_pkey_index = n()? as u16;
                    QpAttrMask::ALT_PATH
                }
                "tc" => {
                    attr.ah_attr.traffic_class = n()? as u8;
                    QpAttrMask::empty()
                }
                "hop" => {
                    attr.ah_attr.hop_limit = n()? as u8;
                    QpAttrMask::empty()
                }
                "mtu" => {
                    attr.path_mtu = Mtu::from_bytes(n()? as u32).ok_or_else(|| format!("{value} is no MTU"))?;
                    QpAttrMask::PATH_MTU
                }
                "dest" => {
                    attr.dest_qp_num = match parse_number(value) {
                        Some(number) => Qpn::new(number as u32),
                        None => self.peer(value, 1)?.1,
                    };
                    QpAttrMask::DEST_QPN
                }
                "timeout" => {
                    attr.timeout = n()? as u8;
                    QpAttrMask::TIMEOUT
                }
                "retry_cnt" => {
                    attr.retry_cnt = n()? as u8;
                    QpAttrMask::RETRY_CNT
                }
                "rnr_retry" => {
                    attr.rnr_retry = n()? as u8;
                    QpAttrMask::RNR_RETRY
                }
                "min_rnr_timer" => {
                    attr.min_rnr_timer = n()? as u8;
                    QpAttrMask::MIN_RNR_TIMER
                }
                "sq_psn" => {
                    attr.sq_psn = Psn::new(n()? as u32);
                    QpAttrMask::SQ_PSN
                }
                "rq_psn" => {
                    attr.rq_psn = Psn::new(n()? as u32);
                    QpAttrMask::RQ_PSN
                }
                "max_rd_atomic" => {
                    attr.max_rd_atomic = n()? as u8;
                    QpAttrMask::MAX_QP_RD_ATOMIC
                }
                "max_dest_rd_atomic" => {
                    attr.max_dest_rd_atomic = n()? as u8;
                    QpAttrMask::MAX_DEST_RD_ATOMIC
                }
                "mig" => {
                    attr.path_mig_state = match value.as_str() {
                        "MIGRATED" => MigState::Migrated,
                        "REARM" => MigState::Rearm,
                        "ARMED" => MigState::Armed,
                        _ => return Err(format!("{value} is no migration state")),
                    };
                    QpAttrMask::PATH_MIG_STATE
                }
                "max_send_wr" => {
                    attr.cap.max_send_wr = n()? as u32;
                    QpAttrMask::CAP
                }
                "rate_limit" => {
                    attr.rate_limit = n()? as u32;
                    QpAttrMask::RATE_LIMIT
                }
                _ => return Err(format!("{key} is no attribute of a QP")),
            };
        }
        Ok(mask)
    }
}

fn number(key: &str, value: &str) -> Result<u64, String> {
    parse_number(value).ok_or_else(|| format!("{key}={value} is not a number"))
}
