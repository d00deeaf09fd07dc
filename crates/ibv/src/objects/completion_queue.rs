//! Completion queues and their channels.

use core::ffi::c_void;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use scalefabric_verbs::{
    CompletionChannel, CompletionQueue, CqFlags, CqInit, Errno, VerbsError, WcFlags, WorkCompletion,
};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside, Parent, Parents, Use, destroy};
use crate::library::last_errno;
use crate::objects::context::nanoseconds;
use crate::objects::device::{Device, operation};
use crate::objects::{deadline, ours, owned, readable, returned, set_nonblocking};
use crate::translate;

/// Completions taken with one call of the driver.
const BATCH: usize = 32;

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) device: Arc<Device>,
    shared: Arc<SharedChannel>,
}

/// The channel itself: its CQs keep it.
#[derive(Debug)]
struct SharedChannel {
    device: Arc<Device>,
    handle: Handle<abi::CompChannel>,
    fd: i32,
    parents: Parents<()>,
    uses: AtomicUsize,
    /// CQs by number: events name them.
    cqs: Mutex<HashMap<u32, Weak<CompletionQueueObject>>>,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueueObject {
    pub(crate) device: Arc<Device>,
    pub(crate) shared: Arc<SharedCq>,
}

/// The queue itself: its QPs and SRQs keep it.
#[derive(Debug)]
pub(crate) struct SharedCq {
    device: Arc<Device>,
    handle: Handle<abi::Cq>,
    cq_num: u32,
    cqe: AtomicU32,
    parents: Parents<Option<Use<SharedChannel>>>,
    uses: AtomicUsize,
    /// Polled by `start_poll` and its companions, with timestamps by a clock of so many kHz.
    timestamps: Option<(Mutex<()>, u64)>,
}

owned!(Channel, CompletionQueueObject);

impl Parent for SharedChannel {
    fn uses(&self) -> &AtomicUsize {
        &self.uses
    }
}

impl Parent for SharedCq {
    fn uses(&self) -> &AtomicUsize {
        &self.uses
    }
}

impl Drop for SharedChannel {
    fn drop(&mut self) {
        // SAFETY: no CQ uses it any more.
        let _ = self.handle.end(|channel| unsafe { (self.device.verbs.destroy_comp_channel)(channel) });
    }
}

impl Drop for SharedCq {
    fn drop(&mut self) {
        // SAFETY: no QP and no SRQ uses it any more; every event was acknowledged when it was taken.
        let _ = self.handle.end(|cq| unsafe { (self.device.verbs.destroy_cq)(cq) });
    }
}

impl SharedChannel {
    fn cqs(&self) -> MutexGuard<'_, HashMap<u32, Weak<CompletionQueueObject>>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event that is there.
    fn take(&self) -> Result<Option<u32>, VerbsError> {
        let channel = self.handle.enter_or("completion channel")?;
        let (mut cq, mut context) = (core::ptr::null_mut::<abi::Cq>(), core::ptr::null_mut::<c_void>());
        // SAFETY: a living channel, and pointers of ours to fill. The CQ stays until the event is acknowledged.
        unsafe {
            if (self.device.verbs.get_cq_event)(channel.pointer(), &mut cq, &mut context) == 0 {
                (self.device.verbs.ack_cq_events)(cq, 1);
                return Ok(Some(context as usize as u32));
            }
        }
        match last_errno() {
            libc::EAGAIN | libc::EINTR => Ok(None),
            raw => Err(explain::failed("take a completion event", raw)),
        }
    }
}

impl Channel {
    pub(crate) fn create(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        let context = device.context();
        // SAFETY: an open context.
        let channel = unsafe { (device.verbs.create_comp_channel)(context.pointer()) };
        if channel.is_null() {
            return Err(explain::failed("make a completion channel", last_errno()));
        }
        // SAFETY: just made.
        let fd = unsafe { (*channel).fd };
        let shared = Arc::new(SharedChannel {
            device: device.clone(),
            handle: Handle::new(channel),
            fd,
            parents: Parents::new(()),
            uses: AtomicUsize::new(0),
            cqs: Mutex::default(),
        });
        set_nonblocking(fd)?;
        Ok(Arc::new(Self { device: device.clone(), shared }))
    }
}

impl CompletionChannel for Channel {
    fn fd(&self) -> i32 {
        self.shared.fd
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<Arc<dyn CompletionQueue>>, VerbsError> {
        let until = deadline(timeout);
        loop {
            if let Some(number) = self.shared.take()? {
                // A CQ that is going has no handle any more: wait for the next one.
                let cq = self.shared.cqs().get(&number).and_then(Weak::upgrade);
                match cq {
                    Some(cq) => return Ok(Some(cq)),
                    None => continue,
                }
            }
            if !readable(self.shared.fd, until)? {
                return Ok(None);
            }
        }
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        let shared = &self.shared;
        destroy(&shared.handle, &shared.parents, Some(&shared.uses), "completion channel", |channel| {
            // SAFETY: a living channel that no CQ uses.
            returned(unsafe { (self.device.verbs.destroy_comp_channel)(channel) })
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl SharedCq {
    pub(crate) fn enter(&self) -> Result<Inside<'_, abi::Cq>, VerbsError> {
        self.handle.enter_or("completion queue")
    }

    /// One call of the driver.
    fn poll_some(&self, cq: *mut abi::Cq, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut batch = [const { core::mem::MaybeUninit::<abi::Wc>::uninit() }; BATCH];
        let wanted = out.len().min(BATCH);
        // SAFETY: a living CQ, and room for so many completions.
        let count = unsafe { (self.device.fast.poll_cq)(cq, wanted as i32, batch.as_mut_ptr().cast()) };
        let Ok(count) = usize::try_from(count) else { return Err(overrun(count)) };
        for (place, wc) in out.iter_mut().zip(&batch[..count.min(wanted)]) {
            // SAFETY: the driver has filled the first `count`.
            *place = translate::completion(unsafe { wc.assume_init_ref() });
        }
        Ok(count.min(wanted))
    }

    /// The extended way, for timestamps: one completion after another. One thread at a time.
    fn poll_extended(
        &self,
        cq: *mut abi::Cq,
        lock: &Mutex<()>,
        khz: u64,
        out: &mut [WorkCompletion],
    ) -> Result<usize, VerbsError> {
        if out.is_empty() {
            return Ok(0);
        }
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let cq: *mut abi::CqEx = cq.cast();
        // SAFETY: made by create_cq_ex: it is the extended form, and its functions are there for what was asked of it.
        let (start, next, end) = unsafe { ((*cq).start_poll, (*cq).next_poll, (*cq).end_poll) };
        let (Some(start), Some(next), Some(end)) = (start, next, end) else {
            return Err(explain::unsupported("polling with timestamps"));
        };
        let mut attr = abi::PollCqAttr { comp_mask: 0 };
        // SAFETY: as above; `end` follows a `start` that succeeded.
        unsafe {
            match start(cq, &mut attr) {
                0 => {}
                libc::ENOENT => return Ok(0),
                code => return Err(overrun(code)),
            }
            let mut count = 0;
            let outcome = loop {
                out[count] = read_extended(cq, khz);
                count += 1;
                if count == out.len() {
                    break Ok(count);
                }
                match next(cq) {
                    0 => {}
                    libc::ENOENT => break Ok(count),
                    code => break Err(overrun(code)),
                }
            };
            end(cq);
            outcome
        }
    }
}

fn overrun(code: i32) -> VerbsError {
    VerbsError::environment(
        Errno::EIO,
        format!(
            "the completion queue cannot be polled ({code}): it overran, or the device is gone; make it as large as the sum \
             of the queues that complete into it"
        ),
    )
}

/// The completion that an extended CQ stands at.
///
/// # Safety
/// Between `start_poll` and `end_poll`, on a CQ that was made with these fields.
unsafe fn read_extended(cq: *mut abi::CqEx, khz: u64) -> WorkCompletion {
    // SAFETY: the caller's promise. Fields that mean nothing for a failed completion are not read.
    unsafe {
        let base = &*cq;
        let number = |read: Option<unsafe extern "C" fn(*mut abi::CqEx) -> u32>| read.map_or(0, |read| read(cq));
        let ok = base.status == 0;
        let mut wc = abi::Wc {
            wr_id: base.wr_id,
            status: base.status,
            opcode: number(base.read_opcode),
            vendor_err: if ok { 0 } else { number(base.read_vendor_err) },
            byte_len: 0,
            imm_data: 0,
            qp_num: number(base.read_qp_num),
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        };
        let mut ticks = 0;
        if ok {
            wc.byte_len = number(base.read_byte_len);
            wc.wc_flags = base.read_wc_flags.map_or(0, |read| read(cq));
            let flags = WcFlags::from_bits_truncate(wc.wc_flags);
            if flags.intersects(WcFlags::WITH_IMM | WcFlags::WITH_INV) {
                wc.imm_data = number(base.read_imm_data);
            }
            if wc.opcode & 128 != 0 {
                wc.src_qp = number(base.read_src_qp);
                wc.sl = base.read_sl.map_or(0, |read| read(cq));
            }
            ticks = base.read_completion_ts.map_or(0, |read| read(cq));
        }
        WorkCompletion { timestamp_ns: nanoseconds(ticks, khz), ..translate::completion(&wc) }
    }
}

impl CompletionQueueObject {
    pub(crate) fn create(device: &Arc<Device>, init: &CqInit) -> Result<Arc<Self>, VerbsError> {
        let channel = match &init.channel {
            Some(channel) => Some(ours::<Channel>(device, channel.as_any(), "completion channel")?.shared.clone()),
            None => None,
        };
        let parent = channel.as_ref().map(Use::of);
        let entered = channel.as_ref().map(|channel| channel.handle.enter_or("completion channel")).transpose()?;
        let channel_pointer = entered.as_ref().map_or(core::ptr::null_mut(), |channel| channel.pointer());
        let cq_num = device.next_cq.fetch_add(1, Ordering::Relaxed);
        let number = cq_num as usize as *mut c_void;
        let context = device.context();
        let with_timestamps = init.flags.contains(CqFlags::TIMESTAMP);
        let cq = if init.flags.is_empty() {
            let (cqe, vector) = (i32::try_from(init.cqe), i32::try_from(init.comp_vector));
            let (cqe, vector) = (cqe.unwrap_or(i32::MAX), vector.unwrap_or(i32::MAX));
            // SAFETY: an open context, and a living channel if one is given.
            unsafe { (device.verbs.create_cq)(context.pointer(), cqe, number, channel_pointer, vector) }
        } else {
            let create = operation!(context.pointer(), create_cq_ex)
                .ok_or_else(|| explain::unsupported("flags of completion queues"))?;
            let mut attr = abi::CqInitAttrEx {
                cqe: init.cqe,
                cq_context: number,
                channel: channel_pointer,
                comp_vector: init.comp_vector,
                // The seven of an old completion, and the raw clock.
                wc_flags: 0x7f | if with_timestamps { 1 << 7 } else { 0 },
                comp_mask: 1,
                flags: u32::from(init.flags.contains(CqFlags::SINGLE_THREADED))
                    | if init.flags.contains(CqFlags::IGNORE_OVERRUN) { 2 } else { 0 },
                parent_domain: core::ptr::null_mut(),
            };
            // SAFETY: as above; the extended form begins with the plain one.
            unsafe { create(context.pointer(), &mut attr) }.cast()
        };
        if cq.is_null() {
            let raw = last_errno();
            if !init.flags.is_empty() && matches!(raw, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) {
                return Err(explain::unsupported(&format!("completion queues with {:?}", init.flags)));
            }
            return Err(explain::create_cq(init.cqe, init.comp_vector, device.attr_or_none().as_ref(), raw));
        }
        // SAFETY: just made.
        let cqe = unsafe { (*cq).cqe };
        let khz = if with_timestamps { device.attr()?.hca_core_clock } else { 0 };
        let shared = Arc::new(SharedCq {
            device: device.clone(),
            handle: Handle::new(cq),
            cq_num,
            cqe: AtomicU32::new(cqe.max(0) as u32),
            parents: Parents::new(parent),
            uses: AtomicUsize::new(0),
            timestamps: with_timestamps.then(|| (Mutex::new(()), khz)),
        });
        let object = Arc::new(Self { device: device.clone(), shared });
        drop(entered);
        if let Some(channel) = channel {
            channel.cqs().insert(cq_num, Arc::downgrade(&object));
        }
        Ok(object)
    }

    pub(crate) fn used(&self) -> Use<SharedCq> {
        Use::of(&self.shared)
    }
}

impl Drop for CompletionQueueObject {
    fn drop(&mut self) {
        if let Some(Some(channel)) = &*self.shared.parents.lock() {
            channel.cqs().remove(&self.shared.cq_num);
        }
    }
}

impl CompletionQueue for CompletionQueueObject {
    fn cq_num(&self) -> u32 {
        self.shared.cq_num
    }

    fn cqe(&self) -> u32 {
        self.shared.cqe.load(Ordering::Relaxed)
    }

    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let cq = self.shared.enter()?;
        if let Some((lock, khz)) = &self.shared.timestamps {
            return self.shared.poll_extended(cq.pointer(), lock, *khz, out);
        }
        let mut count = 0;
        loop {
            let some = self.shared.poll_some(cq.pointer(), &mut out[count..])?;
            count += some;
            if some < BATCH || count == out.len() {
                return Ok(count);
            }
        }
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let cq = self.shared.enter()?;
        // SAFETY: a living CQ.
        match unsafe { (self.device.fast.req_notify_cq)(cq.pointer(), solicited_only.into()) } {
            0 => Ok(()),
            code => Err(explain::failed("ask for a completion event", returned(code))),
        }
    }

    fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        let cq = self.shared.enter()?;
        // SAFETY: a living CQ.
        match unsafe { (self.device.verbs.resize_cq)(cq.pointer(), i32::try_from(cqe).unwrap_or(i32::MAX)) } {
            0 => {
                // SAFETY: as above; the call has written it.
                let now = unsafe { (*cq.pointer()).cqe };
                self.shared.cqe.store(now.max(0) as u32, Ordering::Relaxed);
                Ok(())
            }
            code => {
                let raw = returned(code);
                let most = self.device.attr_or_none().map_or(u32::MAX, |attr| attr.max_cqe);
                Err(match raw {
                    libc::EINVAL if cqe > most => VerbsError::invalid(format!(
                        "cannot resize to {cqe} entries; the device allows {most} (`max_cqe`)"
                    )),
                    libc::EINVAL => VerbsError::invalid(format!(
                        "cannot resize to {cqe} entries: the queue holds more completions now; poll it first"
                    )),
                    raw => explain::failed(&format!("resize to {cqe} entries"), raw),
                })
            }
        }
    }

    fn modify_moderation(&self, count: u16, period_us: u16) -> Result<(), VerbsError> {
        let (cq, context) = (self.shared.enter()?, self.device.context());
        let modify = operation!(context.pointer(), modify_cq).ok_or_else(|| explain::unsupported("CQ moderation"))?;
        let mut attr = abi::ModifyCqAttr { attr_mask: 1, cq_count: count, cq_period: period_us };
        // SAFETY: a living CQ.
        match unsafe { modify(cq.pointer(), &mut attr) } {
            0 => Ok(()),
            code => Err(explain::failed("moderate the completion queue", returned(code))),
        }
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        let shared = &self.shared;
        if let Some(Some(channel)) = &*shared.parents.lock()
            && shared.uses.load(Ordering::Acquire) == 0
        {
            channel.cqs().remove(&shared.cq_num);
        }
        destroy(&shared.handle, &shared.parents, Some(&shared.uses), "completion queue", |cq| {
            // SAFETY: a living CQ that nothing uses.
            returned(unsafe { (self.device.verbs.destroy_cq)(cq) })
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
