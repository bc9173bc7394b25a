/* SPDX-License-Identifier: Apache-2.0 */
/* Which files of a directory that sheaf did not write are its weights, which lie beside them, and
 * the whole sentence where it is no checkpoint. */
#include "hands.h"
#include <errno.h>
#include <stdlib.h>
#include "simover.h"
#include "step_attached.h"
#include "t.h"

static struct sheaf_error err;

static void put(struct simdisk *disk, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

/* A file of one tensor, named as the file is. */
static void weights(struct simdisk *disk, const char *dir, const char *file)
{
	struct hand_tensor t = { "", SHEAF_F32, 1, { 3 } };
	char path[200];

	t.name = file;
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	hands_file(disk, path, &t, 1, 0);
}

static struct sheaf_checkpoint *opened(struct simdisk *disk, const char *path, uint64_t flags,
                                       int *rc)
{
	static uint64_t pid = 900;
	struct shf_opts o = { .flags = flags };
	struct sheaf_checkpoint *step = NULL;

	*rc = shf_step_open_path(&step, path, NULL, &o, simdisk_process(disk, pid++, 0), &err);
	return step;
}

/* Its files, with a blank behind each. */
static void files_are(struct simdisk *disk, const char *path, const char *want)
{
	char got[500] = "";
	int rc;
	struct sheaf_checkpoint *step = opened(disk, path, 0, &rc);

	CHECK_RC(rc, 0, &err);
	CHECK_INT(step->cat_rc, 0);
	for (size_t i = 0; i < step->layout.files_n; i++)
		snprintf(got + strlen(got), 80, "%s ", step->layout.files[i].name);
	CHECK_STR(got, want);
	shf_step_put(step);
}

static void refused(struct simdisk *disk, const char *path, int code, const char *sentence)
{
	int rc;
	struct sheaf_checkpoint *step = opened(disk, path, 0, &rc);

	CHECK_RC(rc, code, &err);
	CHECK_STR(err.msg, sentence);
	CHECK(!step);
}

/* It opens, and whoever loads it is told this. */
static void has_no_headers(struct simdisk *disk, int code, const char *sentence)
{
	int rc;
	struct sheaf_checkpoint *step = opened(disk, "hf", 0, &rc);

	CHECK_RC(rc, 0, &err);
	CHECK_RC(step->cat_rc, code, &step->cat_err);
	CHECK_STR(step->cat_err.msg, sentence);
	shf_step_put(step);
}

/* ---- names of shards ---- */

#define NOT_THERE(name) "hf: " name " is missing"
static const struct {
	const char *files[6];
	const char *are, *sentence;     /* one of them */
} shards[] = {
	{ { "w.safetensors" }, "w.safetensors ", NULL },
	{ { "b.safetensors", "a.safetensors" }, "a.safetensors b.safetensors ", NULL },
	{ { "model.safetensors", "a.safetensors", "m-00001-of-00002.safetensors" },
	  "model.safetensors ", NULL },
	{ { "m-00001-of-00001.safetensors" }, "m-00001-of-00001.safetensors ", NULL },
	{ { "m-00001-of-00002.safetensors" }, NULL, NOT_THERE("m-00002-of-00002.safetensors") },
	{ { "m-00002-of-00002.safetensors" }, NULL, NOT_THERE("m-00001-of-00002.safetensors") },
	{ { "m-00002-of-00003.safetensors", "m-00003-of-00003.safetensors" }, NULL,
	  NOT_THERE("m-00001-of-00003.safetensors") },
	{ { "m-00001-of-00003.safetensors", "m-00003-of-00003.safetensors" }, NULL,
	  NOT_THERE("m-00002-of-00003.safetensors") },
	{ { "m-00001-of-00003.safetensors", "m-00002-of-00003.safetensors" }, NULL,
	  NOT_THERE("m-00003-of-00003.safetensors") },
	{ { "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors" },
	  "m-00001-of-00002.safetensors m-00002-of-00002.safetensors ", NULL },
	{ { "m-00001-of-00002.safetensors", "x-00002-of-00002.safetensors" }, NULL,
	  NOT_THERE("m-00002-of-00002.safetensors") },
	{ { "m-00000-of-00000.safetensors" }, "m-00000-of-00000.safetensors ", NULL },
	{ { "m-00000-of-00001.safetensors" }, NULL, NOT_THERE("m-00001-of-00001.safetensors") },
	{ { "m-00009-of-00001.safetensors" }, NULL, NOT_THERE("m-00001-of-00001.safetensors") },
	{ { "-00001-of-00002.safetensors" }, NULL, NOT_THERE("-00002-of-00002.safetensors") },
	{ { "00001-of-00002.safetensors" }, "00001-of-00002.safetensors ", NULL },
	{ { "one-of-many.safetensors" }, "one-of-many.safetensors ", NULL },
	{ { "a-of-b-00001-of-00002.safetensors" }, NULL,
	  NOT_THERE("a-of-b-00002-of-00002.safetensors") },
};

TEST(shards_are_missed_by_their_names)
{
	for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]); i++) {
		struct simdisk *disk = disk_new();

		for (int k = 0; k < 6 && shards[i].files[k]; k++)
			weights(disk, "hf", shards[i].files[k]);
		if (shards[i].are)
			files_are(disk, "hf", shards[i].are);
		else
			refused(disk, "hf", SHEAF_ECORRUPT, shards[i].sentence);
		simdisk_free(disk);
	}
}

