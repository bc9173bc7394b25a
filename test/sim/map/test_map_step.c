/* SPDX-License-Identifier: Apache-2.0 */
/* A step shown through a map: read in ranges, exported and imported, while each call and each
 * allocation fails, the step is damaged, or the source changes.
 *
 *   test_map_step [--long] [--seed N] [part of a test's name ...] */
#include "dtype.h"
#include "export_step.h"
#include "hands.h"
#include "import_step.h"
#include "map_step.h"
#include "read_slice.h"
#include "simover.h"

#define main t_main
#include "t.h"
#undef main
#include "rewritten.h"

#define MARK ".sheaf-export"
#define FROM "run/checkpoint-7"

/* ---- the step ---- */

enum { G = 2, Q = 3, D = 4, COLS = 31, ROWS = 701, WIDE = 450, LAYERS = 2 };

static void hold(struct hand *h)
{
	static const char *const families[] = { "model", "optimizer" };

	for (int f = 0; f < 2; f++)
		for (int l = 0; l < LAYERS; l++) {
			const char *tail = f ? "/moment1_0" : "";
			char name[40];

			for (int k = 0; k < 3; k++) {
				snprintf(name, sizeof(name), "layers.%d.%c%s", l, "qkv"[k], tail);
				hand_add(h, families[f], hand_text(h, name, ""),
				         f ? SHEAF_F32 : SHEAF_BF16, 2, G * (k ? 1 : Q) * D, COLS);
			}
			snprintf(name, sizeof(name), "layers.%d.up%s", l, tail);
			hand_add(h, families[f], hand_text(h, name, ""), f ? SHEAF_F32 : SHEAF_BF16,
			         2, ROWS, WIDE);
		}
	hand_add(h, "model", "emb", SHEAF_BF16, 2, 13, COLS);
}

static const char text[] = "sheaf-map 1 a b\nlet g = 2\nlet q = 3\nlet k = 1\nlet v = 1\n"
	"for l = config.layers\n"
	"layers.{l}.q [(g q d) h], layers.{l}.k [(g k d) h], layers.{l}.v [(g v d) h]\n"
	"  = qkv [l (g (q + k + v) d) h]\n"
	"layers.{l}.up [o i] = up.{l} [i o]\n"
	"emb [n h] = embedding [(n + zero(3)) h] : F32\n";

static struct simdisk *saved(void)
{
	struct simdisk *disk = simdisk_new(5, SIMDISK_EXT4);
	struct play p = hands_play(disk, 1, hold);

	SAVED(p);
	CHECK_INT(simdisk_put(disk, "x.map", text, sizeof(text) - 1), 0);
	CHECK_INT(simdisk_put(disk, "config.json", "{\"layers\": 2}", 13), 0);
	CHECK_INT(simdisk_put(disk, "out/other", "", 0), 0);
	simdisk_settle(disk);
	return disk;
}

static struct shf_map_opts how = { .file = "x.map", .config = "config.json", .prefix = "" };

/* ---- reads ---- */

/* The value that an item of a tensor on side b has; padding: 0. Stated by rows and columns. */
static uint64_t wanted_bits(const char *family, const char *name, int dtype, int64_t item)
{
	const char *tail = strcmp(family, "model") ? "/moment1_0" : "";
	char of[40];
	int64_t at = 0;

	if (strncmp(name, "qkv", 3) == 0) {
		int64_t layer = item / (G * (Q + 2) * D * COLS);
		int64_t row = item / COLS % (G * (Q + 2) * D);
		int64_t head = row / D % (Q + 2), group = row / D / (Q + 2);

		snprintf(of, sizeof(of), "layers.%d.%c%s", (int)layer,
		         head < Q ? 'q' : head == Q ? 'k' : 'v', tail);
		row = ((head < Q ? group * Q + head : group) * D + row % D);
		at = row * COLS + item % COLS;
	} else if (strncmp(name, "up.", 3) == 0) {
		snprintf(of, sizeof(of), "layers.%c.up%s", name[3], tail);
		at = item % ROWS * WIDE + item / ROWS;
	} else {
		uint32_t bits;
		float value;

		if (item >= 13 * COLS)
			return 0;
		value = shf_bf16_to_f32((uint16_t)hand_value("model", "emb", SHEAF_BF16, item));
		memcpy(&bits, &value, sizeof(bits));
		return bits;
	}
	return hand_value(family, of, dtype, at);
}

