/* A program may close every number there is, and put files of its own in any place: the NIC goes on, and takes nothing of
 * the program's. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>

static void write_once(struct pair *p)
{
	struct ibv_sge sge = { (uintptr_t)p->memory, 8, p->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)p->memory + BYTES;
	wr.wr.rdma.rkey = p->mr->rkey;
	CHECK(!ibv_post_send(p->qp[0], &wr, &bad));
	struct ibv_wc wc;
	int count;
	while (!(count = ibv_poll_cq(ibv_cq_ex_to_cq(p->cq), 1, &wc)))
		;
	CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
}

static int is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

int main(void)
{
	struct pair p = open_pair(0, 0);
	write_once(&p);

	/* The program's own are closed, between ours and beyond them. */
	int own = open("/dev/null", O_RDWR), far = fcntl(own, F_DUPFD, 900);
	CHECK(own > 2 && far >= 900);
	closefrom(3);
	CHECK(!is_open(own) && !is_open(far));
	write_once(&p);

	own = open("/dev/null", O_RDWR);
	far = fcntl(own, F_DUPFD, 900);
	CHECK(!close_range(3, ~0U, 0));
	CHECK(!is_open(own) && !is_open(far));
	write_once(&p);
	CHECK(close_range(5, 4, 0) < 0 && errno == EINVAL);

	own = open("/dev/null", O_RDWR);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	CHECK(!is_open(own));
	write_once(&p);
	close_pair(&p);

	/* Its own stay open when the NIC ends, wherever it has put them. */
	struct ibv_context *context = open_first();
	own = memfd_create("own", 0);
	for (int fd = 3; fd < 200; fd++)
		CHECK(dup2(own, fd) == fd);
	ibv_close_device(context);
	for (int fd = 3; fd < 200; fd++)
		CHECK(is_open(fd));
	CHECK(lseek(own, 0, SEEK_END) == 0);
	return 0;
}
