/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's connection to the agent of its node, and the steps of this job that the agent
 * keeps. */
#ifndef SHF_AGENT_LINK_H
#define SHF_AGENT_LINK_H
#include "run.h"

/* First time between attempts to reach the agent, in ns; it doubles after each failure. */
#define SHF_AGENT_RETRY_NS INT64_C(1000000000)

/* Connects to the agent of a run directory as a process that only reads. *keep is the connection;
 * *steps is as in keep_open (agent_client.h). ENOENT: no agent answers; EINVAL: the agent of
 * another directory answers. [local] */
int  shf_agent_connect(const struct shf_store *store, const char *agent, int *keep, int *steps,
                       struct sheaf_error *err);
/* Writes the socket name to pass to shf_sys_keep_open: "auto/<identity>" if agent is NULL or
 * "auto", else agent, which is the path of the socket. [local] */
void shf_agent_socket_name(char where[SHF_KEEP_NAME], const char *agent, const char *identity);
/* Connects to the agent for the first time, or again after it was lost. Returns a negative code if
 * no agent answers. [local] */
int shf_agent_reconnect(struct sheaf_run *run, struct sheaf_error *err);
/* Hands all images and cards to an agent to which this rank has just connected. [local] */
void shf_agent_put_all(struct sheaf_run *run);
/* Closes the connection after the agent has failed, and logs the positive errno sys and `doing`,
 * what was attempted. The run goes on without an agent. [local] */
void shf_agent_lost(struct sheaf_run *run, int sys, const char *doing);
/* Hands the memory of an image to the agent or, with `card`, the memory of the image's card.
 * [local] */
void shf_agent_put(struct sheaf_run *run, int image, bool card);
/* Returns the head of the card of an image, or NULL if the image has no card. [local] */
struct shf_card_head *shf_memory_tier_card_head(const struct shf_memory_tier *t, int image);
/* Clears the card of the image, so that no step is found in it any more. [local] */
void shf_memory_tier_card_clear(struct shf_memory_tier *t, int image);
/* Call it when the step in that image is in memory on all ranks. Makes it the newest step, unless a
 * newer one is in memory. [local] */
void shf_memory_tier_set_newest(struct shf_memory_tier *t, int image);
/* Returns whether this rank is connected to an agent. Without one, tries to connect if the time for
 * the next attempt has come. [local] */
bool shf_agent_is_up(struct sheaf_run *run);
/* Returns `images`, or the number of images that the agents allow if that is less. The same on all
 * ranks. [local] */
int  shf_agent_images_allowed(const struct sheaf_run *run, int images);
/* Returns a number for shf_agent_set_limit, of which the caller takes the maximum over all ranks: 0
 * without an agent, else the larger the fewer images the agent allows. Connects as shf_agent_is_up
 * does. [local] */
uint64_t shf_agent_limit(struct sheaf_run *run);
/* Sets the bound on the number of images (shf_agent_images) from `most`, the maximum of
 * shf_agent_limit over all ranks. Only the first call has an effect: a lower bound later could
 * exclude an image that is in use or has the newest step. Call it on all ranks. [local] */
void shf_agent_set_limit(struct sheaf_run *run, uint64_t most);
/* Returns how many images saves may use; their numbers are below that. Other images are for loads,
 * and are not handed to the agent. [local] */
int  shf_agent_images(const struct sheaf_run *run);
/* Call it before any rank copies into that image (M1). Clears its card. [local] */
void shf_memory_tier_card_reuse(struct sheaf_run *run, int image);
/* Clears the card of the image before ranks agree to copy into it. Returns the value for
 * shf_memory_tier_card_show, which restores the card if they do not agree. If they do, call
 * shf_memory_tier_card_reuse. [local] */
uint64_t shf_memory_tier_card_hide(struct sheaf_run *run, int image);
/* Makes the card valid again; whole: from shf_memory_tier_card_hide. [local] */
void shf_memory_tier_card_show(struct sheaf_run *run, int image, uint64_t whole);
/* Makes the newest of this rank's steps in memory up to that number the newest step. [local] */
void shf_memory_tier_newest_until(struct sheaf_run *run, int64_t step);
/* Returns the number of the newest step that this job has in memory; -1: it has none. [local] */
int64_t shf_memory_tier_newest(const struct sheaf_run *run);
/* Returns whether the steps in memory allow a save of that number: it must be above the newest of
 * them. If that step is on disk too, a save to disk is allowed here, and the making of its stage
 * (C0) decides. The same on all ranks. [local] */
bool shf_memory_tier_is_later(const struct sheaf_run *run, int64_t step, bool to_disk);
/* The callback run->image.moves: hands new memory of an image to the agent or, with `goes`, makes
 * the agent drop memory that is about to be freed. [local] */
void shf_memory_tier_image_moves(struct sheaf_run *run, int image, bool goes);
#endif
