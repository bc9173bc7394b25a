/* SPDX-License-Identifier: Apache-2.0 */
#include "harmrun.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "step.h"
#include "save.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "read_slice.h"
#include "run_ops.h"
#include "sheaf-admin.h"

static const struct tensor {
	const char *family, *name, *tied;
	int dtype, item, ndim;
	int64_t shape[2];
} tensors[] = {
	{ "model", "embed.weight", NULL, SHEAF_BF16, 2, 2, { 23, 12 } },
	{ "model", "head.weight", "embed.weight", SHEAF_BF16, 2, 2, { 23, 12 } },
	{ "model", "layers.0.w", NULL, SHEAF_F32, 4, 2, { 8, 12 } },
	{ "model", "layers.1.w", NULL, SHEAF_F32, 4, 2, { 8, 12 } },
	{ "model", "layers.1.void", NULL, SHEAF_F32, 4, 2, { 0, 5 } },
	{ "model", "norm", NULL, SHEAF_F32, 4, 1, { 31 } },
	{ "model", "steps", NULL, SHEAF_I64, 8, 0, { 0 } },
	{ "master_weights", "layers.0.w", NULL, SHEAF_F32, 4, 2, { 8, 12 } },
	{ "master_weights", "norm", NULL, SHEAF_F32, 4, 1, { 31 } },
	{ "optimizer", "layers.0.w/moment1_0", NULL, SHEAF_F32, 4, 2, { 8, 12 } },
	{ "optimizer", "layers.0.w/moment2_0", NULL, SHEAF_F32, 4, 2, { 8, 12 } },
};
#define TENSORS (sizeof(tensors) / sizeof(tensors[0]))
#define FILE_BYTES 1000         /* so that the model has two files */

static void *need(void *p)
{
	if (!p)
		abort();
	return p;
}

/* ---- values ---- */

static uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 31) * UINT64_C(0x7fb5d329728ea185);
	x = (x ^ x >> 27) * UINT64_C(0x81dadef4bc2dd44d);
	return x ^ x >> 33;
}

/* Computes bytes [from, from + n) of a tensor. */
static void values(uint8_t *to, const struct tensor *t, uint64_t salt, int64_t step, size_t from,
                   size_t n)
{
	uint64_t x = salt * 0x9e37 + (uint64_t)step;

	for (const char *p = t->family; *p; p++)
		x = mixed(x ^ (uint8_t)*p);
	for (const char *p = t->tied ? t->tied : t->name; *p; p++)
		x = mixed(x + (uint8_t)*p);
	for (size_t i = 0; i < n;) {
		uint64_t eight = mixed(x + (from + i) / 8);

		for (size_t k = (from + i) % 8; k < 8 && i < n; k++)
			to[i++] = (uint8_t)(eight >> 8 * k);
	}
}

/* ---- hands ---- */

/* Makes the rank's slice of rows [lo, hi) of a tensor; all ranks have a scalar. */
static struct sheaf_slice rows(const struct tensor *t, int rank, int ranks, size_t *from,
                               size_t *bytes)
{
	struct sheaf_slice s = { .size = sizeof(s), .family = t->family, .name = t->name,
		.tied_to = t->tied, .dtype = t->dtype, .ndim = t->ndim };
	size_t row = (size_t)t->item;

	for (int d = 0; d < t->ndim; d++) {
		s.shape[d] = s.count[d] = t->shape[d];
		row *= d ? (size_t)t->shape[d] : 1;
	}
	if (t->ndim) {
		s.start[0] = t->shape[0] * rank / ranks;
		s.count[0] = t->shape[0] * (rank + 1) / ranks - s.start[0];
	}
	*from = (size_t)s.start[0] * row;
	*bytes = (t->ndim ? (size_t)s.count[0] : 1) * row;
	return s;
}

void harm_hold(struct harm_hand *h, int rank, int ranks, uint64_t salt)
{
	size_t from, bytes, at = 0;

	*h = (struct harm_hand){ .salt = salt, .step = -1, .rank = rank, .ranks = ranks };
	for (size_t i = 0; i < TENSORS; i++) {
		(void)rows(&tensors[i], rank, ranks, &from, &bytes);
		h->n += bytes;
	}
	h->memory = need(malloc(h->n));
	h->want = need(malloc(h->n));
	h->state = need(shf_state_new());
	for (size_t i = 0; i < TENSORS; i++) {
		struct sheaf_slice s = rows(&tensors[i], rank, ranks, &from, &bytes);

		s.data = h->memory + at;
		if (shf_state_add(h->state, &s, NULL) < 0)
			abort();
		at += bytes;
	}
}

void harm_hand_release(struct harm_hand *h)
{
	shf_state_put(h->state);
	free(h->memory);
	free(h->want);
}

