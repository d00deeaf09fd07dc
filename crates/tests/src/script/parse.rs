//! Text to [`Script`]. Every error names its line.

use scalefabric_verbs::event::EVENTS;
use scalefabric_verbs::operation::OPERATIONS;
use scalefabric_verbs::work_completion::STATUSES;
use scalefabric_verbs::{AccessFlags, EventType, OpKind, QpState, QpType, WcOpcode, WcStatus};
use scalefabric_wire::opcode::{Opcode, TABLE};

use crate::script::field::{Field, Fill, Ref, parse_number, parse_time};
use crate::script::words::{ScriptError, Words};
use crate::script::{Claim, Expect, Fate, Queue, Script, SendSpec, Statement, WcSpec};

/// Kinds of claims.
pub const CLAIM_KINDS: [&str; 8] = ["opcode", "wc", "event", "transition", "refused", "drop", "object", "rule"];

/// Reads a script.
pub fn parse(name: &str, text: &str) -> Result<Script, ScriptError> {
    let mut script = Script {
        name: name.to_string(),
        title: String::new(),
        claims: Vec::new(),
        on_transport: true,
        on_engine: true,
        statements: Vec::new(),
    };
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let trimmed = line.trim();
        if let Some(comment) = trimmed.strip_prefix('#') {
            read_comment(&mut script, number, comment.trim())?;
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        script.statements.push((number, statement(number, trimmed)?));
    }
    if script.title.is_empty() {
        return Err(ScriptError {
            line: 1,
            message: "the first comment line must say what the dialogue is about".into(),
        });
    }
    Ok(script)
}

fn read_comment(script: &mut Script, line: usize, comment: &str) -> Result<(), ScriptError> {
    if let Some(claims) = comment.strip_prefix("proves:") {
        for claim in claims.split(';').map(str::trim).filter(|c| !c.is_empty()) {
            let (kind, what) = claim.split_once(' ').unwrap_or((claim, ""));
            if !CLAIM_KINDS.contains(&kind) || what.trim().is_empty() {
                let message = format!("'{claim}' is no claim: write one of {} and a name", CLAIM_KINDS.join(", "));
                return Err(ScriptError { line, message });
            }
            script.claims.push(Claim { kind: kind.to_string(), what: what.trim().to_string(), line });
        }
    } else if let Some(stages) = comment.strip_prefix("on:") {
        script.on_transport = stages.contains("transport");
        script.on_engine = stages.contains("engine");
        if !script.on_transport && !script.on_engine {
            return Err(ScriptError { line, message: "on: names neither transport nor engine".into() });
        }
    } else if script.title.is_empty() {
        script.title = comment.to_string();
    }
    Ok(())
}

