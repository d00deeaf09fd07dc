/* Events: given out, counted, waited for. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>
#include <poll.h>
#include <pthread.h>

static volatile int acknowledged;

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
	(void)number;
	signals++;
}

static void *acknowledge_cq(void *cq)
{
	usleep(100000);
	acknowledged = 1;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void *acknowledge_async(void *event)
{
	usleep(100000);
	acknowledged = 1;
	ibv_ack_async_event(event);
	return NULL;
}

int main(void)
{
	struct pair p = open_pair(0, 0);
	CHECK(fcntl(p.context->cmd_fd, F_GETFD) >= 0);

	/* A channel is busy while CQs use it, and honours O_NONBLOCK. */
	struct ibv_comp_channel *channel = ibv_create_comp_channel(p.context);
	CHECK(channel && channel->fd >= 0 && channel->refcnt == 0);
	int mine;
	struct ibv_cq *cq = ibv_create_cq(p.context, 8, &mine, channel, 0), *told;
	CHECK(cq && channel->refcnt == 1);
	FAILS(ibv_destroy_comp_channel(channel), EBUSY);
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	void *context;
	errno = 0;
	FAILS(ibv_get_cq_event(channel, &told, &context), -1);
	CHECK(errno == EAGAIN);

	/* A signal ends a wait, unless its handler asks for calls to begin again. */
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK));
	struct sigaction interrupt = { .sa_handler = count_signal };
	CHECK(!sigaction(SIGALRM, &interrupt, NULL));
	CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){ .it_value.tv_usec = 20000 }, NULL));
	FAILS(ibv_get_cq_event(channel, &told, &context), -1);
	CHECK(errno == EINTR && signals == 1);
	CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){ .it_value.tv_usec = 20000 }, NULL));
	FAILS(ibv_get_async_event(p.context, &(struct ibv_async_event){ 0 }), -1);
	CHECK(errno == EINTR && signals == 2);
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));

	/* An event of a completion; destroying waits until it is acknowledged. */
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(p.pd, &attr);
	CHECK(qp);
	CHECK(!connect_qp(qp, qp, p.gid));
	CHECK(!ibv_req_notify_cq(cq, 0));
	struct ibv_sge sge = { (uintptr_t)p.memory, 8, p.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)p.memory + BYTES, p.mr->rkey } }, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	struct pollfd wait = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&wait, 1, 10000) == 1);
	CHECK(!ibv_get_cq_event(channel, &told, &context));
	CHECK(told == cq && context == &mine);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 5 && wc.status == IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(qp));
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, acknowledge_cq, cq));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(acknowledged);
	pthread_join(thread, NULL);
	CHECK(channel->refcnt == 0);
	CHECK(!ibv_destroy_comp_channel(channel));

	/* An asynchronous event: a QP with an SRQ that goes to ERR takes no more of it. */
	CHECK(!fcntl(p.context->async_fd, F_SETFL, fcntl(p.context->async_fd, F_GETFL) | O_NONBLOCK));
	struct ibv_async_event event;
	errno = 0;
	FAILS(ibv_get_async_event(p.context, &event), -1);
	CHECK(errno == EAGAIN);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(p.pd, &srq_attr);
	CHECK(srq && srq_attr.attr.max_wr >= 8);
	attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(p.cq);
	attr.srq = srq;
	qp = ibv_create_qp(p.pd, &attr);
	CHECK(qp && !connect_qp(qp, qp, p.gid));
	CHECK(!ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE));
	wait.fd = p.context->async_fd;
	CHECK(poll(&wait, 1, 10000) == 1);
	CHECK(!ibv_get_async_event(p.context, &event));
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
	acknowledged = 0;
	CHECK(!pthread_create(&thread, NULL, acknowledge_async, &event));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(acknowledged);
	pthread_join(thread, NULL);
	CHECK(!ibv_destroy_srq(srq));

	/* The device can be imported by its descriptor, and its objects by their handles. */
	struct ibv_context *again = ibv_import_device(dup(p.context->cmd_fd));
	CHECK(again && again != p.context && again->device == p.context->device);
	struct ibv_pd *pd = ibv_import_pd(again, p.pd->handle);
	CHECK(pd);
	struct ibv_mr *mr = ibv_import_mr(pd, p.mr->handle);
	CHECK(mr && mr->lkey == p.mr->lkey && mr->rkey == p.mr->rkey);
	NULL_WITH(ibv_import_pd(again, 0xffffff), ENOENT);
	ibv_unimport_mr(mr);
	ibv_unimport_pd(pd);
	CHECK(!ibv_close_device(again));
	close_pair(&p);
	return 0;
}
