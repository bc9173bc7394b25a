/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save files: loaded in any layout, verified by the sums that they have, and refused with
 * a sentence where they are damaged or made to harm. */
#include "torchfile.h"
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "foreign_dir.h"
#include "read_slice.h"
#include "t.h"
#include "foreign_plays.h"

#define FILE_PT "model.pt"
#define T(n, d, dims, ...) { .name = n, .dtype = SHEAF_##d, .ndim = dims, __VA_ARGS__ }

/* Row-major, transposed, with gaps, from the middle of a storage, and all items the same. */
static const struct torch_tensor good[] = {
	T("embed", BF16, 2, .shape = { 301, 37 }),
	T("l.0.w", F32, 2, .shape = { 29, 13 }, .stride = { 1, 29 }),
	T("l.1.w", F32, 2, .shape = { 29, 13 }, .stride = { 40, 3 },
	  .at = 5),
	T("norm", F16, 1, .shape = { 37 }, .at = 3),
	T("scale", F64, 0, .at = 0),
	T("none", I8, 2, .shape = { 0, 5 }),
};
#define GOOD ((int)(sizeof(good) / sizeof(good[0])))

static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "embed", SHEAF_BF16, 2, 301, 37);

	hand_cut(s, h->play->variant % 2, h->rank, h->ranks);
	s = hand_add(h, "model", "l.0.w", SHEAF_F32, 2, 29, 13);
	hand_cut(s, 1, h->rank, h->ranks);
	s->stride[0] = 1;
	s->stride[1] = 31;
	s = hand_add(h, "model", "l.1.w", SHEAF_F32, 2, 29, 13);
	s->flags = SHEAF_SLICE_FLAT;
	s->flat_start = 377 * h->rank / h->ranks;
	s->flat_count = 377 * (h->rank + 1) / h->ranks - s->flat_start;
	hand_add(h, "model", "norm", SHEAF_F16, 1, 37);
	hand_add(h, "model", "scale", SHEAF_F64, 0);
	hand_add(h, "model", "none", SHEAF_I8, 2, 0, 5);
}

TEST(a_state_dict_loads_in_any_layout)
{
	static const int32_t apart[4] = { 1, 1, 2, 3 };
	struct simdisk *disk = disk_with(FILE_PT, torch_archive(good, GOOD, TORCH_SOUND));

	for (int k = 0; k < 8; k++) {
		struct play p = foreign_play(disk, FILE_PT, 1 + k % 4, held);

		p.nodes = k >= 4 ? apart : NULL;
		p.variant = k / 2;
		LOADED(p);
		CHECK_INT(p.report.loaded, GOOD);
	}
	simdisk_free(disk);
}

/* Returns the code of opening a file with these bytes, with the sentence in err; verified: after a
 * success, that of verifying it. */
static int opens(const uint8_t *bytes, size_t n, int *verified, struct sheaf_error *err)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_checkpoint *step = NULL;
	int rc;

	CHECK_INT(simdisk_put(disk, FILE_PT, bytes, n), 0);
	rc = shf_step_open_path(&step, FILE_PT, NULL, NULL, sys, err);
	if (rc == 0 && step->cat_rc < 0) {
		rc = step->cat_rc;
		*err = step->cat_err;
	}
	if (rc == 0 && verified)
		*verified = shf_step_verify(step, NULL, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
	return rc;
}

static void refused(struct torch_bytes file, const char *why)
{
	struct sheaf_error err = { 0 };
	int rc = opens(file.p, file.n, NULL, &err);

	if (rc != SHEAF_EFORMAT || !strstr(err.msg, why))
		fail_msg("want '%s', got %d: %s", why, rc, err.msg);
	CHECK(strncmp(err.msg, FILE_PT, strlen(FILE_PT)) == 0);
	free(file.p);
}

