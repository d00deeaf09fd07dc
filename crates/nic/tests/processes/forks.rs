//! What a forked child does with what it inherited, and without it.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use scalefabric_nic::provider::SoftwareContext;
use scalefabric_verbs::*;

use crate::child::{Child, blank};

/// Runs `each` in a forked process; true if it came through. A panic, a signal and a child that hangs are failures.
fn in_fork(each: impl FnOnce()) -> bool {
    // SAFETY: what the child does is the subject of the test; it ends below.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: plain system call: a child that hangs is killed.
            unsafe { libc::alarm(60) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(each)).is_ok();
            // SAFETY: ends the child without what `exit` runs.
            unsafe { libc::_exit(i32::from(!done)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

/// A QP of the child's own device that writes to itself.
fn own_traffic(gid_index: u8, parents: u8) {
    let mut own = Child { gid_index, ..Child::default() };
    let answer = own.answer(&["open"]);
    assert!(answer.starts_with("slot="), "{answer}");
    assert_ne!(own.context().slot(), parents, "a child has a slot of its own");
    let qp = own.answer(&["qp"]);
    let words: Vec<&str> = qp.split(' ').collect();
    assert_eq!(own.answer(&["connect", words[0], words[3]]), "ok");
    assert_eq!(own.answer(&["write", words[1], words[2], "3"]), "Success");
    assert_eq!(own.answer(&["check", "3"]), "ok");
}

fn readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
}

/// Everything inherited answers with the same error, and can be destroyed to no effect.
fn inherited(child: &mut Child, channel: Arc<dyn CompletionChannel>) {
    let qp = child.qp.take().unwrap();
    let context = child.context.take().unwrap();
    let errno = |error: VerbsError| {
        assert!(error.message.contains("parent process"), "{}", error.message);
        error.errno
    };
    assert_eq!(errno(qp.cq.poll(&mut [blank()]).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(qp.cq.req_notify(false).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(qp.qp.query().map(drop).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(context.alloc_pd().map(drop).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(context.query_port(1).map(drop).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(context.get_async_event(None).map(drop).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(context.hw_counters(1).map(drop).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(context.create_cq(4, None, 0).map(drop).unwrap_err()), Errno::ENODEV);
    assert_eq!(errno(channel.wait(None).map(drop).unwrap_err()), Errno::ENODEV);
    assert_eq!(qp.qp.post_send(&[SendWr::new(1, SendOp::Send)]).unwrap_err().errno, Errno::ENODEV);
    assert!(!context.is_host());
    // The parent has an event waiting there. The number is the child's own now.
    assert!(!readable(channel.fd()), "the child sees the parent's events");
    assert_eq!(qp.qp.destroy(), Ok(()));
    assert_eq!(qp.cq.destroy(), Ok(()));
    assert_eq!(qp.mr.destroy(), Ok(()));
    assert_eq!(channel.destroy(), Ok(()));
    drop((qp, channel, context));
}

/// A channel of the parent with an event that nobody has taken.
fn channel_with_event(context: &SoftwareContext, gid_index: u8) -> (Arc<dyn CompletionChannel>, Vec<Box<dyn Send>>) {
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(channel.clone()), 0).unwrap();
    let pd = context.alloc_pd().unwrap();
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
        sq_sig_all: true,
    };
    let qp = pd.create_qp(&init).unwrap();
    cq.req_notify(false).unwrap();
    // A receive that is flushed is a completion.
    let (mut attr, _) = qp.query().unwrap();
    attr.qp_state = QpState::Init;
    attr.port_num = 1;
    attr.ah_attr.sgid_index = gid_index;
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    qp.modify(&attr, mask).unwrap();
    qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &[] }]).unwrap();
    attr.qp_state = QpState::Err;
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
    crate::parent::until("no event", || readable(channel.fd()));
    (channel, vec![Box::new(cq), Box::new(qp), Box::new(pd)])
}

/// Forks `count` times while another thread writes to the peer without pause. What went wrong, or `ok` with the number of writes.
pub fn run(child: &mut Child, count: u32, rkey: &str, addr: &str) -> String {
    let stop = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    let context = child.context().clone();
    let (channel, _rest) = channel_with_event(&context, child.gid_index);
    let slot = context.slot();
    let writer =
        Child { context: child.context.clone(), qp: child.qp.clone(), gid_index: child.gid_index, ..Child::default() };
    let result = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let seed = writes.fetch_add(1, Ordering::AcqRel).to_string();
                let status = writer.write(rkey.parse().unwrap(), addr.parse().unwrap(), seed.parse().unwrap());
                if status != "Success" {
                    return Err(format!("write {seed}: {status}"));
                }
            }
            Ok(())
        });
        let mut result = Ok(());
        for n in 0..count {
            let fine = match n % 5 {
                0 => in_fork(|| ()),
                1 => in_fork(|| inherited(child, channel.clone())),
                2 => in_fork(|| {
                    inherited(child, channel.clone());
                    own_traffic(child.gid_index, slot);
                    // SAFETY: an ordinary end, with all that `exit` runs.
                    unsafe { libc::exit(0) }
                }),
                3 => in_fork(|| {
                    assert!(in_fork(|| own_traffic(child.gid_index, slot)), "the grandchild failed");
                    own_traffic(child.gid_index, slot);
                    let context = child.context.take().unwrap();
                    assert!(context.query_port(1).is_err());
                }),
                // A process that runs another program by way of vfork.
                _ => std::process::Command::new("true").status().unwrap().success(),
            };
            if !fine {
                result = Err(format!("child {n} failed"));
                break;
            }
        }
        stop.store(true, Ordering::Release);
        result.and(traffic.join().unwrap())
    });
    if let Err(text) = result {
        return text;
    }
    // No child has taken the event.
    match channel.wait(Some(std::time::Duration::from_secs(5))) {
        Ok(Some(_)) => format!("ok {}", writes.load(Ordering::Acquire) - 1),
        other => format!("the parent's event is gone: {:?}", other.map(|cq| cq.is_some())),
    }
}
