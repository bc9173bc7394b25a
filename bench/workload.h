/* SPDX-License-Identifier: Apache-2.0 */
/* The workload: the tensors of a state, how a mesh cuts them, and the value of each item.
 *
 * sheaf-bench fills, saves, loads and checks it; `sheaf plan` describes it without memory.
 * Everything is a pure function of its arguments and uses only sheaf.h, so that every rank computes
 * the same description from the same command line and can check a load without the original.
 *
 * Names here begin with wl_, because this is not part of the library.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "sheaf.h"

/* Sets an error's code and message, and returns the code. err may be NULL. */
int wl_fail(struct sheaf_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
const char *wl_code_name(int code);             /* "ECORRUPT"; EVALUE above 0; never NULL */
const char *wl_size(char text[32], uint64_t bytes);     /* "14.9 GiB" */

/* Prints names and paths of unknown origin; escapes everything that moves a terminal's cursor. */
void wl_put(FILE *f, const char *text);
int wl_width(const char *text);                 /* columns that wl_put uses */
/* Returns the length of the UTF-8 sequence at s, and its code point; 0: it is invalid. */
size_t wl_utf8_at(const unsigned char *s, uint32_t *cp);
#define WL_NAME_MAX 1024                        /* bytes of a name, the library's limit */
/* Splits RUN@N or RUN@latest: the length of RUN, and the step or SHEAF_LATEST. Returns 0;
 * SHEAF_EEXIST if the whole text is an existing path, or its last part has no @; SHEAF_EINVAL if
 * the part after the @ is neither a number nor "latest"; SHEAF_ENOENT if no step can have this
 * number. */
int wl_step_at(const char *text, size_t *run_n, int64_t *step);

/* --- values ------------------------------------------------------------------------------- */
uint64_t wl_crc64(const void *bytes, size_t n); /* CRC-64/NVME, standard */
/* Returns the hash h of the text <seed>:<step>:<family>:<name>. */
uint64_t wl_hash(uint64_t seed, int64_t step, const char *family, const char *name);
uint64_t wl_item(uint64_t h, uint64_t i);       /* u(i) */
/* Writes units [from, from + n) of a tensor to dst, as they are stored. A unit is an item, or a
 * byte if items are smaller. F16 and BF16 use the hash of family master_weights: see wl_hash_of. */
void wl_fill(void *dst, int dtype, uint64_t h, uint64_t from, size_t n);
uint64_t wl_hash_of(int dtype, uint64_t seed, int64_t step, const char *family, const char *name);
/* Returns the bytes of one unit: of an item, or 1 if items are smaller than a byte. */
size_t wl_unit_bytes(int dtype);
/* Converts one item to fp64 (complex: the real part). Returns false for types smaller than a
 * byte. */
bool wl_value(double *out, int dtype, const void *item);
/* Rounds v to nearest even, and stores it as an item of dtype. Returns false unless dtype is F64,
 * F32, F16, BF16 or one of the four F8 types with a mantissa. */
bool wl_round(void *item, int dtype, double v);
bool wl_is_float(int dtype);                    /* real, whole bytes */

/* --- tensors ------------------------------------------------------------------------------ */
struct wl_tensor {
	char *family, *name, *tied_to;  /* owned by the model; tied_to may be NULL */
	int32_t dtype, ndim;
	int64_t shape[SHEAF_DIMS_MAX];
	int32_t tp_axis;                /* -1: not cut */
	bool stored;                    /* its values are those of the step given with --like */
	int64_t stage;                  /* -1: on every stage */
	int64_t expert, experts;        /* -1: not an expert's */
};
struct wl_model {
	struct wl_tensor *t;            /* owned; wl_model_seal sorts it by name */
	size_t n, cap;
	int64_t stages;                 /* 1 + the largest stage; set by wl_model_seal */
	bool adam;                      /* the description requests Adam's families */
};
void wl_model_release(struct wl_model *m);
/* Copies the tensor and its names. */
int wl_model_add(struct wl_model *m, const struct wl_tensor *t, struct sheaf_error *err);
int wl_model_parse(struct wl_model *m, const char *text, size_t n, const char *where,
                   struct sheaf_error *err);
int wl_model_read(struct wl_model *m, const char *path, struct sheaf_error *err); /* STATE.json */
/* gb > 0: uses as many layers as make the whole state, including Adam's families, about gb * 1e9
 * bytes. */
int wl_model_preset(struct wl_model *m, const char *name, double gb, bool adam,
                    struct sheaf_error *err);
/* Sizes of a Hugging Face model of this kind, for presets and for reporting missing tensors */
struct wl_shape {
	int64_t vocab, hidden, layers, heads, kv_heads, head, inner;
	int64_t experts, expert_inner, shared_inner;    /* 0: dense */
	bool tied, qkv_bias;
};
int wl_model_hf(struct wl_model *m, const struct wl_shape *s, struct sheaf_error *err);
/* Checks that the tensors of an open step can be listed: a step with broken headers opens, so that
 * verify can report what is wrong. Returns 0, or a code with a message. */
int wl_step_check(struct sheaf_checkpoint *step, struct sheaf_error *err);
/* Takes the tensors of an open step: of family "model", or all. */
int wl_model_like(struct wl_model *m, struct sheaf_checkpoint *step, bool all,
                  struct sheaf_error *err);
/* Guesses tp_axis, stage and expert from the names of a sealed model, for presets and --like; seals
 * it again. */
int wl_model_guess(struct wl_model *m, struct sheaf_error *err);
int wl_model_adam(struct wl_model *m, struct sheaf_error *err);
/* Keeps only the families in a comma-separated list. EINVAL: a name is unknown. */
int wl_model_keep(struct wl_model *m, const char *families, struct sheaf_error *err);
/* Checks for duplicates, checks ties and experts, and sorts. The model may not change
 * afterwards. */
int wl_model_seal(struct wl_model *m, struct sheaf_error *err);
int wl_natural(const char *a, const char *b);   /* natural order of names */
/* Finds a tensor by name in a sealed model; m->n: not found. */
size_t wl_model_find(const struct wl_model *m, const char *family, const char *name);
int64_t wl_items(const struct wl_tensor *t);
uint64_t wl_bytes(int dtype, int64_t items);
/* EINVAL: dtype or shape is invalid, or the size is not a whole number of bytes or overflows. */
int wl_shape_check(int dtype, int ndim, const int64_t *shape, const char *name,
                   struct sheaf_error *err);

/* --- meshes ------------------------------------------------------------------------------- */
enum { WL_DP, WL_TP, WL_PP, WL_EP, WL_AXES };
struct wl_mesh {
	int64_t size[WL_AXES];          /* 1 if not named */
	int order[WL_AXES], n;          /* the named axes, in their order */
};
int wl_mesh_parse(struct wl_mesh *mesh, const char *text, struct sheaf_error *err);
int64_t wl_mesh_ranks(const struct wl_mesh *mesh);
void wl_mesh_at(const struct wl_mesh *mesh, int64_t rank, int64_t at[WL_AXES]);
struct wl_layout {
	struct wl_mesh mesh, expert;    /* expert: same as mesh if not named */
	bool own_expert;
	int zero;
};
/* mesh NULL: all axes are 1; expert NULL: same as mesh. Both must have the same product. */
int wl_layout_parse(struct wl_layout *l, const char *mesh, const char *expert, int zero,
                    struct sheaf_error *err);

/* --- what one rank holds ------------------------------------------------------------------ */
struct wl_piece {
	size_t tensor;
	struct sheaf_slice slice;       /* data is NULL without memory */
	int64_t from, items;            /* items of the box (row-major) that are in data */
};
char *wl_piece_at(const struct wl_piece *p, int64_t item);      /* address of an item of the box */
struct wl_held {
	struct wl_piece *p;             /* owned */
	size_t n, cap;
	char *memory;                   /* owned, mapped; may be NULL */
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
	struct sheaf_checkpoint *like;  /* for tensors marked stored; may be NULL */
};
int wl_held_fill(struct wl_held *h, const struct wl_model *m, const struct wl_source *src,
                 struct sheaf_error *err);
/* The report of a load, by index in the model: 0, or a letter of struct sheaf_report */
struct wl_said {
	const char *what;               /* m->n of them; NULL: nothing was reported */
	struct sheaf_checkpoint *step;  /* the loaded step, for its dtypes; NULL: as in the model */
};
/* Compares every item with its expected value. If one differs, returns 1 (EVALUE) with a message in
 * err. */
int wl_held_check(const struct wl_held *h, const struct wl_model *m, const struct wl_source *src,
                  const struct wl_said *said, uint64_t *items, struct sheaf_error *err);
/* Returns whether --like attaches this file. */
bool wl_attachable(const char *file, uint64_t bytes);
#endif