static struct sheaf_checkpoint *mapped(struct simdisk *disk, const char *from, uint64_t memory,
                                       int *rc, struct sheaf_error *err)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	struct sheaf_checkpoint *step = NULL, *m = NULL;

	how.memory_bytes = memory;
	*rc = shf_step_open_path(&step, from, NULL, &opts, process(disk), err);
	if (*rc == 0)
		*rc = shf_map_step(&m, step, &how, err);
	shf_step_put(step);
	return m;
}

static const struct wanted {
	const char *family, *name;
	int dtype, ndim;
	int64_t dims[3];
} all[] = {
	{ "model", "embedding", SHEAF_F32, 2, { 16, COLS } },
	{ "model", "qkv", SHEAF_BF16, 3, { LAYERS, G * (Q + 2) * D, COLS } },
	{ "model", "up.0", SHEAF_BF16, 2, { WIDE, ROWS } },
	{ "model", "up.1", SHEAF_BF16, 2, { WIDE, ROWS } },
	{ "optimizer", "qkv/moment1_0", SHEAF_F32, 3, { LAYERS, G * (Q + 2) * D, COLS } },
	{ "optimizer", "up.0/moment1_0", SHEAF_F32, 2, { WIDE, ROWS } },
	{ "optimizer", "up.1/moment1_0", SHEAF_F32, 2, { WIDE, ROWS } },
};

/* Reads a box of a tensor, rows [from, from + n) of its first dimension and a part of the last one,
 * and compares its items. */
static void is_read(struct sheaf_checkpoint *step, const struct wanted *w, int64_t from, int64_t n,
                    int64_t left, int64_t cols)
{
	size_t bytes = w->dtype == SHEAF_F32 ? 4 : 2;
	struct sheaf_slice s = { .size = sizeof(s), .family = w->family, .name = w->name,
		.dtype = w->dtype, .ndim = w->ndim };
	int64_t items = n * cols, middle = w->ndim == 3 ? w->dims[1] : 1;
	struct sheaf_error err;
	uint8_t *got = malloc((size_t)(items * middle) * bytes + 1);

	CHECK(got != NULL);
	memcpy(s.shape, w->dims, sizeof(w->dims));
	memcpy(s.count, w->dims, sizeof(w->dims));
	s.start[0] = from;
	s.count[0] = n;
	s.start[w->ndim - 1] = left;
	s.count[w->ndim - 1] = cols;
	s.data = got;
	CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
	for (int64_t i = 0; i < items * middle; i++) {
		int64_t at = (from * middle + i / cols) * w->dims[w->ndim - 1] + left + i % cols;
		uint64_t want = wanted_bits(w->family, w->name, w->dtype, at), have = 0;

		memcpy(&have, got + (size_t)i * bytes, bytes);
		if (have != want)
			print_error("%s item %d: %llx, want %llx\n", w->name, (int)at,
			            (unsigned long long)have, (unsigned long long)want);
		CHECK(have == want);
	}
	free(got);
}

TEST(any_part_of_a_tensor_that_a_map_makes_can_be_read)
{
	struct simdisk *disk = saved();

	for (uint64_t memory = 0; memory <= UINT64_C(32) << 20; memory += UINT64_C(32) << 20) {
		struct sheaf_error err;
		int rc;
		struct sheaf_checkpoint *step = mapped(disk, FROM, memory, &rc, &err);

		CHECK_RC(rc, 0, &err);
		CHECK_INT(step->layout.tensors_n, 7);
		for (size_t i = 0; i < 7; i++) {
			const struct wanted *w = &all[i];
			int64_t cols = w->dims[w->ndim - 1], rows = w->dims[0];

			is_read(step, w, 0, rows, 0, cols);
			is_read(step, w, rows / 2, 1, 0, cols);
			is_read(step, w, rows / 2, rows - rows / 2, 1, cols - 1);
			is_read(step, w, rows - 1, 1, cols - 1, 1);
		}
		shf_step_put(step);
	}
	simdisk_free(disk);
}

