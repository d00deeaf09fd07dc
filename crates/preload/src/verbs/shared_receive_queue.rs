//! Shared receive queues and the XRC domains that tie them to targets.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use scalefabric_ibv::abi;
use scalefabric_verbs::{SharedReceiveQueue, SrqInit, VerbsError, XrcDomain, XrcdInit};

use super::answer::{Outcome, pointer, status, unsupported};
use super::behind::behind;
use super::completion::CqPart;
use super::context;
use super::memory::pd_of;
use super::object::{Object, Part, beside, events, is_ours, next_handle, of};

/// A shared receive queue.
pub struct SrqPart {
    /// The contract's.
    pub srq: Arc<dyn SharedReceiveQueue>,
    /// Asynchronous events given out.
    pub events_given: AtomicU32,
    xrc: bool,
}

impl Part for SrqPart {
    type C = abi::Srq;
    const MARK: u64 = u64::from_be_bytes(*b"sfShRecv");
    const NAME: &'static str = "shared receive queue";
}

/// An XRC domain.
pub struct XrcdPart {
    /// The contract's.
    pub xrcd: Arc<dyn XrcDomain>,
}

impl Part for XrcdPart {
    type C = abi::Xrcd;
    const MARK: u64 = u64::from_be_bytes(*b"sfXrcDom");
    const NAME: &'static str = "XRC domain";
}

fn make(
    context: *mut abi::Context,
    pd: *mut abi::Pd,
    srq_context: *mut c_void,
    srq: Arc<dyn SharedReceiveQueue>,
    xrc: bool,
) -> Outcome<*mut abi::Srq> {
    // SAFETY: the context is that of a live object, or the operation's own.
    let open = unsafe { context::open(context)? };
    let number = srq.srq_num().get();
    // SAFETY: all members may be zero; mutex and condition are initialised below.
    let mut c: abi::Srq = unsafe { std::mem::zeroed() };
    c.context = context;
    c.srq_context = srq_context;
    c.pd = pd;
    c.handle = next_handle();
    let made = Object::make(c, SrqPart { srq, events_given: AtomicU32::new(0), xrc });
    // SAFETY: just made.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*made).mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*made).cond, std::ptr::null());
    }
    open.objects().srqs.insert(number, made);
    Ok(made)
}

/// The sizes that an SRQ really has.
fn had(srq: &dyn SharedReceiveQueue) -> Outcome<abi::SrqAttr> {
    let (max_wr, max_sge, srq_limit) = srq.query()?;
    Ok(abi::SrqAttr { max_wr, max_sge, srq_limit })
}

/// `ibv_create_srq`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut abi::Pd, attr: *mut abi::SrqInitAttr) -> *mut abi::Srq {
    type Create = unsafe extern "C" fn(*mut abi::Pd, *mut abi::SrqInitAttr) -> *mut abi::Srq;
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        return behind!(ibv_create_srq as Create, (pd, attr), else std::ptr::null_mut());
    }
    pointer("ibv_create_srq", || {
        // SAFETY: the program's structures, or null; a live domain has a context.
        let (attr, domain) = unsafe { (attr.as_mut(), pd_of(pd)?) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_srq_init_attr is null"))?;
        let abi::SrqAttr { max_wr, max_sge, srq_limit } = attr.attr;
        let srq = domain.create_srq(&SrqInit { max_wr, max_sge, srq_limit, xrc: None })?;
        attr.attr = had(&*srq)?;
        // SAFETY: as above.
        make(unsafe { (*pd).context }, pd, attr.srq_context, srq, false)
    })
}

/// The operation `create_srq_ex`: basic and XRC; tag matching is mlx5's.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn create_srq_ex(context: *mut abi::Context, attr: *mut abi::SrqInitAttrEx) -> *mut abi::Srq {
    const TYPE: u32 = 1;
    const PD: u32 = 1 << 1;
    const XRCD: u32 = 1 << 2;
    const CQ: u32 = 1 << 3;
    const TM: u32 = 1 << 4;
    const BASIC_TYPE: u32 = 0;
    const XRC_TYPE: u32 = 1;
    pointer("ibv_create_srq_ex", || {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or_else(|| VerbsError::invalid("ibv_srq_init_attr_ex is null"))?;
        if attr.comp_mask & !(TYPE | PD | XRCD | CQ | TM) != 0 {
            return Err(VerbsError::invalid(format!("comp_mask {:#x} has unknown bits", attr.comp_mask)));
        }
        let srq_type = if attr.comp_mask & TYPE != 0 { attr.srq_type } else { BASIC_TYPE };
        if srq_type > XRC_TYPE || attr.comp_mask & TM != 0 {
            return Err(unsupported(format!("SRQ type {srq_type}: only basic (0) and XRC (1) exist here")));
        }
        if attr.comp_mask & PD == 0 {
            return Err(VerbsError::invalid("an SRQ wants a protection domain (comp_mask PD)"));
        }
        // SAFETY: what the program passes.
        let domain = unsafe { pd_of(attr.pd)? };
        let xrc = if srq_type == XRC_TYPE {
            if attr.comp_mask & (XRCD | CQ) != XRCD | CQ {
                return Err(VerbsError::invalid("an XRC SRQ wants an XRC domain and a CQ (comp_mask XRCD and CQ)"));
            }
            // SAFETY: what the program passes.
            let (xrcd, cq) = unsafe { (beside::<XrcdPart>(attr.xrcd)?, beside::<CqPart>(attr.cq.cast())?) };
            Some((xrcd.part.xrcd.clone(), cq.part.cq.clone()))
        } else {
            None
        };
        let abi::SrqAttr { max_wr, max_sge, srq_limit } = attr.attr;
        let is_xrc = xrc.is_some();
        let srq = domain.create_srq(&SrqInit { max_wr, max_sge, srq_limit, xrc })?;
        attr.attr = had(&*srq)?;
        make(context, attr.pd, attr.srq_context, srq, is_xrc)
    })
}