/* ---- indexes ---- */

#define MAP(a, b) "{\"weight_map\":{\"" a "\":\"" a "\",\"" b "\":\"" b "\"}}"

TEST(the_models_index_counts_or_the_only_one)
{
	struct simdisk *disk = disk_new();

	weights(disk, "hf", "a.safetensors");
	weights(disk, "hf", "b.safetensors");
	weights(disk, "hf", "c.safetensors");
	put(disk, "hf/x.safetensors.index.json", MAP("b.safetensors", "a.safetensors"));
	files_are(disk, "hf", "a.safetensors b.safetensors ");
	put(disk, "hf/y.safetensors.index.json", MAP("c.safetensors", "a.safetensors"));
	files_are(disk, "hf", "a.safetensors b.safetensors c.safetensors ");
	put(disk, "hf/model.safetensors.index.json", MAP("b.safetensors", "c.safetensors"));
	files_are(disk, "hf", "b.safetensors c.safetensors ");
	put(disk, "hf/model.safetensors.index.json",
	    "{\"weight_map\":{\"b.safetensors\":\"c.safetensors\"}}");
	has_no_headers(disk, SHEAF_EFORMAT, "hf: the index says that tensor b.safetensors is in "
	               "c.safetensors, but neither that file nor another one of the index has it");
	put(disk, "hf/model.safetensors.index.json", MAP("b.safetensors", "d.safetensors"));
	has_no_headers(disk, SHEAF_EFORMAT, "hf: the index says that tensor d.safetensors is in "
	               "d.safetensors, but neither that file nor another one of the index has it");
	put(disk, "hf/model.safetensors.index.json", "{");
	files_are(disk, "hf", "a.safetensors b.safetensors c.safetensors ");
	simdisk_free(disk);
}

/* ---- headers ---- */

TEST(a_file_whose_header_cannot_be_had_is_told_by_its_name)
{
	struct simdisk *disk = disk_new();
	static const struct {
		enum simdisk_kind kind;
		int nth, error, fired;
		const char *sentence;
	} rows[] = {            /* the first open and the first read find out what this is */
		{ SIMDISK_OPEN, 1, EACCES, 4, "hf/w.safetensors: Permission denied" },
		{ SIMDISK_OPEN, 2, EACCES, 3, "hf/w.safetensors: Permission denied" },
		{ SIMDISK_FSTAT, 1, EACCES, 1, "hf/w.safetensors: Permission denied" },
		{ SIMDISK_PREAD, 1, EACCES, 2,
		  "hf/w.safetensors: reading 8 bytes at 0: Permission denied" },
		{ SIMDISK_PREAD, 3, EACCES, 1,
		  "hf/w.safetensors: reading 106 bytes at 0: Permission denied" },
		{ SIMDISK_PREAD, 2, EIO, 4,
		  "hf/w.safetensors: reading 8 bytes at 0: Input/output error" },
	};
	char seven[8] = "";

	weights(disk, "hf", "w.safetensors");
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = rows[i].nth,
			.error = rows[i].error, .always = true, .kind = rows[i].kind,
			.name = "w.safetensors" });
		has_no_headers(disk, SHEAF_EIO, rows[i].sentence);
		CHECK_INT(simdisk_fired(disk), rows[i].fired);
		simdisk_faults_clear(disk);
	}
	for (size_t n = 0; n < 8; n++) {
		char want[80];

		CHECK_INT(simdisk_put(disk, "hf/w.safetensors", seven, n), 0);
		snprintf(want, sizeof(want), "hf/w.safetensors: %zu bytes are too short for a "
		         "safetensors file",
		         n);
		has_no_headers(disk, SHEAF_EFORMAT, want);
	}
	CHECK_INT(simdisk_remove(disk, "hf/w.safetensors"), 0);
	put(disk, "hf/w.safetensors/inside", "x");
	has_no_headers(disk, SHEAF_EFORMAT, "hf/w.safetensors: not a regular file");
	simdisk_free(disk);
}