TEST(a_state_is_loaded_through_a_map)
{
	enum { FROM_ROW = 7, N_ROWS = 301 };
	static uint16_t got[N_ROWS * ROWS];
	struct sheaf_slice s = { .size = sizeof(s), .family = "model", .name = "up.1",
		.dtype = SHEAF_BF16, .ndim = 2, .shape = { WIDE, ROWS }, .data = got,
		.start = { FROM_ROW, 0 }, .count = { N_ROWS, ROWS } };
	struct sheaf_report report = { .size = sizeof(report) };
	struct simdisk *disk = saved();
	struct sheaf_state *holder = shf_state_new();
	struct sheaf_error err;
	int rc;
	struct sheaf_checkpoint *step = mapped(disk, FROM, 0, &rc, &err);

	CHECK_RC(rc, 0, &err);
	CHECK_RC(shf_state_add(holder, &s, &err), 0, &err);
	CHECK_RC(shf_step_load(step, holder, SHEAF_LOAD_LENIENT, &report, &err), 0, &err);
	CHECK_INT(report.loaded, 1);
	for (int64_t i = 0; i < N_ROWS * ROWS; i++)
		CHECK_INT(got[i], wanted_bits("model", "up.1", SHEAF_BF16, FROM_ROW * ROWS + i));
	shf_state_put(holder);
	shf_step_put(step);
	simdisk_free(disk);
}

/* ---- written anew ---- */

static int export(struct sheaf_checkpoint *step, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	static const struct shf_export_opts o = { .family = "model", .prefix = "",
		.file_bytes_max = 5000, .memory_bytes = 1 };
	struct sheaf_checkpoint *m = NULL;
	int rc;

	how.family = "model";
	how.memory_bytes = 0;
	rc = shf_map_step(&m, step, &how, err);
	how.family = NULL;
	if (rc == 0)
		rc = shf_step_export(m, "out/hf", &o, report, err);
	shf_step_put(m);
	return rc;
}

static struct written export_by(struct simdisk *disk, const struct shf_sys *sys)
{
	return write_by(disk, sys, FROM, export);
}

static struct written exported(struct simdisk *disk)
{
	return export_by(disk, process(disk));
}

static int import(struct sheaf_checkpoint *step, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	static const struct shf_import_opts o = { .number = -1, .how = { .prefix = "",
		.is_step = true, .file_bytes_max = UINT64_C(1) << 40,
		.memory_bytes = UINT64_C(64) << 20 } };
	struct sheaf_checkpoint *m = NULL;
	int rc;

	how.memory_bytes = UINT64_C(64) << 20;
	rc = shf_map_step(&m, step, &how, err);
	if (rc == 0)
		rc = shf_step_import(m, "mapped", &o, report, err);
	shf_step_put(m);
	return rc;
}

