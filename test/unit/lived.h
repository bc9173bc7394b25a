/* SPDX-License-Identifier: Apache-2.0 */
/* A run that has lived through some steps, for the tests of the store. */
#ifndef LIVED_H
#define LIVED_H
#include "commitoracle.h"
#include "list.h"
#include "t.h"

static inline void start(struct world *w, int64_t steps)
{
	struct simdisk *disk = simdisk_new(7, SIMDISK_STRICT);

	oracle_put_foreign(disk);
	world_init(w, disk);
	CHECK_RC(world_open(w, true), 0, &w->err);
	for (int64_t i = 1; i <= steps; i++)
		CHECK_RC(world_save(w, i, i > 1 ? i - 1 : -1), 0, &w->err);
}

/* Step 1 is saved, and step 2 is written but not published: its stage is at this path. */
static inline void start_stage(struct world *w, char stage[200])
{
	start(w, 1);
	CHECK_RC(world_write(w, 2), 0, &w->err);
	snprintf(stage, 200, RUN "/.sheaf/stage/%s", w->known[1].stage);
}

static inline void stop(struct world *w)
{
	world_close(w);
	simdisk_free(w->disk);
}

static inline char state_of(struct shf_store *s, int64_t step, struct shf_entry *out)
{
	static const char letters[] = "CDFAS";
	struct shf_list list;
	struct sheaf_error err;
	char state = '-';

	CHECK_RC(shf_store_list(s, &list, &err), 0, &err);
	for (size_t i = 0; i < list.n; i++)
		if (list.entries[i].step == step && state == '-') {
			state = letters[list.entries[i].state];
			if (out)
				*out = list.entries[i];
		}
	shf_list_release(&list);
	return state;
}
#endif