void harm_hand_want(struct harm_hand *h, int64_t step)
{
	size_t from, bytes, at = 0;

	memset(h->memory, 0xA5, h->n);
	for (size_t i = 0; i < TENSORS && h->step != step; i++) {
		(void)rows(&tensors[i], h->rank, h->ranks, &from, &bytes);
		values(h->want + at, &tensors[i], h->salt, step, from, bytes);
		at += bytes;
	}
	h->step = step;
}

int harm_read(struct sheaf_checkpoint *step, uint64_t salt, uint64_t i, bool *right, char who[130],
              struct sheaf_error *err)
{
	const struct tensor *t = &tensors[i % TENSORS];
	size_t from, n;
	struct sheaf_slice s = rows(t, 0, 1, &from, &n);
	uint8_t *got = need(malloc(n + 1)), *want = need(malloc(n + 1));
	int rc;

	s.data = got;
	memset(got, 0xA5, n);
	values(want, t, salt, step->number, 0, n);
	rc = shf_step_read(step, &s, err);
	*right = memcmp(got, want, n) == 0;
	snprintf(who, 130, "%s/%s", t->family, t->tied ? t->tied : t->name);
	free(got);
	free(want);
	return rc;
}

bool harm_hand_right(const struct harm_hand *h)
{
	return memcmp(h->memory, h->want, h->n) == 0;
}

bool harm_hand_touched(const struct harm_hand *h)
{
	for (size_t i = 0; i < h->n; i++)
		if (h->memory[i] != 0xA5)
			return true;
	return false;
}

/* ---- the run ---- */

int harm_save_step(struct sheaf_run *run, int64_t step, struct sheaf_state *state,
                   struct sheaf_error *err)
{
	static const char config[] = "{\"hidden_size\": 12, \"vocab_size\": 23}\n";
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, run, step, state, NULL, err);

	if (rc == 0)
		rc = shf_save_attach(save, "config.json", config, sizeof(config) - 1, NULL);
	if (rc == 0)
		rc = shf_save_note(save, "consumed_samples", "4096", NULL);
	if (rc == 0)
		rc = shf_save_note(save, "mesh", "dp=1", NULL);
	if (rc == 0)
		rc = shf_save_commit(save, -1, err);
	shf_save_free(save);
	return rc;
}

static int save_small(struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	uint8_t bytes[64];
	struct sheaf_slice s = { .size = sizeof(s), .name = "small", .dtype = SHEAF_U8,
		.ndim = 1, .shape = { 64 }, .count = { 64 }, .data = bytes };
	struct sheaf_state *state = need(shf_state_new());
	int rc;

	memset(bytes, (int)step, sizeof(bytes));
	(void)shf_state_add(state, &s, NULL);
	rc = harm_save_step(run, step, state, err);
	shf_state_put(state);
	return rc;
}

/* Puts a count of failed attempts, as a later version would leave it. */
static void put_tries(struct simdisk *disk, const char *dir)
{
	char path[200], *text, *session;
	size_t n;

	snprintf(path, sizeof(path), "%s/checkpoint-%d/sheaf.json", dir, HARM_LATEST);
	text = need(simdisk_get(disk, path, &n));
	session = need(memmem(text, n, "\"session\": \"", 12));
	snprintf(path, sizeof(path), "%s/.sheaf/tries/%d-%.32s", dir, HARM_LATEST, session + 12);
	if (simdisk_put(disk, path, "1\n", 2) < 0)
		abort();
	free(text);
}

void harm_save(struct simdisk *disk, const char *dir, uint64_t salt)
{
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
		.file_bytes_max = FILE_BYTES };
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	struct harm_hand h;
	int rc = shf_run_open(&run, dir, NULL, &opts, sys, &err);

	harm_hold(&h, 0, 1, salt);
	for (int64_t step = HARM_OLDER; step <= HARM_LATEST && rc == 0; step++) {
		harm_hand_want(&h, step);
		memcpy(h.memory, h.want, h.n);
		rc = harm_save_step(run, step, h.state, &err);
	}
	for (int64_t step = HARM_BAD; step <= HARM_BAD + 1 && rc == 0; step++)
		rc = save_small(run, step, &err);
	if (rc == 0)
		rc = shf_run_rewind(run, HARM_BAD, &err);
	if (rc == 0)
		rc = shf_run_mark(run, HARM_BAD, SHEAF_MARK_BAD, &err);
	if (rc == 0)
		rc = shf_run_mark(run, HARM_OLDER, SHEAF_MARK_KEEP, &err);
	if (rc < 0) {
		fprintf(stderr, "%s: %d %s\n", dir, rc, err.msg);
		abort();
	}
	shf_run_close(run);
	harm_hand_release(&h);
	put_tries(disk, dir);
	simdisk_kill(disk, sys);
	simdisk_settle(disk);
}

