/* Nonsense gets an errno: null, handles that are gone, wrong sizes, unknown flags, newer bits. Never a crash. */
#include "check.h"

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *port_attr);
#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);

int main(void)
{
	struct pair p = open_pair(0, 0);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(p.cq);

	/* Null where libibverbs would follow the pointer. */
	FAILS(ibv_dealloc_pd(NULL), EINVAL);
	FAILS(ibv_dereg_mr(NULL), EINVAL);
	FAILS(ibv_destroy_cq(NULL), EINVAL);
	FAILS(ibv_destroy_qp(NULL), EINVAL);
	FAILS(ibv_destroy_srq(NULL), EINVAL);
	FAILS(ibv_destroy_ah(NULL), EINVAL);
	FAILS(ibv_destroy_comp_channel(NULL), EINVAL);
	FAILS(ibv_close_device(NULL), EINVAL);
	FAILS(ibv_modify_qp(NULL, NULL, 0), EINVAL);
	FAILS(ibv_modify_qp(p.qp[0], NULL, IBV_QP_STATE), EINVAL);
	FAILS(ibv_query_qp(p.qp[0], NULL, 0, NULL), EINVAL);
	FAILS(ibv_query_device(p.context, NULL), EINVAL);
	FAILS(ibv_query_gid(p.context, 1, 0, NULL), -1);
	NULL_WITH(ibv_open_device(NULL), EINVAL);
	NULL_WITH(ibv_alloc_pd(NULL), EINVAL);
	NULL_WITH(ibv_create_qp(NULL, NULL), EINVAL);
	NULL_WITH(ibv_create_qp(p.pd, NULL), EINVAL);
	NULL_WITH(ibv_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
	NULL_WITH(ibv_create_ah(p.pd, NULL), EINVAL);
	NULL_WITH(ibv_create_cq_ex(p.context, NULL), EINVAL);
	ibv_ack_cq_events(NULL, 1);
	ibv_ack_async_event(NULL);
	ibv_free_device_list(NULL);

	/* Numbers beyond the limits, unknown flags. */
	NULL_WITH(ibv_create_cq(p.context, 0, NULL, NULL, 0), EINVAL);
	NULL_WITH(ibv_create_cq(p.context, -5, NULL, NULL, 0), EINVAL);
	NULL_WITH(ibv_create_cq(p.context, 1, NULL, NULL, p.context->num_comp_vectors), EINVAL);
	NULL_WITH(ibv_create_cq(p.context, 1, NULL, NULL, -1), EINVAL);
	NULL_WITH(ibv_reg_mr(p.pd, p.memory, BYTES, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NULL_WITH(ibv_reg_mr(p.pd, p.memory, BYTES, 1 << 15), EINVAL);
	struct ibv_mr *relaxed = ibv_reg_mr_iova2(p.pd, p.memory, BYTES, 0x1000, IBV_ACCESS_LOCAL_WRITE | 0x3ff00000);
	CHECK(relaxed && !ibv_dereg_mr(relaxed));
	FAILS(ibv_modify_qp(p.qp[0], &(struct ibv_qp_attr){ .qp_state = 77 }, IBV_QP_STATE), EINVAL);
	FAILS(ibv_modify_qp(p.qp[0], &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE | 1 << 30), EINVAL);
	FAILS(ibv_rereg_mr(p.mr, 1 << 10, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	FAILS(ibv_rereg_mr(p.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	FAILS(ibv_rereg_mr(p.mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD);
	struct ibv_ah_attr no_grh = { .dlid = 1, .port_num = 1 };
	NULL_WITH(ibv_create_ah(p.pd, &no_grh), EINVAL);
	NULL_WITH(ibv_alloc_mw(p.pd, 9), EINVAL);
	struct ibv_qp_init_attr raw = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 },
					.qp_type = IBV_QPT_RAW_PACKET };
	NULL_WITH(ibv_create_qp(p.pd, &raw), EOPNOTSUPP);
	raw.qp_type = IBV_QPT_DRIVER;
	NULL_WITH(ibv_create_qp(p.pd, &raw), EOPNOTSUPP);
	raw.qp_type = 50;
	NULL_WITH(ibv_create_qp(p.pd, &raw), EINVAL);
	raw.qp_type = IBV_QPT_RC;
	raw.send_cq = NULL;
	NULL_WITH(ibv_create_qp(p.pd, &raw), EINVAL);
	NULL_WITH(ibv_reg_dmabuf_mr(p.pd, 0, BYTES, 0, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
	struct ibv_ece ece = { .vendor_id = 0x15b3 };
	FAILS(ibv_set_ece(p.qp[0], &ece), EOPNOTSUPP);
	FAILS(ibv_query_ece(p.qp[0], &ece), EOPNOTSUPP);
	CHECK(ece.vendor_id == 0);

	/* Newer bits of comp_mask. */
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 1, .comp_mask = 1 << 20 };
	NULL_WITH(ibv_create_cq_ex(p.context, &cq_attr), EINVAL);
	cq_attr.comp_mask = 0;
	cq_attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
	NULL_WITH(ibv_create_cq_ex(p.context, &cq_attr), EOPNOTSUPP);
	struct ibv_qp_init_attr_ex qp_attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = p.pd,
					       .comp_mask = IBV_QP_INIT_ATTR_PD | 1 << 20 };
	NULL_WITH(p.context->abi_compat ? ibv_create_qp_ex(p.context, &qp_attr) : NULL, EOPNOTSUPP);
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	struct ibv_device_attr_ex attr_ex;
	FAILS(ibv_query_device_ex(p.context, &input, &attr_ex), EINVAL);
	struct ibv_gid_entry entry;
	FAILS(ibv_query_gid_ex(p.context, 1, 0, &entry, 1), EOPNOTSUPP);
	FAILS(ibv_query_gid_ex(p.context, 1, 100, &entry, 0), ENODATA);

	/* What is written is as long as it should be, and not a byte longer. */
	unsigned char port[64];
	memset(port, 0xaa, sizeof(port));
	CHECK(!ibv_query_port(p.context, 1, (struct _compat_ibv_port_attr *)port));
	CHECK(port[46] == IBV_LINK_LAYER_ETHERNET && port[48] == 0xaa && port[63] == 0xaa);
	union ibv_gid gid;
	CHECK(!ibv_query_gid(p.context, 1, 100, &gid));
	CHECK(!gid.global.interface_id && !gid.global.subnet_prefix);
	FAILS(ibv_query_gid(p.context, 1, 100000, &gid), -1);
	FAILS(ibv_query_gid(p.context, 1, -1, &gid), -1);
	FAILS(ibv_query_gid(p.context, 9, 0, &gid), -1);
	CHECK(ibv_query_gid_table(p.context, &entry, 0, 0) == -EINVAL);

	/* The same device has the same address each time. */
	struct ibv_device **a = ibv_get_device_list(NULL), **b = ibv_get_device_list(NULL);
	CHECK(a && b && a[0] == b[0]);
	ibv_free_device_list(a);
	ibv_free_device_list(b);

	/* Chains: what is before the mistake is posted, also beyond what we take at once. */
	struct ibv_sge sge = { (uintptr_t)p.memory, 8, p.mr->lkey };
	struct ibv_recv_wr wrs[40], *bad = NULL;
	for (int i = 0; i < 40; i++)
		wrs[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < 39 ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	FAILS(ibv_post_recv(p.qp[1], wrs, &bad), ENOMEM);
	CHECK(bad == &wrs[SLOTS]);
	bad = NULL;
	struct ibv_send_wr sends[3], *bad_send = NULL;
	for (int i = 0; i < 3; i++)
		sends[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < 2 ? &sends[i + 1] : NULL, .sg_list = &sge,
						 .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
						 .wr.rdma = { (uintptr_t)p.memory + BYTES, p.mr->rkey } };
	sends[1].opcode = IBV_WR_TSO;
	FAILS(ibv_post_send(p.qp[0], sends, &bad_send), EINVAL);
	CHECK(bad_send == &sends[1]);
	struct ibv_wc wc = wait_one(&p);
	CHECK(wc.wr_id == 0 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
	sends[1].opcode = IBV_WR_RDMA_WRITE;
	sends[1].send_flags = 1 << 7;
	FAILS(ibv_post_send(p.qp[0], &sends[1], &bad_send), EINVAL);
	sends[1].send_flags = 0;
	sends[1].num_sge = -1;
	FAILS(ibv_post_send(p.qp[0], &sends[1], &bad_send), EINVAL);
	sends[1].num_sge = 200;
	FAILS(ibv_post_send(p.qp[0], &sends[1], &bad_send), EINVAL);
	FAILS(ibv_post_send(p.qp[0], NULL, &bad_send), 0);

	/* Requests of all forms in a chain: they go in their order, and the one at fault is named wherever it stands. */
	struct ibv_send_wr mixed[6];
	char *here = p.memory, *there = p.memory + BYTES;
	strcpy(here, "abcdefgh");
	struct ibv_sge parts[6] = { { (uintptr_t)here, 8, p.mr->lkey }, { (uintptr_t)here + 64, 8, p.mr->lkey },
				    { (uintptr_t)"12", 2, 0 },          { (uintptr_t)here + 4, 4, p.mr->lkey },
				    { (uintptr_t)here, 8, p.mr->lkey }, { (uintptr_t)here, 8, p.mr->lkey } };
	static const enum ibv_wr_opcode opcodes[6] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
						       IBV_WR_RDMA_WRITE, IBV_WR_TSO,       IBV_WR_RDMA_WRITE };
	static const int to[6] = { 0, 0, 0, 2, 0, 0 };
	for (int fault = 0; fault < 6; fault++) {
		memset(there, 0, 8);
		memset(here + 64, 0, 8);
		for (int i = 0; i < 6; i++)
			mixed[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < 5 ? &mixed[i + 1] : NULL, .sg_list = &parts[i],
							 .num_sge = 1, .opcode = opcodes[i], .send_flags = IBV_SEND_SIGNALED,
							 .wr.rdma = { (uintptr_t)there + to[i], p.mr->rkey } };
		/* Else the READ might find what this writes. */
		mixed[2].send_flags |= IBV_SEND_INLINE | IBV_SEND_FENCE;
		mixed[fault].num_sge = 200;
		bad_send = NULL;
		FAILS(ibv_post_send(p.qp[0], mixed, &bad_send), EINVAL);
		int refused = fault < 4 ? fault : 4;
		CHECK(bad_send == &mixed[refused]);
		for (int i = 0; i < refused; i++) {
			wc = wait_one(&p);
			CHECK(wc.wr_id == (uint64_t)i && wc.status == IBV_WC_SUCCESS);
		}
		static const char *const left[] = { "", "abcdefgh", "abcdefgh", "12cdefgh", "12efghgh" };
		CHECK(!strncmp(there, left[refused], 8));
		CHECK(!strncmp(here + 64, refused < 2 ? "" : "abcdefgh", 8));
	}

	/* A full queue, where requests wait in it. */
	if (getenv("SCALEFABRIC_PATH") && !strcmp(getenv("SCALEFABRIC_PATH"), "wire")) {
		struct ibv_send_wr many[SLOTS + 5];
		for (int i = 0; i < SLOTS + 5; i++)
			many[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < SLOTS + 4 ? &many[i + 1] : NULL, .sg_list = &sge,
							.num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
							.wr.rdma = { (uintptr_t)p.memory + BYTES, p.mr->rkey } };
		FAILS(ibv_post_send(p.qp[0], many, &bad_send), ENOMEM);
		CHECK(bad_send == &many[SLOTS]);
		for (int i = 0; i < SLOTS; i++)
			CHECK(wait_one(&p).wr_id == (uint64_t)i);
	}
	CHECK(ibv_poll_cq(cq, 0, NULL) == 0 && ibv_poll_cq(cq, -1, &wc) < 0);

	/* In use, and gone. */
	FAILS(ibv_dealloc_pd(p.pd), EBUSY);
	FAILS(ibv_destroy_cq(cq), EBUSY);
	struct ibv_pd *pd = ibv_alloc_pd(p.context);
	struct ibv_mr *mr = ibv_reg_mr(pd, p.memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	CHECK(pd && mr);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	FAILS(ibv_dereg_mr(mr), EINVAL);
	FAILS(ibv_dealloc_pd(pd), EINVAL);
	NULL_WITH(ibv_reg_mr(pd, p.memory, BYTES, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	struct ibv_qp *gone = p.qp[0];
	struct ibv_context *context = p.context;
	close_pair(&p);
	sends[0].next = NULL;
	FAILS(ibv_post_send(gone, sends, &bad_send), EINVAL);
	CHECK(bad_send == sends);
	FAILS(ibv_destroy_qp(gone), EINVAL);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	FAILS(ibv_close_device(context), EINVAL);
	NULL_WITH(ibv_alloc_pd(context), EINVAL);
	return 0;
}
