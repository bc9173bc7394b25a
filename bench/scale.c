/* SPDX-License-Identifier: Apache-2.0 */
/* The planner at the size of the largest runs: the real code, over ranks that do not exist. What
 * every rank would do is measured on a sample of ranks, because they are alike; what all do
 * together (the cover, two phases) is gone through whole. Times are of one core. Inside the clock:
 *
 *   from slices     all descriptions read, sorted, merged and checked, by one rank that is the home
 *                   of all names and so hears everything twice; then every tensor placed
 *   own part        of the median of 25 ranks, each on its own: from its slices, as they were
 *                   added, to the bytes that it tells the homes of its stripes: tensors found by
 *                   name, boxes, stripes, homes; no caches kept warm by a rank like it
 *   as a home       boxes of its stripes sorted and dealt, and what the file side makes of that
 *   cover           the cells of every tensor, cut as it is, and that somebody holds each
 *
 * Outside: what travels between ranks (messages of three exchanges), and making the slices.
 *
 *   sheaf-bench-scale [--quick] [--json] */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "cover_cells.h"
#include "deal_home.h"
#include "save.h"
#include "schema.h"
#include "work_file_side.h"
#include "opens.h"

enum { KINDS = 4, NODE_RANKS = 8 };
struct job {
	bool quick, json;
	int64_t pp, dp, tp;             /* rank = (pp * dp + dp_i) * tp + tp_i */
	int64_t layers, per_layer;
	struct shf_layout layout;
	int32_t *nodes;                 /* owned */
	uint32_t ranks;
	struct sheaf_error err;
};

/* Of this core: nothing here waits for anything, and other programs' time is not ours. */
static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void row(const struct job *j, const char *what, double value, const char *unit)
{
	if (j->json)
		printf("{\"what\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"}\n", what, value, unit);
	else
		printf("  %-64s %12.6g %s\n", what, value, unit);
}

static void claim(const struct job *j, const char *what, double value, double bound)
{
	if (j->json)
		printf("{\"claim\":\"%s\",\"value\":%.6g,\"bound\":%g,\"at_least\":false}\n", what,
		       value, bound);
	else
		printf("  %-64s %12.6g of %g: %s\n", what, value, bound,
		       value <= bound ? "met" : "missed");
}

/* ---- a mixture of experts: pp stages, tp on axis 0 or 1, replicas over dp ---- */

static struct sheaf_slice expert(const struct job *j, int64_t layer, int64_t i, int kind,
                                 char name[128])
{
	static const char *const parts[] = { "down", "gate", "up" };
	static const char *const ends[KINDS] = { "", "", "/moment1_0", "/moment2_0" };
	struct sheaf_slice s = { .size = sizeof(s), .name = name, .ndim = 2,
		.family = kind == 0 ? "model" : kind == 1 ? "master_weights" : "optimizer",
		.dtype = kind == 0 ? SHEAF_BF16 : SHEAF_F32 };

	snprintf(name, 128, "model.layers.%d.mlp.experts.%d.%s_proj.weight%s", (int)layer,
	         (int)(i / 3), parts[i % 3], ends[kind]);
	s.shape[0] = s.count[0] = i % 3 == 0 ? 7168 : 2048;
	s.shape[1] = s.count[1] = i % 3 == 0 ? 2048 : 7168;
	(void)j;
	return s;
}

/* What rank holds; tp 0: whole tensors of all stages. */
static struct sheaf_state *hold(const struct job *j, int64_t rank, bool whole)
{
	struct sheaf_state *state = sheaf_state_new();
	int64_t stage = rank / (j->tp * j->dp);
	char name[128];

	for (int64_t l = 0; state && l < j->layers; l++) {
		if (!whole && l * j->pp / j->layers != stage)
			continue;
		for (int64_t i = 0; i < j->per_layer * KINDS; i++) {
			struct sheaf_slice s = expert(j, l, i / KINDS, (int)(i % KINDS), name);

			if (!whole)
				(void)sheaf_slice_shard(&s, i / KINDS % 3 == 0, rank % j->tp,
				                        j->tp, NULL);
			(void)sheaf_state_add(state, &s, NULL);
		}
	}
	return state;
}

