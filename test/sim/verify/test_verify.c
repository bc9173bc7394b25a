/* SPDX-License-Identifier: Apache-2.0 */
/* A whole step passes, and each damage gives exactly the finding that names it, whether one rank
 * looks or three. Damage that no checksum of bytes can see (a digest, a name, a number of the
 * manifest that was written wrong) is made by mending every sum above it. */
#include "looks.h"
#include "step.h"
#include "step_open.h"
#include "verify_step.h"

TEST(a_whole_step_passes_and_all_of_it_was_read)
{
	struct simdisk *disk = disk_new();
	struct files all = all_files(disk);
	uint64_t bytes = 0, tensors = TENSORS * TWIN;

	for (int i = 0; i < lay_tensors_n; i++) {
		uint64_t n = (uint64_t)lay_bytes(lay_tensors[i].dtype);

		for (int d = 0; d < lay_tensors[i].ndim; d++)
			n *= (uint64_t)lay_tensors[i].shape[d];
		tensors += n;
	}
	for (int i = 0; i < all.n; i++) {
		size_t n;

		free(simdisk_get(disk, path_of(all.name[i]), &n));
		bytes += strcmp(all.name[i], "sheaf.sums") ? n : 0;
	}
	for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
		struct look l = { .disk = disk, .ranks = ranks };

		CHECK_RC(verify(&l), 0, &l.err[0]);
		CHECK_INT(l.n, 0);
		CHECK_INT(l.report[0].findings, 0);
		CHECK_INT(l.report[0].loaded, lay_tensors_n + TENSORS);
		CHECK_INT(l.report[0].bytes, tensors);
		CHECK_INT(l.report[0].disk_bytes, bytes);
		CHECK_INT(l.report[0].files, all.n + 1);
		CHECK_INT(l.report[0].unverified, 0);
		CHECK(l.phase5 > 0);
		l.path = "run/checkpoint-7";
		CHECK_RC(verify(&l), 0, &l.err[0]);
	}
	simdisk_free(disk);
}

TEST(a_caller_may_want_neither_report_nor_error)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 5, 0);
	struct sheaf_checkpoint *step = NULL;

	CHECK_INT(shf_step_open_path(&step, "run/checkpoint-7", NULL, NULL, sys, NULL), 0);
	CHECK_INT(shf_step_verify(step, NULL, NULL), 0);
	shf_step_put(step);
	flip(disk, "config.json", 2, 2);
	CHECK_INT(shf_step_open_path(&step, "run/checkpoint-7", NULL, NULL, sys, NULL), 0);
	CHECK_INT(shf_step_verify(step, NULL, NULL), SHEAF_ECORRUPT);
	shf_step_put(step);
	simdisk_free(disk);
}

TEST(a_flipped_bit_names_file_block_and_tensor)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	struct table t = table_read(disk);

	for (uint64_t i = 0; i < t.s.head.tensors_n; i++) {
		struct shf_sums_tensor r = shf_sums_tensor(&t.s, i);
		uint64_t at[3] = { r.off, r.off + r.bytes / 2, r.off + r.bytes - 1 };

		for (int k = 0; k < 3 && r.bytes; k++) {
			struct want w = { "checksum", files.name[r.file], shf_sums_family(&t.s, &r),
			                  shf_sums_name(&t.s, &r), (int64_t)(at[k] >> 20) };

			flip(disk, files.name[r.file], at[k], (unsigned)(i + (uint64_t)k) % 8);
			expect(disk, NULL, &w, 1);
			flip(disk, files.name[r.file], at[k], (unsigned)(i + (uint64_t)k) % 8);
		}
	}
	free(t.bytes);
	simdisk_free(disk);
}

/* Of the block that byte lies in. */
static uint64_t block_crc(struct simdisk *disk, const char *name, uint64_t byte, uint64_t *lo)
{
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(name), &n);
	uint64_t crc, len;

	CHECK(bytes);
	*lo = byte >> 20 << 20;
	len = n - *lo < UINT64_C(1) << 20 ? n - *lo : UINT64_C(1) << 20;
	crc = shf_crc64(bytes + *lo, len);
	free(bytes);
	return crc;
}

