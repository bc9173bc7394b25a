/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps lie in the memory of the agents, and one of them as a machine to read it from. */
#ifndef SHF_MEMORY_STEPS_H
#define SHF_MEMORY_STEPS_H
#include "list.h"
#include "memory_dir.h"
#include "run.h"

struct shf_told {               /* a whole card, as the agent of its node tells of it */
	char job[33], session[33];
	int64_t step;
	int32_t rank, ranks;
	int32_t guest, reserved;        /* 1: a copy, which another node than its own has */
	uint64_t base, next, due, tries, turn, bytes;
};
struct shf_recalled {           /* a step in memory, as agents have it */
	char job[33], session[33];
	int64_t step;
	int32_t ranks, here;            /* that saved it; of which the cards are there */
	int32_t copied;                 /* of these there are copies alone */
	uint64_t base, next, due, tries, turn, bytes;
};
/* Every step that some card of this agent is whole of, newest first, and of one number that of the
 * last job first; a non-zero result of item ends
 * it and is returned. Negative errno where the agent does not answer. [local] */
int shf_recall_list(const struct shf_sys *sys, int keep, const char *run_id,
                    int (*item)(void *arg, const struct shf_recalled *r), void *arg);
/* The same in two: struct shf_told of each card, which other nodes' may be added to. guests: copies
 * of other nodes' too; one agent alone leaves those to the nodes that they are of. */
int shf_recall_cards(const struct shf_sys *sys, int keep, const char *run_id, bool guests,
                     struct shf_buf *out);
/* Calls item for each step of the cards, newest first, as shf_recall_list does. The cards may be
 * those of several agents. */
int shf_recall_join(struct shf_buf *cards, int (*item)(void *arg, const struct shf_recalled *r),
                    void *arg);
/* Gathers the cards of all agents on rank 0, in *all. The first rank of each node asks its agent
 * and keeps the answer in *mine. *asked: this rank asked and was answered. [collective] */
int shf_recall_gather(struct sheaf_run *run, struct shf_buf *mine, bool *asked,
                      struct shf_buf *all, struct sheaf_error *err);
/* Of which ranks of that step there are copies alone: int32_t each, ascending. ENOMEM. */
int shf_recall_copied(const struct shf_buf *cards, const struct shf_recalled *which,
                      struct shf_buf *ranks);
/* What of one step is on this node, for shf_view_finish; copies only of those ranks, NULL: of none.
 * ECORRUPT, ENOMEM. [local] */
int shf_recall_parts(const struct shf_sys *sys, int keep, const struct shf_recalled *which,
                     const struct shf_buf *copied, struct shf_view **view,
                     struct sheaf_error *err);
/* All of one step: 0 and *view, or ECORRUPT, ENOMEM, EFORMAT: not all is on this node. [local] */
int shf_recall_view(const struct shf_sys *sys, int keep, const struct shf_recalled *which,
                    struct shf_view **view, struct sheaf_error *err);
/* Steps in memory of the job of `which` that are later and follow `was` on disk follow `is`, too:
 * that is `which`, and about to be there. Another job's may be another branch. Negative errno.
 * [local] */
int shf_recall_go_on(const struct shf_sys *sys, int keep, const char *run_id,
                     const struct shf_recalled *which, uint64_t was, uint64_t is);
/* Does what lies on disk go on where this step begins? Nobody has rewound since, then. [local] */
bool shf_recall_follows(struct shf_store *store, const struct shf_recalled *r,
                        const struct shf_newest *disk);
/* What a step in memory is worth, beside what lies on disk. */
enum shf_memory_state {
	SHF_MEMORY_UNWRITTEN,           /* newer than all on disk, and follows it: it can be
	                                 * written */
	SHF_MEMORY_ON_DISK,             /* the disk has a step of its number */
	SHF_MEMORY_OVERTAKEN,           /* the disk has a newer step, and not this one */
	SHF_MEMORY_LOST,                /* the run was rewound below where it begins */
};
/* Returns a shf_memory_state or a code; *disk: what it was compared with. [local] */
int shf_recall_state(struct shf_store *store, const struct shf_recalled *r,
                     struct shf_newest *disk, struct sheaf_error *err);
/* The newest that is whole and not on disk, published; due: of those that were to be there. Where
 * other nodes have a part of it, their agents must do the same meanwhile (flush_nodes.h, wait_ms
 * too). *step -1: none. [local] */
int shf_recall_flush(const char *dir, const char *agent, bool due, int wait_ms,
                     const struct shf_sys *sys, int64_t *step, struct sheaf_report *report,
                     struct sheaf_error *err);
/* Looks for step n in memory, or if n is SHEAF_LATEST for the next candidate of `sought`. *view is
 * the step if it is to be read from memory, NULL if from disk. *base is the step on disk that it
 * follows. [collective] */
struct shf_sought;
int shf_recall(struct sheaf_run *run, int64_t n, struct shf_sought *sought,
               struct shf_view **view, struct shf_base *base, struct sheaf_error *err);
#endif
