/* SPDX-License-Identifier: Apache-2.0 */
/* A commit that has little time, on a machine where writes, syncs, directories or the net are slow:
 * it returns when its time is up, and what it could not end is not lost. The machine's time is
 * simulated: it passes where somebody waits. */
#include "hands.h"
#include <errno.h>
#include <stdlib.h>
#include "sheaf-stat.h"
#include "simover.h"
#include "t.h"
#include "err.h"
#include "save_commit.h"
#include "save_eta.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"

enum { MIB = 1 << 20, HELD = 64, MS = 1000000, TOLERANCE = 5 * MS };

/* The machine of all ranks but for this. One rank runs at a time. */
static struct {
	int (*alltoallv)(void *, const void *, const size_t *, void *, const size_t *, int,
	                 struct sheaf_error *);
	int64_t clock_ns;               /* ahead of the disk's */
	int64_t write_ns, sync_ns, dir_ns, open_ns;     /* a MiB; a file; a directory; a new file */
	int64_t net_ns;                 /* a MiB */
	struct held {
		void *rank;
		struct shf_io *io;
		int64_t due;
	} held[HELD];
	int held_n;
	int64_t busy;                   /* the disk is, until then */
	int syncs, renames;
} slow;

static int64_t slow_now(void *arg)
{
	return simover_real()->host.mono_ns(arg) + slow.clock_ns;
}

static void hold(void *arg, struct shf_io *io)
{
	int64_t cost = io->op == SHF_IO_FSYNC ? slow.sync_ns
	                                      : (int64_t)(io->len * (uint64_t)slow.write_ns / MIB);
	int64_t now = slow_now(arg);

	if (slow.held_n == HELD)
		abort();
	slow.syncs += io->op == SHF_IO_FSYNC;
	slow.busy = (slow.busy > now ? slow.busy : now) + cost;
	slow.held[slow.held_n++] = (struct held){ arg, io, slow.busy };
}

static struct held *next_of(void *arg)
{
	struct held *first = NULL;

	for (int i = 0; i < slow.held_n; i++)
		if (slow.held[i].rank == arg && (!first || slow.held[i].due < first->due))
			first = &slow.held[i];
	return first;
}

static int slow_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	struct held *next;
	int64_t left;

	while (simover_real()->queue.complete(arg, q, io, -1) == 1)
		hold(arg, *io);
	next = next_of(arg);
	if (!next)
		return 0;
	left = next->due - slow_now(arg);
	if (timeout_ms >= 0 && left > (int64_t)timeout_ms * MS) {
		slow.clock_ns += (int64_t)timeout_ms * MS;
		return -EAGAIN;
	}
	slow.clock_ns += left > 0 ? left : 0;
	*io = next->io;
	(*io)->done_ns = next->due;
	*next = slow.held[--slow.held_n];
	return 1;
}

/* The disk has it as soon as it is submitted. */
static int slow_submit(void *arg, struct shf_queue *q, struct shf_io *io)
{
	struct shf_io *done;
	int rc = simover_real()->queue.submit(arg, q, io);

	while (rc == 0 && simover_real()->queue.complete(arg, q, &done, -1) == 1)
		hold(arg, done);
	return rc;
}

static int slow_fsync(void *arg, int fd)
{
	slow.clock_ns += slow.dir_ns;
	return simover_real()->disk.fsync(arg, fd);
}

static int slow_resize(void *arg, int fd, uint64_t bytes)
{
	slow.clock_ns += slow.open_ns;
	return simover_real()->disk.resize(arg, fd, bytes);
}

static int slow_rename(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                       bool noreplace)
{
	slow.renames++;
	return simover_real()->disk.rename(arg, from_dir, from, to_dir, to, noreplace);
}

static int slow_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                          const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	slow.clock_ns += (int64_t)((out_bytes[0] + out_bytes[1]) * (uint64_t)slow.net_ns / MIB);
	return slow.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
}

/* Rank 0's is everybody's, so the others wait for it. */
static void tamper(struct hand *h)
{
	struct sys_tables *calls = simover(&h->used);
	uint64_t x = 0;

	if (h->rank == 0)
		slow.alltoallv = h->group->ops.alltoallv;
	(void)h->group->ops.allreduce(h->group->ops.arg, &x, 1, SHEAF_MAX, 60000,
	                                  &(struct sheaf_error){ 0 });
	calls->host.mono_ns = slow_now;
	calls->queue.submit = slow_submit;
	calls->queue.complete = slow_complete;
	calls->disk.fsync = slow_fsync;
	calls->disk.resize = slow_resize;
	calls->disk.rename = slow_rename;
	h->group->ops.alltoallv = slow_alltoallv;
}