fn statement(line: usize, text: &str) -> Result<Statement, ScriptError> {
    // `A -> B: …` and `A -> B @5ms: …` are told apart from the verbs by their arrow.
    let mut words = Words::split(line, text)?;
    let first = words.bare("a statement")?;
    if words.next_is("->") {
        return packet(first, text, words);
    }
    let statement = match first.as_str() {
        "config" => Statement::Config { pairs: words.pairs() },
        "node" => Statement::Node {
            name: words.bare("a name")?,
            v6: words.flag("v6"),
            pkeys: match words.pair("pkeys") {
                None => vec![0xffff],
                Some(list) => list
                    .split(',')
                    .map(|key| parse_number(key).and_then(|n| u16::try_from(n).ok()))
                    .collect::<Option<_>>()
                    .ok_or(ScriptError { line, message: format!("pkeys={list} is no list of 16-bit numbers") })?,
            },
        },
        "mr" => region(&mut words)?,
        "mw" => Statement::Window {
            name: words.bare("a name")?,
            node: words.need("node")?,
            pd: words.number("pd")?.unwrap_or(1) as u32,
        },
        "srq" => Statement::Srq {
            name: words.bare("a name")?,
            node: words.need("node")?,
            xrc: words.flag("xrc"),
            limit: words.number("limit")?.unwrap_or(0) as u32,
            pd: words.number("pd")?.unwrap_or(1) as u32,
        },
        "qp" => qp(&mut words)?,
        "ghost" => {
            let name = words.bare("a name")?;
            Statement::Ghost {
                node: words.pair("node").unwrap_or_else(|| name.to_lowercase()),
                qpn: words.number("qpn")?.unwrap_or(0x99) as u32,
                psn: words.number("psn")?.unwrap_or(0) as u32,
                v6: words.flag("v6"),
                name,
            }
        }
        "connect" => Statement::Connect { a: words.bare("a QP")?, b: words.bare("a QP or ghost")? },
        "up" => Statement::Up { qp: words.bare("a QP")? },
        "modify" => {
            let qp = words.bare("a QP")?;
            let refused = refusal(&mut words)?;
            Statement::Modify { qp, pairs: words.pairs(), refused }
        }
        "state" => Statement::State { qp: words.bare("a QP")?, state: state(&mut words)? },
        "query" => Statement::Query { qp: words.bare("a QP")?, pairs: words.pairs() },
        "post" => post(&mut words)?,
        "recv" => {
            let target = words.bare("a QP or SRQ")?;
            let refused = refusal(&mut words)?;
            Statement::Recv { target, wr: words.need_number("wr")?, local: words.slices("local")?, refused }
        }
        "inject" => {
            let from = words.bare("a sender")?;
            if !words.next_is("->") {
                return words.error("expected ->");
            }
            let to = words.bare("a receiver")?.trim_end_matches(':').to_string();
            let (opcode, mut words) = opcode_and_fields(line, text)?;
            return Ok(Statement::Inject { from, to, opcode, fields: Field::parse_all(&mut words)? });
        }
        "deliver" => Statement::Deliver { name: words.bare("the name of a held packet")? },
        "batch" => Statement::Batch { begin: true },
        "end" => Statement::Batch { begin: false },
        "at" => {
            let time = words.bare("a time")?;
            let (relative, digits) = time.strip_prefix('+').map_or((false, time.as_str()), |t| (true, t));
            match parse_time(digits) {
                Some(ns) => Statement::At { ns, relative },
                None => return words.error(format!("{time} is no time: write 67ms, +4096ns, 1.5s")),
            }
        }
        "nothing" => Statement::Nothing,
        "silent" => Statement::Silent { qp: words.bare("a QP")? },
        "wc" => completion(&mut words)?,
        "event" => Statement::Event { target: words.bare("a QP, SRQ or node")?, event: event(&mut words)? },
        "memory" => memory(&mut words)?,
        "count" => Statement::Count {
            node: words.bare("a node")?,
            label: words.bare("a counter")?,
            value: match words.bare("a number").map(|n| parse_number(&n))? {
                Some(value) => value,
                None => return words.error("the last word must be a number"),
            },
        },
        "pkey" => {
            let node = words.bare("a node")?;
            let (port, index) = (words.number("port")?.unwrap_or(1) as u8, words.number("index")?.unwrap_or(0) as u16);
            let value = words.need_number("value")? as u16;
            Statement::PKey { node, port, index, value }
        }
        "port" => Statement::PortChange {
            node: words.bare("a node")?,
            change: words.bare("down, up, remove_gid or add_gid")?,
            port: words.number("port")?.unwrap_or(1) as u8,
        },
        "poll" => {
            let qp = words.bare("a QP")?;
            match words.bare("on or off")?.as_str() {
                "on" => Statement::Poll { qp, on: true },
                "off" => Statement::Poll { qp, on: false },
                other => return words.error(format!("{other}: write on or off")),
            }
        }
        "fail_device" => Statement::FailDevice { node: words.bare("a node")? },
        "group" => {
            let (name, address) = (words.bare("a name")?, words.bare("an address")?);
            match address.parse() {
                Ok(ip) => Statement::Group { name, gid: scalefabric_wire::Gid::from_ip(ip) },
                Err(_) => return words.error(format!("{address} is no IP address")),
            }
        }
        "attach" | "detach" => {
            let (qp, group) = (words.bare("a QP")?, words.bare("a group")?);
            Statement::Attach { qp, group, join: first == "attach", refused: refusal(&mut words)? }
        }
        "gone" => Statement::Gone { region: words.bare("a region")? },
        "dereg" => Statement::Dereg { region: words.bare("a region")? },
        "fail" => Statement::Fail { qp: words.bare("a QP")?, status: status(&mut words)? },
        "arm" => Statement::Arm { srq: words.bare("an SRQ")?, limit: words.need_number("limit")? as u32 },
        "destroy" => {
            let refused = refusal(&mut words)?;
            Statement::Destroy { qp: words.bare("a QP")?, refused }
        }
        _ => return words.error(format!("'{first}' is no statement")),
    };
    words.finish()?;
    Ok(statement)
}

