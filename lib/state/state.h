/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank holds: the caller's slices, checked and converted to units once.
 *
 * The room lib/state owns struct sheaf_state and its slices, and the averages of them (averages.h).
 * It sees base, plan and format: no group, no run, no file. A lazy save, which reads the memory of
 * slices in the background, adds a struct shf_reader to the state's list; the room knows nothing
 * else about saves. */
#ifndef SHF_STATE_H
#define SHF_STATE_H
#include "box.h"
#include "err.h"
#include "mem.h"

/* A stream of opaque bytes (sheaf_state_rank_bytes): the slice has the bytes of one rank, number
 * `rank` of `ranks`. `stream` is NULL in all other slices. */
struct shf_stream {
	const char *stream, *rule;      /* in the state's arena; rule: strict, drop or modulo */
	int32_t rank, ranks;
};
/* One slice, checked and in units. mem.base points to the data of unit mem.lo; the caller owns
 * that memory, except for averages. The array of slices may be reallocated when a slice is added,
 * so no pointer to a slice may be kept while slices are still added. */
struct shf_slice {              /* members that planning reads come first: see holds.c */
	const char *family, *name;      /* in the state's arena; name: as the caller gave it */
	const char *stored;             /* tensor that holds the bytes on disk: tied_to, or name */
	int32_t dtype, data_dtype;      /* item types on disk, and in memory */
	uint64_t flags;                 /* SHEAF_SLICE_FLAT and so on */
	uint32_t mem_unit;              /* bytes of a unit in memory; mem.unit: on disk */
	bool empty;                     /* the slice has no items */
	bool owned;                     /* the slice holds averages, and the state owns its
	                                 * memory */
	bool unmoved;                   /* the last sheaf_state_move was refused, as a lazy save
	                                 * still read the memory; the caller must repeat it */
	struct shf_mem mem;             /* base points to unit mem.lo; NULL: no memory yet */
	struct shf_shape items;         /* the shape in items, as the caller gave it */
	struct shf_shape shape;         /* the same shape in units */
	struct shf_stream stream;
};
#define SHF_FAMILIES_KNOWN 8
/* Names of the first few families of a state. All slices of such a family point to the same
 * copy of its name. */
struct shf_families {
	const char *names[SHF_FAMILIES_KNOWN];  /* in the state's arena */
	size_t n;
};
#define SHF_EVERY_SLICE SIZE_MAX
/* All that a state and a load know of a lazy save: it still reads the memory of some slices. */
struct shf_reader {
	struct shf_reader *next;        /* in the state's list */
	int64_t step;                   /* step that the save writes; for error messages */
	/* Returns whether the save will still read the memory of that slice. SHF_EVERY_SLICE asks
	 * whether it will read any slice. [any thread] */
	bool (*reads)(struct shf_reader *reader, size_t slice);
};
/* All slices of a rank. The state is freed with its last reference. A plan or a table computed
 * from the slices notes `version` or `places`, and is computed again when that has changed. */
struct sheaf_state {
	int refs;                       /* references: one for the caller's handle, one for each
	                                 * save */
	struct shf_arena arena;
	struct shf_families families;
	struct shf_slice *slices;       /* owned */
	size_t n, cap;
	size_t hollow;                  /* slices that have items but no memory (data is NULL); a
	                                 * plan can be made of them, but no save or load */
	bool fixed;                     /* a save has begun: slices can no longer be added */
	unsigned loads;                 /* loads by slices that have begun and are not over: until
	                                 * then slices can not be added, and no save or load
	                                 * begins */
	int rc;                         /* first failure of a [local] call; the next collective
	                                 * call returns it on all ranks */
	struct sheaf_error err;         /* the error that belongs to rc */
	uint64_t version;               /* counts adds; a plan is valid for one version */
	uint64_t twinless_of;           /* `version` in which no two slices have the same items */
	uint64_t twins_sought_of;       /* `places` for which shf_twins_check found nothing */
	size_t unmoved_n;               /* slices with `unmoved` set */
	uint64_t places;                /* counts adds and moves */
	uint32_t *overlaps;             /* owned; cached result of shf_overlaps_find */
	uint64_t overlaps_of;           /* `places` when it was computed; 0: not computed yet */
	struct shf_ema *emas;           /* owned; room for SHF_EMAS_MAX */
	size_t emas_n, emas_checked;    /* emas_n: number of emas; emas_checked: for this many, from
	                                 * the first on, all ranks have agreed that some rank has a
	                                 * slice to average */
	struct shf_reader *readers;     /* borrowed; a save removes its reader when it has copied */
	void *plan;                     /* the save's plan for this state, made by the engine */
	void (*plan_free)(void *plan);  /* frees it with the state */
};

