//! Faults that no wire makes: the device, its ports, its QPs and its verbs fail.
//!
//! ```text
//! device = "port-down" "at=" TIME [ "for=" TIME ] [ "port=" N ]                 packets are lost, PORT_ERR, then PORT_ACTIVE
//!        | "gid-change" "at=" TIME [ "for=" TIME ] [ "port=" N ] [ "index=" N ] that GID goes, and comes back; GID_CHANGE
//!        | "device-fatal" "at=" TIME                                            DEVICE_FATAL, every QP to ERR
//!        | "qp-error" which *( when )                                           that QP to ERR, QP_FATAL
//!        | "wc" "status=" STATUS which *( when )                                its oldest send WR ends so, the rest is flushed
//!        | "rnr" [ "=" CHANCE ] which *( when )                                 RNR NAK although a receive is there
//!        | VERB [ "=" CHANCE ] [ "fail" ] [ "errno=" ERRNO ] *( when )          the verb fails (ENOMEM)
//! which  = [ "qp=" ( QPN | "client" | "server" | "#" N ) ]                      default: every QP of the process
//! when   = "packet=" N [ ".." M ] | "every=" N | "chance=" CHANCE               counted: packets sent, receives, calls
//!        | "at=" TIME | "after=" TIME                                           since the device was opened; since the QP began
//!        | "for=" TIME                                                          so long
//! VERB   = "reg-mr" | "create-qp" | "create-cq" | "create-srq" | "create-ah" | "alloc-pd" | "alloc-mw" | "modify-qp"
//! ```

use scalefabric_verbs::work_completion::STATUSES;
use scalefabric_verbs::{Errno, WcStatus};

use super::{Piece, QpSelect, SpecError, When, select, when};

/// A verb that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Verb {
    RegMr,
    CreateQp,
    CreateCq,
    CreateSrq,
    CreateAh,
    AllocPd,
    AllocMw,
    ModifyQp,
}

impl Verb {
    const ALL: [(Self, &'static str); 8] = [
        (Self::RegMr, "reg-mr"),
        (Self::CreateQp, "create-qp"),
        (Self::CreateCq, "create-cq"),
        (Self::CreateSrq, "create-srq"),
        (Self::CreateAh, "create-ah"),
        (Self::AllocPd, "alloc-pd"),
        (Self::AllocMw, "alloc-mw"),
        (Self::ModifyQp, "modify-qp"),
    ];

    /// Its name in a fault specification.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(verb, _)| *verb == self).map_or("", |(_, name)| name)
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The port is down: its packets are lost.
    PortDown,
    /// The GID at this index goes away.
    GidChange {
        /// Index.
        index: u8,
    },
    /// The device is dead.
    DeviceFatal,
    /// A QP goes to ERR by itself.
    QpError,
    /// A QP's oldest send WR ends with this status.
    Wc {
        /// Status.
        status: WcStatus,
    },
    /// A receive that is there is not found.
    Rnr,
    /// A verb fails.
    Verb {
        /// Which.
        verb: Verb,
        /// How.
        errno: Errno,
    },
}

/// One of them, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRule {
    /// What goes wrong.
    pub kind: DeviceKind,
    /// Which packets (receives, calls).
    pub when: When,
    /// From so long after the device was opened, ns.
    pub at_ns: Option<u64>,
    /// From so long after the QP's first packet, ns.
    pub after_ns: Option<u64>,
    /// For so long, ns; `None`: for ever.
    pub for_ns: Option<u64>,
    /// Port, from 1.
    pub port: u8,
    /// Which QPs; `None`: all.
    pub qp: Option<QpSelect>,
}

const PORT_WORDS: &str = "one of at=, for=, port=";
const GID_WORDS: &str = "one of at=, for=, port=, index=";
const FATAL_WORDS: &str = "at= and a time";
const QP_WORDS: &str = "one of qp=, packet=, every=, chance=, at=, after=";
const WC_WORDS: &str = "one of status=, qp=, packet=, every=, chance=, at=, after=, for=";
const RNR_WORDS: &str = "one of qp=, packet=, every=, chance=, at=, after=, for=";
const VERB_WORDS: &str = "one of fail, errno=, packet=, every=, chance=, at=, for=";
const STATUS: &str = "a failed status as ibv_wc_status spells it, such as RETRY_EXC_ERR or REM_ACCESS_ERR";
const ERRNO: &str = "an errno that verbs give, such as ENOMEM or EINVAL";

