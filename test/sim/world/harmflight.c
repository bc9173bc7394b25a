/* SPDX-License-Identifier: Apache-2.0 */
#include "simover.h"
#include "rng.h"
#include "harmflight.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hands.h"

enum { RANKS = 4, IMAGES = 32, LAYOUTS = 3, KEPT = 100 };
#define DATA_MIN 4096           /* smaller messages are plans */

static const int32_t nodes_of[][RANKS] = { { 0 }, { 1, 2, 1, 2 }, { 1, 1, 2, 2 }, { 1, 2, 3, 4 } };
static const char *const deed_names[HARM_DEEDS] = { "image", "images swapped", "message",
	"messages swapped", "message shifted", "message lost", "disk", "told", "table" };

/* The machine and the group of all ranks, of which one runs at a time */
static struct {
	struct sheaf_group_ops group;
	enum harm_deed deed;
	uint64_t moment;                /* counts down to 0; 0: never */
	uint64_t seen[HARM_DEEDS];      /* moments so far, by deed */
	uint64_t draw;
	int fired;
	struct { uint8_t *base; size_t bytes; } image[IMAGES];
	int images;
} evil;

/* Called when the deed could be done. Returns whether to do it now. */
static bool now(enum harm_deed deed)
{
	evil.seen[deed]++;
	return evil.moment > 0 && evil.deed == deed && --evil.moment == 0;
}

static void flip(void *p, size_t n)
{
	if (n == 0)
		return;
	((uint8_t *)p)[rng_next(&evil.draw) % n] ^= (uint8_t)(1u << rng_next(&evil.draw) % 8);
	evil.fired++;
}

/* Exchanges n bytes at a and at b, as far as they do not overlap. */
static void exchange(uint8_t *a, uint8_t *b, size_t n)
{
	if (a > b) {
		uint8_t *c = a;

		a = b;
		b = c;
	}
	n = (size_t)(b - a) < n ? (size_t)(b - a) : n;
	for (size_t i = 0; i < n; i++) {
		uint8_t x = a[i];

		a[i] = b[i];
		b[i] = x;
	}
	evil.fired += n > 0;
}

static void swap_images(void)
{
	int64_t x = rng_below(&evil.draw, evil.images), y = rng_below(&evil.draw, evil.images);
	size_t n = evil.image[x].bytes, m = evil.image[y].bytes;
	size_t len = 1 + rng_next(&evil.draw) % 5000;

	n = n < m ? n : m;
	len = len < n ? len : n;
	/* The same place in two staging buffers, or two places in one. */
	m = rng_next(&evil.draw) % (n - len + 1);
	exchange(evil.image[x].base + m,
	         evil.image[y].base + (x == y ? rng_next(&evil.draw) % (n - len + 1) : m), len);
}

/* Called at each call: a staging buffer may change between two calls. */
static void between(void)
{
	uint64_t i = evil.images ? rng_next(&evil.draw) % (uint64_t)evil.images : 0;

	if (evil.images == 0)
		return;
	if (now(HARM_IMAGE))
		flip(evil.image[i].base, evil.image[i].bytes);
	if (now(HARM_IMAGE_SWAP))
		swap_images();
}

/* ---- the group ---- */

static int evil_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			  struct sheaf_error *err)
{
	between();
	return evil.group.allgather(arg, mine, all, bytes, timeout_ms, err);
}

/* Changes a manifest, a checksum table or a file's header in a message; the bytes around it have no
 * meaning. */
static void told(void *words, size_t n)
{
	static const struct { const char *begin; size_t n; } content[] = {
		{ "{\"sheaf\": 1", 1200 }, { "SHEAFSUM", 1400 }, { "{\"__metadata__\"", 4000 } };

	for (size_t i = 0; i < 3; i++) {
		uint8_t *p = memmem(words, n, content[i].begin, strlen(content[i].begin));

		if (p && (uint8_t *)words + n >= p + content[i].n && now(HARM_TOLD))
			flip(p, content[i].n);
	}
}

static int evil_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			  struct sheaf_error *err)
{
	int rc;

	between();
	rc = evil.group.allreduce(arg, x, n, op, timeout_ms, err);
	if (rc == 0 && op == SHEAF_XOR)
		told(x, 8 * n);
	return rc;
}

