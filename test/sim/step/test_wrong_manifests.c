/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests that are whole but wrong, tables of sums that claim to be large, and folders and files
 * that are missing when they are read: each has its error. */
#include "acts.h"
#include <errno.h>
#include <stdlib.h>
#include "crc64.h"
#include "err.h"
#include "step_attached.h"
#include "t.h"
#include "run_open.h"
#include "save_attach.h"
#include "step.h"
#include "step_open.h"
#include "read_slice.h"
#include "run_ops.h"

#define STEP "run/checkpoint-7"
#define MIB ((size_t)1 << 20)

static void hold(struct hand *h)
{
	(void)hand_add(h, "model", "w", SHEAF_F32, 2, 5, 3);
	hand_add(h, "model", "head", SHEAF_F32, 2, 5, 3)->tied_to = "w";
	(void)hand_add(h, "optimizer", "w", SHEAF_F32, 2, 4, 3);
	hand_add(h, "optimizer", "head", SHEAF_F32, 2, 4, 3)->tied_to = "w";
}

static void attach(struct hand *h, struct sheaf_save *save)
{
	(void)h;
	(void)shf_save_attach(save, "tokens.json", "{}", 2, NULL);
}

struct claim {
	struct simdisk *disk;
	const struct shf_sys *own, *sys; /* who looks; the same, or what meddles with it */
	struct shf_arena arena;
	struct shf_manifest m;          /* as it was saved; seal writes what it says */
	struct sheaf_run *run;
	struct sheaf_checkpoint *step;
	struct sheaf_error err;
};

static void begin(struct claim *c)
{
	struct play p;
	uint8_t *text;
	size_t n = 0;

	*c = (struct claim){ .disk = disk_new() };
	p = hands_play(c->disk, 1, hold);
	p.during = attach;
	SAVED(p);
	c->own = c->sys = simdisk_process(c->disk, 9000, 0);
	text = simdisk_get(c->disk, STEP "/sheaf.json", &n);
	CHECK_RC(shf_manifest_decode(&c->m, &c->arena, text, n, "", &c->err), 0, &c->err);
	free(text);
}

static void seal(struct claim *c)
{
	struct shf_buf text = SHF_BUF_INIT;

	CHECK_RC(shf_manifest_encode(&text, &c->m, &c->err), 0, &c->err);
	CHECK_INT(simdisk_put(c->disk, STEP "/sheaf.json", text.data, text.len), 0);
	shf_buf_release(&text);
}

static int opens(struct claim *c)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	int rc = shf_run_open(&c->run, "run", NULL, &opts, c->sys, &c->err);

	return rc == 0 ? shf_step_open(&c->step, c->run, 7, &c->err) : rc;
}

/* A slice from the step that is open, and whether it is as it was saved. */
static int reads(struct claim *c, const char *family, const char *name)
{
	int64_t rows = strcmp(family, "model") == 0 ? 5 : 4;
	uint32_t got[15];
	struct sheaf_slice s = { .size = sizeof(s), .family = family, .name = name,
		.dtype = SHEAF_F32, .ndim = 2, .shape = { rows, 3 }, .count = { rows, 3 },
		.data = got };
	int rc = shf_step_read(c->step, &s, &c->err);

	for (int i = 0; i < 3 * rows && rc == 0; i++)
		if (got[i] != hand_value(family, "w", SHEAF_F32, i))
			rc = shf_fail(&c->err, SHEAF_EBUG, "%s/%s: item %d", family, name, i);
	return rc;
}

static void closes(struct claim *c)
{
	shf_step_put(c->step);
	shf_run_close(c->run);
	c->step = NULL;
	c->run = NULL;
	CHECK_INT(simdisk_open_n(c->own), 0);
}

static void end(struct claim *c)
{
	closes(c);
	shf_arena_release(&c->arena);
	simdisk_free(c->disk);
}

/* It opens, and its table is refused with this as soon as somebody reads. */
static void fails(struct claim *c, int code, const char *word)
{
	CHECK_RC(opens(c), 0, &c->err);
	CHECK(reads(c, "model", "w") < 0);
	SAID(c->step->sums_rc, code, word, &c->step->sums_err);
	CHECK(reads(c, "model", "w") < 0);
	closes(c);
}

/* ---- manifests ---- */

TEST(a_manifest_with_fewer_files_than_the_table_is_corrupt)
{
	struct claim c;

	begin(&c);
	c.m.families_n = c.m.files_n = c.m.tied_n = 1;
	CHECK_STR(c.m.attached[1].name, "optimizer/optimizer.safetensors.index.json");
	c.m.attached[1] = c.m.attached[--c.m.attached_n];
	seal(&c);
	fails(&c, SHEAF_ECORRUPT, "sheaf.sums: 2 files, the manifest has 1");
	end(&c);
}

