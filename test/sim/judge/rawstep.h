/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of steps that shares no code with the rooms that write them: its own look at the
 * manifest, its own checksum, its own way into safetensors. For steps that jobs.c saved. */
#ifndef RAWSTEP_H
#define RAWSTEP_H
#include "jobs.h"

struct raw_step {
	int64_t step;
	uint64_t salt;                  /* 0: none */
	char session[33];
};
/* The directory at path. 0: it has no manifest; 1: it has one that its own sum vouches for, every
 * file it names is there with its size and sum, and every item of every tensor is what the job
 * saved; -1: it has one and why says what is wrong. *out is set whenever the manifest is sound. */
int raw_step_read(struct simdisk *disk, const char *path, const struct job_state *state,
                  struct raw_step *out, char why[300]);
/* Calls item for each name in the directory at path; false: there is none. */
bool raw_list(struct simdisk *disk, const char *path, void (*item)(void *arg, const char *name),
              void *arg);
#endif