/* Does the deed on received data. Prefers two ranks that sent equally much. */
static void misdirect(uint8_t *in, const size_t *bytes)
{
	size_t at[RANKS + 1] = { 0 }, n, m;
	int a = (int)(rng_next(&evil.draw) % RANKS), b = (int)(rng_next(&evil.draw) % RANKS);

	for (int r = 0; r < RANKS; r++)
		at[r + 1] = at[r] + bytes[r];
	for (int k = 0; k < RANKS && (a == b || bytes[a] != bytes[b] || bytes[a] == 0); k++)
		b = (b + 1) % RANKS;
	n = bytes[a] < bytes[b] ? bytes[a] : bytes[b];
	if (evil.deed == HARM_MESSAGE_SWAP) {
		if (a != b)
			exchange(in + at[a], in + at[b], n);
		return;
	}
	if (evil.deed == HARM_MESSAGE_LOST) {
		memset(in + at[a], 0, bytes[a]);
		evil.fired += bytes[a] > 0;
		return;
	}
	n = at[RANKS];
	m = 1 + rng_next(&evil.draw) % (n / 2);
	exchange(in + rng_next(&evil.draw) % (n - m + 1),
	         in + rng_next(&evil.draw) % (n - m + 1), m);
}

static int evil_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                          const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	size_t total = in_bytes[0] + in_bytes[1] + in_bytes[2] + in_bytes[3];
	int rc;

	between();
	rc = evil.group.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
	if (rc < 0 || total < DATA_MIN)
		return rc;
	if (now(HARM_MESSAGE))
		flip(in, total);
	if (now(HARM_MESSAGE_SWAP))
		misdirect(in, in_bytes);
	if (now(HARM_MESSAGE_SHIFT))
		misdirect(in, in_bytes);
	if (now(HARM_MESSAGE_LOST))
		misdirect(in, in_bytes);
	return rc;
}

/* ---- the machine ---- */

static int evil_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	int rc = simover_real()->shm.shm_new(arg, shm, bytes, shared);

	if (rc == 0 && evil.images < IMAGES) {
		evil.image[evil.images].base = shm->base;
		evil.image[evil.images++].bytes = bytes;
	}
	return rc;
}

static void evil_shm_free(void *arg, struct shf_shm *shm)
{
	for (int i = 0; i < evil.images; i++)
		if (evil.image[i].base == shm->base)
			evil.image[i--] = evil.image[--evil.images];
	simover_real()->shm.shm_free(arg, shm);
}

static int evil_submit(void *arg, struct shf_queue *queue, struct shf_io *io)
{
	between();
	if (io->op == SHF_IO_WRITE && now(HARM_DISK))
		flip(io->buf, io->len);
	return simover_real()->queue.submit(arg, queue, io);
}

static int evil_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	int rc = simover_real()->queue.complete(arg, queue, io, timeout_ms);

	if (rc == 1 && (*io)->op == SHF_IO_READ && now(HARM_DISK))
		flip((*io)->buf, (*io)->len);
	between();
	return rc;
}

static int64_t evil_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	int64_t got = simover_real()->file.pread(arg, fd, buf, n, off);

	between();
	if (got > 0 && now(HARM_DISK))
		flip(buf, (size_t)got);
	return got;
}

static int64_t evil_pwrite(void *arg, int fd, const void *buf, size_t n, uint64_t off)
{
	uint8_t *copy;
	int64_t rc;

	between();
	if (n == 0 || !now(HARM_DISK))
		return simover_real()->disk.pwrite(arg, fd, buf, n, off);
	copy = malloc(n);
	if (!copy)
		abort();
	memcpy(copy, buf, n);
	flip(copy, n);
	rc = simover_real()->disk.pwrite(arg, fd, copy, n, off);
	free(copy);
	return rc;
}

static void tamper(struct hand *h)
{
	struct sys_tables *calls = simover(&h->used);

	evil.group = h->group->ops;
	calls->shm.shm_new = evil_shm_new;
	calls->shm.shm_free = evil_shm_free;
	calls->queue.submit = evil_submit;
	calls->queue.complete = evil_complete;
	calls->file.pread = evil_pread;
	calls->disk.pwrite = evil_pwrite;
	h->group->ops.allgather = evil_allgather;
	h->group->ops.allreduce = evil_allreduce;
	h->group->ops.alltoallv = evil_alltoallv;
}

/* ---- what is saved and loaded ---- */

