/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-state.h - what a checkpoint can have besides the slices of a trainer: moving averages of
 * the weights, and opaque bytes of each rank whose size varies; and a hash by which a binding finds
 * the state that it has made before. The rules at the head of sheaf.h apply to these calls, too. */
#ifndef SHEAF_STATE_H
#define SHEAF_STATE_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Moving averages of weights, see sheaf_state_ema. Same on all ranks. */
struct sheaf_ema {
	uint32_t size;
	uint32_t reserved;
	const char *name;               /* family of the averages, used by no slice; NULL: "ema" */
	double coef;                    /* decay: 0 <= coef < 1 */
	double loss_max;                /* only steps with a smaller loss count; 0: all steps */
	int64_t interval;               /* only steps that are multiples of it count; 0: all */
	int64_t warmup;                 /* smaller decay at first, see sheaf_state_ema; 0: none */
};
/* Adds exponential moving averages (EMA) of a family's slices to a state. Call it once, after the
 * slices were added and before the first save or load. From then on every save updates the averages
 * with the weights that it copies, and every checkpoint has them, as F32 tensors of family
 * ema->name. At steps that are not saved call sheaf_state_average.
 *
 * family  the family to average, whose slices were added before; NULL: master_weights, and the
 *         slices of model that are stored in F32 and have no master.
 * ema     the decay, and which steps count: see struct sheaf_ema.
 *
 * A step counts if it is a multiple of ema->interval and its loss is below ema->loss_max. Until a
 * step has counted, e is the w of the first save. The first step that counts sets e = w. Each later
 * step that counts makes the update
 *     e = fma(c, e, d * w)    with c = (float)coef and d = (float)(1 - coef)
 * d * w is rounded, and then the sum once, so every layout computes the same bits. With warmup the
 * n-th update after the first uses the smaller of coef and (1 + n) / (warmup + n).
 *
 * - The averages are further slices of the state, numbered from the next free number on. The state
 *   owns their memory: 4 bytes for each item. For memory with strides it is 4 bytes for each item
 *   from the first to the last, held or not.
 * - The update is made inside begin, or for a lazy save in the background, before the gate of the
 *   weights opens.
 * - Every step that counts is applied once, even if its save is dropped (EAGAIN) or fails.
 * - After a load the averages continue from what was loaded. If the loaded step is saved again, to
 *   the same run, it makes no update. A checkpoint without averages of that name can be loaded
 *   without a flag, and the averages start again. Averages that the load did not fill are set to
 *   the weights at the next save.
 * - A rank may have none of the slices. If no rank has any, begin, sheaf_state_average and load are
 *   EINVAL.
 *
 * Returns 0 or an error code. [local] */
int  sheaf_state_ema(struct sheaf_state *state, const char *family, const struct sheaf_ema *ema,
                     struct sheaf_error *err);
/* Updates the averages of a state as a save would, and saves nothing. Call it after steps that are
 * not saved, so that the averages miss none. The weights may change when it returns.
 * - A step is counted once, even if it is also saved. Step numbers must not go down without a load
 *   or a rewind.
 * - The calling thread makes the update, after waiting for averages that a lazy save still copies.
 *   The time counts as begin_ns of sheaf_run_get_stat.
 *
 * run    open for writing; the run that the state is saved to.
 * step   the step number; same on all ranks.
 * loss   compared with sheaf_ema.loss_max; same on all ranks.
 * EINVAL: the run, the step or the state cannot be saved now, or ranks disagree. Nothing is
 *    updated.
 * ENOMEM: no memory for the averages. Nothing is updated.
 * ELOST: some ranks may have updated theirs. Open the run again with a new group, and call it again
 *        for that step: ranks that have counted the step leave it out.
 * [collective] */
int  sheaf_state_average(struct sheaf_state *state, struct sheaf_run *run, int64_t step,
                         double loss, struct sheaf_error *err);
