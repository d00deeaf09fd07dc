//! Shared receive queues, also for XRC.

use core::ffi::c_void;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use scalefabric_verbs::{Errno, PostError, RecvWr, SharedReceiveQueue, SrqInit, Srqn, VerbsError};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside, Parent, Parents, Use, destroy};
use crate::library::last_errno;
use crate::objects::completion_queue::{CompletionQueueObject, SharedCq};
use crate::objects::device::{Device, operation};
use crate::objects::protection_domain::{PdObject, Shared as Pd};
use crate::objects::work_request::post_receives;
use crate::objects::xrc_domain::{Shared as Xrcd, XrcdObject};
use crate::objects::{ours, owned, returned};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqObject {
    pub(crate) device: Arc<Device>,
    pub(crate) shared: Arc<Shared>,
}

/// What an SRQ hangs on: its PD, and for XRC its domain and its CQ.
type SrqParents = (Use<Pd>, Option<(Use<Xrcd>, Use<SharedCq>)>);

/// The queue itself: its QPs keep it.
#[derive(Debug)]
pub(crate) struct Shared {
    device: Arc<Device>,
    handle: Handle<abi::Srq>,
    srq_num: u32,
    max_sge: u32,
    parents: Parents<SrqParents>,
    uses: AtomicUsize,
}

owned!(SrqObject);

impl Parent for Shared {
    fn uses(&self) -> &AtomicUsize {
        &self.uses
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: no QP uses it any more.
        let _ = self.handle.end(|srq| unsafe { (self.device.verbs.destroy_srq)(srq) });
    }
}

impl Shared {
    pub(crate) fn enter(&self) -> Result<Inside<'_, abi::Srq>, VerbsError> {
        self.handle.enter_or("shared receive queue")
    }
}

/// Numbers for SRQs of drivers that give them none: only events need one, to tell them apart.
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(1);

impl SrqObject {
    pub(crate) fn create(pd: &PdObject, init: &SrqInit) -> Result<Arc<Self>, VerbsError> {
        let (device, verbs) = (&pd.device, pd.device.verbs);
        let parent = pd.used();
        let (inside, context) = (pd.shared.enter()?, device.context());
        let attr = abi::SrqAttr { max_wr: init.max_wr, max_sge: init.max_sge, srq_limit: 0 };
        let (srq, got, xrc) = match &init.xrc {
            None => {
                let mut attr = abi::SrqInitAttr { srq_context: core::ptr::null_mut(), attr };
                // SAFETY: a living PD.
                let srq = unsafe { (verbs.create_srq)(inside.pointer(), &mut attr) };
                (srq, attr.attr, None)
            }
            Some((xrcd, cq)) => {
                let xrcd = ours::<XrcdObject>(device, xrcd.as_any(), "XRC domain")?;
                let cq = ours::<CompletionQueueObject>(device, cq.as_any(), "completion queue")?;
                let uses = (xrcd.used(), cq.used());
                let create = operation!(context.pointer(), create_srq_ex)
                    .ok_or_else(|| explain::unsupported("shared receive queues for XRC"))?;
                let (xrcd, cq) = (xrcd.shared.enter()?, cq.shared.enter()?);
                let mut attr = abi::SrqInitAttrEx {
                    srq_context: core::ptr::null_mut(),
                    attr,
                    // Type, PD, XRC domain, CQ.
                    comp_mask: 0xf,
                    srq_type: 1,
                    pd: inside.pointer(),
                    xrcd: xrcd.pointer(),
                    cq: cq.pointer(),
                    max_num_tags: 0,
                    max_ops: 0,
                };
                // SAFETY: a living PD, domain and CQ.
                let srq = unsafe { create(context.pointer(), &mut attr) };
                (srq, attr.attr, Some(uses))
            }
        };
        if srq.is_null() {
            let raw = last_errno();
            return Err(explain::create_srq(init.max_wr, init.max_sge, device.attr_or_none().as_ref(), raw));
        }
        let mut number = 0;
        let known = match operation!(context.pointer(), get_srq_num) {
            // SAFETY: the SRQ that was just made.
            Some(get) => unsafe { get(srq, &mut number) == 0 },
            None => false,
        };
        if !known {
            number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        }
        // SAFETY: just made; events name it by this.
        unsafe { (*srq).srq_context = number as usize as *mut c_void };
        drop(inside);
        let shared = Arc::new(Shared {
            device: device.clone(),
            handle: Handle::new(srq),
            srq_num: number,
            max_sge: got.max_sge,
            parents: Parents::new((parent, xrc)),
            uses: AtomicUsize::new(0),
        });
        Ok(Arc::new(Self { device: device.clone(), shared }))
    }

