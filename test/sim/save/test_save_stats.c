/* SPDX-License-Identifier: Apache-2.0 */
/* The counters and times of saves: of the save, of the run, of its pace, of its progress, and the
 * lines of its metrics. The clock stands still except for calls of the machine, each kind of which
 * takes a time of its own, so every number is known beforehand. */
#include "simover.h"
#include "sentences.h"
#include "save_blocked.h"
#include "save_commit.h"
#include "save_eta.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "sheaf-stat.h"

#define MS INT64_C(1000000)
/* Milliseconds: of a file that gets its room, of a write, of a sync behind, of a sync at once, of a
 * rename, of bytes that travel. */
enum { RESIZE = 3, WRITE = 13, SYNC = 17, FSYNC = 7, RENAME = 101, TRAVEL = 29 };

static struct {
	int (*alltoallv)(void *, const void *, const size_t *, void *, const size_t *, int,
	                 struct sheaf_error *);
	int64_t now;
	int rests;                      /* naps that threads took; told */
} machine;

static int64_t now_is(void *arg)
{
	(void)arg;
	return machine.now;
}

static int completes(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	int rc = simover_real()->queue.complete(arg, q, io, timeout_ms);

	if (rc == 1) {
		machine.now += ((*io)->op == SHF_IO_FSYNC ? SYNC : (*io)->op == SHF_IO_WRITE
		                ? WRITE : RESIZE) * MS;
		(*io)->done_ns = machine.now;
	}
	return rc;
}

static int syncs(void *arg, int fd)
{
	machine.now += FSYNC * MS;
	return simover_real()->disk.fsync(arg, fd);
}

static int resizes(void *arg, int fd, uint64_t bytes)
{
	machine.now += RESIZE * MS;
	return simover_real()->disk.resize(arg, fd, bytes);
}

static int renames(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                   bool noreplace)
{
	machine.now += RENAME * MS;
	return simover_real()->disk.rename(arg, from_dir, from, to_dir, to, noreplace);
}

static void rests(void *arg, int ms)
{
	(void)arg;
	machine.now += ms * MS;
	machine.rests++;
	tell("%d ms rest\n", ms);
}

static int travels(void *arg, const void *out, const size_t *out_bytes, void *in,
                   const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	machine.now += TRAVEL * MS;
	return machine.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
}

/* One machine is all ranks': one of them runs at a time. */
static void clocked(struct hand *h)
{
	struct sys_tables *calls = simover(&h->used);
	uint64_t x = 0;

	if (h->rank == 0) {
		memset(&machine, 0, sizeof(machine));
		machine.alltoallv = h->group->ops.alltoallv;
		machine.now = 1000 * MS;
	}
	(void)h->group->ops.allreduce(h->group->ops.arg, &x, 1, SHEAF_MAX, 60000,
	                                  &(struct sheaf_error){ 0 });
	calls->host.mono_ns = now_is;
	calls->queue.complete = completes;
	calls->disk.fsync = syncs;
	calls->disk.resize = resizes;
	calls->disk.rename = renames;
	calls->host.sleep_ms = rests;
	h->group->ops.alltoallv = travels;
}

static double ms(uint64_t ns)
{
	return (double)ns / MS;
}

static void tell_stat(const char *who, const struct sheaf_stat *s)
{
	tell("%s: phase %u, held %d, copied %d, written %d of %d, sent %d, images %d%s\n", who,
	     s->phase, (int)s->held, (int)s->copied, (int)s->written, (int)s->to_write,
	     (int)s->sent, (int)s->buffers_busy, s->at_once ? ", at once" : "");
	tell(" begin %g, image %g, copied %g, exchange %g, wait %g, commit %g\n", ms(s->begin_ns),
	     ms(s->buffer_ns), ms(s->copied_ns), ms(s->exchange_ns), ms(s->ready_ns),
	     ms(s->commit_ns));
	tell(" gates %d, waited %d, %g, most %g; copy %g, over %g\n", (int)s->gates,
	     (int)s->gates_waited, ms(s->gates_ns), ms(s->gate_ns_max), ms(s->copy_ns),
	     ms(s->over_ns));
}

static void tell_lasted(const char *what, const struct shf_durations *l)
{
	tell(" %s %g, %g", what, ms((uint64_t)atomic_load(&l->last_ns)),
	     ms((uint64_t)atomic_load(&l->before_ns)));
}

static void tell_pace(struct sheaf_run *run)
{
	struct shf_save_pace *p = &run->saves.pace;

	tell("pace: write %d in %g, send %d in %g,", (int)atomic_load(&p->write.bytes),
	     ms(atomic_load(&p->write.ns)), (int)atomic_load(&p->send.bytes),
	     ms(atomic_load(&p->send.ns)));
	tell_lasted("stage", &p->stage);
	tell_lasted("sync", &p->sync);
	tell_lasted("publish", &p->publish);
	tell("\n");
}

