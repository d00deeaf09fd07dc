/* rigcm: one conversation of rdma_cm, with what each side sees of it on one line an event, so that what two kernels say can be
 * compared with what a kernel and the software NIC say. It is the same program on both sides: in the guest on Linux's own
 * connection manager, and on our side under `sfab run`.
 *
 *   server:  rigcm [-u] -b OWN-ADDRESS -p PORT ENDING
 *   client:  rigcm [-u] -b OWN-ADDRESS -p PORT -c SERVER-ADDRESS ENDING
 *
 * -u: a datagram service (UD, SIDR) instead of a connection (RC). -T SECONDS: overall limit (60).
 * ENDING says how it ends, and is the same word on both sides:
 *   client   connect, talk, the client disconnects; both wait until TIMEWAIT is over
 *   server   connect, talk, the server disconnects
 *   exit     connect, talk, the client's process ends without a word
 *   die      connect, talk, the server's process ends without a word
 *   reject   the server rejects, with private data
 *   destroy  the server destroys the request without an answer
 *   nobody   there is no server (the client's only)
 * Talking: the client sends 100 bytes, the server answers with 200.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define die(...) do { fprintf(stderr, "rigcm: " __VA_ARGS__); fprintf(stderr, " (%s)\n", strerror(errno)); exit(2); } while (0)
#define SLOT 4096
#define GRH 40

static double until;
static int datagrams;
static const char *ending;
static struct rdma_event_channel *channel;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static unsigned char *memory;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static int is(const char *word) { return !strcmp(ending, word); }
static uint32_t crc32z(const unsigned char *p, size_t n) {
	uint32_t c = ~0u;
	while (n--) { c ^= *p++; for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0); }
	return ~c;
}

/* The next event, printed; 0 after `seconds` without one. */
static struct rdma_cm_event *next(double seconds) {
	double end = now() + seconds;
	struct pollfd p = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *e;
	if (end > until) end = until;
	int ms = (int)((end - now()) * 1000);
	if (poll(&p, 1, ms > 0 ? ms : 0) <= 0) return 0;
	if (rdma_get_cm_event(channel, &e)) die("get_cm_event");
	const char *name = rdma_event_str(e->event);
	printf("event %s status=%d", strncmp(name, "RDMA_CM_EVENT_", 14) ? name : name + 14, e->status);
	int request = e->event == RDMA_CM_EVENT_CONNECT_REQUEST, answer = e->event == RDMA_CM_EVENT_ESTABLISHED;
	const void *data = datagrams ? e->param.ud.private_data : e->param.conn.private_data;
	int length = datagrams ? e->param.ud.private_data_len : e->param.conn.private_data_len;
	if (!datagrams && (request || (answer && length)))
		printf(" responder_resources=%d initiator_depth=%d flow_control=%d rnr_retry=%d srq=%d", e->param.conn.responder_resources,
		       e->param.conn.initiator_depth, e->param.conn.flow_control, e->param.conn.rnr_retry_count, e->param.conn.srq);
	if (!datagrams && request) printf(" retry=%d", e->param.conn.retry_count);
	if (datagrams && answer) printf(" qkey=%08x", e->param.ud.qkey);
	if ((request || answer || e->event == RDMA_CM_EVENT_REJECTED) && length)
		printf(" private=%d:%.*s", length, (int)strnlen(data, length), (const char *)data);
	printf("\n");
	return e;
}
static struct rdma_cm_event *expect(enum rdma_cm_event_type type) {
	struct rdma_cm_event *e = next(1e9);
	if (!e) die("no event %s in time", rdma_event_str(type));
	if (e->event != type) die("not the event %s", rdma_event_str(type));
	return e;
}
static void await(enum rdma_cm_event_type type) { rdma_ack_cm_event(expect(type)); }

