/* SPDX-License-Identifier: Apache-2.0 */
/* Small programs on simulated ranks: each rank says what it has in hand, saves or loads it, and
 * what came of it is kept: the code, the sentence, the report, every item that is wrong. Shares no
 * code with plan or engine: values come from a formula over names and global items, and conversion
 * is checked with small integers, which every float type holds exactly.
 */
#ifndef HANDS_H
#define HANDS_H
#include <stdbool.h>
#include "load.h"
#include "run_ops.h"
#include "save.h"
#include "save_calls.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_gates.h"
#include "simdisk.h"
#include "simgroup.h"
#include "step.h"
#include "step_open.h"
#include "verify_step.h"

enum { HAND_SLICES = 160, HAND_BLOCKS = 200 };
enum hand_want {                        /* what a slice holds after a load */
	HAND_VALUES, HAND_KEPT, HAND_ZEROS, HAND_ANY
};
struct hand {                           /* one rank */
	struct play *play;
	int rank, ranks;
	struct sheaf_group *group;
	const struct shf_sys *sys;      /* &used */
	struct shf_sys used;
	struct sheaf_run *run;          /* open while the act lasts */
	struct sheaf_state *state;
	struct sheaf_error err;
	struct sheaf_report report;
	int n, blocks_n;
	struct sheaf_slice s[HAND_SLICES];
	const char *family[HAND_SLICES], *name[HAND_SLICES];    /* whose values it has */
	enum hand_want want[HAND_SLICES];
	uint8_t *blocks[HAND_BLOCKS];
	size_t blocks_bytes[HAND_BLOCKS];
	char *texts[HAND_BLOCKS];
	int texts_n;
};
struct play {
	struct simdisk *disk;
	int ranks;
	const int32_t *nodes;
	uint64_t seed;
	void (*hold)(struct hand *h);   /* NULL: nothing */
	void (*during)(struct hand *h, struct sheaf_save *save); /* between begin and commit */
	int variant;                    /* for hold to look at */
	struct shf_opts opts;
	const char *path;               /* load from there; NULL: a step of the run "run" */
	int64_t step;
	uint64_t flags;                 /* of the load */
	int takes;                      /* it is made slice by slice, by so many threads; 0: not */
	void (*tamper)(struct hand *h); /* before anything is opened: group->ops and used.ops */
	/* what came of it; of rank 0 where ranks have their own */
	int rc;                         /* 1: ranks returned different codes */
	struct sheaf_error err;
	struct sheaf_report report;
	char told[16384];               /* "M family/name: msg\n" of all ranks */
	int64_t wrong;                  /* items that differ; after a failure: bytes touched */
	char why[300];
};

/* A slice of the whole tensor, dense; narrow it, and set what else it is, before hold returns.
 * Memory is made then, where there is none. */
struct sheaf_slice *hand_add(struct hand *h, const char *family, const char *name, int dtype,
                             int ndim, ...);
/* The last slice: what it holds after a load, and whose values. */
void hand_want(struct hand *h, enum hand_want want);
void hand_as(struct hand *h, const char *family, const char *name);
/* Piece i of n along a dimension, the last ones short or empty. */
void hand_cut(struct sheaf_slice *s, int dim, int64_t i, int64_t n);
void *hand_block(struct hand *h, int64_t bytes);       /* 0xA5, the caller's memory */
const char *hand_text(struct hand *h, const char *a, const char *b);    /* joined */

/* On all ranks; returns p->rc. */
int hands_save(struct play *p);
int hands_load(struct play *p);
int hands_run(struct play *p, int (*act)(struct hand *h), bool fill);
/* One slice from a step that is open on this rank, checked; for acts. */
int64_t hand_wrong(struct hand *h, char *why, size_t n);
void hand_paint(struct hand *h);
void hand_fill(struct hand *h, int byte);
/* The block that a slice's memory lies in: its bytes, and where; 0: it has none. */
size_t hand_block_of(const struct hand *h, int slice, uint8_t **at);
void hand_spoil(struct hand *h, int slice);     /* all of that block */
/* Every item of a slice that is here: its number in the tensor, and where it lies. */
void hand_each(struct hand *h, int slice,
               void (*item)(void *arg, struct hand *h, int slice, int64_t global, uint8_t *at),
               void *arg);
/* A play on that disk with what tests mostly want. */
struct play hands_play(struct simdisk *disk, int ranks, void (*hold)(struct hand *h));
/* Lines of `told` that begin with the letter. */
int hands_told(const struct play *p, char what);
/* The letter that stands for an enum sheaf_report_kind in the texts of tests: Missing, Unexpected,
 * Converted, V unverified, Derived, Ignored, X mismatched, Zeroed, R stream, Passed over, set
 * Aside. */
char hands_letter(int32_t kind);

/* Bits of item `global` of a tensor, of one of the types up to 64 bits that are whole bytes. */
uint64_t hand_value(const char *family, const char *name, int dtype, int64_t global);
int hand_bits(int dtype);
/* The tensor files and sums of a step, without its manifest. */
uint64_t hands_hash(struct simdisk *disk, const char *dir);
/* A safetensors file with these tensors, values as above under family "model"; pad: spaces at the
 * end of the header. Offsets follow each other. */
struct hand_tensor {
	const char *name;
	int dtype, ndim;
	int64_t shape[12];
};
void hands_file(struct simdisk *disk, const char *path, const struct hand_tensor *t, int n,
                int pad);

/* For test files that include t.h. */
#define SAVED(p) CHECK_RC(hands_save(&(p)), 0, &(p).err)
/* Loads, and checks every item. */
#define LOADED_AT_ONCE(p)                                                                \
	do {                                                                             \
		CHECK_RC(hands_load(&(p)), 0, &(p).err);                                 \
		if ((p).wrong)                                                           \
			print_error("%s:%d: %s\n", __FILE__, __LINE__, (p).why);         \
		CHECK_INT((p).wrong, 0);                                                 \
	} while (0)
/* The same slice by slice, and then at once; p has the result of the latter. */
#define LOADED(p)                                                                        \
	do {                                                                             \
		(p).takes = 2;                                                           \
		LOADED_AT_ONCE(p);                                                       \
		(p).takes = 0;                                                           \
		LOADED_AT_ONCE(p);                                                       \
	} while (0)
/* Refused before a byte was changed, with this text in the message, in both ways. */
#define REFUSED(p, code, text)                                                           \
	do {                                                                             \
		(p).takes = 1;                                                           \
		REFUSED_AT_ONCE(p, code, text);                                          \
		(p).takes = 0;                                                           \
		REFUSED_AT_ONCE(p, code, text);                                          \
	} while (0)
#define REFUSED_AT_ONCE(p, code, text)                                                   \
	do {                                                                             \
		CHECK_RC(hands_load(&(p)), (code), &(p).err);                            \
		if (!strstr((p).err.msg, (text)))                                        \
			print_error("%s:%d: %s\n", __FILE__, __LINE__, (p).err.msg);     \
		CHECK(strstr((p).err.msg, (text)) != NULL);                              \
		CHECK_INT((p).wrong, 0);                                                 \
	} while (0)
static inline struct simdisk *disk_new(void)
{
	return simdisk_new(0x5eaf, SIMDISK_STRICT);
}
#endif