static void tell_run(struct sheaf_run *run)
{
	struct sheaf_run_stat s;

	shf_save_blocked_stat(run, &s);
	tell("run: begun %d, committed %d, dropped %d, failed %d, bytes %d, images %d\n",
	     (int)s.begun, (int)s.committed, (int)s.dropped, (int)s.failed, (int)s.bytes,
	     (int)s.buffers_busy);
	tell(" begin %g, image %g, exchange %g, wait %g, commit %g, gates %d, %d, %g, %g\n",
	     ms(s.begin_ns), ms(s.buffer_ns), ms(s.exchange_ns), ms(s.ready_ns), ms(s.commit_ns),
	     (int)s.gates, (int)s.gates_waited, ms(s.gates_ns), ms(s.gate_ns_max));
}

static int progress(void *arg, const struct sheaf_stat *s)
{
	(void)arg;
	tell("  %d: %d copied, %d written, %d sent\n", s->phase, (int)s->copied, (int)s->written,
	     (int)s->sent);
	return 0;
}

/* The lines of the metrics, without sessions and the time of day. */
static void tell_metrics(struct simdisk *disk)
{
	size_t n = 0;
	char *text = simdisk_get(disk, "run/.sheaf/metrics.jsonl", &n), *at;

	for (size_t i = 0; text && i < n; i++)
		tell("%c", text[i]);
	free(text);
	for (at = told; (at = strstr(at, "\"session\":\"")); at += 11)
		memmove(at + 11, at + 11 + 32, strlen(at + 11 + 32) + 1);
	for (at = told; (at = strstr(at, "\"at\":\"")); at += 6)
		memmove(at + 6, strchr(at + 6, '"'), strlen(strchr(at + 6, '"')) + 1);
}

/* ---- saves, in every way ---- */

static uint64_t flags;
static int patience;            /* of each commit; ms */
static bool exchanges;

static int count(struct hand *h)
{
	struct sheaf_stat s;

	for (int64_t step = 1; step < 3; step++) {
		struct sheaf_save *save = begun(h, step, flags);
		int rc = SHEAF_EAGAIN;

		for (int i = 0; i < h->n && flags & SHEAF_SAVE_LAZY; i++)
			coded(h, "copied", shf_save_copied(save, i, step == 2 ? 0 : -1, NULL));
		if (flags & SHEAF_SAVE_LAZY && step == 2)
			coded(h, "copied", shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL));
		if (exchanges)
			said(h, shf_save_exchange(save, 8192, &h->err));
		if (step == 2)
			coded(h, "wait", shf_save_wait(save, -1, NULL));
		for (int i = 0; i < 9 && rc == SHEAF_EAGAIN; i++) {
			shf_save_stat(save, &s);
			if (h->rank == 0) {
				tell_stat("save", &s);
				tell(" left %d ms\n", (int)shf_save_eta_ms(save));
			}
			rc = shf_save_commit(save, i < 8 ? patience : -1, &h->err);
			said(h, rc);
		}
		shf_save_stat(save, &s);
		if (h->rank == 0) {
			tell_stat("save", &s);
			tell_pace(h->run);
		}
		shf_save_free(save);
	}
	if (h->rank == 0) {
		tell_run(h->run);
		tell_metrics(h->play->disk);
		return 0;
	}
	/* How long a step was published behind rank 0 alone knows. */
	return flags & SHEAF_SAVE_NO_DISK ||
	       (shf_durations_ns(&h->run->saves.pace.publish) > 0) == (patience != 0)
	       ? 0 : SHEAF_EBUG;
}

static struct play counted(int ranks, uint64_t how, int ms)
{
	struct play p = hands_play(disk_new(), ranks, two);

	flags = how;
	patience = ms;
	exchanges = ranks > 1;
	simdisk_set_task_steps(p.disk, 0);
	p.tamper = clocked;
	p.opts.flags |= how & SHEAF_SAVE_NO_DISK || ms >= 0 ? 0 : SHEAF_RUN_METRICS;
	p.opts.progress = progress;
	return p;
}

