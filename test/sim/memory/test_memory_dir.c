/* SPDX-License-Identifier: Apache-2.0 */
/* A step in memory seen as a directory (lib/memory/memory_dir.h): a reader finds there what it
 * finds on disk. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "step.h"
#include "memory_dir_fill.h"
#include "memory_dir_in.h"
#include "memory_steps.h"
#include "restarts.h"
#include "t.h"

struct world {
	struct simdisk *disk;
	const struct shf_sys *sys;      /* of who looks */
	struct shf_store store;
	struct shf_memory_step newest;
	struct shf_view *view;
	const struct shf_sys *seen;     /* the machine with the step in it */
	int dir;
	struct sheaf_error err;
};

static int take_first(void *arg, const struct shf_memory_step *r)
{
	*(struct shf_memory_step *)arg = *r;
	return 1;
}

static void begin(struct world *w)
{
	struct re_job j;
	int keep;

	*w = (struct world){ .disk = re_world(3),
		.store = { .dir = -1, .dot = -1, .stage = -1, .lock = -1 } };
	j = re_on(w->disk, 3, (struct re_plan){ .last = 2 });
	PLAYED(j, 0);
	w->sys = simdisk_process(w->disk, 70000, 0);
	CHECK_RC(shf_store_open(&w->store, w->sys, "run", &w->err), 0, &w->err);
	CHECK_INT(shf_sys_keep_open(w->sys, "auto/x", "", "", &keep, NULL), 0);
	CHECK_INT(shf_memory_steps_list(w->sys, keep, w->store.run, take_first, &w->newest), 1);
	CHECK_INT(w->newest.step, 2);
	CHECK_RC(shf_memory_step_open(w->sys, keep, &w->newest, &w->view, &w->err), 0, &w->err);
	w->seen = shf_view_sys(w->view);
	w->dir = shf_sys_open(w->seen, SHF_CWD, SHF_VIEW_DIR, SHF_O_DIR, 0);
	CHECK(w->dir >= 0);
}

static void end(struct world *w)
{
	CHECK_INT(shf_sys_close(w->seen, w->dir), 0);
	shf_view_free(w->view);
	shf_store_close(&w->store);
	simdisk_kill(w->disk, w->sys);
	simdisk_free(w->disk);
}

static int open_at(const struct world *w, int dir, const char *name, int flags)
{
	return shf_sys_open(w->seen, dir, name, flags, 0);
}

struct found {
	char names[600];
	int n, stop;                    /* after so many; 0: never */
};

static int find(void *arg, const char *name)
{
	struct found *f = arg;

	f->n++;
	strcat(strcat(f->names, name), " ");
	return f->n == f->stop ? 7 : 0;
}

static struct found list_of(const struct world *w, int dir, int stop, int want)
{
	struct found f = { .stop = stop };

	CHECK_INT(shf_sys_list(w->seen, dir, find, &f), want);
	return f;
}

TEST(it_has_names_types_and_sizes)
{
	struct world w;
	struct shf_stat st;
	struct found f;
	int folder, file;
	char link[8];

	begin(&w);
	f = list_of(&w, w.dir, 0, 0);
	CHECK(strstr(f.names, "sheaf.json ") && strstr(f.names, "sheaf.sums "));
	CHECK(strstr(f.names, "optimizer "));
	CHECK(strstr(f.names, "model-00001-of-00001.safetensors "));
	CHECK(!strchr(f.names, '/'));
	CHECK_INT(list_of(&w, w.dir, 1, 7).n, 1);
	CHECK_INT(list_of(&w, w.dir, f.n - 1, 7).n, f.n - 1);
	folder = open_at(&w, w.dir, "optimizer", SHF_O_DIR);
	CHECK(folder >= 0);
	f = list_of(&w, folder, 0, 0);
	CHECK(strstr(f.names, "optimizer-00001-of-00001.safetensors "));
	CHECK_INT(shf_sys_fstat(w.seen, folder, &st), 0);
	CHECK_INT(st.type, SHF_T_DIR);
	CHECK_INT(shf_sys_stat(w.seen, w.dir, "optimizer", false, &st), 0);
	CHECK_INT(st.type, SHF_T_DIR);
	CHECK_INT(shf_sys_stat(w.seen, folder, "optimizer-00001-of-00001.safetensors",
			       false, &st), 0);
	CHECK(st.type == SHF_T_FILE && st.bytes > 2 * 13 * 700 * 4);
	CHECK_INT(shf_sys_stat(w.seen, folder, "sheaf.json", false, &st), -ENOENT);
	file = open_at(&w, w.dir, "sheaf.json", 0);
	CHECK(file >= 0);
	CHECK_INT(shf_sys_fstat(w.seen, file, &st), 0);
	CHECK_INT(st.type, SHF_T_FILE);
	CHECK_INT(shf_sys_fstat(w.seen, w.dir + 10000, &st), -EBADF);
	CHECK_INT(shf_sys_list(w.seen, file, find, &f), -ENOTDIR);
	CHECK_INT(open_at(&w, file, "x", 0), -ENOTDIR);
	CHECK_INT(open_at(&w, w.dir, "nobody", 0), -ENOENT);
	CHECK_INT(open_at(&w, folder, "nobody", 0), -ENOENT);
	CHECK_INT(open_at(&w, w.dir, "sheaf.json", SHF_O_DIR), -ENOTDIR);
	CHECK_INT(shf_sys_readlink(w.seen, w.dir, "sheaf.json", link, 8), -EINVAL);
	end(&w);
}

