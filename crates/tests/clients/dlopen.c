/* A program that is not linked with libibverbs: it opens the library and asks for each function with its version, as NCCL
 * does. It opens the device DEV, connects two RC QPs of its own with each other, and writes from one buffer to another.
 * Usage: dlopen DEV GID-INDEX LIBRARY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static void *ask(const char *name)
{
	void *found = dlvsym(library, name, "IBVERBS_1.1");
	if (!found) {
		printf("no %s: %s\n", name, dlerror());
		exit(1);
	}
	return found;
}
#define GET(name, result, ...) result (*p_##name)(__VA_ARGS__) = ask(#name)
#define MUST(what) do { if (!(what)) { printf("wrong: %s\n", #what); return 1; } } while (0)

int main(int argc, char **argv)
{
	MUST(argc == 4);
	int gid_index = atoi(argv[2]);
	library = dlopen(argv[3], RTLD_NOW);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	GET(ibv_get_device_list, struct ibv_device **, int *);
	GET(ibv_get_device_name, const char *, struct ibv_device *);
	GET(ibv_open_device, struct ibv_context *, struct ibv_device *);
	GET(ibv_query_gid, int, struct ibv_context *, uint8_t, int, union ibv_gid *);
	GET(ibv_alloc_pd, struct ibv_pd *, struct ibv_context *);
	GET(ibv_reg_mr, struct ibv_mr *, struct ibv_pd *, void *, size_t, int);
	GET(ibv_create_cq, struct ibv_cq *, struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	GET(ibv_create_qp, struct ibv_qp *, struct ibv_pd *, struct ibv_qp_init_attr *);
	GET(ibv_modify_qp, int, struct ibv_qp *, struct ibv_qp_attr *, int);
	GET(ibv_destroy_qp, int, struct ibv_qp *);

	int number = 0;
	struct ibv_device **list = p_ibv_get_device_list(&number), *device = NULL;
	for (int i = 0; i < number; i++)
		if (!strcmp(p_ibv_get_device_name(list[i]), argv[1]))
			device = list[i];
	MUST(device);
	struct ibv_context *context = p_ibv_open_device(device);
	MUST(context);
	union ibv_gid gid;
	MUST(p_ibv_query_gid(context, 1, gid_index, &gid) == 0);
	struct ibv_pd *pd = p_ibv_alloc_pd(context);
	MUST(pd);
	static char from[10000], to[10000];
	memset(from, 7, sizeof from);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *source = (p_ibv_reg_mr)(pd, from, sizeof from, access);
	struct ibv_mr *target = (p_ibv_reg_mr)(pd, to, sizeof to, access);
	struct ibv_cq *cq = p_ibv_create_cq(context, 16, NULL, NULL, 0);
	MUST(source && target && cq);
	struct ibv_qp *qp[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
		MUST(qp[i] = p_ibv_create_qp(pd, &init));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
		MUST(p_ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp[1 - i]->qp_num,
			.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } } };
		MUST(p_ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
		MUST(p_ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	}
	struct ibv_sge sge = { (uintptr_t)from, sizeof from, source->lkey };
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)to, target->rkey } }, *bad;
	MUST(ibv_post_send(qp[0], &wr, &bad) == 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
	MUST(!memcmp(from, to, sizeof from));
	MUST(p_ibv_destroy_qp(qp[0]) == 0 && p_ibv_destroy_qp(qp[1]) == 0);
	printf("written through %s\n", argv[3]);
	return 0;
}