fn refusal(words: &mut Words) -> Result<Option<String>, ScriptError> {
    if !words.flag("refused") {
        return Ok(None);
    }
    match words.text() {
        Some(text) => Ok(Some(text)),
        None => words.error("refused needs a text that the error must contain"),
    }
}

fn region(words: &mut Words) -> Result<Statement, ScriptError> {
    let name = words.bare("a name")?;
    let fill = match words.pair("fill") {
        None => Fill::Zeros,
        Some(text) => match Fill::parse(&text) {
            Some(Fill::Region(..)) | None => {
                return words.error(format!("fill={text}: write zeros, count, \"text\" or 0xbytes"));
            }
            Some(fill) => fill,
        },
    };
    let access = match words.pair("access") {
        // Persistence is only for memory that is a file's: a script asks for it by name.
        None => (AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE | AccessFlags::MW_BIND) - AccessFlags::FLUSH_PERSISTENT,
        Some(text) => access(words, &text)?,
    };
    Ok(Statement::Region {
        name,
        node: words.need("node")?,
        len: words.need_number("len")?,
        fill,
        access,
        pd: words.number("pd")?.unwrap_or(1) as u32,
    })
}

/// `local_write,remote_read`, `none`, `all`.
pub fn access(words: &Words, text: &str) -> Result<AccessFlags, ScriptError> {
    let mut flags = AccessFlags::empty();
    for part in text.split(',').filter(|p| *p != "none") {
        flags |= match part {
            "all" => AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE,
            _ => match AccessFlags::from_name(&part.to_uppercase()) {
                Some(flag) => flag,
                None => {
                    return words.error(format!("{part} is no access flag (local_write, remote_read, …, all, none)"));
                }
            },
        };
    }
    Ok(flags)
}

fn qp(words: &mut Words) -> Result<Statement, ScriptError> {
    let name = words.bare("a name")?;
    let kind = words.bare("a type")?;
    let qp_type = match kind.as_str() {
        "rc" => QpType::Rc,
        "uc" => QpType::Uc,
        "ud" => QpType::Ud,
        "xrc_send" => QpType::XrcSend,
        "xrc_recv" => QpType::XrcRecv,
        _ => return words.error(format!("{kind} is no QP type (rc, uc, ud, xrc_send, xrc_recv)")),
    };
    Ok(Statement::Qp {
        node: words.pair("node").unwrap_or_else(|| name.to_lowercase()),
        srq: words.pair("srq"),
        pd: words.number("pd")?.unwrap_or(1) as u32,
        pairs: words.pairs(),
        name,
        qp_type,
    })
}

fn state(words: &mut Words) -> Result<QpState, ScriptError> {
    let name = words.bare("a state")?;
    match state_of(&name) {
        Some(state) => Ok(state),
        None => words.error(format!("{name} is no state")),
    }
}

/// A state by name.
pub fn state_of(name: &str) -> Option<QpState> {
    QpState::ALL.into_iter().find(|s| s.as_str() == name)
}

fn status(words: &mut Words) -> Result<WcStatus, ScriptError> {
    let name = words.bare("a status")?;
    match STATUSES.iter().find(|row| row.name == name) {
        Some(row) => Ok(row.status),
        None => words.error(format!("{name} is no status of a completion")),
    }
}

fn event(words: &mut Words) -> Result<EventType, ScriptError> {
    let name = words.bare("an event")?;
    match EVENTS.iter().find(|row| row.name == name) {
        Some(row) => Ok(row.event_type),
        None => words.error(format!("{name} is no event")),
    }
}

/// Name of an operation in scripts.
pub fn operation(name: &str) -> Option<OpKind> {
    Some(match name {
        "send" => OpKind::Send,
        "send_imm" => OpKind::SendWithImm,
        "send_inv" => OpKind::SendWithInv,
        "write" => OpKind::Write,
        "write_imm" => OpKind::WriteWithImm,
        "read" => OpKind::Read,
        "cas" => OpKind::CompareSwap,
        "faa" => OpKind::FetchAdd,
        "local_inv" => OpKind::LocalInv,
        "bind" => OpKind::BindMw,
        "flush" => OpKind::Flush,
        "atomic_write" => OpKind::AtomicWrite,
        _ => return OPERATIONS.iter().find(|row| row.name == name).map(|row| row.kind),
    })
}

