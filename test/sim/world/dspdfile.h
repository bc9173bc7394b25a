/* SPDX-License-Identifier: Apache-2.0 */
/* Makes saves as DeepSpeed writes them, with values of hands.h, and invalid ones. Shares no code
 * with lib/foreign.
 *
 * The model's weights have the values of family "model" (BF16), fp32 weights those of family
 * "master_weights" under the same name, and moments those of family "optimizer". Padding is NaN. */
#ifndef DSPDFILE_H
#define DSPDFILE_H
#include "torchfile.h"

struct dspd_param {
	const char *name;
	int group, ndim;                /* group -1: frozen */
	int64_t shape[3];
};
enum dspd_flaw {
	DSPD_SOUND,
	DSPD_ALIGNED,                   /* ZeRO 1: parameters begin at multiples of 4 items */
	DSPD_OLD,                       /* names, states and padding of old versions */
	DSPD_STEPS_DIFFER,              /* groups have different step counts */
	DSPD_EXPERTS,                   /* the last group is on fewer ranks */
	DSPD_ROUND_ROBIN,               /* mappings have another order than parts */
	DSPD_EMPTY,                     /* ZeRO 3: "empty" is a buffer without items */
	/* from here on: errors */
	DSPD_SWAPPED,                   /* the parts of ranks 0 and 1 are exchanged */
	DSPD_RENAMED,                   /* the files of ranks 0 and 1 are exchanged */
	DSPD_NO_FIRST, DSPD_NO_SECOND, DSPD_NO_LAST,    /* the file of a rank is missing */
	DSPD_NO_MODEL, DSPD_TWO_SAVES, DSPD_OTHER_STEP, DSPD_OTHER_VERSION, DSPD_OTHER_COUNT,
	DSPD_OTHER_SHAPE, DSPD_LIED_SHAPE, DSPD_SHORT, DSPD_LONG, DSPD_SHORT_STATE, DSPD_LONG_STATE,
	DSPD_NO_STATE, DSPD_SQUARE, DSPD_OTHER_TYPE, DSPD_NAME_TWICE, DSPD_NEGATIVE, DSPD_HUGE,
	DSPD_FEW_GROUPS, DSPD_BAD_PADDING, DSPD_NO_DICT, DSPD_NO_LIST, DSPD_NO_OPTIMIZER,
	DSPD_AUTOEP,
	DSPD_FROZEN_WHOLE, DSPD_FROZEN_SHORT, DSPD_NO_FROZEN,   /* a frozen parameter's part */
	/* Errors in the parameters that the model file of rank 1 lists */
	DSPD_RANK_ORDER, DSPD_RANK_NAME, DSPD_RANK_SHAPE, DSPD_RANK_FROZEN, DSPD_RANK_FEWER
};
struct dspd_plan {
	int stage, ranks;               /* stage: 1 or 3 */
	const struct dspd_param *params;        /* grouped: those of a group are consecutive */
	int n;
	enum dspd_flaw flaw;
	int mp;                         /* rank of model parallelism */
	/* An affine_map says that each of two such ranks has rows of the first parameter: `rows` of
	 * `whole`, from row mp_rows * its number on. 0: there is no map. */
	int64_t rows, mp_rows, whole;
};
/* Puts the files into a directory. */
void dspd_save(struct simdisk *disk, const char *dir, const struct dspd_plan *p);
/* Puts a universal checkpoint of it. flat: tensors are flat, as in ZeRO 3. `without`: a file to
 * omit, as "w/fp32", or NULL. */
void dspd_universal(struct simdisk *disk, const char *dir, const struct dspd_plan *p, bool flat,
                    const char *without);
/* Holds the weights, the fp32 weights and both moments of n parameters, each cut into one part for
 * each rank. The parameters must have a group. */
void dspd_hold(struct hand *h, const struct dspd_param *params, int n);
#endif
