/* SPDX-License-Identifier: Apache-2.0 */
/* What a load tolerates and reports: missing, unexpected, ignored, derived and zeroed tensors,
 * other shapes and types. Everything else is refused before memory is touched. */
#include "hands.h"
#include <stdlib.h>
#include "t.h"

/* What a rank has, by variant: bits. */
enum { MASTER = 1, MOMENTS = 2, EXTRA = 4, RENAMED = 8, HEAD = 16, WIDER = 32, AS_F32 = 64,
	KINDS = 128, NO_SECOND = 256 };
static const char *const layers[4] = { "layers.0", "layers.1", "layers.2", "layers.3" };
static const char *const parts[12] = { "q", "k", "v", "o", "up", "gate", "down", "norm1", "norm2",
	"q_bias", "k_bias", "v_bias" };

static void model(struct hand *h)
{
	int v = h->play->variant;

	for (int l = 0; l < 4; l++)
		for (int k = 0; k < 12; k++) {
			const char *base = l == 3 && v & RENAMED ? "blocks.3" : layers[l];
			char name[40];
			struct sheaf_slice *s;

			snprintf(name, sizeof(name), "%s.%s", base, parts[k]);
			s = hand_add(h, "model", hand_text(h, name, ""),
				     v & AS_F32 ? SHEAF_F32 : SHEAF_BF16, 2,
				     l == 1 && k == 2 && v & WIDER ? 8 : 7, 5);
			hand_cut(s, 0, h->rank, h->ranks);
			if (l < 3)
				continue;
			if (v & MASTER) {
				s = hand_add(h, "master_weights", hand_text(h, name, ""), SHEAF_F32,
					     2, 7, 5);
				hand_cut(s, 1, h->rank, h->ranks);
			}
			for (int m = 0; v & MOMENTS && m < (v & NO_SECOND && k == 5 ? 1 : 2); m++) {
				s = hand_add(h, "optimizer",
					     hand_text(h, name, m ? "/moment2_0" : "/moment1_0"),
					     SHEAF_F32, 2, 7, 5);
				hand_cut(s, 0, h->rank, h->ranks);
			}
		}
	if (v & EXTRA)
		hand_add(h, "model", "extra", SHEAF_BF16, 1, 3);
	if (v & HEAD)
		hand_add(h, "model", "lm_head", SHEAF_BF16, 2, 7, 5);
	if (v & KINDS)
		hand_add(h, "optimizer", "layers.3.q/velocity_0", SHEAF_F32, 2, 7, 5);
}

static struct simdisk *saved(int variant, int ranks)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, ranks, model);

	p.variant = variant;
	SAVED(p);
	return disk;
}

static struct play loading(struct simdisk *disk, int variant, uint64_t flags)
{
	struct play p = hands_play(disk, 3, model);

	p.variant = variant;
	p.flags = flags;
	return p;
}

/* ---- row 21 ---- */

TEST(a_renamed_layer_lists_its_tensors)
{
	struct simdisk *disk = saved(RENAMED, 2);
	struct play p = loading(disk, 0, 0);

	CHECK_RC(hands_load(&p), SHEAF_ELAYOUT, &p.err);
	CHECK_INT(p.wrong, 0);
	for (int k = 0; k < 12; k++) {
		char name[40];

		snprintf(name, sizeof(name), "layers.3.%s", parts[k]);
		if (!strstr(p.err.msg, name))
			print_error("%s is not in: %s\n", name, p.err.msg);
		CHECK(strstr(p.err.msg, name) != NULL);
	}
	simdisk_free(disk);
}

static void optional_head(struct hand *h)
{
	model(h);
	hand_add(h, "model", "lm_head", SHEAF_BF16, 2, 7, 5)->flags = SHEAF_SLICE_OPTIONAL;
	hand_want(h, HAND_KEPT);
}

TEST(an_absent_optional_tensor_is_kept_and_reported)
{
	struct simdisk *disk = saved(0, 2);
	struct play p = loading(disk, 0, 0);

	p.hold = optional_head;
	LOADED(p);
	CHECK_INT(p.report.missing, 1);
	CHECK(strstr(p.told, "M model/lm_head") != NULL);
	p.variant = RENAMED; /* another one is not forgiven */
	REFUSED(p, SHEAF_ELAYOUT, "blocks.3.q");
	simdisk_free(disk);
}