/* ---- what lies beside the weights ---- */

TEST(what_is_no_weights_and_has_a_plain_name_is_attached)
{
	static const char *const beside[] = { "README.md", "config.json", "tokenizer.json" };
	static const char *const not[] = { "a.bin", "a.pt", "a.pth", "a.ckpt", "a.h5", "a.msgpack",
		"a.onnx", "a.gguf", "a.npz", "a.pdparams", "a.pdopt", "a.distcp",
		"x.bin.index.json", "sub/inside.txt" };
	struct simdisk *disk = disk_new();
	char path[100];
	const void *bytes;
	size_t n;
	int rc;

	weights(disk, "hf", "w.safetensors");
	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "hf/%s", beside[i]);
		put(disk, path, beside[i]);
	}
	for (size_t i = 0; i < sizeof(not) / sizeof(not[0]); i++) {
		snprintf(path, sizeof(path), "hf/%s", not[i]);
		put(disk, path, "x");
	}
	struct sheaf_checkpoint *step = opened(disk, "hf", 0, &rc);

	CHECK_RC(rc, 0, &err);
	CHECK_STR(step->format, "hf");
	CHECK_INT(step->number, -1);
	CHECK_INT(step->plain_n, 3);
	for (size_t i = 0; i < 3; i++) {
		CHECK_STR(step->plain[i].name, beside[i]);
		for (int again = 0; again < 2; again++) {
			CHECK_RC(shf_step_attached(step, beside[i], &bytes, &n, &err), 0, &err);
			CHECK_INT(n, strlen(beside[i]));
			CHECK(memcmp(bytes, beside[i], n) == 0);
		}
	}
	CHECK_INT(step->files_n, 3);
	CHECK_INT(shf_step_attached(step, "a.bin", &bytes, &n, &err), SHEAF_ENOENT);
	CHECK_STR(err.msg, "hf: no attached file a.bin (sheaf show lists them)");
	CHECK_INT(shf_step_attached(step, NULL, &bytes, &n, &err), SHEAF_ENOENT);
	CHECK_STR(err.msg, "hf: no attached file  (sheaf show lists them)");
	shf_step_put(step);
	simdisk_free(disk);
}

/* The file has changed since it was listed, or it cannot be read. */
TEST(what_is_attached_is_read_as_it_was_found_or_refused_with_its_name)
{
	struct simdisk *disk = disk_new();
	const void *bytes;
	size_t n;
	int rc;
	static const struct {
		enum simdisk_kind kind;
		const char *sentence;
	} rows[] = { { SIMDISK_OPEN, "hf/b.txt: Permission denied" },
		{ SIMDISK_FSTAT, "hf/b.txt: Permission denied" },
		{ SIMDISK_PREAD, "hf/b.txt: Permission denied" } };

	weights(disk, "hf", "w.safetensors");
	put(disk, "hf/a.txt", "abc");
	put(disk, "hf/b.txt", "abc");
	put(disk, "hf/c.txt", "abc");
	struct sheaf_checkpoint *step = opened(disk, "hf", 0, &rc);

	CHECK_RC(rc, 0, &err);
	put(disk, "hf/a.txt", "abcd");
	CHECK_INT(shf_step_attached(step, "a.txt", &bytes, &n, &err), SHEAF_ECORRUPT);
	CHECK_STR(err.msg, "hf/a.txt: 4 bytes, want 3");
	for (size_t i = 0; i < 3; i++) {
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = EACCES,
			.kind = rows[i].kind, .name = "b.txt" });
		CHECK_INT(shf_step_attached(step, "b.txt", &bytes, &n, &err), SHEAF_EIO);
		CHECK_STR(err.msg, rows[i].sentence);
		CHECK_INT(simdisk_fired(disk), 1);
		simdisk_faults_clear(disk);
	}
	CHECK_INT(simdisk_remove(disk, "hf/c.txt"), 0);
	CHECK_INT(shf_step_attached(step, "c.txt", &bytes, &n, &err), SHEAF_ENOENT);
	CHECK_STR(err.msg, "hf/c.txt: No such file or directory");
	CHECK_INT(step->files_n, 0);
	shf_step_put(step);
	simdisk_free(disk);
}