TEST(a_plain_save_is_counted)
{
	struct play p = counted(1, 0, -1);

	story(&p, count,
	      "0\nsave: phase 1, held 65936, copied 65936, written 0 of 74128, sent 0, images 1\n"
	      " begin 6, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 105 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 1 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 6, image 0, copied 0, exchange 0, wait 0, commit 329\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 6, 0 sync 34, 0 publish 295, 0\n0\n"
	      "wait 0\n"
	      "save: phase 2, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 52, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 330 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 2 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 6, image 0, copied 0, exchange 0, wait 52, commit 329\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 6, 6 sync 34, 34 publish 295, 295\n"
	      "run: begun 2, committed 2, dropped 0, failed 0, bytes 148256, images 0\n"
	      " begin 12, image 0, exchange 0, wait 52, commit 658, gates 0, 0, 0, 0\n"
	      "{\"what\":\"committed\",\"step\":1,\"session\":\"\",\"at\":\"\",\"code\":0,"
	      "\"ranks\":1,\"of\":1,\"lazy\":false,\"disk\":true,\"images\":1,\"bytes\":74128,"
	      "\"gates\":0,\"gates_waited\":0,\"begin_ms\":6.000,\"image_ms\":0.000,"
	      "\"gates_ms\":0.000,\"gate_max_ms\":0.000,\"exchange_ms\":0.000,\"wait_ms\":0.000,"
	      "\"commit_ms\":329.000,\"copy_ms\":6.000,\"wall_ms\":387.000}\n"
	      "{\"what\":\"committed\",\"step\":2,\"session\":\"\",\"at\":\"\",\"code\":0,"
	      "\"ranks\":1,\"of\":1,\"lazy\":false,\"disk\":true,\"images\":1,\"bytes\":74128,"
	      "\"gates\":0,\"gates_waited\":0,\"begin_ms\":6.000,\"image_ms\":0.000,"
	      "\"gates_ms\":0.000,\"gate_max_ms\":0.000,\"exchange_ms\":0.000,\"wait_ms\":52.000,"
	      "\"commit_ms\":329.000,\"copy_ms\":6.000,\"wall_ms\":387.000}\n");
}

TEST(a_save_that_is_copied_behind_is_counted)
{
	struct play p = counted(1, SHEAF_SAVE_LAZY, -1);

	story(&p, count,
	      "0\ncopied 0\ncopied 0\n"
	      "save: phase 0, held 65936, copied 65936, written 65936 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 26, exchange 0, wait 0, commit 0\n"
	      " gates 2, waited 2, 26, most 13; copy 0, over 0\n left 62 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 1 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 6, image 0, copied 26, exchange 0, wait 0, commit 355\n"
	      " gates 2, waited 2, 26, most 13; copy 32, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 1e-06, 0 sync 34, 0 publish 295, 0\n"
	      "0\ncopied -7\ncopied -7\ncopied 0\nwait -7\n"
	      "save: phase 1, held 65936, copied 65936, written 0 of 74128, sent 0, images 1\n"
	      " begin 0, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 3, waited 1, 0, most 0; copy 0, over 0\n left 382 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 2 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 0, image 0, copied 0, exchange 0, wait 0, commit 387\n"
	      " gates 3, waited 1, 0, most 0; copy 0, over 387\n"
	      "pace: write 74128 in 55, send 0 in 0, stage 1e-06, 1e-06 sync 34, 34 publish 295, "
	      "295\nrun: begun 2, committed 2, dropped 0, failed 0, bytes 148256, images 0\n"
	      " begin 6, image 0, exchange 0, wait 0, commit 742, gates 5, 3, 26, 13\n"
	      "{\"what\":\"committed\",\"step\":1,\"session\":\"\",\"at\":\"\",\"code\":0,"
	      "\"ranks\":1,\"of\":1,\"lazy\":true,\"disk\":true,\"images\":1,\"bytes\":74128,"
	      "\"gates\":2,\"gates_waited\":2,\"begin_ms\":6.000,\"image_ms\":0.000,"
	      "\"gates_ms\":26.000,\"gate_max_ms\":13.000,\"exchange_ms\":0.000,\"wait_ms\":0.000,"
	      "\"commit_ms\":355.000,\"copy_ms\":32.000,\"wall_ms\":387.000}\n"
	      "{\"what\":\"committed\",\"step\":2,\"session\":\"\",\"at\":\"\",\"code\":0,"
	      "\"ranks\":1,\"of\":1,\"lazy\":true,\"disk\":true,\"images\":1,\"bytes\":74128,"
	      "\"gates\":3,\"gates_waited\":1,\"begin_ms\":0.000,\"image_ms\":0.000,"
	      "\"gates_ms\":0.000,\"gate_max_ms\":0.000,\"exchange_ms\":0.000,\"wait_ms\":0.000,"
	      "\"commit_ms\":387.000,\"copy_ms\":0.000,\"wall_ms\":387.000}\n");
}

