//! The provider: which devices libibverbs has, and opening them.

use std::path::Path;
use std::sync::Arc;

use scalefabric_verbs::{CmChannel, Context, DeviceInfo, Errno, Provider, VerbsError};

use crate::abi;
use crate::communication::IbvCmChannel;
use crate::explain;
use crate::library::{self, Verbs, last_errno, text};
use crate::objects::{Device, IbvContext, sysfs_interfaces};

/// Devices of libibverbs.
#[derive(Clone, Copy, Debug, Default)]
pub struct IbvProvider;

impl IbvProvider {
    /// Loads libibverbs. Without it, the error says what to install.
    pub fn new() -> Result<Self, VerbsError> {
        library::verbs()?;
        Ok(Self)
    }
}

/// The list of devices; they stay as long as it does, and open ones longer.
struct DeviceList {
    verbs: &'static Verbs,
    list: *mut *mut abi::Device,
    count: usize,
}

impl DeviceList {
    fn get(verbs: &'static Verbs) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: a counter of ours to fill.
        let list = unsafe { (verbs.get_device_list)(&mut count) };
        if !list.is_null() {
            return Ok(Self { verbs, list, count: usize::try_from(count).unwrap_or(0) });
        }
        match last_errno() {
            libc::ENOSYS => Err(VerbsError::environment(
                Errno::ENOSYS,
                "this kernel has no RDMA: load ib_uverbs and a driver (rdma_rxe for a software device), or use the software \
                 NIC, which needs neither",
            )),
            raw => Err(explain::failed("list the devices", raw)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (*mut abi::Device, DeviceInfo)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has `count` devices.
            let device = unsafe { *self.list.add(index) };
            (device, self.info(device, index))
        })
    }

    fn info(&self, device: *mut abi::Device, index: usize) -> DeviceInfo {
        // SAFETY: a device of the list.
        let (name, path, guid, known) = unsafe {
            (
                text(&(*device).name),
                text(&(*device).ibdev_path),
                u64::from_be((self.verbs.get_device_guid)(device)),
                self.verbs.get_device_index.map(|get| get(device)),
            )
        };
        let index = known.and_then(|index| u32::try_from(index).ok()).unwrap_or(index as u32);
        DeviceInfo { name, node_guid: guid, index, interfaces: sysfs_interfaces(Path::new(&path)) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list of `get`, freed once.
        unsafe { (self.verbs.free_device_list)(self.list) };
    }
}

impl Provider for IbvProvider {
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let list = DeviceList::get(library::verbs()?)?;
        Ok(list.iter().map(|(_, info)| info).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>, VerbsError> {
        let verbs = library::verbs()?;
        let list = DeviceList::get(verbs)?;
        let mut names = Vec::new();
        for (device, info) in list.iter() {
            if info.name == name {
                return Ok(Arc::new(IbvContext::new(Device::open(verbs, device, info)?)));
            }
            names.push(info.name);
        }
        let names =
            if names.is_empty() { "there is none".to_owned() } else { format!("there are {}", names.join(", ")) };
        Err(VerbsError::environment(Errno::ENODEV, format!("libibverbs has no device {name}: {names}")))
    }

    fn event_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError> {
        Ok(IbvCmChannel::open()?.handle())
    }
}
