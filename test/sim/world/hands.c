/* SPDX-License-Identifier: Apache-2.0 */
#include "hands.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "items.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "takes.h"

int hand_bits(int dtype)
{
	switch (dtype) {
	case SHEAF_F4: return 4;
	case SHEAF_F6_E2M3: case SHEAF_F6_E3M2: return 6;
	case SHEAF_U16: case SHEAF_I16: case SHEAF_F16: case SHEAF_BF16: return 16;
	case SHEAF_U32: case SHEAF_I32: case SHEAF_F32: return 32;
	case SHEAF_U64: case SHEAF_I64: case SHEAF_F64: case SHEAF_C64: return 64;
	default: return 8;
	}
}

/* Encodes a small integer in a float type with so many bits of exponent and fraction. */
static uint64_t small_float(int v, int exponent, int fraction)
{
	uint64_t sign = v < 0, a = (uint64_t)abs(v);
	int e = 0;

	if (v == 0)
		return 0;
	while (a >> (e + 1))
		e++;
	uint64_t bias = (UINT64_C(1) << (exponent - 1)) - 1;
	uint64_t rest = a - (UINT64_C(1) << e);
	uint64_t m = fraction >= e ? rest << (fraction - e) : rest >> (e - fraction);

	return sign << (exponent + fraction) | (bias + (uint64_t)e) << fraction | m;
}

static uint64_t salt_of(const char *family, const char *name)
{
	uint64_t x = 0xcbf29ce484222325u;

	for (const char *p = family ? family : "model"; *p; p++)
		x = (x ^ (uint8_t)*p) * 0x100000001b3u;
	x = (x ^ '/') * 0x100000001b3u;
	for (const char *p = name; *p; p++)
		x = (x ^ (uint8_t)*p) * 0x100000001b3u;
	return x;
}

static uint64_t value(uint64_t salt, int dtype, int64_t i)
{
	uint64_t x = salt + 0x9E3779B97F4A7C15u * (uint64_t)(i + 1);
	int v;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	v = (int)(x % 15) - 7;
	switch (dtype) {
	case SHEAF_BOOL: return x & 1;
	case SHEAF_F16: return small_float(v, 5, 10);
	case SHEAF_BF16: return small_float(v, 8, 7);
	case SHEAF_F32: return small_float(v, 8, 23);
	case SHEAF_F64: return small_float(v, 11, 52);
	case SHEAF_F8_E4M3: return small_float(v, 4, 3);
	case SHEAF_F8_E5M2: return small_float(v, 5, 2);
	default: return hand_bits(dtype) == 64 ? x : x & ((UINT64_C(1) << hand_bits(dtype)) - 1);
	}
}

uint64_t hand_value(const char *family, const char *name, int dtype, int64_t global)
{
	return value(salt_of(family, name), dtype, global);
}

struct sheaf_slice *hand_add(struct hand *h, const char *family, const char *name, int dtype,
                             int ndim, ...)
{
	struct sheaf_slice *s = &h->s[h->n];
	va_list args;

	if (h->n == HAND_SLICES)
		abort();
	*s = (struct sheaf_slice){ .size = sizeof(*s), .family = family, .name = name,
		.dtype = dtype, .ndim = ndim };
	va_start(args, ndim);
	for (int d = 0; d < ndim; d++)
		s->shape[d] = s->count[d] = va_arg(args, int);
	va_end(args);
	h->want[h->n] = HAND_VALUES;
	h->family[h->n] = h->name[h->n] = NULL;
	h->n++;
	return s;
}

void hand_want(struct hand *h, enum hand_want want)
{
	h->want[h->n - 1] = want;
}

void hand_as(struct hand *h, const char *family, const char *name)
{
	h->family[h->n - 1] = family;
	h->name[h->n - 1] = name;
}

void hand_cut(struct sheaf_slice *s, int dim, int64_t i, int64_t n)
{
	items_cut(s, dim, i, n);
}

void *hand_block(struct hand *h, int64_t bytes)
{
	size_t n = (size_t)(bytes > 0 ? bytes : 1);
	uint8_t *p = malloc(n);

	if (h->blocks_n == HAND_BLOCKS || !p)
		abort();
	memset(p, 0xA5, n);
	h->blocks_bytes[h->blocks_n] = n;
	h->blocks[h->blocks_n++] = p;
	return p;
}

