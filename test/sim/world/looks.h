/* SPDX-License-Identifier: Apache-2.0 */
/* A small committed step, ways to damage it, ways to repair the checksums over the damage, and
 * verifies by one rank and by three that must report exactly the damage. Include once, in the
 * test's only file. */
#ifndef LOOKS_H
#define LOOKS_H
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include "crc64.h"
#include "sheaf-inspect.h"
#include "sheaf-stat.h"
#include "step.h"
#include "err.h"
#include "layouts.h"
#include "save.h"
#include "simdisk.h"
#include "simgroup.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "deal_home.h"
#include "step_open.h"
#include "verify_step.h"

#define SEED UINT64_C(0x7e57)
#define STEP "run/checkpoint-7/"
enum { SLICES = 128, FOUND_MAX = 64, RANKS_MAX = 5, FILES_MAX = 32, TWIN = 5000,
       TENSORS = 2 };           /* in addition to those of layouts.h */

struct found {
	char what[16], file[96], family[40], name[64], msg[500];
	int64_t block, offset;
};
struct look {                   /* one verify, and its findings */
	struct simdisk *disk;
	const char *path;               /* NULL: step 7 of the run */
	const struct shf_sys *sys[RANKS_MAX];
	void (*between)(struct simdisk *disk);  /* called when the step is open */
	uint64_t flags;
	int ranks, opened;
	struct found found[FOUND_MAX];
	int n;
	struct sheaf_report report[RANKS_MAX];
	struct sheaf_error err[RANKS_MAX];
	uint64_t phase5;                /* bytes that the progress call reported */
};

/* ---- a run ---- */

static int save_rank(void *arg, int rank, struct sheaf_group *group)
{
	struct sheaf_slice slices[SLICES], tied, twin = { .size = sizeof(twin), .name = "w",
		.dtype = SHEAF_U8, .ndim = 1, .shape = { TWIN }, .count = { TWIN } };
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
	                           .file_bytes_max = 700000 };
	struct sheaf_run *run = NULL;
	struct sheaf_save *save = NULL;
	struct sheaf_error err = { 0 };
	struct sheaf_state *state = shf_state_new();
	uint8_t twins[2][TWIN];
	int n, rc;
	struct lay_memory *m = lay_hold(&layouts[0], rank, slices, SLICES, &n, true, SEED);

	for (int i = 0; i < n; i++)
		(void)shf_state_add(state, &slices[i], NULL);
	tied = slices[0];
	tied.tied_to = tied.name;
	tied.name = "head.weight";
	(void)shf_state_add(state, &tied, NULL);
	for (int i = 0; i < 2; i++) { /* two files of one size and one header */
		twin.family = i ? "twin_b" : "twin_a";
		memset(twins[i], 'a' + i, TWIN);
		twin.data = twins[i];
		(void)shf_state_add(state, &twin, NULL);
	}
	rc = shf_run_open(&run, "run", group, &opts, arg, &err);
	if (rc == 0)
		rc = shf_save_begin(&save, run, 7, state, NULL, &err);
	if (rc == 0)
		rc = shf_save_attach(save, "config.json", "{\"a\": 1}\n", 9, NULL);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &err);
	if (rc < 0)
		print_error("saving: %d %s\n", rc, err.msg);
	shf_save_free(save);
	shf_run_put(run);
	shf_state_put(state);
	lay_free(m);
	return rc;
}

static struct simdisk *disk_new(void)
{
	struct simdisk *disk = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *sys = simdisk_process(disk, 99, 0);

	CHECK_INT(save_rank((void *)(uintptr_t)sys, 0, NULL), 0);
	simdisk_kill(disk, sys);
	return disk;
}

/* ---- a verify ---- */

static void hear(void *arg, const struct sheaf_finding *f)
{
	struct look *l = arg;
	struct found *to = &l->found[l->n < FOUND_MAX ? l->n : FOUND_MAX - 1];

	l->n++;
	snprintf(to->what, sizeof(to->what), "%s", sheaf_finding_kind_name(f->kind));
	snprintf(to->file, sizeof(to->file), "%s", f->file);
	snprintf(to->family, sizeof(to->family), "%s", f->family);
	snprintf(to->name, sizeof(to->name), "%s", f->name);
	snprintf(to->msg, sizeof(to->msg), "%s", f->msg);
	to->block = f->block;
	to->offset = f->offset;
}

static int progress(void *arg, const struct sheaf_stat *stat)
{
	struct look *l = arg;

	if (stat->phase == 5)
		l->phase5 = stat->copied;
	return 0;
}