TEST(archives_that_torch_does_not_write_are_refused_by_what_is_wrong)
{
	static const struct { enum torch_flaw flaw; const char *why; } flaws[] = {
		{ TORCH_BIG_ENDIAN, "its byte order is \"big\"" },
		{ TORCH_COMPRESSED, "record a/data/0 is compressed (method 8)" },
		{ TORCH_ENCRYPTED, "record a/data/0 is encrypted" },
		{ TORCH_TWICE, "has record a/data/0 twice" },
		{ TORCH_OVERLAP, "overlaps what follows it" },
		{ TORCH_TAIL, "does not end with its end record" },
		{ TORCH_COMMENT, "does not end with its end record" },
		{ TORCH_OTHER_NAME, "is not the beginning of record a/data/0" },
		{ TORCH_NO_PICKLE, "not a safetensors file" },
		{ TORCH_NO_STORAGE, "its storage 0 is not in the file" },
		{ TORCH_SCRIPT, "a TorchScript archive" },
		{ TORCH_MANY_RECORDS, "larger than can be" },
		{ TORCH_NUL_NAME, "not a text" },
		{ TORCH_TWO_FOLDERS, "record z/data.pkl is not in folder a/" },
	};

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++)
		refused(torch_archive(good, GOOD, flaws[i].flaw), flaws[i].why);
}

TEST(a_tensor_that_leaves_its_storage_is_refused)
{
	static const struct { struct torch_tensor t; const char *why; } lies[] = {
		{ T("w", F32, 1, .shape = { 8 }, .lied_items = 1),
		  "the pickle says 36" },
		{ T("w", F32, 1, .shape = { 8 }, .lied_items = -1),
		  "leave its storage of 28 bytes" },
		{ T("w", F32, 1, .shape = { 8 }, .lied_items = INT64_MAX / 2),
		  "unknown structure" },
	};
	static const struct torch_tensor shared[][2] = {
		{ T("w", F32, 1, .shape = { 8 }),
		  T("v", F32, 1, .shape = { 8 }, .at = 1, .of = "w") },
		{ T("w", F32, 1, .shape = { 8 }),
		  T("v", F32, 2, .shape = { 2, 4 }, .stride = { 5, 1 }, .of = "w") },
		{ T("w", F32, 1, .shape = { 8 }),
		  T("v", F32, 2, .shape = { INT64_MAX / 16, 3 },
		    .stride = { 1, INT64_MAX / 4 }, .of = "w") },
	};
	const struct shf_foreign_note *note;
	struct shf_foreign *f = NULL;
	struct sheaf_error err = { 0 };
	struct simdisk *disk;
	size_t n;

	for (size_t i = 0; i < 2; i++)
		refused(torch_archive(&lies[i].t, 1, TORCH_SOUND), lies[i].why);
	for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
		refused(torch_archive(shared[i], 2, TORCH_SOUND), "leave its storage");
	/* A size that overflows is no tensor, so that it is listed and not loaded. */
	disk = disk_with(FILE_PT, torch_archive(&lies[2].t, 1, TORCH_SOUND));
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), FILE_PT, &err), 0, &err);
	(void)shf_foreign_tensors(f, &n);
	CHECK_INT(n, 0);
	CHECK_INT(f->notes.len, 2 * sizeof(*note));
	note = (const void *)f->notes.data;
	CHECK_STR(note[1].key, SHF_UNREAD_NOTE);
	CHECK_STR(note[1].text, "1");
	if (!strstr(note->text, lies[2].why))
		fail_msg("want '%s', got '%s'", lies[2].why, note->text);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* torch calls the folder of an archive as the file is called. */
TEST(an_archive_may_have_control_characters_in_its_names)
{
	struct torch_bytes file = torch_archive(good, GOOD, TORCH_SOUND);
	struct sheaf_error err = { 0 };
	int verified = 1;

	for (size_t i = 1; i + 2 < file.n; i++)
		if (memcmp(file.p + i, "a/d", 3) == 0 || memcmp(file.p + i, "a/b", 3) == 0)
			file.p[i] = '\x01';
	CHECK_RC(opens(file.p, file.n, &verified, &err), 0, &err);
	CHECK_INT(verified, 0);
	free(file.p);
}

TEST(a_file_that_is_cut_anywhere_is_refused)
{
	struct torch_bytes file = torch_archive(good + 3, 3, TORCH_SOUND);
	struct sheaf_error err;

	for (size_t n = 8; n < file.n; n++) {
		memset(&err, 0, sizeof(err));
		CHECK_INT(opens(file.p, n, NULL, &err), SHEAF_EFORMAT);
		CHECK(err.msg[0] != '\0');
	}
	free(file.p);
}

