/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points as a caller of sheaf.h meets them: arguments that are missing, structs of other
 * sizes, what is in a step. One process, a real directory. */
#include "sheaf-opts.h"
#include "sheaf-stat.h"
#include "sheaf.h"
#include "sheaf-inspect.h"
#include "sheaf-state.h"
#include "sheaf-admin.h"
#include "sheaf-agent.h"
#include "sheaf-plan.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "t.h"
#include "api_place.h"
#include "step.h"
#include "sums.h"
#include "save_calls.h"

TEST(the_largest_number_of_a_step_is_one_that_latest_finds)
{
	struct sheaf_save *refused = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	CHECK_INT(sheaf_save_begin(&refused, p.run, INT64_MAX, p.st, NULL, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "larger than the largest step, 2^63 - 2") != NULL);
	api_place_save(&p, INT64_MAX - 1);
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, SHEAF_LATEST, &err), 0, &err);
	CHECK_INT(sheaf_checkpoint_number(step), INT64_MAX - 1);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

TEST(tensors_and_tied_names_are_listed_in_natural_order)
{
	static const struct { const char *family, *name, *tied_to; uint64_t bytes; } want[] = {
		{ "model", "alias", "layers.10.w", 24 }, { "model", "layers.2.w", NULL, 16 },
		{ "model", "layers.3.alias", "layers.2.w", 16 },
		{ "model", "layers.10.w", NULL, 24 },
		{ "model", "z", "layers.2.w", 16 }, { "ranks", "rng/0", NULL, 5 },
	};
	struct sheaf_tensor t = { .size = sizeof(t) }, other = { .size = sizeof(other) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	api_place_save(&p, 3);
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, SHEAF_LATEST, &err), 0, &err);
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		CHECK_INT(sheaf_checkpoint_tensor(step, i, &t, NULL), 0);
		CHECK_STR(t.family, want[i].family);
		CHECK_STR(t.name, want[i].name);
		CHECK_INT(t.bytes, want[i].bytes);
		CHECK_INT(t.verified, 1);
		CHECK(want[i].tied_to ? t.tied_to && strcmp(t.tied_to, want[i].tied_to) == 0
		                      : !t.tied_to);
		CHECK_INT(sheaf_checkpoint_find(step, want[i].family, want[i].name, &other, NULL),
		          0);
		CHECK_STR(other.name, want[i].name);
		CHECK_INT(other.digest, t.digest);
		CHECK_INT(other.offset, t.offset);
		CHECK_STR(other.file, t.file);
	}
	CHECK_INT(sheaf_checkpoint_tensor(step, 6, &t, NULL), SHEAF_EEND);
	CHECK_INT(sheaf_checkpoint_find(step, NULL, "alias", &t, NULL), 0);
	CHECK_INT(sheaf_checkpoint_find(step, NULL, "layers.1.w", &t, NULL), SHEAF_ELAYOUT);
	CHECK_INT(sheaf_checkpoint_find(step, "ema", "alias", &t, NULL), SHEAF_ELAYOUT);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

