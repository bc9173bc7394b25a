/* SPDX-License-Identifier: Apache-2.0 */
#include <sheaf.h>
#include <stdbool.h>
#include <stdio.h>

#define LAYERS 4
#define ITEMS 100000

/* Carries the save in flight on, or waits for its end. EAGAIN: it has not ended. */
static int finish(struct sheaf_save **save, bool waits, struct sheaf_error *err)
{
	int rc = !*save ? 0
	       : waits ? sheaf_save_commit(*save, -1, err) : sheaf_save_advance(*save, 0, err);

	if (rc != SHEAF_EAGAIN) {
		sheaf_save_free(*save);
		*save = NULL;
	}
	return rc;
}

int main(int argc, char **argv)
{
	static float layers[LAYERS][ITEMS];
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_run *run = NULL;
	struct sheaf_save *save = NULL;
	struct sheaf_error err = { 0 };
	int slices[LAYERS], rc;

	for (int i = 0; i < LAYERS; i++) {
		char name[32];
		struct sheaf_slice layer = { .size = sizeof(layer), .name = name,
			.dtype = SHEAF_F32, .ndim = 1, .shape = { ITEMS }, .count = { ITEMS },
			.data = layers[i] };

		snprintf(name, sizeof(name), "layers.%d.weight", i);
		slices[i] = sheaf_state_add(state, &layer, NULL);
	}
	rc = sheaf_run_open(&run, argc > 1 ? argv[1] : "run", NULL, &opts, &err);
	for (int64_t step = 1; rc == 0 && step <= 100; step++) {
		/* The forward and backward pass goes here. It may read the layers. */
		for (int i = 0; i < LAYERS; i++) {
			/* The gate: waits until this layer is copied. */
			while (save && sheaf_save_wait_copied(save, slices[i], -1, NULL) ==
			               SHEAF_EAGAIN)
				continue;
			for (int k = 0; k < ITEMS; k++) /* the optimizer */
				layers[i][k] += 1;
		}
		rc = finish(&save, false, &err);        /* does not wait for the disk */
		if (rc == SHEAF_EAGAIN)
			rc = 0;
		if (rc == 0 && step % 10 == 0)
			rc = finish(&save, true, &err); /* waits for the save before, ... */
		if (rc == 0 && step % 10 == 0)          /* ... then begins the next one */
			rc = sheaf_save_begin(&save, run, step, state, &lazy, &err);
	}
	if (rc == 0)
		rc = finish(&save, true, &err);         /* copies what is left, too */
	printf("%s\n", rc ? err.msg : "all are saved");
	sheaf_save_free(save);
	sheaf_run_close(run);
	sheaf_state_free(state);
	return rc != 0;
}
