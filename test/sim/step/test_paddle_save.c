/* SPDX-License-Identifier: Apache-2.0 */
/* paddle.save files: loaded in any layout, and refused or listed with a sentence where they are
 * damaged, made to harm, or of a form that is not read. */
#include "paddlefile.h"
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "pickle.h"
#include "read_slice.h"
#include "t.h"
#include "foreign_plays.h"

#define FILE_PD "model.pdparams"
#define T(n, d, dims, ...) { .name = n, .dtype = SHEAF_##d, .ndim = dims, __VA_ARGS__ }

static const struct torch_tensor good[] = {
	T("embed", BF16, 2, .shape = { 301, 37 }),
	T("l.0.w", F32, 2, .shape = { 290, 130 }),  /* more than 64 KiB */
	T("l.1.w", F64, 3, .shape = { 7, 3, 5 }),
	T("norm", F16, 1, .shape = { 37 }),
	T("scale", F64, 0, .at = 0),
	T("none", I8, 2, .shape = { 0, 5 }),
};
#define GOOD ((int)(sizeof(good) / sizeof(good[0])))

static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "embed", SHEAF_BF16, 2, 301, 37);

	hand_cut(s, h->play->variant % 2, h->rank, h->ranks);
	s = hand_add(h, "model", "l.0.w", SHEAF_F32, 2, 290, 130);
	s->flags = SHEAF_SLICE_FLAT;
	s->flat_start = 37700 * h->rank / h->ranks;
	s->flat_count = 37700 * (h->rank + 1) / h->ranks - s->flat_start;
	s = hand_add(h, "model", "l.1.w", SHEAF_F64, 3, 7, 3, 5);
	hand_cut(s, 2, h->rank, h->ranks);
	hand_add(h, "model", "norm", SHEAF_F16, 1, 37);
	hand_add(h, "model", "scale", SHEAF_F64, 0);
	hand_add(h, "model", "none", SHEAF_I8, 2, 0, 5);
}

TEST(a_state_dict_loads_in_any_layout_in_each_form_that_it_is_written_in)
{
	for (int form = PADDLE_SOUND; form <= PADDLE_STATIC; form++) {
		enum paddle_flaw flaw = (enum paddle_flaw)form;
		struct simdisk *disk = disk_with(FILE_PD, paddle_file(good, GOOD, flaw));

		for (int k = 0; k < 4; k++) {
			struct play p = foreign_play(disk, FILE_PD, 1 + k, held);

			p.variant = k;
			LOADED(p);
			CHECK_INT(p.report.loaded, GOOD);
		}
		simdisk_free(disk);
	}
}

/* Opens a file with these bytes and frees them. Returns the code; f is to be freed after 0. */
static int opens(struct torch_bytes file, struct simdisk **disk, struct shf_foreign **f,
                 struct sheaf_error *err)
{
	int rc;

	*f = NULL;
	memset(err, 0, sizeof(*err));
	*disk = disk_with(FILE_PD, file);
	rc = shf_foreign_is_here(simdisk_process(*disk, 77, 0), FILE_PD, err);
	if (rc == 0)
		return 1;
	return rc < 0 ? rc : shf_foreign_open(f, simdisk_process(*disk, 77, 0), FILE_PD, err);
}

/* What is no array that can be read is listed with the reason, and the rest is read. */
TEST(an_array_that_cannot_be_read_is_noted)
{
	static const struct { enum paddle_flaw flaw; const char *why; } flaws[] = {
		{ PADDLE_SHORT, "not as many as its shape needs" },
		{ PADDLE_LONG, "not as many as its shape needs" },
		{ PADDLE_HUGE, "not as many as its shape needs" },
		{ PADDLE_NEGATIVE, "of unknown structure" },
		{ PADDLE_LIST_SHAPE, "of unknown structure" },
		{ PADDLE_NO_STATE, "of unknown structure" },
		{ PADDLE_MATRIX, "of unknown structure" },
		{ PADDLE_BIG_ENDIAN, "a big-endian NumPy array" },
		{ PADDLE_STRUCTURED, "of a type that is not read" },
		{ PADDLE_OBJECTS, "of Python objects" },
	};

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		const struct shf_foreign_note *note;
		struct sheaf_error err;
		struct shf_foreign *f;
		struct simdisk *disk;
		size_t n;

		CHECK_RC(opens(paddle_file(good + 2, 2, flaws[i].flaw), &disk, &f, &err), 0, &err);
		(void)shf_foreign_tensors(f, &n);
		CHECK_INT(n, 0);
		note = (const void *)f->notes.data;
		CHECK_INT(f->notes.len, 4 * sizeof(*note));
		CHECK_STR(note[3].key, SHF_UNREAD_NOTE);
		CHECK_STR(note[3].text, "2");
		if (!strstr(note[2].text, flaws[i].why))
			fail_msg("want '%s', got '%s'", flaws[i].why, note[2].text);
		shf_foreign_free(f);
		simdisk_free(disk);
	}
}