/* Reads "norm" and "scale" of the file; returns whether both are as they were written. */
static bool has_values(const uint8_t *bytes, size_t n)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F16, .ndim = 1, .name = "norm",
		.shape = { 37 }, .count = { 37 } };
	struct sheaf_error err;
	uint16_t got[37] = { 0 };
	bool same;

	s.data = got;
	CHECK_INT(simdisk_put(disk, FILE_PT, bytes, n), 0);
	same = shf_step_open_path(&step, FILE_PT, NULL, NULL, sys, &err) == 0 &&
	       shf_step_read(step, &s, &err) == 0;
	for (int i = 0; i < 37; i++)
		same &= got[i] == hand_value("model", "norm", SHEAF_F16, i);
	shf_step_put(step);
	simdisk_free(disk);
	return same;
}

/* Padding, and what the local headers repeat, may change: no value depends on it. */
TEST(a_flipped_bit_is_found_or_changes_no_value)
{
	struct torch_bytes file = torch_archive(good + 3, 1, TORCH_SOUND);
	int found = 0;

	CHECK(has_values(file.p, file.n));
	for (size_t i = (size_t)t_from(T_FEWER); i < 8 * file.n; i += (size_t)T_FEWER) {
		struct sheaf_error err = { 0 };
		int verified = 0;

		file.p[i / 8] ^= (uint8_t)(1 << i % 8);
		if (i >= 64 && (opens(file.p, file.n, &verified, &err) < 0 || verified < 0))
			found++;
		else if (i >= 64 && !has_values(file.p, file.n))
			fail_msg("bit %zu of byte %zu is not found", i % 8, i / 8);
		file.p[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	CHECK(found > 1000 / T_FEWER);
	free(file.p);
}

TEST(a_file_without_sums_is_not_proved)
{
	struct torch_bytes file = torch_archive(good, GOOD, TORCH_NO_SUMS);
	struct sheaf_error err;
	int verified = 0;

	CHECK_RC(opens(file.p, file.n, &verified, &err), 0, &err);
	CHECK_INT(verified, SHEAF_EFORMAT);
	free(file.p);
	file = torch_archive(good, GOOD, TORCH_SOUND);
	CHECK_RC(opens(file.p, file.n, &verified, &err), 0, &err);
	CHECK_INT(verified, 0);
	free(file.p);
}

static uint64_t digest_of(const struct torch_tensor *t)
{
	struct simdisk *disk = disk_with(FILE_PT, torch_archive(t, 1, TORCH_SOUND));
	struct shf_foreign *f = NULL;
	struct sheaf_error err = { 0 };
	uint64_t digest;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), FILE_PT, &err), 0, &err);
	digest = shf_foreign_digest(f);
	shf_foreign_free(f);
	simdisk_free(disk);
	return digest;
}

/* Ranks compare it: so they see that another file lies at their path. */
TEST(the_digest_differs_where_values_would)
{
	static const struct torch_tensor t[] = {
		T("w", F32, 2, .shape = { 4, 4 }),
		T("w", F32, 2, .shape = { 4, 4 }, .stride = { 1, 4 }),
		T("w", F32, 2, .shape = { 4, 4 }, .neg = true),
	};
	uint64_t digest[3];

	for (int i = 0; i < 3; i++)
		digest[i] = digest_of(&t[i]);
	CHECK(digest[0] == digest_of(&t[0]));
	CHECK(digest[0] != digest[1]);
	CHECK(digest[0] != digest[2]);
}

/* ---- pickles whose values are shared ---- */

/* A tensor of four numbers in storage 0, which is put into memo 1. */
static const char tensor_1[] = "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"
	"FloatStorage\nX\x01\0\0\0" "0X\x03\0\0\0cpuK\x04tQK\0K\x04\x85K\x01\x85\x89"
	"ccollections\nOrderedDict\n)RtRq\x01";

static void add_key(struct torch_bytes *b, size_t n)
{
	uint8_t head[5] = { 'X', (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), 0 };

	torch_add(b, head, 5);
	for (size_t i = 0; i < n; i++)
		torch_add(b, "k", 1);
}

/* Opens an archive with this pickle, which is freed; NULL: refused, as err says. */
static struct shf_foreign *foreign_of_pickle(struct simdisk **disk, struct torch_bytes pickle,
                                             struct sheaf_error *err)
{
	struct shf_foreign *f = NULL;
	int rc;