/* As a file of a step that is being deleted may: it was there a moment ago. */
TEST(a_small_file_that_goes_before_it_is_opened_is_not_ENOENT)
{
	struct simdisk *disk = disk_new();
	int failed = 0, fired = 1;

	for (int nth = 1; fired; nth++) {
		struct look l = { .disk = disk, .ranks = 1 };
		int rc;

		simdisk_faults_clear(disk);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = ENOENT,
			.kind = SIMDISK_OPEN, .name = "config.json" });
		rc = verify(&l);
		fired = simdisk_fired(disk);
		CHECK(rc == 0 || rc == SHEAF_EIO);
		failed += rc != 0;
	}
	CHECK(failed > 0);
	simdisk_free(disk);
}

TEST(what_is_found_is_said_in_full)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	struct table t = table_read(disk);
	struct look l = { .disk = disk, .ranks = 1 }, again = l;
	struct shf_sums_tensor r = { 0 };
	uint64_t was, now, lo, first = 0;
	char want[500];

	for (uint64_t i = 0; r.bytes == 0; i++) {
		r = shf_sums_tensor(&t.s, i);
		first = i;
	}
	was = block_crc(disk, files.name[r.file], r.off, &lo);
	flip(disk, files.name[r.file], r.off, 3);
	now = block_crc(disk, files.name[r.file], r.off, &lo);
	CHECK_INT(verify(&l), SHEAF_ECORRUPT);
	snprintf(want, sizeof(want), STEP "%s: block %" PRIu64 " at byte %" PRIu64
	         " has checksum %016" PRIx64 ", want %016" PRIx64 " (%s/%s)",
	         files.name[r.file], lo >> 20, lo, now, was,
	         shf_sums_family(&t.s, &r), shf_sums_name(&t.s, &r));
	CHECK_STR(l.found[0].msg, want);
	flip(disk, files.name[r.file], r.off, 3);
	was = r.digest;
	r.digest ^= 1;
	snprintf(want, sizeof(want), "run/checkpoint-7: %s/%s has digest %016" PRIx64
	         ", want %016" PRIx64, shf_sums_family(&t.s, &r), shf_sums_name(&t.s, &r), was,
	         r.digest);
	shf_sums_put_tensor(t.bytes + t.s.head.tensors_off + first * SHF_SUMS_TENSOR, &r);
	table_write(disk, &t);
	CHECK_INT(verify(&again), SHEAF_ECORRUPT);
	CHECK_STR(again.found[0].msg, want);
	simdisk_free(disk);
}

TEST(a_flipped_bit_in_a_header_is_one_finding_and_no_tensors)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);

	for (int f = 0; f < files.n; f++) {
		struct want w = { "checksum", files.name[f], "", "", 0 };
		size_t n;
		uint8_t *bytes = simdisk_get(disk, path_of(files.name[f]), &n);
		uint64_t step = n > (1 << 20) ? 3 : 131;

		for (uint64_t at = (uint64_t)f % 3; at < 4096; at += at < 200 ? step : 1013) {
			flip(disk, files.name[f], at, (unsigned)at % 8);
			expect(disk, NULL, &w, 1);
			flip(disk, files.name[f], at, (unsigned)at % 8);
		}
		free(bytes);
	}
	simdisk_free(disk);
}

TEST(a_flipped_bit_in_any_other_file_is_one_finding)
{
	struct simdisk *disk = disk_new();
	struct files all = all_files(disk);
	struct look l = { .disk = disk, .ranks = 1 };

	for (int i = files_of(disk).n; i < all.n; i++) {
		size_t n;

		free(simdisk_get(disk, path_of(all.name[i]), &n));
		for (size_t at = 0; at < n; at += n / 5 + 1) {
			flip(disk, all.name[i], at, 4);
			expect_one(disk, "checksum", all.name[i]);
			flip(disk, all.name[i], at, 4);
		}
	}
	flip(disk, "sheaf.json", 60, 1);
	CHECK_INT(verify(&l), SHEAF_ECORRUPT);
	CHECK_INT(l.opened, 0);
	simdisk_free(disk);
}

TEST(a_file_that_is_short_long_or_gone_is_one_finding)
{
	struct simdisk *disk = disk_new();
	struct files all = all_files(disk);

	for (int i = 0; i < all.n; i++) {
		size_t n;
		uint8_t *bytes = simdisk_get(disk, path_of(all.name[i]), &n);
		uint8_t *more = calloc(n + 1, 1);

		memcpy(more, bytes, n);
		put(disk, all.name[i], bytes, n - 1);
		expect_one(disk, "truncated", all.name[i]);
		put(disk, all.name[i], bytes, 0);
		expect_one(disk, "truncated", all.name[i]);
		put(disk, all.name[i], more, n + 1);
		expect_one(disk, "extended", all.name[i]);
		CHECK_INT(simdisk_remove(disk, path_of(all.name[i])), 0);
		expect_one(disk, "missing", all.name[i]);
		put(disk, all.name[i], bytes, n);
		free(more);
		free(bytes);
	}
	simdisk_free(disk);
}