/* Holds tensors of one shape, so that messages have one size. Variant 0: each rank has other rows;
 * 1: the same columns of each; 2: each rank has one whole tensor. All ranks have one more
 * tensor. */
static void held(struct hand *h)
{
	static const char *const names[] = { "a", "b", "c", "d" };
	int variant = h->play->variant;

	for (int k = 0; k < 4; k++) {
		struct sheaf_slice *s = hand_add(h, "model", names[k], SHEAF_F32, 2, 40, 48);

		if (variant < 2)
			hand_cut(s, variant, (h->rank + (variant ? 0 : k)) % RANKS, RANKS);
		else if (k != h->rank)
			s->count[0] = 0;
	}
	hand_add(h, "optimizer", "a/moment1_0", SHEAF_F32, 1, 1031);
}

static int load_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, h->play->step, &h->err);

	if (rc == 0 && step->sums_bytes && now(HARM_TABLE))
		flip(step->sums_bytes, step->sums.head.pages_off);
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, NULL, &h->err);
	shf_step_put(step);
	if (rc == 0) {
		char why[300];

		if (hand_wrong(h, why, sizeof(why)) && h->play->wrong++ == 0)
			snprintf(h->play->why, sizeof(h->play->why), "rank %d: %.280s", h->rank,
			         why);
	}
	return rc;
}

static int load(struct play *p)
{
	return hands_run(p, load_act, false);
}

/* Verifies the step in a new process. */
static int verify(struct simdisk *disk, struct sheaf_error *err)
{
	const struct shf_sys *sys = simdisk_process(disk, 7777, 9);
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "run/checkpoint-7", NULL, NULL, sys, err);

	if (rc == 0)
		rc = shf_step_verify(step, NULL, err);
	shf_step_put(step);
	simdisk_kill(disk, sys);
	return rc;
}

/* ---- one flight ---- */

static struct {                 /* kept between flights */
	struct simdisk *base, *disk;
	int looks;
	bool counted;
	uint64_t moments[2][4][LAYOUTS][HARM_DEEDS];    /* in saves and loads without a deed */
} kept;

struct flight {
	bool load;
	int nodes, layout;
	enum harm_deed deed;
	uint64_t moment, moments;
};

static struct play play_of(struct simdisk *disk, const struct flight *f)
{
	struct play p = hands_play(disk, RANKS, held);

	p.opts.file_bytes_max = 9000;   /* one file, and so one reader, for each tensor */
	p.nodes = f->nodes ? nodes_of[f->nodes] : NULL;
	p.variant = f->layout;
	if (f->load)
		p.opts.flags = SHEAF_RUN_READONLY;
	return p;
}

static struct simdisk *disk_of(const struct flight *f)
{
	struct play p;

	if (!f->load)
		return disk_new();
	if (!kept.base) {
		kept.base = disk_new();
		p = play_of(kept.base, &(struct flight){ .nodes = 0 });
		if (hands_save(&p) < 0)
			abort();
		simdisk_settle(kept.base);
	}
	if (kept.looks++ % KEPT == 0) {
		simdisk_free(kept.disk);
		kept.disk = simdisk_crash(kept.base, 0, NULL);
	}
	return kept.disk;
}

static int fly(struct play *p, const struct flight *f)
{
	int rc;

	memset(evil.seen, 0, sizeof(evil.seen));
	evil.deed = f->deed;
	evil.moment = f->moment;
	evil.fired = 0;
	p->tamper = tamper;
	rc = f->load ? load(p) : hands_save(p);
	p->tamper = NULL;
	evil.images = 0;
	evil.moment = 0;
	return rc;
}

/* Counts the moments of each deed in flights without a deed. */
static void count_moments(void)
{
	for (int load = 0; load < 2; load++)
		for (int nodes = 0; nodes < 4; nodes++)
			for (int layout = 0; layout < LAYOUTS; layout++) {
				struct flight f = { .load = load, .nodes = nodes,
					.layout = layout };
				struct simdisk *disk = disk_of(&f);
				struct play p = play_of(disk, &f);

				if (fly(&p, &f) != 0 || p.wrong)
					abort();
				memcpy(kept.moments[load][nodes][layout], evil.seen,
				       sizeof(evil.seen));
				if (!load)
					simdisk_free(disk);
			}
	kept.counted = true;
}

void harm_flights_end(void)
{
	simdisk_free(kept.base);
	simdisk_free(kept.disk);
	memset(&kept, 0, sizeof(kept));
}

