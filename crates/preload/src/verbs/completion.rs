//! Completion channels and completion queues, polled as `ibv_poll_cq` does.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use scalefabric_ibv::abi;
use scalefabric_verbs::{
    CompletionChannel, CompletionQueue, Context, CqInit, Errno, VerbsError, WcFlags, WorkCompletion,
};

use super::answer::{Outcome, or_minus, pointer, stale, status, tell};
use super::behind::behind;
use super::completion_ex::Iteration;
use super::context;
use super::object::{Object, Part, alive, beside, events, is_ours, next_handle, of};

/// Completions that are taken from the contract at once.
const BATCH: usize = 16;

/// A completion channel.
pub struct ChannelPart {
    channel: Arc<dyn CompletionChannel>,
}

impl Part for ChannelPart {
    type C = abi::CompChannel;
    const MARK: u64 = u64::from_be_bytes(*b"sfCompCh");
    const NAME: &'static str = "completion channel";
}

/// A completion queue.
pub struct CqPart {
    /// The contract's.
    pub cq: Arc<dyn CompletionQueue>,
    /// The context behind it, for the wall clock.
    pub verbs: Arc<dyn Context>,
    /// Completion events given out.
    events_given: AtomicU32,
    /// Asynchronous events given out.
    pub async_events_given: AtomicU32,
    /// Where a poll puts what the contract gives, so that it need not be cleared each time; one poller at a time.
    scratch: UnsafeCell<[WorkCompletion; BATCH]>,
    scratch_is_taken: AtomicBool,
    /// What `start_poll` and `next_poll` are at.
    pub iteration: Iteration,
}

impl Part for CqPart {
    type C = abi::CqEx;
    const MARK: u64 = u64::from_be_bytes(*b"sfComplQ");
    const NAME: &'static str = "completion queue";
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        type Create = unsafe extern "C" fn(*mut abi::Context) -> *mut abi::CompChannel;
        return behind!(ibv_create_comp_channel as Create, (context), else std::ptr::null_mut());
    }
    pointer("ibv_create_comp_channel", || {
        if context.is_null() {
            return Err(stale("open device"));
        }
        // SAFETY: it is ours.
        let channel = unsafe { context::open(context)? }.verbs()?.create_comp_channel()?;
        Ok(Object::make(abi::CompChannel { context, fd: channel.fd(), refcnt: 0 }, ChannelPart { channel }))
    })
}

/// The counter of CQs, which programs read.
unsafe fn refcnt<'a>(channel: *mut abi::CompChannel) -> &'a AtomicI32 {
    // SAFETY: a member of a live channel; `destroy` of it is refused while it counts.
    unsafe { AtomicI32::from_ptr(&raw mut (*channel).refcnt) }
}

/// `ibv_destroy_comp_channel`: `EBUSY` while CQs use it.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: a channel, or null.
    if !channel.is_null() && !unsafe { is_ours(channel) } {
        type Destroy = unsafe extern "C" fn(*mut abi::CompChannel) -> c_int;
        return behind!(ibv_destroy_comp_channel as Destroy, (channel), else libc::EINVAL);
    }
    status("ibv_destroy_comp_channel", || {
        // SAFETY: it is ours, or null.
        unsafe {
            let object = of::<ChannelPart>(channel)?;
            let users = refcnt(channel).load(Ordering::Acquire);
            if users > 0 {
                return Err(VerbsError::misuse(
                    Errno::EBUSY,
                    format!("the completion channel is used by {users} completion queues: destroy them first"),
                ));
            }
            object.part.channel.destroy()?;
            Object::<ChannelPart>::bury(channel);
        }
        Ok(())
    })
}

/// Makes a CQ with its extended form, since either is cast into the other. `extend` fills in what reads completions.
///
/// # Safety
/// `channel` is null or a channel of the program.
pub unsafe fn create(
    context: *mut abi::Context,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    mut init: CqInit,
    extend: impl FnOnce(&mut abi::CqEx),
    single_threaded: bool,
) -> Outcome<*mut abi::CqEx> {
    // SAFETY: the caller's promise.
    let open = unsafe { context::open(context)? };
    if !channel.is_null() {
        // SAFETY: the caller's promise.
        init.channel = Some(unsafe { beside::<ChannelPart>(channel)? }.part.channel.clone());
    }
    let cq = open.verbs()?.create_cq_with(&init)?;
    let (number, cqe) = (cq.cq_num(), cq.cqe());
    // SAFETY: all members may be zero; mutex and condition are initialised below.
    let mut c: abi::CqEx = unsafe { std::mem::zeroed() };
    c.base.context = context;
    c.base.channel = channel;
    c.base.cq_context = cq_context;
    c.base.handle = next_handle();
    c.base.cqe = cqe as c_int;
    extend(&mut c);
    let part = CqPart {
        cq,
        verbs: open.verbs()?,
        events_given: AtomicU32::new(0),
        async_events_given: AtomicU32::new(0),
        scratch: UnsafeCell::new([WorkCompletion::default(); BATCH]),
        scratch_is_taken: AtomicBool::new(false),
        iteration: Iteration::new(single_threaded),
    };
    let made = Object::make(c, part);
    // SAFETY: just made. The channel lives.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*made).base.mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*made).base.cond, std::ptr::null());
        if !channel.is_null() {
            refcnt(channel).fetch_add(1, Ordering::AcqRel);
        }
    }
    open.objects().cqs.insert(number, made.cast());
    Ok(made)
}