static void halves(struct hand *h)
{
	hand_cut(hand_add(h, "optimizer", "own", SHEAF_F32, 2, 2, MIB / 16), 0, h->rank, 2);
	hand_cut(hand_add(h, "model", "mixed", SHEAF_F32, 2, 256, 1024), 1, h->rank, 2);
}

static void alone(struct hand *h)
{
	hand_add(h, "optimizer", "own", SHEAF_F32, 2, 2, MIB / 16);
	hand_add(h, "model", "w", SHEAF_F32, 2, 256, 256);
}

/* ---- one commit after the other until it is through ---- */

static int wait_ms;             /* of each */
static bool lazily;
static int calls, agains, refusals;
static int64_t longest;         /* beyond its time, of the calls that had to keep it */

static int begin(struct hand *h, int64_t step, struct sheaf_save **save)
{
	struct sheaf_save_opts o = { .size = sizeof(o), .flags = lazily ? SHEAF_SAVE_LAZY : 0 };
	int rc = shf_save_begin(save, h->run, step, h->state, &o, &h->err);

	for (int i = 0; rc == 0 && lazily && i < h->n; i++)
		rc = shf_save_copied(*save, i, -1, NULL);
	return rc;
}

/* May this one be late? The publish of a run's first step was never seen before; whoever was
 * refused is let through the next time. */
static int commit_once(struct hand *h, struct sheaf_save *save, bool may_be_late)
{
	int64_t from = shf_sys_mono_ns(h->sys), late;
	int rc = shf_save_commit(save, wait_ms, &h->err);

	late = shf_sys_mono_ns(h->sys) - from - (int64_t)wait_ms * MS;
	if (h->rank == 0) {
		calls++;
		agains += rc == SHEAF_EAGAIN;
		refusals += rc == SHEAF_EAGAIN && strstr(h->err.msg, "too little time") != NULL;
		if ((rc == SHEAF_EAGAIN || !may_be_late) && wait_ms > 0 && late > longest)
			longest = late;
	}
	return rc;
}

static int commit_in_pieces(struct hand *h)
{
	int rc = 0;

	for (int64_t step = 7; step < 10 && rc == 0; step++) {
		struct sheaf_save *save = NULL;
		bool refused = step == 7;

		rc = begin(h, step, &save);
		for (int i = 0; rc == 0 || (rc == SHEAF_EAGAIN && i < 100000); i++) {
			rc = commit_once(h, save, refused);
			if (rc == 0)
				break;
			refused |= strstr(h->err.msg, "too little time") != NULL;
			slow.clock_ns += wait_ms == 0 ? 7 * MS : 0;     /* it trains on */
		}
		shf_save_free(save);
	}
	return rc;
}

static void set_slow(int part)
{
	int64_t clock = slow.clock_ns;

	memset(&slow, 0, sizeof(slow));
	slow.clock_ns = clock;
	slow.write_ns = part == 0 ? 280 * MS : 1000;
	slow.sync_ns = part == 1 ? 90 * MS : 1000;
	slow.dir_ns = part == 2 ? 30 * MS : 1000;
	slow.net_ns = part == 3 ? 160 * MS : 1000;
	slow.open_ns = part == 4 ? 50 * MS : 1000;
}

enum { PARTS = 5 };
static const char *const parts[PARTS] = { "writes", "syncs", "directories", "net", "new files" };

