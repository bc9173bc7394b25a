/* SPDX-License-Identifier: Apache-2.0 */
/* A step is exported in the formats of other software, while the process is killed, calls and
 * allocations fail, and the power is cut. What is written has the values of the step, and each
 * zip record its CRC-32; it is whole or not there, and the next export succeeds.
 *
 *   test_export_formats [--long] [--seed N] [part of a test's name ...]
 *
 * --long tries all that everycut.h says; otherwise few sets of unsynced items at a cut. */
#include "export_format.h"
#include "simover.h"

#define main t_main
#include "t.h"
#undef main
#include "foreign_plays.h"
#include "foreign_read.h"
#include "rewritten.h"

#define FROM "run/checkpoint-2"

static const struct kind {
	const char *format, *to;
	const char *file;               /* one that has tensors; in `to`, or `to` itself */
	bool is_read;                   /* lib/foreign reads it */
	int32_t dtype;                  /* that floating-point tensors are converted to; 0: none */
	bool is_plain;                  /* its files have no zip records */
	bool all;                       /* all families are exported, in folders of their own */
} kinds[] = {
	{ "torch", "out/a.pt", "", true, 0, false, false },
	{ "dcp", "out/dcp", "/__0_0.distcp", true, 0, false, false },
	{ "npz", "out/a.npz", "", false, SHEAF_F32, false, false },
	{ "megatron", "out/meg", "/iter_0000002/__0_0.distcp", true, 0, false, false },
	{ "paddle", "out/a.pdparams", "", true, 0, true, false },
	{ "paddle-uc", "out/uc", "/model-00001-of-00001.safetensors", true, 0, true, false },
	{ "paddle-fc", "out/fc", "/model_state/0_0.distcp", true, 0, true, true },
};
#define KINDS_N ((int)(sizeof(kinds) / sizeof(kinds[0])))
static const struct kind *kind; /* the one that is exported */

static struct shf_export_opts how = { .family = "model", .as = "model", .prefix = "",
	.file_bytes_max = 5000, .memory_bytes = 1, .adam_step = 3, .beta1 = 0.9, .beta2 = 0.95 };
static const char *to;

static int export(struct sheaf_checkpoint *step, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	return shf_step_export(step, to, &how, report, err);
}

static struct written export_by(struct simdisk *disk, const struct shf_sys *sys)
{
	how.format = shf_export_format(kind->format);
	CHECK(how.format != NULL);
	how.dtype = kind->dtype;
	how.family = how.as = kind->all ? NULL : "model";
	to = kind->to;
	return write_by(disk, sys, FROM, export);
}

static struct written exported(struct simdisk *disk)
{
	return export_by(disk, process(disk));
}

/* Exports as a Hugging Face directory. The hash of its file of tensors says which tensors and
 * values there are. */
static uint64_t values_of(struct simdisk *disk, const char *from)
{
	uint64_t hash, most = how.file_bytes_max;
	struct written e;

	how.format = NULL;
	how.dtype = 0;
	how.family = how.as = "model";
	how.file_bytes_max = UINT64_C(5000000000);
	to = "out/values";
	e = write_by(disk, process(disk), from, export);
	how.file_bytes_max = most;
	CHECK_RC(e.rc, 0, &e.err);
	hash = simdisk_hash(disk, "out/values/model.safetensors");
	CHECK(hash != 0);
	CHECK_INT(simdisk_remove(disk, to), 0);
	return hash;
}

static struct simdisk *saved_on(enum simdisk_model model, int64_t rows, int bigs)
{
	struct simdisk *disk = with_one_step(model, rows, bigs, rows ? 0 : 5000);

	CHECK_INT(simdisk_put(disk, "out/other", "", 0), 0);
	simdisk_settle(disk);
	return disk;
}

static uint64_t wanted(struct simdisk *base)
{
	return hash_of(base, kind->to, exported);
}

/* ---- archives, read without the code that they are made and read with ---- */

