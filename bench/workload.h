/* SPDX-License-Identifier: Apache-2.0 */
/* The workload: which tensors a state has, how a mesh cuts them, which value each item has.
 *
 * sheaf-bench fills, saves, loads and checks it; `sheaf plan` describes it without memory. All
 * of it is a pure function of its arguments, over sheaf.h alone, so that every rank computes the
 * same description from the same command line and proves a load without the original.
 *
 * Names here begin with wl_, because this is no part of the library.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "sheaf.h"

/* Errors: writes code and sentence, returns code. err may be NULL. */
int wl_fail(struct sheaf_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
const char *wl_code_name(int code);             /* "ECORRUPT"; EVALUE above 0; never NULL */
const char *wl_size(char text[32], uint64_t bytes);     /* "14.9 GiB" */

/* Names and paths come from anybody: nothing that moves a terminal's cursor passes raw. */
void wl_put(FILE *f, const char *text);
int wl_width(const char *text);                 /* columns that wl_put takes */
/* The length of the UTF-8 sequence at s and its code point; 0: none. */
size_t wl_utf8_at(const unsigned char *s, uint32_t *cp);
#define WL_NAME_MAX 1024                        /* bytes of a name, as the library takes them */
/* RUN@N or RUN@latest: the length of RUN, and the step or SHEAF_LATEST; 0. SHEAF_EEXIST: it is a
 * path as it stands, or has no @ in its last part. SHEAF_EINVAL: neither a step nor latest stands
 * behind the @. SHEAF_ENOENT: a number that no step can have. */
int wl_step_at(const char *text, size_t *run_n, int64_t *step);

/* --- values ------------------------------------------------------------------------------- */
uint64_t wl_crc64(const void *bytes, size_t n); /* CRC-64/NVME, standard */
/* h of the text <seed>:<step>:<family>:<name>. */
uint64_t wl_hash(uint64_t seed, int64_t step, const char *family, const char *name);
uint64_t wl_item(uint64_t h, uint64_t i);       /* u(i) */
/* Stored units [from, from + n) of a tensor into dst: items, or bytes where items are smaller.
 * F16 and BF16 take the hash of family master_weights: use wl_hash_of. */
void wl_fill(void *dst, int dtype, uint64_t h, uint64_t from, size_t n);
uint64_t wl_hash_of(int dtype, uint64_t seed, int64_t step, const char *family, const char *name);
/* Bytes of one unit: of an item, or 1 where items are smaller than a byte. */
size_t wl_unit_bytes(int dtype);
/* One item as fp64 (complex: the real part); false for sub-byte types. */
bool wl_value(double *out, int dtype, const void *item);
/* v rounded to nearest even into an item of dtype; false where that type is none of F64, F32,
 * F16, BF16 and the four F8 types that are no pure exponents. */
bool wl_round(void *item, int dtype, double v);
bool wl_is_float(int dtype);                    /* real, whole bytes */

/* --- tensors ------------------------------------------------------------------------------ */
struct wl_tensor {
	char *family, *name, *tied_to;  /* owned by the model; tied_to NULL: none */
	int32_t dtype, ndim;
	int64_t shape[SHEAF_DIMS_MAX];
	int32_t tp_axis;                /* -1: not cut */
	bool stored;                    /* its values come from the step given with --like */
	int64_t stage;                  /* -1: on every stage */
	int64_t expert, experts;        /* -1: none */
};
struct wl_model {
	struct wl_tensor *t;            /* owned; after wl_model_seal in natural order of names */
	size_t n, cap;
	int64_t stages;                 /* 1 + the largest stage; set by wl_model_seal */
	bool adam;                      /* the description asks for Adam's families */
};
void wl_model_release(struct wl_model *m);
/* Copies the tensor and its names. */
int wl_model_add(struct wl_model *m, const struct wl_tensor *t, struct sheaf_error *err);
int wl_model_parse(struct wl_model *m, const char *text, size_t n, const char *where,
                   struct sheaf_error *err);
int wl_model_read(struct wl_model *m, const char *path, struct sheaf_error *err); /* STATE.json */
/* gb > 0: as many layers as make the whole state, Adam's families included, about gb * 1e9. */
int wl_model_preset(struct wl_model *m, const char *name, double gb, bool adam,
                    struct sheaf_error *err);
/* What a Hugging Face model of this kind holds: for presets, and for naming what is absent. */
struct wl_shape {
	int64_t vocab, hidden, layers, heads, kv_heads, head, inner;
	int64_t experts, expert_inner, shared_inner;    /* 0: dense */
	bool tied, qkv_bias;
};
int wl_model_hf(struct wl_model *m, const struct wl_shape *s, struct sheaf_error *err);
/* A step whose headers are broken opens, so that verify can say what is wrong; all else wants its
 * tensors. 0, or the code and its sentence. */
int wl_step_check(struct sheaf_checkpoint *step, struct sheaf_error *err);
/* The tensors of an open step: family model, or all that it has. */
int wl_model_like(struct wl_model *m, struct sheaf_checkpoint *step, bool all,
                  struct sheaf_error *err);
/* tp_axis, stage and expert from names, for presets and --like. Of a sealed model; seals it. */
int wl_model_guess(struct wl_model *m, struct sheaf_error *err);
int wl_model_adam(struct wl_model *m, struct sheaf_error *err);
/* Keep the families of a comma-separated list; EINVAL where a name says nothing. */
int wl_model_keep(struct wl_model *m, const char *families, struct sheaf_error *err);
/* Checks doubles, ties, experts; sorts. Then the model is fixed. */
int wl_model_seal(struct wl_model *m, struct sheaf_error *err);
int wl_natural(const char *a, const char *b);   /* natural order of names */
/* By name in a sealed model; m->n: none such. */
size_t wl_model_find(const struct wl_model *m, const char *family, const char *name);
int64_t wl_items(const struct wl_tensor *t);
uint64_t wl_bytes(int dtype, int64_t items);
/* EINVAL where dtype or shape is none, or the bytes are no whole number or overflow. */
int wl_shape_check(int dtype, int ndim, const int64_t *shape, const char *name,
                   struct sheaf_error *err);

/* --- meshes ------------------------------------------------------------------------------- */
enum { WL_DP, WL_TP, WL_PP, WL_EP, WL_AXES };
struct wl_mesh {
	int64_t size[WL_AXES];          /* 1 where not named */
	int order[WL_AXES], n;          /* the named ones as they were named */
};
int wl_mesh_parse(struct wl_mesh *mesh, const char *text, struct sheaf_error *err);
int64_t wl_mesh_ranks(const struct wl_mesh *mesh);
void wl_mesh_at(const struct wl_mesh *mesh, int64_t rank, int64_t at[WL_AXES]);
struct wl_layout {
	struct wl_mesh mesh, expert;    /* expert: the same as mesh unless named */
	bool own_expert;
	int zero;
};
/* mesh NULL: all axes 1; expert NULL: as mesh. Both must have the same product. */
int wl_layout_parse(struct wl_layout *l, const char *mesh, const char *expert, int zero,
                    struct sheaf_error *err);

/* --- what one rank holds ------------------------------------------------------------------ */
struct wl_piece {
	size_t tensor;
	struct sheaf_slice slice;       /* data NULL without memory */
	int64_t from, items;            /* of the box, row-major, that lie in data */
};
char *wl_piece_at(const struct wl_piece *p, int64_t item);      /* where item of the box lies */
struct wl_held {
	struct wl_piece *p;             /* owned */
	size_t n, cap;
	char *memory;                   /* owned, mapped; NULL: none */
	uint64_t bytes, mapped;
};
int wl_held_init(struct wl_held *h, const struct wl_model *m, const struct wl_layout *l,
                 int64_t rank, bool memory, struct sheaf_error *err);
void wl_held_release(struct wl_held *h);
int wl_held_state(const struct wl_held *h, struct sheaf_state **state, struct sheaf_error *err);
void wl_held_poison(struct wl_held *h);

struct wl_source {                      /* where values come from */
	uint64_t seed;
	int64_t step;
	struct sheaf_checkpoint *like;  /* for tensors marked stored; NULL: there are none */
};
int wl_held_fill(struct wl_held *h, const struct wl_model *m, const struct wl_source *src,
                 struct sheaf_error *err);
/* What a load said of a tensor, by index in the model: 0, or a letter of struct sheaf_report. */
struct wl_said {
	const char *what;               /* m->n of them; NULL: nothing was said */
	struct sheaf_checkpoint *step;  /* the loaded one: its dtypes; NULL: as in the model */
};
/* Every item against its value; EVALUE is told by returning 1 with the sentence in err. */
int wl_held_check(const struct wl_held *h, const struct wl_model *m, const struct wl_source *src,
                  const struct wl_said *said, uint64_t *items, struct sheaf_error *err);
/* Is this file one that --like attaches? */
bool wl_attachable(const char *file, uint64_t bytes);
#endif
