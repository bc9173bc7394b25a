/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's ranks: agreement, deadlines, exchange of messages of unequal size.
 *
 * Every function here is [collective] unless it says otherwise, returns a sheaf code, and after
 * the first failed operation the group is lost: everything then returns SHEAF_ELOST at once.
 * Work that can fail on one rank alone is followed by a function that takes rc, what came of that
 * work on this rank, and no other collective call before it. The verdict travels with the first
 * operation of that function, as with shf_agree: it returns the same code on all ranks, and all
 * take the same branch. What else the function is given need be valid only where rc is 0.
 */
#ifndef SHF_GROUP_H
#define SHF_GROUP_H
#include <stdbool.h>
#include "mem.h"
#include "sheaf.h"

struct sheaf_group {
	struct sheaf_group_ops ops;
	uint64_t pid;           /* of the process that made it; 0: the group of one */
	int refs;               /* sheaf_group_free and each run or step that uses it */
	uint64_t met;           /* how many calls all ranks have entered, see shf_call_enter */
	struct shf_lens {               /* owned; by rank. They are here so that telling lengths,
	                                 * and with them a failure, needs no memory */
		uint64_t *out, *in;
		size_t *sizes, *eights; /* eights: 8 each */
	} lens;
	bool lost;
	char why[200];          /* if lost: which operation failed and how */
	bool dropped;           /* sheaf_group_free was called */
};
/* A group over a copy of *ops: 0 or SHEAF_ENOMEM. Freed by shf_group_put. pid: as above. */
int shf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops, uint64_t pid);
/* The group of one: 0 or SHEAF_ENOMEM. */
int shf_group_one(struct sheaf_group **group);
void shf_group_get(struct sheaf_group *group);  /* [local] one more user */
void shf_group_put(struct sheaf_group *group);  /* [local] */

struct shf_team {               /* a group as one run or step uses it */
	struct sheaf_group *group;      /* counted */
	int rank, ranks;
	int timeout_ms;
	int64_t (*mono_ns)(void *arg);  /* the clock that tells a timeout from a failure; a team of
	                                 * several ranks needs it */
	void *mono_arg;
};

int shf_allgather(struct shf_team *t, const void *mine, void *all, size_t bytes,
                  struct sheaf_error *err);
int shf_allreduce(struct shf_team *t, uint64_t *x, size_t n, int op, struct sheaf_error *err);
/* rc of all ranks: 0 when all are 0; else the code, sentence and rank of the lowest rank that
 * failed, in *err on every rank. err of the failing rank is what it had already written. */
int shf_agree(struct shf_team *t, int rc, struct sheaf_error *err);
/* The same, in one operation with the maximum over all ranks of each of n words, 512 at most. Where
 * a rank has failed x stays as it was. */
int shf_agree_max(struct shf_team *t, int rc, uint64_t *x, size_t n, struct sheaf_error *err);
/* Which [collective] call of sheaf.h this is. */
enum shf_call_kind {
	SHF_CALL_NONE,                  /* not a call of sheaf.h, but inside one */
	SHF_CALL_RUN_OPEN, SHF_CALL_RUN_CLOSE, SHF_CALL_REWIND, SHF_CALL_MARK, SHF_CALL_PRUNE,
	SHF_CALL_BEGIN, SHF_CALL_EXCHANGE, SHF_CALL_COMMIT,
	SHF_CALL_STEP_OPEN, SHF_CALL_STEP_OPEN_PATH, SHF_CALL_LOAD, SHF_CALL_VERIFY,
	SHF_CALL_RESUME, SHF_CALL_AVERAGE
};
#define SHF_CALL_ARGS 12
struct shf_call {
	enum shf_call_kind kind;
	uint64_t handle;                /* number of the call that made the handle; 0: none */
	uint64_t x[SHF_CALL_ARGS];      /* arguments to compare, as in shf_same */
	uint64_t number;                /* out: of this call; identifies a handle that it makes */
	uint64_t same, lo[SHF_CALL_ARGS], hi[SHF_CALL_ARGS];    /* out, as in shf_same */
};
/* Whether argument i of a call that was entered differs between ranks. */
static inline bool shf_call_differs(const struct shf_call *call, unsigned i)
{
	return call->lo[i] != call->hi[i];
}
/* Begins a [collective] call, with an operation that is the same in all of them. If ranks are in
 * different calls, or in the same call on different handles, all get EINVAL here, before they
 * exchange bytes that do not fit. Otherwise it agrees on rc like shf_agree, and compares the
 * arguments of the ranks whose rc is 0. */
