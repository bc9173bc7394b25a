/* SPDX-License-Identifier: Apache-2.0 */
/* The job of commitworld.h. The files of a step:
 *
 *   model-00001-of-00001.safetensors                5000 bytes, one writer of each node
 *   optimizer/optimizer-00001-of-00001.safetensors  900, the second writer
 *   config.json, sheaf.sums                         the last writer
 */
#include "commitworld.h"
#include "aside.h"
#include "crc64.h"
#include "err.h"
#include "marks.h"
#include "publish.h"
#include "prune_steps.h"
#include "sheaf-admin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "model-00001-of-00001.safetensors"
#define OPTIMIZER "optimizer-00001-of-00001.safetensors"

static const struct part {
	int writer;
	const char *folder, *name;
	size_t off, len, bytes;
} parts[] = {
	{ 0, NULL, MODEL, 0, 4096, 5000 },
	{ 2, NULL, MODEL, 4096, 904, 5000 },
	{ 1, "optimizer", OPTIMIZER, 0, 900, 900 },
	{ 3, NULL, "config.json", 0, 60, 60 },
	{ 3, NULL, "sheaf.sums", 0, 200, 200 },
};

void world_init(struct world *w, struct simdisk *disk)
{
	memset(w, 0, sizeof(*w));
	w->disk = disk;
	w->pid = 100;
}

int64_t world_now(struct world *w)
{
	return (int64_t)simdisk_cut_n(w->disk) - 1;
}

static void start(struct world *w)
{
	for (int i = 0; i < WRITERS; i++) {
		w->proc[i] = simdisk_process(w->disk, w->pid++, i / 2);
		w->stage[i] = (struct shf_stage){ .dir = -1, .alive = -1 };
	}
}

int world_open(struct world *w, bool create)
{
	int rc;

	start(w);
	memset(w->store, 0, sizeof(w->store));
	rc = shf_store_own(&w->store[0], w->proc[0], RUN, create, 0, &w->err);
	for (int i = 1; rc == 0 && i < WRITERS; i++)
		rc = shf_store_join(&w->store[i], w->proc[i], RUN, w->store[0].run,
		                    w->store[0].session, &w->err);
	return rc;
}

void world_close(struct world *w)
{
	for (int i = 0; i < WRITERS; i++)
		if (w->store[i].path) {
			shf_stage_close(&w->store[i], &w->stage[i]);
			shf_store_close(&w->store[i]);
		}
}

void world_kill(struct world *w)
{
	for (int i = 0; i < WRITERS; i++)
		simdisk_kill(w->disk, w->proc[i]);
	for (int i = 0; i < WRITERS; i++)
		if (w->store[i].path) {
			shf_stage_close(&w->store[i], &w->stage[i]);
			shf_store_close(&w->store[i]);
		}
}

void world_fill(uint8_t *bytes, size_t n, const char *session, const char *file)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (int k = 0; k < 2; k++)
		for (const char *p = k ? file : session; *p; p++)
			h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
	for (size_t i = 0; i < n; i++) {
		uint64_t x = h + i / 8;

		x = (x ^ (x >> 33)) * UINT64_C(0xff51afd7ed558ccd);
		x ^= x >> 29;
		bytes[i] = (uint8_t)(x >> (i % 8 * 8));
	}
}

