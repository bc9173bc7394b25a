/* SPDX-License-Identifier: Apache-2.0 */
/* Reads steps that jobs.c saved. Shares no code with the code that writes them: it parses the
 * manifest and safetensors, and computes checksums, by itself. */
#ifndef RAWSTEP_H
#define RAWSTEP_H
#include "jobs.h"

struct raw_step {
	int64_t step;
	uint64_t salt;                  /* 0: none */
	char session[33];
};
/* Reads the directory at path. Returns 0 if it has no manifest; 1 if it has one with a valid
 * checksum of its own, every file that it names is there with its size and checksum, and every item
 * of every tensor is what the job saved; -1 if it has one and something is wrong, with the reason
 * in why. *out is set if the manifest is valid. */
int raw_step_read(struct simdisk *disk, const char *path, const struct job_state *state,
                  struct raw_step *out, char why[300]);
/* Calls item for each name in the directory at path. Returns false if the directory does not
 * exist. */
bool raw_list(struct simdisk *disk, const char *path, void (*item)(void *arg, const char *name),
              void *arg);
#endif
