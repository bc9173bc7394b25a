/* SPDX-License-Identifier: Apache-2.0 */
/* What the entry points say of arguments that are missing or wrong. One process, a real
 * directory. */
#include "sheaf.h"
#include "sheaf-inspect.h"
#include "sheaf-state.h"
#include "sheaf-admin.h"
#include "sheaf-agent.h"
#include "sheaf-plan.h"
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include "api_place.h"
#include "sheaf-stat.h"
#include "t.h"

/* Each call that takes an error fills the caller's: its code is what is returned, and its sentence
 * this one, behind the folder of the run where it begins with $. */
#define FILLS(call, want, says)                                                \
	do {                                                                   \
		err = (struct sheaf_error){ 0 };                               \
		rc = (call);                                                   \
		if (rc != (want) || err.code != rc || !says_so(&p, err.msg, says)) \
			print_error("%s: %d, '%s'\n", #call, rc, err.msg);     \
		CHECK_INT(rc, want);                                           \
		CHECK_INT(err.code, rc);                                       \
		CHECK(says_so(&p, err.msg, says));                             \
	} while (0)

static bool says_so(const struct api_place *p, const char *msg, const char *says)
{
	size_t n = says[0] == '$' ? strlen(p->dir) : 0;

	return strncmp(msg, p->dir, n) == 0 && strcmp(msg + n, says + (n > 0)) == 0;
}

#define NIL(name) "argument '" name "' is NULL"
#define NO_RUN "$/none: no run directory here (SHEAF_RUN_CREATE makes one): " \
	"No such file or directory"

TEST(each_refusal_fills_the_callers_error)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	struct api_place p;
	char none[80];
	int rc;

	api_place_init(&p);
	snprintf(none, sizeof(none), "%s/none", p.dir);
	FILLS(sheaf_run_open(NULL, p.dir, NULL, NULL, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_open(&run, none, NULL, NULL, &err), SHEAF_ENOENT, NO_RUN);
	FILLS(sheaf_run_steps(NULL, NULL, 0, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_steps(p.run, NULL, 1, &err), SHEAF_EINVAL, "argument 'steps' is NULL, but "
	      "n is 1");
	FILLS(sheaf_run_list(NULL, NULL, NULL, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_list(p.run, NULL, NULL, &err), SHEAF_EINVAL, "callback 'item' is NULL");
	FILLS(sheaf_run_leftovers(NULL, NULL, NULL, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_leftovers(p.run, NULL, NULL, &err), SHEAF_EINVAL,
	      "callback 'item' is NULL");
	FILLS(sheaf_run_salvage(none, 1, NULL, NULL, &err), SHEAF_ENOENT, NO_RUN);
	FILLS(sheaf_run_rewind(NULL, 5, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_rewind(p.run, 5, &err), SHEAF_ENOENT,
	      "$/checkpoint-5: No such file or directory");
	FILLS(sheaf_run_mark(NULL, 5, SHEAF_MARK_KEEP, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_mark(p.run, 5, SHEAF_MARK_KEEP, &err), SHEAF_ENOENT,
	      "$/checkpoint-5: No such file or directory");
	FILLS(sheaf_run_prune(NULL, 1, NULL, NULL, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_resume(NULL, p.st, 0, NULL, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_run_resume(p.run, p.st, 0, NULL, &err), SHEAF_ENOENT, "$: has no checkpoint");
	FILLS(sheaf_save_begin(&save, NULL, 1, p.st, NULL, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_save_begin(NULL, p.run, 1, p.st, NULL, &err), SHEAF_EINVAL, NIL("save"));
	FILLS(sheaf_save_begin(&save, p.run, -1, p.st, NULL, &err), SHEAF_EINVAL,
	      "step -1 is negative");
	FILLS(sheaf_save_advance(NULL, 1, &err), SHEAF_EINVAL, NIL("save"));
	FILLS(sheaf_save_commit(NULL, 0, &err), SHEAF_EINVAL, NIL("save"));
	FILLS(sheaf_checkpoint_open(&step, NULL, 5, &err), SHEAF_EINVAL, NIL("run"));
	FILLS(sheaf_checkpoint_open(NULL, p.run, 5, &err), SHEAF_EINVAL, NIL("checkpoint"));
	FILLS(sheaf_checkpoint_open(&step, p.run, 5, &err), SHEAF_ENOENT, "$: no step 5 (sheaf ls "
	      "lists what there is)");
	FILLS(sheaf_checkpoint_open_path(NULL, none, NULL, NULL, &err), SHEAF_EINVAL,
	      NIL("checkpoint"));
	FILLS(sheaf_checkpoint_open_path(&step, none, NULL, NULL, &err), SHEAF_ENOENT,
	      "$/none: No such file or directory");
	FILLS(sheaf_checkpoint_load(NULL, p.st, 0, NULL, &err), SHEAF_EINVAL, NIL("checkpoint"));
	FILLS(sheaf_checkpoint_read(NULL, NULL, &err), SHEAF_EINVAL, NIL("checkpoint"));
	FILLS(sheaf_checkpoint_verify(NULL, NULL, &err), SHEAF_EINVAL, NIL("checkpoint"));
	FILLS(sheaf_checkpoint_copy(NULL, none, NULL, &err), SHEAF_EINVAL, NIL("checkpoint"));
	FILLS(sheaf_checkpoint_export(NULL, none, NULL, NULL, &err), SHEAF_EINVAL,
	      NIL("checkpoint"));
	FILLS(sheaf_plan(NULL, NULL, 0, NULL, NULL, NULL, &err), SHEAF_EINVAL,
	      "argument 'states' or callback 'item' is NULL, or ranks is less than 1; pass one "
	      "state for each rank");
	FILLS(sheaf_agent_serve(NULL, NULL, &err), SHEAF_EINVAL, NIL("dir"));
	FILLS(sheaf_agent_get_info(NULL, NULL, &info, &err), SHEAF_EINVAL, NIL("dir") "; then "
	      "'agent' must be the path of a socket");
	FILLS(sheaf_agent_get_info(p.dir, NULL, NULL, &err), SHEAF_EINVAL, NIL("info"));
	FILLS(sheaf_agent_stop(NULL, "auto", &err), SHEAF_EINVAL, NIL("dir") "; then 'agent' must "
	      "be the path of a socket");
	FILLS(sheaf_agent_stop(NULL, "/tmp/no/agent", &err), SHEAF_ENOENT, "/tmp/no/agent: no "
	      "agent answers; sheaf agent --list shows those of this node");
	FILLS(sheaf_agent_find(NULL, NULL, &err), SHEAF_EINVAL, "callback 'item' is NULL");
	FILLS(sheaf_agent_stop(none, NULL, &err), SHEAF_ENOENT, NO_RUN);
	FILLS(sheaf_agent_list(p.dir, NULL, NULL, NULL, &err), SHEAF_EINVAL,
	      "argument 'dir' or callback 'item' is NULL");
	FILLS(sheaf_agent_flush(NULL, NULL, 0, NULL, NULL, &err), SHEAF_EINVAL, NIL("dir"));
	api_place_release(&p);
}

static void hear_of_rank(void *arg, const struct sheaf_plan_rank *rank)
{
	(void)rank;
	++*(int *)arg;
}

TEST(a_plan_is_of_states_that_are_there)
{
	struct sheaf_state *states[2] = { NULL, NULL };
	struct sheaf_error err;
	struct api_place p;
	int rc, heard = 0;

	api_place_init(&p);
	api_place_fill(&p);
	states[0] = p.st;
	FILLS(sheaf_plan(states, NULL, 2, NULL, hear_of_rank, &heard, &err), SHEAF_ENOMEM,
	      "rank 1: its state is NULL; sheaf_state_new returns NULL when out of memory");
	FILLS(sheaf_plan(states, NULL, 0, NULL, hear_of_rank, &heard, &err), SHEAF_EINVAL,
	      "argument 'states' or callback 'item' is NULL, or ranks is less than 1; pass one "
	      "state for each rank");
	FILLS(sheaf_plan(states, NULL, 1, NULL, NULL, &heard, &err), SHEAF_EINVAL,
	      "argument 'states' or callback 'item' is NULL, or ranks is less than 1; pass one "
	      "state for each rank");
	CHECK_INT(heard, 0);
	CHECK_RC(sheaf_plan(states, NULL, 1, NULL, hear_of_rank, &heard, &err), 0, &err);
	CHECK_INT(heard, 1);
	api_place_release(&p);
}

TEST(what_an_agent_is_asked_for_is_sound_or_refused)
{
	static const struct { struct sheaf_agent_opts opts; const char *says; } all[] = {
		{ { .size = 4 }, "agent_opts.size is 4, or a field is set that this version of "
		  "sheaf does not know; set size to sizeof(struct sheaf_agent_opts)" },
		{ { .size = sizeof(struct sheaf_agent_opts), .idle_s = -1 },
		  "agent_opts.idle_s is negative; it must be 0 (never) or a number of seconds" },
		{ { .size = sizeof(struct sheaf_agent_opts), .steps_max = 1 },
		  "agent_opts.steps_max is 1; it must be 0 or at least 2, because one step is kept "
		  "while the next is copied" },
		{ { .size = sizeof(struct sheaf_agent_opts), .steps_max = -2 },
		  "agent_opts.steps_max is -2; it must be 0 or at least 2, because one step is "
		  "kept while the next is copied" },
		{ { .size = sizeof(struct sheaf_agent_opts), .steps_max = 2 },
		  NIL("dir") },
	};
	struct sheaf_error err;
	struct api_place p;
	int rc;

	api_place_init(&p);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		FILLS(sheaf_agent_serve(NULL, &all[i].opts, &err), SHEAF_EINVAL, all[i].says);
	api_place_release(&p);
}

/* Makes a place with step 3, opens the step, and writes the path of what a call may make there. */
static struct sheaf_checkpoint *with_a_step(struct api_place *p, const char *name, char path[80])
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	api_place_init(p);
	api_place_fill(p);
	api_place_save(p, 3);
	snprintf(path, 80, "%s/%s", p->dir, name);
	CHECK_RC(sheaf_checkpoint_open(&step, p->run, 3, &err), 0, &err);
	return step;
}

/* Each call that fills a report looks at it first, and an unsound one stays as it is. */
TEST(a_report_is_sound_or_the_call_is_refused)
{
	struct sheaf_report bad[2] = { { .size = 8 }, { .size = 4 } };
	static const char *const says[] = {
		"report.size is 8, or a field is set that this version of sheaf does not know; set "
		"size to sizeof(struct sheaf_report)",
		"report.size is 4, or a field is set that this version of sheaf does not know; set "
		"size to sizeof(struct sheaf_report)" };
	struct sheaf_error err;
	struct api_place p;
	int64_t which = 7;
	char copy[80];
	struct sheaf_checkpoint *step = with_a_step(&p, "copy", copy);
	int rc;

	for (int i = 0; i < 2; i++) {
		struct sheaf_report was = bad[i], *r = &bad[i];

		FILLS(sheaf_checkpoint_load(step, p.st, 0, r, &err), SHEAF_EINVAL, says[i]);
		FILLS(sheaf_checkpoint_verify(step, r, &err), SHEAF_EINVAL, says[i]);
		FILLS(sheaf_checkpoint_copy(step, copy, r, &err), SHEAF_EINVAL, says[i]);
		FILLS(sheaf_checkpoint_export(step, copy, NULL, r, &err), SHEAF_EINVAL, says[i]);
		FILLS(sheaf_run_resume(p.run, p.st, 0, r, &err), SHEAF_EINVAL, says[i]);
		FILLS(sheaf_run_salvage(p.dir, 3, NULL, r, &err), SHEAF_EINVAL, says[i]);
		FILLS(sheaf_agent_flush(p.dir, NULL, 0, &which, r, &err), SHEAF_EINVAL, says[i]);
		CHECK_INT(which, -1);
		CHECK(memcmp(&was, r, sizeof(was)) == 0);
	}
	CHECK(access(copy, F_OK) != 0);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

/* Options of an export that do not go together are refused, and both are named. */
TEST(an_export_says_which_options_do_not_go_together)
{
	static const struct { struct sheaf_export how; const char *says; } all[] = {
		{ { .format = "pickle" }, "how.format is 'pickle': there is no such format; use "
		  "one of hf, torch, dcp, npz, paddle, paddle-uc, paddle-fc, sharding-io, "
		  "deepspeed-universal, gguf, megatron" },
		{ { .format = "deepspeed-universal", .file_bytes_max = 1 },
		  "how.file_bytes_max and how.format deepspeed-universal do not go together: this "
		  "format has a file for each tensor" },
		{ { .format = "torch", .file_bytes_max = 1 }, "how.file_bytes_max and how.format "
		  "torch do not go together: this format has one file" },
		{ { .format = "npz", .file_bytes_max = 1 }, "how.file_bytes_max and how.format npz "
		  "do not go together: this format has one file" },
		{ { .format = "dcp", .family = "model", .all_families = 1 }, "how.all_families and "
		  "how.family do not go together: a family is named to write it alone" },
		{ { .all_families = 1 }, "how.all_families and how.format hf do not go together: "
		  "such a directory has one family" },
	};
	struct sheaf_error err;
	struct api_place p;
	char to[80];
	struct sheaf_checkpoint *step = with_a_step(&p, "export", to);
	int rc;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct sheaf_export how = all[i].how;

		how.size = sizeof(how);
		FILLS(sheaf_checkpoint_export(step, to, &how, NULL, &err), SHEAF_EINVAL,
		      all[i].says);
	}
	CHECK(access(to, F_OK) != 0);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

/* The calls that never communicate: what is wrong is said at once, and by the call itself. */
TEST(each_local_call_says_what_is_wrong_with_its_arguments)
{
	struct sheaf_slice s = { .size = sizeof(s), .name = "x", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 }, .count = { 4 } };
	struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = 1, .ranks = 1 };
	struct sheaf_run_stat total = { .size = 1 };
	struct sheaf_group *group = NULL;
	struct sheaf_error err;
	struct api_place p;
	int rc;

	api_place_init(&p);
	FILLS(sheaf_slice_shard(NULL, 0, 0, 1, &err), SHEAF_EINVAL, NIL("slice"));
	FILLS(sheaf_slice_shard(&s, 1, 0, 1, &err), SHEAF_EINVAL,
	      "there is no dimension 1; the slice has 1");
	FILLS(sheaf_slice_shard(&s, 0, 2, 2, &err), SHEAF_EINVAL,
	      "piece 2 of 2 of the 4 items of dimension 0; pieces must be counted from 0 to "
	      "n - 1");
	FILLS(sheaf_group_new(NULL, &ops, &err), SHEAF_EINVAL, NIL("group"));
	FILLS(sheaf_group_new(&group, &ops, &err), SHEAF_EINVAL,
	      "group: rank is 1, and ranks is 1; rank must be at least 0 and less than ranks");
	ops.rank = 0;
	FILLS(sheaf_group_new(&group, &ops, &err), SHEAF_EINVAL,
	      "group: the callback allgather is NULL");
	FILLS(sheaf_state_add(NULL, &s, &err), SHEAF_ENOMEM,
	      "the state is NULL; sheaf_state_new returns NULL when out of memory");
	FILLS(sheaf_state_get_average(NULL, NULL, 0, NULL, &err), SHEAF_ENOMEM,
	      "the state is NULL; sheaf_state_new returns NULL when out of memory");
	FILLS(sheaf_state_ema(NULL, NULL, NULL, &err), SHEAF_ENOMEM,
	      "the state is NULL; sheaf_state_new returns NULL when out of memory");
	FILLS(sheaf_state_rank_bytes(NULL, "rng", NULL, 0, 1, p.rng, 5, &err), SHEAF_ENOMEM,
	      "the state is NULL; sheaf_state_new returns NULL when out of memory");
	FILLS(sheaf_state_move(NULL, 0, p.w, &err), SHEAF_ENOMEM,
	      "the state is NULL; sheaf_state_new returns NULL when out of memory");
	FILLS(sheaf_run_get_stat(p.run, &total, &err), SHEAF_EINVAL,
	      "run_stat.size is 1; set it to sizeof(struct sheaf_run_stat)");
	FILLS(sheaf_run_get_stat(p.run, NULL, &err), SHEAF_EINVAL,
	      "the struct sheaf_run_stat to fill is NULL");
	api_place_release(&p);
}

TEST(each_local_call_on_a_save_or_checkpoint_says_what_is_wrong)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct sheaf_tensor tensor = { .size = sizeof(tensor) };
	struct sheaf_ema_info ema = { .size = sizeof(ema) };
	struct sheaf_stat stat = { .size = sizeof(stat) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save = NULL;
	struct sheaf_error err;
	struct api_place p;
	const int slices[] = { 0, 6 };
	const char *file;
	uint64_t bytes;
	const void *data;
	size_t n;
	int rc;

	api_place_init(&p);
	api_place_fill(&p);
	CHECK_RC(sheaf_save_begin(&save, p.run, 3, p.st, NULL, &err), 0, &err);
	FILLS(sheaf_save_wait_copied(save, 6, 0, &err), SHEAF_EINVAL,
	      "step 3: slice 6: the state has slices 0 to 5");
	FILLS(sheaf_save_slice_ready(save, 0, NULL, &err), SHEAF_EINVAL,
	      "step 3: the save was begun without SHEAF_SAVE_LATER; its slices are all ready");
	FILLS(sheaf_save_slices_copied(save, slices, 2, 0, &err), SHEAF_EINVAL,
	      "step 3: slice 6: the state has slices 0 to 5");
	FILLS(sheaf_save_slices_copied(save, NULL, 2, 0, &err), SHEAF_EINVAL,
	      "argument 'slices' is NULL, and n is 2");
	FILLS(sheaf_save_slices_ready(save, slices, 1, &err), SHEAF_EINVAL,
	      "step 3: the save was begun without SHEAF_SAVE_LATER; its slices are all ready");
	FILLS(sheaf_save_slices_ready(save, NULL, 1, &err), SHEAF_EINVAL,
	      "argument 'slices' is NULL, and n is 1");
	FILLS(sheaf_save_note(save, "", "x", &err), SHEAF_EINVAL,
	      "note '': its key must match [A-Za-z0-9._/-]{1,64}, and its value must be UTF-8");
	FILLS(sheaf_save_attach(save, "sheaf.json", "{}", 2, &err), SHEAF_EINVAL,
	      "attached file 'sheaf.json': its name must match [A-Za-z0-9._-]{1,128}, and not "
	      "sheaf.* or *.safetensors*");
	FILLS(sheaf_save_rank_bytes(save, "A", "x", 1, &err), SHEAF_EINVAL,
	      "stream 'A': its name must match [a-z0-9._-]{1,57}");
	CHECK_RC(sheaf_save_rank_bytes(save, "a", "xy", 2, &err), 0, &err);
	FILLS(sheaf_save_get_stat(save, NULL, &err), SHEAF_EINVAL,
	      "the struct sheaf_stat to fill is NULL");
	CHECK_RC(sheaf_save_get_stat(save, &stat, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	FILLS(sheaf_save_abort(save, "late", &err), SHEAF_EINVAL,
	      "step 3: it is too late to abort it: it is committed, or is being published");
	sheaf_save_free(save);
	FILLS(sheaf_save_ready(NULL, &err), SHEAF_EINVAL, NIL("save"));
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, 3, &err), 0, &err);
	FILLS(sheaf_checkpoint_get_info(NULL, &info, &err), SHEAF_EINVAL, NIL("checkpoint"));
	FILLS(sheaf_checkpoint_tensor(step, 99, &tensor, &err), SHEAF_EEND,
	      "tensor 99: the checkpoint has 6");
	FILLS(sheaf_checkpoint_find(step, NULL, "none", &tensor, &err), SHEAF_ELAYOUT,
	      "$/checkpoint-3: no tensor model/none");
	FILLS(sheaf_checkpoint_note_at(step, 9, NULL, NULL, &err), SHEAF_EEND,
	      "note 9: the checkpoint has 1");
	FILLS(sheaf_checkpoint_ema_at(step, 0, &ema, &err), SHEAF_EEND,
	      "averages 0: the checkpoint has 0");
	FILLS(sheaf_checkpoint_file_at(step, 2, &file, &bytes, &err), SHEAF_EEND,
	      "attached file 2: the checkpoint has 1");
	FILLS(sheaf_checkpoint_rank_bytes(step, "a", 1, &data, &n, &err), SHEAF_ENOENT,
	      "$/checkpoint-3/rank-bytes.a.0: has no bytes of rank 1");
	FILLS(sheaf_checkpoint_rank_bytes(step, "b", 0, &data, &n, &err), SHEAF_ENOENT,
	      "$/checkpoint-3: has no bytes of rank 0 in stream b (sheaf_save_rank_bytes)");
	FILLS(sheaf_checkpoint_rank_bytes(step, "a", -1, &data, &n, &err), SHEAF_EINVAL,
	      "stream 'a', rank -1: the name must match [a-z0-9._-]{1,57}, and the rank must not "
	      "be negative");
	CHECK_RC(sheaf_checkpoint_rank_bytes(step, "a", 0, &data, &n, &err), 0, &err);
	CHECK(n == 2 && memcmp(data, "xy", 2) == 0);
	FILLS(sheaf_checkpoint_file(step, NULL, NULL, NULL, &err), SHEAF_EINVAL, NIL("file"));
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}
