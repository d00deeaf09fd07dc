//! Identifiers.

use core::ffi::{c_int, c_void};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_verbs::cm::reject_reason;
use scalefabric_verbs::{
    CmAddr, CmAddresses, CmChannel, CmDevice, CmId, CmOption, ConnParam, Ece, EventType, Gid, JoinFlags, PKey,
    PathRecord, PortSpace, QpAttr, QpAttrMask, QpState, QpType, VerbsError,
};

use super::address;
use super::channel::{IbvCmChannel, next_number, remove};
use super::{done, failed};
use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside, stale};
use crate::library::{self, RdmaCm, text};
use crate::translate;

/// A join of a group.
#[derive(Debug)]
struct Join {
    uid: u64,
    address: CmAddr,
    reported: u32,
}

/// An identifier.
pub(crate) struct IbvCmId {
    cm: &'static RdmaCm,
    handle: Handle<abi::CmId>,
    number: u32,
    space: PortSpace,
    qp_type: QpType,
    passive: bool,
    uid: AtomicU64,
    reported: AtomicU32,
    channel: Mutex<Arc<IbvCmChannel>>,
    joins: Mutex<HashMap<u32, Join>>,
}

impl core::fmt::Debug for IbvCmId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("IbvCmId").field("number", &self.number).field("handle", &self.handle).finish_non_exhaustive()
    }
}

fn pointer(storage: &libc::sockaddr_storage) -> *mut libc::sockaddr {
    core::ptr::from_ref(storage).cast_mut().cast()
}

/// Parameters in C's form; the private data is borrowed.
fn conn_param(param: &ConnParam) -> Result<abi::CmConnParam, VerbsError> {
    let length = u8::try_from(param.private_data.len()).map_err(|_| {
        VerbsError::invalid(format!("{} bytes of private data: 255 are the most", param.private_data.len()))
    })?;
    Ok(abi::CmConnParam {
        private_data: param.private_data.as_ptr().cast::<c_void>(),
        private_data_len: length,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq.into(),
        qp_num: param.qp_num.get(),
    })
}