static int write_part(struct world *w, const struct part *p, const char *session)
{
	const struct shf_sys *sys = w->proc[p->writer];
	int dir = w->stage[p->writer].dir, top = dir, fd, rc;
	uint8_t bytes[5000];
	char full[128];

	snprintf(full, sizeof(full), "%s%s%s", p->folder ? p->folder : "", p->folder ? "/" : "",
	         p->name);
	world_fill(bytes, p->bytes, session, full);
	if (p->folder) {
		dir = shf_sys_open(sys, top, p->folder, SHF_O_DIR | SHF_O_NOFOLLOW, 0);
		if (dir < 0)
			return shf_fail_sys(&w->err, EIO, "%s", p->folder);
	}
	fd = shf_sys_open(sys, dir, p->name, SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	rc = fd;
	if (fd >= 0) {
		rc = (int)shf_sys_pwrite(sys, fd, bytes + p->off, p->len, p->off);
		if (rc >= 0)
			rc = shf_sys_fsync(sys, fd);
		shf_sys_close(sys, fd);
	}
	if (dir != top)
		shf_sys_close(sys, dir);
	return rc < 0 ? shf_fail_sys(&w->err, EIO, "%s", full) : 0;
}

int world_write(struct world *w, int64_t step)
{
	static const char *const folders[] = { ".", "optimizer", NULL };
	struct known *k = &w->known[w->known_n];
	int rc;

	if (w->known_n == KNOWN_MAX)
		abort();
	*k = (struct known){ .step = step, .begun = world_now(w), .publishing = NEVER,
	                     .acked = NEVER, .leaving = NEVER, .gone = NEVER };
	rc = shf_stage_new(&w->store[0], &w->stage[0], step, folders, &w->err);
	if (rc < 0)
		return rc;
	w->known_n++;
	snprintf(k->stage, sizeof(k->stage), "%s", w->stage[0].name);
	memcpy(k->session, strchr(k->stage, '-') + 1, 33);
	for (int i = 1; rc == 0 && i < WRITERS; i++)
		rc = shf_stage_join(&w->store[i], &w->stage[i], step, k->stage, &w->err);
	for (int i = 0; rc == 0 && i < WRITERS; i += 2)
		rc = shf_stage_alive(&w->store[i], &w->stage[i], i / 2, &w->err);
	for (size_t i = 0; rc == 0 && i < sizeof(parts) / sizeof(parts[0]); i++)
		rc = write_part(w, &parts[i], k->session);
	return rc;
}

static struct shf_mf_file file_of(const char *full, size_t n, const char *session)
{
	uint8_t bytes[5000];

	world_fill(bytes, n, session, full);
	return (struct shf_mf_file){ full, n, shf_crc64(bytes, n) };
}

int world_publish(struct world *w, int64_t step, int64_t parent)
{
	struct known *k = &w->known[w->known_n - 1];
	struct shf_mf_family families[] = { { "model", ".", 1, 1, 904 },
	                                    { "optimizer", "optimizer", 1, 1, 804 } };
	struct shf_mf_file files[2], attached[1];
	struct shf_mf_note note = { "loss", w->loss };
	struct shf_manifest m = { .step = step, .notes = &note, .notes_n = w->loss != NULL };

	files[0] = file_of(MODEL, 5000, k->session);
	files[1] = file_of("optimizer/" OPTIMIZER, 900, k->session);
	attached[0] = file_of("config.json", 60, k->session);
	m.sums = file_of("sheaf.sums", 200, k->session);
	memcpy(m.session, k->session, sizeof(m.session));
	memcpy(m.run, w->store[0].run, sizeof(m.run));
	m.has_parent = parent >= 0;
	m.parent_step = parent;
	if (parent >= 0)
		world_session(w, parent, m.parent_session);
	snprintf(m.created, sizeof(m.created), "2026-01-31T12:00:00Z");
	m.version = m.commit = m.compiler = "0";
	m.file_bytes_max = UINT64_C(5000000000);
	m.ranks = WRITERS;
	m.families = families;
	m.families_n = 2;
	m.files = files;
	m.files_n = 2;
	m.attached = attached;
	m.attached_n = 1;
	k->publishing = world_now(w);
	k->rc = shf_stage_publish(&w->store[0], &w->stage[0], &m, &w->err);
	if (k->rc == 0)
		k->acked = world_now(w);
	return k->rc;
}

int world_save(struct world *w, int64_t step, int64_t parent)
{
	int rc = world_write(w, step);

	if (rc == 0)
		rc = world_publish(w, step, parent);
	for (int i = WRITERS - 1; i > 0; i--)
		shf_stage_close(&w->store[i], &w->stage[i]);
	if (rc == 0)
		shf_stage_close(&w->store[0], &w->stage[0]);
	else
		shf_stage_discard(&w->store[0], &w->stage[0]);
	return rc;
}

struct known *world_find(struct world *w, int64_t step)
{
	for (size_t i = w->known_n; i-- > 0; )
		if (w->known[i].step == step && w->known[i].acked != NEVER &&
		    w->known[i].leaving == NEVER)
			return &w->known[i];
	return NULL;
}

void world_session(struct world *w, int64_t step, char session[33])
{
	struct known *k = world_find(w, step);

	if (!k)
		abort();
	memcpy(session, k->session, 33);
}

static void note_leaving(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	struct world *w = arg;
	struct known *k = world_find(w, step);

	(void)why;
	if (what == 'r' && k)
		k->leaving = -2;        /* filled in below */
}

int world_prune(struct world *w, int keep_last, int64_t verified, int grace_s)
{
	struct shf_prune p = { .keep_last = keep_last, .verified.step = verified, .keep = -1,
	                       .grace_s = grace_s };
	int64_t before = world_now(w);
	int rc = shf_store_prune(&w->store[0], &p, note_leaving, w, &w->err);

	for (size_t i = 0; i < w->known_n; i++)
		if (w->known[i].leaving == -2) {
			w->known[i].leaving = before;
			w->known[i].gone = rc < 0 ? NEVER : world_now(w);
		}
	return rc;
}

int world_rewind(struct world *w, int64_t step)
{
	int64_t before = world_now(w);
	int rc;

	for (size_t i = 0; i < w->known_n; i++) {
		struct known *k = &w->known[i];

		if (k->step > step && k->acked != NEVER && k->leaving == NEVER) {
			k->leaving = before;
			k->rewound = true;
		}
	}
	rc = shf_store_rewind(&w->store[0], step, &w->err);
	for (size_t i = 0; rc == 0 && i < w->known_n; i++)
		if (w->known[i].rewound && w->known[i].gone == NEVER)
			w->known[i].gone = world_now(w);
	return rc;
}

int world_mark(struct world *w, int64_t step, char mark)
{
	struct marking *k = &w->marks[w->marks_n++];
	int rc;

	*k = (struct marking){ step, world_now(w), NEVER, mark };
	rc = shf_store_mark(&w->store[0], step, mark, &w->err);
	if (rc == 0)
		k->done = world_now(w);
	return rc;
}

static void rebase(int64_t *stamp, int64_t to)
{
	if (*stamp != NEVER)
		*stamp = to;
}

void world_settle(struct world *w)
{
	simdisk_settle(w->disk);
	for (size_t i = 0; i < w->known_n; i++) {
		struct known *k = &w->known[i];

		rebase(&k->begun, -1);
		rebase(&k->publishing, -1);
		rebase(&k->acked, 0);
		rebase(&k->leaving, -1);
		rebase(&k->gone, 0);
	}
	for (size_t i = 0; i < w->marks_n; i++) {
		rebase(&w->marks[i].calling, -1);
		rebase(&w->marks[i].done, 0);
	}
}
