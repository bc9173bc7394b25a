/* SPDX-License-Identifier: Apache-2.0 */
/* A whole directory, bent, and everything that reads one: list, open, show, find, read, verify,
 * load in pieces, what pruning would do. Each ends with a code that it may give, gives back its
 * descriptors and its memory, and takes no more of it than SLACK and four times what the files say
 * they hold; a load that says yes gives the bytes of the files; what verify calls good, loads.
 */
#include "sheaf-admin.h"
#include "sheaf-inspect.h"
#include "world.h"
#include <malloc.h>
#include "step.h"
#include "fuzz.h"
#include "safetensors.h"
#include "run_open.h"
#include "state.h"
#include "step_open.h"

#define SLACK (INT64_C(64) << 20)
#define LOAD_MAX (UINT64_C(4) << 20)    /* of one tensor */
#define READ_MAX (UINT64_C(16) << 20)   /* of a directory: more is not read to the end */
enum { TENSORS_MAX = 32, PIECES_MAX = 3 };

/* ---- what is allocated, by the target and by what it calls ---- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static struct {
	int64_t now, peak, most;        /* bytes; most: above it nobody may ask */
	bool on;
} memory;

static void ask(size_t n)
{
	if (memory.on && (n > INT64_MAX / 2 || memory.now + (int64_t)n > memory.most)) {
		fprintf(stderr, "%zu bytes asked for, beside %lld, of %lld\n", n,
		        (long long)memory.now, (long long)memory.most);
		abort();
	}
}

static void *count(void *p)
{
	if (memory.on && p) {
		memory.now += (int64_t)malloc_usable_size(p);
		memory.peak = memory.now > memory.peak ? memory.now : memory.peak;
	}
	return p;
}

static void uncount(void *p)
{
	if (memory.on && p)
		memory.now -= (int64_t)malloc_usable_size(p);
}

