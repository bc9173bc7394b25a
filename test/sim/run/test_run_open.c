/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_run_open with every option set does everything or opens nothing, whichever allocation
 * fails. Replicas may have a group of their own, done files that cannot be made are a warning, and
 * a reader that came before the job opens no step of another run. */
#include <errno.h>
#include <stdlib.h>
#include "acts.h"
#include "save.h"
#include "starve.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step.h"
#include "step_open.h"
#include "run_ops.h"
#include "load.h"

static const int32_t apart[] = { 1, 2 };

/* ---- options ---- */

static long nth;                /* which allocation of rank 1 fails; 0: none */
static int notified;

static void committed(void *arg, int64_t step, const char *path)
{
	(void)arg;
	(void)path;
	(void)step;
	notified++;
}

static int open_with_all(struct hand *h)
{
	static const char *const ignore[] = { "model/x*", "model/y", NULL };
	struct shf_opts o = h->play->opts;
	int rc;

	o.ignore = ignore;
	o.keep_last = 3;
	o.keep_best = 1;
	o.best_note = "loss";
	o.agent = "auto";
	o.signal_dir = "signals";
	o.copy_cpus = "0-1";
	o.committed = committed;
	starve_left = h->rank == h->play->variant ? nth : 0;
	rc = shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
	starve_left = 0;
	return rc;
}

TEST(a_run_is_opened_with_all_that_was_asked_for_or_not_at_all)
{
	long n = 0;

	for (int rank = 0; rank < 2; rank++)
		for (nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, 2, NULL);

			p.path = "";
			p.variant = rank;
			starved = false;
			(void)hands_run(&p, open_with_all, false);
			if (starved && p.rc != 0)
				SAID(p.rc, SHEAF_ENOMEM, "memory", &p.err);
			n += starved;
			nth = starved ? nth : 0;
			CHECK(nth || p.rc == 0);
			simdisk_free(disk);
			if (!nth)
				break;
		}
	printf("# %ld allocations\n", n);
	CHECK(n > 40 / T_STRIDE);
	CHECK_INT(notified, 0);
}

static int open_apart(struct hand *h)
{
	struct shf_opts o = h->play->opts;
	struct sheaf_group_ops other = h->group->ops;
	struct sheaf_group *copies = NULL;
	int v = h->play->variant, rc;
	static const char *const none[] = { NULL };

	o.ignore = none;        /* which is nothing */
	o.agent = "auto";
	o.copies = v == 3 ? 1 : 2;
	o.images_max = v == 4 ? 2 : v == 5 ? 3 : 0;
	other.rank = v == 0 ? 1 - h->rank : other.rank;
	other.ranks = v == 1 ? 3 : other.ranks;
	other.free = NULL;
	CHECK_INT(sheaf_group_new(&copies, &other, NULL), 0);
	o.copies_group = v == 2 && h->rank ? NULL : copies;
	rc = shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
	shf_run_close(h->run);
	h->run = NULL;
	sheaf_group_free(copies);
	return rc;
}

TEST(copies_go_over_another_group_of_the_same_ranks_on_all_of_them)
{
	static const char *const word[] = { "opts.memory_tier.copies_group is a group of other "
		"ranks; pass a second group of the same ranks",
		"opts.memory_tier.copies_group is a group of other ranks; pass a second group of "
		"the same ranks", "with opts.memory_tier.copies_group and without",
		"needs opts.memory_tier.copies 2", "buffers_max 0 or at least 3" };

	for (int i = 0; i < 6; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, NULL);

		p.path = "";
		p.nodes = apart;
		p.variant = i;
		if (i == 5)
			CHECK_RC(hands_run(&p, open_apart, false), 0, &p.err);
		else
			SAID(hands_run(&p, open_apart, false), SHEAF_EINVAL, word[i], &p.err);
		simdisk_free(disk);
	}
}

static int open_behind(struct hand *h)
{
	struct shf_opts o = h->play->opts;
	struct sheaf_group_ops other = h->group->ops;
	struct sheaf_group *behind = NULL;
	int v = h->play->variant, rc;

	other.rank = v == 0 ? 1 - h->rank : other.rank;
	other.ranks = v == 1 ? 3 : other.ranks;
	other.free = NULL;
	CHECK_INT(sheaf_group_new(&behind, &other, NULL), 0);
	o.commit_group = v == 2 && h->rank ? NULL : v == 3 ? h->group : behind;
	if (v == 4) {
		o.agent = "auto";
		o.copies = 2;
		o.copies_group = behind;
	}
	rc = shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
	shf_run_close(h->run);
	h->run = NULL;
	sheaf_group_free(behind);
	return rc;
}

TEST(commits_behind_go_over_another_group_of_the_same_ranks_on_all_of_them)
{
	static const char *const word[] = { "opts.commit_group is a group of other ranks; pass a "
		"second group of the same ranks",
		"opts.commit_group is a group of other ranks; pass a second group of the same "
		"ranks", "with opts.commit_group and without",
		"opts.commit_group is the run's own group",
		"opts.commit_group is copies_group" };

	for (int i = 0; i < 5; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, NULL);

		p.path = "";
		p.nodes = apart;
		p.variant = i;
		SAID(hands_run(&p, open_behind, false), SHEAF_EINVAL, word[i], &p.err);
		simdisk_free(disk);
	}
}

static char heard[2000];

static void hear(void *arg, int level, const char *line)
{
	size_t n = strlen(heard);

	(void)arg;
	if (level <= 1)
		snprintf(heard + n, sizeof(heard) - n, "%s\n", line);
}

static void some(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 5000), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "m", SHEAF_F32, 2, 64, 3000), 0, h->rank, h->ranks);
}

static int only_open(struct hand *h)
{
	(void)h;
	return 0;
}

/* Whoever waits for the done files of a step waits on; the training does not. */
TEST(a_run_whose_done_files_cannot_be_made_is_open_all_the_same)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, some);

	SAVED(p);
	p.opts.signal_dir = "no/such/folder";
	p.opts.log = hear;
	heard[0] = '\0';
	CHECK_RC(hands_run(&p, only_open, true), 0, &p.err);
	CHECK(strstr(heard, "the done files of the newest step could not all be written") != NULL);
	simdisk_free(disk);
}

static int load_and_go_on(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	shf_step_put(step);
	simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		.always = true, .kind = SIMDISK_UNLINK, .name = "7-" });
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 8, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_load_that_stays_counted_though_it_went_well_is_told)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, some);

	SAVED(p);
	p.opts.log = hear;
	heard[0] = '\0';
	CHECK_RC(hands_run(&p, load_and_go_on, true), 0, &p.err);
	CHECK(simdisk_fired(disk) > 0);
	CHECK(strstr(heard, "a successful resume could not be recorded") != NULL);
	simdisk_free(disk);
}

TEST(a_reader_that_came_before_the_job_opens_no_step_of_another_run)
{
	static const char id[] = "sheaf-run 1\n0123456789abcdef0123456789abcdef\n";
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, some);
	const struct shf_sys *sys = simdisk_process(disk, 4000, 0);
	struct sheaf_run *reader = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	CHECK_INT(shf_sys_mkdir(sys, SHF_CWD, "run", 0777), 0);
	CHECK_RC(shf_run_open(&reader, "run", NULL, &opts, sys, &err), 0, &err);
	SAVED(p);
	CHECK_INT(simdisk_put(disk, "run/.sheaf/run", id, sizeof(id) - 1), 0);
	SAID(shf_step_open(&step, reader, 7, &err), SHEAF_ECORRUPT, "of another run", &err);
	shf_run_close(reader);
	simdisk_free(disk);
}
