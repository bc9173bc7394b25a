/* SPDX-License-Identifier: Apache-2.0 */
#include "dspdfile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 3, GROUPS = 8, STORAGES = 64 };
static const char *const theirs[KINDS] = { "fp32", "exp_avg", "exp_avg_sq" };
static const uint32_t nan_bits = 0x7fc00000;

static void put(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

static int64_t items_of(const struct dspd_param *p)
{
	int64_t n = 1;

	for (int d = 0; d < p->ndim; d++)
		n *= p->shape[d];
	return n;
}

static int groups_of(const struct dspd_plan *p)
{
	int n = 0;

	for (int i = 0; i < p->n; i++)
		n = p->params[i].group >= n ? p->params[i].group + 1 : n;
	return n;
}

/* Returns item k of one kind of values of a parameter. */
static uint32_t value_of(const struct dspd_param *p, int kind, int64_t k)
{
	char name[100];

	if (kind == 0)
		return (uint32_t)hand_value("master_weights", p->name, SHEAF_F32, k);
	snprintf(name, sizeof(name), "%s/moment%d_0", p->name, kind);
	return (uint32_t)hand_value("optimizer", name, SHEAF_F32, k);
}

/* ---- the parts of ranks ---- */

static void put_items(struct torch_bytes *b, const struct dspd_param *p, int kind, int64_t from,
                      int64_t n)
{
	for (int64_t k = from; k < from + n; k++) {
		uint32_t v = k < items_of(p) ? value_of(p, kind, k) : nan_bits;

		torch_add(b, &v, 4);
	}
}

/* Returns where a parameter begins in its group of ZeRO 1; i == p->n: where the group ends. */
static int64_t place_of(const struct dspd_plan *p, int group, int i)
{
	int64_t at = 0, end = 0;

	for (int k = 0; k <= i && k < p->n; k++) {
		if (p->params[k].group != group)
			continue;
		if (k == i)
			return at;
		end = at + items_of(&p->params[k]);
		at = p->flaw == DSPD_ALIGNED ? (end + 3) / 4 * 4 : end;
	}
	return end;
}

/* Returns the number of items in a rank's part of ZeRO 1, with padding. */
static int64_t part_of(const struct dspd_plan *p, int group)
{
	int64_t each = 2 * p->ranks, all = place_of(p, group, p->n);

	return (all + each - 1) / each * 2;
}

/* Returns a whole group of ZeRO 1, with its padding. */
static struct torch_bytes group_bytes(const struct dspd_plan *p, int group, int kind)
{
	struct torch_bytes b = { 0 };

	for (int i = 0; i < p->n; i++) {
		if (p->params[i].group != group)
			continue;
		while ((int64_t)b.n < 4 * place_of(p, group, i))
			torch_add(&b, &nan_bits, 4);
		put_items(&b, &p->params[i], kind, 0, items_of(&p->params[i]));
	}
	while ((int64_t)b.n < 4 * p->ranks * part_of(p, group))
		torch_add(&b, &nan_bits, 4);
	return b;
}

/* Returns a rank's part of a group. ZeRO 1 omits padding from weights; old versions also from
 * states. */
static struct torch_bytes rank_bytes(const struct dspd_plan *p, int group, int kind, int rank)
{
	struct torch_bytes b = { 0 };

	if (p->stage == 3) {
		for (int i = 0; i < p->n; i++) {
			int64_t part = (items_of(&p->params[i]) + p->ranks - 1) / p->ranks;

			if (p->params[i].group == group)
				put_items(&b, &p->params[i], kind, rank * part, part);
		}
	} else {
		struct torch_bytes all = group_bytes(p, group, kind);
		int64_t part = part_of(p, group), end = place_of(p, group, p->n), n = part;

		if ((kind == 0 || p->flaw == DSPD_OLD) && (rank + 1) * part > end)
			n = end > rank * part ? end - rank * part : 0;
		torch_add(&b, all.p + 4 * rank * part, 4 * (size_t)n);
		free(all.p);
	}
	if ((p->flaw == DSPD_SHORT && kind == 0 && rank == p->ranks - 1) ||
	    (p->flaw == DSPD_SHORT_STATE && kind == 2 && rank == p->ranks - 1))
		b.n -= b.n >= 8 ? 8 : b.n;
	if ((p->flaw == DSPD_LONG && kind == 0 && rank == 1) ||
	    (p->flaw == DSPD_LONG_STATE && kind == 1 && rank == 0))
		for (int i = 0; i < 4; i++)
			torch_add(&b, &nan_bits, 4);
	return b;
}

/* ---- the file of the optimizer ---- */

struct storages { struct torch_bytes a[STORAGES]; struct torch_tensor t[STORAGES]; int n; };

/* Appends a flat tensor, and keeps its storage. */
static void put_flat(struct torch_bytes *b, struct storages *s, struct torch_bytes data,
                     const struct torch_tensor *like)
{
	s->a[s->n] = data;
	s->t[s->n] = *like;
	torch_put(b, s->t, s->n + 1, s->n);
	s->n++;
}

static void put_part(const struct dspd_plan *p, struct torch_bytes *b, struct storages *s, int g,
                     int kind, int rank)
{
	struct torch_bytes data = rank_bytes(p, g, kind, rank);
	struct torch_tensor t = { .name = "flat", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { (int64_t)data.n / 4 } };

	if (p->flaw == DSPD_SQUARE && kind == 0) {
		t.ndim = 2;
		t.shape[1] = 1;
	}
	if (p->flaw == DSPD_OTHER_TYPE && kind == 0 && rank == 1)
		t.dtype = SHEAF_I32;
	put_flat(b, s, data, &t);
}

static void put_states(const struct dspd_plan *p, struct torch_bytes *b, struct storages *s,
                       int rank)
{
	bool list = p->flaw == DSPD_OLD && p->stage < 3;

	torch_text(b, p->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
	put(b, list ? "](" : "}(");
	if (!list) {
		torch_text(b, "state");
		put(b, "}(");
	}
	for (int g = 0; g < groups_of(p); g++) {
		float step = (float)(7 + (p->flaw == DSPD_OTHER_STEP && rank == 1) +
		                     (p->flaw == DSPD_STEPS_DIFFER) * g);
		struct torch_tensor t = { .name = "step", .dtype = SHEAF_F32 };
		struct torch_bytes data = { 0 };

		if (!list)
			torch_int(b, g);
		put(b, "}(");
		torch_add(&data, &step, 4);
		torch_text(b, "step");
		put_flat(b, s, data, &t);
		for (int kind = 1; kind < KINDS; kind++) {
			if (p->flaw == DSPD_NO_STATE && rank == 1 && kind == 2)
				continue;
			torch_text(b, theirs[kind]);
			put_part(p, b, s, g, kind, rank);
		}
		put(b, "u");
	}
	put(b, list ? "e" : "uu");
}

/* Returns where param_slice_mappings says that a parameter begins in its group. With
 * round_robin_gradients its order differs from that of the values: here it is the reverse. */
static int64_t mapped_place(const struct dspd_plan *p, int group, int i)
{
	int64_t at = 0;

	if (p->flaw != DSPD_ROUND_ROBIN)
		return place_of(p, group, i);
	for (int k = i + 1; k < p->n; k++)
		at += p->params[k].group == group ? items_of(&p->params[k]) : 0;
	return at;
}

/* Appends the places of parameters in a rank's part of ZeRO 1. */
static void put_mappings(const struct dspd_plan *p, struct torch_bytes *b, int rank)
{
	torch_text(b, "param_slice_mappings");
	put(b, "](");
	for (int g = 0; g < groups_of(p); g++) {
		int64_t from = rank * part_of(p, g), to = from + part_of(p, g);

		put(b, "}(");
		for (int i = 0; i < p->n; i++) {
			int64_t at = mapped_place(p, g, i), end = at + items_of(&p->params[i]);
			int64_t lo = at > from ? at : from, hi = end < to ? end : to;

			if (p->params[i].group != g || lo >= hi)
				continue;
			torch_text(b, p->params[i].name);
			put(b, "cdeepspeed.utils.tensor_fragment\nfragment_address\n)\x81}(");
			torch_text(b, "numel");
			torch_int(b, hi - lo);
			torch_text(b, "start");
			torch_int(b, lo - from);
			put(b, "ub");
		}
		put(b, "u");
	}
	put(b, "e");
}

static void put_paddings(const struct dspd_plan *p, struct torch_bytes *b)
{
	torch_text(b, "param_alignment_paddings");
	put(b, "](");
	for (int g = 0; g < groups_of(p); g++) {
		put(b, "](");
		for (int i = 0; i < p->n; i++)
			if (p->params[i].group == g)
				torch_int(b, p->flaw == DSPD_BAD_PADDING ? -1
				          : p->flaw == DSPD_ALIGNED
				          ? (4 - items_of(&p->params[i]) % 4) % 4 : 0);
		put(b, "e");
	}
	put(b, "e");
}

static void put_counts(const struct dspd_plan *p, struct torch_bytes *b)
{
	int count = p->ranks + (p->flaw == DSPD_OTHER_COUNT);

	torch_text(b, "partition_count");
	if (p->stage == 3) {
		torch_int(b, count);
		return;
	}
	put(b, "](");
	for (int g = 0; g < groups_of(p); g++)
		torch_int(b, p->flaw == DSPD_EXPERTS && g == groups_of(p) - 1 ? 1 : count);
	put(b, "e");
}

static void put_version(const struct dspd_plan *p, struct torch_bytes *b, int rank)
{
	if (p->flaw == DSPD_OLD)
		return;
	torch_text(b, "ds_version");
	torch_text(b, p->flaw == DSPD_OTHER_VERSION && rank == 1 ? "0.1.2" : "0.19.8");
}

static void put_archive(struct simdisk *disk, const char *dir, const char *name,
                        const char *folder, struct torch_bytes *pickle, struct storages *s)
{
	struct torch_bytes file = torch_archive_with(folder, pickle, s->a, s->n);
	char path[300];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (simdisk_put(disk, path, file.p, file.n) < 0)
		abort();
	for (int i = 0; i < s->n; i++)
		free(s->a[i].p);
	free(file.p);
	free(pickle->p);
}

/* Puts the optimizer file named for rank `as`, with the content of `rank`. */
static void optimizer_file(struct simdisk *disk, const char *dir, const struct dspd_plan *p,
                           int rank, int as)
{
	struct storages s = { .n = 0 };
	struct torch_bytes b = { 0 };
	char name[100], folder[100] = "archive";

	torch_add(&b, "\x80\x02}(", 4);
	torch_text(&b, p->flaw == DSPD_NO_DICT ? "optimizer_state" : "optimizer_state_dict");
	put(&b, "}(");
	put_states(p, &b, &s, rank);
	torch_text(&b, p->flaw == DSPD_NO_LIST ? "lists" : p->stage == 3 ? "fp32_flat_groups"
	           : "single_partition_of_fp32_groups");
	put(&b, "](");
	for (int g = 0; g < groups_of(p) - (p->flaw == DSPD_FEW_GROUPS); g++)
		put_part(p, &b, &s, g, 0, rank);
	put(&b, "e");
	put_counts(p, &b);
	if (p->flaw == DSPD_AUTOEP) {
		torch_text(&b, "ds_zero_partition_groups");
		put(&b, "]");
	}
	if (p->stage < 3 && p->flaw != DSPD_OLD) {
		put_paddings(p, &b);
		put_mappings(p, &b, rank);
	}
	put(&b, "u");
	if (p->flaw == DSPD_ROUND_ROBIN) {
		torch_text(&b, "ds_config");
		put(&b, "}");
		torch_text(&b, "zero_optimization");
		put(&b, "}");
		torch_text(&b, "round_robin_gradients");
		put(&b, "\x88ss");
	}
	put_version(p, &b, rank);
	put(&b, "u.");
	snprintf(name, sizeof(name), "zero_pp_rank_%d_mp_rank_%02d%soptim_states.pt", as, p->mp,
	         p->flaw == DSPD_OLD ? "" : "_");
	if (p->flaw == DSPD_RENAMED)
		snprintf(folder, sizeof(folder), "zero_pp_rank_%d_mp_rank_00_optim_states", rank);
	put_archive(disk, dir, name, folder, &b, &s);
}

/* ---- the file of the model ---- */

/* Appends the shapes of a group. For rank 1, another name, shape or order is possible. */
static void put_shapes(const struct dspd_plan *p, struct torch_bytes *b, int group, int rank)
{
	enum dspd_flaw other = rank == 1 ? p->flaw : DSPD_SOUND;
	bool turned = other == DSPD_RANK_SHAPE || (other == DSPD_RANK_FROZEN && group < 0);
	bool lie = p->flaw == DSPD_OTHER_SHAPE || p->flaw == DSPD_LIED_SHAPE;

	put(b, "}(");
	for (int i = 0; i < p->n; i++) {
		const struct dspd_param *x = p->params + (other == DSPD_RANK_ORDER ? p->n - 1 - i
		                                          : i);

		if (x->group != group || (other == DSPD_RANK_FEWER && group < 0))
			continue;
		torch_text(b, p->flaw == DSPD_NAME_TWICE ? "w"
		           : other == DSPD_RANK_NAME && x == p->params ? "x" : x->name);
		put(b, "ctorch\nSize\n(");
		for (int d = 0; d < x->ndim; d++)
			torch_int(b, p->flaw == DSPD_NEGATIVE ? -x->shape[d]
			          : p->flaw == DSPD_HUGE ? INT64_MAX / 3
			          : x->shape[turned ? x->ndim - 1 - d : d] +
			            (d == 0 && lie ? 20 : 0));
		put(b, "t\x85R");
	}
	put(b, "u");
}

/* Appends an empty tensor. */
static void put_empty(struct torch_bytes *b, struct storages *s, const char *name, int ndim)
{
	const struct torch_tensor t = { .name = name, .dtype = SHEAF_F32, .ndim = ndim,
		.shape = { 0, 4 } };

	torch_text(b, name);
	put_flat(b, s, torch_storage(&t), &t);
}

/* Appends the weights of the model, a buffer, and with that flaw an empty one. "tied" is another
 * name of a weight. */
static void put_module(const struct dspd_plan *p, struct torch_bytes *b, struct storages *s)
{
	const struct torch_tensor buffer = { .name = "seen", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 3 } };

	put(b, "}(");
	for (int i = 0; i < p->n; i++) {
		const struct dspd_param *x = &p->params[i];
		struct torch_tensor t = { .name = x->name, .dtype = SHEAF_BF16, .ndim = x->ndim,
			.shape = { x->shape[0], x->shape[1], x->shape[2] } };

		if (p->flaw == DSPD_OTHER_SHAPE)
			t.shape[0] += 20;
		if (p->stage == 3) {
			t.ndim = 1;
			t.shape[0] = 0;
		}
		torch_text(b, x->name);
		put_flat(b, s, torch_storage(&t), &t);
	}
	torch_text(b, "seen");
	put_flat(b, s, torch_storage(&buffer), &buffer);
	if (p->flaw == DSPD_EMPTY) {
		put_empty(b, s, "empty", 2);
		put_empty(b, s, "tied", 1);
	}
	put(b, "u");
	if (p->flaw == DSPD_EMPTY) {
		torch_text(b, "buffer_names");
		put(b, "](");
		torch_text(b, "seen");
		torch_text(b, "empty");
		put(b, "e");
	}
}

/* Appends the parts of frozen parameters, which are equally long on each rank. */
static void put_frozen(const struct dspd_plan *p, struct torch_bytes *b, struct storages *s,
                       int rank)
{
	torch_text(b, "frozen_param_fragments");
	put(b, "}(");
	for (int i = 0; i < p->n; i++) {
		const struct dspd_param *x = &p->params[i];
		int64_t n = items_of(x), part = (n + p->ranks - 1) / p->ranks;
		struct torch_tensor t = { .name = x->name, .dtype = SHEAF_BF16, .ndim = 1,
			.shape = { part } };
		struct torch_bytes data = { 0 };

		if (x->group >= 0 || (p->flaw == DSPD_NO_FROZEN && rank == 1))
			continue;
		t.shape[0] = p->flaw == DSPD_FROZEN_WHOLE && rank == 0 ? n
		           : part - (p->flaw == DSPD_FROZEN_SHORT && rank == p->ranks - 1);
		for (int64_t k = rank * part; k < rank * part + t.shape[0]; k++) {
			uint64_t v = k < n ? hand_value("model", x->name, SHEAF_BF16, k) : 0x7fc0;

			torch_add(&data, &v, 2);
		}
		torch_text(b, x->name);
		put_flat(b, s, data, &t);
	}
	put(b, "u");
}

static void put_list(struct torch_bytes *b, const int64_t *v, int n)
{
	put(b, "](");
	for (int i = 0; i < n; i++)
		torch_int(b, v[i]);
	put(b, "e");
}

/* Appends [offset, [strides]] of row-major memory. */
static void put_memory(struct torch_bytes *b, const char *key, int64_t at, int64_t columns)
{
	const int64_t strides[2] = { columns, 1 };

	torch_text(b, key);
	put(b, "](");
	torch_int(b, at);
	put_list(b, strides, 2);
	put(b, "e");
}

static void put_map(const struct dspd_plan *p, struct torch_bytes *b)
{
	const int64_t columns = p->params[0].shape[1], shard[2] = { p->rows, columns };
	const int64_t whole[2] = { p->whole, columns };
	char pattern[100];

	snprintf(pattern, sizeof(pattern), "^%s$", p->params[0].name);
	torch_text(b, "universal_checkpoint_info");
	put(b, "}");
	torch_text(b, "affine_map");
	put(b, "}");
	torch_text(b, "params");
	put(b, "}");
	torch_text(b, pattern);
	put(b, "}(");
	torch_text(b, "logical_shape");
	put_list(b, whole, 2);
	torch_text(b, "ranks");
	put(b, "}(");
	for (int mp = 0; mp < 2; mp++) {
		torch_int(b, mp);
		put(b, "}(");
		torch_text(b, "shard_shape");
		put_list(b, shard, 2);
		torch_text(b, "pieces");
		put(b, "]}(");
		torch_text(b, "shape");
		put_list(b, shard, 2);
		put_memory(b, "dest", 0, columns);
		put_memory(b, "source", mp * p->mp_rows * columns, columns);
		put(b, "uau");
	}
	put(b, "uusss");
}

static void model_file(struct simdisk *disk, const char *dir, const struct dspd_plan *p, int rank)
{
	struct storages s = { .n = 0 };
	struct torch_bytes b = { 0 };
	char name[100];

	torch_add(&b, "\x80\x02}(", 4);
	torch_text(&b, "module");
	put_module(p, &b, &s);
	torch_text(&b, "param_shapes");
	put(&b, "](");
	for (int g = 0; g < groups_of(p); g++)
		put_shapes(p, &b, g, rank);
	put(&b, "e");
	torch_text(&b, "frozen_param_shapes");
	put_shapes(p, &b, -1, rank);
	if (p->stage == 3)
		put_frozen(p, &b, &s, rank);
	torch_text(&b, "shared_params");
	put(&b, "}(");
	if (p->stage == 3) {
		torch_text(&b, "tied");
		torch_text(&b, p->params[0].name);
	}
	put(&b, "u");
	if (p->rows)
		put_map(p, &b);
	torch_text(&b, "global_steps");
	torch_int(&b, 9 + (p->flaw == DSPD_OTHER_STEP && rank == 1));
	put_version(p, &b, rank);
	put(&b, "u.");
	snprintf(name, sizeof(name), "zero_pp_rank_%d_mp_rank_%02d_model_states.pt", rank, p->mp);
	put_archive(disk, dir, p->stage == 3 ? name : strstr(name, "mp_rank"), "archive", &b, &s);
}

void dspd_save(struct simdisk *disk, const char *dir, const struct dspd_plan *p)
{
	bool swapped = p->flaw == DSPD_SWAPPED || p->flaw == DSPD_RENAMED;

	for (int r = 0; r < (p->stage == 3 ? p->ranks : 1); r++)
		if (p->flaw != DSPD_NO_MODEL || r)
			model_file(disk, dir, p, r);
	for (int r = 0; r < p->ranks && p->flaw != DSPD_NO_OPTIMIZER; r++) {
		if ((p->flaw == DSPD_NO_FIRST && r == 0) || (p->flaw == DSPD_NO_SECOND && r == 1) ||
		    (p->flaw == DSPD_NO_LAST && r == p->ranks - 1))
			continue;
		optimizer_file(disk, dir, p, swapped && r < 2 ? 1 - r : r, r);
	}
	if (p->flaw == DSPD_TWO_SAVES) {
		struct storages s = { .n = 0 };
		struct torch_bytes b = { 0 };

		put(&b, "N.");
		put_archive(disk, dir, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "archive",
		            &b, &s);
	}
}

void dspd_universal(struct simdisk *disk, const char *dir, const struct dspd_plan *p, bool flat,
                    const char *without)
{
	for (int r = 0; r < (p->stage == 3 ? p->ranks : 1); r++)
		model_file(disk, dir, p, r);
	for (int i = 0; i < p->n; i++)
		for (int kind = 0; kind < KINDS && p->params[i].group >= 0; kind++) {
			const struct dspd_param *x = &p->params[i];
			struct torch_tensor t = { .name = "t", .dtype = SHEAF_F32,
				.ndim = flat ? 1 : x->ndim, .shape = { x->shape[0], x->shape[1],
				x->shape[2] } };
			struct storages s = { .n = 0 };
			struct torch_bytes b = { 0 }, data = { 0 };
			char name[200];

			snprintf(name, sizeof(name), "%s/%s", x->name, theirs[kind]);
			if (without && strcmp(without, name) == 0)
				continue;
			if (flat)
				t.shape[0] = items_of(x);
			put_items(&data, x, kind, 0, items_of(x));
			torch_add(&b, "\x80\x02", 2);
			if (!flat) {
				put(&b, "}(");
				torch_text(&b, "param");
			}
			put_flat(&b, &s, data, &t);
			put(&b, flat ? "." : "u.");
			snprintf(name, sizeof(name), "zero/%s/%s.pt", x->name, theirs[kind]);
			put_archive(disk, dir, name, "archive", &b, &s);
		}
}

void dspd_hold(struct hand *h, const struct dspd_param *params, int n)
{
	static const char *const families[] = { "model", "master_weights", "optimizer",
		"optimizer" };
	static const char *const tails[] = { "", "", "/moment1_0", "/moment2_0" };

	for (int i = 0; i < n; i++)
		for (int k = 0; k < 4; k++) {
			const struct dspd_param *p = &params[i];
			const char *name = hand_text(h, p->name, tails[k]);
			struct sheaf_slice *s = hand_add(h, families[k], name,
				k ? SHEAF_F32 : SHEAF_BF16, p->ndim, (int)p->shape[0],
				(int)p->shape[1], (int)p->shape[2]);

			hand_cut(s, h->play->variant % p->ndim, h->rank, h->ranks);
		}
}
