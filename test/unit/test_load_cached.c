/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of what the page cache has, with real threads and a real disk: for ThreadSanitizer as much
 * as for the values, and for which damage is reported when several threads find some. */
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>
#include "rmtree.h"
#include "sheaf.h"
#include "t.h"
#include "step.h"

enum { SLICES = 12, ITEMS = 300000 };

struct world {
	char dir[32];
	struct sheaf_run *run;
	struct sheaf_state *state;
	uint32_t *data[SLICES];
};

static uint32_t value(int slice, size_t i)
{
	return (uint32_t)(slice * 40503 + 7) * 2654435761u + (uint32_t)i;
}

static void open_run(struct world *w, int threads)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.file_bytes_max = 1 << 20, .io_threads = threads };
	struct sheaf_error err;

	CHECK_RC(sheaf_run_open(&w->run, w->dir, NULL, &opts, &err), 0, &err);
}

static void world_init(struct world *w)
{
	struct sheaf_save *save;
	struct sheaf_error err;

	*w = (struct world){ .dir = "warm.XXXXXX" };
	CHECK(mkdtemp(w->dir) != NULL);
	w->state = sheaf_state_new();
	for (int i = 0; i < SLICES; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .ndim = 1, .dtype = SHEAF_U32 };
		char name[16];

		w->data[i] = malloc(ITEMS * sizeof(uint32_t));
		for (size_t k = 0; k < ITEMS; k++)
			w->data[i][k] = value(i, k);
		snprintf(name, sizeof(name), "t.%02d", i);
		s.name = name;
		s.shape[0] = s.count[0] = ITEMS;
		s.data = w->data[i];
		CHECK_INT(sheaf_state_add(w->state, &s, NULL), i);
	}
	open_run(w, 4);
	CHECK_RC(sheaf_save_begin(&save, w->run, 1, w->state, NULL, &err), 0, &err);
	CHECK_RC(sheaf_save_commit(save, -1, &err), 0, &err);
	sheaf_save_free(save);
	sheaf_run_close(w->run);
}

static void world_release(struct world *w)
{
	sheaf_state_free(w->state);
	for (int i = 0; i < SLICES; i++)
		free(w->data[i]);
	rmtree(w->dir);
}

/* Into the page cache. */
static int look_at(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	static char buf[1 << 16];
	int fd = type == FTW_F ? open(path, O_RDONLY) : -1;

	(void)st;
	(void)ftw;
	while (fd >= 0 && read(fd, buf, sizeof(buf)) > 0)
		;
	if (fd >= 0)
		close(fd);
	return 0;
}

static int load(struct world *w, int threads, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step;
	int rc;

	for (int i = 0; i < SLICES; i++)
		memset(w->data[i], 0xa5, ITEMS * sizeof(uint32_t));
	(void)nftw(w->dir, look_at, 16, FTW_PHYS);
	open_run(w, threads);
	rc = sheaf_checkpoint_open(&step, w->run, 1, err);
	if (rc == 0)
		rc = sheaf_checkpoint_load(step, w->state, 0, &report, err);
	CHECK(rc < 0 || report.disk_bytes >= SLICES * ITEMS * sizeof(uint32_t));
	sheaf_checkpoint_close(step);
	sheaf_run_close(w->run);
	return rc;
}

TEST(any_number_of_threads_gives_the_same)
{
	struct world w;
	struct sheaf_error err;

	world_init(&w);
	for (int round = 0; round < 12; round++) {
		size_t bad = 0;

		CHECK_RC(load(&w, 1 << round % 4, &err), 0, &err);
		for (int i = 0; i < SLICES; i++)
			for (size_t k = 0; k < ITEMS; k++)
				bad += w.data[i][k] != value(i, k);
		CHECK_INT(bad, 0);
	}
	world_release(&w);
}

static void flip(const struct world *w, const char *file)
{
	char path[128], c;
	int fd;

	snprintf(path, sizeof(path), "%s/checkpoint-1/%s", w->dir, file);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0);
	CHECK_INT(pread(fd, &c, 1, 700000), 1);
	c ^= 4;
	CHECK_INT(pwrite(fd, &c, 1, 700000), 1);
	close(fd);
}

TEST(of_several_damages_the_first_is_told)
{
	struct world w;
	struct sheaf_error err;

	world_init(&w);
	flip(&w, "model-00005-of-00012.safetensors");
	for (int round = 0; round < 8; round++) {
		if (round == 2)
			flip(&w, "model-00006-of-00012.safetensors");
		if (round == 4)
			flip(&w, "model-00012-of-00012.safetensors");
		CHECK_RC(load(&w, 1 << round % 4, &err), SHEAF_ECORRUPT, &err);
		CHECK(strstr(err.msg, "model-00005-of-00012.safetensors"));
	}
	world_release(&w);
}