impl IbvCmId {
    pub(crate) fn new(
        channel: &Arc<IbvCmChannel>,
        id: *mut abi::CmId,
        number: u32,
        space: PortSpace,
        qp_type: QpType,
        uid: u64,
        passive: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            cm: channel.cm,
            handle: Handle::new(id),
            number,
            space,
            qp_type,
            passive,
            uid: AtomicU64::new(uid),
            reported: AtomicU32::new(0),
            channel: Mutex::new(channel.clone()),
            joins: Mutex::default(),
        })
    }

    fn enter(&self) -> Result<Inside<'_, abi::CmId>, VerbsError> {
        self.handle.enter_or("identifier")
    }

    /// librdmacm looks into the device of an identifier without asking whether there is one.
    fn enter_bound(&self, what: &str) -> Result<Inside<'_, abi::CmId>, VerbsError> {
        let id = self.enter()?;
        // SAFETY: a living identifier.
        if unsafe { (*id.pointer()).verbs.is_null() } {
            return Err(VerbsError::invalid(format!(
                "cannot {what}: the identifier has no device yet; resolve an address"
            )));
        }
        Ok(id)
    }

    fn joins(&self) -> MutexGuard<'_, HashMap<u32, Join>> {
        self.joins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel(&self) -> MutexGuard<'_, Arc<IbvCmChannel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_on(&self, channel: &Arc<IbvCmChannel>) -> bool {
        Arc::ptr_eq(&self.channel(), channel)
    }

    pub(crate) fn is_passive(&self) -> bool {
        self.passive
    }

    /// An event of it was handed out.
    pub(crate) fn report(&self) {
        self.reported.fetch_add(1, Ordering::Relaxed);
    }

    /// An event of a join was handed out; gives the join's uid.
    pub(crate) fn report_join(&self, number: u32) -> Option<u64> {
        let mut joins = self.joins();
        let join = joins.get_mut(&number)?;
        join.reported += 1;
        Some(join.uid)
    }

    /// Leaves a group, if this identifier has the join.
    pub(crate) fn leave(&self, number: u32) -> Result<Option<u32>, VerbsError> {
        let Some(join) = self.joins().remove(&number) else { return Ok(None) };
        let id = self.enter()?;
        let group = address::to_c(&join.address);
        // SAFETY: a living identifier, and an address that is read only.
        done(unsafe { (self.cm.leave_multicast)(id.pointer(), pointer(&group)) }, "leave the group")?;
        Ok(Some(join.reported))
    }

    /// The device that it is bound to.
    ///
    /// # Safety
    /// A living identifier.
    unsafe fn device(&self, id: *mut abi::CmId) -> Option<CmDevice> {
        // SAFETY: as the caller says; a context that librdmacm opened stays open.
        let (name, guid, index, port_num, pkey) = unsafe {
            let verbs = library::verbs().ok()?;
            let context = (*id).verbs;
            if context.is_null() {
                return None;
            }
            let device = (*context).device;
            (
                text(&(*device).name),
                u64::from_be((verbs.get_device_guid)(device)),
                verbs.get_device_index.map_or(-1, |get| get(device)),
                (*id).port_num,
                u16::from_be((*id).route.addr.ibaddr.pkey),
            )
        };
        let index = u32::try_from(index).unwrap_or(0);
        Some(CmDevice { name, node_guid: guid, index, port_num, pkey: PKey(pkey) })
    }

    /// Sets an option of `size_of::<T>()` bytes.
    fn option<T>(&self, level: c_int, name: c_int, mut value: T) -> Result<(), VerbsError> {
        let id = self.enter()?;
        let place: *mut T = &mut value;
        // SAFETY: a living identifier, and so many bytes.
        let code = unsafe { (self.cm.set_option)(id.pointer(), level, name, place.cast(), size_of::<T>()) };
        done(code, "set the option")
    }

    fn say_local_ece(&self, id: *mut abi::CmId, ece: Ece) -> Result<(), VerbsError> {
        let set = self.cm.set_local_ece.ok_or_else(|| explain::unsupported("ECE (librdmacm v31)"))?;
        let mut raw = abi::Ece { vendor_id: ece.vendor_id, options: ece.attr_mod, comp_mask: 0 };
        // SAFETY: the caller is inside.
        done(unsafe { set(id, &mut raw) }, "offer the ECE option")
    }
}

impl Drop for IbvCmId {
    fn drop(&mut self) {
        // SAFETY: nobody holds it any more.
        let _ = self.handle.end(|id| unsafe { (self.cm.destroy_id)(id) });
    }
}

impl CmId for IbvCmId {
    fn id(&self) -> u32 {
        self.number
    }

    fn port_space(&self) -> PortSpace {
        self.space
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn uid(&self) -> u64 {
        self.uid.load(Ordering::Relaxed)
    }

    fn set_uid(&self, uid: u64) {
        self.uid.store(uid, Ordering::Relaxed);
    }

    fn bind_addr(&self, address: CmAddr) -> Result<(), VerbsError> {
        let id = self.enter()?;
        let raw = address::to_c(&address);
        // SAFETY: a living identifier, and an address that is read only.
        done(unsafe { (self.cm.bind_addr)(id.pointer(), pointer(&raw)) }, &format!("bind to {address:?}"))
    }

    fn resolve_addr(&self, source: Option<CmAddr>, destination: CmAddr, timeout_ms: u32) -> Result<(), VerbsError> {
        let id = self.enter()?;
        let from = source.as_ref().map(address::to_c);
        let to = address::to_c(&destination);
        let from = from.as_ref().map_or(core::ptr::null_mut(), pointer);
        let timeout = i32::try_from(timeout_ms).unwrap_or(i32::MAX);
        // SAFETY: a living identifier, and addresses that are read only.
        let code = unsafe { (self.cm.resolve_addr)(id.pointer(), from, pointer(&to), timeout) };
        done(code, &format!("resolve {destination:?}"))
    }

    fn resolve_route(&self, timeout_ms: u32) -> Result<(), VerbsError> {
        let id = self.enter_bound("resolve the route")?;
        // SAFETY: a living identifier.
        let code = unsafe { (self.cm.resolve_route)(id.pointer(), i32::try_from(timeout_ms).unwrap_or(i32::MAX)) };
        done(code, "resolve the route")
    }

    fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        let id = self.enter()?;
        // SAFETY: a living identifier.
        done(unsafe { (self.cm.listen)(id.pointer(), i32::try_from(backlog).unwrap_or(i32::MAX)) }, "listen")
    }