/* Averages of a slice in the running job. */
struct sheaf_average {
	uint32_t size;
	int32_t slice;                  /* number of their own slice in the state */
	float *data;                    /* averages of items [start, start + count) of the buffer of
	                                 * the weights; NULL if the slice is empty */
	int64_t start, count;
};
/* Gives access to the averages of a slice, for example to evaluate the model with them. If a lazy
 * save in flight has not yet updated these averages, the call does that first. The averages are
 * then those of the last step that counted, bit for bit as a checkpoint of that step has them. The
 * call neither communicates nor waits for the disk.
 * name     family of the averages (sheaf_ema.name); NULL: "ema".
 * slice    number of a slice of weights.
 * average  receives where its averages are. They lie as the weights do: the average of item k of
 *          the weights' buffer, k = origin + i[0] * stride[0] + ... (struct sheaf_slice), is
 *          data[k - start]. For dense memory without SHEAF_SLICE_FLAT start is 0, and the averages
 *          lie in row-major order. A SHEAF_C128 weight counts as two items, its real and imaginary
 *          part.
 *
 * - The pointer is valid until the state is freed. The values may be read until the next
 *   sheaf_save_begin, sheaf_state_average or load with the state begins.
 * - The caller may also exchange averages and weights, to evaluate without more memory. Before
 *   that, call the gates of `slice` and of average->slice in each lazy save in flight
 *   (sheaf_save_wait_copied). Exchange them back before the next sheaf_save_begin,
 *   sheaf_state_average or load.
 * EAGAIN: there are no averages yet: no save and no sheaf_state_average of the state has begun, or
 *    a load has not filled them and no step has counted since.
 * EINVAL: the state has no averages of that name, or they are not of that slice.
 * A failure is not remembered. [local] */
int  sheaf_state_get_average(struct sheaf_state *state, const char *name, int slice,
                             struct sheaf_average *average, struct sheaf_error *err);

/* Adds opaque bytes of this rank to a checkpoint, such as the state of a data loader. Call it after
 * sheaf_save_begin, where sheaf_save_note may be called. The size may differ from rank to rank and
 * from save to save, and a rank may give none. Bytes that always have the same size can be a part
 * of the state instead (sheaf_state_rank_bytes).
 * stream  name of the stream: [a-z0-9._-]{1,57} without ".safetensors" in it, and not the name of a
 *         stream that was added with sheaf_state_rank_bytes. A rank gives each stream once in a
 *         save.
 * bytes   the contents; copied.
 * n       their size, at most 64 MiB; may be 0.
 * EINVAL: not allowed, or too late, as for sheaf_save_attach. The save goes on without the bytes,
 *         and log has a warning with the reason.
 * ENOMEM: the save fails.
 *
 * All streams of all ranks have at most 512 MiB together, otherwise the commit is EFAILED. Rank 0
 * holds them twice during the commit. With a memory tier (sheaf-agent.h) rank 0 and the lowest rank
 * of each other node hold them up to five times. They are stored in files
 * rank-bytes.<stream>.<rank>, which are listed with the attached files, and which any safetensors
 * library reads. [local] */
int  sheaf_save_rank_bytes(struct sheaf_save *save, const char *stream, const void *bytes, size_t n,
                           struct sheaf_error *err);
/* Reads what a rank gave to sheaf_save_rank_bytes, and compares it with its checksum. Any rank may
 * read the bytes of any other. So the caller decides what a job with another number of ranks does
 * with them; sheaf_checkpoint_info.ranks says how many ranks saved.
 * stream  name of the stream.
 * rank    the rank that gave the bytes, from 0.
 * bytes, n  receive the contents and their size, valid until the checkpoint is closed. They may
 *         begin at any address.
 * ENOENT: that rank gave none.
 * ECORRUPT: they are damaged.
 * [local] */
int  sheaf_checkpoint_rank_bytes(struct sheaf_checkpoint *checkpoint, const char *stream,
                                 int32_t rank, const void **bytes, size_t *n,
                                 struct sheaf_error *err);

/* Returns a hash of what a state describes. Meant for bindings that describe the state anew at each
 * save: if a state with the same hash exists, they give that one the memory of the new one
 * (sheaf_state_move_all) and save with it, and so keep its plan, its order of gates and its
 * averages.
 * - It covers the number and the order of the slices, and of each slice all fields of struct
 *   sheaf_slice except data; of sheaf_state_rank_bytes stream, rule, rank and ranks; of
 *   sheaf_state_ema all its arguments.
 * - It does not cover data, the values of averages, or what was done with the state.
 * - Two ways to write the same slice give the same hash: NULL and "model" for the family, 0 and
 *   dtype for data_dtype, and strides that are all 0 and those of dense memory.
 * - Other states have the same hash with a probability of 2^-64. Do not compare hashes of different
 *   ranks or library versions.
 * 0: the state is NULL, or a call on it has failed. No other state has this hash.
 * [local] */
uint64_t sheaf_state_hash(const struct sheaf_state *state);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