static void objects(struct rdma_cm_id *id) {
	if (!pd) {
		pd = ibv_alloc_pd(id->verbs); cq = ibv_create_cq(id->verbs, 16, 0, 0, 0);
		memory = aligned_alloc(4096, 4 * SLOT); memset(memory, 0, 4 * SLOT);
		mr = pd ? ibv_reg_mr(pd, memory, 4 * SLOT, IBV_ACCESS_LOCAL_WRITE) : 0;
		if (!pd || !cq || !mr) die("objects");
	}
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	if (rdma_create_qp(id, pd, &a)) die("create_qp");
	qp = id->qp;
	for (int i = 0; i < 2; i++) {       /* the second one is there to be flushed */
		struct ibv_sge s = { (uintptr_t)memory + i * SLOT, SLOT, mr->lkey };
		struct ibv_recv_wr w = { .wr_id = i, .sg_list = &s, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp, &w, &bad)) die("post_recv");
	}
}
static struct ibv_wc completion(void) {
	struct ibv_wc wc;
	for (int n; (n = ibv_poll_cq(cq, 1, &wc)) != 1;) {
		if (n < 0 || now() > until) die("no completion in time");
		usleep(500);
	}
	return wc;
}
static void say(int length, int seed, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey) {
	unsigned char *p = memory + 2 * SLOT;
	for (int i = 0; i < length; i++) p[i] = (unsigned char)(i * 7 + seed);
	struct ibv_sge s = { (uintptr_t)p, length, mr->lkey };
	struct ibv_send_wr w = { .wr_id = 100, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	if (ah) { w.wr.ud.ah = ah; w.wr.ud.remote_qpn = qpn; w.wr.ud.remote_qkey = qkey; }
	if (ibv_post_send(qp, &w, &bad)) die("post_send");
}
/* Waits for what was said to be complete, and for what is heard; in any order. */
static struct ibv_wc talk(int sends, int receives) {
	struct ibv_wc wc, heard = { 0 };
	while (sends + receives > 0) {
		wc = completion();
		if (wc.status) { printf("completion %s\n", ibv_wc_status_str(wc.status)); exit(1); }
		if (wc.wr_id == 100) { sends--; continue; }
		int h = datagrams ? GRH : 0;
		printf("heard %u bytes crc32=%08x\n", wc.byte_len - h, crc32z(memory + wc.wr_id * SLOT + h, wc.byte_len - h));
		heard = wc; receives--;
	}
	return heard;
}
static void flushed(void) {
	struct ibv_wc wc = completion();
	printf("flushed wr=%d %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
}
/* The connection ends, by us or by the other side; nothing comes twice. */
static void hung_up(struct rdma_cm_id *id, int is_first, int quiet) {
	if (is_first && rdma_disconnect(id)) die("disconnect");
	await(RDMA_CM_EVENT_DISCONNECTED);
	if (!is_first && rdma_disconnect(id)) printf("disconnect: %s\n", strerror(errno));
	flushed();
	if (quiet) await(RDMA_CM_EVENT_TIMEWAIT_EXIT);
	if (next(0.3)) printf("one event too many\n");
}
/* The kernel ends what a process leaves behind; so does the software NIC, unless it is a signal that ends the process. */
static void end(int rc) { printf("end\n"); exit(rc); }

static struct sockaddr_storage address(const char *host, const char *port) {
	struct addrinfo h = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *r;
	struct sockaddr_storage a = { 0 };
	if (getaddrinfo(host, port, &h, &r)) die("address %s", host);
	memcpy(&a, r->ai_addr, r->ai_addrlen);
	freeaddrinfo(r);
	return a;
}

static void server(struct rdma_cm_id *listener) {
	if (rdma_listen(listener, 4)) die("listen");
	fprintf(stderr, "listening\n");
	struct rdma_cm_event *e = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = e->id;
	rdma_ack_cm_event(e);
	if (is("reject")) {
		if (rdma_reject(id, "not today", 10)) die("reject");
		if (next(0.5)) printf("one event too many\n");
		rdma_destroy_id(id); end(0);
	}
	if (is("destroy")) { rdma_destroy_id(id); usleep(500000); end(0); }
	objects(id);
	struct rdma_conn_param p = { .private_data = "welcome", .private_data_len = 8, .responder_resources = 2, .initiator_depth = 3,
		.flow_control = 1, .rnr_retry_count = 6, .qp_num = qp->qp_num };
	if (rdma_accept(id, &p)) die("accept");
	if (datagrams) {
		struct ibv_wc wc = talk(0, 1);
		struct ibv_ah *ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)(memory + wc.wr_id * SLOT), id->port_num);
		if (!ah) die("create_ah_from_wc");
		say(200, 2, ah, wc.src_qp, RDMA_UDP_QKEY); talk(1, 0);
		if (next(0.3)) printf("one event too many\n");
		rdma_destroy_qp(id); rdma_destroy_id(id); end(0);
	}
	await(RDMA_CM_EVENT_ESTABLISHED);
	talk(0, 1);
	say(200, 2, 0, 0, 0); talk(1, 0);
	if (is("die")) { usleep(300000); end(0); }
	if (is("server")) usleep(300000);          /* the client has heard us */
	hung_up(id, is("server"), is("client"));
	rdma_destroy_qp(id); rdma_destroy_id(id); end(0);
}