TEST(ties_are_found_in_whichever_order_they_were_written)
{
	struct claim c;

	begin(&c);
	CHECK_INT(c.m.tied_n, 2);
	for (int i = 0; i < 2; i++) {
		struct shf_mf_tied first = c.m.tied[0];

		CHECK_RC(opens(&c), 0, &c.err);
		CHECK_RC(reads(&c, "model", "head"), 0, &c.err);
		CHECK_RC(reads(&c, "optimizer", "head"), 0, &c.err);
		CHECK_RC(reads(&c, "optimizer", "w"), 0, &c.err);
		closes(&c);
		c.m.tied[0] = c.m.tied[1];
		c.m.tied[1] = first;
		seal(&c);
	}
	end(&c);
}

TEST(an_attached_file_that_says_it_is_large_is_not_read)
{
	struct claim c;
	const void *bytes;
	size_t n, k = 0;

	begin(&c);
	while (strcmp(c.m.attached[k].name, "tokens.json"))
		k++;
	c.m.attached[k].bytes = 64 * MIB + 1;
	seal(&c);
	CHECK_RC(opens(&c), 0, &c.err);
	SAID(shf_step_attached(c.step, "tokens.json", &bytes, &n, &c.err), SHEAF_EINVAL,
	     "tokens.json: 67108865 bytes, at most 64 MiB", &c.err);
	end(&c);
}

/* ---- what is gone, or something else, when it is wanted ---- */

TEST(a_folder_that_is_gone_is_damage_and_named)
{
	static const char index[] = "optimizer/optimizer.safetensors.index.json";
	struct claim c;
	const void *bytes;
	size_t n;

	begin(&c);
	CHECK_RC(opens(&c), 0, &c.err);
	CHECK_INT(simdisk_remove(c.disk, STEP "/optimizer"), 0);
	CHECK_RC(reads(&c, "model", "w"), 0, &c.err);
	SAID(shf_step_attached(c.step, index, &bytes, &n, &c.err), SHEAF_ECORRUPT,
	     STEP "/optimizer: missing", &c.err);
	CHECK_INT(simdisk_put(c.disk, STEP "/optimizer", "is not a directory", 9), 0);
	SAID(shf_step_attached(c.step, index, &bytes, &n, &c.err), SHEAF_ECORRUPT,
	     STEP "/optimizer: missing: its name belongs to something that is not a directory",
	          &c.err);
	CHECK_INT(simdisk_remove(c.disk, STEP "/optimizer"), 0);
	CHECK_INT(simdisk_symlink(c.disk, "/elsewhere", STEP "/optimizer"), 0);
	SAID(shf_step_attached(c.step, index, &bytes, &n, &c.err), SHEAF_ECORRUPT,
	     STEP "/optimizer: missing: a symbolic link has its name", &c.err);
	SAID(reads(&c, "optimizer", "w"), SHEAF_ECORRUPT, STEP "/optimizer: ", &c.err);
	SAID(reads(&c, "model", "w"), SHEAF_ECORRUPT, STEP "/optimizer: ", &c.err);
	end(&c);
}

TEST(an_attached_file_that_is_gone_is_damage_and_one_that_cannot_be_read_is_not)
{
	struct simdisk_fault fault = { .nth = 1, .error = EIO, .kind = SIMDISK_PREAD,
		.name = "tokens.json" };
	struct claim c;
	const void *bytes;
	size_t n;

	begin(&c);
	CHECK_RC(opens(&c), 0, &c.err);
	simdisk_fault(c.disk, &fault);
	SAID(shf_step_attached(c.step, "tokens.json", &bytes, &n, &c.err), SHEAF_EIO,
	     STEP "/tokens.json", &c.err);
	fault.kind = SIMDISK_OPEN;
	fault.error = EACCES;
	simdisk_fault(c.disk, &fault);
	SAID(shf_step_attached(c.step, "tokens.json", &bytes, &n, &c.err), SHEAF_EIO,
	     STEP "/tokens.json", &c.err);
	CHECK_INT(c.err.sys, EACCES);
	CHECK_INT(simdisk_put(c.disk, STEP "/tokens.json", "{}  ", 4), 0);
	SAID(shf_step_attached(c.step, "tokens.json", &bytes, &n, &c.err), SHEAF_ECORRUPT,
	     "tokens.json: 4 bytes, want 2", &c.err);
	CHECK_INT(simdisk_remove(c.disk, STEP "/tokens.json"), 0);
	SAID(shf_step_attached(c.step, "tokens.json", &bytes, &n, &c.err), SHEAF_ECORRUPT,
	     "tokens.json: missing", &c.err);
	CHECK_INT(simdisk_symlink(c.disk, "/run/lock", STEP "/tokens.json"), 0);
	SAID(shf_step_attached(c.step, "tokens.json", &bytes, &n, &c.err), SHEAF_ECORRUPT,
	     "missing: a symbolic link has its name", &c.err);
	end(&c);
}