static int make_layout(struct job *j, uint64_t file_bytes)
{
	struct sheaf_state *all = hold(j, 0, true);
	struct shf_team one = { .ranks = 1 };
	double from, merged;
	int rc = all ? shf_group_one(&one.group) : SHEAF_ENOMEM;

	from = now();
	if (rc == 0)
		rc = shf_schema_merge(&one, all, NULL, 0, &j->layout, &j->err);
	merged = now();
	if (rc == 0)
		rc = shf_layout_place(&j->layout, file_bytes, &j->err);
	if (rc == 0) {
		row(j, "tensors", (double)j->layout.tensors_n, "");
		row(j, "ranks", j->ranks, "");
		row(j, "stripes", (double)j->layout.stripes_n, "");
		row(j, "schema of all tensors, merged on a rank", (merged - from) * 1e3, "ms");
		row(j, "placed", (now() - merged) * 1e3, "ms");
		claim(j, "the plan from slices, once: seconds for each rank", now() - from, 1);
	}
	shf_group_put(one.group);
	sheaf_state_free(all);
	return rc;
}

struct held {                   /* what one rank did */
	double found, told, slices;
	uint64_t bytes;
};

static int hold_and_tell(struct job *j, int64_t rank, struct held *out)
{
	struct sheaf_state *state = hold(j, rank, false);
	struct shf_match m = { .layout = &j->layout, .nodes = j->nodes };
	struct shf_home_messages tells = { .to = shf_zalloc(j->ranks, sizeof(*tells.to)) };
	struct shf_holds holds = { 0 };
	double from = now(), found;
	int rc = tells.to && state ? shf_holds_state(&holds, &j->layout, state, NULL, &j->err)
	                           : SHEAF_ENOMEM;

	found = now();
	m.holds = &holds;
	if (rc == 0)
		rc = shf_holds_pack(&m, j->ranks, &tells);
	*out = (struct held){ found - from, now() - found, (double)holds.n, tells.bytes.len };
	shf_buf_release(&tells.bytes);
	shf_free(tells.to);
	shf_holds_release(&holds);
	sheaf_state_free(state);
	return rc;
}

static int held_order(const void *a, const void *b)
{
	double x = ((const struct held *)a)->found + ((const struct held *)a)->told;
	double y = ((const struct held *)b)->found + ((const struct held *)b)->told;

	return x < y ? -1 : x > y;
}

enum { SAMPLES = 25 };

/* Holding and telling, on ranks of all stages: the median one. */
static int measure_rank(struct job *j, double *ns, double *slices)
{
	struct held all[SAMPLES], *mid = &all[SAMPLES / 2];
	int rc = 0;

	for (int64_t k = 0; k < SAMPLES && rc == 0; k++)
		rc = hold_and_tell(j, k * (j->ranks - 1) / (SAMPLES - 1), &all[k]);
	if (rc < 0)
		return rc;
	qsort(all, SAMPLES, sizeof(*all), held_order);
	row(j, "slices a rank holds", mid->slices, "");
	row(j, "finding them in the layout, a slice", mid->found / mid->slices * 1e9, "ns");
	row(j, "telling their homes, a slice", mid->told / mid->slices * 1e9, "ns");
	row(j, "bytes a rank tells its homes", (double)mid->bytes, "bytes");
	*ns = (mid->found + mid->told) / mid->slices * 1e9;
	*slices = mid->slices;
	return 0;
}

static int heard_add(struct shf_home *h, size_t *cap, uint32_t rank, uint32_t tensor,
                     const struct shf_box *box)
{
	if (h->n == *cap) {
		size_t want = *cap ? 2 * *cap : 4096;
		struct shf_home_box *more = shf_realloc(h->heard, want, sizeof(*more));

		if (!more)
			return SHEAF_ENOMEM;
		h->heard = more;
		*cap = want;
	}
	h->heard[h->n++] = (struct shf_home_box){ .rank = rank, .tensor = tensor, .box = *box };
	return 0;
}