/* Checks a slice and converts it to units; copies its strings into the arena. EINVAL, ENOMEM.
 * EINVAL also if the slice has items but `data` is NULL. (shf_state_take accepts such a slice, so
 * that the state can be planned with; shf_state_ready refuses it before a save or load.) any_name:
 * the name need not be one that can be saved. */
int shf_slice_take(struct shf_slice *out, const struct sheaf_slice *in, bool any_name,
                   struct shf_arena *arena, struct sheaf_error *err);
/* Computes the size of a unit, in bytes, and the shape in units of a tensor of this dtype and
 * shape. Returns false if the items do not fill whole bytes, or their number overflows. */
bool shf_units_of(struct shf_shape *units, uint32_t *unit, int dtype,
                  const struct shf_shape *items);
/* Prints a shape like "[4, 8]" into text, cut to n > 0 bytes. Returns text. */
char *shf_shape_print(const struct shf_shape *s, char *text, size_t n);

struct sheaf_state *shf_state_new(void);
/* Writes the message for a state that is NULL, and returns ENOMEM. */
int  shf_state_is_null(struct sheaf_error *err);
/* Adds a slice and returns its number, or the code of an error, which sticks to the state
 * (shf_state_stick). [local] */
int  shf_state_add(struct sheaf_state *state, const struct sheaf_slice *slice,
                   struct sheaf_error *err);
/* Does what shf_state_add does, but an error does not stick; the caller may call shf_state_stick.
 * [local] */
int  shf_state_take(struct sheaf_state *state, const struct sheaf_slice *slice,
                    struct sheaf_error *err);
/* Keeps the first failure of a [local] call in the state: the next collective call returns it on
 * all ranks. Returns rc. */
int  shf_state_stick(struct sheaf_state *state, int rc, const struct sheaf_error *err);
/* Does what sheaf.h says of sheaf_state_rank_bytes. [local] */
int  shf_state_stream(struct sheaf_state *state, const char *stream, const char *rule,
                      int32_t rank, int32_t ranks, void *data, size_t bytes,
                      struct sheaf_error *err);
/* Does what sheaf.h says of sheaf_state_move. [local] */
int  shf_state_move(struct sheaf_state *state, int slice, void *data, struct sheaf_error *err);
/* Do what sheaf.h says of sheaf_state_move_all and sheaf_state_fail. [local] */
int  shf_state_move_all(struct sheaf_state *state, void *const *data, size_t n,
                        struct sheaf_error *err);
int  shf_state_fail(struct sheaf_state *state, const char *why, struct sheaf_error *err);
/* Checks that a save or load of the state may begin. Returns the code that sticks to the state, or
 * EINVAL if a load by slices is not over, if a slice must be moved again, if two slices are the
 * same items in different memory (slice_twins.h) or, with `memory` set, if one has items but no
 * memory. [local] */
int  shf_state_ready(struct sheaf_state *state, bool memory, struct sheaf_error *err);
/* Drops a reference; the last one frees the state. [local] */
void shf_state_put(struct sheaf_state *state);
#endif