/* ---- paths ---- */

TEST(a_file_is_opened_wherever_it_lies)
{
	static const char *const paths[] = { "w.safetensors", "./w.safetensors",
		"dir/w.safetensors", "/w.safetensors" };
	struct simdisk *disk = disk_new();

	weights(disk, ".", "w.safetensors");
	weights(disk, "dir", "w.safetensors");
	weights(disk, "", "w.safetensors");
	for (size_t i = 0; i < 4; i++) {
		int rc;
		struct sheaf_checkpoint *step = opened(disk, paths[i], 0, &rc);

		CHECK_RC(rc, 0, &err);
		CHECK_STR(step->format, "safetensors");
		CHECK_STR(step->path, paths[i]);
		CHECK_INT(step->layout.files_n, 1);
		CHECK_STR(step->layout.files[0].name, "w.safetensors");
		CHECK_INT(step->plain_n, 0);
		CHECK_INT(step->layout.tensors_n, 1);
		shf_step_put(step);
	}
	refused(disk, "", SHEAF_EINVAL, "argument 'path' is NULL or empty");
	refused(disk, NULL, SHEAF_EINVAL, "argument 'path' is NULL or empty");
	refused(disk, "gone", SHEAF_ENOENT, "gone: No such file or directory");
	simdisk_free(disk);
}

TEST(a_directory_that_was_a_step_once_is_refused_with_its_sentence)
{
	enum { MOST = 1 << 20 };
	char *text = calloc(1, MOST + 2);
	struct simdisk *disk = disk_new();
	struct sheaf_checkpoint *step;
	int rc;

	memset(text, ' ', MOST + 1);
	put(disk, "big/sheaf.json", text);
	refused(disk, "big", SHEAF_ECORRUPT, "big/sheaf.json: larger than 1 MiB");
	CHECK_INT(simdisk_put(disk, "big/sheaf.json", text, MOST), 0);
	step = opened(disk, "big", 0, &rc);
	CHECK(rc < 0 && !step && !strstr(err.msg, "larger"));
	put(disk, "odd/sheaf.json/x", "");
	refused(disk, "odd", SHEAF_ECORRUPT, "odd/sheaf.json: not a regular file");
	weights(disk, "sums", "w.safetensors");
	put(disk, "sums/sheaf.sums", "");
	refused(disk, "sums", SHEAF_ECORRUPT,
	        "sums: sheaf.json is missing, so sheaf.sums proves nothing; SHEAF_RUN_UNVERIFIED "
	        "reads it without checks");
	step = opened(disk, "sums", SHEAF_RUN_UNVERIFIED, &rc);
	CHECK_RC(rc, 0, &err);
	shf_step_put(step);
	put(disk, "none/readme", "");
	refused(disk, "none", SHEAF_EFORMAT, "none: not a checkpoint: no sheaf.json and no "
	        "*.safetensors (if it is a run directory, use sheaf_run_open, or name RUN@STEP)");
	free(text);
	simdisk_free(disk);
}

/* ---- past the page cache ---- */

static char directs[300];

static int open_and_note(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	if (flags & SHF_O_DIRECT)
		snprintf(directs + strlen(directs), 80, "%s ", name);
	return simover_real()->file.open(arg, dir, name, flags, mode);
}

TEST(a_verify_opens_what_has_a_whole_chunk_past_the_page_cache_too)
{
	enum { CHUNK = 4 << 20, HEADER = 8 };
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_checkpoint *step = NULL;
	size_t head;

	simover(sys)->file.open = open_and_note;
	for (int less = 0; less < 2; less++) {
		struct hand_tensor t = { less ? "a" : "b", SHEAF_U8, 1, { CHUNK - 100 } };
		char path[40];

		snprintf(path, sizeof(path), "hf/%s.safetensors", t.name);
		hands_file(disk, path, &t, 1, 0);
		free(simdisk_get(disk, path, &head));
		t.shape[0] += CHUNK - (int64_t)head - less;
		hands_file(disk, path, &t, 1, 0);
		free(simdisk_get(disk, path, &head));
		CHECK_INT(head, CHUNK - less);
	}
	CHECK_RC(shf_step_open_path(&step, "hf", NULL, NULL, sys, &err), 0, &err);
	directs[0] = '\0';
	CHECK_RC(shf_step_verify(step, NULL, &err), SHEAF_EFORMAT, &err);
	CHECK_STR(err.msg, "hf: well formed, but without checksums: its values cannot be checked");
	CHECK_STR(directs, "b.safetensors ");
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
}