/// `ibv_modify_srq`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut abi::Srq, attr: *mut abi::SrqAttr, attr_mask: c_int) -> c_int {
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 2;
    type Modify = unsafe extern "C" fn(*mut abi::Srq, *mut abi::SrqAttr, c_int) -> c_int;
    // SAFETY: an SRQ, or null.
    if !srq.is_null() && !unsafe { is_ours(srq) } {
        return behind!(ibv_modify_srq as Modify, (srq, attr, attr_mask), else libc::EINVAL);
    }
    status("ibv_modify_srq", || {
        // SAFETY: it is ours, or null; the program's structure, or null.
        let (object, attr) = unsafe { (of::<SrqPart>(srq)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_srq_attr is null"))?;
        if attr_mask & !(MAX_WR | LIMIT) != 0 {
            return Err(VerbsError::invalid(format!("srq_attr_mask {attr_mask:#x}: MAX_WR 1 and LIMIT 2 are known")));
        }
        let max_wr = (attr_mask & MAX_WR != 0).then_some(attr.max_wr);
        let srq_limit = (attr_mask & LIMIT != 0).then_some(attr.srq_limit);
        object.part.srq.modify(max_wr, srq_limit)
    })
}

/// `ibv_query_srq`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut abi::Srq, attr: *mut abi::SrqAttr) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Srq, *mut abi::SrqAttr) -> c_int;
    // SAFETY: an SRQ, or null.
    if !srq.is_null() && !unsafe { is_ours(srq) } {
        return behind!(ibv_query_srq as Query, (srq, attr), else libc::EINVAL);
    }
    status("ibv_query_srq", || {
        // SAFETY: it is ours, or null; the program's structure, or null.
        unsafe {
            let object = of::<SrqPart>(srq)?;
            *attr.as_mut().ok_or_else(|| VerbsError::invalid("ibv_srq_attr is null"))? = had(&*object.part.srq)?;
        }
        Ok(())
    })
}

/// `ibv_destroy_srq`: waits until all its events are acknowledged.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut abi::Srq) -> c_int {
    // SAFETY: an SRQ, or null.
    if !srq.is_null() && !unsafe { is_ours(srq) } {
        return behind!(ibv_destroy_srq as unsafe extern "C" fn(*mut abi::Srq) -> c_int, (srq), else libc::EINVAL);
    }
    status("ibv_destroy_srq", || {
        // SAFETY: it is ours, or null; the program gives it back.
        unsafe {
            let object = of::<SrqPart>(srq)?;
            object.part.srq.destroy()?;
            let number = object.part.srq.srq_num().get();
            if let Ok(open) = context::open((*srq).context) {
                let mut objects = open.objects();
                if objects.srqs.get(&number) == Some(&srq) {
                    objects.srqs.remove(&number);
                }
            }
            let c = object.c();
            events::wait(
                &raw mut (*c).mutex,
                &raw mut (*c).cond,
                &raw mut (*c).events_completed,
                &object.part.events_given,
            );
            Object::<SrqPart>::bury(srq);
        }
        Ok(())
    })
}

/// The operation `get_srq_num`, which only XRC SRQs have.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn get_srq_num(srq: *mut abi::Srq, number: *mut u32) -> c_int {
    status("ibv_get_srq_num", || {
        // SAFETY: it is ours, since the operation is; the program's word, or null.
        let (object, number) = unsafe { (of::<SrqPart>(srq)?, number.as_mut()) };
        if !object.part.xrc {
            return Err(unsupported("only XRC SRQs have a number"));
        }
        *number.ok_or_else(|| VerbsError::invalid("srq_num is null"))? = object.part.srq.srq_num().get();
        Ok(())
    })
}

/// The operation `open_xrcd`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn open_xrcd(context: *mut abi::Context, attr: *mut abi::XrcdInitAttr) -> *mut abi::Xrcd {
    const FD: u32 = 1;
    const OFLAGS: u32 = 1 << 1;
    pointer("ibv_open_xrcd", || {
        // SAFETY: the context is ours, since the operation is; the program's structure, or null.
        let (open, attr) = unsafe { (context::open(context)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_xrcd_init_attr is null"))?;
        if attr.comp_mask != FD | OFLAGS {
            return Err(VerbsError::invalid(format!(
                "comp_mask {:#x}: FD and OFLAGS must be given, and nothing else",
                attr.comp_mask
            )));
        }
        if attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(VerbsError::invalid(format!("oflags {:#o}: only O_CREAT and O_EXCL are known", attr.oflags)));
        }
        let create = attr.oflags & libc::O_CREAT != 0;
        if attr.fd == -1 && !create {
            return Err(VerbsError::invalid("an XRC domain without a file must be made: oflags wants O_CREAT"));
        }
        let init =
            XrcdInit { fd: (attr.fd != -1).then_some(attr.fd), create, exclusive: attr.oflags & libc::O_EXCL != 0 };
        let xrcd = open.verbs()?.open_xrcd_with(&init)?;
        Ok(Object::make(abi::Xrcd { context }, XrcdPart { xrcd }))
    })
}

/// The operation `close_xrcd`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut abi::Xrcd) -> c_int {
    status("ibv_close_xrcd", || {
        // SAFETY: it is ours, since the operation is.
        unsafe {
            of::<XrcdPart>(xrcd)?.part.xrcd.destroy()?;
            Object::<XrcdPart>::bury(xrcd);
        }
        Ok(())
    })
}
