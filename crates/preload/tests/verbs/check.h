/* What the programs beside this file share: checks, and two RC queue pairs of one process that talk to each other. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                                  \
	do {                                                                                         \
		if (!(what)) {                                                                       \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
			exit(1);                                                                     \
		}                                                                                    \
	} while (0)

/* A call that returns a number of errno. */
#define FAILS(call, expected)                                                                                     \
	do {                                                                                                      \
		int got_ = (call);                                                                                \
		if (got_ != (expected)) {                                                                         \
			fprintf(stderr, "%s:%d: %s is %d, not %d\n", __FILE__, __LINE__, #call, got_, expected);  \
			exit(1);                                                                                  \
		}                                                                                                 \
	} while (0)

/* A call that returns null and sets errno. */
#define NULL_WITH(call, expected)                                                                               \
	do {                                                                                                    \
		errno = 0;                                                                                      \
		const void *got_ = (call);                                                                      \
		if (got_ || errno != (expected)) {                                                              \
			fprintf(stderr, "%s:%d: %s is %p with errno %d, not null with %d\n", __FILE__, __LINE__, \
				#call, got_, errno, expected);                                                  \
			exit(1);                                                                                \
		}                                                                                               \
	} while (0)

enum { BYTES = 4096, SLOTS = 16 };

struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp[2];
	char *memory; /* two pages: one for each side */
	int gid;
};

static inline struct ibv_context *open_first(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list);
	struct ibv_context *context = NULL;
	for (int i = 0; i < count && !context; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "sflo"))
			context = ibv_open_device(list[i]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static inline int connect_qp(struct ibv_qp *qp, struct ibv_qp *to, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | (1 << 8),
	};
	int outcome = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (outcome)
		return outcome;
	union ibv_gid gid;
	CHECK(!ibv_query_gid(qp->context, 1, gid_index, &gid));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	outcome = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (outcome)
		return outcome;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				     .sq_psn = 7, .max_rd_atomic = 4 };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* `send_ops` 0: made by ibv_create_qp. */
static inline struct pair open_pair(uint64_t wc_flags, uint64_t send_ops)
{
	struct pair p = { .context = open_first(), .gid = 0 };
	p.pd = ibv_alloc_pd(p.context);
	CHECK(p.pd);
	CHECK(!posix_memalign((void **)&p.memory, BYTES, 2 * BYTES));
	memset(p.memory, 0, 2 * BYTES);
	p.mr = ibv_reg_mr(p.pd, p.memory, 2 * BYTES,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | (1 << 8));
	CHECK(p.mr);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 64, .wc_flags = wc_flags };
	p.cq = ibv_create_cq_ex(p.context, &cq_attr);
	CHECK(p.cq);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr_ex attr = {
			.send_cq = ibv_cq_ex_to_cq(p.cq), .recv_cq = ibv_cq_ex_to_cq(p.cq), .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 4, .max_recv_sge = 4,
				 .max_inline_data = 128 },
			.comp_mask = IBV_QP_INIT_ATTR_PD | (send_ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
			.pd = p.pd, .send_ops_flags = send_ops,
		};
		p.qp[i] = ibv_create_qp_ex(p.context, &attr);
		CHECK(p.qp[i]);
		CHECK(attr.cap.max_send_wr >= SLOTS && attr.cap.max_inline_data >= 128);
	}
	for (int i = 0; i < 2; i++)
		CHECK(!connect_qp(p.qp[i], p.qp[1 - i], p.gid));
	return p;
}

static inline void close_pair(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(p->qp[i]));
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(p->cq)));
	CHECK(!ibv_dereg_mr(p->mr));
	CHECK(!ibv_dealloc_pd(p->pd));
	CHECK(!ibv_close_device(p->context));
	free(p->memory);
}

static inline void post_recv(struct pair *p, int side, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)p->memory + side * BYTES, BYTES, p->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(p->qp[side], &wr, &bad));
}

/* Waits for one completion, by the old function. */
static inline struct ibv_wc wait_one(struct pair *p)
{
	struct ibv_wc wc;
	int got;
	while (!(got = ibv_poll_cq(ibv_cq_ex_to_cq(p->cq), 1, &wc)))
		;
	CHECK(got == 1);
	return wc;
}