TEST(it_is_read_and_never_written)
{
	static const int flags[] = { SHF_O_WRITE, SHF_O_CREATE, SHF_O_TRUNC, SHF_O_APPEND };
	struct world w;
	struct shf_io read = { .op = SHF_IO_READ }, write = { .op = SHF_IO_WRITE }, *done;
	struct shf_queue *queue;
	const uint8_t *text;
	uint8_t bytes[4096], more[64];
	size_t n;
	int file;

	begin(&w);
	for (int i = 0; i < 4; i++)
		CHECK_INT(open_at(&w, w.dir, "sheaf.json", flags[i]), -EROFS);
	CHECK_INT(open_at(&w, w.dir, "sheaf.json", SHF_O_DIRECT), -EINVAL);
	file = open_at(&w, w.dir, "sheaf.json", 0);
	shf_view_manifest_bytes(w.view, &text, &n);
	CHECK(n > 100 && n < sizeof(bytes));
	CHECK_INT(shf_sys_pread(w.seen, file, bytes, sizeof(bytes), 0), n);
	CHECK(memcmp(bytes, text, n) == 0);
	CHECK_INT(shf_sys_pread(w.seen, file, bytes, 10, n), 0);
	CHECK_INT(shf_sys_pread(w.seen, file, bytes, 10, UINT64_MAX - 5), 0);
	CHECK_INT(shf_sys_pread(w.seen, w.dir, bytes, 10, 0), -EISDIR);
	CHECK_INT(shf_sys_lock(w.seen, file, false), 0);
	CHECK_INT(shf_sys_resident(w.seen, file, 3, 9), 9);
	shf_sys_forget(w.seen, file, 0, n);
	CHECK_INT(shf_sys_queue_new(w.seen, &queue, 1), 0);
	read.fd = write.fd = file;
	read.buf = write.buf = more;
	read.len = write.len = sizeof(more);
	CHECK_INT(shf_sys_submit(w.seen, queue, &read), 0);
	CHECK_INT(shf_sys_submit(w.seen, queue, &write), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(shf_sys_complete(w.seen, queue, &done, -1), 1);
		CHECK_INT(done->result, done == &read ? (int64_t)sizeof(more) : -EROFS);
	}
	CHECK(memcmp(more, text, sizeof(more)) == 0);
	CHECK_INT(shf_sys_complete(w.seen, queue, &done, -1), 0);
	shf_sys_queue_free(w.seen, queue);
	shf_sys_queue_free(w.seen, NULL);
	end(&w);
}

