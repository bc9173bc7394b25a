/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that store master weights without the weights, 12 of 14 bytes a parameter: a load derives
 * the weights with the bits that they had. The test looks for the nearest of all 16-bit numbers. */
#include "hands.h"
#include <math.h>
#include "step_lookup.h"
#include "step_open.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"

/* What a rank has, by variant; above: in which layout. */
enum { WEIGHTS = 1, MASTERS = 2, MOMENTS = 4, NORM = 8, HEAD = 16, LONE_HEAD = 32, OTHER = 64,
	WITHOUT = MASTERS | MOMENTS | HEAD, WITH = WITHOUT | WEIGHTS, LONE_MASTER = 128,
	LAYOUT = 256 };
enum { WHOLE, BY_ROWS, BY_COLUMNS, FLAT, LAYOUTS };
enum { EMB, UP, Q, NORMS, TENSORS };
enum { ITEMS_MAX = 520 * 700 };                 /* so that a master has more than one block */
static const struct {
	const char *name;
	int dtype, rows, columns;
} tensors[TENSORS] = { { "emb", SHEAF_BF16, 520, 700 }, { "up", SHEAF_F16, 67, 129 },
	{ "q", SHEAF_BF16, 11, 13 }, { "norm", SHEAF_F32, 1, 50 } };
static uint32_t masters[TENSORS][ITEMS_MAX];    /* bits; made before the ranks begin */
static uint16_t weights[TENSORS][ITEMS_MAX];

/* ---- numbers ---- */

/* Of 16 bits without a sign, so many of them fraction; infinity as the number it would be. */
static double value16(uint32_t p, int fraction)
{
	int bias = (1 << (14 - fraction)) - 1, exponent = (int)(p >> fraction);
	int m = (int)(p & ((1U << fraction) - 1));

	return exponent ? ldexp(m + (1 << fraction), exponent - bias - fraction)
	                : ldexp(m, 1 - bias - fraction);
}

static uint16_t nearest(uint32_t bits, int fraction)
{
	uint32_t sign = bits >> 31 << 15, top = ((1U << (15 - fraction)) - 1) << fraction, lo = 0;
	uint32_t m = bits & 0x7fffff;
	double a, below, above;
	float f;

	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(sign | top | 1U << (fraction - 1) | m >> (23 - fraction));
	memcpy(&f, &bits, sizeof(f));
	a = fabs((double)f);
	for (uint32_t hi = top + 1; hi - lo > 1;) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (value16(mid, fraction) <= a)
			lo = mid;
		else
			hi = mid;
	}
	if (lo == top)
		return (uint16_t)(sign | top);
	below = a - value16(lo, fraction);
	above = value16(lo + 1, fraction) - a;
	return (uint16_t)(sign | (lo + (above < below || (above == below && lo % 2))));
}

static uint32_t mixed(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352du;
	x = (x ^ x >> 15) * 0x846ca68bu;
	return x ^ x >> 16;
}

/* NaN with and without their quiet bit, zeros, denormals of each type, ties in each, the last
 * numbers before infinity; then any bits, and numbers half-way between two of 16 bits. */
static uint32_t master_of(int tensor, int fraction, uint32_t i)
{
	static const uint32_t odd[] = {
		0x7fc00000, 0xffc12345, 0x7f800001, 0xffbfffff, 0, 0x80000000, 1, 0x80000001,
		0x007fffff, 0x00008000, 0x00018000, 0x80008001, 0x7f7fffff, 0xff7f8000,
		0x7f7f7fff, 0x7f800000, 0xff800000, 0x477fefff, 0x477ff000, 0xc77ff000,
		0x33000000, 0x33000001, 0xb3c00000, 0x38800000, 0x387fe000, 0x3f808000,
		0x3f818000, 0x3f808001, 0x3f807fff, 0x3f801000, 0x3f803000
	};
	uint32_t x = mixed(i * TENSORS + (uint32_t)tensor), bits;
	double half;
	float f;

	if (i < sizeof(odd) / sizeof(odd[0]))
		return odd[i];
	if (i % 2 || fraction == 0)
		return x;
	x &= 0x7fff;
	if (x >> fraction == (1U << (15 - fraction)) - 1)
		x = i % 64;
	half = (value16(x, fraction) + value16(x + 1, fraction)) / 2;
	f = (float)half;
	memcpy(&bits, &f, sizeof(bits));
	return bits | (i / 2 % 2) << 31;
}

