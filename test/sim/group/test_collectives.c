/* SPDX-License-Identifier: Apache-2.0 */
/* How many operations of the group a call of sheaf.h takes. At ten thousand ranks an operation
 * takes a millisecond or more, whatever it carries. With COLLECTIVES=1 in the environment each is
 * printed with the return addresses of its callers; addr2line -f gives their names. */
#include "hands.h"
#include <execinfo.h>
#include <stdlib.h>
#include "save_attach.h"
#include "t.h"

enum { RANKS = 4 };
static struct sheaf_group_ops real_ops; /* of all ranks: they differ in arg alone */
static const void *rank0;               /* its arg */
static int ops_n;                       /* operations that rank 0 has entered */

static void entered(const void *arg, const char *what, size_t n)
{
	static bool asked, shown;
	void *frames[16];
	int frames_n;

	if (arg != rank0)
		return;
	ops_n++;
	if (!asked)
		shown = getenv("COLLECTIVES") != NULL;
	asked = true;
	if (!shown)
		return;
	frames_n = backtrace(frames, 16);
	fprintf(stderr, "# %d %s %zu:", ops_n, what, n);
	for (int i = 2; i < frames_n; i++)
		fprintf(stderr, " %p", frames[i]);
	fprintf(stderr, "\n");
}

static int allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
		     struct sheaf_error *err)
{
	entered(arg, "allgather", bytes);
	return real_ops.allgather(arg, mine, all, bytes, timeout_ms, err);
}

static int allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
		     struct sheaf_error *err)
{
	entered(arg, "allreduce", n);
	return real_ops.allreduce(arg, x, n, op, timeout_ms, err);
}

static int alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                     const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	entered(arg, "alltoallv", out_bytes[0]);
	return real_ops.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
}

static void counted(struct hand *h)
{
	real_ops = h->group->ops;
	if (h->rank == 0)
		rank0 = h->group->ops.arg;
	h->group->ops.allgather = allgather;
	h->group->ops.allreduce = allreduce;
	h->group->ops.alltoallv = alltoallv;
}

/* Every rank has parts of every tensor, in other cuts than lie on disk: bytes travel. */
static void hold(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 256), 1, h->rank, h->ranks);
	hand_cut(hand_add(h, "model", "v", SHEAF_BF16, 2, 64, 256), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "b", SHEAF_F32, 1, 1000), 0, h->rank, h->ranks);
	hand_add(h, "model", "norm", SHEAF_F32, 1, 64);
}

/* Rank 0 has all of it: nobody shares a block with it, so there is no round. */
static void hold_alone(struct hand *h)
{
	if (h->rank == 0)
		hand_add(h, "model", "w", SHEAF_F32, 2, 64, 256);
}

/* Adds to *n what rank 0 has entered since the last call; all ranks may be anywhere else. */
static int taken(void)
{
	int n = ops_n;

	ops_n = 0;
	return n;
}

static struct { int first, plain, lazy_begin, lazy_commit, ask, load; } took;

static void say(const struct hand *h, const char *what)
{
	if (h->rank == 0 && getenv("COLLECTIVES"))
		fprintf(stderr, "# ---- %s\n", what);
}

static int plain(struct hand *h, int64_t step)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, h->state, NULL, &h->err);

	say(h, "commit");
	if (rc == 0 && h->rank == 0)
		rc = shf_save_attach(save, "trainer.json", "{\"step\": 1}\n", 12, NULL);
	if (rc == 0)
		rc = shf_save_note(save, "step", "1", NULL);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int saves(struct hand *h)
{
	int rc = 0;

	for (int64_t n = 1; n <= 3 && rc == 0; n++) {
		if (h->rank == 0)
			(void)taken();
		say(h, n == 1 ? "first save" : "later save");
		rc = plain(h, n);
		if (h->rank == 0)
			*(n == 1 ? &took.first : &took.plain) = taken();
	}
	return rc;
}

