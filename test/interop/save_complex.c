/* SPDX-License-Identifier: Apache-2.0 */
/* Saves a tensor of complex numbers of two F64 and one of two F32, for check_complex.py.
 *
 *   save_complex RUN
 */
#include <complex.h>
#include <stdio.h>
#include "sheaf.h"

enum { ROWS = 3, COLUMNS = 4 };

int main(int argc, char **argv)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_error err = { .msg = "usage: save_complex RUN" };
	struct sheaf_run *run = NULL;
	struct sheaf_save *save = NULL;
	double _Complex z[COLUMNS][ROWS];       /* transposed */
	float _Complex c[ROWS];
	int rc = -1;

	for (int i = 0; i < ROWS; i++) {
		c[i] = (float)i - 2 * (float)i * _Complex_I;
		for (int j = 0; j < COLUMNS; j++)
			z[j][i] = i + 10 * j - (i - 0.5) * _Complex_I;
	}
	struct sheaf_slice big = { .size = sizeof(big), .name = "z", .dtype = SHEAF_C128,
		.ndim = 2, .shape = { ROWS, COLUMNS }, .count = { ROWS, COLUMNS },
		.stride = { 1, ROWS }, .data = z };
	struct sheaf_slice small = { .size = sizeof(small), .name = "c", .dtype = SHEAF_C64,
		.ndim = 1, .shape = { ROWS }, .count = { ROWS }, .data = c };

	(void)sheaf_state_add(state, &big, NULL);
	(void)sheaf_state_add(state, &small, NULL);
	if (argc == 2)
		rc = sheaf_run_open(&run, argv[1], NULL, &opts, &err);
	if (rc == 0)
		rc = sheaf_save_begin(&save, run, 1, state, NULL, &err);
	if (rc == 0)
		rc = sheaf_save_commit(save, -1, &err);
	sheaf_save_free(save);
	sheaf_run_close(run);
	sheaf_state_free(state);
	if (rc < 0)
		fprintf(stderr, "%s\n", err.msg);
	return rc < 0;
}