    fn connect(&self, param: &ConnParam) -> Result<(), VerbsError> {
        let id = self.enter_bound("connect")?;
        let mut raw = conn_param(param)?;
        // SAFETY: a living identifier without a QP of librdmacm: the number in the parameters counts.
        done(unsafe { (self.cm.connect)(id.pointer(), &mut raw) }, "connect")
    }

    fn accept(&self, param: Option<&ConnParam>, uid: Option<u64>, ece: Ece) -> Result<(), VerbsError> {
        let id = self.enter_bound("accept")?;
        if let Some(uid) = uid {
            self.set_uid(uid);
        }
        let Some(param) = param else {
            let establish = self.cm.establish.ok_or_else(|| explain::unsupported("rdma_establish"))?;
            // SAFETY: a living identifier.
            return done(unsafe { establish(id.pointer()) }, "establish the connection");
        };
        if ece != Ece::default() {
            self.say_local_ece(id.pointer(), ece)?;
        }
        let mut raw = conn_param(param)?;
        // SAFETY: as for `connect`.
        done(unsafe { (self.cm.accept)(id.pointer(), &mut raw) }, "accept")
    }

    fn reject(&self, private_data: &[u8], reason: u8) -> Result<(), VerbsError> {
        let id = self.enter()?;
        let length = u8::try_from(private_data.len())
            .map_err(|_| VerbsError::invalid(format!("{} bytes of private data are too many", private_data.len())))?;
        let call = match reason {
            reject_reason::CONSUMER_DEFINED => self.cm.reject,
            reject_reason::VENDOR_OPTION_NOT_SUPPORTED => {
                self.cm.reject_ece.ok_or_else(|| explain::unsupported("rdma_reject_ece"))?
            }
            other => {
                return Err(VerbsError::invalid(format!(
                    "reject reason {other}: a consumer may give 28 (consumer defined) and 35 (vendor option not supported)"
                )));
            }
        };
        // SAFETY: a living identifier, and bytes that are read only.
        done(unsafe { call(id.pointer(), private_data.as_ptr().cast(), length) }, "reject")
    }

