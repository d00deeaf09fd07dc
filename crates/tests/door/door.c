/* The C door under the microscope: one RC queue pair connected to itself, and a loop of operations that callgrind and the
   counters of this file watch. crates/tests/src/bin/door.rs is the same program in Rust; `cargo xtask bench --door` compares.

   Usage: door KIND COUNT. Prints operations, calls of poll, and allocations within the loop. A KIND is made of words:

     poll                   ask a completion queue in which nothing is
     write8 … send64        messages one at a time, of 8 or 64 bytes
     chain8 chain64         WRITEs, 32 a doorbell
     inline                 the bytes are copied when they are posted
     wr                     posted by ibv_wr_start … ibv_wr_complete instead of ibv_post_send
     ex                     taken by ibv_start_poll and ibv_next_poll instead of ibv_poll_cq, each completion of a chain by itself

   Alone, `door main` writes a byte as soon as main is reached. */

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
static struct ibv_qp_ex *qp_ex;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cq_ex;
static struct ibv_mr *mr;
static char buffer[1 << 16] __attribute__((aligned(4096)));
static unsigned long polls;

static void failed(const char *what) {
    fprintf(stderr, "door: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* A macro: words for a failure are looked up only for one. */
#define must(ok, what) \
    do {               \
        if (!(ok)) failed(what); \
    } while (0)

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

/* The same in the extended form, with what a program that receives reads of each. */
static void take_extended(int count) {
    struct ibv_poll_cq_attr attr = {0};
    while (count > 0) {
        int outcome = ibv_start_poll(cq_ex, &attr);
        polls++;
        if (outcome == ENOENT) continue;
        must(!outcome, "ibv_start_poll");
        while (!outcome) {
            must(cq_ex->status == IBV_WC_SUCCESS, ibv_wc_status_str(cq_ex->status));
            if (ibv_wc_read_opcode(cq_ex) & IBV_WC_RECV) must(ibv_wc_read_byte_len(cq_ex) > 0, "read_byte_len");
            if (--count == 0) break;
            outcome = ibv_next_poll(cq_ex);
            polls++;
        }
        must(!outcome || outcome == ENOENT, "ibv_next_poll");
        ibv_end_poll(cq_ex);
    }
}

/* Takes them in the one form or in the other. */
static inline void take_all(int count) {
    if (cq_ex)
        take_extended(count);
    else
        take(count);
}

/* Posts a chain of WRITEs or SENDs by the builder's functions. */
static inline void post_by_builder(const struct ibv_send_wr *wr) {
    ibv_wr_start(qp_ex);
    for (; wr; wr = wr->next) {
        qp_ex->wr_id = wr->wr_id;
        qp_ex->wr_flags = wr->send_flags & ~IBV_SEND_INLINE;
        if (wr->opcode == IBV_WR_SEND)
            ibv_wr_send(qp_ex);
        else
            ibv_wr_rdma_write(qp_ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        const struct ibv_sge *sge = wr->sg_list;
        if (wr->send_flags & IBV_SEND_INLINE)
            ibv_wr_set_inline_data(qp_ex, (void *)(uintptr_t)sge->addr, sge->length);
        else
            ibv_wr_set_sge(qp_ex, sge->lkey, sge->addr, sge->length);
    }
    must(!ibv_wr_complete(qp_ex), "ibv_wr_complete");
}

static inline void post(struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    if (qp_ex)
        post_by_builder(wr);
    else
        must(!ibv_post_send(qp, wr, &bad), "ibv_post_send");
}

/* One message at a time: as ib_write_lat and ib_send_lat post it. */
__attribute__((noinline)) void measured_single(long count, struct ibv_send_wr *send, struct ibv_recv_wr *receive) {
    for (long i = 0; i < count; i++) {
        struct ibv_recv_wr *bad;
        if (receive) must(!ibv_post_recv(qp, receive, &bad), "ibv_post_recv");
        post(send);
        take_all(receive ? 2 : 1);
    }
}

/* Chains, of which so many requests are signalled. */
__attribute__((noinline)) void measured_chain(long count, struct ibv_send_wr *chain, int signalled) {
    for (long i = 0; i < count; i += CHAIN) {
        post(chain);
        take_all(signalled);
    }
}

/* A completion queue in which nothing is. */
__attribute__((noinline)) void measured_poll(long count) {
    struct ibv_poll_cq_attr attr = {0};
    struct ibv_wc wc;
    for (long i = 0; i < count; i++)
        must(cq_ex ? ibv_start_poll(cq_ex, &attr) == ENOENT : ibv_poll_cq(cq, 1, &wc) == 0, "poll");
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
    if (!strcmp(kind, "main")) return write(1, "m", 1) != 1;
    long count = argc > 2 ? atol(argv[2]) : 0;
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    struct ibv_context *context = NULL;
    for (int i = 0; i < devices; i++)
        if (!strcmp(ibv_get_device_name(list[i]), "sflo")) context = ibv_open_device(list[i]);
    must(context != NULL, "open device sflo");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    if (strstr(kind, "ex-")) {
        struct ibv_cq_init_attr_ex init = {.cqe = 4 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS};
        cq_ex = ibv_create_cq_ex(context, &init);
        must(cq_ex != NULL, "make the completion queue");
        cq = ibv_cq_ex_to_cq(cq_ex);
    } else
        cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must(cq && mr, "make the objects");
    struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd};
    init.cap = (struct ibv_qp_cap){DEPTH, DEPTH, 1, 1, 64};
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    if (strstr(kind, "wr-")) {
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
    }
    qp = ibv_create_qp_ex(context, &init);
    must(qp != NULL, "make the queue pair");
    if (strstr(kind, "wr-")) qp_ex = ibv_qp_to_qp_ex(qp);
    connect_to_itself(context);

    unsigned size = strstr(kind, "64") ? 64 : 8;
    int is_send = strstr(kind, "send") != NULL, is_chain = strstr(kind, "chain") != NULL;
    /* Who takes completions one by one wants all of a chain; ibv_poll_cq is given one to find. */
    int signalled = is_chain && cq_ex ? CHAIN : 1;
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
    for (int i = CHAIN - signalled; i < CHAIN; i++) chain[i].send_flags |= IBV_SEND_SIGNALED;
    struct ibv_recv_wr receive = {.sg_list = &into, .num_sge = 1};

    for (int watch = 0; watch < 2; watch++) {
        long n = watch ? count : WARM;
        polls = 0;
        watched = watch;
        if (strstr(kind, "poll"))
            measured_poll(n);
        else if (is_chain)
            measured_chain(n, chain, signalled);
        else
            measured_single(n, &chain[CHAIN - 1], is_send ? &receive : NULL);
        watched = 0;
    }
    printf("%ld %lu %lu\n", count, polls, allocations);
    return 0;
}