TEST(a_short_file_is_proved_as_far_as_it_goes)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	struct want want[2] = { { "truncated", files.name[1], "", "", -1 },
	                        { "checksum", files.name[1], NULL, NULL, 0 } };
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(files.name[1]), &n);

	CHECK(n > 1 << 20);
	bytes[70000] ^= 1;
	put(disk, files.name[1], bytes, n - 1);
	expect(disk, NULL, want, 2);
	bytes[70000] ^= 1;
	put(disk, files.name[1], bytes, n - 1);
	expect(disk, NULL, want, 1);
	free(bytes);
	simdisk_free(disk);
}

TEST(a_directory_or_a_link_is_no_file)
{
	struct simdisk *disk = disk_new();
	static const char name[] = "model.safetensors.index.json", moved[] = "run/elsewhere";
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(name), &n);

	CHECK_INT(simdisk_put(disk, moved, bytes, n), 0);
	CHECK_INT(simdisk_remove(disk, path_of(name)), 0);
	CHECK_INT(simdisk_symlink(disk, "../elsewhere", path_of(name)), 0);
	expect_one(disk, "missing", name);
	CHECK_INT(simdisk_remove(disk, path_of(name)), 0);
	CHECK_INT(simdisk_put(disk, STEP "model.safetensors.index.json/x", "", 0), 0);
	expect_one(disk, "missing", name);
	free(bytes);
	simdisk_free(disk);
}

TEST(a_folder_that_is_gone_is_every_file_of_it)
{
	struct simdisk *disk = disk_new();
	struct files all = all_files(disk);
	struct want want[FILES_MAX];
	int n = 0;

	for (int i = 0; i < all.n; i++)
		if (strncmp(all.name[i], "optimizer/", 10) == 0)
			want[n++] = (struct want){ "missing", all.name[i], "", "", -1 };
	CHECK(n >= 2);
	CHECK_INT(simdisk_remove(disk, STEP "optimizer"), 0);
	expect(disk, NULL, want, n);
	put(disk, "optimizer", "", 0);
	expect(disk, NULL, want, n);
	CHECK_INT(simdisk_remove(disk, STEP "optimizer"), 0);
	CHECK_INT(simdisk_symlink(disk, "ema", STEP "optimizer"), 0);
	expect(disk, NULL, want, n);
	simdisk_free(disk);
}

TEST(what_the_manifest_does_not_name_is_extra)
{
	struct simdisk *disk = disk_new();
	static const struct want want[] = {
		{ "extra", "no\033[31m\ntes", "", "", -1 },
		{ "extra", "optimizer/notes.txt", "", "", -1 },
		{ "extra", "weights", "", "", -1 },
	};

	put(disk, want[0].file, "x", 1);
	put(disk, want[1].file, "", 0);
	put(disk, "weights/inside", "", 0);
	put(disk, ".nfs0001", "", 0); /* a network file system's own */
	expect(disk, NULL, want, 3);
	simdisk_free(disk);
}

TEST(sentences_hide_control_characters_that_names_have)
{
	struct simdisk *disk = disk_new();
	struct look l = { .disk = disk, .ranks = 1 };

	put(disk, "a\033b", "x", 1);
	CHECK_INT(verify(&l), SHEAF_ECORRUPT);
	CHECK_STR(l.found[0].file, "a\033b");
	CHECK(strstr(l.found[0].msg, "a?b") && !strchr(l.found[0].msg, '\033'));
	simdisk_free(disk);
}