TEST(what_is_imported_through_a_map_is_a_step_and_maps_back)
{
	struct simdisk *disk = saved();
	struct written w = write_by(disk, process(disk), FROM, import);
	struct sheaf_error err;
	struct sheaf_checkpoint *step;
	int rc;

	CHECK_RC(w.rc, 0, &w.err);
	CHECK_INT(w.report.step, 7);
	CHECK_INT(w.report.loaded, 7);
	/* The map takes it back, with blocks that are compared with their checksums. */
	how.to = "a";
	CHECK_INT(simdisk_put(disk, "x.map", "", 0), 0);
	step = mapped(disk, "mapped/checkpoint-7", 0, &rc, &err);
	CHECK_RC(rc, SHEAF_EINVAL, &err);
	CHECK_INT(simdisk_put(disk, "x.map", text, sizeof(text) - 1), 0);
	step = mapped(disk, "mapped/checkpoint-7", 0, &rc, &err);
	how.to = NULL;
	CHECK_RC(rc, 0, &err);
	CHECK_INT(step->layout.tensors_n, 2 * 4 * LAYERS + 1);
	for (size_t i = 0; i < step->layout.tensors_n; i++) {
		const struct shf_lt_tensor *t = &step->layout.tensors[i];
		const char *family = step->layout.families[t->family].name;
		struct sheaf_slice s = { .size = sizeof(s), .family = family, .name = t->name,
			.dtype = t->dtype, .ndim = 2, .data = malloc(t->bytes) };
		size_t bytes = t->dtype == SHEAF_F32 ? 4 : 2;
		int saved_as = strcmp(t->name, "emb") ? t->dtype : SHEAF_BF16;

		s.shape[0] = s.count[0] = t->items.dim[0];
		s.shape[1] = s.count[1] = t->items.dim[1];
		CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
		for (int64_t k = 0; k < t->items.dim[0] * t->items.dim[1]; k++) {
			uint64_t have = 0, want = hand_value(family, t->name, saved_as, k);

			memcpy(&have, (uint8_t *)s.data + (size_t)k * bytes, bytes);
			/* The embedding stays F32, whose upper half a BF16 is. */
			CHECK(have == (saved_as == t->dtype ? want : want << 16));
		}
		free(s.data);
	}
	shf_step_put(step);
	simdisk_free(disk);
}

TEST(damage_of_the_source_is_found_through_a_map)
{
	struct simdisk *disk = saved();
	struct written w;
	size_t bytes = 0;
	char *file = simdisk_get(disk, FROM "/model-00001-of-00001.safetensors", &bytes);

	free(file);
	CHECK_INT(simdisk_flip(disk, FROM "/model-00001-of-00001.safetensors",
	                       8 * (uint64_t)(bytes - 9)), 0);
	w = exported(disk);
	CHECK_RC(w.rc, SHEAF_ECORRUPT, &w.err);
	CHECK(strstr(w.err.msg, "model-00001-of-00001.safetensors: block") != NULL);
	CHECK(!simdisk_exists(disk, "out/hf"));
	simdisk_free(disk);
}

static int export_changing(struct sheaf_checkpoint *step, struct sheaf_report *report,
                           struct sheaf_error *err)
{
	static const struct shf_export_opts o = { .family = "model", .prefix = "",
		.file_bytes_max = 5000, .memory_bytes = 1, .progress = change };
	struct sheaf_checkpoint *m = NULL;
	int rc;

	how.to = "a";
	rc = shf_map_step(&m, step, &how, err);
	how.to = NULL;
	if (rc == 0)
		rc = shf_step_export(m, "out/back", &o, report, err);
	shf_step_put(m);
	return rc;
}

TEST(a_source_that_changes_is_found_through_a_map)
{
	struct simdisk *disk = saved();
	struct written w = exported(disk);

	CHECK_RC(w.rc, 0, &w.err);
	changing = (struct changing){ .disk = disk,
		.path = "out/hf/model-00002-of-00004.safetensors" };
	w = write_by(disk, process(disk), "out/hf", export_changing);
	CHECK(changing.done);
	CHECK_RC(w.rc, SHEAF_EAGAIN, &w.err);
	CHECK(!simdisk_exists(disk, "out/back"));
	simdisk_free(disk);
}

/* ---- what fails ---- */

/* An export whose directory could not be synced leaves the mark of a partial one in it. */
static void is_whole(struct simdisk *disk, const void *arg)
{
	(void)simdisk_remove(disk, "out/hf/" MARK);
	CHECK(simdisk_hash(disk, "out/hf") == *(const uint64_t *)arg);
}

TEST(each_call_and_each_allocation_of_a_mapped_export_may_fail)
{
	struct simdisk *base = saved(), *disk = simdisk_twin(base);
	struct written w = exported(disk);
	uint64_t hash = simdisk_hash(disk, "out/hf");
	struct rewriting r = { export_by, "out/hf", is_whole, 3, &hash };

	CHECK_RC(w.rc, 0, &w.err);
	simdisk_free(disk);
	each_call_may_fail(base, &r);
	each_allocation_may_fail(base, &r);
	simdisk_free(base);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