TEST(a_commit_returns_when_its_time_is_up_and_gets_there)
{
	static const int32_t apart[2] = { 1, 2 };
	static const int times[] = { 0, 1, 13, 100, 500 };

	for (int part = 0; part < PARTS; part++) {
		calls = agains = refusals = 0;
		longest = 0;
		for (int way = 0; way < 4; way++)
			for (size_t t = 0; t < sizeof(times) / sizeof(times[0]); t++) {
				struct simdisk *disk = disk_new();
				struct play p = hands_play(disk, 1 + way / 2,
				                           way / 2 ? halves : alone);

				lazily = way % 2;
				wait_ms = times[t];
				set_slow(part);
				p.nodes = way / 2 ? apart : NULL;
				p.tamper = tamper;
				CHECK_RC(hands_run(&p, commit_in_pieces, true), 0, &p.err);
				p.tamper = NULL;
				p.step = 9;
				LOADED(p);
				simdisk_free(disk);
			}
		printf("# slow %s: %d commits, %d not through, %d of these refused; the latest "
		       "%.2f ms too late\n", parts[part], calls, agains, refusals,
		       (double)longest / MS);
		CHECK(agains > 0);
		/* Where the net is slow, one portion: here all of it. */
		CHECK(longest < TOLERANCE + (part == 3 ? slow.net_ns / 2 : 0));
	}
}

/* ---- one claim each ---- */

static int what_ends_at_once(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int64_t from;
	int rc = begin(h, 7, &save);

	wait_ms = -1;
	slow.dir_ns = 300 * MS;
	rc = rc ? rc : commit_once(h, save, true);
	shf_save_free(save);
	save = NULL;
	rc = rc ? rc : begin(h, 8, &save);
	wait_ms = 800;                  /* and the publish takes more than five times 300 */
	slow.renames = 0;
	from = slow_now(h->sys->host.arg);
	if (rc == 0 && commit_once(h, save, false) != SHEAF_EAGAIN)
		rc = shf_fail(&h->err, SHEAF_EBUG, "it was begun");
	if (rc == 0 && (slow.renames || slow_now(h->sys->host.arg) - from > 100 * MS))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%d renames, or it waited", slow.renames);
	wait_ms = 4000;
	rc = rc ? rc : commit_once(h, save, false);
	shf_save_free(save);
	return rc;
}

TEST(what_cannot_be_published_in_time_is_not_begun)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, alone);

	longest = 0;
	lazily = false;
	set_slow(-1);
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, what_ends_at_once, true), 0, &p.err);
	CHECK(longest < TOLERANCE);
	p.tamper = NULL;
	p.step = 8;
	LOADED(p);
	simdisk_free(disk);
}

static int stage_too_long(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, 7, &save);    /* the commit of a second one makes its stage */

	wait_ms = 4000;
	rc = rc ? rc : commit_once(h, save, true);
	shf_save_free(save);
	save = NULL;
	shf_durations_add(&h->run->saves.pace.stage, 10000 * (int64_t)MS);
	rc = rc ? rc : begin(h, 8, &save);
	if (rc == 0 && (commit_once(h, save, false) != SHEAF_EAGAIN ||
	                strstr(h->err.msg, "too little time is left to create its files") == NULL))
		rc = shf_fail(&h->err, SHEAF_EBUG, "the stage was begun");
	rc = rc ? rc : commit_once(h, save, true);
	shf_save_free(save);
	return rc;
}

TEST(what_cannot_be_staged_in_time_is_told_from_what_cannot_be_published)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, alone);

	lazily = true;
	set_slow(-1);
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, stage_too_long, true), 0, &p.err);
	p.tamper = NULL;
	p.step = 8;
	LOADED(p);
	simdisk_free(disk);
}

static int sync_behind(struct hand *h)
{
	struct sheaf_save *save = NULL, *next = NULL;
	int64_t from;
	int rc = begin(h, 7, &save);

	wait_ms = 60;
	if (rc == 0 && commit_once(h, save, false) != SHEAF_EAGAIN)
		rc = shf_fail(&h->err, SHEAF_EBUG, "it did not wait for the syncs");
	/* Meanwhile the image is another's. */
	rc = rc ? rc : begin(h, 8, &next);
	slow.clock_ns += 10000 * (int64_t)MS;
	slow.sync_ns = 1000;            /* those of the publish */
	from = slow_now(h->sys->host.arg);
	wait_ms = 0;
	do
		rc = rc && rc != SHEAF_EAGAIN ? rc : commit_once(h, save, false);
	while (rc == SHEAF_EAGAIN);
	if (rc == 0 && slow_now(h->sys->host.arg) - from > TOLERANCE)
		rc = shf_fail(&h->err, SHEAF_EBUG, "it waited again");
	if (rc == 0 && slow.syncs != 2 + 3)     /* tensor files, then indexes and sums */
		rc = shf_fail(&h->err, SHEAF_EBUG, "%d syncs", slow.syncs);
	wait_ms = -1;
	rc = rc ? rc : commit_once(h, next, false);
	shf_save_free(save);
	shf_save_free(next);
	return rc;
}