TEST(two_files_that_changed_places_are_both_found)
{
	struct simdisk *disk = disk_new();
	static const char *const twins[2] = { "twin_a/twin_a-00001-of-00001.safetensors",
	                                      "twin_b/twin_b-00001-of-00001.safetensors" };
	struct want want[3] = { { "checksum", twins[0], "twin_a", "w", 0 },
	                        { "checksum", twins[1], "twin_b", "w", 0 } };
	struct files files = files_of(disk);
	uint8_t *bytes[2];
	size_t n[2];

	for (int i = 0; i < 2; i++)
		bytes[i] = simdisk_get(disk, path_of(twins[i]), &n[i]);
	CHECK_INT(n[0], n[1]);
	put(disk, twins[0], bytes[1], n[1]);
	put(disk, twins[1], bytes[0], n[0]);
	expect(disk, NULL, want, 2);
	put(disk, twins[0], bytes[0], n[0]);
	put(disk, twins[1], bytes[1], n[1]);
	for (int i = 0; i < 2; i++) {
		free(bytes[i]);
		bytes[i] = simdisk_get(disk, path_of(files.name[i]), &n[i]);
	}
	CHECK(n[0] < 1 << 20 && n[1] > 1 << 20); /* so the second has no block of its own left */
	put(disk, files.name[0], bytes[1], n[1]);
	put(disk, files.name[1], bytes[0], n[0]);
	want[0] = (struct want){ "extended", files.name[0], "", "", -1 };
	want[1] = (struct want){ "truncated", files.name[1], "", "", -1 };
	want[2] = (struct want){ "checksum", files.name[0], NULL, NULL, 0 };
	expect(disk, NULL, want, 3);
	free(bytes[0]);
	free(bytes[1]);
	simdisk_free(disk);
}

static struct shf_sums_tensor record(struct simdisk *disk, uint64_t i, uint64_t *n)
{
	struct table t = table_read(disk);
	struct shf_sums_tensor r = shf_sums_tensor(&t.s, i);

	*n = t.s.head.tensors_n;
	free(t.bytes);
	return r;
}

static void record_write(struct simdisk *disk, uint64_t i, const struct shf_sums_tensor *r)
{
	struct table t = table_read(disk);

	shf_sums_put_tensor(t.bytes + t.s.head.tensors_off + i * SHF_SUMS_TENSOR, r);
	table_write(disk, &t);
}

TEST(a_digest_that_was_written_wrong_is_found_although_all_sums_are_right)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);

	for (uint64_t i = 0, n = 1; i < n; i++) {
		struct want w = { "digest", NULL, NULL, NULL, -1 };
		struct shf_sums_tensor was = record(disk, i, &n), r = was;
		struct table t;

		if (was.bytes == 0)
			continue;
		r.digest ^= UINT64_C(1) << (i % 64);
		record_write(disk, i, &r);
		t = table_read(disk);
		w.file = files.name[r.file];
		w.family = shf_sums_family(&t.s, &r);
		w.name = shf_sums_name(&t.s, &r);
		expect(disk, NULL, &w, 1);
		free(t.bytes);
		record_write(disk, i, &was);
	}
	simdisk_free(disk);
}

TEST(a_damaged_table_still_leaves_the_manifest_to_prove_the_files)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	struct want want[3] = { { "checksum", "sheaf.sums", "", "", -1 },
	                        { "checksum", files.name[0], "", "", -1 },
	                        { "truncated", files.name[1], "", "", -1 } };
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(files.name[1]), &n);

	flip(disk, "sheaf.sums", 200, 3);
	expect(disk, NULL, want, 1);
	flip(disk, files.name[0], 9, 3); /* in the header, which says nothing more then */
	expect(disk, NULL, want, 2);
	flip(disk, files.name[0], 9, 3);
	flip(disk, files.name[0], 5000, 3);
	expect(disk, NULL, want, 2);
	put(disk, files.name[1], bytes, n / 2);
	expect(disk, NULL, want, 3);
	free(bytes);
	simdisk_free(disk);
}

TEST(numbers_of_the_manifest_that_were_written_wrong_are_found)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	uint64_t crc = crc_of(disk, files.name[2]);

	crc_edit(disk, crc, crc ^ 1);
	expect_one(disk, "manifest", "sheaf.json");
	crc_edit(disk, crc ^ 1, crc);
	manifest_edit(disk, "\"dir\": \"ema\", \"files\": 1, \"tensors\": 1",
	              "\"dir\": \"ema\", \"files\": 1, \"tensors\": 2");
	expect(disk, NULL, &(struct want){ "manifest", "sheaf.json", "ema", "", -1 }, 1);
	manifest_edit(disk, "\"dir\": \"ema\", \"files\": 1, \"tensors\": 2",
	              "\"dir\": \"ema\", \"files\": 1, \"tensors\": 1");
	manifest_edit(disk, "\"head.weight\", \"embed.weight\"", "\"head.weight\", \"embed\"");
	expect(disk, NULL, &(struct want){ "manifest", "sheaf.json", "model", "head.weight", -1 },
	       1);
	manifest_edit(disk, "\"head.weight\", \"embed\"", "\"steps\", \"embed.weight\"");
	expect(disk, NULL, &(struct want){ "manifest", "sheaf.json", "model", "steps", -1 }, 1);
	simdisk_free(disk);
}