TEST(a_file_that_is_cut_anywhere_or_goes_on_is_refused)
{
	struct torch_bytes file = paddle_file(good + 2, 4, PADDLE_SOUND), copy;
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;
	int refused = 0;

	for (size_t n = 1; n <= file.n; n++) {
		int rc;

		copy = (struct torch_bytes){ 0 };
		torch_add(&copy, file.p, n);
		if (n == file.n)
			torch_add(&copy, "", 1);
		rc = opens(copy, &disk, &f, &err);
		/* What ends before its first array is not taken for a paddle.save file. */
		CHECK(rc == SHEAF_EFORMAT || (rc == 1 && n < 60));
		CHECK(rc == 1 || strncmp(err.msg, FILE_PD, strlen(FILE_PD)) == 0);
		refused += rc == SHEAF_EFORMAT;
		simdisk_free(disk);
	}
	CHECK_INT(refused + 60 > (int)file.n, 1);
	free(file.p);
}

/* Frees f, reads all of "l.1.w" from the file instead, and returns the code. */
static int reads(struct shf_foreign *f, struct simdisk *disk, struct sheaf_error *err)
{
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F64, .ndim = 3, .name = "l.1.w",
		.shape = { 7, 3, 5 }, .count = { 7, 3, 5 } };
	double got[105];
	int rc;

	shf_foreign_free(f);
	s.data = got;
	rc = shf_step_open_path(&step, FILE_PD, NULL, NULL, sys, err);
	if (rc == 0)
		rc = shf_step_read(step, &s, err);
	shf_step_put(step);
	return rc;
}

TEST(a_text_that_is_not_the_bytes_of_the_array_is_refused_when_it_is_read)
{
	static const struct { enum paddle_flaw flaw; const char *why; } flaws[] = {
		{ PADDLE_BAD_TEXT, "has a character that is not a byte" },
		{ PADDLE_WIDE_TEXT, "has a character that is not a byte" },
	};

	for (size_t i = 0; i < 2; i++) {
		struct sheaf_error err;
		struct shf_foreign *f;
		struct simdisk *disk;

		CHECK_RC(opens(paddle_file(good + 2, 1, flaws[i].flaw), &disk, &f, &err), 0, &err);
		CHECK_INT(reads(f, disk, &err), SHEAF_EFORMAT);
		if (!strstr(err.msg, flaws[i].why))
			fail_msg("want '%s', got '%s'", flaws[i].why, err.msg);
		simdisk_free(disk);
	}
}

TEST(what_would_call_something_is_refused)
{
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;

	CHECK_INT(opens(paddle_file(good + 2, 1, PADDLE_EVAL), &disk, &f, &err), SHEAF_EFORMAT);
	CHECK(strstr(err.msg, "would call builtins.eval; nothing of it was executed") != NULL);
	simdisk_free(disk);
}

/* ---- arrays in parts ---- */

struct cut { const char *name; int64_t from, to; };

/* A file in which "l.1.w" is stored in these parts, and what is said of it. */
static struct torch_bytes file_of_parts(const struct cut *cuts, int n, int64_t rows,
                                        enum paddle_flaw flaw)
{
	struct torch_bytes b = { 0 };

