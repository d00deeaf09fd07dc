//! Limits are honoured exactly: at the limit it works, one beyond it is refused and named.

use scalefabric_verbs::{AccessFlags, Errno, QpType, SrqInit};

use super::bench::{Bench, Shape, or_skip, refused};
use super::{Outcome, Stop, cases, ensure};

cases![
    a_completion_queue_may_be_as_large_as_the_device_says,
    a_completion_vector_must_exist,
    a_qp_may_have_as_many_wrs_and_sges_as_the_device_says,
    inline_data_may_be_as_long_as_the_device_says,
    a_shared_receive_queue_may_be_as_large_as_the_device_says,
    rights_of_a_region_must_fit_together,
    a_resized_completion_queue_keeps_its_limits,
];

/// Queues above this are not made, only refused: a driver that pins them would take all memory.
const LARGE: u32 = 1 << 16;

fn a_completion_queue_may_be_as_large_as_the_device_says(bench: &Bench) -> Outcome {
    let most = bench.attr.max_cqe;
    let cq = bench.context.create_cq(most.min(1 << 18), None, 0)?;
    ensure!(cq.cqe() >= most.min(1 << 18), "{} entries, not {most}", cq.cqe());
    if let Some(beyond) = most.checked_add(1) {
        let error = refused(bench.context.create_cq(beyond, None, 0), Errno::EINVAL, "one entry beyond max_cqe")?;
        ensure!(error.message.contains(&most.to_string()), "`{}` does not name the limit {most}", error.message);
    }
    refused(bench.context.create_cq(0, None, 0), Errno::EINVAL, "a completion queue without entries")?;
    Ok(())
}

fn a_completion_vector_must_exist(bench: &Bench) -> Outcome {
    let count = bench.attr.num_comp_vectors;
    bench.context.create_cq(1, None, count - 1)?;
    let error = refused(bench.context.create_cq(1, None, count), Errno::EINVAL, "a vector beyond the last")?;
    ensure!(error.message.contains("comp_vector"), "`{}` does not name comp_vector", error.message);
    Ok(())
}