TEST(a_header_that_tells_another_story_than_the_sums_is_found)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	static const char *const change[][2] = {
		{ "layers.0.norm", "layers.0.form" },   /* another name */
		{ "\"shape\":[37]", "\"shape\":[38]" }, /* no longer the bytes */
		{ "\"dtype\":\"F32\"", "\"dtype\":\"U32\"" },
	};
	int f = files.n - 1;

	while (f > 0 && strncmp(files.name[f], "ema/", 4))
		f--;
	for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
		struct want w = { "header", files.name[f], NULL, NULL, -1 };
		uint64_t was = crc_of(disk, files.name[f]);

		patch(disk, files.name[f], change[i][0], change[i][1]);
		mend_block(disk, files.name[f], (uint64_t)f, was);
		expect(disk, NULL, &w, 1);
		was = crc_of(disk, files.name[f]);
		patch(disk, files.name[f], change[i][1], change[i][0]);
		mend_block(disk, files.name[f], (uint64_t)f, was);
	}
	simdisk_free(disk);
}

/* `from` becomes `to` in the header that has it, padded again, and every sum is mended. Returns
 * the file's name. */
static const char *header_edit(struct simdisk *disk, const struct files *files, const char *from,
                               const char *to)
{
	size_t n, from_n = strlen(from), to_n = strlen(to);
	uint64_t was = 0, header = 0;
	uint8_t *bytes = NULL, *p = NULL;
	int f;

	for (f = 0; f < files->n && !p; f++) {
		free(bytes);
		was = crc_of(disk, files->name[f]);
		bytes = simdisk_get(disk, path_of(files->name[f]), &n);
		header = 8 + shf_get64(bytes);
		p = memmem(bytes, (size_t)header, from, from_n);
	}
	CHECK(p && to_n <= from_n);
	memcpy(p, to, to_n);
	memmove(p + to_n, p + from_n, (size_t)(bytes + header - (p + from_n)));
	memset(bytes + header - (from_n - to_n), ' ', from_n - to_n);
	put(disk, files->name[f - 1], bytes, n);
	mend_block(disk, files->name[f - 1], (uint64_t)f - 1, was);
	free(bytes);
	return files->name[f - 1];
}

TEST(a_header_with_one_tensor_fewer_or_two_in_each_others_place_is_found)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	struct want w = { "header", NULL, "model", NULL, -1 };
	struct table t = table_read(disk);
	struct shf_sums_tensor r =
		shf_sums_tensor(&t.s, (uint64_t)shf_sums_find(&t.s, "model", "layers.10.void"));
	uint64_t at = r.off - shf_sums_file(&t.s, r.file).header_bytes;
	char entry[200];

	header_edit(disk, &files, "\"layers.1.experts.1.w\"", "\"layers.1.experts.x.w\"");
	header_edit(disk, &files, "\"layers.1.experts.2.w\"", "\"layers.1.experts.1.w\"");
	w.file = header_edit(disk, &files, "\"layers.1.experts.x.w\"",
	                     "\"layers.1.experts.2.w\"");
	expect(disk, NULL, &w, 1);
	header_edit(disk, &files, "\"layers.1.experts.1.w\"", "\"layers.1.experts.x.w\"");
	header_edit(disk, &files, "\"layers.1.experts.2.w\"", "\"layers.1.experts.1.w\"");
	header_edit(disk, &files, "\"layers.1.experts.x.w\"", "\"layers.1.experts.2.w\"");
	snprintf(entry, sizeof(entry), "\"layers.10.void\":{\"dtype\":\"F32\",\"shape\":[0,4],"
	         "\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]},", at, at);
	w = (struct want){ "header", header_edit(disk, &files, entry, ""), "", "", -1 };
	expect(disk, NULL, &w, 1);
	free(t.bytes);
	simdisk_free(disk);
}