	torch_add(&b, "\x80\3}(", 4);
	for (int i = 0; i < n; i++) {
		if (cuts[i].to < 0)
			continue;
		torch_text(&b, cuts[i].name);
		paddle_array(&b, "model", &good[2], cuts[i].from, cuts[i].to, flaw);
	}
	torch_text(&b, "UnpackBigParamInfor@@");
	torch_add(&b, "}", 1);
	torch_text(&b, "l.1.w");
	torch_add(&b, "}(", 2);
	torch_text(&b, "OriginShape");
	torch_add(&b, "(", 1);
	torch_int(&b, rows);
	torch_int(&b, 3);
	torch_int(&b, 5);
	torch_add(&b, "t", 1);
	torch_text(&b, "slices");
	torch_add(&b, "(", 1);
	for (int i = 0; i < n; i++)
		torch_text(&b, cuts[i].name);
	torch_add(&b, "lusu.", 5);
	return b;
}

TEST(an_array_in_parts_is_read_as_one)
{
	static const struct cut cuts[] = { { "p@@.0", 0, 11 }, { "p@@.1", 11, 64 },
		{ "p@@.2", 64, 65 }, { "p@@.3", 65, 105 } };

	for (int k = 0; k < 2; k++) {
		enum paddle_flaw form = k ? PADDLE_TEXT : PADDLE_SOUND;
		struct simdisk *disk = disk_with(FILE_PD, file_of_parts(cuts, 4, 7, form));
		const struct shf_sys *sys = simdisk_process(disk, 77, 0);
		struct sheaf_checkpoint *step = NULL;
		struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F64, .ndim = 3,
			.name = "l.1.w", .shape = { 7, 3, 5 }, .start = { 1, 0, 1 },
			.count = { 5, 3, 3 } };
		struct sheaf_error err = { 0 };
		uint64_t got[45];

		s.data = got;
		CHECK_RC(shf_step_open_path(&step, FILE_PD, NULL, NULL, sys, &err), 0, &err);
		CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
		for (int i = 0; i < 45; i++)
			CHECK(got[i] == hand_value("model", "l.1.w", SHEAF_F64,
			                           (1 + i / 9) * 15 + i % 9 / 3 * 5 + 1 + i % 3));
		shf_step_put(step);
		simdisk_free(disk);
	}
}

TEST(parts_that_do_not_make_the_array_are_refused)
{
	static const struct { struct cut cuts[2]; int64_t rows; const char *why; } lies[] = {
		{ { { "p", 0, 60 }, { "q", 60, 105 } }, 8, "fewer items than its shape" },
		{ { { "p", 0, 60 }, { "q", 60, 105 } }, 6, "more items than its shape" },
		{ { { "p", 0, 60 }, { "q", 60, -1 } }, 7, "a part is missing" },
		{ { { "p", 0, 60 }, { "p", 60, 105 } }, 7, "a part is named twice" },
		{ { { "p", 0, 105 }, { "q", 60, 105 } }, 7, "not an array of one dimension" },
		{ { { "p", 0, 60 }, { "q", 60, 105 } }, -7, "its shape is not known" },
		{ { { "p", 0, 60 }, { "q", 60, 105 } }, INT64_MAX, "its shape is not known" },
	};

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct sheaf_error err;
		struct shf_foreign *f;
		struct simdisk *disk;

		CHECK_INT(opens(file_of_parts(lies[i].cuts, 2, lies[i].rows, PADDLE_SOUND), &disk,
		                &f, &err), SHEAF_EFORMAT);
		if (!strstr(err.msg, lies[i].why))
			fail_msg("want '%s', got '%s'", lies[i].why, err.msg);
		CHECK_INT(simdisk_open_n(simdisk_process(disk, 77, 0)), 0);
		simdisk_free(disk);
	}
}

/* The arrays stay in the file: what is read of a large one at the opening is a page or so, in each
 * of the two passes over the opcodes. */
