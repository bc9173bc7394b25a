/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank holds: the caller's slices, checked and put into units once.
 *
 * The room lib/state owns struct sheaf_state and its slices, and the averages of them (averages.h).
 * It sees base, plan and format: no group, no run, no file. Whoever reads the memory of slices
 * behind the caller says so in the list of readers; what a save is the room does not know. */
#ifndef SHF_STATE_H
#define SHF_STATE_H
#include "box.h"
#include "err.h"
#include "mem.h"

/* A stream of opaque per-rank bytes, or stream NULL. */
struct shf_stream {
	const char *stream, *rule;      /* in the state's arena */
	int32_t rank, ranks;
};
/* One slice, checked and in units. base points to the data of unit mem.lo; the caller owns it,
 * except for averages. A state's slices move when it grows, so nothing keeps a pointer to one
 * while slices are still added. */
struct shf_slice {              /* what planning looks at comes first */
	const char *family, *name;      /* in the state's arena; name as the caller says it */
	const char *stored;             /* under which its bytes are stored: tied_to, or name */
	int32_t dtype, data_dtype;
	uint32_t flags;
	uint32_t mem_unit;              /* bytes of a unit in memory; mem.unit: as stored */
	bool empty;                     /* holds nothing */
	bool owned;                     /* its memory is ours: averages */
	bool unmoved;                   /* its last move came too early and must be repeated */
	struct shf_mem mem;             /* base: in memory units, data of unit mem.lo */
	struct shf_shape items;         /* the caller's shape */
	struct shf_shape shape;         /* the same in units */
	struct shf_stream stream;
};
#define SHF_FAMILIES_KNOWN 8
struct shf_families {           /* of a state: slices of a family share its text */
	const char *names[SHF_FAMILIES_KNOWN];  /* in the state's arena; the first few */
	size_t n;
};
/* A lazy save, as far as a state and a load know it: something that still reads the memory of
 * slices.
 */
#define SHF_EVERY_SLICE SIZE_MAX
struct shf_reader {
	struct shf_reader *next;        /* in the state's list */
	int64_t step;                   /* for sentences */
	/* Will it still read the memory of that slice (SHF_EVERY_SLICE: of any)? [any thread] */
	bool (*reads)(struct shf_reader *reader, size_t slice);
};
/* All slices of a rank. Handles are counted in refs, and the last one frees it. The counters
 * `version` and `places` let others keep what they derived from the slices until a slice is
 * added or moved. */
struct sheaf_state {
	int refs;
	struct shf_arena arena;
	struct shf_families families;
	struct shf_slice *slices;       /* owned */
	size_t n, cap;
	size_t hollow;                  /* slices that hold something, but nowhere: to plan with */
	bool fixed;                     /* a save has begun: no more adds */
	int rc;                         /* first failure of a [local] call; sticks */
	struct sheaf_error err;
	uint64_t version;               /* counts adds; a plan is for one version */
	size_t unmoved_n;               /* slices that are to be moved again */
	uint64_t places;                /* counts adds and moves */
	uint32_t *overlaps;             /* owned; what shf_overlaps_find has found */
	uint64_t overlaps_of;           /* `places` when it looked; 0: it has not yet */
	struct shf_ema *emas;           /* owned */
	size_t emas_n, emas_checked;    /* checked: of so many some rank has a slice */
	struct shf_reader *readers;     /* borrowed; each takes itself off the list */
	void *plan;                     /* owned by the engine: shf_plan_put */
	void (*plan_free)(void *plan);
};

/* Check and normalise; strings are copied into the arena. EINVAL, ENOMEM. Data that is NULL is
 * refused here; a state takes it, and has shf_state_ready refuse it. */
int shf_slice_take(struct shf_slice *out, const struct sheaf_slice *in, struct shf_arena *arena,
                   struct sheaf_error *err);
/* Units of a tensor of this dtype and shape: unit bytes and the shape in units; false where the
 * items are no whole bytes or overflow. */
bool shf_units_of(struct shf_shape *units, uint32_t *unit, int dtype,
                  const struct shf_shape *items);
/* "[4, 8]" into text of n > 0 bytes, as far as there is room. */
char *shf_shape_print(const struct shf_shape *s, char *text, size_t n);

struct sheaf_state *shf_state_new(void);
int  shf_state_add(struct sheaf_state *state, const struct sheaf_slice *slice);
/* The same, [local] but for that: the caller makes a failure stick. */
int  shf_state_take(struct sheaf_state *state, const struct sheaf_slice *slice,
                    struct sheaf_error *err);
/* A [local] failure sticks: the next collective call returns it everywhere. Gives rc. */
int  shf_state_stick(struct sheaf_state *state, int rc, const struct sheaf_error *err);
int  shf_state_stream(struct sheaf_state *state, const char *stream, const char *rule,
                      int32_t rank, int32_t ranks, void *data, size_t bytes);
int  shf_state_move(struct sheaf_state *state, int slice, void *data);
/* Is the state fit for a save or a load? EINVAL if a slice must be moved again, or if `memory` and
 * a slice has none; or the code that stuck to the state before. */
int  shf_state_ready(const struct sheaf_state *state, bool memory, struct sheaf_error *err);
void shf_state_put(struct sheaf_state *state);
#endif
