//! The extended form of a CQ: one completion at a time, its fields read by functions. Between `start_poll` and `end_poll`
//! the CQ belongs to one thread; others wait, unless the program promised that there are none.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};

use scalefabric_ibv::abi;
use scalefabric_verbs::{CqFlags, CqInit, VerbsError, WcFlags, WorkCompletion};

use super::answer::{pointer, set_errno, tell, unsupported};
use super::completion::{self, CqPart};
use super::hold::Hold;
use super::object::{Object, alive};

/// What the functions between `start_poll` and `end_poll` look at.
pub struct Iteration {
    current: UnsafeCell<WorkCompletion>,
    /// Held from a successful `start_poll` to `end_poll`.
    hold: Hold,
    single_threaded: bool,
}

// SAFETY: only who holds it, or is alone by promise, looks at `current`.
unsafe impl Sync for Iteration {}

impl Iteration {
    /// For a new CQ.
    pub fn new(single_threaded: bool) -> Self {
        Self { current: UnsafeCell::new(WorkCompletion::default()), hold: Hold::default(), single_threaded }
    }

    #[inline]
    fn begin(&self) {
        if !self.single_threaded {
            self.hold.take();
        }
    }

    /// Ends what `begin` began.
    ///
    /// # Safety
    /// The caller began it, as the program must have, or nobody did.
    #[inline]
    unsafe fn end(&self) {
        if !self.single_threaded {
            // SAFETY: the caller's promise.
            unsafe { self.hold.give() };
        }
    }
}

const WITH_TIMESTAMP: u64 = 1 << 7;
const WITH_WALLCLOCK: u64 = 1 << 11;
/// Everything up to the timestamp, and the wall clock.
const KNOWN: u64 = 0xff | WITH_WALLCLOCK;

/// The operation `create_cq_ex`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn create_cq_ex(context: *mut abi::Context, attr: *mut abi::CqInitAttrEx) -> *mut abi::CqEx {
    const MASK_FLAGS: u32 = 1;
    const MASK_PD: u32 = 2;
    const SINGLE_THREADED: u32 = 1;
    const IGNORE_OVERRUN: u32 = 2;
    pointer("ibv_create_cq_ex", || {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| VerbsError::invalid("ibv_cq_init_attr_ex is null"))?;
        if attr.comp_mask & !(MASK_FLAGS | MASK_PD) != 0 {
            return Err(VerbsError::invalid(format!("comp_mask {:#x} has unknown bits", attr.comp_mask)));
        }
        if attr.wc_flags & !KNOWN != 0 {
            return Err(unsupported(format!(
                "wc_flags {:#x}: completions here have no VLAN, flow tag or tag matching ({:#x})",
                attr.wc_flags,
                attr.wc_flags & !KNOWN
            )));
        }
        if attr.comp_mask & MASK_PD != 0 {
            // SAFETY: what the program passes.
            unsafe { super::memory::pd_of(attr.parent_domain)? };
        }
        let asked = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
        if asked & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0 {
            return Err(VerbsError::invalid(format!("flags {asked:#x} have unknown bits")));
        }
        let mut flags = CqFlags::empty();
        flags.set(CqFlags::TIMESTAMP, attr.wc_flags & (WITH_TIMESTAMP | WITH_WALLCLOCK) != 0);
        flags.set(CqFlags::IGNORE_OVERRUN, asked & IGNORE_OVERRUN != 0);
        flags.set(CqFlags::SINGLE_THREADED, asked & SINGLE_THREADED != 0);
        let init = CqInit { cqe: attr.cqe, channel: None, comp_vector: attr.comp_vector, flags };
        let single = asked & SINGLE_THREADED != 0;
        // SAFETY: what the program passes.
        unsafe {
            completion::create(context, attr.cq_context, attr.channel, init, |cq| extend(cq, attr.wc_flags), single)
        }
    })
}