static int look_rank(void *arg, int rank, struct sheaf_group *group)
{
	struct look *l = arg;
	struct shf_opts opts = { .flags = l->flags, .timeout_ms = 60000,
	                           .progress = progress, .arg = l };
	struct sheaf_report *report = &l->report[rank];
	struct sheaf_error *err = &l->err[rank];
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	int rc;

	*report = (struct sheaf_report){ .size = sizeof(*report), .finding = hear, .arg = l };
	if (l->path) {
		rc = shf_step_open_path(&step, l->path, group, &opts, l->sys[rank], err);
	} else {
		rc = shf_run_open(&run, "run", group, &opts, l->sys[rank], err);
		if (rc == 0)
			rc = shf_step_open(&step, run, 7, err);
	}
	if (rc == 0) {
		l->opened++;
		if (l->between && rank == 0)
			l->between(l->disk);
		rc = shf_step_verify(step, report, err);
	}
	shf_step_put(step);
	shf_run_put(run);
	return rc;
}

/* Runs the verify. Returns the code, which must be the same on all ranks. */
static int verify(struct look *l)
{
	static uint64_t pid = 1000;
	struct simgroup_opts o = { .seed = pid, .ranks = l->ranks };
	int results[RANKS_MAX], rc = 0;

	l->n = l->opened = 0;
	for (int r = 0; r < l->ranks; r++)
		l->sys[r] = simdisk_process(l->disk, pid++, r);
	if (l->ranks == 1)
		results[0] = look_rank(l, 0, NULL);
	else
		rc = simgroup_run(&o, look_rank, l, results);
	CHECK_INT(rc, 0);
	for (int r = 0; r < l->ranks; r++) {
		CHECK_INT(results[r], results[0]);
		CHECK_INT(simdisk_open_n(l->sys[r]), 0);
		simdisk_kill(l->disk, l->sys[r]);
		if (l->opened) {
			CHECK_INT(l->report[r].findings, l->report[0].findings);
			CHECK_STR(l->err[r].msg, l->err[0].msg);
		}
	}
	return results[0];
}

struct want {
	const char *what, *file, *family, *name;        /* NULL: any */
	int64_t block;                  /* -2: any */
};

static void tell(const struct look *l)
{
	for (int i = 0; i < l->n && i < FOUND_MAX; i++)
		print_error("  %s %s block %" PRId64 " tensor %s/%s: %s\n", l->found[i].what,
		            l->found[i].file, l->found[i].block, l->found[i].family,
		            l->found[i].name, l->found[i].msg);
}

static bool is(const struct found *f, const struct want *w)
{
	return (!w->what || !strcmp(f->what, w->what)) && (!w->file || !strcmp(f->file, w->file)) &&
	       (!w->family || !strcmp(f->family, w->family)) &&
	       (!w->name || !strcmp(f->name, w->name)) && (w->block == -2 || f->block == w->block);
}

/* Checks that one rank and three ranks report each of these findings once, and no others. */
static void expect(struct simdisk *disk, const char *path, const struct want *want, int n)
{
	static const int ranks[] = { 1, 3 };

	for (int k = 0; k < 2; k++) {
		struct look l = { .disk = disk, .path = path, .ranks = ranks[k] };
		int rc = verify(&l), missed = 0;

		for (int i = 0; i < n; i++) {
			int hits = 0;

			for (int j = 0; j < l.n && j < FOUND_MAX; j++)
				hits += is(&l.found[j], &want[i]);
			if (hits != 1)
				print_error("%s of %s: %d times\n", want[i].what, want[i].file,
				            hits);
			missed += hits != 1;
		}
		if (rc != SHEAF_ECORRUPT || l.n != n || missed)
			tell(&l);
		CHECK_RC(rc, SHEAF_ECORRUPT, &l.err[0]);
		CHECK_INT(missed, 0);
		CHECK_INT(l.n, n);
		CHECK_INT(l.report[0].findings, n);
		CHECK(strstr(l.err[0].msg, l.found[0].msg) || n > 1);
	}
}

__attribute__((unused))
static void expect_one(struct simdisk *disk, const char *what, const char *file)
{
	expect(disk, NULL, &(struct want){ what, file, "", "", -2 }, 1);
}

/* ---- places in files ---- */

struct table {                  /* sheaf.sums in memory, for reads and changes */
	uint8_t *bytes;
	size_t n;
	struct shf_sums s;
};

static uint64_t table_crc(const struct table *t)
{
	uint64_t pages = t->s.head.pages_off;

	return shf_crc64_more(shf_crc64(t->bytes, SHF_SUMS_HEADER), t->bytes + pages,
	                      t->n - (size_t)pages);
}

static struct table table_read(struct simdisk *disk)
{
	struct table t = { 0 };
	struct sheaf_error err;

	t.bytes = simdisk_get(disk, STEP "sheaf.sums", &t.n);
	CHECK(t.bytes);
	t.s.bytes = t.bytes;
	CHECK_RC(shf_sums_get_head(&t.s.head, t.bytes, t.n, "sums", &err), 0, &err);
	return t;
}

/* The files have the same order in the table and in the manifest. */
struct files {
	char name[FILES_MAX][96];
	int n;
};

static void names_in(const char *text, const char *list, struct files *out)
{
	const char *p = strstr(text, list), *end = p ? strchr(p, ']') : NULL;

	while (p && (p = strstr(p, "{\"name\": \"")) && p < end && out->n < FILES_MAX) {
		p += strlen("{\"name\": \"");
		snprintf(out->name[out->n++], sizeof(out->name[0]), "%.*s",
		         (int)strcspn(p, "\""), p);
	}
}