static void make_numbers(void)
{
	for (int t = 0; t < TENSORS && !masters[0][0]; t++) {
		int fraction = tensors[t].dtype == SHEAF_BF16 ? 7 : tensors[t].dtype == SHEAF_F16
		                                              ? 10 : 0;

		for (int i = tensors[t].rows * tensors[t].columns; i-- > 0;) {
			masters[t][i] = master_of(t, fraction, (uint32_t)i);
			if (fraction)
				weights[t][i] = nearest(masters[t][i], fraction);
		}
	}
}

/* ---- what ranks have ---- */

static struct sheaf_slice *add(struct hand *h, const char *family, const char *name, int t,
                               int dtype, int layout)
{
	struct sheaf_slice *s = hand_add(h, family, name, dtype, 2, tensors[t].rows,
	                                 tensors[t].columns);
	int64_t items = s->count[0] * s->count[1], per = (items + h->ranks - 1) / h->ranks;

	hand_want(h, HAND_ANY);
	if (layout == BY_ROWS || layout == BY_COLUMNS)
		hand_cut(s, layout == BY_COLUMNS, h->rank, h->ranks);
	if (layout == FLAT) {
		s->flags |= SHEAF_SLICE_FLAT;
		s->flat_start = per * h->rank < items ? per * h->rank : items;
		s->flat_count = items - s->flat_start < per ? items - s->flat_start : per;
	}
	return s;
}

/* Each family in a layout of its own. */
static void hold(struct hand *h)
{
	int v = h->play->variant, layout = v / LAYOUT;

	for (int t = 0; t < NORMS; t++) {
		if (v & WEIGHTS)
			add(h, "model", tensors[t].name, t, tensors[t].dtype, layout);
		if (v & MASTERS)
			add(h, "master_weights", tensors[t].name, t, SHEAF_F32,
			    (layout + 1) % LAYOUTS);
		for (int m = 0; v & MOMENTS && m < 2; m++)
			add(h, "optimizer", hand_text(h, tensors[t].name, m ? "/moment2_0"
			    : "/moment1_0"), t, SHEAF_F32, (layout + 1) % LAYOUTS);
	}
	if (v & NORM)
		add(h, "model", "norm", NORMS, SHEAF_F32, layout);
	for (int m = 0; v & HEAD && m < 2; m++)
		if (v & (m ? MASTERS : WEIGHTS) && !(m && v & LONE_HEAD))
			add(h, m ? "master_weights" : "model", "head", EMB,
			    m ? SHEAF_F32 : SHEAF_BF16, layout)->tied_to = "emb";
	if (v & LONE_MASTER)
		add(h, "master_weights", "head", EMB, SHEAF_F32, layout);
	if (v & LONE_HEAD && !(v & HEAD))
		add(h, "model", "head", EMB, SHEAF_BF16, layout);
}

static int tensor_of(const struct sheaf_slice *s)
{
	for (int t = 0; t < TENSORS; t++)
		if (strncmp(s->name, tensors[t].name, strlen(tensors[t].name)) == 0)
			return t;
	return EMB; /* the head */
}

static uint32_t bits_of(const struct hand *h, const struct sheaf_slice *s, int64_t item)
{
	int t = tensor_of(s);

	if (strcmp(s->family, "optimizer") == 0)
		return mixed((uint32_t)item + (uint32_t)strlen(s->name));
	if (s->dtype == SHEAF_F32)
		return masters[t][item];
	return weights[t][item] ^ (h->play->variant & OTHER ? 1 : 0);
}