fn post(words: &mut Words) -> Result<Statement, ScriptError> {
    let qp = words.bare("a QP")?;
    let name = words.bare("an operation")?;
    let Some(kind) = operation(&name) else { return words.error(format!("{name} is no operation")) };
    let refused = refusal(words)?;
    let access_text = words.pair("access");
    let bind_to = match words.pair("bind") {
        Some(text) => Some(words.slice(&text)?),
        None => None,
    };
    let spec = SendSpec {
        wr: words.need_number("wr")?,
        local: words.slices("local")?,
        to: words.reference("to"),
        rkey: words.reference("rkey"),
        imm: words.number("imm")?.map(|n| n as u32),
        inv: words.reference("inv"),
        compare: words.number("compare")?.unwrap_or(0),
        swap: words.number("swap")?.unwrap_or(0),
        add: words.number("add")?.unwrap_or(0),
        length: words.number("len")?.unwrap_or(0) as u32,
        placement: words.number("placement")?.unwrap_or(1) as u8,
        whole_region: words.flag("whole"),
        ah: words.pair("ah"),
        qkey: words.number("qkey")?.map(|n| n as u32),
        dest: words.number("dest")?.map(|n| n as u32),
        srqn: words.reference("srqn"),
        window: words.pair("mw"),
        bind_to,
        access: match access_text {
            Some(text) => Some(access(words, &text)?),
            None => None,
        },
        tag: words.number("tag")?.unwrap_or(0) as u8,
        unsignaled: words.flag("unsignaled"),
        fence: words.flag("fence"),
        solicited: words.flag("solicited"),
        inline: words.flag("inline"),
    };
    Ok(Statement::Post { qp, kind, spec: Box::new(spec), refused })
}