TEST(opening_a_file_reads_no_array)
{
	static const struct torch_tensor large[] = { T("a", F32, 1, .shape = { 1 << 20 }),
		T("b", F32, 1, .shape = { 1 << 20 }) };
	struct sheaf_error err;
	struct shf_foreign *f;
	struct simdisk *disk;
	uint64_t read = 0;

	CHECK_RC(opens(paddle_file(large, 2, PADDLE_SOUND), &disk, &f, &err), 0, &err);
	for (size_t i = 0; i < simdisk_calls(disk); i++) {
		const char *text = simdisk_call_text(disk, i), *n = strstr(text, "pread");

		read += n != NULL;
	}
	CHECK(read > 0 && read < 16);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* ---- a pickle in a file is what it is in memory ---- */

static bool is_same(const struct shf_pk *a, const struct shf_pk *b, int depth)
{
	uint32_t n = a->kind == SHF_PK_DICT ? 2 * a->n : a->n;

	if (a->kind != b->kind || a->n != b->n || depth > 9)
		return false;
	switch (a->kind) {
	case SHF_PK_STR: return memcmp(a->u.s, b->u.s, a->n) == 0;
	case SHF_PK_GLOBAL: return strcmp(a->u.s, b->u.s) == 0;
	case SHF_PK_FLOAT: return memcmp(&a->u.f, &b->u.f, 8) == 0;
	case SHF_PK_INT: return a->u.i == b->u.i;
	default: break;
	}
	for (uint32_t i = 0; a->kind >= SHF_PK_TUPLE && a->kind <= SHF_PK_DICT && i < n; i++)
		if (!is_same(a->u.a[i], b->u.a[i], depth + 1))
			return false;
	return true;
}

/* Values of all kinds, of many lengths, so that every opcode lies across the end of a window. */
static struct torch_bytes many_values(void)
{
	struct torch_bytes b = { 0 };
	char text[400];

	memset(text, 'x', sizeof(text));
	torch_add(&b, "\x80\2}(", 4);
	for (int i = 0; i < 3000; i++) {
		uint8_t head[5] = { 'X', (uint8_t)(i * 7 % 256), (uint8_t)(i * 7 % 400 > 255) };
		size_t n = head[1] + 256u * head[2];

		if (n > sizeof(text))
			head[2] = 0;
		n = head[1] + 256u * head[2];
		torch_add(&b, head, 5);
		torch_add(&b, text, n);
		switch (i % 6) {
		case 0: torch_add(&b, "I-123456\n", 9); break;
		case 1: torch_add(&b, "F0.25\n", 6); break;
		case 2: torch_add(&b, "G\x3f\xf0\0\0\0\0\0\0", 9); break;
		case 3: torch_add(&b, "(K\1J\1\2\3\4M\1\2t", 12); break;
		case 4: torch_add(&b, "ccollections\nOrderedDict\n)R", 27); break;
		default: torch_add(&b, "](VA text\nU\3abce", 16); break;
		}
	}
	torch_add(&b, "u.", 2);
	return b;
}

TEST(a_pickle_read_from_a_file_is_what_it_is_in_memory)
{
	struct torch_bytes b = many_values();
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct shf_region r = { .sys = sys, .bytes = b.n, .where = "f" };
	struct shf_pickle in_memory, in_file;
	struct sheaf_error err = { 0 };

	CHECK_INT(simdisk_put(disk, FILE_PD, b.p, b.n), 0);
	r.fd = shf_sys_open(sys, SHF_CWD, FILE_PD, 0, 0);
	CHECK(r.fd >= 0 && b.n > 500000);
	CHECK_RC(shf_pickle_read(&in_memory, b.p, b.n, "f", &err), 0, &err);
	CHECK_RC(shf_pickle_read_file(&in_file, &r, NULL, &err), 0, &err);
	CHECK_INT(in_memory.root->n, 3000);
	CHECK(is_same(in_memory.root, in_file.root, 0));
	CHECK_INT(in_file.records, in_memory.records);
	CHECK_INT(in_file.bytes, b.n);
	shf_pickle_release(&in_file);
	for (size_t cut = 1; cut < b.n; cut += 997) {
		struct sheaf_error other = { 0 };

		r.bytes = cut;
		CHECK_INT(shf_pickle_read_file(&in_file, &r, NULL, &err), SHEAF_EFORMAT);
		CHECK(in_file.cut);
		shf_pickle_release(&in_file);
		shf_pickle_release(&in_memory);
		CHECK_INT(shf_pickle_read(&in_memory, b.p, cut, "f", &other), SHEAF_EFORMAT);
		CHECK(strcmp(err.msg, other.msg) == 0);
	}
	shf_pickle_release(&in_memory);
	shf_sys_close(sys, r.fd);
	simdisk_free(disk);
	free(b.p);
}