TEST(beside_it_lies_the_disk)
{
	struct world w;
	struct shf_stat st;
	char link[8];
	int dir, dot, file;

	begin(&w);
	dir = open_at(&w, SHF_CWD, "run", SHF_O_DIR);
	CHECK(dir >= 0);
	CHECK(strstr(list_of(&w, dir, 0, 0).names, ".sheaf "));
	CHECK_INT(shf_sys_stat(w.seen, dir, ".sheaf", false, &st), 0);
	CHECK_INT(st.type, SHF_T_DIR);
	CHECK_INT(shf_sys_readlink(w.seen, dir, ".sheaf", link, 8), -EINVAL);
	dot = open_at(&w, dir, ".sheaf", SHF_O_DIR);
	file = open_at(&w, dot, "run", 0);
	CHECK(file >= 0);
	CHECK_INT(shf_sys_fstat(w.seen, file, &st), 0);
	CHECK(shf_sys_pread(w.seen, file, link, 8, 0) == 8);
	CHECK(shf_sys_resident(w.seen, file, 0, 8) <= 8);
	shf_sys_forget(w.seen, file, 0, 8);
	CHECK_INT(shf_sys_close(w.seen, file), 0);
	CHECK_INT(shf_sys_close(w.seen, dot), 0);
	CHECK_INT(shf_sys_close(w.seen, dir), 0);
	end(&w);
}

/* A card that is made nothing takes the step with it. */
TEST(it_is_still_there_or_says_so)
{
	struct world w;

	begin(&w);
	CHECK(shf_view_is_unchanged(w.view));
	CHECK_INT(shf_view_parts(w.view), 3);
	shf_view_clear_cards(w.view);
	CHECK(!shf_view_is_unchanged(w.view));
	end(&w);
}

/* Checks that the file sheaf.json is what the view says of it, and names that parent. */
static void names(struct world *w, int64_t parent)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	const uint8_t *text;
	uint8_t bytes[4096];
	size_t n;
	int file = open_at(w, w->dir, "sheaf.json", 0);

	shf_view_manifest_bytes(w->view, &text, &n);
	CHECK_INT(shf_sys_pread(w->seen, file, bytes, sizeof(bytes), 0), n);
	CHECK(memcmp(bytes, text, n) == 0);
	CHECK_RC(shf_manifest_decode(&m, &arena, text, n, "it", &w->err), 0, &w->err);
	CHECK(m.has_parent == (parent >= 0) && m.has_parent == w->view->manifest.has_parent);
	if (parent >= 0)
		CHECK(m.parent_step == parent && m.parent_session[31] == 'f');
	CHECK_INT(shf_sys_close(w->seen, file), 0);
	shf_arena_release(&arena);
}

static const char PARENT[33] = "0123456789abcdef0123456789abcdef";

TEST(it_shows_the_parent_that_is_set)
{
	struct world w;
	const uint8_t *first, *text;
	size_t first_n, n;

	begin(&w);
	shf_view_manifest_bytes(w.view, &first, &first_n);
	names(&w, -1);
	CHECK_RC(shf_view_set_parent(w.view, -1, "", &w.err), 0, &w.err);
	shf_view_manifest_bytes(w.view, &text, &n);
	CHECK(text == first);
	CHECK_RC(shf_view_set_parent(w.view, 1, PARENT, &w.err), 0, &w.err);
	names(&w, 1);
	CHECK_RC(shf_view_set_parent(w.view, -1, PARENT, &w.err), 0, &w.err);
	names(&w, -1);
	shf_view_manifest_bytes(w.view, &text, &n);
	CHECK(n == first_n && memcmp(text, first, n) == 0);
	CHECK(shf_view_is_unchanged(w.view));
	end(&w);
}

/* Its members would be lost if it was written again. */
TEST(a_manifest_of_a_later_version_keeps_its_parent)
{
	struct world w;
	const uint8_t *text;
	char later[4096];
	size_t n, to;

	begin(&w);
	shf_view_manifest_bytes(w.view, &text, &n);
	to = n - strlen(",\n \"self\": \"0123456789abcdef\"}\n");
	memcpy(later, text, to);
	to += (size_t)sprintf(later + to, ",\n \"later\": 1");
	n = to + (size_t)sprintf(later + to, ",\n \"self\": \"%016llx\"}\n",
	                         (unsigned long long)shf_crc64(later, to));
	w.view->smalls[0].bytes = w.view->files[w.view->manifest.files_n].whole =
		(uint8_t *)later;
	w.view->smalls[0].n = w.view->files[w.view->manifest.files_n].bytes = n;
	CHECK_RC(shf_view_set_parent(w.view, 1, PARENT, &w.err), 0, &w.err);
	names(&w, -1);
	end(&w);
}