const char *hand_text(struct hand *h, const char *a, const char *b)
{
	size_t n = strlen(a) + strlen(b) + 1;
	char *p = malloc(n);

	if (h->texts_n == HAND_BLOCKS || !p)
		abort();
	snprintf(p, n, "%s%s", a, b);
	return h->texts[h->texts_n++] = p;
}

static int memory_type(const struct sheaf_slice *s)
{
	return s->data_dtype ? s->data_dtype : s->dtype;
}

/* Converts a slice of a type smaller than a byte: its last dimension becomes bytes. */
static struct sheaf_slice in_bytes(const struct sheaf_slice *s)
{
	struct sheaf_slice b = *s;
	int bits = hand_bits(s->dtype), last = s->ndim - 1;

	if (bits % 8 == 0 || last < 0)
		return b;
	b.dtype = SHEAF_U8;
	b.shape[last] = b.shape[last] * bits / 8;
	b.start[last] = b.start[last] * bits / 8;
	b.count[last] = b.count[last] * bits / 8;
	b.origin = b.origin * bits / 8;
	b.flat_start = b.flat_start * bits / 8;
	b.flat_count = b.flat_count * bits / 8;
	return b;
}

struct each {
	struct hand *h;
	int k;
	void (*item)(void *, struct hand *, int, int64_t, uint8_t *);
	void *arg;
};

static void each_item(void *arg, int64_t global, int64_t at)
{
	struct each *e = arg;
	const struct sheaf_slice *s = &e->h->s[e->k];
	int bits = hand_bits(s->dtype) % 8 ? 8 : hand_bits(memory_type(s));

	e->item(e->arg, e->h, e->k, global, (uint8_t *)s->data + at * (bits / 8));
}

void hand_each(struct hand *h, int k,
               void (*item)(void *arg, struct hand *h, int slice, int64_t global, uint8_t *at),
               void *arg)
{
	struct sheaf_slice s = in_bytes(&h->s[k]);

	items_each(&s, each_item, &(struct each){ h, k, item, arg });
}

/* A slice that is painted or compared, with values that are the same for all its items */
struct picture {
	uint64_t salt;
	uint8_t *data;
	int type, bytes, per;           /* bytes: of an item; per: from one item to the next */
	enum hand_want want;
	int64_t wrong, first;           /* items that differ, and the number of the first, */
	uint64_t was, due;              /* its value, and the expected one */
};

static struct picture picture_of(const struct hand *h, int k)
{
	const struct sheaf_slice *s = &h->s[k];
	const char *name = h->name[k] ? h->name[k] : s->tied_to ? s->tied_to : s->name;
	int type = memory_type(s), bits = hand_bits(type);

	return (struct picture){ .salt = salt_of(h->family[k] ? h->family[k] : s->family, name),
		.data = s->data, .type = type, .bytes = (bits + 7) / 8,
		.per = hand_bits(s->dtype) % 8 ? 1 : bits / 8, .want = h->want[k] };
}

static void paint(void *arg, int64_t global, int64_t at)
{
	struct picture *p = arg;
	uint64_t v = value(p->salt, p->type, global);

	memcpy(p->data + at * p->per, &v, (size_t)p->bytes);
}

static void look(void *arg, int64_t global, int64_t at)
{
	struct picture *p = arg;
	uint64_t want = 0, got = 0;

	if (p->want == HAND_KEPT)
		want = 0xA5A5A5A5A5A5A5A5u >> (64 - 8 * p->bytes);
	else if (p->want != HAND_ZEROS)
		want = value(p->salt, p->type, global);
	memcpy(&got, p->data + at * p->per, (size_t)p->bytes);
	if (got != want && p->wrong++ == 0) {
		p->first = global;
		p->was = got;
		p->due = want;
	}
}

int64_t hand_wrong(struct hand *h, char *why, size_t n)
{
	int64_t wrong = 0;

	for (int k = 0; k < h->n; k++) {
		struct sheaf_slice s = in_bytes(&h->s[k]);
		struct picture p = picture_of(h, k);

		if (h->want[k] != HAND_ANY)
			items_each(&s, look, &p);
		if (p.wrong && !wrong)
			snprintf(why, n, "%s/%.100s item %lld: %llx, want %llx",
			         s.family ? s.family : "model", s.name, (long long)p.first,
			         (unsigned long long)p.was, (unsigned long long)p.due);
		wrong += p.wrong;
	}
	return wrong;
}

void hand_paint(struct hand *h)
{
	for (int k = 0; k < h->n; k++) {
		struct sheaf_slice s = in_bytes(&h->s[k]);
		struct picture p = picture_of(h, k);

		items_each(&s, paint, &p);
	}
}

