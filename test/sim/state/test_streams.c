/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that belong to a rank, in worlds of other sizes; and what a manifest says of its origin. */
#include "hands.h"
#include <stdlib.h>
#include "err.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"

enum { BYTES = 24 };
enum { EVEN_SIZES, OWN_SIZES, SOME_RANKS, OTHER_RULES };

static uint8_t stream_byte(const char *stream, int rank, int i)
{
	return (uint8_t)hand_value(stream, "stream", SHEAF_U8, rank * 1000 + i);
}

static size_t bytes_of(const struct hand *h)
{
	return h->play->variant == OWN_SIZES ? (size_t)h->rank + 1 : BYTES;
}

/* Three streams under their rules, the last on even ranks only when so asked. */
static const struct {
	const char *name, *rule;
} streams[3] = { { "rng.global", "strict" }, { "rng.drop", "drop" }, { "rng.local", "modulo" } };

static void add(struct hand *h, int k, int rank, bool fill)
{
	uint8_t *p = hand_block(h, (int64_t)bytes_of(h));
	const char *rule = streams[k].rule;

	if (h->play->variant == OTHER_RULES && h->rank == 1)
		rule = "strict";
	for (size_t i = 0; fill && i < bytes_of(h); i++)
		p[i] = stream_byte(streams[k].name, rank, (int)i);
	(void)shf_state_stream(h->state, streams[k].name, rule, rank, h->ranks, p, bytes_of(h),
	                       NULL);
}

/* seed & 7: which streams; they are in blocks 0, 1, ... */
static int which(const struct hand *h)
{
	return (int)(h->play->seed & 7);
}

static void add_all(struct hand *h, bool fill)
{
	for (int k = 0; k < 3; k++)
		if (which(h) >> k & 1 && (h->play->variant != SOME_RANKS || h->rank % 2 == 0))
			add(h, k, h->rank, fill);
}

static int save_act(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc;

	add_all(h, true);
	rc = shf_save_begin(&save, h->run, h->play->step, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

/* After a load: from_n ranks saved. */
static int right(struct hand *h, int from_n, bool kept)
{
	int b = 0;

	for (int k = 0; k < 3; k++) {
		if (!(which(h) >> k & 1) || b >= h->blocks_n)
			continue;
		for (size_t i = 0; i < bytes_of(h); i++) {
			uint8_t want = stream_byte(streams[k].name, h->rank % from_n, (int)i);

			if (kept || (from_n != h->ranks && strcmp(streams[k].rule, "drop") == 0))
				want = 0xA5;
			if (h->blocks[b][i] != want)
				return shf_fail(&h->err, SHEAF_EBUG, "%s byte %zu of rank %d: %02x",
				                streams[k].name, i, h->rank, h->blocks[b][i]);
		}
		b++;
	}
	return 0;
}

/* How many ranks had saved is in opts.retention.keep_every, which loads do not look at. */
static int load_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc, bad;

	add_all(h, false);
	rc = shf_step_open(&step, h->run, h->play->step, &h->err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, h->play->flags, &h->report, &h->err);
	shf_step_put(step);
	if (rc == 0 || rc == SHEAF_ELAYOUT) {
		bad = right(h, h->play->opts.keep_every, rc < 0);
		rc = bad ? bad : rc;
	}
	return rc;
}

static struct play some(struct simdisk *disk, int ranks, int what)
{
	struct play p = hands_play(disk, ranks, NULL);

	p.seed = (uint64_t)(0x50 | what);
	return p;
}

static struct simdisk *saved(int ranks, int what, int variant)
{
	struct simdisk *disk = disk_new();
	struct play p = some(disk, ranks, what);

	p.variant = variant;
	CHECK_RC(hands_run(&p, save_act, false), 0, &p.err);
	return disk;
}

static struct play loading(struct simdisk *disk, int ranks, int what, int from)
{
	struct play p = some(disk, ranks, what);

	p.opts.keep_every = from;
	p.opts.keep_last = 100;
	p.opts.flags = SHEAF_RUN_READONLY;
	p.flags = SHEAF_LOAD_STRICT;
	return p;
}

TEST(streams_come_back_to_their_ranks)
{
	for (int variant = EVEN_SIZES; variant <= SOME_RANKS; variant++) {
		struct simdisk *disk = saved(4, 7, variant);
		struct play p = loading(disk, 4, 7, 4);

		p.variant = variant;
		CHECK_RC(hands_run(&p, load_act, false), 0, &p.err);
		CHECK_INT(hands_told(&p, 'R'), 0);
		simdisk_free(disk);
	}
}

TEST(a_strict_stream_refuses_another_number_of_ranks)
{
	for (int ranks = 2; ranks <= 5; ranks += 3) {
		struct simdisk *disk = saved(4, 7, EVEN_SIZES);
		struct play p = loading(disk, ranks, 7, 4);

		CHECK_RC(hands_run(&p, load_act, false), SHEAF_ELAYOUT, &p.err);
		CHECK(strstr(p.err.msg, ranks == 2
		             ? "stream rng.global: saved by 4 ranks, loaded by 2, and its rule is "
		               "strict (put ranks/rng.global/* into opts.ignore to load the rest)"
		             : "stream rng.global: saved by 4 ranks, loaded by 5, and its rule is "
		               "strict") != NULL);
		simdisk_free(disk);
	}
}

TEST(drop_and_modulo_do_what_they_say_and_each_use_is_reported)
{
	static const int worlds[][2] = { { 4, 2 }, { 2, 4 }, { 4, 1 }, { 1, 3 }, { 3, 5 } };

	for (int k = 0; k < 5; k++) {
		struct simdisk *disk = saved(worlds[k][0], 6, EVEN_SIZES);
		struct play p = loading(disk, worlds[k][1], 6, worlds[k][0]);

		CHECK_RC(hands_run(&p, load_act, false), 0, &p.err);
		CHECK_INT(hands_told(&p, 'R'), 2 * worlds[k][1]);
		CHECK(strstr(p.told, "R ranks/rng.drop/0: saved by") != NULL);
		for (int rule = 0; rule < 2; rule++)
			for (int r = 0; r < worlds[k][1]; r++) {
				char want[120];

				snprintf(want, sizeof(want), "R ranks/rng.%s/%d: saved by %d ranks,"
				         " loaded by %d: %s\n", rule ? "local" : "drop", r,
				         worlds[k][0], worlds[k][1], rule ? "modulo" : "drop");
				CHECK(strstr(p.told, want) != NULL);
			}
		simdisk_free(disk);
	}
}

TEST(modulo_onto_another_size_is_a_layout_error)
{
	struct simdisk *disk = saved(2, 4, EVEN_SIZES);
	struct play p = loading(disk, 3, 4, 2);

	p.variant = OWN_SIZES;
	CHECK_RC(hands_run(&p, load_act, false), SHEAF_ELAYOUT, &p.err);
	CHECK(strstr(p.err.msg, "shape [24] is stored") != NULL);
	simdisk_free(disk);
}

TEST(a_stream_that_was_not_saved_is_missing)
{
	struct simdisk *disk = saved(2, 2, EVEN_SIZES);
	struct play p = loading(disk, 2, 4, 2);

	CHECK_RC(hands_run(&p, load_act, false), SHEAF_ELAYOUT, &p.err);
	CHECK(strstr(p.err.msg, "no tensor ranks/rng.local/0") != NULL);
	simdisk_free(disk);
}

TEST(ranks_that_give_a_stream_different_rules_are_refused)
{
	struct simdisk *disk = disk_new();
	struct play p = some(disk, 3, 4);

	p.variant = OTHER_RULES;
	CHECK_RC(hands_run(&p, save_act, false), SHEAF_EFAILED, &p.err);
	CHECK(strstr(p.err.msg, "ranks.rng.local") != NULL);
	simdisk_free(disk);
}

/* ---- where a step comes from ---- */

static void weights(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 9, 5), 0, h->rank, h->ranks);
}