/* Piece i of n along dimension d, as sheaf_slice_shard cuts; false: empty. */
static bool piece(const struct shf_lt_tensor *t, int d, int64_t i, int64_t n, struct shf_box *box)
{
	int64_t each = (t->shape.dim[d] + n - 1) / n, left = t->shape.dim[d] - i * each;

	*box = shf_box_of(&t->shape);
	box->start[d] = i * each;
	box->count[d] = left < each ? left : each;
	return left > 0;
}

static bool meets(const struct shf_layout *l, const struct shf_home *h, uint32_t tensor,
                  const struct shf_box *box)
{
	const struct shf_lt_tensor *t = &l->tensors[tensor];
	uint64_t lo, hi, first = l->files[t->file].first_stripe;

	shf_box_span(&t->shape, box, &lo, &hi);
	return first + (t->off + hi * t->unit - 1) / SHF_STRIPE >= h->first &&
	       first + (t->off + lo * t->unit) / SHF_STRIPE < h->end;
}

static int hear_experts(const struct job *j, struct shf_home *h, size_t *cap, uint32_t tensor)
{
	const struct shf_lt_tensor *t = &j->layout.tensors[tensor];
	int64_t layer = strtoll(strstr(t->name, "layers.") + 7, NULL, 10);
	int64_t first = layer * j->pp / j->layers * j->dp * j->tp;
	int d = strstr(t->name, "down") != NULL, rc = 0;
	struct shf_box box;

	for (int64_t r = 0; r < j->dp * j->tp && rc == 0; r++)
		if (piece(t, d, r % j->tp, j->tp, &box) && meets(&j->layout, h, tensor, &box))
			rc = heard_add(h, cap, (uint32_t)(first + r), tensor, &box);
	return rc;
}

/* Rows of every tensor over all ranks (FSDP): those of ranks that meet this home. */
static int hear_rows(const struct job *j, struct shf_home *h, size_t *cap, uint32_t tensor)
{
	const struct shf_lt_tensor *t = &j->layout.tensors[tensor];
	const struct shf_lt_file *f = &j->layout.files[t->file];
	int64_t each = (t->shape.dim[0] + j->ranks - 1) / j->ranks;
	uint64_t row_bytes = t->bytes / (uint64_t)t->shape.dim[0], first = f->first_stripe;
	uint64_t lo = (h->first > first ? h->first - first : 0) * SHF_STRIPE;
	int64_t r = lo > t->off ? (int64_t)((lo - t->off) / row_bytes) / each : 0;
	struct shf_box box;
	int rc = 0;

	for (; r < j->ranks && rc == 0 && piece(t, 0, r, j->ranks, &box); r++) {
		if (first + (t->off + (uint64_t)box.start[0] * row_bytes) / SHF_STRIPE >= h->end)
			break;
		if (meets(&j->layout, h, tensor, &box))
			rc = heard_add(h, cap, (uint32_t)r, tensor, &box);
	}
	return rc;
}

/* Everything home k would hear. */
static int hear(const struct job *j, uint32_t k, struct shf_home *h, size_t *cap,
                int (*item)(const struct job *, struct shf_home *, size_t *, uint32_t))
{
	const struct shf_layout *l = &j->layout;
	int rc = 0;

	h->n = 0;
	h->first = shf_home_first(l, j->ranks, k);
	h->end = shf_home_first(l, j->ranks, k + UINT64_C(1));
	if (h->first == h->end)
		return 0;
	for (uint32_t f = shf_layout_stripe_file(l, h->first);
	     f < l->files_n && l->files[f].first_stripe < h->end; f++) {
		const struct shf_lt_file *file = &l->files[f];
		uint64_t from = h->first > file->first_stripe ? h->first - file->first_stripe : 0;
		uint32_t end = file->first_tensor + file->tensors_n;

		for (uint32_t i = shf_layout_at(l, f, from * SHF_STRIPE); i < end && rc == 0; i++) {
			const struct shf_lt_tensor *t = &l->tensors[l->by_place[i]];

			if (file->first_stripe + t->off / SHF_STRIPE >= h->end)
				break;
			rc = item(j, h, cap, l->by_place[i]);
		}
	}
	return rc;
}

