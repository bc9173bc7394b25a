/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a repository in the cache of the Hugging Face hub opens the snapshot of its
 * branch main, or the only one, and says which; else the snapshots are named. */
#include "hands.h"
#include <stdlib.h>
#include "t.h"
#include "foreign_plays.h"
#include "step_open.h"

#define REPO "models--org--name"
#define A REPO "/snapshots/aaaa1111"
#define B REPO "/snapshots/bbbb2222"

static const struct hand_tensor tensors[] = { { "w", SHEAF_F32, 2, { 29, 13 } } };

static void held(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 29, 13), 0, h->rank, h->ranks);
}

/* Puts a repository whose snapshot B has weights, and A none. refs: what refs/main has; NULL: there
 * is no such file. */
static struct simdisk *repository(const char *refs)
{
	struct simdisk *disk = disk_new();

	hands_file(disk, B "/model.safetensors", tensors, 1, 0);
	CHECK_INT(simdisk_put(disk, B "/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, A "/config.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, REPO "/blobs/0123", "", 0), 0);
	if (refs)
		CHECK_INT(simdisk_put(disk, REPO "/refs/main", refs, strlen(refs)), 0);
	return disk;
}

/* Opens the repository. path: gets the path that was opened. */
static int open_it(struct simdisk *disk, char path[200], struct sheaf_error *err)
{
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, REPO, NULL, &opts, sys, err);

	snprintf(path, 200, "%s", rc == 0 ? step->path : "");
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return rc;
}

TEST(the_snapshot_of_the_branch_main_is_opened_and_said)
{
	static const char *const refs[] = { "bbbb2222", "bbbb2222\n" };

	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = repository(refs[i]);
		struct sheaf_error err;
		char path[200];
		int rc = open_it(disk, path, &err);

		CHECK_RC(rc, 0, &err);
		CHECK_STR(path, B);
		foreign_loads(disk, REPO, 2, held, 0, 1);
	}
}

TEST(the_only_snapshot_is_opened_without_refs)
{
	struct simdisk *disk = repository(NULL);
	struct sheaf_error err;
	char path[200];
	int rc;

	CHECK_INT(simdisk_remove(disk, A), 0);
	rc = open_it(disk, path, &err);
	CHECK_RC(rc, 0, &err);
	CHECK_STR(path, B);
	simdisk_free(disk);
}

TEST(what_does_not_say_which_snapshot_is_refused_with_their_names)
{
	static const struct { const char *refs, *says; } bad[] = {
		{ NULL, "with 2 snapshots, and no refs/main says which is meant; open one of" },
		{ "", "no refs/main says which is meant" },
		{ "../../elsewhere", "no refs/main says which is meant" },
		{ "cccc3333", "refs/main names the snapshot cccc3333, which is not there; open" },
	};
	struct sheaf_error err;
	struct simdisk *disk;
	char path[200];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		disk = repository(bad[i].refs);
		CHECK_INT(open_it(disk, path, &err), SHEAF_EFORMAT);
		if (!strstr(err.msg, bad[i].says) || !strstr(err.msg, "aaaa1111") ||
		    !strstr(err.msg, "bbbb2222"))
			fail_msg("want '%s', got: %s", bad[i].says, err.msg);
		simdisk_free(disk);
	}
	disk = repository(NULL);
	CHECK_INT(simdisk_remove(disk, A), 0);
	CHECK_INT(simdisk_remove(disk, B), 0);
	CHECK_INT(open_it(disk, path, &err), SHEAF_EFORMAT);
	CHECK(strstr(err.msg, "has no snapshot; download it again") != NULL);
	simdisk_free(disk);
}