/// What a rule of this name may say; `None` if it is not one of these.
fn kind(name: &str) -> Option<(DeviceKind, &'static str)> {
    Some(match name {
        "port-down" => (DeviceKind::PortDown, PORT_WORDS),
        "gid-change" => (DeviceKind::GidChange { index: 0 }, GID_WORDS),
        "device-fatal" => (DeviceKind::DeviceFatal, FATAL_WORDS),
        "qp-error" => (DeviceKind::QpError, QP_WORDS),
        "wc" => (DeviceKind::Wc { status: WcStatus::Success }, WC_WORDS),
        "rnr" => (DeviceKind::Rnr, RNR_WORDS),
        name => {
            let (verb, _) = Verb::ALL.into_iter().find(|(_, spelled)| *spelled == name)?;
            (DeviceKind::Verb { verb, errno: Errno::ENOMEM }, VERB_WORDS)
        }
    })
}

fn status(value: Piece<'_>) -> Result<WcStatus, SpecError> {
    let name = value.text.strip_prefix("IBV_WC_").unwrap_or(value.text);
    let found = STATUSES.iter().find(|info| info.name == name && info.status != WcStatus::Success);
    found.map(|info| info.status).ok_or_else(|| value.error(STATUS))
}

fn errno(value: Piece<'_>) -> Result<Errno, SpecError> {
    let all = (1..200).filter_map(Errno::from_raw);
    all.into_iter().find(|errno| errno.to_string() == value.text).ok_or_else(|| value.error(ERRNO))
}

/// Reads a rule whose first word is `head`; `None` if it is none of these.
pub(super) fn rule<'a>(
    head: Piece<'a>,
    words: impl Iterator<Item = Piece<'a>>,
) -> Option<Result<DeviceRule, SpecError>> {
    let (name, amount) = head.key_value();
    let (kind, expected) = kind(name)?;
    Some(read(head, kind, amount, words, expected))
}

