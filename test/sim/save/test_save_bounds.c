/* SPDX-License-Identifier: Apache-2.0 */
/* What a state and a save do not accept, with the whole sentence, and where the limits are: the
 * longest valid input is accepted, and one byte more is not. */
#include "sentences.h"
#include "averages.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"

/* ---- what is given to a save ---- */

static char *text_of(size_t n)
{
	char *text = malloc(n + 1);

	if (!text)
		abort();
	memset(text, 'x', n);
	text[n] = '\0';
	return text;
}

static int give(struct hand *h)
{
	static const char *const files[] = { NULL, "", ".", "a/b", "sheaf.x", "a.safetensors",
		"optimizer", "model", "twice", "twice"
	};
	static const char *const notes[][2] = { { NULL, "v" }, { "", "v" }, { "a key", "v" },
		{ "key", NULL }, { "key", "\xff" }, { "ranks.rng", "drop" }, { "ranks", "v" },
		{ "twice", "v" }, { "twice", "w" } };
	struct sheaf_save *save = begun(h, 1, 0);
	char *long_text = text_of(65 * KIB);
	void *big = calloc(64, MIB);

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		coded(h, "attach", shf_save_attach(save, files[i], "y", 1, NULL));
	coded(h, "attach", shf_save_attach(save, "nothing", NULL, 0, NULL));
	coded(h, "attach", shf_save_attach(save, "null", NULL, 1, NULL));
	coded(h, "attach", shf_save_attach(save, "big", big, 64 * (size_t)MIB + 1, NULL));
	coded(h, "attach", shf_save_attach(save, "big", big, 64 * (size_t)MIB, NULL));
	for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
		coded(h, "note", shf_save_note(save, notes[i][0], notes[i][1], NULL));
	long_text[64 * KIB + 1] = '\0';
	coded(h, "note", shf_save_note(save, "long", long_text, NULL));
	long_text[64 * KIB] = '\0';
	coded(h, "note", shf_save_note(save, "long", long_text, NULL));
	shf_save_free(save);
	free(long_text);
	free(big);
	return 0;
}

TEST(what_is_given_wrongly_is_refused_in_the_log)
{
	struct play p = hands_play(disk_new(), 1, two);

	story(&p, give,
	      "0\n"
	      "1 run: step 1 is saved without this: attached file '': its name must match "
	      "[A-Za-z0-9._-]{1,128}, and not sheaf.* or *.safetensors*\nattach -1\n"
	      "1 run: step 1 is saved without this: attached file '': its name must match "
	      "[A-Za-z0-9._-]{1,128}, and not sheaf.* or *.safetensors*\nattach -1\n"
	      "1 run: step 1 is saved without this: attached file '.': its name must match "
	      "[A-Za-z0-9._-]{1,128}, and not sheaf.* or *.safetensors*\nattach -1\n"
	      "1 run: step 1 is saved without this: attached file 'a/b': its name must match "
	      "[A-Za-z0-9._-]{1,128}, and not sheaf.* or *.safetensors*\nattach -1\n"
	      "1 run: step 1 is saved without this: attached file 'sheaf.x': its name must "
	      "match [A-Za-z0-9._-]{1,128}, and not sheaf.* or *.safetensors*\nattach -1\n"
	      "1 run: step 1 is saved without this: attached file 'a.safetensors': its name "
	      "must match [A-Za-z0-9._-]{1,128}, and not sheaf.* or *.safetensors*\nattach -1\n"
	      "1 run: step 1 is saved without this: attached file 'optimizer': a family has "
	      "this name; choose another\nattach -1\nattach 0\nattach 0\n"
	      "1 run: step 1 is saved without this: attached file twice: given twice\n"
	      "attach -1\nattach 0\n"
	      "1 run: step 1 is saved without this: attached file null: 1 bytes at NULL\n"
	      "attach -1\n"
	      "1 run: step 1 is saved without this: attached file big: 67108865 bytes, at most "
	      "64 MiB\nattach -1\nattach 0\n"
	      "1 run: step 1 is saved without this: note '': its key must match "
	      "[A-Za-z0-9._/-]{1,64}, and its value must be UTF-8\nnote -1\n"
	      "1 run: step 1 is saved without this: note '': its key must match "
	      "[A-Za-z0-9._/-]{1,64}, and its value must be UTF-8\nnote -1\n"
	      "1 run: step 1 is saved without this: note 'a key': its key must match "
	      "[A-Za-z0-9._/-]{1,64}, and its value must be UTF-8\nnote -1\n"
	      "1 run: step 1 is saved without this: note 'key': its key must match "
	      "[A-Za-z0-9._/-]{1,64}, and its value must be UTF-8\nnote -1\n"
	      "1 run: step 1 is saved without this: note 'key': its key must match "
	      "[A-Za-z0-9._/-]{1,64}, and its value must be UTF-8\nnote -1\n"
	      "1 run: step 1 is saved without this: note ranks.rng: keys that begin with "
	      "'ranks.' are reserved for sheaf_state_rank_bytes; choose another\nnote -1\n"
	      "note 0\nnote 0\n1 run: step 1 is saved without this: note twice: given twice\n"
	      "note -1\n"
	      "1 run: step 1 is saved without this: note long: a value must be at most 64 KiB, "
	      "all notes together at most 512 KiB\nnote -1\nnote 0\n");
}

