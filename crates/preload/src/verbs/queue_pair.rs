//! Queue pairs: making, changing, asking, ending.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use scalefabric_ibv::{abi, translate};
use scalefabric_verbs::{
    CompletionQueue, Gid, OpKind, QpAttrMask, QpInit, QpType, Qpn, QueuePair, RateLimit, SharedReceiveQueue, VerbsError,
};

use super::answer::{Outcome, pointer, set_errno, status, unsupported};
use super::attribute;
use super::behind::behind;
use super::completion::CqPart;
use super::context;
use super::memory::pd_of;
use super::object::{Object, Part, beside, events, is_ours, next_handle, of};
use super::shared_receive_queue::{SrqPart, XrcdPart};
use super::work_request::{self, Builder};

/// A queue pair.
pub struct QpPart {
    /// The contract's.
    pub qp: Arc<dyn QueuePair>,
    /// Its type.
    pub qp_type: QpType,
    /// Inline bytes that a request can have.
    pub max_inline: u32,
    /// What the new post functions gather, if it was made for them.
    pub builder: Option<Builder>,
    /// Asynchronous events given out.
    pub events_given: AtomicU32,
    /// As it was made.
    sq_sig_all: bool,
}

impl Part for QpPart {
    type C = abi::QpEx;
    const MARK: u64 = u64::from_be_bytes(*b"sfQuePar");
    const NAME: &'static str = "queue pair";
}

const HAS_PD: u32 = 1;
const HAS_XRCD: u32 = 1 << 1;
const HAS_CREATE_FLAGS: u32 = 1 << 2;
const HAS_MAX_TSO_HEADER: u32 = 1 << 3;
const HAS_SEND_OPS_FLAGS: u32 = 1 << 6;

/// `ibv_create_qp`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut abi::Pd, attr: *mut abi::QpInitAttr) -> *mut abi::Qp {
    type Create = unsafe extern "C" fn(*mut abi::Pd, *mut abi::QpInitAttr) -> *mut abi::Qp;
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        return behind!(ibv_create_qp as Create, (pd, attr), else std::ptr::null_mut());
    }
    pointer("ibv_create_qp", || {
        // SAFETY: the program's structures, or null.
        unsafe {
            let attr = attr.as_mut().ok_or_else(|| VerbsError::invalid("ibv_qp_init_attr is null"))?;
            pd_of(pd)?;
            let asked = Asked {
                context: (*pd).context,
                pd,
                xrcd: std::ptr::null_mut(),
                qp_context: attr.qp_context,
                send_cq: attr.send_cq,
                recv_cq: attr.recv_cq,
                srq: attr.srq,
                cap: attr.cap,
                qp_type: attr.qp_type,
                sq_sig_all: attr.sq_sig_all != 0,
                send_ops: None,
            };
            let qp = create(&asked)?;
            attr.cap = had(qp)?;
            Ok(qp)
        }
    })
}

/// What either way of making a QP asks for.
struct Asked {
    context: *mut abi::Context,
    pd: *mut abi::Pd,
    xrcd: *mut abi::Xrcd,
    qp_context: *mut c_void,
    send_cq: *mut abi::Cq,
    recv_cq: *mut abi::Cq,
    srq: *mut abi::Srq,
    cap: abi::QpCap,
    qp_type: u32,
    sq_sig_all: bool,
    send_ops: Option<u64>,
}

/// The CQ that a call names.
unsafe fn cq_of(name: &str, cq: *mut abi::Cq) -> Outcome<Arc<dyn CompletionQueue>> {
    if cq.is_null() {
        return Err(VerbsError::invalid(format!("{name} is null: a QP of this type needs one")));
    }
    // SAFETY: what the program passes.
    Ok(unsafe { beside::<CqPart>(cq.cast())? }.part.cq.clone())
}

