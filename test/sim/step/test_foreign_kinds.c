/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of checkpoint a directory that sheaf did not write is, told from the names in it;
 * slices that do not fit its tensors; and handles in a forked child. */
#include "acts.h"
#include <errno.h>
#include <stdlib.h>
#include "run_salvage.h"
#include "sheaf-inspect.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step.h"
#include "step_open.h"
#include "run_ops.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static const struct hand_tensor tensor[] = { { "w", SHEAF_F32, 1, { 7 } } };

/* How many tensor files are found, or the code. */
static int open_at(struct simdisk *disk, const char *path, uint64_t flags, struct sheaf_error *err)
{
	struct shf_opts o = { .flags = flags };
	const struct shf_sys *sys = simdisk_process(disk, 5, 0);
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, path, NULL, &o, sys, err);

	if (rc == 0 && step->cat_rc)
		*err = step->cat_err;
	if (rc == 0)
		rc = step->cat_rc ? step->cat_rc : (int)step->layout.files_n;
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return rc;
}

static void put_files(struct simdisk *disk, const char *dir, const char *const *names)
{
	static const char index[] = "{\"weight_map\":{\"w\":\"x.safetensors\"}}";
	char path[300];

	for (; *names; names++) {
		struct hand_tensor own = tensor[0];

		snprintf(path, sizeof(path), "%s/%s", dir, *names);
		own.name = *names;      /* each file has a tensor of its own */
		if (strcmp(*names, "x.safetensors") == 0)
			own.name = "w";
		if (strstr(*names, ".index.json"))
			CHECK_INT(simdisk_put(disk, path, index, strlen(index)), 0);
		else if (strstr(*names, ".safetensors"))
			hands_file(disk, path, &own, 1, 0);
		else
			CHECK_INT(simdisk_put(disk, path, "{}", 2), 0);
	}
}

TEST(a_directory_is_known_by_the_names_in_it)
{
	static const struct {
		int want;               /* files, or a code */
		const char *word, *names[8];
	} all[] = {
		{ 1, "", { "x.safetensors" } },
		{ 1, "", { "model.safetensors", "x.safetensors" } },
		{ 2, "", { "a.safetensors", "b-of-c.safetensors" } },
		{ 1, "", { "a-of-b.safetensors" } },
		{ 1, "", { "ab-of-00002.safetensors" } },
		{ 1, "", { "model-000x1-of-00002.safetensors" } },
		{ 1, "", { "model-00001-of-00000.safetensors" } },
		{ 1, "", { "m-of-n-00001-of-00001.safetensors" } },
		{ 2, "", { "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors" } },
		{ SHEAF_ECORRUPT, "m-00001-of-00002.safetensors is missing",
		  { "m-00002-of-00002.safetensors" } },
		{ SHEAF_ECORRUPT, "m-00002-of-00003.safetensors is missing",
		  { "m-00001-of-00003.safetensors", "m-00003-of-00003.safetensors" } },
		{ SHEAF_ECORRUPT, "m-00001-of-00002.safetensors is missing",
		  { "m-00009-of-00002.safetensors" } },
		{ 1, "", { "x.safetensors", "odd.safetensors.index.json", "y.safetensors" } },
		{ 2, "", { "x.safetensors", "a.safetensors.index.json", "b.safetensors.index.json",
		           "y.safetensors" } },
		{ SHEAF_EFORMAT, "the index says that tensor w is in x.safetensors, but",
		  { "model.safetensors.index.json", "y.safetensors" } },
		{ SHEAF_EFORMAT, "no *.safetensors", { "config.json" } },
		{ SHEAF_EFORMAT, "no *.safetensors", { "sp ace.json", "tokens.bin" } },
	};
	struct sheaf_error err;

	for (size_t i = 0; i < N(all); i++) {
		struct simdisk *disk = disk_new();
		int got;

		put_files(disk, "dir", all[i].names);
		got = open_at(disk, "dir", 0, &err);
		if (got != all[i].want || (got < 0 && !strstr(err.msg, all[i].word)))
			print_error("shape %zu: %d: %s\n", i, got, got < 0 ? err.msg : "");
		CHECK_INT(got, all[i].want);
		CHECK(got >= 0 || strstr(err.msg, all[i].word));
		simdisk_free(disk);
	}
}

TEST(many_files_beside_the_weights_and_one_that_is_too_large)
{
	const size_t large = ((size_t)64 << 20) + 1;
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 5, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	char path[40], *bytes = calloc(1, large);

	hands_file(disk, "dir/x.safetensors", tensor, 1, 0);
	for (int i = 0; i < 80; i++) {
		snprintf(path, sizeof(path), "dir/file-%d.json", i);
		CHECK_INT(simdisk_put(disk, path, "{}", 2), 0);
	}
	CHECK_INT(simdisk_put(disk, "dir/folder.json/inside", "", 0), 0);
	CHECK_INT(simdisk_put(disk, "dir/no\ttext.json", "{}", 2), 0);
	CHECK_INT(simdisk_put(disk, "dir/large.json", bytes, large), 0);
	free(bytes);
	CHECK_RC(shf_step_open_path(&step, "dir", NULL, NULL, sys, &err), 0, &err);
	CHECK_INT(step->plain_n, 80);
	shf_step_put(step);
	simdisk_free(disk);
}