/* Notes of 64 KiB with their keys, and one that is as long as fits, or one byte longer. */
static int fill_notes(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, 0);
	int mine = 8 / h->ranks, more = h->play->variant;
	char *text = text_of(64 * KIB);
	char key[24];

	for (int i = 0; i < mine; i++) {
		bool last = h->rank == h->ranks - 1 && i == mine - 1;

		snprintf(key, sizeof(key), "%d.%d", h->rank, i);
		text[64 * KIB - 3 + (last ? more : 0)] = '\0';
		coded(h, "note", shf_save_note(save, key, text, NULL));
		memset(text, 'x', 64 * KIB);
	}
	committed(h, save, -1);
	shf_save_free(save);
	free(text);
	return 0;
}

TEST(all_notes_are_half_a_mebibyte_and_not_a_byte_more)
{
	static const char *const want[] = {
		"0\nnote 0\nnote 0\nnote 0\nnote 0\nnote 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 1 committed, rank 0\n0\n",
		"0\nnote 0\nnote 0\nnote 0\nnote 0\nnote 0\nnote 0\nnote 0\n"
		"1 run: step 1 is saved without this: note 0.7: a value must be at most 64 KiB, "
		"all notes together at most 512 KiB\nnote -1\n2 run: step 1 committed, rank 0\n"
		"0\n",
		"0\nnote 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 1\n"
		"2 run: step 1 committed, rank 0\n0\n",
		"0\nnote 0\nnote 0\nnote 0\nnote 0\n"
		"-15: the notes of all ranks are 524289 bytes, at most 512 KiB\n"
	};

	for (int i = 0; i < 4; i++) {
		struct play p = hands_play(disk_new(), 1 + i / 2, two);

		p.variant = i % 2;
		story(&p, fill_notes, want[i]);
	}
}

/* The room that is left in the manifest: a note that needs it all is too long by one. */
static int fill_manifest(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, 0);
	const char *key = h->play->variant == 0 ? "note" : h->play->variant == 1 ? "mesh"
	                  : "config.digest";
	size_t times = h->play->variant ? 2 : 1, room, n;
	char *text = text_of(64 * KIB);

	save->given.given_bytes = 1 << 19;    /* as if so much had been given */
	save->plan->manifest_bytes = 1 << 18;
	room = (1 << 20) - (1 << 19) - (1 << 18) - strlen(key) - 24;
	n = 60000 * times;
	save->given.given_bytes += room - n;
	text[60000 - 2] = '\0';         /* and two quotes */
	coded(h, key, shf_save_note(save, key, text, NULL));
	text[60000 - 3] = '\0';
	coded(h, key, shf_save_note(save, key, text, NULL));
	coded(h, "left", (int)((1 << 20) - save->plan->manifest_bytes - save->given.given_bytes));
	shf_save_free(save);
	free(text);
	return 0;
}