void *__wrap_malloc(size_t n)
{
	ask(n);
	return count(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
	size_t bytes;

	ask(__builtin_mul_overflow(n, size, &bytes) ? SIZE_MAX : bytes);
	return count(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
	void *more;

	ask(n);
	uncount(p);
	more = __real_realloc(p, n);
	return more ? count(more) : (count(p), NULL);
}

void __wrap_free(void *p)
{
	uncount(p);
	__real_free(p);
}

/* ---- codes ---- */

static int ended(int rc, const struct sheaf_error *err)
{
	MUST(rc >= SHEAF_EFAILED);
	MUST(rc != SHEAF_EBUG && rc != SHEAF_ENOMEM && rc != SHEAF_EAGAIN && rc != SHEAF_ELOST);
	MUST(rc >= 0 || !err || (err->msg[0] && memchr(err->msg, 0, sizeof(err->msg))));
	return rc;
}

/* ---- loading, and what the files say ---- */

struct piece {
	uint8_t *data;
	int64_t start, count;
};
struct held {
	struct sheaf_tensor t;
	int dim, pieces_n;              /* dim -1: whole */
	struct piece pieces[PIECES_MAX];
};

static struct sheaf_slice slice_of(const struct sheaf_tensor *t)
{
	struct sheaf_slice s = { .size = sizeof(s), .family = t->family, .name = t->name,
		.dtype = t->dtype, .ndim = t->ndim };

	memcpy(s.shape, t->shape, sizeof(s.shape));
	memcpy(s.count, t->shape, sizeof(s.count));
	return s;
}

/* The tensor in pieces along a dimension, as the input wants it. Its bytes are not more than
 * LOAD_MAX. */
static void hold(struct held *h, struct sheaf_state *state, const struct world *w)
{
	int pieces = 1 + w->use % PIECES_MAX;
	int64_t n;

	h->dim = h->t.ndim && sheaf_dtype_bits(h->t.dtype) >= 8
	       ? (w->use >> 2 & 1 ? h->t.ndim - 1 : 0) : -1;
	n = h->dim < 0 ? 1 : h->t.shape[h->dim];
	for (int k = 0; k < (h->dim < 0 ? 1 : pieces); k++) {
		struct sheaf_slice s = slice_of(&h->t);
		struct piece *p = &h->pieces[h->pieces_n++];

		p->start = h->dim < 0 ? 0 : n / pieces * k;
		p->count = h->dim < 0 ? 1 : (k < pieces - 1 ? n / pieces * (k + 1) : n) - p->start;
		if (h->dim >= 0) {
			s.start[h->dim] = p->start;
			s.count[h->dim] = p->count;
		}
		p->data = malloc((size_t)h->t.bytes + 1);
		MUST(p->data);
		memset(p->data, 0xA5, (size_t)h->t.bytes + 1);
		s.data = p->data;
		MUST(sheaf_state_add(state, &s, NULL) >= 0);
	}
}

/* The file of a tensor, all of it; links are followed. */
static uint8_t *file_read(struct world *w, struct sheaf_checkpoint *step, const char *name,
                          uint64_t *n)
{
	const struct shf_sys *sys = &w->disk.sys;
	struct shf_stat st;
	uint8_t *bytes;
	char path[400];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", step->path, name);
	if (strcmp(step->format, "safetensors") == 0)
		snprintf(path, sizeof(path), "%s", step->path);
	fd = shf_sys_open(sys, SHF_CWD, path, 0, 0);
	MUST(fd >= 0 && shf_sys_fstat(sys, fd, &st) >= 0 && st.bytes < 2 * READ_MAX);
	bytes = malloc((size_t)st.bytes + 1);
	MUST(bytes);
	MUST(shf_sys_pread(sys, fd, bytes, (size_t)st.bytes, 0) == (int64_t)st.bytes);
	shf_sys_close(sys, fd);
	*n = st.bytes;
	return bytes;
}

static void compare(const struct held *h, const uint8_t *want)
{
	uint64_t unit = (uint64_t)sheaf_dtype_bits(h->t.dtype) / 8, outer = 1, n;

	if (h->dim < 0) {
		MUST(memcmp(h->pieces[0].data, want, (size_t)h->t.bytes) == 0);
		return;
	}
	for (int d = 0; d < h->t.ndim; d++) {
		unit *= d > h->dim ? (uint64_t)h->t.shape[d] : 1;
		outer *= d < h->dim ? (uint64_t)h->t.shape[d] : 1;
	}
	n = (uint64_t)h->t.shape[h->dim] * unit;
	for (int k = 0; k < h->pieces_n && h->t.bytes; k++) {
		const struct piece *p = &h->pieces[k];
		uint64_t bytes = (uint64_t)p->count * unit;

		for (uint64_t o = 0; o < outer; o++)
			MUST(memcmp(p->data + o * bytes,
			            want + o * n + (uint64_t)p->start * unit, (size_t)bytes) == 0);
	}
}

/* A tensor that was loaded is the one that the header of its file describes. */
static void is_right(struct world *w, struct sheaf_checkpoint *step, const struct held *h)
{
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	struct shf_st st;
	uint64_t n, header;
	uint8_t *bytes = file_read(w, step, h->t.file, &n);
	bool seen = false;

	MUST(shf_st_header_bytes(&header, bytes, n, "", &err) == 0);
	MUST(shf_st_parse(&st, &arena, bytes, (size_t)header, n, "", &err) == 0);
	for (size_t i = 0; i < st.n; i++) {
		const struct shf_st_tensor *t = &st.tensors[i];

		if (strcmp(t->name, h->t.tied_to ? h->t.tied_to : h->t.name))
			continue;
		MUST(t->dtype == h->t.dtype && t->ndim == h->t.ndim && t->bytes == h->t.bytes);
		MUST(!memcmp(t->shape, h->t.shape, sizeof(t->shape)));
		compare(h, bytes + header + t->off);
		seen = true;
	}
	MUST(seen);
	shf_arena_release(&arena);
	free(bytes);
}

static int load(struct world *w, struct sheaf_checkpoint *step)
{
	static struct held held[TENSORS_MAX];
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_error err = { .msg = "" };
	int n = 0, rc;

	MUST(state);
	memset(held, 0, sizeof(held));
	for (size_t i = 0; n < TENSORS_MAX; i++) {
		struct held *h = &held[n];

		h->t.size = sizeof(h->t);
		if (sheaf_checkpoint_tensor(step, i, &h->t, NULL) < 0)
			break;
		if (h->t.ndim > SHEAF_DIMS_MAX || h->t.bytes > LOAD_MAX || h->t.tied_to)
			continue;
		hold(h, state, w);
		n++;
	}
	rc = ended(sheaf_checkpoint_load(step, state, w->use & 8 ? SHEAF_LOAD_STRICT : 0, &report,
	                                 &err),
	           &err);
	for (int i = 0; i < n; i++) {
		if (rc == 0 && !w->changes)
			is_right(w, step, &held[i]);
		for (int k = 0; k < held[i].pieces_n; k++)
			free(held[i].pieces[k].data);
	}
	sheaf_state_free(state);
	return rc;
}

/* ---- looking ---- */

/* One tensor alone: found by its name, read whole. */
static void read_one(struct sheaf_checkpoint *step, const struct sheaf_tensor *t)
{
	struct sheaf_tensor found = { .size = sizeof(found) };
	struct sheaf_slice s = slice_of(t);
	struct sheaf_error err = { .msg = "" };

	MUST(sheaf_checkpoint_find(step, t->family, t->name, &found, NULL) == 0);
	MUST(found.bytes == t->bytes && found.offset == t->offset);
	if (t->ndim > SHEAF_DIMS_MAX || t->bytes > LOAD_MAX)
		return;
	s.data = malloc((size_t)t->bytes + 1);
	MUST(s.data);
	(void)ended(sheaf_checkpoint_read(step, &s, &err), &err);
	free(s.data);
}

static void show(struct sheaf_checkpoint *step)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct sheaf_tensor t = { .size = sizeof(t) };
	const char *a, *b;
	const void *bytes;
	uint64_t n;
	size_t got;

	MUST(sheaf_checkpoint_get_info(step, &info, NULL) == 0 && info.format[0]);
	/* Asleep first, where it can be. */
	(void)ended(sheaf_checkpoint_find(step, "optimizer", "a/moment1_0", &t, NULL), NULL);
	(void)ended(sheaf_checkpoint_find(step, NULL, "b.w", &t, NULL), NULL);
	for (size_t i = 0; sheaf_checkpoint_note_at(step, i, &a, &b, NULL) == 0; i++)
		MUST(sheaf_checkpoint_note(step, a) == b);
	for (size_t i = 0; sheaf_checkpoint_file_at(step, i, &a, &n, NULL) == 0; i++)
		if (ended(sheaf_checkpoint_file(step, a, &bytes, &got, NULL), NULL) == 0)
			MUST(got == n);
	for (size_t i = 0; sheaf_checkpoint_tensor(step, i, &t, NULL) == 0; i++)
		read_one(step, &t);
}

static void look(struct world *w, struct sheaf_checkpoint *step)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	int verified, loaded;

	show(step);
	if (w->input > READ_MAX)
		return;
	verified = ended(sheaf_checkpoint_verify(step, &report, &err), &err);
	loaded = load(w, step);
	MUST(!w->sound || ((w->hf ? verified == SHEAF_EFORMAT : verified == 0) && loaded == 0));
	MUST(verified != 0 || w->changes || loaded != SHEAF_ECORRUPT);
}