TEST(a_save_that_is_asked_after_is_counted)
{
	struct play p = counted(1, 0, 0);

	simdisk_set_task_steps(p.disk, 1);
	story(&p, count,
	      "0\nsave: phase 1, held 65936, copied 65936, written 0 of 74128, sent 0, images 1\n"
	      " begin 6, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 105 ms\n"
	      "-7: step 1: at least one rank is still writing; commit again\n"
	      "save: phase 2, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 53 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n-7: step 1: it is being published; "
	      "commit again for the result\n"
	      "save: phase 6, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 35 ms\n"
	      "-7: step 1: it is being published; "
	      "commit again for the result\n"
	      "save: phase 6, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 0, commit 51\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 1 ms\n"
	      "2 run: step 1 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 6, image 0, copied 0, exchange 0, wait 0, commit 295\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 6, 0 sync 34, 0 publish 295, 0\n0\n"
	      "wait 0\n"
	      "save: phase 2, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 52, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 330 ms\n"
	      "-7: step 2: at least one rank is still writing; commit again\n"
	      "save: phase 2, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 52, commit 17\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 296 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n-7: step 2: it is being published; "
	      "commit again for the result\n"
	      "save: phase 6, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 52, commit 17\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 296 ms\n"
	      "-7: step 2: it is being published; "
	      "commit again for the result\n"
	      "save: phase 6, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 0, wait 52, commit 68\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 245 ms\n"
	      "2 run: step 2 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 6, image 0, copied 0, exchange 0, wait 52, commit 312\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 6, 6 sync 34, 34 publish 295, 295\n"
	      "run: begun 2, committed 2, dropped 0, failed 0, bytes 148256, images 0\n"
	      " begin 12, image 0, exchange 0, wait 52, commit 607, gates 0, 0, 0, 0\n");
}

TEST(a_save_with_little_time_is_counted)
{
	struct play p = counted(1, SHEAF_SAVE_LAZY, 20);

	story(&p, count,
	      "0\ncopied 0\ncopied 0\n"
	      "save: phase 0, held 65936, copied 65936, written 65936 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 26, exchange 0, wait 0, commit 0\n"
	      " gates 2, waited 2, 26, most 13; copy 0, over 0\n left 62 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n"
	      "-7: step 1: too little time is left to publish it; commit again\n"
	      "save: phase 2, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 26, exchange 0, wait 0, commit 60\n"
	      " gates 2, waited 2, 26, most 13; copy 32, over 0\n left 35 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 1 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 6, image 0, copied 26, exchange 0, wait 0, commit 355\n"
	      " gates 2, waited 2, 26, most 13; copy 32, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 1e-06, 0 sync 34, 0 publish 295, 0\n"
	      "0\ncopied -7\ncopied -7\ncopied 0\nwait -7\n"
	      "save: phase 1, held 65936, copied 65936, written 0 of 74128, sent 0, images 1\n"
	      " begin 0, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 3, waited 1, 0, most 0; copy 0, over 0\n left 382 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n"
	      "-7: step 2: too little time is left to publish it; commit again\n"
	      "save: phase 2, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1\n begin 0, image 0, copied 0, exchange 0, wait 0, commit 92\n"
	      " gates 3, waited 1, 0, most 0; copy 0, over 0\n left 296 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 2 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0\n begin 0, image 0, copied 0, exchange 0, wait 0, commit 387\n"
	      " gates 3, waited 1, 0, most 0; copy 0, over 387\n"
	      "pace: write 74128 in 58, send 0 in 0, stage 1e-06, 1e-06 sync 34, 34 publish 295, "
	      "295\nrun: begun 2, committed 2, dropped 0, failed 0, bytes 148256, images 0\n"
	      " begin 6, image 0, exchange 0, wait 0, commit 742, gates 5, 3, 26, 13\n");
}