TEST(a_note_that_fills_the_manifest_is_one_byte_too_long)
{
	static const char *const want[] = {
		"0\n"
		"1 run: step 1 is saved without this: note: with it the manifest would have "
		"1048576 bytes, must have less than 1048576; shorten notes (a control character "
		"takes 6 bytes)\nnote -1\nnote 0\nleft 1\n",
		"0\n"
		"1 run: step 1 is saved without this: mesh: with it the manifest would have "
		"1048576 bytes, must have less than 1048576; shorten notes (a control character "
		"takes 6 bytes)\nmesh -1\nmesh 0\nleft 2\n",
		"0\n"
		"1 run: step 1 is saved without this: config.digest: with it the manifest would "
		"have 1048576 bytes, must have less than 1048576; shorten notes (a control "
		"character takes 6 bytes)\nconfig.digest -1\nconfig.digest 0\nleft 2\n"
	};

	for (int i = 0; i < 3; i++) {
		struct play p = hands_play(disk_new(), 1, two);

		p.variant = i;
		story(&p, fill_manifest, want[i]);
	}
}

/* ---- states and averages ---- */

static void state_says(struct sheaf_state *state)
{
	struct sheaf_error err = { 0 };
	int rc = shf_state_ready(state, true, &err);

	tell("%d %s\n", rc, rc ? err.msg : "");
	shf_state_put(state);
}

static struct sheaf_state *state_of(int dtype)
{
	static float w[16];
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = dtype, .ndim = 1,
		.shape = { 16 }, .count = { 16 }, .data = w };
	struct sheaf_state *state = shf_state_new();

	CHECK_INT(shf_state_add(state, &s, NULL), 0);
	return state;
}

TEST(averages_that_cannot_be_are_told_why)
{
	static const struct sheaf_ema emas[] = {
		{ .size = 8 }, { .size = 5000 }, { .name = "Ema" }, { .name = "model" },
		{ .coef = -0.5 }, { .coef = 1 }, { .interval = -1 }, { .warmup = -1 },
		{ .coef = 0 }, { .coef = 0.999999, .interval = 2, .warmup = 3 },
	};
	static const char *const of[] = { NULL, "model", "Other", "optimizer"
	};
	static const int types[] = { SHEAF_F32, SHEAF_BF16, SHEAF_I32, SHEAF_F4 };

	told[0] = '\0';
	for (size_t i = 0; i < sizeof(emas) / sizeof(emas[0]); i++) {
		struct sheaf_state *held = state_of(SHEAF_F32);
		struct sheaf_ema e = emas[i];

		e.size = e.size ? e.size : sizeof(e);
		tell("%d ", shf_state_ema(held, NULL, &e, NULL));
		state_says(held);
	}
	for (int i = 0; i < 16; i++) {
		struct sheaf_state *held = state_of(types[i / 4]);
		struct sheaf_ema e = { .size = sizeof(e), .coef = 0.5 };

		tell("%d ", shf_state_ema(held, of[i % 4], &e, NULL));
		tell("%zu ", held->n);
		state_says(held);
	}
	is_text(
	        "-1 -1 ema.size is 8; set it to sizeof(struct sheaf_ema)\n"
	        "-1 -1 ema.size is 5000; set it to sizeof(struct sheaf_ema)\n"
	        "-1 -1 averages 'Ema': the name must match [a-z][a-z0-9_]{0,31}\n"
	        "-1 -1 averages model: a family has this name already; choose another\n"
	        "-1 -1 averages ema: ema.coef is -0.5, must be at least 0 and less than 1\n"
	        "-1 -1 averages ema: ema.coef is 1, must be at least 0 and less than 1\n"
	        "-1 -1 averages ema: ema.interval, warmup and loss_max must be numbers that are "
	        "not negative\n"
	        "-1 -1 averages ema: ema.interval, warmup and loss_max must be numbers that are "
	        "not negative\n0 -1 ema/w: slice.data is NULL, but the slice is not empty\n"
	        "0 -1 ema/w: slice.data is NULL, but the slice is not empty\n"
	        "0 2 -1 ema/w: slice.data is NULL, but the slice is not empty\n"
	        "0 2 -1 ema/w: slice.data is NULL, but the slice is not empty\n"
	        "-1 1 -1 averages ema: no slice of family 'Other' was added before; add its "
	        "slices first\n0 1 0 \n0 1 0 \n"
	        "0 2 -1 ema/w: slice.data is NULL, but the slice is not empty\n"
	        "-1 1 -1 averages ema: no slice of family 'Other' was added before; add its "
	        "slices first\n0 1 0 \n0 1 0 \n"
	        "-1 1 -1 averages ema: model/w is I32, which cannot be averaged in fp32\n"
	        "-1 1 -1 averages ema: no slice of family 'Other' was added before; add its "
	        "slices first\n0 1 0 \n0 1 0 \n"
	        "-1 1 -1 averages ema: model/w is F4, which cannot be averaged in fp32\n"
	        "-1 1 -1 averages ema: no slice of family 'Other' was added before; add its "
	        "slices first\n0 1 0 \n");
}