/* Sorting and dealing at a home, and what the file side makes of it, on a sample of homes. */
static int measure_homes(struct job *j, double *home_ms)
{
	struct shf_match m = { .layout = &j->layout, .nodes = j->nodes };
	struct shf_buf *out = shf_zalloc(j->ranks, sizeof(*out));
	struct shf_home h = { 0 };
	size_t cap = 0;
	uint32_t homes = j->quick ? 4 : 64;
	double dealt = 0, worked = 0, heard = 0, stripes = 0;
	int rc = out ? 0 : SHEAF_ENOMEM;

	for (uint32_t k = 0; k < homes && rc == 0; k++) {
		struct shf_arena arena = { 0 };
		double from;

		rc = hear(j, k * (j->ranks / homes), &h, &cap, hear_experts);
		from = now();
		if (rc == 0)
			rc = shf_home_sort(&j->layout, &h, &arena);
		if (rc == 0)
			rc = shf_home_deal(&m, j->ranks, &h, out, &j->err);
		dealt += now() - from;
		heard += (double)h.n;
		stripes += (double)(h.end - h.first);
		for (uint32_t r = 0; r < j->ranks; r++) {
			struct shf_work w = { 0 };

			if (out[r].len == 0)
				continue;
			from = now();
			rc = rc < 0 ? rc : shf_work_decode(&m, r, &out[r], &w);
			worked += now() - from;
			shf_work_release(&w);
			shf_buf_release(&out[r]);
		}
		shf_arena_release(&arena);
	}
	row(j, "boxes a home hears", heard / homes, "");
	row(j, "dealing them, a box", dealt / heard * 1e9, "ns");
	row(j, "dealing, a stripe", dealt / stripes * 1e6, "us");
	row(j, "the file side, a stripe", worked / stripes * 1e6, "us");
	*home_ms = (dealt + worked) / homes * 1e3;
	shf_free(h.heard);
	shf_free(out);
	return rc;
}

/* Do the pieces of every tensor cover it? */
static int cover(struct job *j)
{
	struct shf_box boxes[1024];
	double from = now();
	int rc = 0;

	for (size_t i = 0; i < j->layout.tensors_n && rc == 0; i++) {
		const struct shf_lt_tensor *t = &j->layout.tensors[i];
		struct shf_box all = shf_box_of(&t->shape);
		struct shf_arena arena = { 0 };
		struct shf_cell *cells;
		size_t n, kept = 0;

		for (int64_t p = 0; p < j->tp && p < 1024; p++)
			kept += piece(t, strstr(t->name, "down") != NULL, p, j->tp, &boxes[kept]);
		rc = shf_cells(&arena, &all, boxes, kept, &cells, &n);
		for (size_t c = 0; rc == 0 && c < n; c++)
			rc = cells[c].set_n == 0 ? SHEAF_ELAYOUT : 0;
		shf_arena_release(&arena);
	}
	claim(j, "proof that all tensors are covered: seconds on one core", now() - from, 1);
	return rc;
}

static int experts(struct job *j)
{
	double ns = 0, slices = 0, home_ms = 0, ms;
	int rc = make_layout(j, UINT64_C(5000000000));

	if (rc == 0)
		rc = measure_rank(j, &ns, &slices);
	if (rc == 0)
		rc = measure_homes(j, &home_ms);
	ms = ns * slices / 1e6;
	if (rc == 0) {
		claim(j, "a rank's own part of the plan: ms", ms, 1);
		row(j, "the same with what it does as a home", ms + home_ms, "ms");
		row(j, "bytes a rank compares for every later save", sizeof(uint64_t) * 2, "bytes");
		rc = cover(j);
	}
	return rc;
}