static uint64_t number(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	while (bytes--)
		v = v << 8 | p[bytes];
	return v;
}

static uint32_t crc_of(const uint8_t *p, uint64_t n)
{
	uint32_t v = UINT32_MAX;

	for (; n; n--) {
		v ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			v = v >> 1 ^ (v & 1 ? 0xedb88320u : 0);
	}
	return ~v;
}

/* Checks one entry of a directory, and its record: entry is where it begins in the bytes. */
static void check_record(const uint8_t *bytes, uint64_t begin, uint64_t entry)
{
	const uint8_t *e = bytes + entry, *local = bytes + begin + number(e + 42, 4);
	uint64_t name = number(e + 28, 2), size = number(e + 24, 4);
	const uint8_t *data = local + 30 + name + number(local + 28, 2);

	CHECK_INT(number(e, 4), 0x02014b50);
	CHECK_INT(number(local, 4), 0x04034b50);
	/* Version, flags, method, time, CRC-32 and sizes are the same in both. */
	CHECK(memcmp(e + 6, local + 4, 24) == 0);
	CHECK(memcmp(e + 46, local + 30, name) == 0);
	CHECK_INT(crc_of(data, size), number(e + 16, 4));
	if (memmem(local + 30, name, "data/", 5))       /* of a tensor */
		CHECK_INT((data - bytes) % 64, 0);
}

/* Checks all archives that follow one another in a file. Returns how many records have bytes and
 * how many archives there are. */
static int check_archives(const uint8_t *bytes, uint64_t n, int *records)
{
	int archives = 0;

	*records = 0;
	for (uint64_t end = n; end > 0; archives++) {
		const uint8_t *last = bytes + end - 22;
		uint64_t size = number(last + 12, 4), dir = end - 22 - size;
		uint64_t begin = dir - number(last + 16, 4), left = number(last + 10, 2);

		CHECK_INT(number(last, 4), 0x06054b50);
		for (uint64_t at = dir; left--; ++*records) {
			check_record(bytes, begin, at);
			at += 46 + number(bytes + at + 28, 2) + number(bytes + at + 30, 2);
		}
		end = begin;
	}
	return archives;
}

static void check_file(struct simdisk *disk)
{
	char path[200];
	size_t n;
	char *bytes;
	int records;

	snprintf(path, sizeof(path), "%s%s", kind->to, kind->file);
	bytes = simdisk_get(disk, path, &n);
	CHECK(bytes != NULL);
	CHECK(check_archives((const uint8_t *)bytes, n, &records) > 0);
	CHECK(records > 3);
	free(bytes);
}

/* ---- what is written ---- */

static void holds_the_step(int64_t rows, int bigs)
{
	struct simdisk *disk = saved_on(SIMDISK_EXT4, rows, bigs);
	struct written e = exported(disk);
	char partial[200];

	CHECK_RC(e.rc, 0, &e.err);
	CHECK(e.report.held > e.report.bytes);
	if (kind->is_read)
		CHECK(values_of(disk, kind->to) == values_of(disk, FROM));
	if (!kind->is_plain)
		check_file(disk);
	snprintf(partial, sizeof(partial), "%s.partial", kind->to);
	CHECK(!simdisk_exists(disk, partial));
	e = exported(disk);
	CHECK_RC(e.rc, SHEAF_EEXIST, &e.err);
	simdisk_free(disk);
}

TEST(each_format_holds_the_values_of_the_step)
{
	for (kind = kinds; kind < kinds + KINDS_N; kind++)
		holds_the_step(0, 0);
}

static void hold_tied(struct hand *h)
{
	hand_add(h, "model", "m.all", SHEAF_F32, 2, 11, 7);
	hand_add(h, "model", "m.head", SHEAF_F32, 2, 11, 7)->tied_to = "m.all";
	hand_add(h, "model", "rest", SHEAF_F32, 1, 3);
}

