//! The contract's own tests: functions over a [`Provider`], whoever implements it. The same suite runs on the software
//! backend, on crate `ibv` over the C door of our own NIC, and on crate `ibv` over Linux's rxe (in the rig's guest).
//!
//! A case that a device cannot pass is skipped for what the device says of itself, with the reason. A case in which a
//! driver is known to be wrong stands in [`DEVIATIONS`]: it runs, and its failure is told and not counted.

mod bench;
mod communication;
mod devices;
mod errors;
mod events;
mod lifetimes;
mod limits;
mod one_sided;
mod shared_receive;
mod states;
mod traffic;
mod windows;

pub use bench::{Bench, Options};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use scalefabric_verbs::{Provider, VerbsError};

/// Why a case ended before its end.
#[derive(Debug)]
pub enum Stop {
    /// The device cannot do it, and says so.
    Skip(String),
    /// The contract is broken.
    Fail(String),
}

impl From<VerbsError> for Stop {
    fn from(error: VerbsError) -> Self {
        Self::Fail(format!("unexpected error: {error}"))
    }
}

impl From<scalefabric_verbs::PostError> for Stop {
    fn from(error: scalefabric_verbs::PostError) -> Self {
        Self::Fail(format!("unexpected error: {error}"))
    }
}

/// How a case ends.
pub type Outcome = Result<(), Stop>;

/// A test of the contract.
pub struct Case {
    /// A sentence.
    pub name: &'static str,
    /// The test.
    pub run: fn(&Bench) -> Outcome,
}

/// Cases from functions: their names are sentences.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CASES: &[crate::contract::Case] =
            &[ $( crate::contract::Case { name: stringify!($name), run: $name } ),* ];
    };
}
pub(crate) use cases;

/// Fails the case unless it holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(crate::contract::Stop::Fail(format!($($words)+)));
        }
    };
}
pub(crate) use ensure;

/// Fails the case unless both are equal.
macro_rules! same {
    ($got:expr, $wanted:expr, $what:expr) => {{
        let (got, wanted) = (&$got, &$wanted);
        if got != wanted {
            return Err(crate::contract::Stop::Fail(format!("{}: {got:?}, not {wanted:?}", $what)));
        }
    }};
}
pub(crate) use same;

/// Where a driver is known to be wrong: driver, case, what it does.
pub const DEVIATIONS: &[(&str, &str, &str)] = &[
    ("rxe", "a_pkey_beyond_the_table_is_refused", "it takes any P_Key index"),
    ("rxe", "a_path_mtu_above_the_ports_is_refused", "it takes any path MTU"),
    ("rxe", "a_qp_drains_and_goes_on", "Linux 6.1 does not begin what was posted in SQD when the QP goes on"),
    (
        "rxe",
        "a_send_with_invalidate_takes_the_key_away",
        "it hands programs the kernel's number of WITH_INV (4, not 8)",
    ),
    ("rxe", "a_refused_access_is_told_to_its_owner", "it raises no QP_ACCESS_ERR"),
    (
        "rxe",
        "a_qp_with_a_shared_queue_tells_its_last_receive",
        "it raises no LAST_WQE_REACHED when modify leads to ERR",
    ),
    ("rxe", "a_wrong_lkey_ends_this_side", "it says LOC_QP_OP_ERR for a wrong lkey"),
    ("rxe", "a_message_that_is_too_long_ends_both_sides", "its receive says LOC_QP_OP_ERR"),
    ("rxe", "what_is_queued_is_flushed_in_order", "Linux 6.1 does not flush what is posted in ERR"),
];

/// Every case.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        devices::CASES,
        limits::CASES,
        lifetimes::CASES,
        states::CASES,
        traffic::CASES,
        one_sided::CASES,
        shared_receive::CASES,
        windows::CASES,
        events::CASES,
        errors::CASES,
        communication::CASES,
    ]
    .into_iter()
    .flatten()
}

/// What came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that the device cannot do.
    pub skipped: usize,
    /// Cases in which the driver is known to be wrong, and was.
    pub known: usize,
    /// Cases that failed.
    pub failed: usize,
}

/// Runs the cases whose names contain `only`, and prints a line for each.
pub fn run(provider: Arc<dyn Provider>, options: &Options, only: &str) -> Result<Totals, VerbsError> {
    let mut totals = Totals::default();
    for case in all().filter(|case| case.name.contains(only)) {
        // Each begins with a context of its own: nothing is left of the one before.
        let bench = Bench::open(provider.clone(), options)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.run)(&bench))).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(Stop::Fail(format!("panicked: {}", words.unwrap_or_default())))
        });
        let known = DEVIATIONS.iter().find(|(driver, name, _)| *driver == bench.driver && *name == case.name);
        match (outcome, known) {
            (Ok(()), _) => {
                totals.passed += 1;
                println!("ok    {}", case.name);
            }
            (Err(Stop::Skip(why)), _) => {
                totals.skipped += 1;
                println!("skip  {}: {why}", case.name);
            }
            (Err(Stop::Fail(words)), Some((driver, _, why))) => {
                totals.known += 1;
                println!("known {}: {driver}: {why} ({words})", case.name);
            }
            (Err(Stop::Fail(words)), None) => {
                totals.failed += 1;
                println!("FAIL  {}: {words}", case.name);
            }
        }
    }
    println!(
        "contract: {} passed, {} skipped, {} known to be wrong, {} failed",
        totals.passed, totals.skipped, totals.known, totals.failed
    );
    Ok(totals)
}
