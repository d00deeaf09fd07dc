//! Descriptors of ours through dup, fork, vfork and close, and what a look at counters shows.

use super::{cc, has_headers, run, said, sfab};
use scalefabric_tests::Folder;

#[test]
fn a_descriptor_of_the_connection_manager_is_a_device_until_its_last_copy_is_closed() {
    let Some(sfab) = sfab() else { return };
    let folder = Folder::new("descriptor");
    let program = cc(
        &folder,
        "descriptor",
        r#"
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static int is_device(int fd) { struct stat s; return fstat(fd, &s) == 0 && S_ISCHR(s.st_mode); }
int main(void) {
    int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
    if (fd < 0) { perror("open"); return 1; }
    assert(is_device(fd));
    // A command that is cut off is refused by the device, not by the eventfd below it.
    assert(write(fd, "abc", 3) == -1 && errno == EINVAL);
    int copy = dup(fd), other = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    assert(is_device(copy) && is_device(other) && other >= 100);
    assert(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && (fcntl(copy, F_GETFL) & O_NONBLOCK));
    struct pollfd quiet = { fd, POLLIN };
    assert(poll(&quiet, 1, 0) == 0);
    // A child of vfork closes its parent's descriptors in its parent's memory.
    pid_t child = vfork();
    if (child == 0) { close(fd); close(copy); _exit(0); }
    waitpid(child, 0, 0);
    assert(is_device(fd) && is_device(copy));
    child = fork();
    if (child == 0) { int good = is_device(fd); close(fd); close(copy); close(other); _exit(good ? 0 : 1); }
    int status;
    waitpid(child, &status, 0);
    assert(WIFEXITED(status) && WEXITSTATUS(status) == 0 && is_device(fd));
    close(fd);
    // The number is somebody else's now.
    int plain = open("/dev/null", O_WRONLY);
    assert(plain == fd && write(plain, "abc", 3) == 3);
    assert(is_device(copy));
    assert(dup2(plain, copy) == copy && write(copy, "abc", 3) == 3);
    assert(close_range(other, other, 0) == 0);
    assert(open("/dev/null", O_WRONLY) >= 0);
    puts("good");
    return 0;
}"#,
        &[],
    );
    assert_eq!(said(&run(sfab, &[], &program, &[])), "good\n");
}

/// `rdma resource` run by the program itself sees what the program has, with its number.
#[test]
fn a_tool_sees_what_a_program_has() {
    let (Some(sfab), true) = (sfab(), has_headers()) else { return };
    if !std::path::Path::new("/usr/bin/rdma").exists() {
        println!("skipped: rdma is missing; install the package iproute2");
        return;
    }
    let folder = Folder::new("resources");
    let program = cc(
        &folder,
        "resources",
        r#"
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char memory[8192];
int main(void) {
    struct ibv_device **devices = ibv_get_device_list(0);
    struct ibv_context *context = ibv_open_device(devices[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 77, 0, 0, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (!qp || !mr) return 1;
    printf("qpn %u pid %d\n", qp->qp_num, getpid());
    fflush(stdout);
    system("rdma resource show qp; rdma resource show mr; rdma resource show cq; rdma resource show");
    return 0;
}"#,
        &["-libverbs"],
    );
    let text = said(&run(sfab, &["--device", "sflo"], &program, &[]));
    let first = text.lines().next().unwrap_or_default();
    let (qpn, pid) = first.strip_prefix("qpn ").and_then(|rest| rest.split_once(" pid ")).unwrap();
    let shows = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(
        shows(&["link sflo/", &format!("lqpn {qpn} "), "type RC state RESET", &format!("pid {pid} comm resources")]),
        "{text}"
    );
    assert!(shows(&["mrlen 8192", &format!("pid {pid} comm resources")]), "{text}");
    assert!(shows(&["cqe ", "users 2", &format!("pid {pid} comm resources")]), "{text}");
    assert!(shows(&["sflo:", "qp 1", "mr 1"]) || shows(&["sflo:", "qp "]), "{text}");
}

/// What is read is of now, each time a file is opened.
#[test]
fn counters_are_current_at_each_open() {
    let (Some(sfab), true) = (sfab(), has_headers()) else { return };
    let folder = Folder::new("counters");
    let program = cc(
        &folder,
        "counters",
        r#"
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>
static char memory[4096];
static long counter(void) {
    long value = -1;
    FILE *file = fopen("/sys/class/infiniband/sflo/ports/1/hw_counters/sent_pkts", "r");
    if (file) { fscanf(file, "%ld", &value); fclose(file); }
    return value;
}
int main(void) {
    struct ibv_device **devices = ibv_get_device_list(0);
    struct ibv_context *context = ibv_open_device(devices[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, 0, 0, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    attr.qp_state = IBV_QPS_RTR;
    ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    attr.qp_state = IBV_QPS_RTS;
    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
    struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } };
    ibv_query_gid(context, 1, 0, &to.grh.dgid);
    struct ibv_ah *ah = ibv_create_ah(pd, &to);
    long before = counter();
    for (int i = 0; i < 3; i++) {
        struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
        struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
        wr.wr.ud.ah = ah; wr.wr.ud.remote_qpn = qp->qp_num; wr.wr.ud.remote_qkey = 7;
        struct ibv_send_wr *bad;
        struct ibv_wc wc;
        if (ibv_post_send(qp, &wr, &bad)) return 1;
        while (ibv_poll_cq(cq, 1, &wc) == 0) {}
        if (wc.status) return 1;
        long now = counter();
        if (before < 0 || now <= before) { printf("%ld after %ld\n", now, before); return 1; }
        before = now;
    }
    puts("good");
    return 0;
}"#,
        &["-libverbs"],
    );
    assert_eq!(said(&run(sfab, &["--device", "sflo"], &program, &[])), "good\n");
}
