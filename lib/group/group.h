/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's ranks: agreement, deadlines, exchange of messages of unequal size.
 *
 * Every function here is [collective] unless it says otherwise and returns a sheaf code. After the
 * first failed operation the group is lost: every later call returns SHEAF_ELOST at once.
 *
 * Many functions take an argument rc. It makes a step safe that can fail on a single rank: the
 * caller does the work, keeps its result in rc, and makes no other collective call before this one.
 * The function sends rc together with its first operation, as shf_agree does, and returns the same
 * code on all ranks, so all ranks take the same branch. Where rc is not 0 the other arguments need
 * not be valid. */
#ifndef SHF_GROUP_H
#define SHF_GROUP_H
#include <stdbool.h>
#include "mem.h"
#include "sheaf.h"

struct sheaf_group {
	struct sheaf_group_ops ops;
	uint64_t pid;           /* process that created the group; 0 in the group of one rank */
	int refs;               /* references: one until sheaf_group_free, and one for each run or
	                         * step that uses the group */
	uint64_t met;           /* calls entered by all ranks so far (shf_call_enter) */
	struct shf_lens {               /* Owned arrays, one item a rank, allocated with the group.
	                                 * So ranks can exchange lengths, and with them the news of
	                                 * a failure, when memory runs out. */
		uint64_t *out, *in;     /* lengths sent and received */
		size_t *sizes, *eights; /* eights: 8 in each item */
	} lens;
	bool lost;
	int lost_rank;          /* if lost: the rank that failed first; -1: unknown */
	char why[400];          /* if lost: the sentence that says which operation failed and how */
	bool dropped;           /* sheaf_group_free was called */
};
/* Creates a group with a copy of *ops. pid becomes the member of that name. Returns 0 or
 * SHEAF_ENOMEM; on an error ops->free is not called. [local] */
int shf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops, uint64_t pid);
/* Creates the group of one rank. Returns 0 or SHEAF_ENOMEM. [local] */
int shf_group_one(struct sheaf_group **group);
void shf_group_get(struct sheaf_group *group);  /* [local] takes a reference */
void shf_group_put(struct sheaf_group *group);  /* [local] drops a reference */

struct shf_team {               /* a group as one run or step uses it */
	struct sheaf_group *group;      /* holds a reference */
	int rank, ranks;
	int timeout_ms;
	int64_t (*mono_ns)(void *arg);  /* monotonic clock: how long an operation took shows whether
	                                 * it timed out or failed. Needed if ranks > 1 */
	void *mono_arg;
};

/* shf_allgather and shf_allreduce run the caller's operations of the same names (struct
 * sheaf_group_ops), with the deadline of the team. They do not agree on an error first. bytes and n
 * must be the same on all ranks. */
int shf_allgather(struct shf_team *t, const void *mine, void *all, size_t bytes,
                  struct sheaf_error *err);
int shf_allreduce(struct shf_team *t, uint64_t *x, size_t n, int op, struct sheaf_error *err);
/* Agrees on rc: returns 0 if rc is 0 on all ranks. Else returns the code of the lowest rank that
 * failed, and fills *err on every rank with its code, sentence and rank. A failing rank passes the
 * error that it has already written as err. */
int shf_agree(struct shf_team *t, int rc, struct sheaf_error *err);
/* Does the same as shf_agree, and in the same operation replaces each of the n words (at most 512)
 * by its maximum over all ranks. If a rank has failed, x stays as it was. */
int shf_agree_max(struct shf_team *t, int rc, uint64_t *x, size_t n, struct sheaf_error *err);
/* Which [collective] call of sheaf.h this is. */
enum shf_call_kind {
	SHF_CALL_NONE,                  /* an exchange inside a call of sheaf.h */
	SHF_CALL_RUN_OPEN, SHF_CALL_RUN_CLOSE, SHF_CALL_REWIND, SHF_CALL_MARK, SHF_CALL_PRUNE,
	SHF_CALL_BEGIN, SHF_CALL_EXCHANGE, SHF_CALL_COMMIT,
	SHF_CALL_STEP_OPEN, SHF_CALL_STEP_OPEN_PATH, SHF_CALL_LOAD, SHF_CALL_VERIFY,
	SHF_CALL_RESUME, SHF_CALL_AVERAGE, SHF_CALL_LOAD_BEGIN, SHF_CALL_LOAD_END
};
#define SHF_CALL_ARGS 12
struct shf_call {
	enum shf_call_kind kind;
	uint64_t handle;                /* number of the collective call that created the call's
	                                 * handle; 0: the call has no handle */
	uint64_t x[SHF_CALL_ARGS];      /* arguments that shf_call_enter compares between ranks */
	uint64_t number;                /* out: number of this call; a handle that the call creates
	                                 * is identified by it */
	uint64_t same, lo[SHF_CALL_ARGS], hi[SHF_CALL_ARGS];    /* out: see shf_same */
};
/* Returns whether argument i differs between ranks, as shf_call_enter found. */
static inline bool shf_call_differs(const struct shf_call *call, unsigned i)
{
	return call->lo[i] != call->hi[i];
}
/* Begins a [collective] call of sheaf.h. All of them begin with this one operation, so ranks that
 * are in different calls, or in the same call on different handles, find it out here: all get
 * EINVAL before they exchange bytes that do not fit. Otherwise the function agrees on rc like
 * shf_agree, and fills same, lo and hi from the arguments of all ranks. */
