/* SPDX-License-Identifier: Apache-2.0 */
/* A small job that saves: four processes on two nodes write a step through the store, as the engine
 * does, and a ledger records what was promised when. */
#ifndef COMMITWORLD_H
#define COMMITWORLD_H
#include "simdisk.h"
#include "stage.h"

#define WRITERS 4
#define RUN "run"
#define NEVER INT64_MAX
#define KNOWN_MAX 32

/* One save. Stamps are cuts, before the call or after it. */
struct known {
	int64_t step;
	char session[33], stage[64];
	int64_t begun, publishing, acked;
	int64_t leaving, gone;          /* pruned or rewound */
	bool rewound;
	int rc;                         /* result of publish */
};
struct marking {
	int64_t step, calling, done;
	char mark;
};
struct world {
	struct simdisk *disk;           /* borrowed */
	uint64_t pid;
	const struct shf_sys *proc[WRITERS];
	struct shf_store store[WRITERS]; /* 0 is the owner, the others have joined */
	struct shf_stage stage[WRITERS];
	struct known known[KNOWN_MAX];
	size_t known_n;
	struct marking marks[8];        /* in order */
	size_t marks_n;
	const char *loss;               /* note of the next save; may be NULL */
	struct sheaf_error err;
};


void world_init(struct world *w, struct simdisk *disk);
int64_t world_now(struct world *w);
/* Opens the run in new processes. world_close closes it properly, world_kill kills the
 * processes. */
int world_open(struct world *w, bool create);
void world_close(struct world *w);
void world_kill(struct world *w);

/* Steps C0 to C3 of a save; then C4 (agreed by construction) to C9. world_save does both, and
 * discards a failed save. parent < 0: none. */
int world_write(struct world *w, int64_t step);
int world_publish(struct world *w, int64_t step, int64_t parent);
int world_save(struct world *w, int64_t step, int64_t parent);
/* Prunes with keep_last n and the newest step verified; records what is removed. */
int world_prune(struct world *w, int keep_last, int64_t verified, int grace_s);
int world_rewind(struct world *w, int64_t step);
int world_mark(struct world *w, int64_t step, char mark);
/* Makes everything durable; cuts and stamps begin at 0 again. */
void world_settle(struct world *w);

struct known *world_find(struct world *w, int64_t step); /* the one that is there; may be NULL */
void world_session(struct world *w, int64_t step, char session[33]);
/* Fills a file of a save with the bytes of its writer. */
void world_fill(uint8_t *bytes, size_t n, const char *session, const char *file);
#endif