TEST(syncs_go_on_behind_a_commit_whose_time_was_up)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, alone);

	lazily = false;
	set_slow(1);
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, sync_behind, true), 0, &p.err);
	p.tamper = NULL;
	LOADED(p);
	p.step = 8;
	LOADED(p);
	simdisk_free(disk);
}

static int fail_behind(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, 7, &save);

	wait_ms = 60;
	if (h->rank == h->ranks - 1)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
			.kind = SIMDISK_FSYNC, .how = SIMDISK_INSTEAD });
	if (rc == 0 && commit_once(h, save, false) != SHEAF_EAGAIN)
		rc = shf_fail(&h->err, SHEAF_EBUG, "it did not wait for the syncs");
	slow.clock_ns += 10000 * (int64_t)MS;
	for (int i = 0; i < 2 && rc == 0; i++)
		if (commit_once(h, save, false) != (i ? SHEAF_EINVAL : SHEAF_EIO))
			rc = shf_fail(&h->err, SHEAF_EBUG, "commit %d went well", i);
	shf_save_free(save);
	return rc;
}

TEST(a_sync_that_fails_behind_fails_the_step_on_all)
{
	for (int ranks = 1; ranks <= 2; ranks++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, ranks, ranks == 1 ? alone : halves);

		lazily = false;
		set_slow(1);
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, fail_behind, true), 0, &p.err);
		CHECK_INT(simdisk_fired(disk), 1);
		CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
		simdisk_free(disk);
	}
}

/* After n commits that were not through. */
static int give_up(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, 7, &save);

	wait_ms = 1;
	for (int i = 0; i < h->play->variant && rc == 0; i++)
		if (commit_once(h, save, false) != SHEAF_EAGAIN)
			rc = shf_fail(&h->err, SHEAF_EBUG, "commit %d was through", i);
	if (rc == 0 && h->rank == 0)
		(void)shf_save_fail(save, "no time", NULL);
	wait_ms = 1000;
	if (rc == 0 && h->play->variant % 2 && commit_once(h, save, false) != SHEAF_EFAILED)
		rc = shf_fail(&h->err, SHEAF_EBUG, "another code than EFAILED");
	shf_save_free(save);
	save = NULL;
	rc = rc ? rc : begin(h, 8, &save);
	wait_ms = -1;
	rc = rc ? rc : commit_once(h, save, false);
	shf_save_free(save);
	return rc;
}

TEST(what_was_given_up_never_appears_and_harms_no_other)
{
	for (int n = 1; n < 60; n += n < 4 ? 1 : 9) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);

		lazily = n % 3 == 0;
		set_slow(n % 2);
		p.opts.images_max = 2;
		p.variant = n;
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, give_up, true), 0, &p.err);
		CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
		p.tamper = NULL;
		p.step = 8;
		LOADED(p);
		simdisk_free(disk);
	}
}

static int impatient(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int64_t from;
	int rc = begin(h, 7, &save);

	wait_ms = h->rank == 1 ? 50 : 100000;
	from = slow_now(h->sys->host.arg);
	if (rc == 0 && shf_save_commit(save, wait_ms, &h->err) != SHEAF_EAGAIN)
		rc = shf_fail(&h->err, SHEAF_EBUG, "it was through");
	if (rc == 0 && slow_now(h->sys->host.arg) - from > 50 * MS + TOLERANCE)
		rc = shf_fail(&h->err, SHEAF_EBUG, "it took longer than one rank had");
	rc = rc ? rc : shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(all_go_by_the_rank_that_has_the_least_time)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	lazily = false;
	set_slow(0);
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, impatient, true), 0, &p.err);
	p.tamper = NULL;
	LOADED(p);
	simdisk_free(disk);
}

/* Columns that interleave: 6 MiB of each rank's are written by the other. */
static void columns(struct hand *h)
{
	hand_cut(hand_add(h, "model", "mixed", SHEAF_F32, 2, 1536, 4096), 1, h->rank, 2);
}

static int send_slowly(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, 7, &save);

	calls = agains = 0;
	longest = 0;
	wait_ms = 400;
	do
		rc = rc == 0 || rc == SHEAF_EAGAIN ? commit_once(h, save, false) : rc;
	while (rc == SHEAF_EAGAIN);
	shf_save_free(save);
	return rc;
}

