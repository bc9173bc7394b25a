/* SPDX-License-Identifier: Apache-2.0 */
/* A run in a directory of its own and a state with a few small tensors, for tests of the entry
 * points: one process, a real directory. */
#ifndef API_PLACE_H
#define API_PLACE_H
#include <stdio.h>
#include <stdlib.h>
#include "sheaf.h"
#include "t.h"

struct api_place {
	char dir[64];
	struct sheaf_run *run;
	struct sheaf_state *st;
	float w[6], head[4];
	uint8_t rng[5];
};

static inline void api_place_init(struct api_place *p)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_error err;

	*p = (struct api_place){ .dir = "/tmp/sheaf-test-XXXXXX", .w = { 1, 2, 3, 4, 5, 6 },
		.head = { 7, 8, 9, 10 }, .rng = { 1, 2, 3, 4, 5 } };
	CHECK(mkdtemp(p->dir) != NULL);
	CHECK_RC(sheaf_run_open(&p->run, p->dir, NULL, &opts, &err), 0, &err);
	p->st = sheaf_state_new();
}

static inline void api_place_release(struct api_place *p)
{
	char command[100];

	sheaf_run_close(p->run);
	sheaf_state_free(p->st);
	snprintf(command, sizeof(command), "rm -rf %s", p->dir);
	CHECK_INT(system(command), 0);
}

static inline void api_place_add(struct api_place *p, const char *name, const char *tied_to,
                                 float *data, int64_t n)
{
	struct sheaf_slice s = { .size = sizeof(s), .name = name, .tied_to = tied_to,
		.dtype = SHEAF_F32, .ndim = 1, .shape = { n }, .count = { n }, .data = data };

	CHECK(sheaf_state_add(p->st, &s, NULL) >= 0);
}

static inline void api_place_save(struct api_place *p, int64_t step)
{
	struct sheaf_save *save = NULL;
	struct sheaf_error err;

	CHECK_RC(sheaf_save_begin(&save, p->run, step, p->st, NULL, &err), 0, &err);
	CHECK_INT(sheaf_save_attach(save, "config.json", "{}", 2, NULL), 0);
	CHECK_INT(sheaf_save_attach(save, "vocab.txt", "a", 1, NULL), 0);
	CHECK_INT(sheaf_save_note(save, "tokens", "12", NULL), 0);
	CHECK_INT(sheaf_save_note(save, "adam.step", "0", NULL), 0);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	sheaf_save_free(save);
}

static inline void api_place_fill(struct api_place *p)
{
	api_place_add(p, "layers.10.w", NULL, p->w, 6);
	api_place_add(p, "layers.2.w", NULL, p->head, 4);
	api_place_add(p, "alias", "layers.10.w", p->w, 6);
	api_place_add(p, "layers.3.alias", "layers.2.w", p->head, 4);
	api_place_add(p, "z", "layers.2.w", p->head, 4);
	CHECK_INT(sheaf_state_rank_bytes(p->st, "rng", NULL, 0, 1, p->rng, 5, NULL), 5);
}
#endif