static void some_kept(struct hand *h)
{
	model(h);
	for (int k = 0; k < h->n; k++)
		if (strcmp(h->s[k].family, "optimizer") == 0)
			h->want[k] = HAND_KEPT;
}

TEST(ignored_patterns_are_neither_saved_nor_loaded_but_reported)
{
	static const char *const moments[] = { "optimizer/*", NULL };
	struct simdisk *disk = saved(MOMENTS, 2), *less = disk_new();
	struct play p = loading(disk, MOMENTS, SHEAF_LOAD_STRICT);

	p.opts.ignore = moments;
	p.hold = some_kept;
	LOADED(p);
	CHECK_INT(p.report.ignored, 24);
	CHECK(strstr(p.told, "I optimizer/layers.3.q/moment1_0") != NULL);
	p.variant = 0; /* nor are they unexpected */
	LOADED(p);
	p = hands_play(less, 2, model);
	p.variant = MOMENTS;
	p.opts.ignore = moments;
	SAVED(p);
	CHECK(!simdisk_exists(less, "run/checkpoint-7/optimizer"));
	p = loading(less, MOMENTS, 0);
	REFUSED(p, SHEAF_ELAYOUT, "moment1_0");
	simdisk_free(disk);
	simdisk_free(less);
}

/* ---- row 19 ---- */

static void derived(struct hand *h)
{
	model(h);
	for (int k = 0; k < h->n; k++)
		if (strcmp(h->s[k].family, "master_weights") == 0)
			h->family[k] = "model";
}

TEST(master_weights_are_derived_from_the_model_when_asked)
{
	struct simdisk *disk = saved(0, 2);
	struct play p = loading(disk, MASTER, 0);

	REFUSED(p, SHEAF_ELAYOUT, "master_weights/layers.3.q");
	p.flags = SHEAF_LOAD_DERIVE | SHEAF_LOAD_STRICT;
	p.hold = derived;
	LOADED(p);
	CHECK_INT(p.report.derived, 12);
	CHECK_INT(hands_told(&p, 'D') >= 12, 1);
	CHECK_INT(p.report.missing, 0);
	p.variant = MASTER | MOMENTS; /* moments are not derived from anything */
	REFUSED(p, SHEAF_ELAYOUT, "moment1_0");
	simdisk_free(disk);
}

TEST(stored_master_weights_are_loaded_and_not_derived)
{
	struct simdisk *disk = saved(MASTER, 2);
	struct play p = loading(disk, MASTER, SHEAF_LOAD_DERIVE);

	LOADED(p);
	CHECK_INT(p.report.derived, 0);
	simdisk_free(disk);
}

/* ---- row 27 ---- */

static void zeroed(struct hand *h)
{
	model(h);
	for (int k = 0; k < h->n; k++)
		if (strcmp(h->s[k].family, "optimizer") == 0)
			h->want[k] = HAND_ZEROS;
}

static void second_zeroed(struct hand *h)
{
	model(h);
	for (int k = 0; k < h->n; k++)
		if (strcmp(h->s[k].name, "layers.3.gate/moment2_0") == 0)
			h->want[k] = HAND_ZEROS;
}

TEST(moments_are_zeroed_only_when_asked_and_reported)
{
	struct simdisk *none = saved(0, 2), *one = saved(MOMENTS | NO_SECOND, 2);
	struct play p = loading(none, MOMENTS, SHEAF_LOAD_ZERO);

	p.hold = zeroed;
	LOADED(p);
	CHECK_INT(p.report.zeroed, 24);
	CHECK(strstr(p.told, "Z optimizer/layers.3.v_bias/moment2_0") != NULL);
	p = loading(one, MOMENTS, 0);
	REFUSED(p, SHEAF_ELAYOUT, "layers.3.gate/moment2_0");
	p.flags = SHEAF_LOAD_ZERO;
	p.hold = second_zeroed;
	LOADED(p);
	CHECK_INT(p.report.zeroed, 1);
	simdisk_free(none);
	simdisk_free(one);
}