TEST(streams_that_cannot_be_are_told_why)
{
	static const struct {
		const char *stream, *rule;
		int32_t rank, ranks;
	} all[] = {
		{ NULL, NULL, 0, 1 }, { "", NULL, 0, 1 }, { "A", NULL, 0, 1 },
		{ "r", "often", 0, 1 }, { "r", NULL, 0, 0 }, { "r", NULL, -1, 1 },
		{ "r", "modulo", 1, 1 },
		{ "r", "drop", 2, 3 }, { "r", "strict", 0, 1 }, { "r", "modulo", 0, INT32_MAX },
	};

	told[0] = '\0';
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct sheaf_state *held = state_of(SHEAF_F32);

		tell("%d ", shf_state_stream(held, all[i].stream, all[i].rule, all[i].rank,
		                             all[i].ranks, told, 4, NULL));
		if (held->n == 2)
			tell("%s %s %d %d ", held->slices[1].name, held->slices[1].stream.rule,
			     held->slices[1].stream.rank, held->slices[1].stream.ranks);
		state_says(held);
	}
	is_text(
	        "-1 -1 stream '': its name must match [a-z0-9._-]{1,57}\n"
	        "-1 -1 stream '': its name must match [a-z0-9._-]{1,57}\n"
	        "-1 -1 stream 'A': its name must match [a-z0-9._-]{1,57}\n"
	        "-1 -1 stream r: rule 'often' must be strict, drop or modulo\n"
	        "-1 -1 stream r: rank 0 must be at least 0 and less than ranks, 0\n"
	        "-1 -1 stream r: rank -1 must be at least 0 and less than ranks, 1\n"
	        "-1 -1 stream r: rank 1 must be at least 0 and less than ranks, 1\n"
	        "1 r/2 drop 2 3 0 \n1 r/0 strict 0 1 0 \n1 r/0 modulo 0 2147483647 0 \n");
}

TEST(moves_that_cannot_be_are_told_why)
{
	static const int slices[] = { -1, 1, 0, 0 };

	told[0] = '\0';
	for (int i = 0; i < 4; i++) {
		struct sheaf_state *held = state_of(SHEAF_F32);

		tell("%d ", shf_state_move(held, slices[i], i == 2 ? NULL : told, NULL));
		state_says(held);
	}
	is_text(
	        "-1 -1 slice -1 does not exist: the state has 1 (see sheaf_state_add)\n"
	        "-1 -1 slice 1 does not exist: the state has 1 (see sheaf_state_add)\n"
	        "-1 -1 model/w: cannot be moved to NULL, because the slice is not empty\n0 0 \n");
}

