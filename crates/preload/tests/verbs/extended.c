/* The new way to post, and the extended CQ. */
#include "check.h"

static const uint64_t OPS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
			    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			    IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV |
			    IBV_QP_EX_WITH_ATOMIC_WRITE | (1 << 11) /* FLUSH */;

static struct pair p;

/* Takes one completion by the functions of the extended CQ and checks what all have. */
static void expect(uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_poll_cq_attr attr = {};
	int outcome;
	while ((outcome = ibv_start_poll(p.cq, &attr)) == ENOENT)
		;
	CHECK(outcome == 0);
	CHECK(p.cq->status == IBV_WC_SUCCESS);
	CHECK(p.cq->wr_id == wr_id);
	CHECK(ibv_wc_read_opcode(p.cq) == opcode);
	CHECK(ibv_wc_read_completion_ts(p.cq) != 0);
	CHECK(ibv_wc_read_completion_wallclock_ns(p.cq) > 1000000000ull * 1000000000ull);
	ibv_end_poll(p.cq);
}

static void start(struct ibv_qp_ex *qp, uint64_t wr_id)
{
	ibv_wr_start(qp);
	qp->wr_id = wr_id;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

int main(void)
{
	p = open_pair(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, OPS);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(p.qp[0]);
	CHECK(qp);
	char *remote = p.memory + BYTES;
	uint64_t addr = (uintptr_t)remote;
	uint32_t lkey = p.mr->lkey, rkey = p.mr->rkey;
	struct ibv_poll_cq_attr poll = {};
	FAILS(ibv_start_poll(p.cq, &poll), ENOENT);

	/* A list of SGEs and a list of inline pieces. */
	strcpy(p.memory, "hello, ");
	strcpy(p.memory + 100, "world");
	post_recv(&p, 1, 100);
	post_recv(&p, 1, 101);
	start(qp, 1);
	ibv_wr_send_imm(qp, htobe32(0x12345678));
	struct ibv_sge list[] = { { (uintptr_t)p.memory, 7, lkey }, { (uintptr_t)p.memory + 100, 6, lkey } };
	ibv_wr_set_sge_list(qp, 2, list);
	qp->wr_id = 2;
	ibv_wr_send(qp);
	char one[] = "in", two[] = "line";
	struct ibv_data_buf pieces[] = { { one, 2 }, { two, 5 } };
	ibv_wr_set_inline_data_list(qp, 2, pieces);
	memset(two, 'x', 4); /* the bytes are taken when they are set */
	CHECK(!ibv_wr_complete(qp));
	int sends = 0, receives = 0;
	while (sends < 2 || receives < 2) {
		int outcome = ibv_start_poll(p.cq, &poll);
		if (outcome == ENOENT)
			continue;
		CHECK(!outcome);
		do {
			CHECK(p.cq->status == IBV_WC_SUCCESS);
			if (ibv_wc_read_opcode(p.cq) == IBV_WC_SEND) {
				CHECK(p.cq->wr_id == (uint64_t)++sends);
				CHECK(ibv_wc_read_qp_num(p.cq) == p.qp[0]->qp_num);
				continue;
			}
			CHECK(p.cq->wr_id == 100u + receives);
			CHECK(ibv_wc_read_qp_num(p.cq) == p.qp[1]->qp_num);
			if (receives++ == 0) {
				CHECK(ibv_wc_read_byte_len(p.cq) == 13);
				CHECK(ibv_wc_read_wc_flags(p.cq) & IBV_WC_WITH_IMM);
				CHECK(ibv_wc_read_imm_data(p.cq) == htobe32(0x12345678));
			}
		} while (!ibv_next_poll(p.cq));
		ibv_end_poll(p.cq);
	}
	CHECK(!strcmp(remote, "inline"));
	CHECK(!strcmp(remote + 7, "world"));

	/* One-sided operations. */
	strcpy(p.memory, "written");
	start(qp, 3);
	ibv_wr_rdma_write(qp, rkey, addr + 512);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory, 8);
	CHECK(!ibv_wr_complete(qp));
	expect(3, IBV_WC_RDMA_WRITE);
	CHECK(!strcmp(remote + 512, "written"));
	start(qp, 4);
	ibv_wr_rdma_read(qp, rkey, addr + 512);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory + 64, 8);
	CHECK(!ibv_wr_complete(qp));
	expect(4, IBV_WC_RDMA_READ);
	CHECK(!strcmp(p.memory + 64, "written"));
	volatile uint64_t *word = (uint64_t *)(remote + 1024);
	*word = 40;
	start(qp, 5);
	ibv_wr_atomic_fetch_add(qp, rkey, addr + 1024, 2);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory + 128, 8);
	qp->wr_id = 6;
	ibv_wr_atomic_cmp_swp(qp, rkey, addr + 1024, 42, 7);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory + 136, 8);
	CHECK(!ibv_wr_complete(qp));
	expect(5, IBV_WC_FETCH_ADD);
	expect(6, IBV_WC_COMP_SWAP);
	CHECK(*(uint64_t *)(p.memory + 128) == 40 && *(uint64_t *)(p.memory + 136) == 42 && *word == 7);
	uint64_t value = 0x1122334455667788;
	start(qp, 7);
	ibv_wr_atomic_write(qp, rkey, addr + 1024, &value);
	CHECK(!ibv_wr_complete(qp));
	expect(7, IBV_WC_ATOMIC_WRITE);
	CHECK(*word == value);

	/* A window of type 2: bound, used, invalidated by the peer's send. */
	struct ibv_mw *mw = ibv_alloc_mw(p.pd, IBV_MW_TYPE_2);
	CHECK(mw);
	struct ibv_qp_ex *other = ibv_qp_to_qp_ex(p.qp[1]);
	struct ibv_mw_bind_info bind = { p.mr, addr, BYTES, IBV_ACCESS_REMOTE_WRITE };
	uint32_t key = ibv_inc_rkey(mw->rkey);
	start(other, 8);
	ibv_wr_bind_mw(other, mw, key, &bind);
	CHECK(!ibv_wr_complete(other));
	CHECK(mw->rkey == key);
	expect(8, IBV_WC_BIND_MW);
	start(qp, 9);
	ibv_wr_rdma_write(qp, key, addr + 600);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory, 8);
	CHECK(!ibv_wr_complete(qp));
	expect(9, IBV_WC_RDMA_WRITE);
	CHECK(!strcmp(remote + 600, "written"));
	start(other, 10);
	ibv_wr_local_inv(other, key);
	CHECK(!ibv_wr_complete(other));
	expect(10, IBV_WC_LOCAL_INV);
	CHECK(!ibv_dealloc_mw(mw));

	/* A mistake is remembered, and nothing of the batch is posted. */
	start(qp, 11);
	ibv_wr_rdma_write(qp, rkey, addr);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory, 8);
	ibv_wr_rdma_write(qp, rkey, addr);
	char large[4096] = { 0 };
	ibv_wr_set_inline_data(qp, large, sizeof(large));
	FAILS(ibv_wr_complete(qp), ENOMEM);
	FAILS(ibv_start_poll(p.cq, &poll), ENOENT);
	start(qp, 12);
	for (int i = 0; i < 5000; i++) {
		ibv_wr_rdma_write(qp, rkey, addr);
		ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory, 8);
	}
	FAILS(ibv_wr_complete(qp), ENOMEM);
	FAILS(ibv_start_poll(p.cq, &poll), ENOENT);
	start(qp, 13);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory, 8);
	FAILS(ibv_wr_complete(qp), EINVAL);
	start(qp, 14);
	ibv_wr_rdma_write(qp, rkey, addr);
	ibv_wr_abort(qp);
	start(qp, 15);
	FAILS(ibv_wr_complete(qp), 0);
	FAILS(ibv_start_poll(p.cq, &poll), ENOENT);
	/* And the next batch is as if nothing had been. */
	start(qp, 16);
	ibv_wr_rdma_write(qp, rkey, addr + 512);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)p.memory, 8);
	CHECK(!ibv_wr_complete(qp));
	expect(16, IBV_WC_RDMA_WRITE);

	/* What nobody asked for is not there. */
	struct ibv_qp_init_attr plain = { .send_cq = ibv_cq_ex_to_cq(p.cq), .recv_cq = ibv_cq_ex_to_cq(p.cq),
					  .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *old = ibv_create_qp(p.pd, &plain);
	CHECK(old && !ibv_qp_to_qp_ex(old));
	CHECK(!ibv_destroy_qp(old));
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(p.cq), .recv_cq = ibv_cq_ex_to_cq(p.cq), .cap = { 1, 1, 1, 1, 0 },
		.qp_type = IBV_QPT_RC, .pd = p.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_TSO,
	};
	NULL_WITH(ibv_create_qp_ex(p.context, &attr), EOPNOTSUPP);
	attr.send_ops_flags = 1ull << 40;
	NULL_WITH(ibv_create_qp_ex(p.context, &attr), EOPNOTSUPP);
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	attr.qp_type = IBV_QPT_UD;
	NULL_WITH(ibv_create_qp_ex(p.context, &attr), EOPNOTSUPP);
	close_pair(&p);
	return 0;
}