TEST(a_slow_net_is_left_after_a_portion)
{
	static const int32_t apart[2] = { 1, 2 };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, columns);

	lazily = false;
	set_slow(3);
	p.nodes = apart;
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, send_slowly, true), 0, &p.err);
	printf("# %d commits, %d not through, the latest %.2f ms too late\n", calls, agains,
	       (double)longest / MS);
	CHECK(agains > 1);
	CHECK(longest < TOLERANCE + 2 * 4 * slow.net_ns);       /* 4 MiB, to each of two */
	p.tamper = NULL;
	LOADED(p);
	simdisk_free(disk);
}

/* ---- how long it will take ---- */

static double off_most;         /* the worst estimate: how often too long or too short */
static int asked;

/* Asked along the way, while time passes and the disk works, and then committed. */
static int foretell(struct hand *h)
{
	int rc = 0;

	for (int64_t step = 7; step < 12 && rc == 0; step++) {
		int64_t at[8], eta[8], last;
		struct sheaf_save *save = NULL;

		rc = begin(h, step, &save);
		for (int i = 0; i < 8 && rc == 0; i++) {
			at[i] = slow_now(h->sys->host.arg);
			eta[i] = shf_save_eta_ms(save);
			slow.clock_ns += 30 * MS;
			if (i == 4) {
				wait_ms = 30;
				rc = shf_save_commit(save, wait_ms, &h->err);
				rc = rc == SHEAF_EAGAIN ? 0 : rc ? rc : SHEAF_EBUG;
			}
		}
		rc = rc ? rc : shf_save_commit(save, -1, &h->err);
		last = slow_now(h->sys->host.arg);
		if (rc == 0 && shf_save_eta_ms(save) != 0)
			rc = shf_fail(&h->err, SHEAF_EBUG, "committed, and something is left");
		for (int i = 0; i < 8 && rc == 0; i++) {
			double is = (double)(last - at[i]) / MS, off;

			/* Nothing is done, and nothing was seen before. */
			if (step == 7 && i == 0 && eta[i] != -1)
				rc = shf_fail(&h->err, SHEAF_EBUG, "%d ms known at once",
				              (int)eta[i]);
			if (step == 7)
				continue;
			off = (double)eta[i] > is ? (double)eta[i] / is : is / (double)eta[i];
			off_most = off > off_most ? off : off_most;
			asked++;
			if (eta[i] <= 0)
				rc = shf_fail(&h->err, SHEAF_EBUG, "ask %d: %d, and %d ms are left",
				              i, (int)eta[i], (int)is);
		}
		shf_save_free(save);
	}
	return rc;
}

TEST(what_is_left_is_known_from_the_saves_before)
{
	asked = 0;
	off_most = 0;
	for (int way = 0; way < 2; way++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1, alone);

		lazily = way;
		set_slow(0);
		slow.sync_ns = 70 * MS;
		slow.dir_ns = 25 * MS;
		slow.open_ns = 15 * MS;
		slow.write_ns = 640 * MS;
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, foretell, true), 0, &p.err);
		simdisk_free(disk);
	}
	printf("# %d estimates, the worst wrong by a factor of %.2f\n", asked, off_most);
	CHECK(asked == 2 * 4 * 8 && off_most < 1.5);
}

/* Long written when somebody asks: what counts is when that was. */
static int ask_late(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int64_t eta;
	int rc = begin(h, 7, &save);

	slow.clock_ns += 1000000 * (int64_t)MS;
	eta = shf_save_eta_ms(save);
	if (rc == 0 && (eta < 1 || eta > 2000))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%d ms after it was written", (int)eta);
	if (rc == 0)
		rc = shf_save_fail(save, "no time", NULL);
	if (rc == 0 && shf_save_eta_ms(save) != -1)
		rc = shf_fail(&h->err, SHEAF_EBUG, "a time for what was given up");
	shf_save_free(save);
	return rc;
}

TEST(who_asks_late_does_not_take_the_disk_for_slow)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, alone);

	lazily = false;
	set_slow(0);
	p.tamper = tamper;
	CHECK_RC(hands_run(&p, ask_late, true), 0, &p.err);
	simdisk_free(disk);
}

/* ---- with an agent on the node ---- */