/* ---- rows of a dense model over all ranks ---- */

static int dense_layout(struct job *j)
{
	static const struct { const char *name; int64_t rows, columns; } parts[] = {
		{ "self_attn.q_proj", 16384, 16384 }, { "self_attn.k_proj", 1024, 16384 },
		{ "self_attn.v_proj", 1024, 16384 }, { "self_attn.o_proj", 16384, 16384 },
		{ "mlp.gate_proj", 53248, 16384 }, { "mlp.up_proj", 53248, 16384 },
		{ "mlp.down_proj", 16384, 53248 }, { "input_layernorm", 16384, 1 },
		{ "post_attention_layernorm", 16384, 1 },
	};
	static const char *const ends[KINDS] = { "", "", "/moment1_0", "/moment2_0" };
	struct sheaf_state *all = sheaf_state_new();
	int64_t n = j->layers * 9 * KINDS;
	char name[128];
	int rc = all ? 0 : SHEAF_ENOMEM;

	for (int64_t i = 0; i < n && rc == 0; i++) {
		int kind = (int)(i % KINDS), p = (int)(i / KINDS % 9);
		struct sheaf_slice s = { .size = sizeof(s), .name = name, .ndim = 2,
			.family = kind == 0 ? "model" : kind == 1 ? "master_weights" : "optimizer",
			.dtype = kind == 0 ? SHEAF_BF16 : SHEAF_F32,
			.shape = { parts[p].rows, parts[p].columns },
			.count = { parts[p].rows, parts[p].columns } };

		snprintf(name, sizeof(name), "model.layers.%d.%s.weight%s", (int)(i / KINDS / 9),
		         parts[p].name, ends[kind]);
		(void)sheaf_state_add(all, &s, NULL);
	}
	if (rc == 0)
		rc = shf_schema_preview(&all, 1, NULL, &j->layout, &j->err);
	return rc < 0 ? rc : shf_layout_place(&j->layout, UINT64_C(5000000000), &j->err);
}

struct moved {                  /* of one node */
	uint64_t in, out, files, writes;
};

/* What home k writes: files and, by node, what travels. */
static int count_home(struct job *j, const struct shf_match *m, uint32_t writer,
                      const struct shf_buf *told, struct moved *moved)
{
	struct shf_work w = { 0 };
	int rc = shf_work_decode(m, writer, told, &w);

	for (size_t i = 0; i < w.segs_n && rc == 0; i++) {
		const struct shf_seg *g = &w.segs[i];
		struct moved *to = &moved[j->nodes[writer]];

		to->files += i == 0 || g->file != w.segs[i - 1].file;
		to->writes += g->hi - g->lo;
		for (uint32_t k = 0; k < g->moves_n; k++) {
			const struct shf_seg_move *v = &w.moves[g->first_move + k];
			uint64_t bytes = shf_box_units(&v->box) * j->layout.tensors[v->tensor].unit;

			if (j->nodes[v->rank] == j->nodes[writer])
				continue;
			to->in += bytes;
			moved[j->nodes[v->rank]].out += bytes;
		}
	}
	shf_work_release(&w);
	return rc;
}

static void print_moved(const struct job *j, const struct moved *moved, uint32_t nodes)
{
	struct moved most = { 0 }, all = { 0 };

	for (uint32_t n = 0; n < nodes; n++) {
		all.files += moved[n].files;
		all.in += moved[n].in;
		all.writes += moved[n].writes;
		most.files = moved[n].files > most.files ? moved[n].files : most.files;
		most.in = moved[n].in > most.in ? moved[n].in : most.in;
		most.out = moved[n].out > most.out ? moved[n].out : most.out;
		most.writes = moved[n].writes > most.writes ? moved[n].writes : most.writes;
	}
	row(j, "two phases: files of the step", (double)j->layout.files_n, "");
	row(j, "files opened over all nodes", (double)all.files, "");
	row(j, "written over all nodes", (double)all.writes / 1e9, "GB");
	row(j, "moved between nodes, in all", (double)all.in / 1e9, "GB");
	row(j, "received by a node at most", (double)most.in / 1e9, "GB");
	row(j, "sent by a node at most", (double)most.out / 1e9, "GB");
	row(j, "written by a node at most over the mean",
	    (double)most.writes * nodes / (double)all.writes, "");
	claim(j, "most files that a node opens", (double)most.files, 64);
}

