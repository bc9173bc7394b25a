/* SPDX-License-Identifier: Apache-2.0 */
#include <sheaf.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	float weight[2 * 3] = { 1, 2, 3, 4, 5, 6 };
	struct sheaf_slice all = { .size = sizeof(all), .name = "layer.0.weight",
		.dtype = SHEAF_F32, .ndim = 2, .shape = { 2, 3 }, .count = { 2, 3 },
		.data = weight };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_run *run = NULL;
	struct sheaf_save *save = NULL;
	struct sheaf_checkpoint *checkpoint = NULL;
	struct sheaf_error err = { 0 };

	sheaf_state_add(state, &all, NULL);
	if (sheaf_run_open(&run, argc > 1 ? argv[1] : "run", NULL, &opts, &err) == 0 &&
	    sheaf_save_begin(&save, run, 1000, state, NULL, &err) == 0 &&
	    sheaf_save_commit(save, -1, &err) == 0 && /* the checkpoint survives a power loss */
	    sheaf_checkpoint_open(&checkpoint, run, SHEAF_LATEST, &err) == 0)
		sheaf_checkpoint_load(checkpoint, state, 0, NULL, &err);
	printf("%s\n", err.code ? err.msg : "saved, and loaded back");
	sheaf_checkpoint_close(checkpoint);
	sheaf_save_free(save);
	sheaf_run_close(run);
	sheaf_state_free(state);
	return err.code != 0;
}
