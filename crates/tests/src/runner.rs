//! Plays a script on a stage and compares what happens with what it says.
//!
//! After every statement all QPs may send what they have; what they send waits until the script mentions it, and is
//! delivered by that. The first difference ends the play with a report: the line, what was expected, what came, and the
//! dialogue so far.

mod act;
mod compare;
mod look;
mod scene;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use scalefabric_transport::Config;
use scalefabric_verbs::{EventType, QpAttr, QpType};
use scalefabric_wire::{Gid, Qpn};

use crate::script::{Claim, Queue, Script, Statement};
use crate::stage::{Done, Packet, Stage, Subject, Target};

/// What really happened in a play: what a script may claim to prove.
#[derive(Clone, Debug, Default)]
pub struct Evidence(BTreeSet<(String, String)>);

impl Evidence {
    fn saw(&mut self, kind: &str, what: impl Into<String>) {
        self.0.insert((kind.to_string(), what.into()));
    }

    /// True if it happened. Claims of kind `rule` are sentences that nobody but a reader can check.
    pub fn supports(&self, claim: &Claim) -> bool {
        claim.kind == "rule" || self.0.contains(&(claim.kind.clone(), claim.what.clone()))
    }

    /// All that happened, by kind and name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(kind, what)| (kind.as_str(), what.as_str()))
    }
}

/// Why a play failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Line of the script.
    pub line: usize,
    /// What was expected and what came.
    pub message: String,
    /// The dialogue so far.
    pub transcript: Vec<String>,
}

impl Failure {
    /// The report, for people.
    pub fn report(&self, script: &str, stage: &str, text: &str) -> String {
        let source = text.lines().nth(self.line.saturating_sub(1)).unwrap_or("(end of the script)").trim();
        let mut report = format!("{script}.rdma:{} on the {stage}: {}\n", self.line, self.message);
        let _ = writeln!(report, "  script: {source}");
        let _ = writeln!(report, "  dialogue so far:");
        for line in &self.transcript {
            let _ = writeln!(report, "    {line}");
        }
        report
    }
}

/// A QP of the script.
struct Actor {
    node: usize,
    qp: usize,
    qp_type: QpType,
    attr: QpAttr,
    peer: Option<String>,
}

/// A peer that the script plays.
struct Ghost {
    gids: Vec<Gid>,
    qpn: Qpn,
    psn: u32,
}

/// A play.
pub struct Runner<'a> {
    stage: &'a mut dyn Stage,
    config: Config,
    nodes: BTreeMap<String, usize>,
    /// Addresses of all nodes, by number, and of the ghosts after them.
    node_gids: Vec<Vec<Gid>>,
    hosts: u8,
    regions: BTreeMap<String, usize>,
    windows: BTreeMap<String, usize>,
    srqs: BTreeMap<String, usize>,
    actors: BTreeMap<String, Actor>,
    ghosts: BTreeMap<String, Ghost>,
    pending: VecDeque<(usize, Packet)>,
    held: BTreeMap<String, (usize, Packet)>,
    batch: Option<Vec<(usize, Packet)>>,
    unpolled: BTreeSet<Target>,
    done: BTreeMap<(Target, Queue), VecDeque<Done>>,
    events: VecDeque<(Subject, EventType)>,
    evidence: Evidence,
    transcript: Vec<String>,
}

type Step = Result<(), String>;

/// Plays `script` on `stage`.
pub fn play(script: &Script, stage: &mut dyn Stage) -> Result<Evidence, Box<Failure>> {
    play_excusing(script, stage, &mut |_, _| Excuse::None)
}

/// What becomes of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excuse {
    /// It ends the play with a failure.
    None,
    /// It is known: the play goes on with what came.
    GoOn,
    /// It is known, and nothing that the script says behind it can be compared any more.
    End,
}