TEST(a_tied_name_is_a_tensor_of_its_own)
{
	for (kind = kinds; kind < kinds + 4; kind++) {
		struct simdisk *disk = simdisk_new(6, SIMDISK_EXT4);
		struct play p = hands_play(disk, 1, hold_tied);
		uint8_t bytes[2][11 * 7 * 4], none[11 * 7 * 4] = { 0 };
		const struct shf_foreign_tensor *t;
		struct sheaf_error err;
		struct shf_foreign *f;
		struct written e;
		size_t n;

		p.step = 2;
		CHECK_INT(simdisk_put(disk, "out/other", "", 0), 0);
		SAVED(p);
		how.prefix = "m.";
		e = exported(disk);
		how.prefix = "";
		CHECK_RC(e.rc, 0, &e.err);
		CHECK_RC(shf_foreign_open(&f, process(disk), kind->to, &err), 0, &err);
		t = shf_foreign_tensors(f, &n);
		CHECK_INT(n, 2);
		for (size_t i = 0; i < n; i++) {
			CHECK_STR(t[i].name, i ? "head" : "all");
			CHECK_INT(t[i].bytes, sizeof(bytes[i]));
			CHECK_RC(shf_foreign_gather(f, &t[i], bytes[i], sizeof(bytes[i]), 0, &err),
			         0, &err);
		}
		CHECK(memcmp(bytes[0], bytes[1], sizeof(bytes[0])) == 0);
		CHECK(memcmp(bytes[0], none, sizeof(none)) != 0);
		shf_foreign_free(f);
		simdisk_free(disk);
	}
}

TEST(records_of_several_chunks_are_written_by_several_threads)
{
	how.file_bytes_max = UINT64_C(5000000000);
	how.memory_bytes = UINT64_C(64) << 20;
	for (kind = kinds; kind < kinds + KINDS_N; kind += T_FEWER)
		holds_the_step(40000, 2);
	how.file_bytes_max = 5000;
	how.memory_bytes = 1;
}

/* An export that was killed just before its last rename, and continues. flips: a bit that is turned
 * around meanwhile, counted from the end of the file; 0: none. */
static void taken_up(struct simdisk *base, uint64_t want, uint64_t flips)
{
	struct simdisk *disk = simdisk_twin(base);
	char path[200];
	struct written e;
	size_t n;

	snprintf(path, sizeof(path), "%s", *kind->file ? strrchr(kind->to, '/') + 1 : "archive");
	if (*kind->file)
		strcat(path, ".partial");
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = *kind->file ? 1 : 2, .name = path,
		.kind = SIMDISK_RENAME, .how = SIMDISK_KILL });         /* all files have names */
	(void)exported(disk);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	CHECK(!simdisk_exists(disk, kind->to));
	snprintf(path, sizeof(path), "%s.partial%s", kind->to, *kind->file ? kind->file
	                                                                   : "/archive");
	if (flips) {
		free(simdisk_get(disk, path, &n));
		CHECK_INT(simdisk_flip(disk, path, 8 * n - flips), 0);
	}
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, kind->to) == want);
	CHECK(flips ? e.report.held > 0 : e.report.held == 0);
	simdisk_free(disk);
}

/* Returns the bit of the file where a directory has the CRC-32 of a record of several chunks,
 * counted from the end of the file. */
static uint64_t bit_of_large_sum(struct simdisk *disk)
{
	char path[200], *bytes;
	uint64_t from_end = 0;
	size_t n;

	snprintf(path, sizeof(path), "%s%s", kind->to, kind->file);
	bytes = simdisk_get(disk, path, &n);
	CHECK(bytes != NULL);
	for (size_t i = n - 46; i && !from_end; i--)
		if (memcmp(bytes + i, "PK\1\2", 4) == 0 &&
		    number((uint8_t *)bytes + i + 24, 4) > UINT32_C(5) << 20)
			from_end = n - i - 16;
	free(bytes);
	CHECK(from_end > 0);
	return 8 * from_end;
}