TEST(a_save_whose_bytes_travel_is_counted)
{
	static const int32_t apart[] = { 1, 2 };
	struct play p = counted(2, 0, 60);

	p.nodes = apart;
	story(&p, count,
	      "0\n-7: \n"
	      "save: phase 1, held 32968, copied 32968, written 0 of 74128, sent 0, images 1\n"
	      " begin 470, image 0, copied 0, exchange 58, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 470, over 0\n left 2197 ms\n"
	      "  1: 32968 copied, 8592 written, 0 sent\n"
	      "  2: 32968 copied, 0 written, 32968 sent\n"
	      "-7: step 1: at least one rank is still writing; commit again\n"
	      "save: phase 1, held 32968, copied 32968, written 8592 of 74128, sent 0, images 1\n"
	      " begin 470, image 0, copied 0, exchange 58, wait 0, commit 71\n"
	      " gates 0, waited 0, 0, most 0; copy 470, over 0\n left 337 ms\n"
	      "  2: 32968 copied, 74128 written, 0 sent\n"
	      "  2: 32968 copied, 0 written, 32968 sent\n2 run: step 1 committed, rank 0\n0\n"
	      "save: phase 3, held 32968, copied 32968, written 74128 of 74128, sent 0, images "
	      "0\n begin 470, image 0, copied 0, exchange 58, wait 0, commit 516\n"
	      " gates 0, waited 0, 0, most 0; copy 470, over 1083\n"
	      "pace: write 74128 in 168, send 0 in 0, stage 6, 0 sync 34, 0 publish 411, 0\n0\n"
	      "-7: \nwait 0\n"
	      "save: phase 1, held 32968, copied 32968, written 8192 of 74128, sent 0, images 1\n"
	      " begin 6, image 0, copied 0, exchange 58, wait 26, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 653 ms\n"
	      "  2: 32968 copied, 0 written, 32968 sent\n"
	      "  2: 32968 copied, 74128 written, 0 sent\n"
	      "-7: step 2: at least one rank is still writing; commit again\n"
	      "save: phase 2, held 32968, copied 32968, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 58, wait 26, commit 101\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 412 ms\n"
	      "  2: 32968 copied, 0 written, 32968 sent\n"
	      "  2: 32968 copied, 74128 written, 0 sent\n"
	      "-7: step 2: too little time is left to publish it; commit again\n"
	      "save: phase 2, held 32968, copied 32968, written 74128 of 74128, sent 0, images "
	      "1\n begin 6, image 0, copied 0, exchange 58, wait 26, commit 101\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 0\n left 412 ms\n"
	      "  2: 32968 copied, 74128 written, 0 sent\n"
	      "  2: 32968 copied, 0 written, 32968 sent\n2 run: step 2 committed, rank 0\n0\n"
	      "save: phase 3, held 32968, copied 32968, written 74128 of 74128, sent 0, images "
	      "0\n begin 6, image 0, copied 0, exchange 58, wait 26, commit 512\n"
	      " gates 0, waited 0, 0, most 0; copy 6, over 619\n"
	      "pace: write 74128 in 168, send 0 in 0, stage 6, 6 sync 34, 34 publish 411, 411\n"
	      "run: begun 2, committed 2, dropped 0, failed 0, bytes 148256, images 0\n"
	      " begin 476, image 0, exchange 116, wait 26, commit 1028, gates 0, 0, 0, 0\n"
	      "2 run: step 1 committed, rank 1\n2 run: step 2 committed, rank 1\n");
}

TEST(a_save_in_rounds_is_counted)
{
	struct play p = counted(1, SHEAF_SAVE_LAZY, -1);

	p.opts.staging_bytes_max = 128 * KIB;
	story(&p, count,
	      "1 step 1: copied synchronously in sheaf_save_begin, because "
	      "opts.staging.bytes_max cannot hold the whole state\n"
	      "  0: 0 copied, 8192 written, 0 sent\n  0: 65536 copied, 73728 written, 0 sent\n0\n"
	      "copied 0\ncopied 0\n"
	      "save: phase 1, held 65936, copied 65936, written 73728 of 74128, sent 0, images "
	      "1, at once\n begin 45, image 0, copied 39, exchange 0, wait 0, commit 0\n"
	      " gates 2, waited 0, 0, most 0; copy 45, over 0\n left 105 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 1 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0, at once\n begin 45, image 0, copied 39, exchange 0, wait 0, commit 329\n"
	      " gates 2, waited 0, 0, most 0; copy 45, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 6, 0 sync 34, 0 publish 295, 0\n"
	      "1 step 2: copied synchronously in sheaf_save_begin, because "
	      "opts.staging.bytes_max cannot hold the whole state\n"
	      "  0: 0 copied, 8192 written, 0 sent\n  0: 65536 copied, 73728 written, 0 sent\n0\n"
	      "copied 0\ncopied 0\ncopied 0\nwait 0\n"
	      "save: phase 2, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "1, at once\n begin 45, image 0, copied 39, exchange 0, wait 13, commit 0\n"
	      " gates 3, waited 0, 0, most 0; copy 45, over 0\n left 330 ms\n"
	      "  2: 65936 copied, 74128 written, 0 sent\n2 run: step 2 committed, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 74128 of 74128, sent 0, images "
	      "0, at once\n begin 45, image 0, copied 39, exchange 0, wait 13, commit 329\n"
	      " gates 3, waited 0, 0, most 0; copy 45, over 387\n"
	      "pace: write 74128 in 52, send 0 in 0, stage 6, 6 sync 34, 34 publish 295, 295\n"
	      "run: begun 2, committed 2, dropped 0, failed 0, bytes 148256, images 0\n"
	      " begin 90, image 0, exchange 0, wait 13, commit 658, gates 5, 0, 0, 0\n"
	      "{\"what\":\"committed\",\"step\":1,\"session\":\"\",\"at\":\"\",\"code\":0,"
	      "\"ranks\":1,\"of\":1,\"lazy\":true,\"disk\":true,\"images\":1,\"bytes\":74128,"
	      "\"gates\":2,\"gates_waited\":0,\"begin_ms\":45.000,\"image_ms\":0.000,"
	      "\"gates_ms\":0.000,\"gate_max_ms\":0.000,\"exchange_ms\":0.000,\"wait_ms\":0.000,"
	      "\"commit_ms\":329.000,\"copy_ms\":45.000,\"wall_ms\":387.000}\n"
	      "{\"what\":\"committed\",\"step\":2,\"session\":\"\",\"at\":\"\",\"code\":0,"
	      "\"ranks\":1,\"of\":1,\"lazy\":true,\"disk\":true,\"images\":1,\"bytes\":74128,"
	      "\"gates\":3,\"gates_waited\":0,\"begin_ms\":45.000,\"image_ms\":0.000,"
	      "\"gates_ms\":0.000,\"gate_max_ms\":0.000,\"exchange_ms\":0.000,\"wait_ms\":13.000,"
	      "\"commit_ms\":329.000,\"copy_ms\":45.000,\"wall_ms\":387.000}\n");
}