/// Plays `script` on `stage` and asks `excuse` about each difference, by its line and its message.
pub fn play_excusing(
    script: &Script,
    stage: &mut dyn Stage,
    excuse: &mut dyn FnMut(usize, &str) -> Excuse,
) -> Result<Evidence, Box<Failure>> {
    let mut runner = Runner {
        stage,
        config: Config::default(),
        nodes: BTreeMap::new(),
        node_gids: Vec::new(),
        hosts: 0,
        regions: BTreeMap::new(),
        windows: BTreeMap::new(),
        srqs: BTreeMap::new(),
        actors: BTreeMap::new(),
        ghosts: BTreeMap::new(),
        pending: VecDeque::new(),
        held: BTreeMap::new(),
        batch: None,
        unpolled: BTreeSet::new(),
        done: BTreeMap::new(),
        events: VecDeque::new(),
        evidence: Evidence::default(),
        transcript: Vec::new(),
    };
    let mut last = 1;
    for (line, statement) in &script.statements {
        last = *line;
        if let Err(message) = runner.step(statement) {
            match excuse(*line, &message) {
                Excuse::None => {
                    return Err(Box::new(Failure { line: *line, message, transcript: runner.transcript }));
                }
                Excuse::End => return Ok(runner.evidence),
                Excuse::GoOn => runner.go_on(statement),
            }
        }
    }
    if let Err(message) = runner.curtain()
        && excuse(last, &message) == Excuse::None
    {
        return Err(Box::new(Failure { line: last, message, transcript: runner.transcript }));
    }
    // What a script proves, it proves of us, and by packets.
    let proves = !runner.stage.judges_errno_only() && !runner.stage.executes_by_itself();
    let claims = if proves { &script.claims[..] } else { &[] };
    for claim in claims {
        if !runner.evidence.supports(claim) {
            let message =
                format!("the script claims to prove '{} {}', but that did not happen", claim.kind, claim.what);
            return Err(Box::new(Failure { line: claim.line, message, transcript: runner.transcript }));
        }
    }
    Ok(runner.evidence)
}