TEST(a_finished_file_is_compared_and_its_sums_too)
{
	how.file_bytes_max = UINT64_C(5000000000);
	for (kind = kinds; kind < kinds + KINDS_N; kind += T_FEWER) {
		struct simdisk *base = saved_on(SIMDISK_EXT4, 40000, 2), *disk = simdisk_twin(base);
		uint64_t want = wanted(base);
		struct written e = exported(disk);

		CHECK_RC(e.rc, 0, &e.err);
		taken_up(base, want, 0);
		if (!kind->is_plain)
			taken_up(base, want, bit_of_large_sum(disk));
		taken_up(base, want, 8 * (UINT64_C(5) << 20));
		simdisk_free(disk);
		simdisk_free(base);
	}
	how.file_bytes_max = 5000;
}

TEST(an_export_whose_last_rename_may_be_undone_says_where_it_would_be)
{
	static const char *const former[KINDS_N] = { "a.pt.partial/archive", "dcp.partial",
		"a.npz.partial/archive", "meg.partial", "a.pdparams.partial/archive",
		"uc.partial", "fc.partial" };
	struct simdisk *base = saved_on(SIMDISK_EXT4, 0, 0);

	for (kind = kinds; kind < kinds + KINDS_N; kind++) {
		struct simdisk *disk = simdisk_twin(base);
		struct written e;
		char want[300];

		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_FSYNC,
		                                             .error = EIO, .name = "out" });
		e = exported(disk);
		CHECK_RC(e.rc, SHEAF_EINDOUBT, &e.err);
		snprintf(want, sizeof(want), "%s: is complete, but the directory that it lies in "
		         "could not be synced, so a power cut may rename it to %s", kind->to,
		         former[kind - kinds]);
		CHECK_STR(e.err.msg, want);
		simdisk_free(disk);
	}
	simdisk_free(base);
}

/* ---- each call, each allocation, each cut ---- */

static void check_whole(struct simdisk *disk, const void *want)
{
	char mark[200];

	/* A mark that could not be deleted does no harm. */
	snprintf(mark, sizeof(mark), "%s/.sheaf-export", kind->to);
	(void)simdisk_remove(disk, mark);
	CHECK(simdisk_hash(disk, kind->to) == *(const uint64_t *)want);
}

TEST(each_call_of_an_export_may_fail)
{
	struct simdisk *base = saved_on(SIMDISK_EXT4, 0, 0);

	for (kind = kinds; kind < kinds + KINDS_N; kind++) {
		const uint64_t want = wanted(base);
		const struct rewriting r = { export_by, kind->to, check_whole, 15, &want };

		each_call_may_fail(base, &r);
	}
	simdisk_free(base);
}

TEST(each_allocation_of_an_export_may_fail)
{
	struct simdisk *base = saved_on(SIMDISK_EXT4, 0, 0);

	for (kind = kinds; kind < kinds + KINDS_N; kind++) {
		const uint64_t want = wanted(base);
		const struct rewriting r = { export_by, kind->to, check_whole, 10, &want };

		each_allocation_may_fail(base, &r);
	}
	simdisk_free(base);
}

static const char *judge(const void *story, struct simdisk *disk, int64_t cut, char why[300])
{
	return judge_hash(story, disk, cut, why, kind->to, exported);
}

static void cuts(enum simdisk_model model)
{
	for (kind = kinds; kind < kinds + KINDS_N; kind++) {
		struct simdisk *disk = saved_on(model, 0, 0);
		struct story story = { .was = wanted(disk) };
		struct written e = exported(disk);

		CHECK_RC(e.rc, 0, &e.err);
		hunt_cuts(disk, &story, 1, judge);
		simdisk_free(disk);
	}
}

TEST(an_export_survives_every_cut_strict)
{
	cuts(SIMDISK_STRICT);
}

TEST(an_export_survives_every_cut_ext4)
{
	cuts(SIMDISK_EXT4);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