fn a_qp_may_have_as_many_wrs_and_sges_as_the_device_says(bench: &Bench) -> Outcome {
    let attr = &bench.attr;
    let make = |change: &dyn Fn(&mut Shape)| -> Result<(), Stop> {
        let mut shape = Shape::new(QpType::Rc);
        change(&mut shape);
        let pd = bench.context.alloc_pd()?;
        let cq = bench.context.create_cq(1, None, 0)?;
        let init = scalefabric_verbs::QpInit {
            qp_type: shape.qp_type,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap: shape.cap,
            sq_sig_all: false,
        };
        pd.create_qp(&init)?;
        Ok(())
    };
    let (wr, sge) = (attr.max_qp_wr, attr.max_sge);
    make(&|shape| shape.cap.max_recv_sge = sge)?;
    make(&|shape| shape.cap.max_send_sge = sge)?;
    if wr <= LARGE {
        make(&|shape| (shape.cap.max_send_wr, shape.cap.max_send_sge) = (wr, 1))?;
        make(&|shape| (shape.cap.max_recv_wr, shape.cap.max_recv_sge) = (wr, 1))?;
    }
    type Change<'a> = &'a dyn Fn(&mut Shape);
    let beyond: [(&str, u32, Change<'_>); 4] = [
        ("max_send_wr", wr, &|shape| shape.cap.max_send_wr = wr + 1),
        ("max_recv_wr", wr, &|shape| shape.cap.max_recv_wr = wr + 1),
        ("max_send_sge", sge, &|shape| shape.cap.max_send_sge = sge + 1),
        ("max_recv_sge", sge, &|shape| shape.cap.max_recv_sge = sge + 1),
    ];
    for (name, limit, change) in beyond {
        match make(change) {
            Ok(()) => return Err(Stop::Fail(format!("{name} one beyond {limit} is accepted"))),
            Err(Stop::Fail(words)) => {
                ensure!(words.contains(name), "`{words}` does not name {name}");
                ensure!(words.contains("EINVAL") || words.contains("ENOMEM"), "`{words}`: neither EINVAL nor ENOMEM");
            }
            Err(skip) => return Err(skip),
        }
    }
    Ok(())
}

fn inline_data_may_be_as_long_as_the_device_says(bench: &Bench) -> Outcome {
    let most = bench.attr.max_inline_data;
    if most == 0 {
        return Err(Stop::Skip("the device has no inline data".to_owned()));
    }
    let with = |bytes: u32| {
        let mut shape = Shape::new(QpType::Rc);
        (shape.cap.max_inline_data, shape.cap.max_send_sge) = (bytes, 1);
        bench.end(&shape)
    };
    with(most)?;
    match with(most + 1) {
        Ok(_) => Err(Stop::Fail(format!("{} inline bytes are accepted, the limit is {most}", most + 1))),
        Err(Stop::Fail(words)) => {
            ensure!(words.contains("max_inline_data"), "`{words}` does not name max_inline_data");
            Ok(())
        }
        Err(skip) => Err(skip),
    }
}

fn a_shared_receive_queue_may_be_as_large_as_the_device_says(bench: &Bench) -> Outcome {
    let attr = &bench.attr;
    if attr.max_srq == 0 {
        return Err(Stop::Skip("the device has no shared receive queues".to_owned()));
    }
    let pd = bench.context.alloc_pd()?;
    let make = |max_wr: u32, max_sge: u32| pd.create_srq(&SrqInit { max_wr, max_sge, srq_limit: 0, xrc: None });
    let srq = or_skip(make(attr.max_srq_wr.min(LARGE), 1))?;
    ensure!(srq.query()?.0 >= attr.max_srq_wr.min(LARGE), "smaller than asked for");
    make(1, attr.max_srq_sge)?;
    for (wr, sge, name) in [(attr.max_srq_wr + 1, 1, "max_wr"), (1, attr.max_srq_sge + 1, "max_sge")] {
        let error = refused(make(wr, sge), Errno::EINVAL, name)?;
        ensure!(error.message.contains(name), "`{}` does not name {name}", error.message);
    }
    Ok(())
}

fn rights_of_a_region_must_fit_together(bench: &Bench) -> Outcome {
    let pd = bench.context.alloc_pd()?;
    for right in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        let error = refused(pd.alloc_mr(4096, right), Errno::EINVAL, "a remote right to write without LOCAL_WRITE")?;
        ensure!(error.message.contains("LOCAL_WRITE"), "`{}` does not name LOCAL_WRITE", error.message);
    }
    let mr = pd.alloc_mr(4096, AccessFlags::REMOTE_READ)?;
    refused(mr.write(4090, &[0; 7]), Errno::EINVAL, "bytes beyond the region")?;
    refused(mr.load_u64(4), Errno::EINVAL, "a word that is not aligned")?;
    refused(mr.word(4).map(drop), Errno::EINVAL, "a word to look at that is not aligned")?;
    if let Some(word) = mr.word(8)? {
        mr.store_u64(8, 0x0102_0304)?;
        ensure!(word.load() == 0x0102_0304, "a word that is looked at shows {:#x}", word.load());
    }
    mr.store_u64(8, 0x0102_0304_0506_0708)?;
    let mut bytes = [0; 8];
    mr.read(8, &mut bytes)?;
    ensure!(u64::from_ne_bytes(bytes) == 0x0102_0304_0506_0708, "the word reads back as {bytes:?}");
    Ok(())
}

fn a_resized_completion_queue_keeps_its_limits(bench: &Bench) -> Outcome {
    let cq = bench.context.create_cq(16, None, 0)?;
    or_skip(cq.resize(64))?;
    ensure!(cq.cqe() >= 64, "{} entries after growing to 64", cq.cqe());
    if let Some(beyond) = bench.attr.max_cqe.checked_add(1) {
        refused(cq.resize(beyond), Errno::EINVAL, "growing beyond max_cqe")?;
    }
    Ok(())
}
