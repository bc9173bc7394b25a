/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_save_eta_ms: the tests set the times that saves measure and compare with results that were
 * computed by hand. */
#include "acts.h"
#include <math.h>
#include <stdlib.h>
#include "save_pace.h"
#include "starve.h"
#include "t.h"
#include "run_env.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_eta.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "state.h"
#include "run_ops.h"

#define MS INT64_C(1000000)
#define METRICS "run/.sheaf/metrics.jsonl"

struct clocked {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct sheaf_error err;
	float w[12];
};

static void begin(struct clocked *c, uint64_t flags)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE | flags,
		.io_threads = 1 };
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 12 }, .count = { 12 }, .data = c->w };

	*c = (struct clocked){ .disk = disk_new() };
	c->sys = simdisk_process(c->disk, 9, 0);
	simdisk_set_task_steps(c->disk, 0);
	c->state = shf_state_new();
	CHECK_INT(shf_state_add(c->state, &s, NULL), 0);
	CHECK_RC(shf_run_open(&c->run, "run", NULL, &opts, c->sys, &c->err), 0, &c->err);
}

static void end(struct clocked *c)
{
	shf_run_close(c->run);
	shf_state_put(c->state);
	CHECK_INT(simdisk_open_n(c->sys), 0);
	simdisk_free(c->disk);
}

static struct sheaf_save *begun(struct clocked *c, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, c->run, step, c->state, &opts, &c->err), 0, &c->err);
	return save;
}

static void committed(struct clocked *c, struct sheaf_save *save)
{
	CHECK_RC(shf_save_commit(save, -1, &c->err), 0, &c->err);
	CHECK_INT(shf_save_eta_ms(save), 0);
	shf_save_free(save);
}

/* ---- how long a save will still take ---- */

/* A save of 400 bytes of which 100 are written, after one that wrote 400 in 4 s, synced for 1 s
 * and published for 2 s. */
static void quarter_written(struct clocked *c, struct sheaf_save *save)
{
	struct shf_save_pace *pace = &c->run->saves.pace;

	*pace = (struct shf_save_pace){ .write = { 0 } };
	shf_rate_set(&pace->write, 400, 4000 * MS);
	shf_durations_add(&pace->sync, 1000 * MS);
	shf_durations_add(&pace->publish, 2000 * MS);
	atomic_store(&save->took.to_write, 400);
	atomic_store(&save->took.written, 100);
	atomic_store(&save->took.write_from_ns, 0);
	atomic_store(&save->took.write_to_ns, 0);
}

TEST(what_is_left_is_what_is_to_write_to_sync_and_to_publish)
{
	struct clocked c;
	struct sheaf_save *save;

	begin(&c, 0);
	save = begun(&c, 1, 0);
	CHECK_INT(shf_save_wait(save, -1, NULL), 0);
	quarter_written(&c, save);      /* in no time: the save before counts */
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	atomic_store(&save->took.write_to_ns, 1000 * MS); /* as fast as before */
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	atomic_store(&save->took.write_to_ns, 8000 * MS); /* longer than all of it took before */
	CHECK_INT(shf_save_eta_ms(save), 24000 + 1000 + 2000 + 1);
	atomic_store(&save->took.written, 400);
	CHECK_INT(shf_save_eta_ms(save), 1000 + 2000 + 1);
	save->id.flags |= SHEAF_SAVE_NO_DISK;   /* nothing is synced, or published */
	CHECK_INT(shf_save_eta_ms(save), 1);
	save->id.flags &= ~(uint64_t)SHEAF_SAVE_NO_DISK;
	committed(&c, save);
	end(&c);
}

TEST(what_nobody_knows_is_not_told)
{
	struct clocked c;
	struct sheaf_save *save;

	begin(&c, 0);
	save = begun(&c, 1, 0);
	CHECK_INT(shf_save_wait(save, -1, NULL), 0);
	quarter_written(&c, save);
	shf_rate_set(&c.run->saves.pace.write, 1, INT64_C(100000000000000000)); /* 3 years a byte */
	CHECK(shf_save_eta_ms(save) > INT64_C(1000000000000));
	atomic_store(&save->took.to_write, 1000000);
	CHECK_INT(shf_save_eta_ms(save), -1);
	c.run->saves.pace = (struct shf_save_pace){ .write = { 0 } };
	CHECK_INT(shf_save_eta_ms(save), -1);
	CHECK_INT(shf_save_fail(save, "no more", NULL), 0);
	CHECK_INT(shf_save_eta_ms(save), -1);
	SAID(shf_save_commit(save, -1, &c.err), SHEAF_EFAILED, "no more", &c.err);
	CHECK_INT(shf_save_eta_ms(save), -1);
	shf_save_free(save);
	end(&c);
}

/* Copying and writing go on at once: the slower one counts. */
TEST(a_copy_that_goes_on_behind_is_waited_for)
{
	struct clocked c;
	struct sheaf_save *save;
	int64_t eta;

	begin(&c, 0);
	save = begun(&c, 1, SHEAF_SAVE_LAZY);
	CHECK_INT(shf_save_copied(save, 0, -1, NULL), 0);
	committed(&c, save);
	save = begun(&c, 2, SHEAF_SAVE_LAZY);
	quarter_written(&c, save);
	shf_durations_add(&c.run->saves.pace.stage, 1);
	CHECK_INT(atomic_load(&save->took.copied), 0);
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	atomic_store(&save->took.copied, 12); /* a quarter, in 5 s */
	save->took.copy_from_ns = shf_now(c.run) - 5000 * MS;
	eta = shf_save_eta_ms(save);
	CHECK(eta >= 15000 + 1000 + 2000 + 1 && eta < 15100 + 1000 + 2000);
	save->took.copy_from_ns = shf_now(c.run) - 500 * MS;
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	CHECK_INT(shf_save_fail(save, "enough", NULL), 0);
	CHECK_INT(shf_save_commit(save, -1, &c.err), SHEAF_EFAILED);
	shf_save_free(save);
	end(&c);
}