fn extend(cq: &mut abi::CqEx, wc_flags: u64) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    // What was not asked for may be read all the same, but for times: without the flag there are none.
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    if wc_flags & WITH_TIMESTAMP != 0 {
        cq.read_completion_ts = Some(read_completion_ts);
    }
    if wc_flags & WITH_WALLCLOCK != 0 {
        cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
}

/// Takes one completion: 0, `ENOENT` if there is none, or an error.
#[inline]
fn take(object: &Object<CqPart>) -> c_int {
    // SAFETY: the iteration's lock is held, or the program promised to be alone.
    let current = unsafe { &mut *object.part.iteration.current.get() };
    match object.part.cq.poll(std::slice::from_mut(current)) {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            let c = object.c();
            // SAFETY: a live object's structure, and nobody else polls it.
            unsafe {
                (*c).status = current.status as u32;
                (*c).wr_id = current.wr_id;
            }
            0
        }
        Err(error) => tell("ibv_start_poll", &error),
    }
}

unsafe extern "C" fn start_poll(cq: *mut abi::CqEx, attr: *mut abi::PollCqAttr) -> c_int {
    // SAFETY: it is ours, since the function is; the program's structure, or null.
    let (object, attr) = unsafe { (alive::<CqPart>(cq), attr.as_ref()) };
    let Some(object) = object else { return libc::EINVAL };
    if attr.is_some_and(|attr| attr.comp_mask != 0) {
        set_errno(libc::EINVAL);
        return libc::EINVAL;
    }
    object.part.iteration.begin();
    let outcome = take(object);
    if outcome != 0 {
        // SAFETY: begun above.
        unsafe { object.part.iteration.end() };
    }
    outcome
}

unsafe extern "C" fn next_poll(cq: *mut abi::CqEx) -> c_int {
    // SAFETY: it is ours, since the function is.
    unsafe { alive::<CqPart>(cq) }.map_or(libc::EINVAL, take)
}

unsafe extern "C" fn end_poll(cq: *mut abi::CqEx) {
    // SAFETY: it is ours, since the function is; a program calls this after a successful `start_poll`.
    unsafe {
        if let Some(object) = alive::<CqPart>(cq) {
            object.part.iteration.end();
        }
    }
}

/// The completion that is being read.
#[inline]
unsafe fn current<'a>(cq: *mut abi::CqEx) -> &'a WorkCompletion {
    // SAFETY: these functions are called between `start_poll` and `end_poll` of a live CQ of ours.
    unsafe { &*(*cq.cast::<Object<CqPart>>()).part.iteration.current.get() }
}

macro_rules! readers {
    ($( $name:ident -> $type:ty { $wc:ident => $value:expr } )*) => { $(
        unsafe extern "C" fn $name(cq: *mut abi::CqEx) -> $type {
            // SAFETY: as `current`.
            let $wc = unsafe { current(cq) };
            $value
        }
    )* };
}

readers! {
    read_opcode -> u32 { wc => wc.opcode as u32 }
    read_vendor_err -> u32 { wc => wc.vendor_err }
    read_byte_len -> u32 { wc => wc.byte_len }
    read_imm_data -> u32 {
        wc => if wc.flags.contains(WcFlags::WITH_INV) { wc.invalidated_rkey.0 } else { wc.imm.to_be() }
    }
    read_qp_num -> u32 { wc => wc.qp_num.get() }
    read_src_qp -> u32 { wc => wc.src_qp.get() }
    read_wc_flags -> c_uint { wc => wc.flags.bits() }
    read_slid -> u32 { _wc => 0 }
    read_sl -> u8 { wc => wc.sl }
    read_dlid_path_bits -> u8 { _wc => 0 }
    read_completion_ts -> u64 { wc => wc.timestamp_ns }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut abi::CqEx) -> u64 {
    // SAFETY: as `current`.
    let (object, raw) = unsafe { (&*cq.cast::<Object<CqPart>>(), current(cq).timestamp_ns) };
    object.part.verbs.wallclock_ns(raw).unwrap_or(0)
}
