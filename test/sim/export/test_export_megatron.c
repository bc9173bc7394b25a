/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a run is exported as a checkpoint of Megatron: with the names that its optimizer has,
 * in a folder for the iteration; what has no place there is refused. */
#include "hands.h"
#include <stdlib.h>
#include "export_format.h"
#include "step_open.h"
#include "t.h"
#include "foreign_plays.h"

#define TO "out"

static const struct { const char *family, *name, *theirs; } states[] = {
	{ "master_weights", "w", "optimizer.state.param.w" },
	{ "master_weights", "optimizer.state.fp32_param.v", "optimizer.state.param.v" },
	{ "optimizer", "w/moment1_0", "optimizer.state.exp_avg.w" },
	{ "optimizer", "w/moment2_0", "optimizer.state.exp_avg_sq.w" },
	{ "optimizer", "a.b/c", "optimizer.state.c.a.b" },
	{ "optimizer", "optimizer.state.exp_avg.v", "optimizer.state.exp_avg.v" },
};
enum { STATES_N = sizeof(states) / sizeof(states[0]) };

static const struct { const char *family, *name; } odd[] = { { "ema", "w" },
	{ "optimizer", "w" }, { "model", "optimizer.state.param.w" },
	{ "optimizer", "optimizer.state.exp_avg.w" } };
enum { ODD_N = sizeof(odd) / sizeof(odd[0]) };

/* A model and its state, and the tensor odd[variant], if there is one. */
static void trained(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_BF16, 2, 5, 3);
	for (int i = 0; i < STATES_N; i++)
		hand_add(h, states[i].family, states[i].name, SHEAF_F32, 2, 5, 3);
	if (h->play->variant < ODD_N)
		hand_add(h, odd[h->play->variant].family, odd[h->play->variant].name, SHEAF_F32, 1,
		         4);
}

/* The same as Megatron's reader lists it. */
static void read_back(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_BF16, 2, 5, 3);
}

static struct simdisk *saved_with(int variant)
{
	struct play p = hands_play(disk_new(), 1, trained);

	p.variant = variant;
	p.step = 12;
	SAVED(p);
	return p.disk;
}

static int run(struct simdisk *disk, const char *family, struct sheaf_error *err)
{
	static uint64_t pid = 700;
	const struct shf_sys *sys = simdisk_process(disk, pid++, 0);
	const struct shf_export_opts how = { .format = shf_export_format("megatron"),
		.family = family, .as = family, .prefix = "", .memory_bytes = 1,
		.file_bytes_max = 500 };
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "run/checkpoint-12", NULL, &opts, sys, err);

	if (rc == 0)
		rc = shf_step_export(step, TO, &how, NULL, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return rc;
}

/* Checks that a file of the checkpoint has this text. */
static void has_text(struct simdisk *disk, const char *file, const char *text)
{
	size_t n;
	char *bytes = simdisk_get(disk, file, &n);

	if (!bytes || !memmem(bytes, n, text, strlen(text)))
		fail_msg("%s has no '%s'", file, text);
	free(bytes);
}

TEST(states_have_the_names_that_the_optimizer_of_megatron_has)
{
	struct simdisk *disk = saved_with(ODD_N);
	struct sheaf_error err;
	int rc = run(disk, NULL, &err);
	size_t n;
	char *latest;

	CHECK_RC(rc, 0, &err);
	for (int i = 0; i < STATES_N; i++)
		has_text(disk, TO "/iter_0000012/.metadata", states[i].theirs);
	has_text(disk, TO "/iter_0000012/metadata.json", "\"sharded_backend\": \"torch_dist\"");
	has_text(disk, TO "/iter_0000012/common.pt", "checkpoint_version");
	latest = simdisk_get(disk, TO "/latest_checkpointed_iteration.txt", &n);
	CHECK(latest && n == 2 && memcmp(latest, "12", 2) == 0);
	free(latest);
	simdisk_free(disk);
}

TEST(the_weights_load_in_any_layout)
{
	struct simdisk *disk = saved_with(ODD_N);
	struct sheaf_error err;
	int rc = run(disk, "model", &err);

	CHECK_RC(rc, 0, &err);
	foreign_loads(disk, TO, 2, read_back, 0, 1);
}

TEST(what_has_no_place_in_megatron_is_refused)
{
	for (int i = 0; i < ODD_N; i++) {
		struct simdisk *disk = saved_with(i);
		struct sheaf_error err;

		CHECK_INT(run(disk, NULL, &err), SHEAF_EINVAL);
		CHECK(strstr(err.msg, i == ODD_N - 1 ? "two tensors would have this name"
		             : "has no place in a checkpoint of Megatron") != NULL);
		CHECK(strstr(err.msg, odd[i].name) != NULL);
		CHECK(!simdisk_exists(disk, TO ".partial"));
		simdisk_free(disk);
	}
}