fn read<'a>(
    head: Piece<'a>,
    kind: DeviceKind,
    amount: Option<Piece<'a>>,
    words: impl Iterator<Item = Piece<'a>>,
    expected: &'static str,
) -> Result<DeviceRule, SpecError> {
    let counted = matches!(kind, DeviceKind::Rnr | DeviceKind::Verb { .. });
    let mut chosen = match amount {
        Some(amount) if counted => Some(amount.chance()?),
        Some(_) => return Err(head.error("this fault without an amount: choose by words")),
        None => None,
    };
    let mut rule =
        DeviceRule { kind, when: When::Always, at_ns: None, after_ns: None, for_ns: None, port: 1, qp: None };
    for word in words {
        let (key, value) = word.key_value();
        // Only words that this fault's list names.
        let is_allowed = |key: &str| expected.split([' ', ',']).any(|w| w.strip_suffix('=').unwrap_or(w) == key);
        if !is_allowed(key) {
            return Err(word.error(expected));
        }
        let Some(value) = value else {
            match (key, rule.kind) {
                ("fail", DeviceKind::Verb { .. }) => continue,
                _ => return Err(word.error(expected)),
            }
        };
        if let Some(selects) = when(key, value)? {
            if chosen.replace(selects).is_some() {
                return Err(word.error("only one of a chance, packet= and every= in a rule"));
            }
            continue;
        }
        match (key, &mut rule.kind) {
            ("at", _) => rule.at_ns = Some(value.time_ns()?),
            ("after", _) => rule.after_ns = Some(value.time_ns()?),
            ("for", _) => rule.for_ns = Some(value.time_ns()?),
            ("port", _) => {
                rule.port =
                    u8::try_from(value.positive("a port, 1 or 2")?).map_err(|_| value.error("a port, 1 or 2"))?;
            }
            ("index", DeviceKind::GidChange { index }) => {
                *index = u8::try_from(value.number("a GID index, 0 to 255")?)
                    .map_err(|_| value.error("a GID index, 0 to 255"))?;
            }
            ("qp", _) => rule.qp = Some(select(value)?),
            ("status", DeviceKind::Wc { status: to }) => *to = status(value)?,
            ("errno", DeviceKind::Verb { errno: to, .. }) => *to = errno(value)?,
            _ => return Err(word.error(expected)),
        }
    }
    rule.when = chosen.unwrap_or(When::Always);
    let timed = matches!(rule.kind, DeviceKind::PortDown | DeviceKind::GidChange { .. } | DeviceKind::DeviceFatal);
    if timed && rule.at_ns.is_none() {
        return Err(head.error("at=TIME, such as at=2s, behind it"));
    }
    if rule.kind == (DeviceKind::Wc { status: WcStatus::Success }) {
        return Err(head.error("status=STATUS, such as status=RETRY_EXC_ERR, behind it"));
    }
    if rule.kind == DeviceKind::QpError && rule.at_ns.is_none() && rule.after_ns.is_none() && chosen.is_none() {
        return Err(head.error("when: at=TIME, after=TIME or packet=N, behind it"));
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::super::FaultSpec;
    use super::*;
    use scalefabric_wire::Qpn;

    fn one(text: &str) -> DeviceRule {
        let spec: FaultSpec = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((spec.rules.len(), spec.device.len()), (0, 1), "{text}");
        spec.device[0]
    }

    fn error(text: &str) -> SpecError {
        text.parse::<FaultSpec>().expect_err(text)
    }

    #[test]
    fn the_forms_of_the_manual_are_understood() {
        const S: u64 = 1_000_000_000;
        let down = one("port-down at=2s for=1s");
        assert_eq!((down.kind, down.at_ns, down.for_ns, down.port), (DeviceKind::PortDown, Some(2 * S), Some(S), 1));
        assert_eq!(one("port-down at=0s port=2").port, 2);
        assert_eq!(one("gid-change at=1s index=3").kind, DeviceKind::GidChange { index: 3 });
        assert_eq!(one("device-fatal at=5ms").at_ns, Some(5_000_000));
        let wc = one("wc status=RETRY_EXC_ERR qp=client packet=17");
        assert_eq!((wc.kind, wc.when), (DeviceKind::Wc { status: WcStatus::RetryExcErr }, When::Packets(17, 17)));
        assert_eq!(wc.qp, Some(QpSelect::Client));
        assert_eq!(one("wc status=IBV_WC_REM_OP_ERR qp=#2").qp, Some(QpSelect::Nth(2)));
        assert_eq!(one("qp-error after=1ms qp=0x10011").qp, Some(QpSelect::Number(Qpn::new(0x10011))));
        assert_eq!(one("rnr=5% qp=server").when, When::Chance(50_000_000));
        assert_eq!(one("rnr every=3 at=1s for=1s").when, When::Every(3));
        let reg = one("reg-mr fail every=2");
        assert_eq!(reg.kind, DeviceKind::Verb { verb: Verb::RegMr, errno: Errno::ENOMEM });
        assert_eq!(one("create-qp errno=EINVAL").kind, DeviceKind::Verb { verb: Verb::CreateQp, errno: Errno::EINVAL });
        let spec: FaultSpec = "drop=1%, port-down at=1s, seed=3".parse().unwrap();
        assert_eq!((spec.rules.len(), spec.device.len(), spec.seed), (1, 1, 3));
    }

    #[test]
    fn errors_say_where_and_what() {
        assert_eq!((error("port-down").position, error("port-down at=x").position), (0, 13));
        assert_eq!(error("drop=1%, port-down at=1s every=2").position, 25);
        assert_eq!(error("port-down=3 at=1s").position, 0);
        assert_eq!(error("gid-change at=1s index=300").position, 23);
        assert_eq!(error("device-fatal for=1s").position, 13);
        assert_eq!(error("wc qp=client").expected, "status=STATUS, such as status=RETRY_EXC_ERR, behind it");
        assert_eq!(error("wc status=SUCCESS").position, 10);
        assert_eq!(error("wc status=NONSENSE").expected, STATUS);
        assert_eq!(error("qp-error qp=client").position, 0);
        assert_eq!(error("rnr qp=somebody").position, 7);
        assert_eq!(error("rnr qp=#0").position, 7);
        assert_eq!(error("rnr packet=1 every=2").position, 13);
        assert_eq!(error("reg-mr errno=EFOO").expected, ERRNO);
        assert_eq!(error("reg-mr fall").position, 7);
        assert_eq!(error("create-qp qp=client").position, 10);
    }
}