TEST(an_index_that_lists_something_else_is_found)
{
	struct simdisk *disk = disk_new();
	static const char name[] = "model.safetensors.index.json";
	static const char *const change[][3] = {
		{ "\"steps\": \"model-", "\"slept\": \"model-", "slept" },
		{ "\"steps\": \"model-00003", "\"steps\": \"model-00001", "steps" },
		{ "\"total_size\": 1", "\"total_size\": 2", "" },
		{ "weight_map", "weight_tap", "" },
		{ ",\n    \"steps\": \"model-00003-of-00003.safetensors\"",
		  "                                                 ", "" },
	};

	for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
		struct want w = { "index", name, NULL, change[i][2], -1 };
		uint64_t was = crc_of(disk, name);

		patch(disk, name, change[i][0], change[i][1]);
		crc_edit(disk, was, crc_of(disk, name));
		expect(disk, NULL, &w, 1);
		was = crc_of(disk, name);
		patch(disk, name, change[i][1], change[i][0]);
		crc_edit(disk, was, crc_of(disk, name));
	}
	simdisk_free(disk);
}

TEST(a_flag_to_read_past_damage_does_not_hide_it)
{
	struct simdisk *disk = disk_new();
	struct look l = { .disk = disk, .ranks = 1, .path = "run/checkpoint-7",
	                  .flags = SHEAF_RUN_UNVERIFIED };

	CHECK_RC(verify(&l), 0, &l.err[0]);
	flip(disk, files_of(disk).name[0], 20, 0);
	flip(disk, files_of(disk).name[1], 20000, 0);
	CHECK_INT(verify(&l), SHEAF_ECORRUPT);
	CHECK_INT(l.n, 2);
	CHECK_STR(l.found[0].what, "checksum");
	CHECK_STR(l.found[1].what, "checksum");
	simdisk_free(disk);
}

/* ---- a disk that does not answer ---- */

static void no_read(struct simdisk *disk)
{
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = EIO, .kind = SIMDISK_PREAD,
		.how = SIMDISK_INSTEAD, .always = true, .name = "model-00001" });
}

static void one_bad_read(struct simdisk *disk)
{
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 2, .error = EIO, .kind = SIMDISK_PREAD,
		.how = SIMDISK_INSTEAD });
}

/* One process reads the table and two parts of every header here; several did when they opened. */
static void one_bad_read_alone(struct simdisk *disk)
{
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 2 + 1 + 2 * (int)files_of(disk).n,
		.error = EIO, .kind = SIMDISK_PREAD, .how = SIMDISK_INSTEAD });
}

TEST(a_disk_that_cannot_be_read_is_no_finding)
{
	struct simdisk *disk = disk_new();

	for (int ranks = 1; ranks <= 3; ranks += 2) {
		struct look l = { .disk = disk, .ranks = ranks, .between = no_read };

		CHECK_RC(verify(&l), SHEAF_EIO, &l.err[0]);
		CHECK_INT(l.n, 0);
		CHECK_INT(l.err[0].sys, EIO);
		CHECK(strstr(l.err[0].msg, "model-00001"));
		CHECK(l.report[0].retries >= 3);
		simdisk_faults_clear(disk);
		l.between = ranks == 1 ? one_bad_read_alone : one_bad_read;
		CHECK_RC(verify(&l), 0, &l.err[0]);
		CHECK_INT(l.report[0].retries, 1);
		simdisk_faults_clear(disk);
	}
	simdisk_free(disk);
}

TEST(what_was_found_counts_although_something_could_not_be_read)
{
	struct simdisk *disk = disk_new();
	struct look l = { .disk = disk, .ranks = 3, .between = no_read };

	flip(disk, "config.json", 3, 3);
	CHECK_RC(verify(&l), SHEAF_ECORRUPT, &l.err[0]);
	CHECK_INT(l.n, 1);
	CHECK_STR(l.found[0].file, "config.json");
	simdisk_free(disk);
}

TEST(what_could_not_be_read_has_no_wrong_checksum)
{
	struct simdisk *disk = disk_new();
	struct look l = { .disk = disk, .ranks = 3, .between = no_read };

	flip(disk, "sheaf.sums", 300, 3);
	CHECK_RC(verify(&l), SHEAF_ECORRUPT, &l.err[0]);
	CHECK_INT(l.n, 1);
	CHECK_STR(l.found[0].file, "sheaf.sums");
	simdisk_free(disk);
}

static int fail_nth;

static void fail_one(struct simdisk *disk)
{
	simdisk_fail_at(disk, fail_nth, EIO);
}

