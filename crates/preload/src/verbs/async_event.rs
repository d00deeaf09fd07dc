//! Asynchronous events: given out with the object of C that they are about, counted until they are acknowledged.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use scalefabric_ibv::abi;
use scalefabric_verbs::{EventSubject, EventType, VerbsError};

use super::answer::{or_minus, stale};
use super::behind::behind;
use super::completion::CqPart;
use super::context::{self, Open};
use super::object::{alive, events, is_ours};
use super::queue_pair::QpPart;
use super::shared_receive_queue::SrqPart;

/// The object of an event, counted as given out. `None` if it is being destroyed: then nobody hears of it.
unsafe fn element(open: &Open, subject: EventSubject) -> Option<abi::AsyncElement> {
    let objects = open.objects();
    // SAFETY: objects in the tables were not buried, and cannot be while the tables are locked.
    unsafe {
        let object = match subject {
            EventSubject::Port(port) => return Some(abi::AsyncElement { port_num: c_int::from(port) }),
            EventSubject::Device => return Some(abi::AsyncElement { port_num: 0 }),
            EventSubject::QueuePair(number) => {
                let qp = *objects.qps.get(&number.get())?;
                alive::<QpPart>(qp.cast())?.part.events_given.fetch_add(1, Ordering::AcqRel);
                qp.cast()
            }
            EventSubject::CompletionQueue(number) => {
                let cq = *objects.cqs.get(&number)?;
                alive::<CqPart>(cq.cast())?.part.async_events_given.fetch_add(1, Ordering::AcqRel);
                cq.cast()
            }
            EventSubject::SharedReceiveQueue(number) => {
                let srq = *objects.srqs.get(&number.get())?;
                alive::<SrqPart>(srq)?.part.events_given.fetch_add(1, Ordering::AcqRel);
                srq.cast()
            }
        };
        Some(abi::AsyncElement { object })
    }
}

/// `ibv_get_async_event`: blocks unless the descriptor is O_NONBLOCK; -1 with `EAGAIN` then.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut abi::Context, event: *mut abi::AsyncEvent) -> c_int {
    type Get = unsafe extern "C" fn(*mut abi::Context, *mut abi::AsyncEvent) -> c_int;
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        return behind!(ibv_get_async_event as Get, (context, event), else -1);
    }
    or_minus("ibv_get_async_event", || {
        if context.is_null() {
            return Err(stale("open device"));
        }
        if event.is_null() {
            return Err(VerbsError::invalid("event is null"));
        }
        // SAFETY: it is ours.
        let open = unsafe { context::open(context)? };
        loop {
            let Some(happened) = open.verbs()?.get_async_event(None)? else {
                crate::signal::interrupted()?;
                continue;
            };
            // SAFETY: the tables are the context's own; the program's structure.
            unsafe {
                let Some(element) = element(open, happened.subject) else { continue };
                *event = abi::AsyncEvent { element, event_type: happened.event_type as u32 };
            }
            return Ok(0);
        }
    })
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut abi::AsyncEvent) {
    type Ack = unsafe extern "C" fn(*mut abi::AsyncEvent);
    use EventType::{CommEst, CqErr, PathMig, PathMigErr, QpAccessErr, QpFatal, QpLastWqeReached, QpReqErr};
    use EventType::{SqDrained, SrqErr, SrqLimitReached, WqFatal};
    // SAFETY: an event that was given out, whose object waits for this.
    unsafe {
        let Some(happened) = event.as_ref() else { return };
        let Some(event_type) = EventType::from_raw(happened.event_type) else { return };
        let object = match event_type {
            CqErr | QpFatal | QpReqErr | QpAccessErr | CommEst | SqDrained | PathMig | PathMigErr
            | QpLastWqeReached | SrqErr | SrqLimitReached | WqFatal => happened.element.object,
            // Of ports and devices nothing waits.
            _ => return,
        };
        if object.is_null() {
            return;
        }
        if !is_ours(object) {
            return behind!(ibv_ack_async_event as Ack, (event), else ());
        }
        match event_type {
            CqErr => {
                let cq = object.cast::<abi::CqEx>();
                if alive::<CqPart>(cq).is_some() {
                    let c = &raw mut (*cq).base;
                    events::acknowledge(
                        &raw mut (*c).mutex,
                        &raw mut (*c).cond,
                        &raw mut (*c).async_events_completed,
                        1,
                    );
                }
            }
            SrqErr | SrqLimitReached => {
                let c = object.cast::<abi::Srq>();
                if alive::<SrqPart>(c).is_some() {
                    events::acknowledge(&raw mut (*c).mutex, &raw mut (*c).cond, &raw mut (*c).events_completed, 1);
                }
            }
            _ => {
                let qp = object.cast::<abi::QpEx>();
                if alive::<QpPart>(qp).is_some() {
                    let c = &raw mut (*qp).base;
                    events::acknowledge(&raw mut (*c).mutex, &raw mut (*c).cond, &raw mut (*c).events_completed, 1);
                }
            }
        }
    }
}
