/* rigstage: the guest's half of the stage on which dialogues are played against Linux. One process a play: it makes, changes and
 * uses verbs objects as told, line by line, over a TCP connection, and says what completed. It decides nothing itself.
 *
 * The connection runs over the same interface as the RoCE packets. That is why the answer to `fence` comes after whatever the
 * kernel had to say to the packets before it.
 *
 *   rigstage [-d DEV] [-t TCPPORT]      serves plays, each in a process of its own
 *
 * Objects are numbered in the order in which they are made, each kind for itself. Numbers are decimal or 0x…; a missing GID is "-".
 *   gid HEX32                                    the GID that our packets come from (for both families, say it twice)
 *   mr PD LEN ACCESS                          -> ok N ADDR LKEY RKEY
 *   write MR HEX | read MR OFFSET LEN | dereg MR
 *   mw PD                                     -> ok N RKEY
 *   srq PD LIMIT | arm SRQ LIMIT              -> ok N
 *   qp TYPE PD SRQ|-1 SIGALL SENDS RECVS CQ   -> ok N QPN
 *   modify QP MASK STATE CUR MTU MIG QKEY RQ_PSN SQ_PSN DEST ACCESS PKEY_INDEX RD DEST_RD MIN_RNR PORT TIMEOUT RETRY RNR DGID TC HOP FLOW
 *   query QP                                  -> ok STATE MTU MIG QKEY RQ_PSN SQ_PSN DEST PKEY_INDEX DRAINING RD DEST_RD MIN_RNR PORT TIMEOUT RETRY RNR
 *   send QP WR OPCODE FLAGS VA RKEY IMM INV A B DGID QPN QKEY MW MR ADDR LEN ACCESS NEWKEY (ADDR LEN LKEY)*
 *   recv q|s N WR (ADDR LEN LKEY)*
 *   attach QP GID | detach QP GID | destroy QP
 *   fence                                     -> wc q|s N s|r WR STATUS OPCODE LEN IMM INV QPN SRC FLAGS …, ev TYPE q|s|n N …, ok
 * What is refused is answered by "err ERRNO".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY 64
#define die(...) do { fprintf(stderr, __VA_ARGS__); fprintf(stderr, " (%s)\n", strerror(errno)); exit(2); } while (0)
typedef unsigned long long u64;

static struct ibv_context *cx;
static struct ibv_pd *pds[16];
static struct { struct ibv_mr *mr; unsigned char *p; size_t len; } mrs[MANY];
static struct ibv_mw *mws[MANY];
static struct { u64 wr; unsigned qpn, old; } binds[MANY];
static struct ibv_srq *srqs[MANY];
static struct { struct ibv_qp *qp; struct ibv_cq *s, *r; int pd; } qps[MANY];
static struct ibv_ah *ahs[4 * MANY];
static int nmr, nmw, nsrq, nqp, nah, sgid[2];
static FILE *in, *out;
static char *rest;

static char *word(void) { char *w = strsep(&rest, " \n"); return w ? w : ""; }
static u64 num(void) { return strtoull(word(), 0, 0); }
static int more(void) { return rest && *rest; }
static int gid(const char *h, union ibv_gid *g) {
	for (int k = 0; k < 16; k++) { unsigned v; if (sscanf(h + 2 * k, "%2x", &v) != 1) return 0; g->raw[k] = v; }
	return 1;
}
static int is_v4(union ibv_gid *g) { return !memcmp(g->raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12); }
static struct ibv_pd *pd(int n) { n &= 15; if (!pds[n]) pds[n] = ibv_alloc_pd(cx); return pds[n]; }
static void answer(int e) { if (e) fprintf(out, "err %d\n", e); else fprintf(out, "ok\n"); }
static int err(void) { return errno ? errno : EINVAL; }

static void to_handle(struct ibv_ah_attr *a, union ibv_gid *d, int tc, int hop, int flow) {
	memset(a, 0, sizeof *a);
	a->is_global = 1; a->port_num = 1;
	a->grh.dgid = *d; a->grh.sgid_index = sgid[!is_v4(d)]; a->grh.traffic_class = tc; a->grh.hop_limit = hop; a->grh.flow_label = flow;
}
static int pieces(struct ibv_sge *s) {
	int n = 0;
	for (; more() && n < 8; n++) { s[n].addr = num(); s[n].length = num(); s[n].lkey = num(); }
	return n;
}
static void do_modify(int i) {
	struct ibv_qp_attr a; memset(&a, 0, sizeof a);
	int mask = num();
	a.qp_state = num(); a.cur_qp_state = num(); a.path_mtu = num(); a.path_mig_state = num(); a.qkey = num(); a.rq_psn = num(); a.sq_psn = num();
	a.dest_qp_num = num(); a.qp_access_flags = num(); a.pkey_index = num(); a.max_rd_atomic = num(); a.max_dest_rd_atomic = num();
	a.min_rnr_timer = num(); a.port_num = num(); a.timeout = num(); a.retry_cnt = num(); a.rnr_retry = num();
	union ibv_gid d; char *g = word(); int tc = num(), hop = num(), flow = num();
	if (gid(g, &d)) to_handle(&a.ah_attr, &d, tc, hop, flow);
	answer(ibv_modify_qp(qps[i].qp, &a, mask));
}
static void do_send(int i) {
	struct ibv_sge s[8]; struct ibv_send_wr w, *bad; memset(&w, 0, sizeof w);
	w.wr_id = num(); w.opcode = num(); w.send_flags = num();
	u64 va = num(), rkey = num(); unsigned imm = num(), inv = num(); u64 a = num(), b = num();
	union ibv_gid d; char *g = word(); unsigned qpn = num(), qkey = num(), mw = num(), mr = num();
	u64 addr = num(), len = num(); unsigned acc = num(), key = num();
	w.num_sge = pieces(s); w.sg_list = s;
	w.imm_data = htonl(imm);
	switch (w.opcode) {
	case IBV_WR_SEND_WITH_INV: case IBV_WR_LOCAL_INV: w.invalidate_rkey = inv; break;
	case IBV_WR_ATOMIC_CMP_AND_SWP: case IBV_WR_ATOMIC_FETCH_AND_ADD:
		w.wr.atomic.remote_addr = va; w.wr.atomic.rkey = rkey; w.wr.atomic.compare_add = a; w.wr.atomic.swap = b; break;
	case IBV_WR_BIND_MW:
		w.bind_mw.mw = mws[mw % MANY]; w.bind_mw.rkey = key;
		w.bind_mw.bind_info.mr = len ? mrs[mr % MANY].mr : 0; w.bind_mw.bind_info.addr = addr; w.bind_mw.bind_info.length = len;
		w.bind_mw.bind_info.mw_access_flags = acc; break;
	default: w.wr.rdma.remote_addr = va; w.wr.rdma.rkey = rkey; }
	if (gid(g, &d)) {
		struct ibv_ah_attr h; to_handle(&h, &d, 0, 64, 0);
		struct ibv_ah *ah = ibv_create_ah(pd(qps[i].pd), &h);
		if (!ah) { answer(err()); return; }
		if (nah < 4 * MANY) ahs[nah++] = ah;
		w.wr.ud.ah = ah; w.wr.ud.remote_qpn = qpn; w.wr.ud.remote_qkey = qkey;
	}
	int e = ibv_post_send(qps[i].qp, &w, &bad);
	if (!e && w.opcode == IBV_WR_BIND_MW) {         /* the window's key is the application's to keep; a bind that fails leaves the old one */
		binds[mw % MANY].wr = w.wr_id; binds[mw % MANY].qpn = qps[i].qp->qp_num; binds[mw % MANY].old = mws[mw % MANY]->rkey;
		mws[mw % MANY]->rkey = key;
	}
	answer(e);
}
static void undo_bind(struct ibv_wc *w) {
	for (int i = 0; i < nmw; i++)
		if (binds[i].qpn == w->qp_num && binds[i].wr == w->wr_id) { mws[i]->rkey = binds[i].old; binds[i].qpn = 0; }
}
static void drain(struct ibv_cq *cq, char kind, int n, char side) {
	struct ibv_wc w;
	while (cq && ibv_poll_cq(cq, 1, &w) > 0) {
		if (w.status && side == 's') undo_bind(&w);
		fprintf(out, "wc %c %d %c %llu %d %d %u %u %u %u %u %u\n", kind, n, side, (u64)w.wr_id, w.status, w.opcode, w.byte_len,
			w.wc_flags & IBV_WC_WITH_IMM ? ntohl(w.imm_data) : 0, w.wc_flags & IBV_WC_WITH_INV ? w.invalidated_rkey : 0, w.qp_num, w.src_qp, w.wc_flags);
	}
}
static void do_fence(void) {
	for (int k = 0; k < 4; k++) sched_yield();      /* one virtual CPU: the kernel's own threads get their turn */
	for (int i = 0; i < nqp; i++) { if (qps[i].qp) { drain(qps[i].s, 'q', i, 's'); drain(qps[i].r, 'q', i, 'r'); } }
	struct ibv_async_event e;
	while (!ibv_get_async_event(cx, &e)) {
		char kind = 'n'; int n = 0;
		if (e.event_type == IBV_EVENT_SRQ_ERR || e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) {
			for (int i = 0; i < nsrq; i++) if (srqs[i] == e.element.srq) { kind = 's'; n = i; }
		} else if (e.event_type <= IBV_EVENT_PATH_MIG_ERR || e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
			for (int i = 0; i < nqp; i++) if (e.event_type != IBV_EVENT_CQ_ERR && qps[i].qp == e.element.qp) { kind = 'q'; n = i; }
		}
		fprintf(out, "ev %d %c %d\n", e.event_type, kind, n);
		ibv_ack_async_event(&e);
	}
	fprintf(out, "ok\n");
}
static void do_qp(void) {
	if (nqp == MANY) { answer(ENOMEM); return; }
	int type = num(), p = num(), srq = strtol(word(), 0, 0), all = num(), sends = num(), recvs = num(), cqe = num();
	struct ibv_cq *s = ibv_create_cq(cx, cqe, 0, 0, 0), *r = ibv_create_cq(cx, cqe, 0, 0, 0);
	struct ibv_qp_init_attr q = { .send_cq = s, .recv_cq = r, .qp_type = type, .sq_sig_all = all, .srq = srq >= 0 ? srqs[srq % MANY] : 0,
		.cap = { .max_send_wr = sends, .max_recv_wr = recvs, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64 } };
	struct ibv_qp *qp = s && r ? ibv_create_qp(pd(p), &q) : 0;
	if (!qp) { answer(err()); return; }
	qps[nqp].qp = qp; qps[nqp].s = s; qps[nqp].r = r; qps[nqp].pd = p;
	fprintf(out, "ok %d %u\n", nqp++, qp->qp_num);
}
static void obey(char *c) {
	errno = 0;
	if (!strcmp(c, "fence")) do_fence();
	else if (!strcmp(c, "gid")) {
		union ibv_gid want, have; struct ibv_port_attr pa;
		if (!gid(word(), &want) || ibv_query_port(cx, 1, &pa)) { answer(EINVAL); return; }
		for (int i = 0; i < pa.gid_tbl_len; i++)
			if (!ibv_query_gid(cx, 1, i, &have) && !memcmp(&want, &have, 16)) { sgid[!is_v4(&want)] = i; answer(0); return; }
		answer(ENOENT);
	} else if (!strcmp(c, "mr")) {
		int p = num(); size_t len = num(); int acc = num();
		unsigned char *m = aligned_alloc(4096, (len + 8191) & ~4095ul);
		memset(m, 0, (len + 8191) & ~4095ul);
		struct ibv_mr *mr = nmr < MANY ? ibv_reg_mr(pd(p), m, len, acc) : 0;
		if (!mr) { answer(err()); return; }
		mrs[nmr].mr = mr; mrs[nmr].p = m; mrs[nmr].len = len;
		fprintf(out, "ok %d %llu %u %u\n", nmr++, (u64)(uintptr_t)m, mr->lkey, mr->rkey);
	} else if (!strcmp(c, "write")) {
		int i = num() % MANY; char *h = word();
		for (size_t k = 0; k < mrs[i].len && h[2 * k]; k++) { unsigned v; sscanf(h + 2 * k, "%2x", &v); mrs[i].p[k] = v; }
		answer(0);
	} else if (!strcmp(c, "read")) {
		int i = num() % MANY; size_t off = num(), len = num();
		if (off + len > mrs[i].len) { answer(EINVAL); return; }
		fprintf(out, "ok ");
		for (size_t k = 0; k < len; k++) fprintf(out, "%02x", mrs[i].p[off + k]);
		fprintf(out, "\n");
	} else if (!strcmp(c, "dereg")) answer(ibv_dereg_mr(mrs[num() % MANY].mr));
	else if (!strcmp(c, "mw")) {
		struct ibv_mw *mw = nmw < MANY ? ibv_alloc_mw(pd(num()), IBV_MW_TYPE_2) : 0;
		if (!mw) { answer(err()); return; }
		mws[nmw] = mw; fprintf(out, "ok %d %u\n", nmw++, mw->rkey);
	} else if (!strcmp(c, "srq")) {
		int p = num(); unsigned limit = num();
		struct ibv_srq_init_attr a = { .attr = { .max_wr = 64, .max_sge = 4 } };
		struct ibv_srq *srq = nsrq < MANY ? ibv_create_srq(pd(p), &a) : 0;
		if (!srq) { answer(err()); return; }
		struct ibv_srq_attr l = { .srq_limit = limit };
		if (limit && (errno = ibv_modify_srq(srq, &l, IBV_SRQ_LIMIT))) { answer(err()); return; }
		srqs[nsrq] = srq; fprintf(out, "ok %d\n", nsrq++);
	} else if (!strcmp(c, "arm")) {
		int i = num() % MANY; struct ibv_srq_attr l = { .srq_limit = num() };
		answer(ibv_modify_srq(srqs[i], &l, IBV_SRQ_LIMIT));
	} else if (!strcmp(c, "qp")) do_qp();
	else if (!strcmp(c, "modify")) do_modify(num() % MANY);
	else if (!strcmp(c, "query")) {
		struct ibv_qp_attr a; struct ibv_qp_init_attr q; int e = ibv_query_qp(qps[num() % MANY].qp, &a, (1 << 21) - 1, &q);
		if (e) { answer(e); return; }
		fprintf(out, "ok %d %d %d %u %u %u %u %u %d %u %u %u %u %u %u %u\n", a.qp_state, a.path_mtu, a.path_mig_state, a.qkey, a.rq_psn, a.sq_psn, a.dest_qp_num,
			a.pkey_index, a.sq_draining, a.max_rd_atomic, a.max_dest_rd_atomic, a.min_rnr_timer, a.port_num, a.timeout, a.retry_cnt, a.rnr_retry);
	} else if (!strcmp(c, "send")) do_send(num() % MANY);
	else if (!strcmp(c, "recv")) {
		struct ibv_sge s[8]; struct ibv_recv_wr w = { .sg_list = s }, *bad; char *k = word(); int i = num() % MANY;
		w.wr_id = num(); w.num_sge = pieces(s);
		answer(*k == 'q' ? ibv_post_recv(qps[i].qp, &w, &bad) : ibv_post_srq_recv(srqs[i], &w, &bad));
	} else if (!strcmp(c, "attach") || !strcmp(c, "detach")) {
		int i = num() % MANY; union ibv_gid g;
		if (!gid(word(), &g)) answer(EINVAL); else answer(*c == 'a' ? ibv_attach_mcast(qps[i].qp, &g, 0) : ibv_detach_mcast(qps[i].qp, &g, 0));
	} else if (!strcmp(c, "destroy")) {
		int i = num() % MANY, e = ibv_destroy_qp(qps[i].qp);
		if (!e) qps[i].qp = 0;
		answer(e);
	} else answer(ENOSYS);
}
static void play(int fd, const char *dev) {
	struct ibv_device **dl = ibv_get_device_list(0), *dv = 0;
	for (int i = 0; dl && dl[i]; i++) if (!dev || !strcmp(ibv_get_device_name(dl[i]), dev)) { dv = dl[i]; break; }
	if (!dv || !(cx = ibv_open_device(dv))) die("no RDMA device");
	fcntl(cx->async_fd, F_SETFL, fcntl(cx->async_fd, F_GETFL) | O_NONBLOCK);
	in = fdopen(fd, "r"); out = fdopen(dup(fd), "w");
	static char line[1 << 18];
	setvbuf(out, 0, _IOFBF, 1 << 18);
	alarm(120);
	while (fgets(line, sizeof line, in)) { rest = line; obey(word()); fflush(out); }
}
int main(int ac, char **av) {
	const char *dev = 0; int port = 18600;
	for (int o; (o = getopt(ac, av, "d:t:")) != -1;) switch (o) { case 'd': dev = optarg; break; case 't': port = atoi(optarg); break; default: return 2; }
	signal(SIGCHLD, SIG_IGN);
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(s, (void *)&a, sizeof a) || listen(s, 8)) die("listen %d", port);
	for (;;) {
		int c = accept(s, 0, 0);
		if (c < 0) continue;
		setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		if (!fork()) { close(s); play(c, dev); _exit(0); }
		close(c);
	}
}