int shf_call_enter(struct shf_team *t, struct shf_call *call, int rc, struct sheaf_error *err);
/* Enters the call on a rank whose own arguments were refused with rc < 0. The others, which may be
 * in the same call with good arguments, then return rc too instead of waiting for this rank. */
int shf_call_refuse(struct shf_team *t, enum shf_call_kind kind, uint64_t handle, int rc,
                    struct sheaf_error *err);
/* Rank 0's bytes on all. One operation up to 4 KiB. */
int shf_bcast(struct shf_team *t, int rc, void *bytes, size_t n, struct sheaf_error *err);
/* The same for a buffer whose length only rank 0 knows. Others' is replaced. */
int shf_bcast_buf(struct shf_team *t, int rc, struct shf_buf *b, struct sheaf_error *err);
/* out[r] to rank r; *in receives everything, packed in rank order, in_bytes[r] from rank r.
 * in_bytes, which may be NULL, has t->ranks members. An out[r].oom is ENOMEM on all. Three
 * operations: lengths with the verdict, an agreement that all have room, bytes. */
int shf_exchange(struct shf_team *t, int rc, const struct shf_buf *out, struct shf_buf *in,
                 size_t *in_bytes, struct sheaf_error *err);
/* The same, and its second operation gives the maximum over all ranks of each of n words, as
 * shf_agree_max does. */
int shf_exchange_max(struct shf_team *t, int rc, const struct shf_buf *out, struct shf_buf *in,
                     size_t *in_bytes, uint64_t *x, size_t n, struct sheaf_error *err);
/* As shf_exchange for bytes that are packed in rank order already: out_bytes[r] of them to rank r.
 */
int shf_exchange_packed(struct shf_team *t, int rc, const void *out, const size_t *out_bytes,
                        struct shf_buf *in, size_t *in_bytes, struct sheaf_error *err);
/* The same where this rank knows from before that `expect` bytes come to it, and no more. So memory
 * for them belongs to the work before it, and there is no operation for an agreement on it. If more
 * come the group is lost, EBUG: somebody lied, and nobody waits for this rank to say so. */
int shf_exchange_known(struct shf_team *t, int rc, const void *out, const size_t *out_bytes,
                       uint64_t expect, struct shf_buf *in, size_t *in_bytes,
                       struct sheaf_error *err);
/* Everyone's bytes on rank 0, packed in rank order; elsewhere *all stays empty. */
int shf_to_zero(struct shf_team *t, int rc, const struct shf_buf *mine, struct shf_buf *all,
                struct sheaf_error *err);
/* Sizes that both sides know already; out packed in rank order. No agreement inside. */
int shf_alltoallv(struct shf_team *t, const void *out, const size_t *out_bytes, void *in,
                  const size_t *in_bytes, struct sheaf_error *err);
/* Everyone's buffer on everyone, packed in rank order (lengths may differ). all_bytes may be
 * NULL. */
int shf_allgatherv(struct shf_team *t, int rc, const struct shf_buf *mine, struct shf_buf *all,
                   size_t *all_bytes, struct sheaf_error *err);
/* Are x[0..n) the same on all ranks? *same is a bit set over i < 64 of members that are; for a
 * member that differs the sentence can name min and max: lo[i], hi[i]. */
int shf_same(struct shf_team *t, int rc, const uint64_t *x, size_t n, uint64_t *same, uint64_t *lo,
             uint64_t *hi, struct sheaf_error *err);
#endif