/* ---- tables that say they are large ---- */

/* Of two files that are said to be of 12 MiB each, and their 270,000 tensors; sealed. */
static uint8_t *large_table(struct claim *c, struct shf_sums_head *h)
{
	uint8_t *table;

	*h = (struct shf_sums_head){ .files_n = 2, .tensors_n = 270000, .blocks_n = 24,
		.names_bytes = 270000 };
	CHECK(shf_sums_layout(h));
	CHECK(h->bytes > SHF_SUMS_SMALL);
	table = calloc(1, h->bytes);
	CHECK(table != NULL);
	shf_sums_put_head(table, h);
	c->m.files[0].bytes = c->m.files[1].bytes = 12 * MIB;
	c->m.sums.bytes = h->bytes;
	CHECK_INT(simdisk_put(c->disk, STEP "/sheaf.sums", table, h->bytes), 0);
	seal(c);
	return table;
}

TEST(a_large_table_is_read_where_its_files_are_as_large)
{
	struct claim c;
	struct shf_sums_head h;
	uint8_t *table;
	char path[100];

	begin(&c);
	table = large_table(&c, &h);
	fails(&c, SHEAF_ECORRUPT, "is implausibly large for the files that it describes");
	/* Of the first file there is enough: the second one is not looked for. */
	snprintf(path, sizeof(path), STEP "/%s", c.m.files[0].name);
	CHECK_INT(simdisk_put(c.disk, path, table, 5 * MIB), 0);
	fails(&c, SHEAF_ECORRUPT, "sheaf.sums: checksum of header and page table");
	CHECK_INT(simdisk_remove(c.disk, STEP "/optimizer"), 0);
	fails(&c, SHEAF_ECORRUPT, "sheaf.sums: checksum of header and page table");
	free(table);
	end(&c);
}

TEST(files_that_are_gone_or_links_have_no_bytes_for_a_large_table)
{
	static const char said[] = "is implausibly large for the files that it describes";
	struct claim c;
	struct shf_sums_head h;
	char path[100];

	begin(&c);
	free(large_table(&c, &h));
	snprintf(path, sizeof(path), STEP "/%s", c.m.files[0].name);
	CHECK_INT(simdisk_remove(c.disk, path), 0);
	fails(&c, SHEAF_ECORRUPT, said);
	CHECK_INT(simdisk_symlink(c.disk, "/run/lock", path), 0);
	fails(&c, SHEAF_ECORRUPT, said);
	CHECK_INT(simdisk_remove(c.disk, STEP "/optimizer"), 0);
	fails(&c, SHEAF_ECORRUPT, said);
	CHECK_INT(simdisk_put(c.disk, STEP "/optimizer", "is not a directory", 9), 0);
	fails(&c, SHEAF_ECORRUPT, said);
	end(&c);
}

TEST(a_file_that_does_not_open_is_no_verdict_on_a_large_table)
{
	struct claim c;
	struct shf_sums_head h;
	struct simdisk_fault fault = { .nth = 1, .error = EIO, .kind = SIMDISK_FSTAT,
		.name = "optimizer-", .always = true };

	begin(&c);
	free(large_table(&c, &h));
	simdisk_fault(c.disk, &fault);
	fails(&c, SHEAF_EIO, "sheaf.sums: the files that it lists");
	simdisk_faults_clear(c.disk);
	fault.kind = SIMDISK_PREAD;
	fault.name = "sheaf.sums";
	simdisk_fault(c.disk, &fault);
	fails(&c, SHEAF_EIO, STEP "/sheaf.sums: ");
	end(&c);
}

/* Which has become short between two calls. */
TEST(a_large_table_that_becomes_short_is_corrupt)
{
	struct claim c;
	struct shf_sums_head h;
	begin(&c);
	free(large_table(&c, &h));
	simdisk_fault(c.disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_PREAD,
		.how = SIMDISK_PART, .name = "sheaf.sums", .always = true });
	CHECK_RC(opens(&c), 0, &c.err);
	CHECK(reads(&c, "model", "w") < 0);
	SAID(c.step->sums_rc, SHEAF_ECORRUPT, STEP "/sheaf.sums: shorter than its header says",
	     &c.step->sums_err);
	end(&c);
}