TEST(no_call_that_fails_makes_a_finding_or_a_pass_of_damage)
{
	struct simdisk *disk = disk_new();
	bool fired = true;

	flip(disk, "ema/ema.safetensors.index.json", 12, 1);
	for (fail_nth = 1; fired; fail_nth++) {
		struct look l = { .disk = disk, .ranks = 1, .between = fail_one };
		int rc = verify(&l);

		fired = simdisk_fired(disk) > 0;
		simdisk_faults_clear(disk);
		/* The one call may have been the look at the one damage. */
		CHECK(rc == SHEAF_ECORRUPT || rc == SHEAF_EIO);
		CHECK(l.n == (rc == SHEAF_ECORRUPT));
		CHECK(fired || rc == SHEAF_ECORRUPT);
	}
	CHECK(fail_nth > 30);
	simdisk_free(disk);
}

/* The text of the call that a fault met: it ends in the error. */
static const char *failed_call(struct simdisk *disk)
{
	static const char *const ends[] = { "= -5", "= -EIO" };

	for (size_t i = simdisk_calls(disk); i > 0; i--) {
		const char *text = simdisk_call_text(disk, i - 1);

		for (int k = 0; k < 2; k++)
			if (strstr(text, ends[k]))
				return text;
	}
	return "";
}

TEST(no_call_that_fails_makes_a_whole_step_pass_unread)
{
	struct simdisk *disk = disk_new();
	int passed = 0, told = 0;
	bool fired = true;

	for (fail_nth = 1; fired; fail_nth++) {
		struct look l = { .disk = disk, .ranks = 3, .between = fail_one };
		int rc = verify(&l);

		fired = simdisk_fired(disk) > 0;
		simdisk_faults_clear(disk);
		CHECK_INT(l.n, 0);
		if (rc == 0 && fired && !l.report[0].retries) /* what else may fail in passing */
			CHECK(strstr(failed_call(disk), "close") ||
			      strstr(failed_call(disk), "unlock"));
		CHECK(rc == 0 || rc == SHEAF_EIO);
		passed += rc == 0;
		told += rc < 0;
	}
	CHECK(passed > 10 && told > 10);
	simdisk_free(disk);
}

/* ---- no memory ---- */

static _Thread_local long starve_left;  /* 0: nothing fails; 1: the next one */
static bool starved;

static bool starves(void)
{
	if (starve_left == 0 || --starve_left > 0)
		return false;
	starved = true;
	return true;
}

#define STARVE(type, name, params, args)                                      \
	type __real_##name params;                                            \
	type __wrap_##name params;                                            \
	type __wrap_##name params                                             \
	{                                                                     \
		return starves() ? NULL : __real_##name args;                 \
	}
STARVE(void *, shf_alloc, (size_t n, size_t size), (n, size))
STARVE(void *, shf_zalloc, (size_t n, size_t size), (n, size))
STARVE(void *, shf_realloc, (void *p, size_t n, size_t size), (p, n, size))
STARVE(char *, shf_strdup, (const char *s), (s))
STARVE(void *, shf_arena_alloc, (struct shf_arena *a, size_t n, size_t size), (a, n, size))
STARVE(uint8_t *, shf_buf_extend, (struct shf_buf *b, size_t n), (b, n))

static void starve(struct simdisk *disk)
{
	(void)disk;
	starve_left = fail_nth;
}

/* Every allocation of rank 0: no memory is no damage, and hides none but what it was for. */
static void starve_each(struct simdisk *disk, int ranks, int whole)
{
	int told = 0;

	for (fail_nth = 1, starved = true; starved; fail_nth++) {
		struct look l = { .disk = disk, .ranks = ranks, .between = starve };
		int rc;

		starved = false;
		rc = verify(&l);
		starve_left = 0;
		CHECK(rc == whole || (starved && rc == SHEAF_ENOMEM));
		CHECK(l.n <= (whole < 0));
		told += rc == SHEAF_ENOMEM;
	}
	CHECK(told > 2);
}

TEST(no_memory_is_no_damage)
{
	struct simdisk *disk = disk_new();

	starve_each(disk, 1, 0);
	starve_each(disk, 3, 0);
	flip(disk, "ema/ema-00001-of-00001.safetensors", 30, 1); /* so headers are looked at */
	starve_each(disk, 1, SHEAF_ECORRUPT);
	starve_each(disk, 3, SHEAF_ECORRUPT);
	simdisk_free(disk);
}

/* ---- foreign ---- */