static int leave_in_memory(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = begin(h, 7, &save);

	wait_ms = -1;
	rc = rc ? rc : commit_once(h, save, true);
	shf_save_free(save);
	save = NULL;
	rc = rc ? rc : begin(h, 8, &save);
	wait_ms = 5;
	if (rc == 0 && (commit_once(h, save, false) != SHEAF_EAGAIN ||
	                !strstr(h->err.msg, "it is safe in the agents' memory")))
		rc = shf_fail(&h->err, SHEAF_EBUG, "no word of memory: %.200s", h->err.msg);
	shf_save_free(save);
	return rc;
}

static int resume_newest(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);

	if (rc == 0 && step->number != h->play->step)
		rc = shf_fail(&h->err, SHEAF_EBUG, "step %d is the newest", (int)step->number);
	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LOAD_STRICT, NULL, &h->err);
	shf_step_put(step);
	if (rc == 0 && hand_wrong(h, h->err.msg, sizeof(h->err.msg)))
		rc = SHEAF_EBUG;
	return rc;
}

TEST(what_was_given_up_is_in_the_memory_of_the_agent)
{
	for (int ranks = 1; ranks <= 2; ranks++)
		for (int slowly = 0; slowly < 5; slowly += slowly ? 3 : 1) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, ranks, ranks == 1 ? alone : halves);

			simdisk_set_agents(disk, UINT64_C(1) << 30);
			p.opts.agent = "auto";
			p.opts.images_max = 3;
			lazily = slowly == 4;
			set_slow(slowly);
			slow.dir_ns = slowly == 4 ? 30 * MS : 1000;
			p.tamper = tamper;
			CHECK_RC(hands_run(&p, leave_in_memory, true), 0, &p.err);
			CHECK(!simdisk_exists(disk, "run/checkpoint-8"));
			p.tamper = NULL;
			p.step = 8;
			CHECK_RC(hands_run(&p, resume_newest, false), 0, &p.err);
			simdisk_kill_agent(disk, 0);
			p.step = 7;
			CHECK_RC(hands_run(&p, resume_newest, false), 0, &p.err);
			simdisk_free(disk);
		}
}

/* ---- one image, which the agent cannot keep ---- */

static int commit_in_short_time(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = 0;

	for (int64_t n = 7; n < 9 && rc == 0; n++) {
		rc = begin(h, n, &save);
		wait_ms = -1;
		rc = rc ? rc : commit_once(h, save, true);
		shf_save_free(save);
		save = NULL;
	}
	rc = rc ? rc : begin(h, 9, &save);
	if (rc < 0)
		return rc;
	wait_ms = 5;
	rc = commit_once(h, save, false);
	shf_save_free(save);
	return rc == SHEAF_EAGAIN && strstr(h->err.msg, "too little time")
	       ? 0 : shf_fail(&h->err, SHEAF_EBUG, "it returned %d", rc);
}

TEST(a_stage_is_not_begun_too_late_for_an_agent_that_cannot_keep_the_step)
{
	for (int agent = 0; agent < 2; agent++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1, alone);

		lazily = true;
		longest = 0;
		set_slow(-1);
		simdisk_set_takes(disk, SIMDISK_MKDIR, 400);
		if (agent)
			simdisk_set_agents(disk, UINT64_C(1) << 30);
		p.opts.agent = agent ? "auto" : NULL;
		p.opts.images_max = 1;
		p.tamper = tamper;
		CHECK_RC(hands_run(&p, commit_in_short_time, true), 0, &p.err);
		CHECK_INT(longest, 0);
		simdisk_free(disk);
	}
}

/* ---- a run that is closed ---- */

static int close_under_it(struct hand *h)
{
	struct sheaf_save *save = NULL;
	struct sheaf_stat stat;
	int rc = begin(h, 7, &save);

	if (rc < 0)
		return rc;
	shf_run_close(h->run);
	h->run = NULL;
	shf_save_stat(save, &stat);
	shf_save_free(save);
	return stat.phase == 3 ? 0 : shf_fail(&h->err, SHEAF_EBUG, "phase %u", stat.phase);
}

TEST(a_save_whose_run_was_closed_is_over)
{
	for (int lazy = 0; lazy < 2; lazy++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1, alone);

		lazily = lazy;
		CHECK_RC(hands_run(&p, close_under_it, true), 0, &p.err);
		simdisk_free(disk);
	}
}