/// What follows the first `: ` is an opcode as the table prints it and then fields. Returns the opcode and the words
/// after it.
fn opcode_and_fields(line: usize, text: &str) -> Result<(Opcode, Words), ScriptError> {
    let Some((_, tail)) = text.split_once(": ") else {
        return Err(ScriptError { line, message: "expected ': ' and an opcode".into() });
    };
    let tail = tail.trim();
    // The longest name that fits: RC SEND LAST is the beginning of RC SEND LAST with immediate.
    let row = TABLE
        .iter()
        .filter(|row| tail.strip_prefix(row.name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
        .max_by_key(|row| row.name.len());
    let Some(row) = row else {
        return Err(ScriptError {
            line,
            message: format!("no opcode at '{tail}': write it as the table of the wire crate does"),
        });
    };
    let opcode = Opcode::from_byte(row.code).ok_or(ScriptError { line, message: "opcode table is broken".into() })?;
    Ok((opcode, Words::split(line, &tail[row.name.len()..])?))
}

fn packet(from: String, text: &str, mut words: Words) -> Result<Statement, ScriptError> {
    let mut to = words.bare("a receiver")?;
    let mut at = None;
    if let Some(plain) = to.strip_suffix(':') {
        to = plain.to_string();
    } else {
        let time = words.bare("@time:")?;
        match time.strip_prefix('@').and_then(|t| t.strip_suffix(':')).and_then(parse_time) {
            Some(ns) => at = Some(ns),
            None => return words.error(format!("expected ':' or '@time:' after {to}, found {time}")),
        }
    }
    let (opcode, mut words) = opcode_and_fields(words.line(), text)?;
    let mut fate = Fate::default();
    if let Some(mut tail) = words.split_at("|") {
        fate.lost = tail.flag("lost");
        fate.twice = tail.flag("twice");
        fate.ce = tail.flag("ce");
        if tail.next_is("held") {
            fate.held = Some(tail.bare("a name")?);
        }
        if tail.next_is("set") {
            fate.set = Field::parse_all(&mut tail)?;
        }
        tail.finish()?;
    }
    Ok(Statement::Packet { from, to, opcode, fields: Field::parse_all(&mut words)?, at, fate })
}

fn completion(words: &mut Words) -> Result<Statement, ScriptError> {
    let target = words.bare("a QP or SRQ")?;
    let queue = match words.bare("send or recv")?.as_str() {
        "send" => Queue::Send,
        "recv" => Queue::Recv,
        other => return words.error(format!("{other}: a completion is of the send or the recv queue")),
    };
    let wr = words.need_number("wr")?;
    let opcode = match words.pair("op") {
        None => None,
        Some(name) => match WcOpcode::ALL.into_iter().find(|o| o.as_str() == name) {
            Some(opcode) => Some(opcode),
            None => return words.error(format!("op={name} is no opcode of a completion")),
        },
    };
    let spec = WcSpec {
        wr,
        opcode,
        len: words.number("len")?.map(|n| n as u32),
        imm: words.number("imm")?.map(|n| n as u32),
        inv: words.reference("inv"),
        src_qp: words.reference("src"),
        grh: two_ways(words, "grh"),
        solicited: two_ways(words, "solicited"),
        status: Some(status(words)?),
    };
    Ok(Statement::Completion { target, queue, spec })
}

fn two_ways(words: &mut Words, flag: &str) -> Option<bool> {
    if words.flag(flag) {
        return Some(true);
    }
    words.flag(&format!("!{flag}")).then_some(false)
}

fn memory(words: &mut Words) -> Result<Statement, ScriptError> {
    let at = Ref::parse(&words.bare("region+offset")?);
    if let Some(text) = words.text() {
        return Ok(Statement::Memory { at, expect: Expect::Text(text.into_bytes()) });
    }
    if let Some(n) = words.number("zeros")? {
        return Ok(Statement::Memory { at, expect: Expect::Zeros(n as usize) });
    }
    if let Some(n) = words.number("u64")? {
        return Ok(Statement::Memory { at, expect: Expect::Number(n) });
    }
    if let Some(text) = words.pair("data") {
        return match Fill::parse(&text) {
            Some(Fill::Text(bytes)) => Ok(Statement::Memory { at, expect: Expect::Text(bytes) }),
            _ => words.error(format!("data={text}: write 0xbytes")),
        };
    }
    match words.pair("is") {
        Some(slice) => Ok(Statement::Memory { at, expect: Expect::Slice(words.slice(&slice)?) }),
        None => words.error("expected \"text\", zeros=n, u64=n or is=region+offset:length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::words::Word;

    fn error(text: &str) -> String {
        parse("t", &format!("# title\n{text}")).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_line_and_word() {
        assert_eq!(error("dance A"), "line 2: 'dance' is no statement");
        assert!(error("A -> B: RC SENT ONLY psn=1").starts_with("line 2: no opcode at 'RC SENT ONLY psn=1'"));
        assert_eq!(error("A -> B: RC SEND ONLY psm=1"), "line 2: psm=1 is no field of a packet");
        assert_eq!(
            error("A -> B: RC SEND ONLY psn=0x1000000"),
            "line 2: psn=0x1000000 is larger than the field (0xffffff)"
        );
        assert_eq!(error("wc A send wr=1 FINE"), "line 2: FINE is no status of a completion");
        assert_eq!(error("post A send local=m:4"), "line 2: wr=… is missing");
        assert!(error("recv A wr=1 local=m").contains("m is no piece of memory"));
        assert_eq!(error("nothing else"), "line 2: 'else' means nothing here");
        assert!(error("# proves: luck 7").starts_with("line 2: 'luck 7' is no claim"));
        assert!(error("mr m node=a len=4 fill=\"x").contains("not closed"));
    }

    #[test]
    fn the_longest_opcode_name_wins() {
        let script = parse("t", "# title\nA -> B: RC SEND LAST with immediate psn=1 !ackreq | lost").unwrap();
        let (_, Statement::Packet { opcode, fields, fate, .. }) = &script.statements[0] else { panic!() };
        assert_eq!(opcode.byte(), 0x03);
        assert_eq!(fields, &[Field::Psn(1), Field::AckReq(false)]);
        assert!(fate.lost);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("67.108864ms"), Some(67_108_864));
        assert_eq!(parse_time("4.096us"), Some(4096));
        assert_eq!(parse_time("2s"), Some(2_000_000_000));
        assert_eq!(parse_time("5"), None);
        assert_eq!(parse_time("ms"), None);
    }

    #[test]
    fn a_word_after_the_text_is_not_swallowed() {
        let words = Words::split(1, r#"post data="a b" x # comment"#).unwrap();
        let mut words = words;
        assert_eq!(words.next_word(), Some(Word::Bare("post".into())));
        assert_eq!(words.next_word(), Some(Word::Pair("data".into(), "\"a b\"".into())));
        assert_eq!(words.next_word(), Some(Word::Bare("x".into())));
        assert!(words.is_empty());
    }
}