    fn disconnect(&self) -> Result<(), VerbsError> {
        let id = self.enter_bound("disconnect")?;
        // SAFETY: a living identifier.
        done(unsafe { (self.cm.disconnect)(id.pointer()) }, "disconnect")
    }

    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        let init = self.cm.init_qp_attr.ok_or_else(|| explain::unsupported("rdma_init_qp_attr"))?;
        let id = self.enter_bound("say what brings a QP up")?;
        // SAFETY: all members are numbers.
        let mut attr: abi::QpAttr = unsafe { core::mem::zeroed() };
        attr.qp_state = state as u32;
        let mut mask = 0;
        // SAFETY: a living identifier, and structures of ours to fill.
        done(unsafe { init(id.pointer(), &mut attr, &mut mask) }, &format!("say what brings a QP to {state}"))?;
        let mut attr = translate::qp_attr_from_c(&attr);
        attr.qp_state = state;
        Ok((attr, QpAttrMask::from_bits_truncate(mask as u32) | QpAttrMask::STATE))
    }

    fn query_addr(&self) -> CmAddresses {
        let Ok(id) = self.enter() else { return CmAddresses::default() };
        // SAFETY: a living identifier; its route is changed by calls on it and by taking events.
        let (addr, device) = unsafe { ((*id.pointer()).route.addr, self.device(id.pointer())) };
        CmAddresses {
            local: address::from_c(&addr.src_storage),
            peer: address::from_c(&addr.dst_storage),
            device,
            gids: (Gid(addr.ibaddr.sgid.0), Gid(addr.ibaddr.dgid.0)),
        }
    }

    fn query_route(&self) -> Vec<PathRecord> {
        let Ok(id) = self.enter() else { return Vec::new() };
        // SAFETY: a living identifier with so many path records.
        unsafe {
            let route = &(*id.pointer()).route;
            let count = usize::try_from(route.num_paths).unwrap_or(0);
            if route.path_rec.is_null() {
                return Vec::new();
            }
            core::slice::from_raw_parts(route.path_rec, count).iter().map(address::path).collect()
        }
    }

    fn set_option(&self, option: CmOption) -> Result<(), VerbsError> {
        match option {
            CmOption::Tos(tos) => self.option::<u8>(0, 0, tos),
            CmOption::ReuseAddr(yes) => self.option::<c_int>(0, 1, yes.into()),
            CmOption::AfOnly(yes) => self.option::<c_int>(0, 2, yes.into()),
            CmOption::AckTimeout(timeout) => self.option::<u8>(0, 3, timeout),
            CmOption::IbPath(path) => self.option::<[u8; 72]>(1, 1, address::path_data(&path)),
        }
    }

    fn notify(&self, event: EventType) -> Result<(), VerbsError> {
        let id = self.enter()?;
        // SAFETY: a living identifier.
        done(unsafe { (self.cm.notify)(id.pointer(), event.to_raw()) }, "tell of an event")
    }

    fn join_multicast(&self, address: CmAddr, flags: JoinFlags, uid: u64) -> Result<u32, VerbsError> {
        let join = self.cm.join_multicast_ex.ok_or_else(|| explain::unsupported("rdma_join_multicast_ex"))?;
        let id = self.enter_bound("join a group")?;
        let number = next_number();
        let group = address::to_c(&address);
        let mut attr = abi::CmJoinMcAttrEx {
            // Address and flags.
            comp_mask: 3,
            join_flags: match flags {
                JoinFlags::FullMember => 0,
                JoinFlags::SendOnlyFullMember => 1,
            },
            addr: pointer(&group),
        };
        self.joins().insert(number, Join { uid, address, reported: 0 });
        // SAFETY: a living identifier; the context is a number.
        let code = unsafe { join(id.pointer(), &mut attr, number as usize as *mut c_void) };
        if code != 0 {
            let error = failed(&format!("join {address:?}"));
            self.joins().remove(&number);
            return Err(error);
        }
        Ok(number)
    }

    fn set_local_ece(&self, ece: Ece) -> Result<(), VerbsError> {
        let id = self.enter()?;
        self.say_local_ece(id.pointer(), ece)
    }

    fn remote_ece(&self) -> Ece {
        let mut raw = abi::Ece::default();
        let (Some(get), Ok(id)) = (self.cm.get_remote_ece, self.enter()) else { return Ece::default() };
        // SAFETY: a living identifier, and a structure of ours to fill.
        match unsafe { get(id.pointer(), &mut raw) } {
            0 => Ece { vendor_id: raw.vendor_id, attr_mod: raw.options },
            _ => Ece::default(),
        }
    }

    fn migrate(&self, to: &Arc<dyn CmChannel>) -> Result<u32, VerbsError> {
        let new = IbvCmChannel::of(to.as_any())?;
        let id = self.enter()?;
        {
            let target = new.enter()?;
            // SAFETY: a living identifier and a living channel.
            done(unsafe { (self.cm.migrate_id)(id.pointer(), target.pointer()) }, "move to another channel")?;
        }
        *self.channel() = new;
        Ok(self.reported.load(Ordering::Relaxed))
    }

    fn destroy(&self) -> Result<u32, VerbsError> {
        // SAFETY: a living identifier, ended once. Every event of it was acknowledged when it was taken.
        match self.handle.end(|id| unsafe { (self.cm.destroy_id)(id) }) {
            Ok(true) => {
                remove(self.number);
                Ok(self.reported.load(Ordering::Relaxed))
            }
            Ok(false) => Err(stale("identifier")),
            Err(_) => Err(failed("destroy the identifier")),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