unsafe fn create(asked: &Asked) -> Outcome<*mut abi::Qp> {
    // SAFETY: the context is that of a live object, or the operation's own.
    let open = unsafe { context::open(asked.context)? };
    let Some(qp_type) = QpType::from_raw(asked.qp_type) else {
        return Err(match asked.qp_type {
            8 | 255 => unsupported(format!("QP type {}: raw packet and driver QPs do not exist here", asked.qp_type)),
            other => VerbsError::invalid(format!("QP type {other} does not exist")),
        });
    };
    if let Some(flags) = asked.send_ops {
        work_request::check(qp_type, flags)?;
    }
    let qp: Arc<dyn QueuePair> = if qp_type == QpType::XrcRecv {
        // SAFETY: what the program passes.
        let xrcd = unsafe { beside::<XrcdPart>(asked.xrcd)? };
        open.verbs()?.create_xrc_target(&xrcd.part.xrcd)?
    } else {
        // SAFETY: what the program passes.
        let (pd, send_cq, srq) = unsafe {
            let srq: Option<Arc<dyn SharedReceiveQueue>> = match asked.srq.is_null() {
                true => None,
                false => Some(beside::<SrqPart>(asked.srq)?.part.srq.clone()),
            };
            (pd_of(asked.pd)?, cq_of("send_cq", asked.send_cq)?, srq)
        };
        let recv_cq = match qp_type.has_recv_queue() {
            // SAFETY: what the program passes.
            true => unsafe { cq_of("recv_cq", asked.recv_cq)? },
            false => send_cq.clone(),
        };
        let cap = translate::cap_from_c(&asked.cap);
        pd.create_qp(&QpInit { qp_type, send_cq, recv_cq, srq, cap, sq_sig_all: asked.sq_sig_all })?
    };
    let number = qp.qp_num().get();
    // SAFETY: all members may be zero; mutex and condition are initialised below.
    let mut c: abi::QpEx = unsafe { std::mem::zeroed() };
    c.base.context = asked.context;
    c.base.qp_context = asked.qp_context;
    c.base.pd = asked.pd;
    c.base.send_cq = asked.send_cq;
    c.base.recv_cq = asked.recv_cq;
    c.base.srq = asked.srq;
    c.base.handle = next_handle();
    c.base.qp_num = number;
    c.base.qp_type = asked.qp_type;
    if asked.send_ops.is_some() {
        work_request::extend(&mut c);
    }
    let builder = asked.send_ops.map(|_| Builder::default());
    let max_inline = qp.query()?.1.cap.max_inline_data;
    let events_given = AtomicU32::new(0);
    let part = QpPart { qp, qp_type, max_inline, builder, events_given, sq_sig_all: asked.sq_sig_all };
    let made = Object::make(c, part);
    // SAFETY: just made.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*made).base.mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*made).base.cond, std::ptr::null());
    }
    open.objects().qps.insert(number, made.cast());
    Ok(made.cast())
}

/// The sizes that a QP really has.
unsafe fn had(qp: *mut abi::Qp) -> Outcome<abi::QpCap> {
    // SAFETY: just made.
    let object = unsafe { of::<QpPart>(qp.cast())? };
    Ok(translate::cap_to_c(&object.part.qp.query()?.1.cap))
}

/// The operation `create_qp_ex`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn create_qp_ex(context: *mut abi::Context, attr: *mut abi::QpInitAttrEx) -> *mut abi::Qp {
    const KNOWN: u32 = HAS_PD | HAS_XRCD | HAS_CREATE_FLAGS | HAS_MAX_TSO_HEADER | HAS_SEND_OPS_FLAGS;
    pointer("ibv_create_qp_ex", || {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or_else(|| VerbsError::invalid("ibv_qp_init_attr_ex is null"))?;
        let has = |bit| attr.comp_mask & bit != 0;
        if attr.comp_mask & !KNOWN != 0 {
            return Err(unsupported(format!(
                "comp_mask {:#x}: indirection tables, RX hashing and newer things do not exist here",
                attr.comp_mask
            )));
        }
        if has(HAS_CREATE_FLAGS) && attr.create_flags != 0 {
            return Err(unsupported(format!("create_flags {:#x}: none exist here", attr.create_flags)));
        }
        if has(HAS_MAX_TSO_HEADER) && attr.max_tso_header != 0 {
            return Err(unsupported("max_tso_header: there is no segmentation of raw packets here"));
        }
        let target = attr.qp_type == QpType::XrcRecv as u32;
        if target != has(HAS_XRCD) || !(target || has(HAS_PD)) {
            return Err(VerbsError::invalid(
                "a QP wants a protection domain (comp_mask PD), an XRC target an XRC domain instead (XRCD)",
            ));
        }
        let asked = Asked {
            context,
            pd: if has(HAS_PD) { attr.pd } else { std::ptr::null_mut() },
            xrcd: if target { attr.xrcd } else { std::ptr::null_mut() },
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all != 0,
            send_ops: has(HAS_SEND_OPS_FLAGS).then_some(attr.send_ops_flags),
        };
        // SAFETY: what the program passes.
        unsafe {
            let qp = create(&asked)?;
            attr.cap = had(qp)?;
            Ok(qp)
        }
    })
}