impl Runner<'_> {
    fn step(&mut self, statement: &Statement) -> Step {
        match statement {
            Statement::Config { .. }
            | Statement::Node { .. }
            | Statement::Region { .. }
            | Statement::Window { .. }
            | Statement::Srq { .. }
            | Statement::Qp { .. }
            | Statement::Ghost { .. }
            | Statement::Group { .. }
            | Statement::Connect { .. }
            | Statement::Up { .. } => self.set_scene(statement)?,
            Statement::Packet { .. }
            | Statement::State { .. }
            | Statement::Query { .. }
            | Statement::Nothing
            | Statement::Silent { .. }
            | Statement::Completion { .. }
            | Statement::Event { .. }
            | Statement::Memory { .. }
            | Statement::Count { .. } => self.look(statement)?,
            _ => self.act(statement)?,
        }
        self.turn();
        Ok(())
    }

    /// Lets everybody send and collects what came of it. Within a batch nobody moves.
    fn turn(&mut self) {
        if self.batch.is_some() {
            return;
        }
        let mut out = Vec::new();
        self.stage.turn(&mut out);
        self.pending.extend(out);
        self.events.extend(self.stage.events());
        let targets: Vec<Target> = self
            .actors
            .values()
            .map(|actor| Target::Qp(actor.qp))
            .chain(self.srqs.values().map(|srq| Target::Srq(*srq)))
            .collect();
        for target in targets.into_iter().filter(|target| !self.unpolled.contains(target)) {
            for queue in [Queue::Send, Queue::Recv] {
                if queue == Queue::Send && matches!(target, Target::Srq(_)) {
                    continue;
                }
                let done = self.stage.poll(target, queue);
                self.done.entry((target, queue)).or_default().extend(done);
            }
        }
    }

    /// After a difference that is known: what came instead is taken as if the script had said so.
    fn go_on(&mut self, statement: &Statement) {
        match statement {
            Statement::Packet { from, to, fate, .. } => {
                let Ok(node) = self.actor(from).map(|actor| actor.node) else { return };
                let is_it = |(n, p): &(usize, Packet)| *n == node && self.receiver(p).as_deref() == Some(to.as_str());
                if let Some((_, packet)) =
                    self.pending.iter().position(is_it).and_then(|place| self.pending.remove(place))
                {
                    // A fate that cannot be had (a field that is not there) leaves the packet lost.
                    let _ = self.deliver_by_fate(to, packet, fate);
                }
            }
            Statement::Nothing | Statement::At { .. } | Statement::Silent { .. } => {
                self.pending.clear();
                self.done.clear();
                self.events.clear();
            }
            _ => {}
        }
        self.turn();
        if let Statement::At { ns, relative } = statement {
            let _ = self.advance(*ns, *relative);
        }
    }

    /// Nothing may be left over at the end.
    fn curtain(&mut self) -> Step {
        if self.batch.is_some() {
            return Err("the batch has no end".into());
        }
        if let Some(name) = self.held.keys().next() {
            return Err(format!("the held packet {name} was never delivered"));
        }
        self.quiet("the script ends")
    }

    /// Packets, completions and events that nobody expects.
    fn quiet(&mut self, when: &str) -> Step {
        let mut text = String::new();
        for (node, packet) in &self.pending {
            let _ = write!(text, "\n  + {}", self.describe(*node, packet));
        }
        for ((target, queue), done) in &self.done {
            for done in done {
                let _ = write!(text, "\n  + wc {} {}", self.target_name(*target), look::describe_done(*queue, done));
            }
        }
        for (subject, event) in &self.events {
            let _ = write!(text, "\n  + event {} {}", self.subject_name(*subject), event.info().name);
        }
        if text.is_empty() { Ok(()) } else { Err(format!("{when}, but this happened:{text}")) }
    }

    fn say(&mut self, line: String) {
        let now = self.stage.now();
        self.transcript.push(format!("[{}.{:06} ms] {line}", now / 1_000_000, now % 1_000_000));
    }

    fn actor(&self, name: &str) -> Result<&Actor, String> {
        self.actors.get(name).ok_or_else(|| format!("no QP is called {name}"))
    }

    fn node(&self, name: &str) -> Result<usize, String> {
        self.nodes.get(name).copied().ok_or_else(|| format!("no node is called {name}"))
    }

    fn target_name(&self, target: Target) -> String {
        let name = match target {
            Target::Qp(qp) => self.actors.iter().find(|(_, a)| a.qp == qp).map(|(name, _)| name.clone()),
            Target::Srq(srq) => self.srqs.iter().find(|(_, s)| **s == srq).map(|(name, _)| name.clone()),
        };
        name.unwrap_or_else(|| format!("{target:?}"))
    }

    fn subject_name(&self, subject: Subject) -> String {
        match subject {
            Subject::Qp(qp) => self.target_name(Target::Qp(qp)),
            Subject::Srq(srq) => self.target_name(Target::Srq(srq)),
            Subject::Node(node) => self.node_name(node),
        }
    }

    fn node_name(&self, node: usize) -> String {
        let name = self.nodes.iter().find(|(_, n)| **n == node).map(|(name, _)| name.clone());
        name.unwrap_or_else(|| format!("node {node}"))
    }

    /// The QP or ghost that a packet is addressed to.
    fn receiver(&self, packet: &Packet) -> Option<String> {
        let qpn = packet.headers.bth.dest_qp;
        if let Some(node) = self.node_gids.iter().position(|gids| gids.contains(&packet.dst)) {
            let here = self.actors.iter().find(|(_, a)| a.node == node && self.stage.qpn(a.qp) == qpn);
            return here.map(|(name, _)| name.clone());
        }
        let ghost = self.ghosts.iter().find(|(_, g)| g.gids.contains(&packet.dst) && g.qpn == qpn);
        ghost.map(|(name, _)| name.clone())
    }

    /// The QP that a packet came from, as well as one can tell.
    fn sender(&self, node: usize, receiver: Option<&str>) -> String {
        let peer = self.actors.iter().find(|(_, a)| a.node == node && a.peer.as_deref() == receiver);
        peer.map_or_else(|| self.node_name(node), |(name, _)| name.clone())
    }

    fn describe(&self, node: usize, packet: &Packet) -> String {
        let to = self.receiver(packet);
        let from = self.sender(node, to.as_deref());
        format!("{from} -> {}: {}", to.unwrap_or_else(|| "nobody".into()), compare::describe(packet))
    }
}