/* Items that do not lie side by side: of a matrix that is turned, and with others between them. */
static void zeroed_apart(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "w", SHEAF_BF16, 2, 6, 5);

	if (h->play->variant == 0)
		return;
	s = hand_add(h, "optimizer", "w/turned", SHEAF_F32, 2, 6, 5);
	s->stride[0] = 1;
	s->stride[1] = 6;
	hand_want(h, HAND_ZEROS);
	s = hand_add(h, "optimizer", "w/apart", SHEAF_F32, 2, 6, 5);
	hand_cut(s, 0, h->rank, h->ranks);
	s->stride[0] = 15;
	s->stride[1] = 3;
	hand_want(h, HAND_ZEROS);
}

TEST(moments_whose_items_lie_apart_are_zeroed)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, zeroed_apart);

	SAVED(p);
	p.variant = 1;
	p.ranks = 3;
	p.flags = SHEAF_LOAD_ZERO;
	LOADED(p);
	CHECK_INT(p.report.zeroed, 2);
	simdisk_free(disk);
}

/* Odd states against odd steps: what comes of it, and the sentence. */
static const struct {
	int saved, loaded;
	uint64_t flags;
	int rc;
	const char *sentence;
	uint64_t missing, unexpected;
} situations[] = {
	{ 0, 0, SHEAF_LOAD_STRICT, 0, "", 0, 0 },
	{ 0, MASTER, 0, SHEAF_ELAYOUT, "no tensor master_weights/", 0, 0 },
	{ 0, MOMENTS, SHEAF_LOAD_DERIVE, SHEAF_ELAYOUT, "no tensor optimizer/", 0, 0 },
	{ 0, MASTER, SHEAF_LOAD_ZERO, SHEAF_ELAYOUT, "no tensor master_weights/", 0, 0 },
	/* Families that are not held are not asked for. */
	{ MASTER | MOMENTS, 0, SHEAF_LOAD_STRICT, 0, "", 0, 0 },
	{ MOMENTS | KINDS, MOMENTS, 0, 0, "", 0, 1 },
	{ MOMENTS | KINDS, MOMENTS, SHEAF_LOAD_STRICT, SHEAF_ELAYOUT, "velocity_0", 0, 0 },
	{ MOMENTS, MOMENTS | KINDS, 0, SHEAF_ELAYOUT, "velocity_0", 0, 0 },
	{ MOMENTS | NO_SECOND, MOMENTS, 0, SHEAF_ELAYOUT, "gate/moment2_0", 0, 0 },
	{ MOMENTS, MOMENTS | NO_SECOND, SHEAF_LOAD_STRICT, SHEAF_ELAYOUT, "gate/moment2_0", 0, 0 },
	{ EXTRA, 0, 0, 0, "", 0, 1 },
	{ EXTRA, 0, SHEAF_LOAD_STRICT, SHEAF_ELAYOUT, "model/extra", 0, 0 },
	{ 0, EXTRA, SHEAF_LOAD_STRICT, SHEAF_ELAYOUT, "model/extra", 0, 0 },
	{ 0, WIDER, 0, SHEAF_ELAYOUT, "shape [7, 5] is stored, [8, 5] was asked for", 0, 0 },
	{ WIDER, 0, 0, SHEAF_ELAYOUT, "shape [8, 5] is stored, [7, 5] was asked for", 0, 0 },
	{ 0, AS_F32, 0, SHEAF_ELAYOUT, "BF16 is stored, F32 was asked for", 0, 0 },
	{ 0, AS_F32, SHEAF_LOAD_CONVERT, 0, "", 0, 0 },
	{ AS_F32, 0, SHEAF_LOAD_CONVERT, 0, "", 0, 0 },
};

TEST(each_odd_situation_has_its_outcome_and_its_sentence)
{
	for (size_t k = 0; k < sizeof(situations) / sizeof(situations[0]); k++) {
		struct simdisk *disk = saved(situations[k].saved, 2);
		struct play p = loading(disk, situations[k].loaded, situations[k].flags);
		int rc = hands_load(&p);

		if (rc != situations[k].rc || !strstr(p.err.msg, situations[k].sentence) || p.wrong)
			print_error("situation %zu: %d %s %s\n", k, rc, p.err.msg, p.why);
		CHECK_INT(rc, situations[k].rc);
		CHECK(strstr(p.err.msg, situations[k].sentence) != NULL);
		CHECK_INT(p.wrong, 0);
		CHECK_INT(p.report.missing, situations[k].missing);
		CHECK_INT(p.report.unexpected, situations[k].unexpected);
		simdisk_free(disk);
	}
}

