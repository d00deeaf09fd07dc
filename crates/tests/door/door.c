/* The C door under the microscope: one RC queue pair connected to itself, and a loop of operations that callgrind and the
   counters of this file watch. crates/tests/src/bin/door.rs is the same program in Rust; `cargo xtask bench --door` compares.

   Usage: door KIND COUNT. Prints operations, calls of poll, and allocations within the loop. */

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAIN = 32, DEPTH = 64, WARM = 256 };

/* What the loop allocates on its thread, in whatever library: the program's functions come before libc's for all of them. The
   worker beside it looks after the shared device and may allocate. */
static __thread volatile int watched;
static volatile unsigned long allocations;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static void note(void) {
    if (watched) allocations++;
}
void *malloc(size_t size) {
    note();
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
    note();
    return __libc_calloc(count, size);
}
void *realloc(void *old, size_t size) {
    note();
    return __libc_realloc(old, size);
}
void *memalign(size_t align, size_t size) {
    note();
    return __libc_memalign(align, size);
}
void *aligned_alloc(size_t align, size_t size) {
    return memalign(align, size);
}
int posix_memalign(void **out, size_t align, size_t size) {
    *out = memalign(align, size);
    return *out ? 0 : ENOMEM;
}

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[1 << 16] __attribute__((aligned(4096)));
static unsigned long polls;

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "door: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void take(int count) {
    struct ibv_wc wc[16];
    while (count > 0) {
        int got = ibv_poll_cq(cq, 16, wc);
        polls++;
        must(got >= 0, "ibv_poll_cq");
        for (int i = 0; i < got; i++) must(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
        count -= got;
    }
}

/* One message at a time: as ib_write_lat and ib_send_lat post it. */
__attribute__((noinline)) void measured_single(long count, struct ibv_send_wr *send, struct ibv_recv_wr *receive) {
    for (long i = 0; i < count; i++) {
        struct ibv_send_wr *bad;
        struct ibv_recv_wr *bad_receive;
        if (receive) must(!ibv_post_recv(qp, receive, &bad_receive), "ibv_post_recv");
        must(!ibv_post_send(qp, send, &bad), "ibv_post_send");
        take(receive ? 2 : 1);
    }
}

/* Chains, of which the last request is signalled. */
__attribute__((noinline)) void measured_chain(long count, struct ibv_send_wr *chain) {
    for (long i = 0; i < count; i += CHAIN) {
        struct ibv_send_wr *bad;
        must(!ibv_post_send(qp, chain, &bad), "ibv_post_send");
        take(1);
    }
}

/* A completion queue in which nothing is. */
__attribute__((noinline)) void measured_poll(long count) {
    struct ibv_wc wc;
    for (long i = 0; i < count; i++) must(ibv_poll_cq(cq, 1, &wc) == 0, "ibv_poll_cq");
    polls += count;
}

static void connect_to_itself(struct ibv_context *context) {
    union ibv_gid gid;
    struct ibv_port_attr port;
    must(!ibv_query_gid(context, 1, 0, &gid) && !ibv_query_port(context, 1, &port), "query port 1");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    must(!ibv_modify_qp(qp, &attr, mask), "to INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port.active_mtu;
    attr.dest_qp_num = qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.port_num = 1;
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC;
    must(!ibv_modify_qp(qp, &attr, mask | IBV_QP_MIN_RNR_TIMER), "to RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 20;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    must(!ibv_modify_qp(qp, &attr, mask), "to RTS");
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    long count = argc > 2 ? atol(argv[2]) : 0;
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    struct ibv_context *context = NULL;
    for (int i = 0; i < devices; i++)
        if (!strcmp(ibv_get_device_name(list[i]), "sflo")) context = ibv_open_device(list[i]);
    must(context != NULL, "open device sflo");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must(cq && mr, "make the objects");
    struct ibv_qp_cap cap = {DEPTH, DEPTH, 1, 1, 64};
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC};
    qp = ibv_create_qp(pd, &init);
    must(qp != NULL, "make the queue pair");
    connect_to_itself(context);

    unsigned size = strstr(kind, "64") ? 64 : 8;
    int is_send = !strncmp(kind, "send", 4), is_chain = !strncmp(kind, "chain", 5);
    struct ibv_sge sge = {(uintptr_t)buffer, size, mr->lkey}, into = {(uintptr_t)buffer + 8192, 64, mr->lkey};
    struct ibv_send_wr chain[CHAIN];
    memset(chain, 0, sizeof chain);
    for (int i = 0; i < CHAIN; i++) {
        chain[i].wr_id = i;
        chain[i].next = i + 1 < CHAIN ? &chain[i + 1] : NULL;
        chain[i].sg_list = &sge;
        chain[i].num_sge = 1;
        chain[i].opcode = is_send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
        chain[i].send_flags = strstr(kind, "inline") ? IBV_SEND_INLINE : 0;
        chain[i].wr.rdma.remote_addr = (uintptr_t)buffer + 4096;
        chain[i].wr.rdma.rkey = mr->rkey;
    }
    chain[CHAIN - 1].send_flags |= IBV_SEND_SIGNALED;
    struct ibv_recv_wr receive = {.sg_list = &into, .num_sge = 1};

    for (int watch = 0; watch < 2; watch++) {
        long n = watch ? count : WARM;
        polls = 0;
        watched = watch;
        if (!strcmp(kind, "poll"))
            measured_poll(n);
        else if (is_chain)
            measured_chain(n, chain);
        else
            measured_single(n, &chain[CHAIN - 1], is_send ? &receive : NULL);
        watched = 0;
    }
    printf("%ld %lu %lu\n", count, polls, allocations);
    return 0;
}