TEST(a_save_to_memory_is_counted)
{
	struct play p = counted(1, SHEAF_SAVE_NO_DISK, -1);

	p.opts.agent = "auto";
	simdisk_set_agents(p.disk, UINT64_C(1) << 30);
	story(&p, count,
	      "0\nsave: phase 2, held 65936, copied 65936, written 0 of 0, sent 0, images 1\n"
	      " begin 0, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 0, over 0\n left 1 ms\n"
	      "  2: 65936 copied, 0 written, 0 sent\n2 run: step 1 is in memory, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 0 of 0, sent 0, images 0\n"
	      " begin 0, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 0, over 0\n"
	      "pace: write 0 in 0, send 0 in 0, stage 0, 0 sync 0, 0 publish 0, 0\n0\nwait 0\n"
	      "save: phase 2, held 65936, copied 65936, written 0 of 0, sent 0, images 1\n"
	      " begin 0, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 0, over 0\n left 1 ms\n"
	      "  2: 65936 copied, 0 written, 0 sent\n2 run: step 2 is in memory, rank 0\n0\n"
	      "save: phase 3, held 65936, copied 65936, written 0 of 0, sent 0, images 0\n"
	      " begin 0, image 0, copied 0, exchange 0, wait 0, commit 0\n"
	      " gates 0, waited 0, 0, most 0; copy 0, over 0\n"
	      "pace: write 0 in 0, send 0 in 0, stage 0, 0 sync 0, 0 publish 0, 0\n"
	      "run: begun 2, committed 2, dropped 0, failed 0, bytes 148256, images 0\n"
	      " begin 0, image 0, exchange 0, wait 0, commit 0, gates 0, 0, 0, 0\n");
}

/* ---- a copy that is not to be faster than so much ---- */

static void long_ones(struct hand *h)
{
	for (int i = 0; i < 3; i++)
		hand_add(h, "model", i == 0 ? "a" : i == 1 ? "b" : "c", SHEAF_U8, 2, 2, MIB);
}

static int copy_slowly(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, SHEAF_SAVE_LAZY);

	for (int i = 0; i < 6; i++) {
		int rc = shf_save_wait(save, 0, NULL);

		tell("wait %d: %d copied\n", rc, (int)atomic_load(&save->took.copied));
	}
	shf_save_free(save);
	return 0;
}

TEST(threads_rest_for_as_long_as_their_rate_says)
{
	static const uint64_t rates[] = { 1 << 20, 600 << 20, UINT64_C(1) << 50 };
	static const char *const want[] = {
		"0\nwait -7: 0 copied\nwait -7: 2097152 copied\n10 ms rest\n"
		"wait -7: 2097152 copied\n10 ms rest\nwait -7: 2097152 copied\n10 ms rest\n"
		"wait -7: 2097152 copied\n10 ms rest\nwait -7: 2097152 copied\n",
		"0\nwait -7: 0 copied\nwait -7: 2097152 copied\n4 ms rest\n"
		"wait -7: 2097152 copied\nwait -7: 4194304 copied\nwait 0: 6291456 copied\n"
		"wait 0: 6291456 copied\n",
		"0\nwait -7: 0 copied\nwait -7: 2097152 copied\n1 ms rest\n"
		"wait -7: 2097152 copied\nwait -7: 4194304 copied\nwait 0: 6291456 copied\n"
		"wait 0: 6291456 copied\n"
	};

	for (int i = 0; i < 3; i++) {
		struct play p = counted(1, SHEAF_SAVE_LAZY, -1);

		p.hold = long_ones;
		p.opts.copy_rate_max = rates[i];
		p.opts.progress = NULL;
		simdisk_set_task_steps(p.disk, 1);
		story(&p, copy_slowly, want[i]);
	}
}