    pub(crate) fn used(&self) -> Use<Shared> {
        Use::of(&self.shared)
    }
}

impl SharedReceiveQueue for SrqObject {
    fn srq_num(&self) -> Srqn {
        Srqn::new(self.shared.srq_num)
    }

    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
        let srq = self.shared.handle.enter_to_post("the shared receive queue was destroyed")?;
        let Some(post) = self.device.fast.post_srq_recv else {
            let reason = "this device has no shared receive queues";
            return Err(PostError { index: 0, errno: Errno::EOPNOTSUPP, reason });
        };
        // SAFETY: a living SRQ; the chain lives until the call returns.
        let posted = post_receives(chain, |first, bad| unsafe { post(srq.pointer(), first, bad) });
        posted.map_err(|(index, raw)| {
            let too_long = chain.get(index).is_some_and(|wr| wr.sg_list.len() > self.shared.max_sge as usize);
            let (errno, reason) = match raw {
                _ if too_long => (Errno::EINVAL, "more SGEs than the queue was made for (max_sge)"),
                libc::ENOMEM | libc::ENOSPC => (Errno::ENOMEM, "the shared receive queue is full"),
                raw => (Errno::from_raw(raw).unwrap_or(Errno::EINVAL), "the driver refuses the receive"),
            };
            PostError { index, errno, reason }
        })
    }

    fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<(), VerbsError> {
        let srq = self.shared.enter()?;
        let mut attr = abi::SrqAttr { max_wr: max_wr.unwrap_or(0), max_sge: 0, srq_limit: srq_limit.unwrap_or(0) };
        let mask = i32::from(max_wr.is_some()) | if srq_limit.is_some() { 2 } else { 0 };
        // SAFETY: a living SRQ.
        let code = unsafe { (self.device.verbs.modify_srq)(srq.pointer(), &mut attr, mask) };
        if code == 0 {
            return Ok(());
        }
        let raw = returned(code);
        let (has, _, _) = self.query().unwrap_or((u32::MAX, 0, 0));
        let most = self.device.attr_or_none().map_or(u32::MAX, |attr| attr.max_srq_wr);
        Err(match (max_wr, srq_limit) {
            (Some(wr), _) if wr > most => {
                VerbsError::invalid(format!("max_wr is {wr}; the device allows {most} (`max_srq_wr`)"))
            }
            (_, Some(limit)) if limit > max_wr.unwrap_or(has) => VerbsError::invalid(format!(
                "srq_limit is {limit}, but the queue has room for {}: the limit lies below that",
                max_wr.unwrap_or(has)
            )),
            (Some(wr), _) if raw == libc::EINVAL => {
                VerbsError::invalid(format!("max_wr {wr}: the queue holds more now, or this device cannot resize it"))
            }
            _ => explain::failed("modify the shared receive queue", raw),
        })
    }

    fn query(&self) -> Result<(u32, u32, u32), VerbsError> {
        let srq = self.shared.enter()?;
        let mut attr = abi::SrqAttr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: a living SRQ.
        match unsafe { (self.device.verbs.query_srq)(srq.pointer(), &mut attr) } {
            0 => Ok((attr.max_wr, attr.max_sge, attr.srq_limit)),
            code => Err(explain::failed("query the shared receive queue", returned(code))),
        }
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        let shared = &self.shared;
        destroy(&shared.handle, &shared.parents, Some(&shared.uses), "shared receive queue", |srq| {
            // SAFETY: a living SRQ that no QP uses.
            returned(unsafe { (self.device.verbs.destroy_srq)(srq) })
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