void hand_fill(struct hand *h, int byte)
{
	for (int i = 0; i < h->blocks_n; i++)
		memset(h->blocks[i], byte, h->blocks_bytes[i]);
}

size_t hand_block_of(const struct hand *h, int slice, uint8_t **at)
{
	const uint8_t *data = h->s[slice].data;

	for (int i = 0; i < h->blocks_n; i++)
		if (data >= h->blocks[i] && data < h->blocks[i] + h->blocks_bytes[i]) {
			*at = h->blocks[i];
			return h->blocks_bytes[i];
		}
	return 0;
}

void hand_spoil(struct hand *h, int slice)
{
	uint8_t *at;
	size_t n = hand_block_of(h, slice, &at);

	if (n > 0)
		memset(at, 0x5A, n);
}

static int64_t touched(const struct hand *h)
{
	int64_t n = 0;

	for (int i = 0; i < h->blocks_n; i++)
		for (size_t k = 0; k < h->blocks_bytes[i]; k++)
			n += h->blocks[i][k] != 0xA5;
	return n;
}

static void make_memory(struct hand *h)
{
	for (int k = 0; k < h->n; k++) {
		struct sheaf_slice *s = &h->s[k], b = in_bytes(s);

		if (!s->data)
			s->data = hand_block(h, items_span(&b) * (hand_bits(memory_type(&b)) / 8));
	}
}

/* ---- acts of ranks ---- */

struct stage {
	struct play *p;
	int (*act)(struct hand *h);
	bool fill;
	const struct shf_sys *sys[16];
};

char hands_letter(int32_t kind)
{
	return "?MUCVDIXZRPA"[kind > 0 && kind <= SHEAF_REPORT_SET_ASIDE ? kind : 0];
}

static void item_told(void *arg, int32_t kind, const char *family, const char *name,
                      const char *msg)
{
	struct play *p = arg;
	size_t at = strlen(p->told);

	snprintf(p->told + at, sizeof(p->told) - at, "%c %s/%s: %s\n", hands_letter(kind),
	         family, name, msg);
}