/* ---- how often ranks meet ---- */

static struct sheaf_group_ops group;    /* of rank 0 */
static int meetings;

static int gathers(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
		   struct sheaf_error *err)
{
	meetings++;
	return group.allgather(arg, mine, all, bytes, timeout_ms, err);
}

static int exchanges_all(void *arg, const void *out, const size_t *out_bytes, void *in,
                         const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	meetings++;
	return group.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
}

static int reduces(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
		   struct sheaf_error *err)
{
	meetings++;
	return group.allreduce(arg, x, n, op, timeout_ms, err);
}

static void meets(struct hand *h)
{
	if (h->rank)
		return;
	group = h->group->ops;
	h->group->ops.allgather = gathers;
	h->group->ops.alltoallv = exchanges_all;
	h->group->ops.allreduce = reduces;
}

static int meet_often(struct hand *h)
{
	for (int64_t step = 1; step < 5; step++) {
		int before = meetings;  /* rank 0's, and only that one looks */
		struct sheaf_save *save = begun(h, step, flags);

		coded(h, "meetings", meetings - before);
		coded(h, "copied", shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL));
		committed(h, save, -1);
		shf_save_free(save);
	}
	return 0;
}

static void meetings_are(uint64_t how, const char *want)
{
	struct play p = counted(2, how, 0);

	p.tamper = meets;
	p.opts.progress = NULL;
	p.opts.agent = "auto";
	p.opts.images_max = 3;
	simdisk_set_agents(p.disk, UINT64_C(1) << 30);
	story(&p, meet_often, want);
}

TEST(a_plain_save_meets_so_often)
{
	meetings_are(0,
	             "0\nmeetings 30\ncopied 0\n2 run: step 1 committed, rank 0\n0\n0\n"
	             "meetings 10\ncopied 0\n2 run: step 2 committed, rank 0\n0\n0\nmeetings 3\n"
	             "copied 0\n2 run: step 3 committed, rank 0\n0\n0\nmeetings 3\ncopied 0\n"
	             "2 run: step 4 committed, rank 0\n0\n2 run: step 1 committed, rank 1\n"
	             "2 run: step 2 committed, rank 1\n2 run: step 3 committed, rank 1\n"
	             "2 run: step 4 committed, rank 1\n");
}

TEST(a_save_that_is_copied_behind_begins_with_one_meeting)
{
	meetings_are(SHEAF_SAVE_LAZY,
	             "0\nmeetings 32\ncopied 0\n2 run: step 1 committed, rank 0\n0\n0\n"
	             "meetings 11\ncopied 0\n2 run: step 2 committed, rank 0\n0\n0\nmeetings 1\n"
	             "copied 0\n2 run: step 3 committed, rank 0\n0\n0\nmeetings 1\ncopied 0\n"
	             "2 run: step 4 committed, rank 0\n0\n2 run: step 1 committed, rank 1\n"
	             "2 run: step 2 committed, rank 1\n2 run: step 3 committed, rank 1\n"
	             "2 run: step 4 committed, rank 1\n");
}

TEST(so_does_one_to_memory_alone)
{
	meetings_are(SHEAF_SAVE_LAZY | SHEAF_SAVE_NO_DISK,
	             "0\nmeetings 33\ncopied 0\n2 run: step 1 is in memory, rank 0\n0\n0\n"
	             "meetings 12\ncopied 0\n2 run: step 2 is in memory, rank 0\n0\n0\n"
	             "meetings 1\ncopied 0\n2 run: step 3 is in memory, rank 0\n0\n0\n"
	             "meetings 1\ncopied 0\n2 run: step 4 is in memory, rank 0\n0\n"
	             "2 run: step 1 is in memory, rank 1\n2 run: step 2 is in memory, rank 1\n"
	             "2 run: step 3 is in memory, rank 1\n2 run: step 4 is in memory, rank 1\n");
}

/* ---- bytes that travel, and writes while others are still copied ---- */

static void columns(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_U8, 2, 160, 1000), 1, h->rank, h->ranks);
}

/* So many bytes at most, in each exchange; none: all. */
static int travel(struct hand *h)
{
	static const uint64_t most[] = { 1, 4096, 4097, 12000, 30000, 1, 0 };
	struct sheaf_save *save = begun(h, 1, flags);

	if (flags & SHEAF_SAVE_LAZY)
		coded(h, "copied", shf_save_copied(save, 0, -1, NULL));
	for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
		int rc = shf_save_exchange(save, most[i], &h->err);

		if (h->rank == h->ranks - 1) /* rank 0 writes, and sends nothing */
			tell("%d: %d of %d sent\n", rc, (int)atomic_load(&save->took.sent),
			     (int)atomic_load(&save->took.to_send));
	}
	committed(h, save, -1);
	shf_save_free(save);
	return 0;
}