static int lazy_one(struct hand *h, int64_t step)
{
	struct sheaf_save_opts o = { .size = sizeof(o), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;
	int rc;

	if (h->rank == 0)
		(void)taken();
	say(h, "lazy begin");
	rc = shf_save_begin(&save, h->run, step, h->state, &o, &h->err);
	if (h->rank == 0)
		took.lazy_begin = taken();
	for (size_t i = 0; rc == 0 && i < h->state->n; i++)
		rc = shf_save_gates_copied(save, (int)i, -1, &h->err);
	say(h, "lazy commit");
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	if (h->rank == 0)
		took.lazy_commit = taken();
	shf_save_free(save);
	return rc;
}

static int lazily(struct hand *h)
{
	int rc = 0;

	for (int64_t n = 1; n <= 3 && rc == 0; n++)
		rc = lazy_one(h, n);
	return rc;
}

/* Asks how far a plain save is, until it is being published by a task that does not get a turn;
 * then once more. */
static int asks(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 1, h->state, NULL, &h->err);

	h->err.msg[0] = '\0';
	for (int i = 0; i < 20 && !strstr(h->err.msg, "published"); i++)
		rc = shf_save_commit(save, 0, &h->err);
	if (h->rank == 0)
		(void)taken();
	say(h, "ask");
	rc = shf_save_commit(save, 0, &h->err);
	if (h->rank == 0)
		took.ask = taken();
	rc = rc == SHEAF_EAGAIN ? shf_save_commit(save, -1, &h->err) : SHEAF_EBUG;
	shf_save_free(save);
	return rc;
}

static int load(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 3, &h->err);

	if (h->rank == 0)
		(void)taken();
	say(h, "load");
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	if (h->rank == 0)
		took.load = taken();
	shf_step_put(step);
	return rc;
}

static struct play world_of(void (*holds)(struct hand *h), bool agent)
{
	struct play p = hands_play(disk_new(), RANKS, holds);

	simdisk_set_task_steps(p.disk, 0);
	p.tamper = counted;
	p.opts.keep_last = 3;
	if (agent) {
		p.opts.agent = "auto";
		simdisk_set_agents(p.disk, UINT64_C(1) << 30);
	}
	return p;
}

static struct play world(bool agent)
{
	return world_of(hold, agent);
}

TEST(a_load_in_which_nobody_shares_a_block)
{
	struct play p = world_of(hold_alone, false);

	CHECK_RC(hands_run(&p, saves, true), 0, &p.err);
	CHECK_RC(hands_run(&p, load, false), 0, &p.err);
	printf("# a load without rounds takes %d\n", took.load);
	CHECK(took.load > 0 && took.load <= 14);
	simdisk_free(p.disk);
}

TEST(a_plain_save_and_a_load)
{
	struct play p = world(false);

	CHECK_RC(hands_run(&p, saves, true), 0, &p.err);
	printf("# a first save takes %d, a later one %d\n", took.first, took.plain);
	CHECK(took.first > 0 && took.first <= 37);
	CHECK(took.plain > 0 && took.plain <= 12);
	CHECK_RC(hands_run(&p, load, false), 0, &p.err);
	printf("# a load takes %d\n", took.load);
	CHECK(took.load > 0 && took.load <= 16);
	simdisk_free(p.disk);
}

TEST(a_lazy_save)
{
	struct play p = world(false);

	CHECK_RC(hands_run(&p, lazily, true), 0, &p.err);
	printf("# a later lazy begin takes %d, its commit %d\n", took.lazy_begin,
	       took.lazy_commit);
	CHECK_INT(took.lazy_begin, 1);
	CHECK(took.lazy_commit > 0 && took.lazy_commit <= 10);
	simdisk_free(p.disk);
}

TEST(an_ask_that_advances_nothing)
{
	struct play p = world(false);

	CHECK_RC(hands_run(&p, asks, true), 0, &p.err);
	CHECK_INT(took.ask, 1);
	simdisk_free(p.disk);
}

TEST(with_an_agent)
{
	struct play p = world(true);

	CHECK_RC(hands_run(&p, saves, true), 0, &p.err);
	printf("# with an agent a first save takes %d, a later one %d\n", took.first, took.plain);
	CHECK(took.plain > 0 && took.plain <= 15); /* one looks whether all is written already */
	simdisk_free(p.disk);
}
