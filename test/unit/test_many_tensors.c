/* SPDX-License-Identifier: Apache-2.0 */
/* Very many very small tensors: the table of their sums is large, and longer than their bytes. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "sheaf-inspect.h"
#include "step.h"
#include "rmtree.h"
#include "sys.h"
#include "t.h"
#include "run_open.h"
#include "step_open.h"
#include "run_ops.h"
#include "sys_tables.h"

enum { TENSORS = 230000 };      /* a table above 16 MiB */

static struct sheaf_state *state_of(uint8_t *data)
{
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_slice s = { .size = sizeof(s), .ndim = 1, .dtype = SHEAF_U8,
		.shape = { 1 }, .count = { 1 } };
	char name[16];

	for (int i = 0; i < TENSORS; i++) {
		snprintf(name, sizeof(name), "%d", i);
		s.name = name;
		s.data = data + i;
		CHECK_INT(sheaf_state_add(state, &s, NULL), i);
	}
	return state;
}

static int refused;             /* errno of opening a tensor file; 0 */

static int on_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	return refused && strstr(name, ".safetensors") ? -refused
	       : shf_sys_real()->file.ops->open(arg, dir, name, flags, mode);
}

/* What is said of the table where the kernel refuses the tensor file. */
static int open_refused(const char *dir, int error, struct sheaf_error *err)
{
	struct sys_tables ops = sys_tables_of(shf_sys_real());
	struct shf_sys sys = sys_tables_sys(&ops, NULL);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct sheaf_run *run;
	struct sheaf_checkpoint *step = NULL;
	int rc;

	ops.file.open = on_open;
	CHECK_RC(shf_run_open(&run, dir, NULL, &opts, &sys, err), 0, err);
	refused = error;
	CHECK_RC(shf_step_open(&step, run, 1, err), 0, err);
	refused = 0;
	rc = step->sums_rc;
	*err = step->sums_err;
	shf_step_put(step);
	shf_run_close(run);
	return rc;
}

TEST(a_table_longer_than_the_files_is_no_damage)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	uint8_t *data = malloc(TENSORS), *back = calloc(1, TENSORS), one = 0;
	struct sheaf_state *from = state_of(data), *to = state_of(back);
	struct sheaf_slice s = { .size = sizeof(s), .name = "229999", .ndim = 1,
		.dtype = SHEAF_U8, .shape = { 1 }, .count = { 1 }, .data = &one };
	char dir[] = "many.XXXXXX", path[100];
	struct sheaf_run *run;
	struct sheaf_save *save;
	struct sheaf_checkpoint *step;
	struct sheaf_error err;
	struct stat st;

	for (int i = 0; i < TENSORS; i++)
		data[i] = (uint8_t)(i * 7 + 1);
	CHECK(mkdtemp(dir) != NULL);
	CHECK_RC(sheaf_run_open(&run, dir, NULL, &opts, &err), 0, &err);
	CHECK_RC(sheaf_save_begin(&save, run, 1, from, NULL, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	sheaf_save_free(save);
	snprintf(path, sizeof(path), "%s/checkpoint-1/sheaf.sums", dir);
	CHECK_INT(stat(path, &st), 0);
	CHECK(st.st_size > 16 << 20);
	CHECK_RC(sheaf_checkpoint_open(&step, run, 1, &err), 0, &err);
	CHECK_RC(sheaf_checkpoint_read(step, &s, &err), 0, &err);
	CHECK_INT(one, data[229999]);
	CHECK_RC(sheaf_checkpoint_load(step, to, 0, NULL, &err), 0, &err);
	CHECK(memcmp(data, back, TENSORS) == 0);
	CHECK_RC(sheaf_checkpoint_verify(step, NULL, &err), 0, &err);
	sheaf_checkpoint_close(step);
	sheaf_run_close(run);
	/* Files that cannot be looked at are no verdict on the table. */
	CHECK_RC(open_refused(dir, EIO, &err), SHEAF_EIO, &err);
	CHECK_RC(open_refused(dir, EACCES, &err), SHEAF_EIO, &err);
	CHECK_RC(open_refused(dir, ENOENT, &err), SHEAF_ECORRUPT, &err);
	sheaf_state_free(from);
	sheaf_state_free(to);
	free(data);
	free(back);
	rmtree(dir);
}