static int move_early(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1, SHEAF_SAVE_LAZY);
	uint8_t *at = NULL;

	(void)hand_block_of(h, 1, &at);
	coded(h, "move", shf_state_move(h->state, 1, at, NULL));
	(void)begun(h, 2, SHEAF_SAVE_LAZY);
	coded(h, "copied", shf_save_copied(save, SHEAF_ALL_SLICES, -1, NULL));
	(void)begun(h, 2, SHEAF_SAVE_LAZY);
	coded(h, "move", shf_state_move(h->state, 1, at, NULL));
	committed(h, save, -1);
	shf_save_free(save);
	shf_save_free(begun(h, 2, 0));
	coded(h, "add", shf_state_add(h->state, &h->s[0], NULL));
	(void)begun(h, 3, 0);
	return 0;
}

TEST(a_state_that_changes_too_early_or_too_late_says_so)
{
	struct play p = hands_play(disk_new(), 1, two);

	simdisk_set_task_steps(p.disk, 0);
	story(&p, move_early,
	      "0\nmove -1\n"
	      "-1: optimizer/b: sheaf_state_move was refused, because a lazy save had not "
	      "copied the slice; call it again\ncopied 0\n"
	      "-1: optimizer/b: sheaf_state_move was refused, because a lazy save had not "
	      "copied the slice; call it again\nmove 0\n2 run: step 1 committed, rank 0\n0\n0\n"
	      "add -1\n"
	      "-1: slices must be added before the first save; make another state with "
	      "sheaf_state_new\n");
}

/* ---- room in the manifest ---- */

static uint8_t state_of_rng[8];

/* The second of two saves, which has a parent: what was kept free for its manifest, all numbers at
 * their longest, and how much of that it did not need. */
static int fill_room(struct hand *h)
{
	static const struct sheaf_ema emas[] = {
		{ .size = sizeof(emas[0]), .coef = 0.5 },
		{ .size = sizeof(emas[0]), .name = "slow", .coef = 0.999, .interval = 7 },
	};
	int v = h->play->variant;

	for (int i = 0; i < v && i < 2; i++)
		(void)shf_state_ema(h->state, "model", &emas[i], NULL);
	if (v > 2)
		(void)shf_state_stream(h->state, "rng", "drop", 0, 1, state_of_rng, 8, NULL);
	for (int64_t step = 1; step < 3; step++) {
		struct sheaf_save *save = begun(h, step, 0);
		size_t kept = save->plan->manifest_bytes, given, n = 0;

		coded(h, "attach", v > 3 ? shf_save_attach(save, "a.json", "{}", 2, NULL) : 0);
		coded(h, "note", v > 4 ? shf_save_note(save, "mesh", "dp=2", NULL) : 0);
		coded(h, "note", v > 5 ? shf_save_note(save, "config.digest", "a\nb\x01", NULL)
		      : 0);
		coded(h, "note", v > 6 ? shf_save_note(save, "k", "", NULL) : 0);
		given = save->given.given_bytes;
		committed(h, save, -1);
		free(simdisk_get(h->play->disk, step == 1 ? "run/checkpoint-1/sheaf.json"
		                 : "run/checkpoint-2/sheaf.json", &n));
		tell("given %d, free %d\n", (int)given, (int)(kept + given - n));
		shf_save_free(save);
	}
	return 0;
}

TEST(what_a_manifest_may_need_is_kept_free_and_counted)
{
	static const char *const want[] = {
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 0, free 152\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 0, free 98\n",
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 0, free 476\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 0, free 422\n",
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 0, free 796\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 0, free 742\n",
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 0, free 821\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 0, free 767\n",
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 83, free 843\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 83, free 789\n",
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 123, free 848\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 123, free 794\n",
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 184, free 868\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 184, free 814\n",
		"0\nattach 0\nnote 0\nnote 0\nnote 0\n2 run: step 1 committed, rank 0\n0\n"
		"given 211, free 884\n0\nattach 0\nnote 0\nnote 0\nnote 0\n"
		"2 run: step 2 committed, rank 0\n0\ngiven 211, free 830\n"
	};

	for (int i = 0; i < 8; i++) {
		struct play p = hands_play(disk_new(), 1, two);

		p.variant = i;
		story(&p, fill_room, want[i]);
	}
}