/* Every item that is here is painted, or compared: how many differ. */
static int64_t each(struct hand *h, bool paint)
{
	int64_t wrong = 0;

	for (int k = 0; k < h->n; k++) {
		const struct sheaf_slice *s = &h->s[k];
		bool flat = s->flags & SHEAF_SLICE_FLAT;
		int64_t n = flat ? s->flat_count : s->count[0] * s->count[1];
		size_t unit = s->dtype == SHEAF_F32 ? 4 : 2;

		for (int64_t i = 0; i < n; i++) {
			int64_t item = flat ? s->flat_start + i : (s->start[0] + i / s->count[1]) *
				       s->shape[1] + s->start[1] + i % s->count[1];
			uint32_t v = bits_of(h, s, item), got = 0;
			uint8_t *at = (uint8_t *)s->data + (size_t)i * unit;

			if (paint)
				memcpy(at, &v, unit);
			memcpy(&got, at, unit);
			if (got != v && wrong++ == 0)
				snprintf(h->err.msg, sizeof(h->err.msg), "%s/%s item %lld: %x, "
				         "want %x", s->family, s->name, (long long)item, got, v);
		}
	}
	return wrong;
}

static int save_act(struct hand *h)
{
	struct sheaf_save_opts o = { .size = sizeof(o),
		.flags = h->play->opts.agent ? SHEAF_SAVE_NO_DISK : 0 };
	struct sheaf_save *save = NULL;
	int rc;

	(void)each(h, true);
	rc = shf_save_begin(&save, h->run, h->play->step, h->state, &o, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int load_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, h->play->step, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, h->play->flags, &h->report, &h->err);
	if (rc == 0 && each(h, false))
		rc = SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

static struct play play(struct simdisk *disk, int ranks, int variant)
{
	static const int32_t apart[4] = { 1, 2, 2, 1 };
	struct play p = hands_play(disk, ranks, hold);

	make_numbers();
	p.variant = variant;
	p.nodes = ranks > 2 ? apart : NULL;
	p.flags = SHEAF_LOAD_DERIVE | SHEAF_LOAD_STRICT;
	return p;
}

static struct simdisk *saved(int ranks, int variant)
{
	struct simdisk *disk = disk_new();
	struct play p = play(disk, ranks, variant);

	CHECK_RC(hands_run(&p, save_act, true), 0, &p.err);
	return disk;
}

#define COMES_BACK(p) CHECK_RC(hands_run(&(p), load_act, false), 0, &(p).err)

/* ---- */

TEST(weights_are_rounded_from_their_masters_in_any_layout)
{
	static const int ranks[] = { 1, 2, 4 };
	const int each = T_STRIDE < 5 ? T_STRIDE : 5;

	for (int k = t_from(each); k < 3 * LAYOUTS; k += each) {
		struct simdisk *disk = saved(ranks[k / LAYOUTS], WITHOUT | NORM | k % LAYOUTS *
		                             LAYOUT);

		for (int n = 0; n < 3; n++) {
			struct play p = play(disk, ranks[n], WITH | NORM | (k + n) % LAYOUTS *
			                     LAYOUT);

			COMES_BACK(p);
			CHECK_INT(p.report.derived, 3 + 1); /* the head, too */
			CHECK(strstr(p.told, "D model/up: rounded from its master") != NULL);
			CHECK_INT(p.report.missing + p.report.unexpected + p.report.converted, 0);
			CHECK_INT(p.report.unverified, 0);
			p.variant &= ~(MASTERS | MOMENTS);
			COMES_BACK(p);
			CHECK_INT(p.report.derived, 3 + 1);
			CHECK_INT(p.report.loaded, 1); /* norm */
		}
		simdisk_free(disk);
	}
}

static uint64_t stored(int variant)
{
	struct simdisk *disk = saved(2, variant);
	const struct shf_sys *sys = simdisk_process(disk, 1, 0);
	struct shf_opts o = { .flags = SHEAF_RUN_READONLY };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	uint64_t bytes = 0;

	CHECK_RC(shf_step_open_path(&step, "run/checkpoint-7", NULL, &o, sys, &err), 0, &err);
	CHECK_RC(shf_step_wake(step, &err), 0, &err);
	for (size_t i = 0; i < step->layout.tensors_n; i++)
		bytes += step->layout.tensors[i].bytes;
	shf_step_put(step);
	simdisk_free(disk);
	return bytes;
}

TEST(without_the_weights_a_step_has_12_of_14_bytes)
{
	uint64_t items = 0;

	for (int t = 0; t < NORMS; t++)
		items += (uint64_t)(tensors[t].rows * tensors[t].columns);
	CHECK_INT(stored(WITH), 14 * items);
	CHECK_INT(stored(WITHOUT), 12 * items);
}

static void from_memory(int from, int to, const int32_t *nodes)
{
	struct simdisk *disk = disk_new();
	struct play p = play(disk, from, WITHOUT | NORM | BY_ROWS * LAYOUT);

	p.nodes = nodes;
	p.opts.agent = "auto";
	simdisk_set_agents(disk, UINT64_C(1) << 30);
	CHECK_RC(hands_run(&p, save_act, true), 0, &p.err);
	CHECK(!simdisk_exists(disk, "run/checkpoint-7"));
	p = play(disk, to, WITH | NORM | (from == to ? BY_ROWS : BY_COLUMNS) * LAYOUT);
	p.nodes = nodes;
	p.opts.agent = "auto";
	p.step = SHEAF_LATEST;
	COMES_BACK(p);
	CHECK_INT(p.report.derived, 3 + 1);
	CHECK_INT(p.report.disk_bytes, 0);
	CHECK(p.report.memory_bytes > 12 * ITEMS_MAX);
	simdisk_free(disk);
}

TEST(steps_in_memory_are_derived_from_as_those_on_disk)
{
	static const int32_t together[4] = { 1, 1, 1, 1 }, apart[4] = { 1, 2, 2, 1 };

	for (int from = 1; from <= 4; from *= T_FEWER > 1 ? 4 : 2)
		for (int to = 1; to <= 4; to *= 2) {
			from_memory(from, to, together);
			if (from > 1 && to > 1)
				from_memory(from, to, apart);
		}
}

TEST(weights_that_are_stored_are_loaded_and_not_derived)
{
	struct simdisk *disk = saved(2, WITH | OTHER);
	struct play p = play(disk, 3, WITH | OTHER | BY_ROWS * LAYOUT);

	COMES_BACK(p);
	CHECK_INT(p.report.derived, 0);
	CHECK_INT(hands_told(&p, 'D'), 0);
	simdisk_free(disk);
}

TEST(weights_are_derived_only_when_asked_and_from_a_master_that_is_there)
{
	struct simdisk *disk = saved(2, WITHOUT);
	struct play p = play(disk, 2, WITH);

	p.flags = SHEAF_LOAD_CONVERT;
	REFUSED(p, SHEAF_ELAYOUT, "no tensor model/");
	p.flags = SHEAF_LOAD_LENIENT;
	CHECK_RC(hands_load(&p), 0, &p.err);
	CHECK_INT(p.report.missing, 4);
	CHECK_INT(p.report.derived, 0);
	p.variant |= NORM; /* which was stored nowhere */
	p.flags = SHEAF_LOAD_DERIVE;
	REFUSED(p, SHEAF_ELAYOUT, "no tensor model/norm");
	p.flags = SHEAF_LOAD_DERIVE | SHEAF_LOAD_LENIENT;
	CHECK_RC(hands_load(&p), 0, &p.err);
	CHECK_INT(p.report.missing, 1);
	CHECK(strstr(p.told, "M model/norm: not in this checkpoint") != NULL);
	CHECK_INT(p.report.derived, 4);
	simdisk_free(disk);
	disk = saved(2, MOMENTS);
	p = play(disk, 2, WEIGHTS | MOMENTS);
	REFUSED(p, SHEAF_ELAYOUT, "no tensor model/emb");
	simdisk_free(disk);
}

TEST(a_dry_load_says_what_would_be_derived)
{
	struct simdisk *disk = saved(2, WITHOUT);
	struct play p = play(disk, 3, WITH | FLAT * LAYOUT);
	int told;

	p.flags |= SHEAF_LOAD_DRY;
	CHECK_RC(hands_load(&p), 0, &p.err);
	CHECK_INT(p.report.derived, 4);
	CHECK_INT(p.report.disk_bytes, 0);
	told = hands_told(&p, 'D');
	p.flags &= ~SHEAF_LOAD_DRY;
	COMES_BACK(p);
	CHECK_INT(hands_told(&p, 'D'), told);
	simdisk_free(disk);
}

/* Tied in the step and not in the state, and the other way round. */
TEST(a_tied_weight_is_rounded_from_what_its_master_is_tied_to)
{
	struct simdisk *tied = saved(2, WITHOUT), *alone = saved(1, MASTERS);
	struct play p = play(tied, 2, WEIGHTS | LONE_HEAD | BY_COLUMNS * LAYOUT);

	COMES_BACK(p);
	CHECK_INT(p.report.derived, 4);
	p = play(alone, 2, WEIGHTS | HEAD);
	COMES_BACK(p);
	CHECK_INT(p.report.derived, 4);
	p.variant = WEIGHTS | LONE_HEAD;
	REFUSED(p, SHEAF_ELAYOUT, "no tensor model/head");
	simdisk_free(tied);
	simdisk_free(alone);
}

/* Whose weight is tied, in a step that does not say so of masters: the weight has not its bits. */
TEST(a_master_is_that_of_what_its_weight_is_tied_to)
{
	struct simdisk *disk = saved(2, WEIGHTS | MASTERS | HEAD | LONE_HEAD);
	struct play p = play(disk, 3, MASTERS | LONE_MASTER | FLAT * LAYOUT);

	COMES_BACK(p);
	CHECK_INT(p.report.derived, 1);
	simdisk_free(disk);
}

/* Not rounded, or not from what would give the bits. */
static const struct {
	int master, dtype, data_dtype, rows;
} others[] = {
	{ SHEAF_F32, SHEAF_F32, 0, 8 }, { SHEAF_F32, SHEAF_F64, 0, 8 },
	{ SHEAF_F32, SHEAF_F8_E4M3, 0, 8 }, { SHEAF_F32, SHEAF_I16, 0, 8 },
	{ SHEAF_F32, SHEAF_BF16, SHEAF_F32, 8 }, { SHEAF_F32, SHEAF_F32, SHEAF_BF16, 8 },
	{ SHEAF_F32, SHEAF_F16, SHEAF_BF16, 8 }, { SHEAF_F32, SHEAF_BF16, 0, 9 },
	{ SHEAF_F64, SHEAF_BF16, 0, 8 }, { SHEAF_BF16, SHEAF_BF16, 0, 8 },
	{ SHEAF_F16, SHEAF_BF16, 0, 8 },
};
enum { SAVING = LAYOUT };

static void other(struct hand *h)
{
	int v = h->play->variant % SAVING;

	if (h->play->variant & SAVING)
		hand_add(h, "master_weights", "w", others[v].master, 2, 8, 5);
	else
		hand_add(h, "model", "w", others[v].dtype, 2, others[v].rows, 5)->data_dtype =
		    others[v].data_dtype;
	hand_want(h, h->play->variant & SAVING ? HAND_VALUES : HAND_KEPT);
}

TEST(nothing_else_is_made_from_a_master)
{
	for (int k = 0; k < (int)(sizeof(others) / sizeof(others[0])); k++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, other);

		p.variant = SAVING | k;
		SAVED(p);
		p.variant = k;
		p.flags = SHEAF_LOAD_DERIVE | SHEAF_LOAD_CONVERT;
		REFUSED(p, SHEAF_ELAYOUT, "no tensor model/w");
		p.flags |= SHEAF_LOAD_LENIENT;
		LOADED(p);
		CHECK_INT(p.report.missing, 1);
		CHECK_INT(p.report.derived, 0);
		simdisk_free(disk);
	}
}