static int save_act(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, h->play->step, h->state, NULL, &h->err);

	if (rc == 0 && h->play->during)
		h->play->during(h, save);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int load_act(struct hand *h)
{
	struct play *p = h->play;
	struct takes how = { .seed = p->seed + (uint64_t)h->rank, .threads = p->takes };
	struct sheaf_checkpoint *step = NULL;
	int rc = p->path
	       ? shf_step_open_path(&step, p->path, h->group, &p->opts, h->sys, &h->err)
	       : shf_step_open(&step, h->run, p->step, &h->err);

	if (rc == 0 && p->takes)
		rc = takes_load(step, h->state, p->flags, &how, &h->report, &h->report, &h->err);
	else if (rc == 0)
		rc = shf_step_load(step, h->state, p->flags, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct stage *st = arg;
	struct play *p = st->p;
	struct hand *h = calloc(1, sizeof(*h));
	char why[300] = "";
	int64_t wrong;
	int rc = 0;

	if (!h)
		abort();
	*h = (struct hand){ .play = p, .rank = rank, .ranks = p->ranks, .group = group,
		.used = *st->sys[rank], .sys = &h->used,
		.report = { .size = sizeof(h->report), .item = item_told, .arg = p } };
	if (p->tamper)
		p->tamper(h);
	if (p->hold)
		p->hold(h);
	make_memory(h);
	if (st->fill)
		hand_paint(h);
	h->state = shf_state_new();
	for (int i = 0; i < h->n; i++)
		(void)shf_state_add(h->state, &h->s[i], NULL);
	if (!p->path)
		rc = shf_run_open(&h->run, "run", group, &p->opts, h->sys, &h->err);
	if (rc == 0)
		rc = st->act(h);
	if (!st->fill && st->act == load_act) {
		wrong = rc == 0 ? hand_wrong(h, why, sizeof(why)) : touched(h);
		if (wrong && p->wrong == 0)
			snprintf(p->why, sizeof(p->why), "rank %d: %.280s", rank, why);
		p->wrong += wrong;
	}
	if (rank == 0 || (rc < 0 && p->err.code == 0)) {
		p->err = h->err;
		p->report = h->report;
	}
	shf_run_close(h->run);
	shf_state_put(h->state);
	for (int i = 0; i < h->blocks_n; i++)
		free(h->blocks[i]);
	for (int i = 0; i < h->texts_n; i++)
		free(h->texts[i]);
	free(h);
	return rc;
}

int hands_run(struct play *p, int (*act)(struct hand *h), bool fill)
{
	struct stage st = { .p = p, .act = act, .fill = fill };
	struct simgroup_opts o = { .seed = p->seed, .ranks = p->ranks, .nodes = p->nodes };
	static uint64_t pid = 1000;
	int results[16];

	p->told[0] = p->why[0] = '\0';
	p->wrong = 0;
	p->err = (struct sheaf_error){ 0 };
	for (int r = 0; r < p->ranks; r++)
		st.sys[r] = simdisk_process(p->disk, pid++, p->nodes ? p->nodes[r] : 0);
	p->rc = simgroup_run(&o, rank_main, &st, results);
	p->rc = p->rc < 0 ? 2 : results[0];
	for (int r = 0; r < p->ranks; r++) {
		if (results[r] != results[0])
			p->rc = 1;
		if (simdisk_open_n(st.sys[r])) {
			fprintf(stderr, "rank %d left descriptors open\n", r);
			p->rc = 3;
		}
		simdisk_kill(p->disk, st.sys[r]);
	}
	return p->rc;
}

int hands_save(struct play *p)
{
	return hands_run(p, save_act, true);
}

int hands_load(struct play *p)
{
	return hands_run(p, load_act, false);
}

struct play hands_play(struct simdisk *disk, int ranks, void (*hold)(struct hand *h))
{
	return (struct play){ .disk = disk, .ranks = ranks, .hold = hold, .step = 7, .seed = 0x5eaf,
		.opts = { .flags = SHEAF_RUN_CREATE,
		          .timeout_ms = 60000 } };
}

int hands_told(const struct play *p, char what)
{
	int n = 0;

	for (const char *line = p->told; *line;) {
		n += line[0] == what;
		line = strchr(line, '\n');
		if (!line)
			break;
		line++;
	}
	return n;
}

uint64_t hands_hash(struct simdisk *disk, const char *dir)
{
	char path[200];
	size_t n = 0;
	void *bytes;
	uint64_t hash;

	snprintf(path, sizeof(path), "%s/sheaf.json", dir);
	bytes = simdisk_get(disk, path, &n);
	(void)simdisk_remove(disk, path);
	hash = simdisk_hash(disk, dir);
	if (bytes)
		(void)simdisk_put(disk, path, bytes, n);
	free(bytes);
	return hash;
}

/* ---- foreign files ---- */

static const char *spelt(int dtype)
{
	return sheaf_dtype_name(dtype);
}

void hands_file(struct simdisk *disk, const char *path, const struct hand_tensor *t, int n,
                int pad)
{
	size_t header = 0, at = 0, total = 0;
	char *text = malloc(65536);
	uint8_t *bytes;

	header += (size_t)snprintf(text, 65536, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (int i = 0; i < n; i++) {
		int64_t items = 1;

		header += (size_t)snprintf(text + header, 65536 - header,
					   ",\"%s\":{\"dtype\":\"%s\","
					   "\"shape\":[",
					   t[i].name, spelt(t[i].dtype));
		for (int d = 0; d < t[i].ndim; d++) {
			items *= t[i].shape[d];
			header += (size_t)snprintf(text + header, 65536 - header,
						   d ? ",%lld" : "%lld", (long long)t[i].shape[d]);
		}
		at = total + (size_t)(items * hand_bits(t[i].dtype) / 8);
		header += (size_t)snprintf(text + header, 65536 - header,
		                           "],\"data_offsets\":[%zu,%zu]}", total, at);
		total = at;
	}
	header += (size_t)snprintf(text + header, 65536 - header, "}%*s", pad, "");
	bytes = calloc(1, 8 + header + total);
	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)((uint64_t)header >> 8 * i);
	memcpy(bytes + 8, text, header);
	at = 8 + header;
	for (int i = 0; i < n; i++) {
		size_t item = (size_t)hand_bits(t[i].dtype) / 8;
		int64_t items = 1;

		for (int d = 0; d < t[i].ndim; d++)
			items *= t[i].shape[d];
		for (int64_t k = 0; k < items; k++, at += item) {
			uint64_t v = hand_value("model", t[i].name, t[i].dtype, k);

			memcpy(bytes + at, &v, item);
		}
	}
	if (simdisk_put(disk, path, bytes, 8 + header + total) < 0)
		abort();
	free(bytes);
	free(text);
}