static void client(struct rdma_cm_id *id, struct sockaddr *own, const char *host, const char *port) {
	struct sockaddr_storage peer = address(host, port);
	if (rdma_resolve_addr(id, own, (struct sockaddr *)&peer, 2000)) die("resolve_addr");
	await(RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000)) die("resolve_route");
	await(RDMA_CM_EVENT_ROUTE_RESOLVED);
	objects(id);
	struct rdma_conn_param p = { .private_data = "good day", .private_data_len = 9, .responder_resources = 4, .initiator_depth = 5,
		.retry_count = 6, .rnr_retry_count = 5, .flow_control = 1, .qp_num = qp->qp_num };
	if (rdma_connect(id, &p)) die("connect");
	if (is("reject") || is("destroy") || is("nobody")) {
		rdma_ack_cm_event(expect(datagrams ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED));
		if (next(0.3)) printf("one event too many\n");
		rdma_destroy_qp(id); rdma_destroy_id(id); end(0);
	}
	struct rdma_cm_event *e = expect(RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_ah *ah = 0; uint32_t qpn = 0, qkey = 0;
	if (datagrams) {
		qpn = e->param.ud.qp_num; qkey = e->param.ud.qkey;
		if (!(ah = ibv_create_ah(pd, &e->param.ud.ah_attr))) die("create_ah");
	}
	rdma_ack_cm_event(e);
	say(100, 1, ah, qpn, qkey); talk(1, 1);
	if (is("exit")) { usleep(300000); end(0); }
	if (!datagrams) hung_up(id, is("client"), is("client"));
	rdma_destroy_qp(id); rdma_destroy_id(id); end(0);
}

int main(int ac, char **av) {
	const char *own = 0, *host = 0, *port = "7471";
	int limit = 60;
	for (int o; (o = getopt(ac, av, "ub:p:c:T:")) != -1;) switch (o) {
		case 'u': datagrams = 1; break; case 'b': own = optarg; break; case 'p': port = optarg; break;
		case 'c': host = optarg; break; case 'T': limit = atoi(optarg); break; default: return 2; }
	if (optind + 1 != ac || !own) { fprintf(stderr, "rigcm [-u] -b ADDRESS -p PORT [-c SERVER] ENDING\n"); return 2; }
	ending = av[optind];
	until = now() + limit;
	setvbuf(stdout, 0, _IOLBF, 0);
	alarm(limit + 5);
	channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	if (!channel || rdma_create_id(channel, &id, 0, datagrams ? RDMA_PS_UDP : RDMA_PS_TCP)) die("create_id");
	struct sockaddr_storage bound = address(own, host ? "0" : port);
	if (host) { client(id, (struct sockaddr *)&bound, host, port); return 0; }
	if (rdma_bind_addr(id, (struct sockaddr *)&bound)) die("bind_addr %s", own);
	server(id);
	return 0;
}