TEST(a_step_says_what_it_is_and_what_came_with_it)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	const char *key = NULL, *value = NULL;
	const void *bytes = NULL;
	uint64_t size = 0;
	size_t n = 0;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	api_place_save(&p, 3);
	api_place_save(&p, 4);
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, 4, &err), 0, &err);
	CHECK_INT(sheaf_checkpoint_get_info(step, &info, NULL), 0);
	CHECK_INT(info.step, 4);
	CHECK_INT(info.parent, 3);
	CHECK_INT(info.ranks, 1);
	CHECK_INT(info.tensors, 3);
	CHECK_INT(info.bytes, 45);
	CHECK_INT(info.files, 2);
	CHECK_STR(info.format, "sheaf");
	CHECK_INT(strlen(info.session), 32);
	CHECK_INT(strlen(info.created), 20);
	CHECK_INT(sheaf_checkpoint_number(step), 4);
	CHECK_STR(sheaf_checkpoint_note(step, "tokens"), "12");
	CHECK(sheaf_checkpoint_note(step, "none") == NULL);
	CHECK_INT(sheaf_checkpoint_note_at(step, 0, &key, &value, NULL), 0);
	CHECK_STR(key, "adam.step");
	CHECK_INT(sheaf_checkpoint_note_at(step, 1, &key, &value, NULL), 0);
	CHECK_STR(key, "ranks.rng");            /* the rule of the stream */
	CHECK_STR(value, "strict");
	CHECK_INT(sheaf_checkpoint_note_at(step, 3, &key, &value, NULL), SHEAF_EEND);
	CHECK_INT(sheaf_checkpoint_file_at(step, 0, &key, &size, NULL), 0);
	CHECK_STR(key, "config.json");
	CHECK_INT(size, 2);
	CHECK_INT(sheaf_checkpoint_file_at(step, 1, &key, &size, NULL), 0);
	CHECK_STR(key, "vocab.txt");            /* the index is ours: not listed */
	CHECK_INT(sheaf_checkpoint_file_at(step, 2, &key, &size, NULL), SHEAF_EEND);
	CHECK_INT(sheaf_checkpoint_file(step, "config.json", &bytes, &n, NULL), 0);
	CHECK(n == 2 && memcmp(bytes, "{}", 2) == 0);
	CHECK_INT(sheaf_checkpoint_file(step, "model.safetensors.index.json", &bytes, &n, NULL), 0);
	CHECK_INT(sheaf_checkpoint_file(step, "none", &bytes, &n, NULL), SHEAF_ENOENT);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

