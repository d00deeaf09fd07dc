//! The contract's own tests as a program: on the software backend, or on crate `ibv` over whatever libibverbs it finds. It is
//! what runs under the C door, and in the rig's guest over Linux's rxe.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use scalefabric_ibv::{IbvContext, IbvProvider};
use scalefabric_nic::options::Options as NicOptions;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::contract::{self, Options};
use scalefabric_verbs::{Provider, VerbsError};

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    /// The software NIC, by its Rust API.
    Software,
    /// libibverbs.
    Ibv,
}

/// Runs the contract's tests on a device.
#[derive(Parser)]
struct Arguments {
    /// Who makes the objects.
    #[arg(long, value_enum, default_value = "software")]
    backend: Backend,
    /// Device (default: the first one).
    #[arg(long)]
    device: Option<String>,
    /// Port, from 1.
    #[arg(long, default_value_t = 1)]
    port: u8,
    /// Index in the GID table (default: the first IPv4 address over RoCEv2).
    #[arg(long)]
    gid_index: Option<u8>,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Ends with failure unless so many cases pass: a suite that skips everything proves nothing.
    #[arg(long, default_value_t = 1)]
    at_least: usize,
}

fn provider(backend: Backend) -> Result<Arc<dyn Provider>, VerbsError> {
    Ok(match backend {
        Backend::Software => {
            let options = NicOptions::from_environment().map_err(|error| VerbsError::invalid(error.to_string()))?;
            Arc::new(SoftwareProvider::new(options))
        }
        Backend::Ibv => Arc::new(IbvProvider::new()?),
    })
}

fn run(arguments: &Arguments) -> Result<bool, VerbsError> {
    let provider = provider(arguments.backend)?;
    let mut options = Options {
        device: arguments.device.clone(),
        port_num: arguments.port,
        gid_index: arguments.gid_index,
        driver: String::new(),
    };
    if options.device.is_none() {
        options.device = provider.devices()?.first().map(|device| device.name.clone());
    }
    if let (Backend::Ibv, Some(name)) = (arguments.backend, &options.device) {
        let context = provider.open(name)?;
        let vendor = context.as_any().downcast_ref::<IbvContext>().and_then(IbvContext::vendor);
        options.driver = vendor.map_or_else(String::new, |vendor| vendor.driver.to_owned());
        println!("contract: {name}, driver {}", if options.driver.is_empty() { "unknown" } else { &options.driver });
    }
    let totals = contract::run(provider, &options, &arguments.only)?;
    Ok(totals.failed == 0 && totals.passed >= arguments.at_least)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("contract: {error}");
            ExitCode::FAILURE
        }
    }
}