/// `ibv_create_cq`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: c_int,
) -> *mut abi::Cq {
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        type Create =
            unsafe extern "C" fn(*mut abi::Context, c_int, *mut c_void, *mut abi::CompChannel, c_int) -> *mut abi::Cq;
        return behind!(
            ibv_create_cq as Create,
            (context, cqe, cq_context, channel, comp_vector),
            else std::ptr::null_mut()
        );
    }
    pointer("ibv_create_cq", || {
        if context.is_null() {
            return Err(stale("open device"));
        }
        let number = |value: c_int, name: &str| {
            u32::try_from(value).map_err(|_| VerbsError::invalid(format!("{name} {value} is negative")))
        };
        let init =
            CqInit { cqe: number(cqe, "cqe")?, comp_vector: number(comp_vector, "comp_vector")?, ..CqInit::default() };
        // SAFETY: what the program passes.
        Ok(unsafe { create(context, cq_context, channel, init, |_| (), false)? }.cast())
    })
}

/// `ibv_resize_cq`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut abi::Cq, cqe: c_int) -> c_int {
    // SAFETY: a CQ, or null.
    if !cq.is_null() && !unsafe { is_ours(cq) } {
        return behind!(ibv_resize_cq as unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int, (cq, cqe), else libc::EINVAL);
    }
    status("ibv_resize_cq", || {
        // SAFETY: it is ours, or null.
        let object = unsafe { of::<CqPart>(cq.cast())? };
        let entries = u32::try_from(cqe).map_err(|_| VerbsError::invalid(format!("cqe {cqe} is negative")))?;
        object.part.cq.resize(entries)?;
        // SAFETY: a live object's structure.
        unsafe { (*object.c()).base.cqe = object.part.cq.cqe() as c_int };
        Ok(())
    })
}

/// `ibv_destroy_cq`: waits until all its events are acknowledged.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut abi::Cq) -> c_int {
    // SAFETY: a CQ, or null.
    if !cq.is_null() && !unsafe { is_ours(cq) } {
        return behind!(ibv_destroy_cq as unsafe extern "C" fn(*mut abi::Cq) -> c_int, (cq), else libc::EINVAL);
    }
    status("ibv_destroy_cq", || {
        // SAFETY: it is ours, or null; the program gives it back.
        unsafe {
            let object = of::<CqPart>(cq.cast())?;
            let part = &object.part;
            part.cq.destroy()?;
            if let Ok(open) = context::open((*cq).context) {
                let mut objects = open.objects();
                if objects.cqs.get(&part.cq.cq_num()) == Some(&cq) {
                    objects.cqs.remove(&part.cq.cq_num());
                }
            }
            let c = object.c();
            let (mutex, cond) = (&raw mut (*c).base.mutex, &raw mut (*c).base.cond);
            events::wait(mutex, cond, &raw mut (*c).base.comp_events_completed, &part.events_given);
            events::wait(mutex, cond, &raw mut (*c).base.async_events_completed, &part.async_events_given);
            let channel = (*c).base.channel;
            Object::<CqPart>::bury(cq.cast());
            if alive::<ChannelPart>(channel).is_some() {
                refcnt(channel).fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    })
}

/// `ibv_get_cq_event`: blocks unless the descriptor is O_NONBLOCK; -1 with `EAGAIN` then, and with `EINTR` for a signal.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel, or null.
    if !channel.is_null() && !unsafe { is_ours(channel) } {
        type Get = unsafe extern "C" fn(*mut abi::CompChannel, *mut *mut abi::Cq, *mut *mut c_void) -> c_int;
        return behind!(ibv_get_cq_event as Get, (channel, cq, cq_context), else -1);
    }
    or_minus("ibv_get_cq_event", || {
        if cq.is_null() || cq_context.is_null() {
            return Err(VerbsError::invalid("cq or cq_context is null"));
        }
        // SAFETY: it is ours, or null.
        let (object, open) = unsafe {
            let object = of::<ChannelPart>(channel)?;
            (object, context::open((*channel).context)?)
        };
        loop {
            let Some(event) = object.part.channel.wait(None)? else {
                crate::signal::interrupted()?;
                continue;
            };
            let objects = open.objects();
            // A CQ that is being destroyed has no event any more.
            // SAFETY: a CQ in the table was not buried, and cannot be while its table is locked.
            unsafe {
                let Some(&found) = objects.cqs.get(&event.cq_num()) else { continue };
                let Some(target) = alive::<CqPart>(found.cast()) else { continue };
                target.part.events_given.fetch_add(1, Ordering::AcqRel);
                *cq = found;
                *cq_context = (*found).cq_context;
            }
            return Ok(0);
        }
    })
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut abi::Cq, count: u32) {
    // SAFETY: a CQ, or null.
    unsafe {
        if cq.is_null() {
            return;
        }
        if !is_ours(cq) {
            return behind!(ibv_ack_cq_events as unsafe extern "C" fn(*mut abi::Cq, u32), (cq, count), else ());
        }
        if alive::<CqPart>(cq.cast()).is_some() {
            let c = &raw mut *cq;
            events::acknowledge(&raw mut (*c).mutex, &raw mut (*c).cond, &raw mut (*c).comp_events_completed, count);
        }
    }
}

