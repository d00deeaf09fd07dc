//! The two kinds of profile beside each other: what each source says, what each model gives, and what explains a contradiction. Nothing is averaged.

use super::atomic::{self, Design};
use super::curve::{self, Axis};
use super::parameter::Key;
use super::profile::{Kind, Profile};
use super::reference;
use super::savings;
use super::shape::{Op, Setting, Shape};

/// What is compared.
pub struct Question {
    /// In words.
    pub what: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// What the course says, if it says something.
    pub course: &'static str,
    /// What was measured, if it was.
    pub measured: &'static str,
    /// What explains the difference.
    pub remark: &'static str,
    model: fn(&Profile) -> Result<f64, String>,
}

/// A row of the comparison.
pub struct Row {
    /// The question.
    pub question: &'static Question,
    /// The model with the course's figures, and with the measured ones.
    pub values: [f64; 2],
}

impl Row {
    /// True if the two models are further apart than a point's tolerance.
    pub fn contradicts(&self) -> bool {
        let [course, measured] = self.values;
        (course - measured).abs() > reference::TOLERANCE * course.abs().max(measured.abs())
    }
}

fn latency(profile: &Profile, op: Op) -> f64 {
    savings::latency_ns(profile, Shape { blueflame: true, ..Shape::new(op, 8) }, Setting::default()) / 1000.0
}

fn kept(profile: &Profile, op: Op, qps: u64) -> Result<f64, String> {
    let load = curve::steady(Shape::new(op, 8), Setting::default());
    let got = curve::along(profile, &load, Axis::Qps, &[48, qps])?;
    Ok(100.0 * got[1].1.mops() / got[0].1.mops())
}

fn peak(profile: &Profile, op: Op) -> Result<f64, String> {
    Ok(curve::along(profile, &curve::steady(Shape::new(op, 8), Setting::default()), Axis::Qps, &[96])?[0].1.mops())
}

fn atomics(profile: &Profile, design: Design) -> Result<f64, String> {
    Ok(atomic::simulate(profile, &design, 1)?.mops())
}

/// All questions.
pub const QUESTIONS: &[Question] = &[
    Question {
        what: "READ 8 B",
        unit: "us",
        course: "1.5-2",
        measured: "2.35 with 12 threads (SMART)",
        remark: "",
        model: |profile| Ok(latency(profile, Op::Read)),
    },
    Question {
        what: "CAS",
        unit: "us",
        course: "2-3, about 1 above READ",
        measured: "2.19 from request to answer",
        remark: "the course's parts of a CAS add 0.25 to READ, not 1",
        model: |profile| Ok(latency(profile, Op::Cas)),
    },
    Question {
        what: "one small DMA read",
        unit: "ns",
        course: "80 (what inline saves)",
        measured: "500-550 (from memory)",
        remark: "80 is what can be seen when the reads of many operations overlap; 525 is one alone",
        model: |profile| Ok(profile.value(Key::BusRead)),
    },
    Question {
        what: "inline saves, alone",
        unit: "ns",
        course: "80",
        measured: "",
        remark: "as the DMA read",
        model: |profile| {
            let of =
                |inline| savings::latency_ns(profile, Shape { inline, ..Shape::new(Op::Write, 8) }, Setting::default());
            Ok(of(false) - of(true))
        },
    },
    Question {
        what: "READ rate, 96 QPs",
        unit: "M/s",
        course: "215 messages (brief)",
        measured: "111 (SMART); 65 (64 B, another)",
        remark: "a brief counts the messages that the chip can form; a READ needs the chip twice",
        model: |profile| peak(profile, Op::Read),
    },
    Question {
        what: "WRITE rate, 96 QPs",
        unit: "M/s",
        course: "215 messages (brief)",
        measured: "92.7 (SMART); 106 (64 B, another); 61 a NIC (a third)",
        remark: "the third kept so many under way that WQEs did not stay in the NIC",
        model: |profile| peak(profile, Op::Write),
    },
    Question {
        what: "READ rate at 4,096 QPs, of that at 48",
        unit: "%",
        course: "100, halves beyond 100,000",
        measured: "25 (two cx6)",
        remark: "the course's bound holds for WRITE only; the measurement's 32 QPs were slowed already by what they had under way",
        model: |profile| kept(profile, Op::Read, 4096),
    },
    Question {
        what: "WRITE rate at 4,096 QPs, of that at 48",
        unit: "%",
        course: "100, halves beyond 100,000",
        measured: "90 (two cx6)",
        remark: "",
        model: |profile| kept(profile, Op::Write, 4096),
    },
    Question {
        what: "atomics on any line",
        unit: "M/s",
        course: "5-10 (ib_atomic_bw 7.32)",
        measured: "48, NIC not named",
        remark: "7.32 is what one QP gets with 16 under way in 2.19 us, not what the atomic unit can",
        model: |profile| atomics(profile, Design::spread(Op::Cas, Setting::default())),
    },
    Question {
        what: "ib_atomic_bw, one QP",
        unit: "M/s",
        course: "7.32",
        measured: "7.32",
        remark: "agreed upon, for different reasons: the unit in one model, 16 under way in the other",
        model: reference::atomic_bw,
    },
    Question {
        what: "atomics on one line",
        unit: "M/s",
        course: "1-2",
        measured: "2.04 CAS, 2.17 FAA",
        remark: "",
        model: |profile| atomics(profile, Design::one_line(Op::Cas, Setting::default())),
    },
    Question {
        what: "atomics on one line of the NIC's memory",
        unit: "M/s",
        course: "",
        measured: "8.65 CAS, 8.27 FAA",
        remark: "the course does not know device memory; its model takes it as host memory",
        model: |profile| {
            atomics(profile, Design::one_line(Op::Cas, Setting { device_memory: true, ..Setting::default() }))
        },
    },
];

/// Compares the two profiles of a NIC. The remarks and the figures quoted are those of ConnectX-6.
pub fn rows(name: &str) -> Result<Vec<Row>, String> {
    let [course, measured] = Kind::ALL.map(|kind| Profile::named(name, kind).map_err(|error| error.to_string()));
    let (course, measured) = (course?, measured?);
    let row = |question: &'static Question| {
        Ok(Row { question, values: [(question.model)(&course)?, (question.model)(&measured)?] })
    };
    QUESTIONS.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_seen_and_agreement_is_not_called_one() {
        let rows = rows("cx6").unwrap();
        let of = |what: &str| rows.iter().find(|row| row.question.what == what).unwrap().contradicts();
        assert!(of("atomics on any line"));
        assert!(of("READ rate at 4,096 QPs, of that at 48"));
        assert!(!of("ib_atomic_bw, one QP"));
    }
}