int shf_call_enter(struct shf_team *t, struct shf_call *call, int rc, struct sheaf_error *err);
/* Enters the call on a rank whose own arguments were refused with rc < 0. The other ranks, which
 * may be in the same call with good arguments, then return rc too instead of waiting until the
 * deadline. */
int shf_call_refuse(struct shf_team *t, enum shf_call_kind kind, uint64_t handle, int rc,
                    struct sheaf_error *err);
/* Copies the n bytes of rank 0 to all ranks; n is the same on all. Up to 4 KiB it takes one
 * operation. */
int shf_bcast(struct shf_team *t, int rc, void *bytes, size_t n, struct sheaf_error *err);
/* Does what shf_bcast does, for a buffer whose length only rank 0 knows. On the other ranks the
 * content of *b is replaced. */
int shf_bcast_buf(struct shf_team *t, int rc, struct shf_buf *b, struct sheaf_error *err);
/* Sends out[r] to rank r for every r. *in becomes all that was received, packed in rank order:
 * in_bytes[r] bytes from rank r. in_bytes has t->ranks items or is NULL. If out[r].oom is set on
 * some rank, all get ENOMEM. It takes three operations: the lengths together with the verdict, an
 * agreement that every rank has memory for what it receives, and the bytes. */
int shf_exchange(struct shf_team *t, int rc, const struct shf_buf *out, struct shf_buf *in,
                 size_t *in_bytes, struct sheaf_error *err);
/* Does what shf_exchange does. Its second operation also gives the maximum over all ranks of each
 * of n words, as shf_agree_max does. */
int shf_exchange_max(struct shf_team *t, int rc, const struct shf_buf *out, struct shf_buf *in,
                     size_t *in_bytes, uint64_t *x, size_t n, struct sheaf_error *err);
/* Does what shf_exchange does, for bytes that are already packed in rank order: the first
 * out_bytes[0] bytes go to rank 0, the next out_bytes[1] to rank 1, and so on. */
int shf_exchange_packed(struct shf_team *t, int rc, const void *out, const size_t *out_bytes,
                        struct shf_buf *in, size_t *in_bytes, struct sheaf_error *err);
/* Does what shf_exchange_packed does, in two operations. This rank must know before the call that
 * at most `expect` bytes will come to it: memory for them is allocated before the lengths are
 * exchanged, so the ranks need no agreement on memory. If more come, another rank has announced a
 * wrong number; then this rank leaves the group with EBUG, and the others get ELOST at their
 * deadline. */
int shf_exchange_known(struct shf_team *t, int rc, const void *out, const size_t *out_bytes,
                       uint64_t expect, struct shf_buf *in, size_t *in_bytes,
                       struct sheaf_error *err);
/* Gathers the bytes of all ranks on rank 0, packed in rank order. On the other ranks *all becomes
 * empty. */
int shf_gatherv(struct shf_team *t, int rc, const struct shf_buf *mine, struct shf_buf *all,
                struct sheaf_error *err);
/* The caller's all-to-all, for sizes that sender and receiver both know already. out and in are
 * packed in rank order. Like shf_allgather it does not agree on an error first. */
int shf_alltoallv(struct shf_team *t, const void *out, const size_t *out_bytes, void *in,
                  const size_t *in_bytes, struct sheaf_error *err);
/* Gathers the buffers of all ranks on every rank, packed in rank order. Their lengths may differ;
 * all_bytes[r], unless all_bytes is NULL, becomes the length of rank r's buffer. */
int shf_allgatherv(struct shf_team *t, int rc, const struct shf_buf *mine, struct shf_buf *all,
                   size_t *all_bytes, struct sheaf_error *err);
/* Compares x[0..n) over all ranks, n at most 64. Bit i of *same is set if x[i] is the same on all.
 * lo[i] and hi[i] are the minimum and the maximum, so that a sentence can name two values that
 * differ. same, lo and hi may be NULL. */
int shf_same(struct shf_team *t, int rc, const uint64_t *x, size_t n, uint64_t *same, uint64_t *lo,
             uint64_t *hi, struct sheaf_error *err);
#endif
