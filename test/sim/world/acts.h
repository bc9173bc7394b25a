/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation on a run, as an act of simulated ranks (hands.h) on a disk that has something of
 * every kind. An act opens what it needs: play.path is "", so that nothing is opened before. */
#ifndef ACTS_H
#define ACTS_H
#include "hands.h"

/* Tied, flat, packed, scalar and many tensors; for play.hold. */
void acts_hold(struct hand *h);
/* Returns the process of a rank on the disk. */
const struct shf_sys *acts_process(const struct hand *h);
/* Makes a disk with the run "run": steps 10 (kept), 11 and 12, 9 set aside, 8 in the trash, an
 * incomplete 20, half a copy, stray files; with one rank also a 13 whose writer died, complete in
 * the stage. "hf" and "shards" are foreign checkpoints. */
struct simdisk *acts_disk(int ranks);
/* Returns the disk two days after a power cut. */
struct simdisk *acts_disk_copy(struct simdisk *disk);

int act_save(struct hand *h);           /* step 20; returns 0 if it exists */
int act_save_again(struct hand *h);     /* and step 21 */
int act_load(struct hand *h);           /* step 12; EBUG if a value is wrong */
int act_take(struct hand *h);           /* the same, slice by slice */
int act_verify(struct hand *h);
int act_foreign(struct hand *h);        /* loads, verifies, reads a file beside the weights */
int act_shards(struct hand *h);         /* the same without an index */
int act_file(struct hand *h);           /* of a single file */
/* For one rank. */
int act_peek(struct hand *h);           /* reads a tensor and a file */
int act_plan(struct hand *h);           /* for three ranks */
int act_look(struct hand *h);           /* lists what is there, and what is left over */
int act_prune(struct hand *h);
int act_rewind(struct hand *h);         /* to step 10, after a load of the newest */
int act_salvage(struct hand *h);        /* of step 13 */
int act_copy(struct hand *h);           /* of step 12, to "other/run" */
/* Checks that each step has all its files, and that the newest is complete. */
int act_look_after(struct hand *h);

/* For test files that include t.h: checks the code, and that the message has this word. */
#define SAID(rc, code, word, err)                                                        \
	do {                                                                             \
		CHECK_RC((rc), (code), (err));                                           \
		if (!strstr((err)->msg, (word)))                                         \
			print_error("%s:%d: %s\n", __FILE__, __LINE__, (err)->msg);      \
		CHECK(strstr((err)->msg, (word)) != NULL);                               \
	} while (0)
#endif