/* By its number or its name, forwards and back, and nothing where there is none. */
TEST(what_is_asked_of_a_step_out_of_order_is_told_as_well)
{
	static const size_t order[] = { 1, 0, 0, 1, 1, 2, 0, 3, 1, 0 };
	const struct sheaf_ema ema = { .size = sizeof(ema), .name = "slow", .coef = 0.75,
		.interval = 3 };
	struct sheaf_ema_info info = { .size = sizeof(info) };
	struct sheaf_tensor t = { .size = sizeof(t) };
	struct sheaf_checkpoint *step = NULL;
	const char *text = "untouched", *value = text;
	const void *bytes = text;
	struct sheaf_error err;
	uint64_t size = 7;
	size_t n = 7;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	CHECK(sheaf_state_ema(p.st, "model", &ema, NULL) >= 0);
	api_place_save(&p, 3);
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, 3, &err), 0, &err);
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		CHECK_INT(sheaf_checkpoint_file_at(step, order[i], &text, &size, NULL),
		          order[i] < 2 ? 0 : SHEAF_EEND);
		CHECK(order[i] > 1 || strcmp(text, order[i] ? "vocab.txt" : "config.json") == 0);
		CHECK(order[i] > 1 || size == 2 - order[i]);
		CHECK_INT(sheaf_checkpoint_file_at(step, order[i], NULL, NULL, NULL),
		          order[i] < 2 ? 0 : SHEAF_EEND);
	}
	CHECK_INT(sheaf_checkpoint_note_at(step, 0, NULL, NULL, NULL), 0);
	CHECK_INT(sheaf_checkpoint_note_at(step, 0, NULL, &value, NULL), 0);
	CHECK_STR(value, "0");
	CHECK_INT(sheaf_checkpoint_ema_at(step, 0, &info, NULL), 0);
	CHECK_STR(info.name, "slow");
	CHECK_STR(info.of, "model");
	CHECK(info.coef == 0.75 && info.interval == 3 && info.updates == 1);
	CHECK_INT(sheaf_checkpoint_ema_at(step, 1, &info, NULL), SHEAF_EEND);
	info.size = sizeof(info) - 1;
	CHECK_INT(sheaf_checkpoint_ema_at(step, 0, &info, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_ema_at(step, 0, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_ema_at(NULL, 0, &info, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_note_at(NULL, 0, &text, &value, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_file_at(NULL, 0, &text, &size, NULL), SHEAF_EINVAL);
	CHECK(!sheaf_checkpoint_note(NULL, "tokens") && !sheaf_checkpoint_note(step, NULL));
	CHECK_INT(sheaf_checkpoint_file(NULL, "config.json", &bytes, &n, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_file(step, NULL, &bytes, &n, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_file(step, "config.json", NULL, &n, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_file(step, "config.json", &bytes, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_rank_bytes(NULL, "a", 0, &bytes, &n, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_rank_bytes(step, NULL, 0, &bytes, &n, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_rank_bytes(step, "a", 0, NULL, &n, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_rank_bytes(step, "a", 0, &bytes, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_rank_bytes(step, "a", 0, &bytes, &n, NULL), SHEAF_ENOENT);
	CHECK(n == 7 && memcmp(bytes, "untouched", 9) == 0);
	CHECK_INT(sheaf_checkpoint_tensor(NULL, 0, &t, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_tensor(step, 0, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_find(NULL, NULL, "alias", &t, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_find(step, NULL, NULL, &t, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_find(step, NULL, "alias", NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_find(step, "slow", "layers.2.w", &t, NULL), 0);
	CHECK_STR(t.family, "slow");
	CHECK(t.ndim == 1 && t.shape[0] == 4 && t.shape[1] == 0 && t.dtype == SHEAF_F32);
	CHECK_INT(sheaf_checkpoint_find(step, "ranks", "layers.2.w", &t, NULL), SHEAF_ELAYOUT);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

/* The table is not what it was: a name cannot be looked up by itself, so all of it is read. */
TEST(a_name_that_is_looked_for_in_a_damaged_table_is_not_said_to_be_missing)
{
	struct sheaf_tensor t = { .size = sizeof(t) };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	char path[100];
	struct api_place p;
	FILE *f;

	api_place_init(&p);
	api_place_fill(&p);
	api_place_save(&p, 3);
	snprintf(path, sizeof(path), "%s/checkpoint-3/sheaf.sums", p.dir);
	CHECK_INT(chmod(path, 0600), 0);
	f = fopen(path, "r+");
	CHECK(f && fseek(f, SHF_SUMS_HEADER + 70, SEEK_SET) == 0);
	int c = fgetc(f);

	CHECK(fseek(f, -1, SEEK_CUR) == 0 && fputc(c ^ 1, f) == (c ^ 1) && fclose(f) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK_RC(sheaf_checkpoint_open(&step, p.run, 3, &err), 0, &err);
		CHECK_INT(sheaf_checkpoint_find(step, NULL, i ? "layers.2.w" : "alias", &t, NULL),
		          SHEAF_ECORRUPT);
		sheaf_checkpoint_close(step);
	}
	api_place_release(&p);
}

TEST(structs_of_other_sizes_are_honoured)
{
	struct { struct sheaf_tensor t; uint64_t more[4]; } big;
	struct { struct sheaf_report r; uint64_t more[2]; } grown = { .more = { 0, 0 } };
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint_info info;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	api_place_save(&p, 3);
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, 3, &err), 0, &err);
	memset(&big, 0xa5, sizeof(big));
	big.t.size = sizeof(big.t) + 8;
	CHECK_INT(sheaf_checkpoint_tensor(step, 0, &big.t, NULL), 0);
	CHECK_INT(big.t.size, sizeof(big.t) + 8);
	CHECK(big.more[0] == 0 && big.more[1] == UINT64_C(0xa5a5a5a5a5a5a5a5));
	memset(&big, 0xa5, sizeof(big));
	big.t.size = offsetof(struct sheaf_tensor, digest);     /* compiled before there was one */
	CHECK_INT(sheaf_checkpoint_tensor(step, 0, &big.t, NULL), 0);
	CHECK(big.t.digest == UINT64_C(0xa5a5a5a5a5a5a5a5) && big.t.bytes == 24);
	big.t.size = 4;
	CHECK_INT(sheaf_checkpoint_tensor(step, 0, &big.t, NULL), SHEAF_EINVAL);
	big.t.size = 0xa5a5a5a5;
	CHECK_INT(sheaf_checkpoint_tensor(step, 0, &big.t, NULL), SHEAF_EINVAL);
	info.size = 0;
	CHECK_INT(sheaf_checkpoint_get_info(step, &info, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_get_info(step, NULL, NULL), SHEAF_EINVAL);
	report.size = 8;
	CHECK_RC(sheaf_checkpoint_load(step, p.st, 0, &report, &err), SHEAF_EINVAL, &err);
	grown.r = (struct sheaf_report){ .size = sizeof(grown) };
	CHECK_RC(sheaf_checkpoint_load(step, p.st, 0, &grown.r, &err), 0, &err);
	grown.r = (struct sheaf_report){ .size = sizeof(grown) };
	grown.more[1] = 1;              /* asks a newer sheaf for something */
	CHECK_RC(sheaf_checkpoint_load(step, p.st, 0, &grown.r, &err), SHEAF_EINVAL, &err);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

TEST(a_report_is_filled_and_its_counts_begin_at_0)
{
	struct sheaf_report report;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	api_place_save(&p, 3);
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, 3, &err), 0, &err);
	memset(&report, 0, sizeof(report));
	report.size = sizeof(report);
	report.missing = report.loaded = 77;
	p.w[0] = p.head[0] = 0;
	CHECK_RC(sheaf_checkpoint_load(step, p.st, SHEAF_LOAD_STRICT, &report, &err), 0, &err);
	CHECK(p.w[0] == 1 && p.head[0] == 7);
	CHECK_INT(report.missing, 0);
	CHECK(report.loaded >= 3 && report.loaded < 77);
	CHECK_RC(sheaf_checkpoint_load(step, p.st, 0, NULL, NULL), 0, &err);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

/* A child of the process that opened them owns none of them. */
static int in_a_child(struct api_place *p, struct sheaf_checkpoint *step, struct sheaf_save *save)
{
	struct sheaf_run_stat stat = { .size = sizeof(stat) };
	struct sheaf_stat counts = { .size = sizeof(counts) };
	struct sheaf_save *begun = NULL;
	struct sheaf_checkpoint *opened = NULL;
	struct sheaf_error err[12] = { { 0 } };
	const void *bytes = NULL;
	const int none = 0;
	size_t n = 0;
	const int rcs[] = {
		sheaf_run_steps(p->run, NULL, 0, &err[0]),
		sheaf_run_list(p->run, NULL, NULL, &err[1]),
		sheaf_run_leftovers(p->run, NULL, NULL, &err[2]),
		sheaf_run_rewind(p->run, 3, &err[3]), sheaf_run_mark(p->run, 3, SHEAF_MARK_KEEP,
		                                                     &err[4]),
		sheaf_run_prune(p->run, 1, NULL, NULL, &err[5]),
		sheaf_run_resume(p->run, p->st, SHEAF_MARK_NONE, NULL, &err[6]),
		sheaf_save_begin(&begun, p->run, 9, p->st, NULL, &err[7]),
		sheaf_save_advance(save, 1, &err[8]), sheaf_save_commit(save, 0, &err[9]),
		sheaf_checkpoint_open(&opened, p->run, 3, &err[10]),
		sheaf_checkpoint_load(step, p->st, 0, NULL, &err[11]),
		sheaf_checkpoint_verify(step, NULL, NULL), sheaf_checkpoint_copy(step, "/none",
		                                                                 NULL, NULL),
		sheaf_checkpoint_read(step, NULL, NULL), sheaf_run_get_stat(p->run, &stat, NULL),
		sheaf_checkpoint_file(step, "config.json", &bytes, &n, NULL),
		sheaf_checkpoint_rank_bytes(step, "a", 0, &bytes, &n, NULL),
		sheaf_save_rank_bytes(save, "a", "", 0, NULL),
		sheaf_save_attach(save, "a", "", 0, NULL), sheaf_save_note(save, "a", "", NULL),
		sheaf_save_wait_copied(save, 0, 0, NULL), sheaf_save_slice_ready(save, 0, NULL,
		                                                                 NULL),
		sheaf_save_slices_copied(save, &none, 1, 0, NULL),
		sheaf_save_slices_ready(save, &none, 1, NULL),
		sheaf_save_ready(save, NULL), sheaf_save_get_stat(save, &counts, NULL),
		sheaf_save_abort(save, "a child", NULL),
		sheaf_state_average(p->st, p->run, 9, 0, NULL),
	};

	for (size_t i = 0; i < sizeof(rcs) / sizeof(rcs[0]); i++)
		if (rcs[i] != SHEAF_EINVAL)
			return 100 + (int)i;
	for (int i = 0; i < 12; i++)
		if (strcmp(err[i].msg, "the run was opened by another process; after a fork, open "
		           "it again in the child") != 0)
			return 1 + i;
	return sheaf_save_eta_ms(save) == -1 && !begun && !opened && !bytes ? 0 : 99;
}

TEST(a_child_may_call_nothing_of_a_run_that_its_parent_opened)
{
	struct sheaf_save *begun = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	struct api_place p;
	int status = -1;
	pid_t child;

	api_place_init(&p);
	api_place_fill(&p);
	api_place_save(&p, 3);
	CHECK_RC(sheaf_checkpoint_open(&step, p.run, 3, &err), 0, &err);
	CHECK_RC(sheaf_save_begin(&begun, p.run, 4, p.st, NULL, &err), 0, &err);
	child = fork();
	if (child == 0)
		_exit(in_a_child(&p, step, begun));
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	CHECK_INT(WEXITSTATUS(status), 0);
	CHECK_RC(sheaf_save_commit(begun, -1, &err), 0, &err);
	sheaf_save_free(begun);
	sheaf_checkpoint_close(step);
	api_place_release(&p);
}

TEST(missing_arguments_are_errors)
{
	struct sheaf_error err;
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct api_place p;

	api_place_init(&p);
	CHECK_INT(sheaf_run_open(NULL, p.dir, NULL, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_steps(NULL, NULL, 0, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_steps(p.run, NULL, 1, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_list(p.run, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_rewind(NULL, 1, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_mark(NULL, 1, SHEAF_MARK_KEEP, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_prune(NULL, 1, NULL, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_begin(NULL, p.run, 1, p.st, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_begin(&save, NULL, 1, p.st, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_begin(&save, p.run, 1, NULL, NULL, &err), SHEAF_ENOMEM);
	CHECK_INT(sheaf_save_begin(&save, p.run, -1, p.st, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_state_average(p.st, NULL, 1, 0, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_state_average(NULL, p.run, 1, 0, NULL), SHEAF_ENOMEM);
	CHECK_INT(sheaf_save_attach(NULL, "a", "", 0, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_note(NULL, "a", "", NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_rank_bytes(NULL, "a", "", 0, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_ready(NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_get_stat(NULL, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_abort(NULL, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_advance(NULL, 0, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_save_commit(NULL, 0, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_open(NULL, p.run, 1, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_open(&step, p.run, 1, &err), SHEAF_ENOENT);
	CHECK_INT(sheaf_checkpoint_open_path(NULL, p.dir, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_open_path(&step, NULL, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_load(NULL, p.st, 0, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_verify(NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_read(NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_copy(NULL, p.dir, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_leftovers(NULL, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_leftovers(p.run, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_salvage(NULL, 1, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_salvage(p.dir, -1, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_get_stat(NULL, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_run_get_stat(p.run, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_checkpoint_number(NULL), -1);
	CHECK_INT(sheaf_slice_shard(NULL, 0, 0, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_plan(NULL, NULL, 1, NULL, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK(save == NULL && step == NULL);
	sheaf_save_free(NULL);
	sheaf_checkpoint_close(NULL);
	sheaf_run_close(NULL);
	sheaf_state_free(NULL);
	api_place_release(&p);
}

static int hear(void *arg, const struct sheaf_item *item)
{
	int *n = arg;

	CHECK_INT(item->size, sizeof(*item));
	CHECK_STR(sheaf_item_state_name(item->state), "committed");
	CHECK(item->bytes > 0 && item->path[0] && item->created[0]);
	return ++*n == 2 ? 42 : 0;
}

TEST(steps_are_listed_and_the_error_is_clear_after_success)
{
	int64_t steps[2] = { -1, -1 };
	struct sheaf_error err;
	struct api_place p;
	int n = 0;

	api_place_init(&p);
	api_place_fill(&p);
	api_place_save(&p, 1);
	api_place_save(&p, 5);
	api_place_save(&p, 9);
	memset(&err, 0xa5, sizeof(err));
	CHECK_INT(sheaf_run_steps(p.run, steps, 2, &err), 3);
	CHECK(err.code == 0 && err.rank == -1 && err.msg[0] == '\0');
	CHECK(steps[0] == 1 && steps[1] == 5);
	CHECK_INT(sheaf_run_list(p.run, hear, &n, NULL), 42);
	CHECK_INT(n, 2);
	api_place_release(&p);
}

TEST(a_save_counts_itself_and_can_be_given_up)
{
	struct sheaf_stat stat = { .size = sizeof(stat) };
	struct sheaf_save *save = NULL;
	struct sheaf_error err;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	CHECK_RC(sheaf_save_begin(&save, p.run, 2, p.st, NULL, &err), 0, &err);
	CHECK_INT(shf_save_wait(save, -1, NULL), 0);
	CHECK_INT(sheaf_save_get_stat(save, &stat, NULL), 0);
	CHECK(stat.held >= 45 && stat.copied == 45);
	CHECK(stat.to_write > 0 && stat.written == stat.to_write);
	CHECK_INT(stat.sent, 0);
	CHECK_INT(sheaf_save_abort(save, "a test said so", NULL), 0);
	CHECK_RC(sheaf_save_commit(save, -1, &err), SHEAF_EFAILED, &err);
	CHECK(strstr(err.msg, "a test said so") != NULL);
	sheaf_save_free(save);
	CHECK_INT(sheaf_run_steps(p.run, NULL, 0, &err), 0);
	api_place_release(&p);
}

/* Who was compiled when the structs were shorter gets what he knows, and not a byte more. */
TEST(a_shorter_stat_is_filled_to_its_end)
{
	struct { struct sheaf_stat s; } stat;
	struct sheaf_run_stat sums = { .size = offsetof(struct sheaf_run_stat, dropped) };
	const size_t before = offsetof(struct sheaf_stat, gates);
	struct sheaf_save *save = NULL;
	struct sheaf_error err;
	struct api_place p;

	api_place_init(&p);
	api_place_fill(&p);
	memset(&stat, 0xa5, sizeof(stat));
	stat.s.size = (uint32_t)before;
	memset(&sums.dropped, 0xa5, sizeof(sums) - sums.size);
	CHECK_RC(sheaf_save_begin(&save, p.run, 2, p.st, NULL, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	CHECK_INT(sheaf_save_get_stat(save, &stat.s, NULL), 0);
	CHECK_INT(sheaf_run_get_stat(p.run, &sums, NULL), 0);
	CHECK_INT(stat.s.phase, 3);
	for (size_t i = before; i < sizeof(stat); i++)
		CHECK_INT(((uint8_t *)&stat)[i], 0xa5);
	CHECK(sums.begun == 1 && sums.committed == 1);
	for (size_t i = sums.size; i < sizeof(sums); i++)
		CHECK_INT(((uint8_t *)&sums)[i], 0xa5);
	sums.size = 4;
	CHECK_INT(sheaf_run_get_stat(p.run, &sums, NULL), SHEAF_EINVAL);
	sheaf_save_free(save);
	api_place_release(&p);
}

/* Another thread asks how long it will take while the caller commits. */
struct asking {
	struct sheaf_save *save;
	atomic_bool over;
	int64_t least, most, asked;
};

static void *ask(void *arg)
{
	struct asking *a = arg;

	do {
		int64_t eta = sheaf_save_eta_ms(a->save);

		a->least = eta < a->least ? eta : a->least;
		a->most = eta > a->most ? eta : a->most;
		a->asked++;
	} while (!atomic_load(&a->over));
	return NULL;
}

/* One ask: is it over? */
static bool is_through(struct sheaf_save **save, int *behind)
{
	struct sheaf_stat stat = { .size = sizeof(stat) };
	struct sheaf_error err;
	int rc = sheaf_save_commit(*save, 0, &err);

	CHECK_INT(sheaf_save_get_stat(*save, &stat, NULL), 0);
	*behind += stat.phase == 6;
	if (rc == SHEAF_EAGAIN)
		return false;
	CHECK_RC(rc, 0, &err);
	sheaf_save_free(*save);
	*save = NULL;
	return true;
}

/* By a thread of the library, while this one begins another. */
TEST(a_step_is_published_behind_the_next_save)
{
	struct api_place p;
	struct sheaf_staging staging = { .size = sizeof(staging), .buffers_max = 3 };
	struct sheaf_opts opts = { .size = sizeof(opts), .staging = &staging };
	struct sheaf_save *save = NULL, *next = NULL;
	struct sheaf_checkpoint *opened = NULL;
	struct sheaf_error err;
	int behind = 0;

	api_place_init(&p);
	api_place_fill(&p);
	sheaf_run_close(p.run);
	CHECK_RC(sheaf_run_open(&p.run, p.dir, NULL, &opts, &err), 0, &err);
	for (int64_t step = 1; step <= 30; step++) {
		CHECK_RC(sheaf_save_begin(&next, p.run, step, p.st, NULL, &err), 0, &err);
		while (save && !is_through(&save, &behind))
			;
		save = next;
		if (step % 3)
			(void)is_through(&save, &behind);
	}
	while (save && !is_through(&save, &behind))
		;
	printf("# %d asks found one being published\n", behind);
	CHECK(behind > 0);
	CHECK_RC(sheaf_checkpoint_open(&opened, p.run, 30, &err), 0, &err);
	CHECK_RC(sheaf_checkpoint_verify(opened, NULL, &err), 0, &err);
	sheaf_checkpoint_close(opened);
	api_place_release(&p);
}

static int committed_n;
static char committed_path[100];

static void committed(void *arg, int64_t step, const char *path)
{
	(void)arg;
	committed_n += step == 1 + committed_n;
	snprintf(committed_path, sizeof(committed_path), "%s", path);
}

TEST(any_thread_may_ask_how_long_a_save_takes)
{
	struct api_place p;
	struct sheaf_notify notify = { .size = sizeof(notify), .committed = committed };
	struct sheaf_opts opts = { .size = sizeof(opts), .notify = &notify };
	struct sheaf_error err;
	int64_t asked = 0;
	char signals[80], want[100], command[200];

	api_place_init(&p);
	api_place_fill(&p);
	sheaf_run_close(p.run);
	snprintf(signals, sizeof(signals), "%s.done", p.dir);
	notify.signal_dir = signals;
	CHECK_RC(sheaf_run_open(&p.run, p.dir, NULL, &opts, &err), 0, &err);
	for (int64_t step = 1; step <= 20; step++) {
		struct asking a = { .least = 1 };
		pthread_t thread;
		int rc;

		CHECK_RC(sheaf_save_begin(&a.save, p.run, step, p.st, NULL, &err), 0, &err);
		CHECK(sheaf_save_eta_ms(a.save) != 0);
		CHECK_INT(pthread_create(&thread, NULL, ask, &a), 0);
		do
			rc = sheaf_save_commit(a.save, step % 2 ? 20 : 0, &err);
		while (rc == SHEAF_EAGAIN);
		atomic_store(&a.over, true);
		CHECK_INT(pthread_join(thread, NULL), 0);
		CHECK_RC(rc, 0, &err);
		CHECK(a.least >= -1 && a.most < 600000);
		CHECK(sheaf_save_eta_ms(a.save) == 0);
		asked += a.asked;
		sheaf_save_free(a.save);
	}
	CHECK(sheaf_save_eta_ms(NULL) == -1);
	CHECK_INT(committed_n, 20);
	snprintf(want, sizeof(want), "%s/checkpoint-20", p.dir);
	CHECK_STR(committed_path, want);
	printf("# asked %lld times\n", (long long)asked);
	/* 20 steps of two families, and the whole. */
	snprintf(command, sizeof(command), "test $(ls %s | grep -c done) = 60 && rm -r %s", signals,
	         signals);
	CHECK_INT(system(command), 0);
	api_place_release(&p);
}

TEST(a_relative_folder_for_done_files_is_that_of_the_open)
{
	struct api_place p;
	struct sheaf_notify notify = { .size = sizeof(notify), .signal_dir = "done" };
	struct sheaf_opts opts = { .size = sizeof(opts), .notify = &notify };
	struct sheaf_save *save = NULL;
	struct sheaf_error err;
	char old[4096], done[100];

	api_place_init(&p);
	api_place_fill(&p);
	sheaf_run_close(p.run);
	CHECK(getcwd(old, sizeof(old)));
	CHECK_INT(chdir(p.dir), 0);
	CHECK_RC(sheaf_run_open(&p.run, p.dir, NULL, &opts, &err), 0, &err);
	CHECK_INT(chdir("/"), 0);
	CHECK_RC(sheaf_save_begin(&save, p.run, 1, p.st, NULL, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	sheaf_save_free(save);
	CHECK_INT(chdir(old), 0);
	snprintf(done, sizeof(done), "%s/done/whole-step.1.done", p.dir);
	CHECK_INT(access(done, F_OK), 0);
	api_place_release(&p);
}

static int save_with_loss(struct sheaf_run *run, int64_t step, const char *loss)
{
	static float data[1 << 19];             /* 2 MiB, so that blocks are read past the cache */
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 1 << 19 }, .count = { 1 << 19 }, .data = data };
	struct sheaf_state *st = sheaf_state_new();
	struct sheaf_save *save = NULL;
	struct sheaf_error err;
	int rc;

	data[7] = (float)step;
	(void)sheaf_state_add(st, &s, NULL);
	rc = sheaf_save_begin(&save, run, step, st, NULL, &err);
	if (rc == 0 && loss)
		rc = sheaf_save_note(save, "loss", loss, NULL);
	if (rc == 0)
		rc = sheaf_save_commit(save, -1, &err);
	sheaf_save_free(save);
	sheaf_state_free(st);
	return rc;
}

TEST(steps_are_read_again_behind_and_the_rules_hold_when_the_run_is_closed)
{
	static const char *const losses[] = { "0.5", "0.1", "0.9", "0.2", "0.8", "nan" };
	char dir[] = "/tmp/sheaf-api-XXXXXX", command[64];
	struct sheaf_retention keep = { .size = sizeof(keep), .keep_last = 2, .keep_best = 1,
		.best_note = "loss", .grace_s = -1 };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.retention = &keep };
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	int64_t steps[8];

	CHECK(mkdtemp(dir) != NULL);
	CHECK_RC(sheaf_run_open(&run, dir, NULL, &opts, &err), 0, &err);
	for (int64_t step = 1; step <= 6; step++) {
		CHECK_INT(save_with_loss(run, step, losses[step - 1]), 0);
		/* Whoever is faster: the rules are never overdone. */
		CHECK(sheaf_run_steps(run, steps, 8, &err) >= (step < 4 ? step < 3 ? step : 2 : 3));
	}
	sheaf_run_close(run);
	opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(sheaf_run_open(&run, dir, NULL, &opts, &err), 0, &err);
	CHECK_INT(sheaf_run_steps(run, steps, 8, &err), 3);
	CHECK(steps[0] == 2 && steps[1] == 5 && steps[2] == 6);
	sheaf_run_close(run);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK_INT(system(command), 0);
}