static void by_path(struct world *w, const char *path, uint64_t flags)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY | flags };
	struct sheaf_error err = { .msg = "" };
	struct sheaf_checkpoint *step = NULL;

	if (ended(shf_step_open_path(&step, path, NULL, &opts, &w->disk.sys, &err), &err) == 0)
		look(w, step);
	MUST(!w->sound || step);
	sheaf_checkpoint_close(step);
}

static int one_item(void *arg, const struct sheaf_item *item)
{
	(void)arg;
	MUST(item->step >= 0 && item->path[0]);
	return 0;
}

static void one_pruned(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	(void)arg;
	MUST(step >= 0 && (what == 'k' || what == 'r') && why[0]);
}

static void in_run(struct world *w)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
	                           .keep_last = 1 };
	struct sheaf_error err = { .msg = "" };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_run *run = NULL;

	if (ended(shf_run_open(&run, "run", NULL, &opts, &w->disk.sys, &err), &err) < 0) {
		MUST(!w->sound);
		return;
	}
	(void)ended(sheaf_run_list(run, one_item, NULL, &err), &err);
	(void)ended(sheaf_run_prune(run, 1, one_pruned, NULL, &err), &err);
	if (ended(sheaf_checkpoint_open(&step, run, w->use & 16 ? 7 : SHEAF_LATEST, &err),
	          &err) == 0)
		look(w, step);
	MUST(!w->sound || step);
	sheaf_checkpoint_close(step);
	sheaf_run_close(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct world w;
	char path[100];

	if (!world_make(&w, data, size))
		return 0;
	memory.now = memory.peak = 0;
	memory.most = SLACK + 4 * (int64_t)w.input;
	memory.on = true;
	snprintf(path, sizeof(path), "hf/%s", w.files[0].name);
	if (w.hf && w.use & 32)
		by_path(&w, path, 0);
	else if (w.hf)
		by_path(&w, "hf", 0);
	else if (w.use & 32)
		by_path(&w, "run/checkpoint-7", w.use & 64 ? SHEAF_RUN_UNVERIFIED : 0);
	else
		in_run(&w);
	memory.on = false;
	MUST(w.disk.open_n == 0);
	MUST(memory.now == 0);
	world_release(&w);
	return 0;
}