static void travels_so(int ranks, uint64_t how, const char *want)
{
	static const int32_t apart[] = { 1, 2, 3 };
	struct play p = counted(ranks, how, 0);

	p.hold = columns;
	p.tamper = NULL;
	p.opts.progress = NULL;
	p.nodes = apart;
	story(&p, travel, want);
}

TEST(two_ranks_exchange_as_much_as_they_are_told)
{
	travels_so(2, 0,
	           "0\n-7: 4096 of 80000 sent\n-7: 8192 of 80000 sent\n"
	           "-7: 12289 of 80000 sent\n-7: 24289 of 80000 sent\n-7: 54289 of 80000 sent\n"
	           "-7: 58385 of 80000 sent\n0: 80000 of 80000 sent\n"
	           "2 run: step 1 committed, rank 1\n2 run: step 1 committed, rank 0\n0\n");
}

TEST(three_ranks_share_what_they_may_exchange)
{
	travels_so(3, 0,
	           "0\n-7: 4096 of 53120 sent\n-7: 8192 of 53120 sent\n-7: 12288 of 53120 sent\n"
	           "-7: 18288 of 53120 sent\n-7: 33288 of 53120 sent\n-7: 37384 of 53120 sent\n"
	           "0: 53120 of 53120 sent\n2 run: step 1 committed, rank 0\n0\n"
	           "2 run: step 1 committed, rank 1\n2 run: step 1 committed, rank 2\n");
}

static void megabytes(struct hand *h)
{
	static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g"
	};

	for (int i = 0; i < 7; i++)
		hand_add(h, "model", names[i], SHEAF_U8, 2, 16 + i % 3, 65536);
}

/* How much the save has copied when a write is submitted. */
static int tells_write(void *arg, struct shf_queue *q, struct shf_io *io)
{
	const char *owner = io->user;
	const struct sheaf_save *save =
	    (const void *)(owner - offsetof(struct sheaf_save, disk.io));

	if (io->op == SHF_IO_WRITE)
		tell("%d bytes at %d, %d copied\n", (int)io->len, (int)io->off,
		     (int)atomic_load(&save->took.copied));
	return simover_real()->queue.submit(arg, q, io);
}

static void clocked_writes(struct hand *h)
{
	clocked(h);
	simover(&h->used)->queue.submit = tells_write;
}

static int write_early(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, flags);

	for (int i = 0; flags & SHEAF_SAVE_LAZY && i < h->n; i++)
		coded(h, "copied", shf_save_copied(save, i, -1, NULL));
	committed(h, save, -1);
	shf_save_free(save);
	return 0;
}

TEST(what_is_whole_is_written_while_the_rest_is_copied)
{
	static const char *const want[] = {
		"4096 bytes at 0, 2162688 copied\n4096 bytes at 0, 2162688 copied\n"
		"4096 bytes at 0, 2162688 copied\n4096 bytes at 0, 2162688 copied\n"
		"2162688 bytes at 4096, 2162688 copied\n2228224 bytes at 4096, 4390912 copied\n"
		"2293760 bytes at 4096, 6684672 copied\n1048576 bytes at 4096, 7733248 copied\n"
		"0\n2 run: step 1 committed, rank 0\n0\n",
		"0\ncopied 0\n2162688 bytes at 4096, 2162688 copied\ncopied 0\ncopied 0\n"
		"2228224 bytes at 4096, 4390912 copied\ncopied 0\ncopied 0\n"
		"2293760 bytes at 4096, 6684672 copied\ncopied 0\n"
		"1048576 bytes at 4096, 7733248 copied\ncopied 0\n"
		"4096 bytes at 0, 7733248 copied\n4096 bytes at 0, 7733248 copied\n"
		"4096 bytes at 0, 7733248 copied\n4096 bytes at 0, 7733248 copied\n"
		"2 run: step 1 committed, rank 0\n0\n"
	};

	for (int i = 0; i < 2; i++) {
		struct play p = counted(1, i ? SHEAF_SAVE_LAZY : 0, -1);

		p.hold = megabytes;
		p.tamper = clocked_writes;
		p.opts.progress = NULL;
		p.opts.flags &= ~(uint64_t)SHEAF_RUN_METRICS;
		p.opts.file_bytes_max = 2 * MIB + MIB / 2;
		story(&p, write_early, want[i]);
	}
}
