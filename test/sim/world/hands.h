/* SPDX-License-Identifier: Apache-2.0 */
/* Small programs on simulated ranks: each rank declares its slices, saves or loads them, and the
 * results are kept: the code, the message, the report, every wrong item. Shares no code with plan
 * or engine: values come from a formula over names and global items, and conversions are checked
 * with small integers, which every float type can represent exactly.
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
enum hand_want {                        /* the expected content of a slice after a load */
	HAND_VALUES, HAND_KEPT, HAND_ZEROS, HAND_ANY
};
struct hand {                           /* one rank */
	struct play *play;
	int rank, ranks;
	struct sheaf_group *group;
	const struct shf_sys *sys;      /* &used */
	struct shf_sys used;
	struct sheaf_run *run;          /* open during the act */
	struct sheaf_state *state;
	struct sheaf_error err;
	struct sheaf_report report;
	int n, blocks_n;
	struct sheaf_slice s[HAND_SLICES];
	const char *family[HAND_SLICES], *name[HAND_SLICES];    /* the tensor whose values it has */
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
	void (*hold)(struct hand *h);   /* NULL: no slices */
	void (*during)(struct hand *h, struct sheaf_save *save); /* between begin and commit */
	int variant;                    /* for use by hold */
	struct shf_opts opts;
	const char *path;               /* loads from there; NULL: from a step of the run "run" */
	int64_t step;
	uint64_t flags;                 /* of the load */
	int takes;                      /* loads slice by slice, with so many threads; 0: at once */
	void (*tamper)(struct hand *h); /* called before anything is opened; may change group->ops
					 * and used.ops */
	/* results; of rank 0 if ranks have their own */
	int rc;                         /* 1: ranks returned different codes */
	struct sheaf_error err;
	struct sheaf_report report;
	char told[16384];               /* "M family/name: msg\n" of all ranks */
	int64_t wrong;                  /* items that differ; after a failure: bytes changed */
	char why[300];
};

/* Adds a dense slice of the whole tensor. The caller may narrow it and change other members before
 * hold returns. After that, memory is allocated for slices without it. */
struct sheaf_slice *hand_add(struct hand *h, const char *family, const char *name, int dtype,
                             int ndim, ...);
/* Sets what the last slice contains after a load, or whose values it has. */
void hand_want(struct hand *h, enum hand_want want);
void hand_as(struct hand *h, const char *family, const char *name);
/* Narrows a slice to piece i of n along a dimension; the last pieces are short or empty. */
void hand_cut(struct sheaf_slice *s, int dim, int64_t i, int64_t n);
void *hand_block(struct hand *h, int64_t bytes);       /* memory filled with 0xA5 */
const char *hand_text(struct hand *h, const char *a, const char *b);    /* the concatenation */

/* These run on all ranks, and return p->rc. */
int hands_save(struct play *p);
int hands_load(struct play *p);
int hands_run(struct play *p, int (*act)(struct hand *h), bool fill);
/* Counts and describes wrong items on this rank after a load; for acts. */
int64_t hand_wrong(struct hand *h, char *why, size_t n);
void hand_paint(struct hand *h);
void hand_fill(struct hand *h, int byte);
/* Returns the size of the block that contains a slice's memory, and its address; 0: no memory. */
size_t hand_block_of(const struct hand *h, int slice, uint8_t **at);
void hand_spoil(struct hand *h, int slice);     /* overwrites that block */
/* Calls item for every item of a slice on this rank: with its number in the tensor, and its
 * address. */
void hand_each(struct hand *h, int slice,
               void (*item)(void *arg, struct hand *h, int slice, int64_t global, uint8_t *at),
               void *arg);
/* Returns a play on that disk with usual settings. */
struct play hands_play(struct simdisk *disk, int ranks, void (*hold)(struct hand *h));
/* Counts the reported lines that begin with the letter `what`. */
int hands_told(const struct play *p, char what);
/* Returns the letter for an enum sheaf_report_kind in the texts of tests: Missing, Unexpected,
 * Converted, V unverified, Derived, Ignored, X mismatched, Zeroed, R stream, Passed over, set
 * Aside. */
char hands_letter(int32_t kind);

/* Returns the bits of item `global` of a tensor, for types of whole bytes up to 64 bits. */
uint64_t hand_value(const char *family, const char *name, int dtype, int64_t global);
int hand_bits(int dtype);
/* Returns a hash of the tensor files and checksums of a step, without its manifest. */
uint64_t hands_hash(struct simdisk *disk, const char *dir);
/* Puts a safetensors file with these tensors, whose values are as above, of family "model". pad:
 * spaces at the end of the header. The tensors' data is contiguous. */
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