TEST(one_file_is_a_step_wherever_it_lies)
{
	static const char *const paths[] = { "/x.safetensors", "x.safetensors",
		"dir/x.safetensors" };
	struct simdisk *disk = disk_new();
	struct sheaf_error err;

	for (size_t i = 0; i < N(paths); i++) {
		hands_file(disk, paths[i], tensor, 1, 0);
		CHECK_INT(open_at(disk, paths[i], 0, &err), 1);
	}
	SAID(open_at(disk, "nowhere", 0, &err), SHEAF_ENOENT, "nowhere", &err);
	simdisk_free(disk);
}

/* Without its manifest a step is only what somebody reads who asks for it unverified. */
TEST(sums_without_a_manifest_prove_nothing)
{
	struct simdisk *disk = acts_disk(1);
	struct sheaf_error err;

	CHECK_INT(simdisk_remove(disk, "run/checkpoint-12/sheaf.json"), 0);
	SAID(open_at(disk, "run/checkpoint-12", 0, &err), SHEAF_ECORRUPT, "sheaf.json is missing",
	     &err);
	CHECK_INT(open_at(disk, "run/checkpoint-12", SHEAF_RUN_UNVERIFIED, &err), 1);
	simdisk_free(disk);
}

/* ---- slices that are not as the step has them ---- */

static void saved(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_F32, 2, 4, 6);
	hand_add(h, "model", "packed", SHEAF_F4, 2, 3, 8);
	hand_add(h, "model", "one", SHEAF_F32, 0);
}

static void asked(struct hand *h)
{
	switch (h->play->variant) {
	case 0: hand_add(h, "model", "w", SHEAF_F32, 1, 24); break;
	case 1: hand_add(h, "model", "w", SHEAF_F32, 2, 6, 4); break;
	case 2: hand_add(h, "model", "w", SHEAF_F16, 2, 4, 6); break;
	case 3: hand_add(h, "model", "w", SHEAF_I32, 2, 4, 6); break;
	case 4: hand_add(h, "model", "packed", SHEAF_F32, 2, 3, 8); break;
	case 5: hand_add(h, "model", "v", SHEAF_F32, 2, 4, 6); break;
	case 6: hand_add(h, "optimizer", "w", SHEAF_F32, 2, 4, 6); break;
	case 7: hand_add(h, "model", "one", SHEAF_F32, 1, 1); break;
	default: saved(h); break;
	}
}

TEST(a_slice_of_another_shape_or_type_is_refused_before_a_byte_is_touched)
{
	static const struct {
		int variant;
		uint64_t flags;
		const char *word;
	} all[] = {
		{ 0, 0, "[4, 6] is stored, [24] was asked for" },
		{ 1, 0, "[4, 6] is stored, [6, 4] was asked for" },
		{ 2, 0, "F32 is stored, F16 was asked for (SHEAF_LOAD_CONVERT converts)" },
		{ 3, SHEAF_LOAD_CONVERT, "F32 is stored and cannot be converted to I32" },
		{ 4, SHEAF_LOAD_CONVERT, "F4 is stored" },
		{ 5, 0, "no tensor model/v" }, { 6, 0, "no tensor optimizer/w" },
		{ 7, 0, "is stored, [1] was asked for" },
	};
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, saved);

	SAVED(p);
	for (size_t i = 0; i < N(all); i++) {
		p = hands_play(disk, 1, asked);
		p.variant = all[i].variant;
		p.flags = all[i].flags;
		REFUSED(p, SHEAF_ELAYOUT, all[i].word);
	}
	p = hands_play(disk, 1, asked);
	p.variant = 99;
	LOADED(p);
	simdisk_free(disk);
}

/* Items of half a byte: a slice begins and ends at whole bytes, and so does each of its rows. */
TEST(half_bytes_are_taken_in_pairs)
{
	static uint8_t memory[64];
	static const struct {
		size_t at;
		int64_t value;
	} wrong[] = { { offsetof(struct sheaf_slice, origin), 1 },
		{ offsetof(struct sheaf_slice, start[1]), 1 },
		{ offsetof(struct sheaf_slice, count[1]), 3 },
		{ offsetof(struct sheaf_slice, stride[0]), 7 },
		{ offsetof(struct sheaf_slice, shape[1]), 7 },
		{ offsetof(struct sheaf_slice, flat_start), 1 },
		{ offsetof(struct sheaf_slice, flat_count), 3 } };

	for (size_t i = 0; i < N(wrong); i++) {
		struct sheaf_state *held = shf_state_new();
		struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F4,
			.ndim = 2, .shape = { 4, 8 }, .count = { 4, 4 }, .stride = { 8, 1 },
			.data = memory };

		if (i >= 5) {
			s.flags = SHEAF_SLICE_FLAT;
			s.flat_count = 8;
		}
		memcpy((char *)&s + wrong[i].at, &wrong[i].value, sizeof(wrong[i].value));
		if (shf_state_add(held, &s, NULL) != SHEAF_EINVAL)
			print_error("number %zu\n", i);
		CHECK_INT(shf_state_add(held, &s, NULL), SHEAF_EINVAL);
		shf_state_put(held);
	}
}

