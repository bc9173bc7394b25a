/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-load.h - loads that fill one slice at a time, in any order and from any thread, for
 * trainers whose tensors are not in host memory. The rules at the head of sheaf.h apply to these
 * calls, too. */
#ifndef SHEAF_LOAD_H
#define SHEAF_LOAD_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Loading slice by slice
 *
 * These calls are for ranks that do not have enough host memory for their state, because its
 * tensors are on a device. Call sheaf_load_begin, then sheaf_load_take for each slice, into one of
 * a few buffers that is then copied to the device, then sheaf_load_end. To find the checkpoint,
 * open SHEAF_LATEST: ENOENT means that training starts afresh. The values are those that
 * sheaf_checkpoint_load gives with the same flags.
 * - No device pointer enters the library. The caller copies from the buffer, and does not use the
 *   buffer again before that copy is complete (an event of the device).
 * - Buffers may be page-locked memory. In addition a take allocates at most 4 MiB.
 * - Each rank reads what its slices need by itself, in whole blocks of 1 MiB. What several ranks of
 *   a node need is read from disk once if the page cache can keep it until the last of them takes
 *   it. So take slices in the same order on all ranks of a node. Nothing is sent between nodes.
 * - Several threads that take at once keep the disk busier than one.
 * - A checkpoint in the memory tier is read from there, as far as this node has it. What it lacks
 *   is read from disk. If the checkpoint is not there, sheaf_load_begin is EINVAL: write it to disk
 *   (sheaf_agent_flush), or open an older one by its number. */
struct sheaf_load;                      /* a load that fills one slice at a time */

/* Begins a load slice by slice, and decides what each slice is filled from. The load counts as a
 * resume attempt (opts.resume_attempts_max). Until it has ended or is freed, no slice can be added
 * to the state, and no save, average or other load of the state can begin (EINVAL). The checkpoint
 * may be closed, and the state freed, while the load is still in use.
 * load    receives the load. Free it with sheaf_load_free.
 * state   what this rank holds; slices may have NULL data.
 * flags   as for sheaf_checkpoint_load, without SHEAF_LOAD_DRY.
 * report  receives what a load with SHEAF_LOAD_DRY reports; may be NULL.
 * Returns those errors of sheaf_checkpoint_load that are detected before any byte is read.
 * EINVAL: also if the state has averages (sheaf_state_ema) of a slice whose data is NULL.
 * [collective] */
int  sheaf_load_begin(struct sheaf_load **load, struct sheaf_checkpoint *checkpoint,
                      struct sheaf_state *state, uint64_t flags, struct sheaf_report *report,
                      struct sheaf_error *err);
/* Returns whether a slice must be taken.
 * 1: Yes.
 * 0: No. It is empty, or its memory stays as it is: SHEAF_SLICE_SAVE_ONLY, opts.ignore, or absent
 *    and SHEAF_SLICE_OPTIONAL or SHEAF_LOAD_LENIENT.
 * EINVAL: there is no such slice.
 * [any thread] */
int  sheaf_load_fills(const struct sheaf_load *load, int slice, struct sheaf_error *err);
/* Fills a buffer with the values of one slice, and checks every block that it needs. A slice that
 * is a whole tensor is also compared with the digest of the tensor. Slices may be taken in any
 * order, and again; the last take counts. Several threads may take at once, each into its own
 * buffer. While a take runs, no other call may use the same checkpoint: no read, verification or
 * other load of it.
 * slice  its number in the state.
 * data   the buffer, in place of sheaf_slice.data, with the strides, origin and flat range of the
 *        slice. Bytes that are not items of the slice stay as they are. NULL: the memory that the
 *        state had in sheaf_load_begin. Averages must be taken with NULL.
 * 0: The values match their checksums. Do not use them before sheaf_load_end has returned 0,
 *    because another rank may have found damage.
 * EINVAL: there is no such slice, it needs no take, there is no buffer, or the load has ended.
 *    Nothing happened.
 * Any other code: the buffer is undefined. sheaf_load_end will fail on all ranks, unless a later
 *    take of the slice succeeds.
 * [any thread] */
int  sheaf_load_take(struct sheaf_load *load, int slice, void *data, struct sheaf_error *err);
/* Ends a load: all ranks agree that they have taken what they must. Call it when all takes have
 * returned, even if one has failed.
 * report  receives the totals of the load; may be NULL. `unverified` counts tensors that no rank
 *         has taken whole, and report->item is called for these only.
 * 0: All values are valid, and the next save of the state has this checkpoint as its parent.
 * EINVAL: rank err->rank has not taken a slice, or is still taking one. The load goes on: take the
 *    slice, and call this again on all ranks.
 * Any other code: a take failed on some rank. The load has ended; do not use the values.
 * [collective] */
int  sheaf_load_end(struct sheaf_load *load, struct sheaf_report *report, struct sheaf_error *err);
/* Frees a load after all takes have returned. A load that has not ended is cancelled on this rank
 * only: the others would wait in sheaf_load_end until the deadline. So a rank that gives up calls
 * sheaf_load_end first, which is EINVAL on all ranks, because a slice was not taken. EINVAL does
 * not say whether a rank gave up or only forgot a slice. The simplest rule is that all ranks free
 * the load then. [local] */
void sheaf_load_free(struct sheaf_load *load);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