/// The operation `modify_cq`: moderation of events.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn modify_cq(cq: *mut abi::Cq, attr: *mut abi::ModifyCqAttr) -> c_int {
    const MODERATE: u32 = 1;
    status("ibv_modify_cq", || {
        // SAFETY: it is ours, since the operation is; the program's structure, or null.
        let (object, attr) = unsafe { (of::<CqPart>(cq.cast())?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_modify_cq_attr is null"))?;
        match attr.attr_mask {
            MODERATE => object.part.cq.modify_moderation(attr.cq_count, attr.cq_period),
            0 => Ok(()),
            other => Err(VerbsError::invalid(format!("attr_mask {other:#x}: only MODERATE 1 is known"))),
        }
    })
}

/// The operation `req_notify_cq`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    // SAFETY: it is ours, since the operation is.
    let Some(object) = (unsafe { alive::<CqPart>(cq.cast()) }) else { return libc::EINVAL };
    match object.part.cq.req_notify(solicited_only != 0) {
        Ok(()) => 0,
        Err(error) => tell("ibv_req_notify_cq", &error),
    }
}

/// A completion as C has it.
#[inline]
fn translate(wc: &WorkCompletion) -> abi::Wc {
    // One word serves for both, as in C.
    let imm_data = if wc.flags.contains(WcFlags::WITH_INV) { wc.invalidated_rkey.0 } else { wc.imm.to_be() };
    abi::Wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data,
        qp_num: wc.qp_num.get(),
        src_qp: wc.src_qp.get(),
        wc_flags: wc.flags.bits(),
        pkey_index: wc.pkey_index,
        slid: 0,
        sl: wc.sl,
        dlid_path_bits: 0,
    }
}

/// The operation `poll_cq`. The data path: nothing is allocated, no lock is taken.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, num_entries: c_int, wc: *mut abi::Wc) -> c_int {
    // SAFETY: it is ours, since the operation is.
    let Some(object) = (unsafe { alive::<CqPart>(cq.cast()) }) else { return -libc::EINVAL };
    if num_entries <= 0 || wc.is_null() {
        return if num_entries == 0 { 0 } else { -libc::EINVAL };
    }
    let part = &object.part;
    let wanted = num_entries as usize;
    if part.scratch_is_taken.swap(true, Ordering::Acquire) {
        // Another thread polls at this moment.
        // SAFETY: the program's array.
        return unsafe { poll_beside(&*part.cq, wanted, wc) };
    }
    // SAFETY: the flag says that nobody else has it.
    let scratch = unsafe { &mut *part.scratch.get() };
    let room = wanted.min(BATCH);
    let mut count = 0;
    // Nothing there is the common case of who spins: it leaves at once.
    match part.cq.poll(&mut scratch[..room]) {
        Ok(0) => {}
        Ok(got) => {
            for (index, completion) in scratch[..got].iter().enumerate() {
                // SAFETY: the program's array has room for `wanted`.
                unsafe { wc.add(index).write(translate(completion)) };
            }
            count = got as c_int;
            if got == BATCH && wanted > BATCH {
                // SAFETY: as above.
                count += unsafe { poll_into(&*part.cq, wanted - got, wc.add(got), scratch) }.max(0);
            }
        }
        Err(error) => count = -tell("ibv_poll_cq", &error),
    }
    part.scratch_is_taken.store(false, Ordering::Release);
    count
}

/// Polls with a scratch of its own.
///
/// # Safety
/// As [`poll_into`].
#[cold]
unsafe fn poll_beside(cq: &dyn CompletionQueue, wanted: usize, wc: *mut abi::Wc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { poll_into(cq, wanted, wc, &mut [WorkCompletion::default(); BATCH]) }
}

/// Polls until there is nothing more or enough.
///
/// # Safety
/// `wc` has room for `wanted`.
#[inline(never)]
unsafe fn poll_into(
    cq: &dyn CompletionQueue,
    wanted: usize,
    wc: *mut abi::Wc,
    scratch: &mut [WorkCompletion; BATCH],
) -> c_int {
    let mut count = 0;
    while count < wanted {
        let room = (wanted - count).min(BATCH);
        let got = match cq.poll(&mut scratch[..room]) {
            Ok(got) => got,
            Err(error) => {
                // What was taken before is told first.
                if count == 0 {
                    return -tell("ibv_poll_cq", &error);
                }
                break;
            }
        };
        for (index, completion) in scratch[..got].iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { wc.add(count + index).write(translate(completion)) };
        }
        count += got;
        if got < room {
            break;
        }
    }
    count as c_int
}