/* ---- row 36 ---- */

static void lenient(struct hand *h)
{
	model(h);
	for (int k = 0; k < h->n; k++)
		if (strcmp(h->s[k].name, "layers.1.v") == 0 || strcmp(h->s[k].name, "extra") == 0)
			h->want[k] = HAND_KEPT;
}

TEST(a_lenient_load_keeps_what_is_absent_or_of_another_shape)
{
	struct simdisk *disk = saved(HEAD, 2);
	struct play p = loading(disk, WIDER | EXTRA, SHEAF_LOAD_LENIENT);

	p.hold = lenient;
	LOADED(p);
	CHECK_INT(p.report.mismatched, 1);
	CHECK_INT(p.report.missing, 1);
	CHECK_INT(p.report.unexpected, 1);
	CHECK(strstr(p.told, "X model/layers.1.v:") != NULL);
	CHECK(strstr(p.told, "M model/extra:") != NULL);
	CHECK(strstr(p.told, "U model/lm_head:") != NULL);
	CHECK_INT(hands_told(&p, 'U'), 1);
	simdisk_free(disk);
}

TEST(a_dry_load_says_the_same_and_reads_no_tensor)
{
	struct simdisk *disk = saved(EXTRA, 2);
	struct play p = loading(disk, AS_F32, SHEAF_LOAD_CONVERT | SHEAF_LOAD_DRY);
	int converted;

	CHECK_RC(hands_load(&p), 0, &p.err);
	CHECK(p.wrong > 0); /* nothing was filled */
	CHECK_INT(p.report.converted, 48);
	CHECK_INT(p.report.unexpected, 1);
	CHECK_INT(p.report.loaded, 48);
	CHECK_INT(p.report.disk_bytes, 0);
	converted = hands_told(&p, 'C');
	p.flags &= ~SHEAF_LOAD_DRY;
	LOADED(p);
	CHECK_INT(p.report.converted, 48);
	CHECK_INT(hands_told(&p, 'C'), converted);
	CHECK_INT(p.report.bytes, 48 * 70);
	simdisk_free(disk);
}

TEST(load_then_save_gives_the_same_bytes)
{
	struct simdisk *disk = saved(MASTER | MOMENTS | EXTRA, 2);
	uint64_t hash = hands_hash(disk, "run/checkpoint-7");
	struct play p = loading(disk, MASTER | MOMENTS | EXTRA, SHEAF_LOAD_STRICT);

	LOADED(p);
	CHECK_INT(p.report.loaded, 48 + 12 + 24 + 1);
	CHECK_INT(p.report.unverified, 0);
	p.step = 8;
	SAVED(p);
	CHECK(hash == hands_hash(disk, "run/checkpoint-8"));
	simdisk_free(disk);
}

TEST(flags_must_be_known_and_equal)
{
	struct simdisk *disk = saved(0, 2);
	struct play p = loading(disk, 0, SHEAF_RUN_UNVERIFIED);

	REFUSED(p, SHEAF_EINVAL, "flags");
	simdisk_free(disk);
}

/* ---- row 33 ---- */

enum { BIG_ROWS = 4096, BIG_COLUMNS = 1024 };   /* 16 MiB of F32 */
static void replicated(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "w", SHEAF_F32, 2, BIG_ROWS, BIG_COLUMNS);

	if (h->play->variant)
		hand_cut(s, 0, h->play->variant - 1, 8);
}

TEST(a_slice_of_axis_0_reads_its_share_and_two_blocks)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, replicated);

	SAVED(p);
	for (int piece = 1; piece <= 8; piece++) {
		p = hands_play(disk, 1, replicated);
		p.variant = piece;
		LOADED(p);
		CHECK(p.report.disk_bytes <= (2 << 20) + (2 << 20));
		CHECK_INT(p.report.held, 2 << 20);
		CHECK_INT(p.report.unverified, 1); /* its blocks were checked, its digest not */
		CHECK(strstr(p.told, "V model/w") != NULL);
	}
	p = hands_play(disk, 3, replicated);
	LOADED(p); /* replicated: read once, shared by three */
	CHECK(p.report.disk_bytes <= (16 << 20) + 8192);
	CHECK_INT(p.report.held, 3 * (16 << 20));
	CHECK_INT(p.report.unverified, 0);
	simdisk_free(disk);
}