/* The model's files and index alone. */
static struct files foreign_new(struct simdisk *disk)
{
	struct files all = all_files(disk), kept = { .n = 0 };
	char path[200];

	for (int i = 0; i < all.n; i++) {
		size_t n;
		void *bytes = simdisk_get(disk, path_of(all.name[i]), &n);

		if (!strchr(all.name[i], '/') && strcmp(all.name[i], "sheaf.sums")) {
			snprintf(path, sizeof(path), "hf/%s", all.name[i]);
			CHECK_INT(simdisk_put(disk, path, bytes, n), 0);
			snprintf(kept.name[kept.n++], sizeof(kept.name[0]), "%s", all.name[i]);
		}
		free(bytes);
	}
	return kept;
}

TEST(a_foreign_directory_is_sound_but_not_proved)
{
	struct simdisk *disk = disk_new();

	(void)foreign_new(disk);
	for (int k = 0; k < 6; k++) {
		struct look l = { .disk = disk, .ranks = k % 3 + 1,
			.path = k < 3 ? "hf" : "hf/model-00002-of-00003.safetensors" };

		CHECK_RC(verify(&l), SHEAF_EFORMAT, &l.err[0]);
		CHECK_INT(l.n, 1);
		CHECK_STR(l.found[0].what, "unverified");
		CHECK_INT(l.report[0].findings, 0);
		CHECK(l.report[0].unverified > 0);
		CHECK(l.report[0].disk_bytes > 100000);
	}
	simdisk_free(disk);
}

TEST(structural_damage_of_a_foreign_directory_is_found)
{
	struct simdisk *disk = disk_new();
	struct files kept = foreign_new(disk);
	static const char file[] = "model-00001-of-00003.safetensors", path[] = "hf/model-00001-of-"
	                                                                       "00003.safetensors";
	struct want w = { "truncated", file, "", "", -1 };
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path, &n), *more = calloc(n + 1, 1);

	CHECK(kept.n > 3 && bytes);
	memcpy(more, bytes, n);
	for (size_t len = 0; len < n; len = len < 4 ? len + 3 : len * 5) {
		CHECK_INT(simdisk_put(disk, path, bytes, len), 0);
		expect(disk, "hf", &w, 1);
		expect(disk, path, &w, 1);
	}
	CHECK_INT(simdisk_put(disk, path, more, n + 1), 0);
	w.what = "extended";
	expect(disk, "hf", &w, 1);
	w.what = "header";
	more[9] ^= 1;
	CHECK_INT(simdisk_put(disk, path, more, n), 0);
	expect(disk, "hf", &w, 1);
	CHECK_INT(simdisk_put(disk, path, "no weights at all", 17), 0);
	expect(disk, "hf", &w, 1);
	CHECK_INT(simdisk_put(disk, path, bytes, n), 0);
	free(more);
	free(bytes);

	bytes = simdisk_get(disk, "hf/model.safetensors.index.json", &n);
	for (uint8_t *p = bytes; p + 7 < bytes + n; p++)
		if (memcmp(p, "\"steps\"", 7) == 0)
			p[1] = 'z';
	CHECK_INT(simdisk_put(disk, "hf/model.safetensors.index.json", bytes, n), 0);
	w = (struct want){ "index", "", "", "", -1 };
	expect(disk, "hf", &w, 1);
	free(bytes);
	simdisk_free(disk);
}

TEST(a_rank_that_dies_leaves_no_other_waiting)
{
	struct simdisk *disk = disk_new();

	for (int at = 1; at < 200; at += 3) {
		struct look l = { .disk = disk, .ranks = 3, .path = "run/checkpoint-7" };
		struct simgroup_stat stat = { 0 };
		struct simgroup_opts o = { .seed = (uint64_t)at, .ranks = 3, .die_rank = at % 3,
			.die_at = at, .die_sent = at % 2, .quiet = true, .stat = &stat };
		int results[3];

		for (int r = 0; r < 3; r++)
			l.sys[r] = simdisk_process(disk, (uint64_t)(50000 + 3 * at + r), r);
		(void)simgroup_run(&o, look_rank, &l, results);
		for (int r = 0; r < 3; r++) {
			simdisk_kill(disk, l.sys[r]);
			CHECK(results[r] == 0 || results[r] == SHEAF_ELOST);
		}
		if (!stat.fired)
			break;
		CHECK(results[at % 3] == SHEAF_ELOST);
	}
	simdisk_free(disk);
}