static char *manifest_text(struct simdisk *disk)
{
	size_t n;
	char *bytes = simdisk_get(disk, STEP "sheaf.json", &n), *text = calloc(n + 1, 1);

	CHECK(bytes && text);
	memcpy(text, bytes, n);
	free(bytes);
	return text;
}

static struct files files_of(struct simdisk *disk)
{
	struct files f = { .n = 0 };
	char *text = manifest_text(disk);

	names_in(text, "\"files\": [\n", &f);
	free(text);
	CHECK(f.n > 4);
	return f;
}

/* Returns all files of the step but the manifest. */
__attribute__((unused))
static struct files all_files(struct simdisk *disk)
{
	struct files f = files_of(disk);
	char *text = manifest_text(disk);

	names_in(text, "\"attached\": [\n", &f);
	free(text);
	snprintf(f.name[f.n++], sizeof(f.name[0]), "sheaf.sums");
	return f;
}

static const char *path_of(const char *name)
{
	static char path[200];

	snprintf(path, sizeof(path), STEP "%s", name);
	return path;
}

__attribute__((unused))
static void flip(struct simdisk *disk, const char *name, uint64_t byte, unsigned bit)
{
	CHECK_INT(simdisk_flip(disk, path_of(name), 8 * byte + bit), 0);
}

static void put(struct simdisk *disk, const char *name, const void *bytes, size_t n)
{
	CHECK_INT(simdisk_put(disk, path_of(name), bytes, n), 0);
}

/* ---- repair of checksums ---- */

/* Replaces `from`, which must occur once, and recomputes the manifest's own checksum. */
static void manifest_edit(struct simdisk *disk, const char *from, const char *to)
{
	char *text = manifest_text(disk), *p = strstr(text, from);
	size_t n = strlen(text), from_n = strlen(from), to_n = strlen(to);
	char *out = calloc(n + to_n + 1, 1);

	CHECK(p && !strstr(p + 1, from) && out);
	memcpy(out, text, (size_t)(p - text));
	memcpy(out + (p - text), to, to_n);
	strcpy(out + (p - text) + to_n, p + from_n);
	n = strlen(out);
	snprintf(out + n - 31, 32, ",\n \"self\": \"%016" PRIx64 "\"}\n", shf_crc64(out, n - 31));
	put(disk, "sheaf.json", out, n);
	free(out);
	free(text);
}

static void crc_edit(struct simdisk *disk, uint64_t from, uint64_t to)
{
	char a[17], b[17];

	snprintf(a, sizeof(a), "%016" PRIx64, from);
	snprintf(b, sizeof(b), "%016" PRIx64, to);
	manifest_edit(disk, a, b);
}

/* Recomputes the page checksums of the table, and its checksum in the manifest. Frees the table. */
__attribute__((unused))
static void table_write(struct simdisk *disk, struct table *t)
{
	uint64_t was = table_crc(t), pages = t->s.head.pages_off;

	for (uint64_t at = 0, p = pages; at < pages; at += SHF_SUMS_PAGE, p += 8) {
		uint64_t n = pages - at < SHF_SUMS_PAGE ? pages - at : SHF_SUMS_PAGE;

		shf_put64(t->bytes + p, shf_crc64(t->bytes + at, (size_t)n));
	}
	put(disk, "sheaf.sums", t->bytes, t->n);
	crc_edit(disk, was, table_crc(t));
	free(t->bytes);
}

static uint64_t crc_of(struct simdisk *disk, const char *name)
{
	size_t n;
	void *bytes = simdisk_get(disk, path_of(name), &n);
	uint64_t crc = shf_crc64(bytes, n);

	free(bytes);
	return crc;
}

/* Replaces a text in a file by another one of equal length. */
__attribute__((unused))
static void patch(struct simdisk *disk, const char *name, const char *from, const char *to)
{
	size_t n, len = strlen(from);
	uint8_t *bytes = simdisk_get(disk, path_of(name), &n), *p = bytes;

	CHECK(bytes && len == strlen(to));
	while (p + len <= bytes + n && memcmp(p, from, len))
		p++;
	CHECK(p + len <= bytes + n);
	memcpy(p, to, len);
	put(disk, name, bytes, n);
	free(bytes);
}

/* Recomputes the checksum of block 0 of file f, in the table and in the manifest. */
__attribute__((unused))
static void mend_block(struct simdisk *disk, const char *name, uint64_t f, uint64_t was)
{
	struct table t = table_read(disk);
	struct shf_sums_file sf = shf_sums_file(&t.s, f);
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(name), &n);

	shf_put64(t.bytes + t.s.head.blocks_off + 8 * sf.first_block,
	          shf_crc64(bytes, n < 1 << 20 ? n : 1 << 20));
	table_write(disk, &t);
	crc_edit(disk, was, crc_of(disk, name));
	free(bytes);
}
#endif
