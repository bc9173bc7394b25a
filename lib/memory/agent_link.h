/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's connection to the agent of its node, and the steps of this job that the agent keeps.
 * */
#ifndef SHF_AGENT_LINK_H
#define SHF_AGENT_LINK_H
#include "run.h"

/* After so long without an agent it is looked for again; then after twice as long, and so on. */
#define SHF_TIER_ASK_NS INT64_C(1000000000)

/* Connects to the agent of a run directory, to look only. steps: as keep_open says. ENOENT: no
 * agent answers; EINVAL: the agent of another directory does. [local] */
int  shf_tier_reach(const struct shf_store *store, const char *agent, int *keep, int *steps,
                    struct sheaf_error *err);
/* Where it listens, as sys wants it. */
void shf_tier_where(char where[SHF_KEEP_NAME], const char *agent, const char *identity);
/* Connects to the agent again after it was lost, or for the first time. Negative code: no agent
 * answers. [local] */
int shf_tier_reach_again(struct sheaf_run *run, struct sheaf_error *err);
/* Hands all images and cards to an agent that was just connected to. [local] */
void shf_tier_offer(struct sheaf_run *run);
/* The agent failed while `doing` that, with the positive errno sys: closes the connection; the run
 * goes on without an agent. [local] */
void shf_tier_lost(struct sheaf_run *run, int sys, const char *doing);
/* Hands the memory of an image, or that of its card, to the agent. [local] */
void shf_tier_put(struct sheaf_run *run, int image, bool card);
/* The head of the card of an image; NULL: it has none. */
struct shf_card_head *shf_tier_head(const struct shf_tier *t, int image);
/* Clears the card of the image: there is no step in it any more. [local] */
void shf_tier_make_nothing(struct shf_tier *t, int image);
/* The step in that image is in memory on all ranks: if it is newer than the newest so far, it is
 * the newest now. [local] */
void shf_tier_is_newest(struct shf_tier *t, int image);
/* Is there an agent? Where there was none, asks again now and then. [local] */
bool shf_tier_is_up(struct sheaf_run *run);
/* What agents allow of so many images, alike on all ranks. */
int  shf_tier_allows(const struct sheaf_run *run, int images);
/* 0: no agent; else the more, the fewer images it has room for. Asks, as shf_tier_is_up. [local] */
uint64_t shf_tier_room(struct sheaf_run *run);
/* The most that any rank's room says. Only the first one counts: an image that is in use, and the
 * newest step, have no other place. [local], alike on all ranks */
void shf_tier_bound(struct sheaf_run *run, uint64_t most);
/* Saves have images below that; the rest are for loads, and no agent's. */
int  shf_tier_images(const struct sheaf_run *run);
/* Somebody will copy into that image (M1). [local] */
void shf_tier_reuse(struct sheaf_run *run, int image);
/* Clears the card of the image before ranks agree to copy into it. Returns what show needs to
 * restore it, if they do not agree; if they do, reuse follows. [local] */
uint64_t shf_tier_hide(struct sheaf_run *run, int image);
/* Makes the card whole again, as it was before hide. */
void shf_tier_show(struct sheaf_run *run, int image, uint64_t whole);
/* Takes the newest step that this rank has in memory, up to that number, for the newest. [local] */
void shf_tier_newest_until(struct sheaf_run *run, int64_t step);
/* Returns the number of the newest step that this job has in memory; -1: it has none. [local] */
int64_t shf_tier_newest(const struct sheaf_run *run);
/* Returns whether the steps in memory allow a save of that number. Where the newest of them is on
 * disk, too, a save to disk is allowed here, and C0 decides. [local], alike on all ranks */
bool shf_tier_is_later(const struct sheaf_run *run, int64_t step, bool to_disk);
/* What run->image_moves is set to: hands new memory of an image to the agent, or has the agent drop
 * memory that is about to be freed. [local] */
void shf_tier_image_moves(struct sheaf_run *run, int image, bool goes);
#endif