/* Returns whether the deed may cause this code. A changed bit in a short text that names a run, a
 * lock or a token makes another name. */
static bool may_be(const struct flight *f, int rc)
{
	return rc == SHEAF_ECORRUPT ||
	       (f->deed == HARM_DISK && (rc == SHEAF_EINVAL || rc == SHEAF_ELOST ||
	                                 rc == SHEAF_EFORMAT));
}

/* Checks a save: all ranks refuse it, or what is on disk is right or the error is found, by a load
 * as by verify. */
static void judge_save(struct harm_flights *all, struct simdisk *disk, const struct flight *f,
                       int rc, const struct play *p, char why[700])
{
	struct flight g = { .load = true, .nodes = (f->nodes + 1) % 4,
		.layout = (f->layout + 1) % LAYOUTS };
	struct sheaf_error err = { 0 };
	struct play q = play_of(disk, &g);
	int loaded, verified;

	if (rc < 0) {
		all->refused++;
		if (!may_be(f, rc))
			snprintf(why, 700, "save: %d %.400s", rc, p->err.msg);
		return;
	}
	if (rc > 0) {
		snprintf(why, 700, "save: ranks differ (%d): %.400s", rc, p->err.msg);
		return;
	}
	loaded = load(&q);
	verified = verify(disk, &err);
	all->found += loaded == SHEAF_ECORRUPT || verified == SHEAF_ECORRUPT;
	all->harmless += loaded == 0 && verified == 0;
	all->wrong += loaded == 0 && q.wrong;
	if (loaded == 0 && q.wrong)
		snprintf(why, 700, "loaded %.400s", q.why);
	else if (loaded != 0 && loaded != SHEAF_ECORRUPT)
		snprintf(why, 700, "load: %d %.400s", loaded, q.err.msg);
	else if (verified != 0 && verified != SHEAF_ECORRUPT)
		snprintf(why, 700, "verify: %d %.400s", verified, err.msg);
	else if (loaded != 0 && verified == 0)
		snprintf(why, 700, "verify finds nothing, load: %.400s", q.err.msg);
}

static void judge_load(struct harm_flights *all, const struct flight *f, int rc,
                       const struct play *p, char why[700])
{
	all->refused += rc < 0;
	all->harmless += rc == 0 && !p->wrong;
	all->wrong += rc == 0 && p->wrong;
	if (rc == 0 && p->wrong)
		snprintf(why, 700, "loaded %.400s", p->why);
	else if (rc != 0 && !may_be(f, rc))
		snprintf(why, 700, "load: %d %.400s", rc, p->err.msg);
}

const char *harm_deed_name(int deed)
{
	return deed_names[deed];
}

const char *harm_flight(struct harm_flights *all, uint64_t seed, uint64_t n, char why[900])
{
	struct flight f = { 0 };
	struct simdisk *disk;
	struct play p;
	char what[700] = "";
	int rc;

	if (!kept.counted)
		count_moments();
	evil.draw = seed + n * UINT64_C(0x2545f4914f6cdd1d);
	f.load = rng_next(&evil.draw) % 2;
	f.nodes = (int)(rng_next(&evil.draw) % 4);
	f.layout = (int)(rng_next(&evil.draw) % LAYOUTS);
	f.deed = (enum harm_deed)(rng_next(&evil.draw) % HARM_DEEDS);
	f.moments = kept.moments[f.load][f.nodes][f.layout][f.deed];
	why[0] = '\0';
	all->tried++;
	if (f.moments == 0)
		return why;
	f.moment = 1 + rng_next(&evil.draw) % f.moments;
	disk = disk_of(&f);
	p = play_of(disk, &f);
	rc = fly(&p, &f);
	all->fired += evil.fired > 0;
	all->by[f.deed] += evil.fired > 0;
	if (f.load)
		judge_load(all, &f, rc, &p, what);
	else
		judge_save(all, disk, &f, rc, &p, what);
	if (!f.load)
		simdisk_free(disk);
	if (what[0])
		snprintf(why, 900, "%s, %s at moment %llu of %llu, nodes %d, layout %d: %s",
		         f.load ? "load" : "save", deed_names[f.deed],
		         (unsigned long long)f.moment, (unsigned long long)f.moments, f.nodes,
		         f.layout, what);
	return why;
}
