//! Which backend makes the objects: the software NIC, or the devices of libibverbs.

use crate::failure::{During, Failure};
use crate::software::{self, SoftwareOptions};
use clap::ValueEnum;
use scalefabric_ibv::IbvProvider;
use scalefabric_verbs::Provider;
use std::sync::Arc;

/// A backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The software NIC
    #[default]
    Software,
    /// Devices of libibverbs: hardware, or the kernel's software devices
    Ibv,
}

impl Backend {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Ibv => "ibv",
        }
    }

    /// Says what the other backend cannot do, before anything starts.
    pub fn check(self, options: &SoftwareOptions) -> Result<(), Failure> {
        if self == Self::Ibv && (!options.faults.is_empty() || options.capture.is_some()) {
            return Err(Failure::usage(
                "--fault and --capture are the software NIC's: a device of libibverbs has neither; leave out --backend ibv",
            ));
        }
        Ok(())
    }

    /// The provider, and the device that is meant: the named one; else the software NIC's on the interface, or the first of
    /// libibverbs.
    pub fn open(
        self,
        options: &SoftwareOptions,
        device: Option<&str>,
        interface: &str,
    ) -> Result<(Arc<dyn Provider>, String), Failure> {
        self.check(options)?;
        if self == Self::Software {
            let provider = software::provider(options)?;
            let name = software::choose(provider.as_ref(), device, interface)?;
            return Ok((provider, name));
        }
        let provider: Arc<dyn Provider> = Arc::new(IbvProvider::new().during(|| "load libibverbs")?);
        let name = match device {
            Some(name) => name.to_owned(),
            None => {
                let devices = provider.devices().during(|| "list the devices")?;
                let first = devices.first().map(|device| device.name.clone());
                first.ok_or_else(|| Failure::failed("libibverbs has no device: see `ibv_devices`"))?
            }
        };
        Ok((provider, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_the_software_nic_can_do_is_refused_elsewhere() {
        let faulty = SoftwareOptions { faults: vec!["drop=1%".to_owned()], ..SoftwareOptions::default() };
        assert!(Backend::Software.check(&faulty).is_ok());
        assert!(Backend::Ibv.check(&faulty).is_err_and(|failure| failure.is_usage()));
        assert!(Backend::Ibv.check(&SoftwareOptions::default()).is_ok());
    }
}