struct simdisk *harm_copy(struct simdisk *disk)
{
	return simdisk_crash(disk, simdisk_cut_n(disk) - 1, NULL);
}

/* ---- its files ---- */

struct names {
	char name[HARM_FILES][100];
	int n;
};

static int hear(void *arg, const char *name)
{
	struct names *l = arg;

	if (l->n == HARM_FILES)
		abort();
	snprintf(l->name[l->n++], sizeof(l->name[0]), "%s", name);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

static bool ends_in(const char *s, const char *tail)
{
	size_t n = strlen(s), m = strlen(tail);

	return n >= m && strcmp(s + n - m, tail) == 0;
}

static void add(struct harm_run *r, struct simdisk *disk, const char *dir, const char *path)
{
	struct harm_file *f = &r->files[r->files_n++];
	const char *rest = path + strlen(dir) + 1, *slash = strchr(rest, '/');

	if (r->files_n > HARM_FILES || !slash)
		abort();
	snprintf(f->path, sizeof(f->path), "%s", path);
	snprintf(f->name, sizeof(f->name), "%s", slash + 1);
	f->step = -1;
	f->kind = HARM_DOT;
	if (sscanf(rest, "checkpoint-%lld/", (long long *)&f->step) == 1)
		f->kind = strcmp(f->name, "sheaf.json") == 0 ? HARM_MANIFEST
		        : strcmp(f->name, "sheaf.sums") == 0 ? HARM_SUMS
		        : ends_in(f->name, ".safetensors") ? HARM_WEIGHTS
		        : ends_in(f->name, ".index.json") ? HARM_INDEX : HARM_ATTACHED;
	f->bytes = need(simdisk_get(disk, path, &f->n));
	r->bytes += f->n;
}

static void walk(struct harm_run *r, struct simdisk *disk, const struct shf_sys *sys,
                 const char *dir, const char *path)
{
	struct names *l = need(calloc(1, sizeof(*l)));
	int fd = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0);

	if (fd < 0 || shf_sys_list(sys, fd, hear, l) < 0)
		abort();
	qsort(l->name, (size_t)l->n, sizeof(l->name[0]), by_name);
	for (int i = 0; i < l->n; i++) {
		char below[200];
		struct shf_stat st;

		snprintf(below, sizeof(below), "%s/%s", path, l->name[i]);
		if (shf_sys_stat(sys, fd, l->name[i], false, &st) < 0)
			abort();
		if (st.type == SHF_T_DIR)
			walk(r, disk, sys, dir, below);
		else
			add(r, disk, dir, below);
	}
	shf_sys_close(sys, fd);
	free(l);
}

void harm_walk(struct harm_run *r, struct simdisk *disk, const char *dir)
{
	const struct shf_sys *sys = simdisk_process(disk, 78, 0);

	*r = (struct harm_run){ .files_n = 0 };
	walk(r, disk, sys, dir, dir);
	simdisk_kill(disk, sys);
}

void harm_release(struct harm_run *r)
{
	for (int i = 0; i < r->files_n; i++)
		free(r->files[i].bytes);
}

const struct harm_file *harm_find(const struct harm_run *r, int64_t step, const char *name)
{
	for (int i = 0; i < r->files_n; i++)
		if (r->files[i].step == step && strcmp(r->files[i].name, name) == 0)
			return &r->files[i];
	return NULL;
}

/* Parses "name":{"dtype":"F32","shape":[..],"data_offsets":[a,b]}, one after another. */
void harm_owner(const struct harm_file *f, size_t at, char family[40], char name[80])
{
	static const char key[] = "\"data_offsets\":[";
	const char *text = (const char *)f->bytes + 8, *slash = strrchr(f->name, '/');
	size_t header = 8, lo, hi;

	family[0] = name[0] = '\0';
	if (f->kind != HARM_WEIGHTS)
		return;
	for (int i = 0; i < 8; i++)
		header += (size_t)f->bytes[i] << 8 * i;
	for (const char *p = text; at >= header;) {
		const char *end = (const char *)f->bytes + header, *open, *quote;

		p = memmem(p, (size_t)(end - p), key, sizeof(key) - 1);
		if (!p)
			return;
		p += sizeof(key) - 1;
		if (sscanf(p, "%zu,%zu]", &lo, &hi) != 2 || at < header + lo || at >= header + hi)
			continue;
		open = need(memrchr(text, '{', (size_t)(p - text)));
		quote = need(memrchr(text, '"', (size_t)(open - 2 - text)));
		snprintf(name, 80, "%.*s", (int)(open - 2 - quote - 1), quote + 1);
		snprintf(family, 40, "%.*s", slash ? (int)(slash - f->name) : 5,
		         slash ? f->name : "model");
		return;
	}
}