/// The operation `open_qp`: another handle of an XRC target.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn open_qp(context: *mut abi::Context, attr: *mut abi::QpOpenAttr) -> *mut abi::Qp {
    const NUM: u32 = 1;
    const XRCD: u32 = 1 << 1;
    const CONTEXT: u32 = 1 << 2;
    const TYPE: u32 = 1 << 3;
    pointer("ibv_open_qp", || {
        // SAFETY: the context is ours, since the operation is; the program's structure, or null.
        let (open, attr) = unsafe { (context::open(context)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_qp_open_attr is null"))?;
        if attr.comp_mask & !(NUM | XRCD | CONTEXT | TYPE) != 0 || attr.comp_mask & (NUM | XRCD) != NUM | XRCD {
            return Err(VerbsError::invalid(format!(
                "comp_mask {:#x}: NUM and XRCD must be given, CONTEXT and TYPE may be",
                attr.comp_mask
            )));
        }
        if attr.comp_mask & TYPE != 0 && attr.qp_type != QpType::XrcRecv as u32 {
            return Err(VerbsError::invalid(format!(
                "only XRC_RECV QPs (10) can be opened, not type {}",
                attr.qp_type
            )));
        }
        // SAFETY: what the program passes.
        let xrcd = unsafe { beside::<XrcdPart>(attr.xrcd)? };
        let qp = open.verbs()?.open_qp(&xrcd.part.xrcd, Qpn::new(attr.qp_num))?;
        // SAFETY: all members may be zero; mutex and condition are initialised below.
        let mut c: abi::QpEx = unsafe { std::mem::zeroed() };
        c.base.context = context;
        c.base.qp_context = if attr.comp_mask & CONTEXT != 0 { attr.qp_context } else { std::ptr::null_mut() };
        c.base.handle = next_handle();
        c.base.qp_num = attr.qp_num;
        c.base.qp_type = QpType::XrcRecv as u32;
        let part = QpPart {
            qp,
            qp_type: QpType::XrcRecv,
            max_inline: 0,
            builder: None,
            events_given: AtomicU32::new(0),
            sq_sig_all: false,
        };
        let made = Object::make(c, part);
        // SAFETY: just made.
        unsafe {
            libc::pthread_mutex_init(&raw mut (*made).base.mutex, std::ptr::null());
            libc::pthread_cond_init(&raw mut (*made).base.cond, std::ptr::null());
        }
        open.objects().qps.entry(attr.qp_num).or_insert(made.cast());
        Ok(made.cast())
    })
}

/// Attributes of the other end of an XRC connection: programs give both ends the same mask, and Linux's uverbs drops these.
fn meaningless(qp_type: QpType) -> QpAttrMask {
    match qp_type {
        QpType::XrcSend => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY,
        _ => QpAttrMask::empty(),
    }
}

/// `ibv_modify_qp`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut abi::Qp, attr: *mut abi::QpAttr, attr_mask: c_int) -> c_int {
    type Modify = unsafe extern "C" fn(*mut abi::Qp, *mut abi::QpAttr, c_int) -> c_int;
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        return behind!(ibv_modify_qp as Modify, (qp, attr, attr_mask), else libc::EINVAL);
    }
    status("ibv_modify_qp", || {
        // SAFETY: it is ours, or null; the program's structure, or null.
        unsafe {
            let object = of::<QpPart>(qp.cast())?;
            let mask = attribute::mask(attr_mask)? - meaningless(object.part.qp_type);
            let attr = attr.as_ref().ok_or_else(|| VerbsError::invalid("ibv_qp_attr is null"))?;
            object.part.qp.modify(&attribute::qp_attr(attr, mask)?, mask)?;
            if mask.contains(QpAttrMask::STATE) {
                (*object.c()).base.state = attr.qp_state;
            }
        }
        Ok(())
    })
}