	*disk = disk_with(FILE_PT, torch_archive_of(pickle.p, pickle.n));
	free(pickle.p);
	memset(err, 0, sizeof(*err));
	rc = shf_foreign_open(&f, simdisk_process(*disk, 77, 0), FILE_PT, err);
	CHECK(rc == 0 || (rc == SHEAF_EFORMAT && !f));
	return f;
}

TEST(a_key_that_many_notes_share_is_not_copied_whole)
{
	struct torch_bytes p = { 0 };
	const struct shf_foreign_note *note;
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;

	torch_add(&p, "\x80\x02}", 3);
	add_key(&p, 20000);
	torch_add(&p, "q\0Ns", 4);
	for (int i = 0; i < 500; i++)
		torch_add(&p, "h\0Ns", 4);
	torch_add(&p, ".", 1);
	f = foreign_of_pickle(&disk, p, &err);
	CHECK(f != NULL);
	note = (const void *)f->notes.data;
	CHECK_INT(f->notes.len / sizeof(*note), 501);
	for (int i = 0; i < 501; i++)
		CHECK(strlen(note[i].key) == 259 && strcmp(note[i].key + 256, "...") == 0);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* "..." is the key of the note that says how many others were left out, and of that one alone. */
TEST(a_key_of_the_file_does_not_lift_the_limit_of_notes)
{
	struct torch_bytes p = { 0 };
	const struct shf_foreign_note *note;
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;

	torch_add(&p, "\x80\x02}X\x03\0\0\0abc", 11);
	torch_add(&p, tensor_1, sizeof(tensor_1) - 1);
	torch_add(&p, "sX\x03\0\0\0...q\0Ns", 13);
	for (int i = 1; i < 5000; i++)
		torch_add(&p, "h\0Ns", 4);
	torch_add(&p, ".", 1);
	f = foreign_of_pickle(&disk, p, &err);
	CHECK(f != NULL);
	note = (const void *)f->notes.data;
	CHECK_INT(f->notes.len / sizeof(*note), 4097);
	CHECK_STR(note[4095].text, "none");
	CHECK_STR(note[4096].key, "...");
	CHECK_STR(note[4096].text, "904 more values are not listed");
	shf_foreign_free(f);
	simdisk_free(disk);
}

TEST(a_list_that_many_lists_share_costs_a_step_for_each_item)
{
	struct torch_bytes p = { 0 };
	struct sheaf_error err;
	struct simdisk *disk;

	torch_add(&p, "\x80\x02]((", 5);
	for (int i = 0; i < 20000; i++)
		torch_add(&p, "K\x01", 2);
	torch_add(&p, "lq\0", 3);
	for (int i = 0; i < 2000; i++)
		torch_add(&p, "h\0", 2);
	torch_add(&p, "e.", 2);
	CHECK(!foreign_of_pickle(&disk, p, &err));
	CHECK(strstr(err.msg, "refer to each other so often") != NULL);
	simdisk_free(disk);
}

TEST(a_tensor_may_be_in_a_list_many_times)
{
	struct torch_bytes p = { 0 };
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;
	size_t n;

	torch_add(&p, "\x80\x02](", 4);
	torch_add(&p, tensor_1, sizeof(tensor_1) - 1);
	for (int i = 1; i < 5000; i++)
		torch_add(&p, "h\x01", 2);
	torch_add(&p, "e.", 2);
	f = foreign_of_pickle(&disk, p, &err);
	if (!f)
		fail_msg("%s", err.msg);
	(void)shf_foreign_tensors(f, &n);
	CHECK_INT(n, 5000);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* {"": {"a": tensor, "": tensor}, "b": {"": tensor}} */
TEST(empty_keys_at_the_beginning_are_not_in_a_name)
{
	static const char *const names[] = { "a", "tensor", "b." };
	struct torch_bytes p = { 0 };
	const struct shf_foreign_tensor *t;
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;
	size_t n;

	torch_add(&p, "\x80\x02}X\0\0\0\0}X\1\0\0\0a", 15);
	torch_add(&p, tensor_1, sizeof(tensor_1) - 1);
	torch_add(&p, "sX\0\0\0\0h\x01ss", 10);
	torch_add(&p, "X\1\0\0\0b}X\0\0\0\0h\x01ss.", 17);
	f = foreign_of_pickle(&disk, p, &err);
	if (!f)
		fail_msg("%s", err.msg);
	t = shf_foreign_tensors(f, &n);
	CHECK_INT(n, 3);
	for (size_t i = 0; i < n; i++)
		CHECK_STR(t[i].name, names[i]);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* One value that cannot be listed does not take the others with it. */
TEST(a_key_that_is_no_name_is_noted_and_the_others_are_read)
{
	struct torch_bytes p = { 0 };
	const struct shf_foreign_note *note;
	const struct shf_foreign_tensor *t;
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;
	size_t n;

	torch_add(&p, "\x80\x02}X\x01\0\0\0b", 9);
	torch_add(&p, tensor_1, sizeof(tensor_1) - 1);
	torch_add(&p, "s", 1);
	add_key(&p, 5000);
	torch_add(&p, "h\x01sX\x0c\0\0\0__metadata__h\x01sX\x03\0\0\0\xed\xa0\x80h\x01s", 34);
	torch_add(&p, "K\x01\x85h\x01s.", 7);
	f = foreign_of_pickle(&disk, p, &err);
	if (!f)
		fail_msg("%s", err.msg);
	t = shf_foreign_tensors(f, &n);
	CHECK_INT(n, 1);
	CHECK_STR(t[0].name, "b");
	note = (const void *)f->notes.data;
	CHECK_INT(f->notes.len / sizeof(*note), 5);
	CHECK_STR(note[4].key, SHF_UNREAD_NOTE);
	CHECK_STR(note[4].text, "4");
	CHECK(strstr(note[0].text, "more than 4096 bytes") != NULL);
	CHECK(strstr(note[1].text, "__metadata__") != NULL);
	CHECK(strstr(note[2].text, "UTF-8") != NULL);
	CHECK(strstr(note[3].text, "neither a string nor a number is not listed") != NULL &&
	      strstr(note[3].text, "with 1 tensor that cannot be loaded") != NULL);
	shf_foreign_free(f);
	simdisk_free(disk);
}

TEST(a_value_that_is_nested_too_deep_is_noted)
{
	struct torch_bytes p = { 0 };
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;
	size_t n;

	torch_add(&p, "](", 2);
	torch_add(&p, tensor_1, sizeof(tensor_1) - 1);
	for (int i = 0; i < 105; i++)
		torch_add(&p, "](", 2);
	torch_add(&p, "h\x01", 2);
	for (int i = 0; i < 106; i++)
		torch_add(&p, "e", 1);
	torch_add(&p, ".", 1);
	f = foreign_of_pickle(&disk, p, &err);
	if (!f)
		fail_msg("%s", err.msg);
	(void)shf_foreign_tensors(f, &n);
	CHECK_INT(n, 1);
	CHECK(strstr(((struct shf_foreign_note *)(void *)f->notes.data)->text,
	             "nested more than 100 deep") != NULL);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* torch wraps tensors of some devices, with the dtype that they had there. */
TEST(a_tensor_that_is_converted_is_noted)
{
	static const char *const dtypes[] = { "float32", "int32" };

	for (size_t i = 0; i < 2; i++) {
		struct torch_bytes p = { 0 };
		struct sheaf_error err;
		struct shf_foreign *f;
		struct simdisk *disk;
		size_t n;

		torch_add(&p, "ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(", 54);
		torch_add(&p, tensor_1, sizeof(tensor_1) - 1);
		torch_add(&p, "ctorch\n", 7);
		torch_add(&p, dtypes[i], strlen(dtypes[i]));
		torch_add(&p, "\nX\x03\0\0\0xpu\x89tR.", 13);
		f = foreign_of_pickle(&disk, p, &err);
		if (!f)
			fail_msg("%s", err.msg);
		(void)shf_foreign_tensors(f, &n);
		CHECK_INT(n, i == 0);
		if (i == 1)
			CHECK(strstr(((struct shf_foreign_note *)(void *)f->notes.data)->text,
			             "converted to another dtype") != NULL);
		shf_foreign_free(f);
		simdisk_free(disk);
	}
}

/* ---- files of before torch 1.6 ---- */

static const char legacy_magic[] = "\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.";
static const char legacy_facts[] = "M\xe9\x03.}X\x0d\0\0\0little_endian\x88s.";

/* A file with these values, whose only storage is "0" with 4 items of `item` bytes. */
static struct torch_bytes legacy_file(int protocol, const char *values, size_t n, int item)
{
	struct torch_bytes b = { 0 };
	uint8_t head[11] = { 0x80, (uint8_t)protocol, 0x95, sizeof(legacy_magic) - 1 };
	uint8_t data[16];

	for (int i = 0; i < 16; i++)
		data[i] = (uint8_t)i;
	torch_add(&b, head, protocol < 4 ? 2 : 11);
	torch_add(&b, legacy_magic, sizeof(legacy_magic) - 1);
	torch_add(&b, legacy_facts, sizeof(legacy_facts) - 1);
	torch_add(&b, values, n);
	torch_add(&b, "](X\x01\0\0\0" "0e.", 10);
	torch_add(&b, "\x04\0\0\0\0\0\0\0", 8);
	torch_add(&b, data, (size_t)(4 * item));
	return b;
}

/* Opens a legacy file, which is freed, and sets *tensors and *note, which is the first one. */
static void legacy_opens(struct torch_bytes file, size_t *tensors, char note[200])
{
	struct simdisk *disk = disk_with(FILE_PT, file);
	struct sheaf_error err = { 0 };
	struct shf_foreign *f = NULL;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), FILE_PT, &err), 0, &err);
	(void)shf_foreign_tensors(f, tensors);
	snprintf(note, 200, "%s", f->notes.len ? ((struct shf_foreign_note *)(void *)f->notes.data)
	         ->text : "");
	shf_foreign_free(f);
	simdisk_free(disk);
}

#define LEGACY_TENSOR(storage) "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n" \
	storage "\nX\x01\0\0\0" "0X\x03\0\0\0cpuK\x04NtQK\0K\x04\x85K\x01\x85\x89" \
	"ccollections\nOrderedDict\n)RtR"

TEST(a_legacy_file_of_any_protocol_is_read)
{
	static const char values[] = "}X\x01\0\0\0w" LEGACY_TENSOR("FloatStorage") "s.";
	char note[200];
	size_t n;

	for (int protocol = 2; protocol < 6; protocol++) {
		legacy_opens(legacy_file(protocol, values, sizeof(values) - 1, 4), &n, note);
		CHECK_INT(n, 1);
	}
}

/* torch stores the class of a model with its source as a persistent id. */
TEST(a_model_or_a_quantised_tensor_in_a_legacy_file_is_noted)
{
	static const char model[] = "(X\x06\0\0\0modulecm\nNet\nX\x01\0\0\0fX\x01\0\0\0stQ)\x81}"
		"X\x01\0\0\0w" LEGACY_TENSOR("FloatStorage") "sb.";
	static const char quantised[] = "ctorch._utils\n_rebuild_qtensor\n((X\x07\0\0\0storage"
		"ctorch\nQInt8Storage\nX\x01\0\0\0" "0X\x03\0\0\0cpuK\x04NtQK\0tR.";
	char note[200];
	size_t n;

	legacy_opens(legacy_file(2, model, sizeof(model) - 1, 4), &n, note);
	CHECK_INT(n, 0);
	CHECK(strstr(note, "an object of m.Net, which sheaf does not read; 1 tensor") != NULL);
	legacy_opens(legacy_file(2, quantised, sizeof(quantised) - 1, 1), &n, note);
	CHECK_INT(n, 0);
	CHECK(strstr(note, "a quantised tensor") != NULL);
}

/* Only a pickle that ends too early is read again with more of the file. */
TEST(a_legacy_file_that_is_refused_is_read_once)
{
	struct torch_bytes file = legacy_file(2, "\xff.", 2, 4);
	struct simdisk *disk = disk_new();
	struct shf_foreign *f = NULL;
	struct sheaf_error err = { 0 };
	uint8_t *zeros = calloc(5, 1 << 20);
	size_t reads = 0;

	torch_add(&file, zeros, 5 << 20);
	free(zeros);
	CHECK_INT(simdisk_put(disk, FILE_PT, file.p, file.n), 0);
	free(file.p);
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), FILE_PT, &err), SHEAF_EFORMAT,
	         &err);
	CHECK(strstr(err.msg, "unknown opcode ff") != NULL);
	for (size_t i = 0; i < simdisk_calls(disk); i++)
		reads += strstr(simdisk_call_text(disk, i), "pread") != NULL;
	CHECK_INT(reads, 3);
	simdisk_free(disk);
}