static char *manifest(struct simdisk *disk, int64_t step)
{
	char path[80], *text;
	size_t n;
	void *bytes;

	snprintf(path, sizeof(path), "run/checkpoint-%lld/sheaf.json", (long long)step);
	bytes = simdisk_get(disk, path, &n);
	text = calloc(1, n + 1);
	memcpy(text, bytes, n);
	free(bytes);
	return text;
}

static void session_of(const char *text, char session[33])
{
	const char *at = strstr(text, "\"session\": \"");

	CHECK(at != NULL);
	memcpy(session, at + 12, 32);
	session[32] = '\0';
}

TEST(a_manifest_names_its_writer_its_commit_its_compiler_and_its_parent)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, weights);
	char *text, session[33], want[200];

	SAVED(p);
	text = manifest(disk, 7);
	CHECK(strstr(text, "\"writer\"") && strstr(text, "\"version\"") &&
	      strstr(text, "\"commit\"") && strstr(text, "\"compiler\""));
	CHECK(strstr(text, "\"parent\": null") != NULL);
	CHECK(strstr(text, "\"ranks\": 2") != NULL);
	session_of(text, session);
	free(text);
	p.step = 8; /* by processes that loaded nothing: after the newest there was */
	SAVED(p);
	text = manifest(disk, 8);
	snprintf(want, sizeof(want), "\"parent\": {\"step\": 7, \"session\": \"%s\"}", session);
	CHECK(strstr(text, want) != NULL);
	free(text);
	simdisk_free(disk);
}

/* Load a step, then save the next one with the same handle. */
static int go_on(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_save *save = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, NULL, &h->err);
	shf_step_put(step);
	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 9, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_step_saved_after_a_load_names_the_loaded_one_as_its_parent)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, weights);
	char *text, session[33];
	const char *parent;

	SAVED(p);
	text = manifest(disk, 7);
	session_of(text, session);
	free(text);
	CHECK_RC(hands_run(&p, go_on, true), 0, &p.err);
	text = manifest(disk, 9);
	parent = strstr(text, "\"parent\": {");
	CHECK(parent && strstr(parent, session) && strstr(parent, "\"step\": 7"));
	free(text);
	simdisk_free(disk);
}
