/* SPDX-License-Identifier: Apache-2.0 */
/* One allocation of a save fails, for each way to save: each sentence that a caller can get then
 * appears once, and repeating the save a moment later succeeds. */
#include "sentences.h"
#include "starve.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"

static long nth;                /* which allocation fails */
static bool through;            /* none was left to fail */
static uint64_t flags;

/* Each line once, without the words of the C library and what was drawn. */
static void once(const char *line)
{
	char with[700], *at;

	snprintf(with, sizeof(with), "%s", line);
	at = strstr(with, ": Cannot allocate memory");
	if (at)
		*at = '\0';
	for (at = with; (at = strstr(at, "/stage/3-")); at += 9)
		if (strlen(at) >= 9 + 32)
			memmove(at + 9, at + 9 + 32, strlen(at + 9 + 32) + 1);
	strcat(with, "\n");
	if (!strstr(told, with))
		tell("%s", with);
}

static void hear_once(void *arg, int level, const char *line)
{
	char text[600];

	(void)arg;
	snprintf(text, sizeof(text), "%d %s", level, line);
	if (level < 2)
		once(text);
}

/* Brings what is to be brought, asks for all, commits. */
static int rest_of(struct hand *h, struct sheaf_save *save)
{
	int rc = 0;

	for (int i = 0; rc == 0 && flags & SHEAF_SAVE_LATER && i < h->n; i++)
		rc = shf_save_put(save, i, NULL, NULL);
	for (int i = 0; rc == 0 && flags & SHEAF_SAVE_LAZY && i < h->n; i++)
		rc = shf_save_copied(save, i, -1, NULL);
	if (rc == 0 && h->ranks > 1) {
		rc = shf_save_exchange(save, 4096, &h->err);
		rc = rc == SHEAF_EAGAIN ? 0 : rc;
	}
	if (rc == 0 && shf_save_attach(save, h->rank ? "b.json" : "a.json", "{}", 2, NULL) == 0)
		rc = shf_save_note(save, "epoch", "1", NULL);
	return shf_save_commit(save, -1, &h->err);
}

/* hungry: what comes after its begin lacks memory, once, on the last rank. */
static int save_once(struct hand *h, bool hungry)
{
	struct sheaf_save_opts o = { .size = sizeof(o), .flags = flags };
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 3, h->state, &o, &h->err);

	starve_left = hungry && h->rank == h->ranks - 1 ? nth : 0;
	if (rc == 0)
		rc = rest_of(h, save);
	if (hungry && h->rank == h->ranks - 1)
		through = starve_left > 0;
	starve_left = 0;
	shf_save_free(save);
	return rc;
}

static int save_hungrily(struct hand *h)
{
	char line[600];
	int rc = save_once(h, true);

	snprintf(line, sizeof(line), "%d: %s", rc, rc ? h->err.msg : "");
	if (h->rank == 0)
		once(line);
	return rc == SHEAF_ENOMEM ? save_once(h, false) : rc;
}

static void three(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 256), 1, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "b", SHEAF_F32, 1, 100), 0, h->rank, h->ranks);
	hand_add(h, "optimizer", "all", SHEAF_F32, 1, 10);
}

/* Until there is no such allocation any more; of the many that publish the step, one of four. */
static void hungry(int ranks, uint64_t how, uint64_t of_run, const char *want)
{
	static const int32_t apart[] = { 1, 2 };

	told[0] = '\0';
	flags = how;
	through = false;
	for (nth = 1; !through; nth += T_FEWER * (nth > 120 ? 4 : 1)) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, ranks, three);

		simdisk_set_task_steps(disk, 0);
		simdisk_set_trace(disk, false);
		p.nodes = ranks > 1 ? apart : NULL;
		p.opts.flags |= of_run;
		p.opts.log = hear_once;
		CHECK_RC(hands_run(&p, save_hungrily, true), 0, &p.err);
		p.opts.log = NULL;
		p.step = 3;
		if (nth % 16 == 1)
			LOADED(p);
		simdisk_free(disk);
	}
	printf("# %ld allocations\n", nth - 1);
	if (T_FEWER == 1)
		is_text(want);
}

TEST(slices_that_are_brought_and_compared_lack_memory)
{
	hungry(1, SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER | SHEAF_SAVE_CHECK, 0,
	       "-2: model/w: no memory to look again\n-2: optimizer/b: no memory to look again\n"
	       "-2: optimizer/all: no memory to look again\n-2: a.json: no memory\n"
	       "-2: attached file a.json: no memory\n-2: epoch: no memory\n"
	       "-2: note epoch: no memory\n-2: no memory for a header of 1 tensors\n"
	       "-2: out of memory for the names of a header\n"
	       "-2: out of memory for a header of 1 tensors\n"
	       "-2: no memory for a header of 2 tensors\n"
	       "-2: out of memory for a header of 2 tensors\n-2: no memory to sync 2 files\n"
	       "-2: rank 0: no memory for the bytes for rank 0\n"
	       "-2: no memory for the exchange of 148 bytes\n-2: no memory for sums\n"
	       "-2: what rank 0 sent of a save: out of memory\n"
	       "-2: no memory for the sums of 3 tensors\n0: \n"
	       "-2: no memory for 2 attached files\n-2: no memory for attached files\n"
	       "-2: no memory for the manifest\n-2: no memory for the index of model\n"
	       "-2: no memory for the index of optimizer\n-2: run/.sheaf/stage/3-/.\n"
	       "-2: manifest: out of memory\n-2: out of memory for the manifest\n"
	       "-2: sheaf.json: out of memory\n");
}

TEST(what_travels_behind_lacks_memory)
{
	hungry(2, SHEAF_SAVE_LAZY, SHEAF_RUN_REPLICAS,
	       "-2: b.json: no memory\n-2: attached file b.json: no memory\n"
	       "-2: epoch: no memory\n-2: note epoch: no memory\n"
	       "-2: no memory for a header of 2 tensors\n"
	       "-2: out of memory for the names of a header\n"
	       "-2: out of memory for a header of 2 tensors\n"
	       "-2: no memory for a portion of 0 bytes\n"
	       "-2: no memory for a portion of 32976 bytes\n-2: no memory to unpack\n"
	       "-2: no memory to sync 2 files\n-2: rank 1: no memory for the bytes for rank 0\n"
	       "-2: no memory for the exchange of 0 bytes\n0: \n");
}