/* ---- a step that would not fit, a report nobody wants, a stage with damage ---- */

TEST(a_step_that_the_disk_has_no_room_for_is_refused_at_its_beginning)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, acts_hold);

	simdisk_set_space(disk, 40960);
	CHECK_RC(hands_save(&p), SHEAF_EIO, &p.err);
	CHECK(strstr(p.err.msg, "free space there") && p.err.sys == ENOSPC);
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	simdisk_set_space(disk, UINT64_C(64) << 20);
	SAVED(p);
	simdisk_free(disk);
}

static void finding(void *arg, const struct sheaf_finding *f)
{
	*(int *)arg += strcmp(sheaf_finding_kind_name(f->kind), "checksum") == 0;
}

static int names(void *arg, const char *name)
{
	snprintf(arg, 80, "%s", name);
	return strncmp(name, "13-", 3) == 0;
}

TEST(a_salvage_tells_what_is_damaged_and_publishes_without_being_asked_for_a_report)
{
	struct simdisk *base = acts_disk(1), *disk = acts_disk_copy(base);
	const struct shf_sys *sys = simdisk_process(disk, 5, 0);
	struct shf_opts o = { .timeout_ms = 100 };
	struct sheaf_report report = { .size = sizeof(report), .finding = finding };
	struct sheaf_error err;
	char name[80] = "", path[200];
	int heard = 0, fd = shf_sys_open(sys, SHF_CWD, "run/.sheaf/stage", SHF_O_DIR, 0);

	CHECK_INT(shf_sys_list(sys, fd, names, name), 1);
	shf_sys_close(sys, fd);
	CHECK(strncmp(name, "13-", 3) == 0);
	snprintf(path, sizeof(path), "run/.sheaf/stage/%s/extra-1.json", name);
	report.arg = &heard;
	CHECK_INT(simdisk_flip(disk, path, 3), 0);
	CHECK_RC(shf_run_salvage("run", 13, &o, sys, &report, &err), SHEAF_ECORRUPT, &err);
	CHECK_INT(heard, 1);
	CHECK_INT(shf_run_salvage("run", 13, &o, sys, NULL, NULL), SHEAF_ECORRUPT);
	CHECK_INT(simdisk_flip(disk, path, 3), 0);
	CHECK_RC(shf_run_salvage("run", 13, &o, sys, NULL, &err), 0, &err);
	CHECK(simdisk_exists(disk, "run/checkpoint-13/sheaf.json"));
	CHECK_RC(shf_run_salvage("run", 13, &o, sys, NULL, &err), SHEAF_EEXIST, &err);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
	simdisk_free(base);
}

/* ---- in a forked child ---- */

TEST(a_forked_child_may_only_let_go)
{
	struct simdisk *disk = acts_disk(1);
	const struct shf_sys *sys = simdisk_process(disk, 5, 0), *child;
	struct shf_opts o = { .io_threads = 1 };
	struct sheaf_state *held = shf_state_new();
	struct sheaf_save *save = NULL, *more = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_run *run = NULL;
	struct shf_queue *queue;
	struct sheaf_error err;
	size_t open_n;

	CHECK_RC(shf_run_open(&run, "run", NULL, &o, sys, &err), 0, &err);
	CHECK_RC(shf_save_begin(&save, run, 30, held, NULL, &err), 0, &err);
	CHECK_RC(shf_step_open(&step, run, 12, &err), 0, &err);
	open_n = simdisk_open_n(sys);
	child = simdisk_fork(disk, sys, 6);
	simdisk_act_as(sys, child);
	SAID(shf_save_begin(&more, run, 31, held, NULL, &err), SHEAF_EINVAL, "another process",
	     &err);
	SAID(shf_save_commit(save, -1, &err), SHEAF_EINVAL, "process", &err);
	queue = run->io.queue;     /* the parent's, like what is open */
	shf_step_put(step);
	shf_save_free(save);
	shf_run_close(run);
	simdisk_act_as(sys, NULL);
	CHECK_INT(simdisk_open_n(sys), open_n);
	CHECK_INT(simdisk_open_n(child), 0);
	shf_sys_queue_free(sys, queue);
	simdisk_kill(disk, sys);
	CHECK(!simdisk_exists(disk, "run/checkpoint-30"));
	shf_state_put(held);
	simdisk_free(disk);
}
