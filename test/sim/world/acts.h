/* SPDX-License-Identifier: Apache-2.0 */
/* Everything a run is asked for, as acts of simulated ranks (hands.h) on a disk that has something
 * of everything. An act opens what it needs: play.path is "", so that nothing is opened for it. */
#ifndef ACTS_H
#define ACTS_H
#include "hands.h"

/* Tied, flat, packed, scalar, many; for play.hold. */
void acts_hold(struct hand *h);
/* The process of a rank, as the disk knows it. */
const struct shf_sys *acts_process(const struct hand *h);
/* Run "run": steps 10 (kept), 11 and 12, 9 aside, 8 in the trash, remains of 20, half a copy,
 * litter; where one rank made it a 13 of a writer who died, whole in the stage. "hf" and "shards"
 * are somebody else's. */
struct simdisk *acts_disk(int ranks);
/* What it is two days after a power cut. */
struct simdisk *acts_disk_copy(struct simdisk *disk);

int act_save(struct hand *h);           /* step 20; 0 when it is there */
int act_save_again(struct hand *h);     /* and 21 */
int act_load(struct hand *h);           /* 12, and EBUG if a value is wrong */
int act_take(struct hand *h);           /* the same, slice by slice */
int act_verify(struct hand *h);
int act_foreign(struct hand *h);        /* loads, verifies, reads a file beside the weights */
int act_shards(struct hand *h);         /* the same without an index */
int act_file(struct hand *h);           /* of one file */
/* Of one rank alone. */
int act_peek(struct hand *h);           /* a tensor and a file at a time */
int act_plan(struct hand *h);           /* for three ranks */
int act_look(struct hand *h);           /* lists what is there, and what is left */
int act_prune(struct hand *h);
int act_rewind(struct hand *h);         /* to 10, after a load of the newest */
int act_salvage(struct hand *h);        /* 13 */
int act_copy(struct hand *h);           /* 12 to "other/run" */
/* Each step that is there has all its files, and the newest is whole. */
int act_look_after(struct hand *h);

/* For the tests' own files, which include t.h: this code, with this in the sentence. */
#define SAID(rc, code, word, err)                                                        \
	do {                                                                             \
		CHECK_RC((rc), (code), (err));                                           \
		if (!strstr((err)->msg, (word)))                                         \
			print_error("%s:%d: %s\n", __FILE__, __LINE__, (err)->msg);      \
		CHECK(strstr((err)->msg, (word)) != NULL);                               \
	} while (0)
#endif