/// `ibv_query_qp`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut abi::Qp,
    attr: *mut abi::QpAttr,
    attr_mask: c_int,
    init_attr: *mut abi::QpInitAttr,
) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Qp, *mut abi::QpAttr, c_int, *mut abi::QpInitAttr) -> c_int;
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        return behind!(ibv_query_qp as Query, (qp, attr, attr_mask, init_attr), else libc::EINVAL);
    }
    status("ibv_query_qp", || {
        // SAFETY: it is ours, or null; the program's structures, or null.
        unsafe {
            let object = of::<QpPart>(qp.cast())?;
            if attr.is_null() || init_attr.is_null() {
                return Err(VerbsError::invalid("ibv_qp_attr or ibv_qp_init_attr is null"));
            }
            let (now, init) = object.part.qp.query()?;
            attribute::tell_qp_attr(&now, attr);
            let c = &(*object.c()).base;
            (*attr).cap = translate::cap_to_c(&init.cap);
            *init_attr = abi::QpInitAttr {
                qp_context: c.qp_context,
                send_cq: c.send_cq,
                recv_cq: c.recv_cq,
                srq: c.srq,
                cap: translate::cap_to_c(&init.cap),
                qp_type: c.qp_type,
                sq_sig_all: c_int::from(object.part.sq_sig_all),
            };
            (*object.c()).base.state = now.qp_state as u32;
        }
        Ok(())
    })
}

/// `ibv_destroy_qp`: waits until all its events are acknowledged.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut abi::Qp) -> c_int {
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        return behind!(ibv_destroy_qp as unsafe extern "C" fn(*mut abi::Qp) -> c_int, (qp), else libc::EINVAL);
    }
    status("ibv_destroy_qp", || {
        // SAFETY: it is ours, or null; the program gives it back.
        unsafe {
            let object = of::<QpPart>(qp.cast())?;
            object.part.qp.destroy()?;
            if let Ok(open) = context::open((*qp).context) {
                let mut objects = open.objects();
                if objects.qps.get(&(*qp).qp_num) == Some(&qp) {
                    objects.qps.remove(&(*qp).qp_num);
                }
            }
            let c = object.c();
            events::wait(
                &raw mut (*c).base.mutex,
                &raw mut (*c).base.cond,
                &raw mut (*c).base.events_completed,
                &object.part.events_given,
            );
            Object::<QpPart>::bury(qp.cast());
        }
        Ok(())
    })
}

/// `ibv_qp_to_qp_ex`: null unless the QP was made with SEND_OPS_FLAGS.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut abi::Qp) -> *mut abi::QpEx {
    type Cast = unsafe extern "C" fn(*mut abi::Qp) -> *mut abi::QpEx;
    // SAFETY: a QP, or null.
    unsafe {
        if qp.is_null() {
            return std::ptr::null_mut();
        }
        if !is_ours(qp) {
            return behind!(ibv_qp_to_qp_ex as Cast, (qp), else std::ptr::null_mut());
        }
        match of::<QpPart>(qp.cast()) {
            Ok(object) if object.part.builder.is_some() => qp.cast(),
            _ => std::ptr::null_mut(),
        }
    }
}