static int rows(struct job *j)
{
	uint32_t nodes = j->ranks / NODE_RANKS;
	struct shf_match m = { .layout = &j->layout, .nodes = j->nodes };
	struct shf_buf *out = shf_zalloc(j->ranks, sizeof(*out));
	struct moved *moved = shf_zalloc(nodes, sizeof(*moved));
	struct shf_home h = { 0 };
	size_t cap = 0;
	double from = now(), heard = 0;
	int rc = out && moved ? dense_layout(j) : SHEAF_ENOMEM;

	for (uint32_t k = 0; k < j->ranks && rc == 0; k++) {
		struct shf_arena arena = { 0 };

		rc = hear(j, k, &h, &cap, hear_rows);
		heard += (double)h.n;
		if (rc == 0)
			rc = shf_home_sort(&j->layout, &h, &arena);
		if (rc == 0)
			rc = shf_home_deal(&m, j->ranks, &h, out, &j->err);
		/* A stripe that is not collected goes to ranks near: look at them too. */
		for (uint32_t r = 0; r < j->ranks && rc == 0; r++) {
			if (out[r].len > 0)
				rc = count_home(j, &m, r, &out[r], moved);
			shf_buf_reset(&out[r]);
		}
		shf_arena_release(&arena);
	}
	if (rc == 0) {
		row(j, "ranks, rows of every tensor on each", j->ranks, "");
		row(j, "dealt for all ranks, a box", (now() - from) / heard * 1e9, "ns");
		print_moved(j, moved, nodes);
	}
	for (uint32_t r = 0; out && r < j->ranks; r++)
		shf_buf_release(&out[r]);
	shf_free(h.heard);
	shf_free(moved);
	shf_free(out);
	return rc;
}

/* A job of that many ranks, through one of the above. */
static int play(struct job j, int (*item)(struct job *))
{
	int rc;

	j.ranks = (uint32_t)(j.pp * j.dp * j.tp);
	j.nodes = shf_zalloc(j.ranks, sizeof(*j.nodes));
	for (uint32_t r = 0; j.nodes && r < j.ranks; r++)
		j.nodes[r] = (int32_t)(r / NODE_RANKS);
	rc = j.nodes ? item(&j) : SHEAF_ENOMEM;
	if (rc < 0)
		fprintf(stderr, "sheaf-bench-scale: %s: %s\n", sheaf_strerror(rc), j.err.msg);
	shf_layout_release(&j.layout);
	shf_free(j.nodes);
	return rc;
}

int main(int argc, char **argv)
{
	struct job moe = { .pp = 16, .dp = 98, .tp = 64, .layers = 80, .per_layer = 425 };
	struct job dense = { .pp = 1, .dp = 1, .tp = 16384, .layers = 126 };
	bool quick = false, json = false;
	int rc;

	for (int i = 1; i < argc; i++) {
		quick |= strcmp(argv[i], "--quick") == 0;
		json |= strcmp(argv[i], "--json") == 0;
	}
	if (quick) {
		moe = (struct job){ .pp = 4, .dp = 3, .tp = 8, .layers = 8, .per_layer = 12 };
		dense = (struct job){ .pp = 1, .dp = 1, .tp = 512, .layers = 2 };
	}
	moe.quick = dense.quick = quick;
	moe.json = dense.json = json;
	rc = play(moe, experts);
	if (rc == 0)
		rc = play(dense, rows);
	if (rc == 0)
		rc = bench_opens(quick, json);
	return rc ? 1 : 0;
}