/// `ibv_set_ece`: a software NIC has no options to negotiate.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(qp: *mut abi::Qp, ece: *mut abi::Ece) -> c_int {
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        type Set = unsafe extern "C" fn(*mut abi::Qp, *mut abi::Ece) -> c_int;
        return behind!(ibv_set_ece as Set, (qp, ece), else libc::EOPNOTSUPP);
    }
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// `ibv_query_ece`: zeros, and `EOPNOTSUPP`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(qp: *mut abi::Qp, ece: *mut abi::Ece) -> c_int {
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        type Query = unsafe extern "C" fn(*mut abi::Qp, *mut abi::Ece) -> c_int;
        return behind!(ibv_query_ece as Query, (qp, ece), else libc::EOPNOTSUPP);
    }
    // SAFETY: the program's structure, or null.
    if let Some(ece) = unsafe { ece.as_mut() } {
        *ece = abi::Ece::default();
    }
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// `ibv_query_qp_data_in_order`: 1 if whole messages appear in the order of their addresses; capabilities if asked for.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut abi::Qp, op: u32, flags: u32) -> c_int {
    const RETURN_CAPS: u32 = 1;
    // SAFETY: a QP, or null.
    unsafe {
        if !qp.is_null() && !is_ours(qp) {
            type Query = unsafe extern "C" fn(*mut abi::Qp, u32, u32) -> c_int;
            return behind!(ibv_query_qp_data_in_order as Query, (qp, op, flags), else 0);
        }
        let (Ok(object), Some(kind)) = (of::<QpPart>(qp.cast()), OpKind::from_raw(op)) else { return 0 };
        let order = object.part.qp.data_in_order(kind);
        match flags {
            0 => c_int::from(order.contains(scalefabric_verbs::DataInOrder::WHOLE_MSG)),
            RETURN_CAPS => order.bits() as c_int,
            _ => 0,
        }
    }
}

unsafe fn with_group(call: &str, qp: *mut abi::Qp, gid: *const [u8; 16], join: bool) -> c_int {
    status(call, || {
        // SAFETY: it is ours, or null; the program's GID, or null.
        let (object, gid) = unsafe { (of::<QpPart>(qp.cast())?, gid.as_ref()) };
        let gid = Gid(*gid.ok_or_else(|| VerbsError::invalid("gid is null"))?);
        if join { object.part.qp.attach_mcast(gid) } else { object.part.qp.detach_mcast(gid) }
    })
}

/// `ibv_attach_mcast`. The LID means nothing here.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut abi::Qp, gid: *const [u8; 16], lid: u16) -> c_int {
    type Attach = unsafe extern "C" fn(*mut abi::Qp, *const [u8; 16], u16) -> c_int;
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        return behind!(ibv_attach_mcast as Attach, (qp, gid, lid), else libc::EINVAL);
    }
    // SAFETY: passed on.
    unsafe { with_group("ibv_attach_mcast", qp, gid, true) }
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut abi::Qp, gid: *const [u8; 16], lid: u16) -> c_int {
    type Detach = unsafe extern "C" fn(*mut abi::Qp, *const [u8; 16], u16) -> c_int;
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        return behind!(ibv_detach_mcast as Detach, (qp, gid, lid), else libc::EINVAL);
    }
    // SAFETY: passed on.
    unsafe { with_group("ibv_detach_mcast", qp, gid, false) }
}

/// The operation `modify_qp_rate_limit`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn modify_qp_rate_limit(qp: *mut abi::Qp, attr: *mut abi::QpRateLimitAttr) -> c_int {
    status("ibv_modify_qp_rate_limit", || {
        // SAFETY: it is ours, since the operation is; the program's structure, or null.
        let (object, attr) = unsafe { (of::<QpPart>(qp.cast())?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_qp_rate_limit_attr is null"))?;
        if attr.comp_mask != 0 {
            return Err(VerbsError::invalid(format!("comp_mask {:#x} has unknown bits", attr.comp_mask)));
        }
        object.part.qp.modify_rate_limit(&RateLimit {
            rate_limit: attr.rate_limit,
            max_burst_sz: attr.max_burst_sz,
            typical_pkt_sz: attr.typical_pkt_sz,
        })
    })
}
