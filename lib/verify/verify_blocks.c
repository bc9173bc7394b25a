/* SPDX-License-Identifier: Apache-2.0 */
/* Every byte, once. Blocks are numbered over all files by the sizes that the manifest names, so
 * that ranks need not agree on what they find, and cut into equal shares. A share is read in
 * chunks, in order, several under way while one is summed; what the page cache did not have it is
 * left without, so that looking at a step does not push out what somebody else works with.
 *
 * What is always true: only the bytes of blocks whose sum is right stay in a tensor's digest. A
 * digest is compared when all of its bytes did, so one damage is one finding.
 */
#include "verify_blocks.h"
#include <errno.h>
#include <inttypes.h>
#include "crc64.h"
#include "err.h"
#include "run_env.h"
#include "run_io.h"
#include "step.h"
#include "step_files.h"
#include "verify.h"
#include "verify_files.h"
#include "verify_find.h"

#define READ_TRIES 4

struct chunk {                  /* within one file, from the start of a block */
	uint32_t file;
	uint64_t off, len;
};
struct walk {
	uint64_t at, end;               /* blocks of all files */
	uint32_t file;                  /* no later than that of `at` */
	bool tried;                     /* to open it past the cache */
};
struct slot {
	struct shf_io_owner io;
	struct shf_io req;
	struct chunk c;
	uint8_t *buf;                   /* in one of the verify's chunks */
	bool full;                      /* holds a chunk that was submitted */
	bool elsewhere;                 /* which is the sink's */
	bool cold;                      /* little of it was in the page cache */
};

static void read_done(struct shf_io_owner *owner, struct shf_io *io)
{
	(void)owner; /* the request keeps its result */
	(void)io;
}

uint64_t shf_verify_record(const struct shf_verify *v, uint32_t f, uint64_t at)
{
	struct shf_sums_file sf = shf_sums_file(&v->step->sums, f);
	uint64_t lo = sf.first_tensor, hi = lo + sf.tensors_n;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;
		struct shf_sums_tensor t = shf_sums_tensor(&v->step->sums, mid);

		if (t.off + t.bytes <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The tensor that is not what it was, as well as the block alone can tell, or UINT64_MAX: one that
 * lies in it whole is known by its digest, then the header by what it says, then what reaches out
 * of it. */
static uint64_t suspect(const struct shf_verify *v, uint32_t f, uint64_t lo, const uint8_t *p,
                        uint64_t n)
{
	struct shf_sums_file sf = shf_sums_file(&v->step->sums, f);
	uint64_t end = sf.first_tensor + sf.tensors_n, part = UINT64_MAX;
	struct shf_verify_at at;

	for (uint64_t i = shf_verify_record(v, f, lo); i < end; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(&v->step->sums, i);

		if (t.off >= lo + n)
			break;
		if (t.off < lo || t.off + t.bytes > lo + n)
			part = part == UINT64_MAX ? i : part;
		else if (shf_crc64_raw(0, p + (t.off - lo), (size_t)t.bytes) != t.digest)
			return i;
	}
	if (lo < sf.header_bytes && (lo > 0 || sf.header_bytes > n ||
	                             shf_verify_header(v, f, p, sf.header_bytes, &at, NULL) < 0))
		return UINT64_MAX;
	return part;
}

static void bad_block(struct shf_verify *v, uint32_t f, uint64_t lo, const uint8_t *p, uint64_t n,
                      uint64_t got, uint64_t want)
{
	struct shf_verify_at at = SHF_AT_FILE(v->step->layout.files[f].name);
	uint64_t i = suspect(v, f, lo, p, n);
	struct sheaf_error e;

	at.block = (int64_t)(lo / SHF_BLOCK);
	at.offset = (int64_t)lo;
	if (i != UINT64_MAX) {
		struct shf_sums_tensor t = shf_sums_tensor(&v->step->sums, i);

		at.family = shf_sums_family(&v->step->sums, &t);
		at.name = shf_sums_name(&v->step->sums, &t);
	}
	shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: block %" PRIu64 " at byte %" PRIu64
	         " has checksum %016" PRIx64 ", want %016" PRIx64 " (%s%s%.140s)", v->step->path,
	         at.file, lo / SHF_BLOCK, lo, got, want, at.name ? at.family : "header",
	         at.name ? "/" : "", at.name ? at.name : "");
	shf_verify_find(v, "checksum", &at, &e);
}

/* Below it, a run is summed twice while it is in the nearest cache: cheaper than a shift. */
#define SHORT_RUN 128

/* The sum of a block, and its bytes into the digests of the tensors it is part of, by one look at
 * each: what lies between two bounds counts in both. way 1; -1: out of the digests again. */
static uint64_t sum_block(struct shf_verify *v, uint32_t f, uint64_t lo, const uint8_t *p,
                          uint64_t n, uint64_t way)
{
	const struct shf_sums *s = &v->step->sums;
	struct shf_sums_file sf = shf_sums_file(s, f);
	uint64_t end = sf.first_tensor + sf.tensors_n, hi = lo + n, at = lo, raw = 0;

	for (uint64_t i = shf_verify_record(v, f, lo); i < end && at < hi; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(s, i);
		uint64_t k, sum;

		if (t.off >= hi)
			break;
		if (t.bytes == 0)
			continue;
		if (t.off > at) { /* the header */
			raw = shf_crc64_raw(raw, p + (at - lo), (size_t)(t.off - at));
			at = t.off;
		}
		k = (t.off + t.bytes < hi ? t.off + t.bytes : hi) - at;
		sum = shf_crc64_raw(0, p + (at - lo), (size_t)k);
		if (k < SHORT_RUN)
			raw = shf_crc64_raw(raw, p + (at - lo), (size_t)k);
		else
			raw = shf_crc64_shift(raw, k) ^ sum;
		at += k;
		v->got[i] ^= shf_crc64_shift(sum, t.off + t.bytes - at);
		v->got_bytes[i] += way * k;
	}
	raw = shf_crc64_raw(raw, p + (at - lo), (size_t)(hi - at));
	return raw ^ (n == SHF_BLOCK ? v->block_ones : shf_crc64_ones(n));
}

/* The sink has what was looked at, or is told that it is not what it should be. */
static void tell_sink(struct shf_verify *v, const struct slot *s, bool good)
{
	struct sheaf_error e;
	int rc = 0;

	if (s->elsewhere && !good)
		v->sink->refuse(v->sink, s->c.file);
	if (s->elsewhere || !good || v->over)
		return;
	rc = v->sink->put(v->sink, s->c.file, s->c.off, s->buf, s->c.len, &e);
	if (rc < 0)
		shf_verify_blind(v, rc, &e);
	v->over |= rc < 0;
}

static void check(struct shf_verify *v, const struct slot *s)
{
	const struct sheaf_step *step = v->step;
	const struct chunk *c = &s->c;
	const uint8_t *p = s->buf;
	bool good = true;

	if (step->sound && !v->sums)
		v->raw[c->file] ^= shf_crc64_shift(shf_crc64_raw(0, p, (size_t)c->len),
		                                   shf_verify_want(v, c->file) - c->off - c->len);
	for (uint64_t at = 0; v->sums && at < c->len; at += SHF_BLOCK) {
		uint64_t n = c->len - at < SHF_BLOCK ? c->len - at : SHF_BLOCK, lo = c->off + at;
		uint64_t block = shf_sums_file(&step->sums, c->file).first_block + lo / SHF_BLOCK;
		uint64_t want = shf_sums_block(&step->sums, block);
		uint64_t got = sum_block(v, c->file, lo, p + at, n, 1);

		if (got == want)
			continue;
		(void)sum_block(v, c->file, lo, p + at, n, UINT64_MAX);
		good = false;
		if (!s->elsewhere)
			bad_block(v, c->file, lo, p + at, n, got, want);
	}
	if (v->sink)
		tell_sink(v, s, good);
}

/* ---- chunks ---- */

/* What of file f can be read and compared: all that should be there, or the blocks that still
 * are. */
static uint64_t limit(const struct shf_verify *v, uint32_t f)
{
	uint64_t want = shf_verify_want(v, f);

	if (v->bytes[f] == SHF_GONE)
		return 0;
	/* Nothing proves the bytes of somebody else's file, and where its header says nothing of
	 * them either, they may be holes without an end. */
	if (!v->step->sound && v->step->layout.files[f].header_bytes == 0)
		return 0;
	return v->bytes[f] >= want ? want : v->bytes[f] / SHF_BLOCK * SHF_BLOCK;
}

static bool next_chunk(const struct shf_verify *v, struct walk *w, struct chunk *c)
{
	while (w->at < w->end && !v->over) {
		uint64_t off, last, stop;

		for (; v->first[w->file + 1] <= w->at; w->tried = false)
			w->file++;
		off = (w->at - v->first[w->file]) * SHF_BLOCK;
		last = limit(v, w->file);
		if (off >= last) {
			w->at = v->first[w->file + 1];
			continue;
		}
		stop = w->at + SHF_VERIFY_CHUNK / SHF_BLOCK;
		stop = stop < w->end ? stop : w->end;
		stop = stop < v->first[w->file + 1] ? stop : v->first[w->file + 1];
		*c = (struct chunk){ w->file, off, (stop - w->at) * SHF_BLOCK };
		c->len = c->len < last - off ? c->len : last - off;
		w->at = stop;
		return true;
	}
	return false;
}

static void not_read(struct shf_verify *v, const struct slot *s, int code)
{
	const struct chunk *c = &s->c;
	struct sheaf_error e;
	int rc;

	if (s->elsewhere) {
		tell_sink(v, s, false);
		return;
	}
	rc = shf_submit_fail(&e, code, "%s/%s: reading %" PRIu64 " bytes at %" PRIu64,
	                     v->step->path, v->step->layout.files[c->file].name, c->len, c->off);
	shf_verify_blind(v, rc, &e);
	v->over |= v->sink != NULL;
}

/* The file once more, past the cache, where it is worth it and not refused. Its failure is nobody's
 * finding: the other descriptor has its own. */
static void direct_open(struct shf_verify *v, const struct chunk *c)
{
	const struct shf_sys *sys = v->step->run->sys;
	const char *base;
	int dir, fd;

	if (c->len < SHF_VERIFY_CHUNK || (v->sink && v->sink->from(v->sink, c->file) >= 0))
		return;
	dir = shf_verify_enter(v, v->step->layout.files[c->file].name, &base);
	fd = dir < 0 ? dir : sys->ops->open(sys->arg, dir, base,
	                                    SHF_O_DIRECT | shf_verify_follow(v), 0);
	shf_verify_leave(v, dir);
	v->direct[c->file] = fd > 0 ? fd : 0;
}

/* Those of the files before `end`: chunks come in order, so nothing of them is under way. */
static void direct_close(struct shf_verify *v, uint32_t *from, uint32_t end)
{
	const struct shf_sys *sys = v->step->run->sys;

	for (; *from < end; ++*from)
		if (v->direct[*from] > 0)
			sys->ops->close(sys->arg, v->direct[*from]);
}

static int submit(struct shf_verify *v, int fd, struct slot *s)
{
	const struct shf_sys *sys = v->step->run->sys;
	int64_t here = sys->ops->resident(sys->arg, fd, s->c.off, s->c.len);

	s->req = (struct shf_io){ .op = SHF_IO_READ, .fd = fd, .buf = s->buf,
		.len = (size_t)s->c.len, .off = s->c.off };
	s->cold = here < 0 || (uint64_t)here < s->c.len / 2;
	if (s->cold && shf_trial_past(&v->trial))
		s->req.direct = v->direct[s->c.file];
	return shf_io_submit(v->step->run, &s->io, &s->req);
}

/* The next chunk under way, if there is one. */
static void start(struct shf_verify *v, struct walk *w, struct slot *s)
{
	struct sheaf_error e;

	s->full = false;
	while (!s->full && next_chunk(v, w, &s->c)) {
		int fd = v->sink ? v->sink->from(v->sink, s->c.file) : -1, rc;

		s->elsewhere = fd >= 0;
		if (fd < 0)
			fd = shf_step_fd(v->step, s->c.file, &e);
		if (fd < 0) {
			shf_verify_blind(v, fd, &e);
			continue;
		}
		if (!w->tried)
			direct_open(v, &s->c);
		w->tried = true;
		rc = submit(v, fd, s);
		if (rc < 0)
			not_read(v, s, rc);
		s->full = rc >= 0;
	}
}

/* Until it is read, or will not be. */
static void finish(struct shf_verify *v, struct slot *s)
{
	struct sheaf_run *run = v->step->run;
	int rc = shf_io_drain(run, &s->io, -1);
	uint64_t n;

	if (s->cold)
		shf_trial_done(&v->trial, shf_now(run));
	if (s->cold && !s->req.direct)
		run->sys->ops->forget(run->sys->arg, s->req.fd, s->c.off, s->c.len);
	for (int tries = 1; rc == 0 && s->req.result == -EIO && tries < READ_TRIES; tries++) {
		v->retries++;
		if (shf_io_submit(run, &s->io, &s->req) < 0)
			break;
		rc = shf_io_drain(run, &s->io, -1);
	}
	if (rc < 0 || s->req.result < 0) {
		not_read(v, s, rc < 0 ? -EIO : (int)s->req.result);
		return;
	}
	n = (uint64_t)s->req.result;
	v->disk_bytes += n;
	if (n < s->c.len && s->elsewhere) {
		tell_sink(v, s, false);
		return;
	}
	if (n < s->c.len) { /* it had them a moment ago */
		struct shf_verify_at at = SHF_AT_FILE(v->step->layout.files[s->c.file].name);
		struct sheaf_error e;

		at.offset = (int64_t)(s->c.off + n);
		shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: ends at byte %" PRIu64, v->step->path, at.file,
		         s->c.off + n);
		shf_verify_find(v, "truncated", &at, &e);
		s->c.len = n / SHF_BLOCK * SHF_BLOCK;
	}
	check(v, s);
}

static void tell_progress(const struct shf_verify *v, uint64_t blocks)
{
	const struct sheaf_opts *o = &v->step->run->opts;
	struct sheaf_stat stat = { .size = sizeof(stat), .phase = 5, .held = blocks * SHF_BLOCK,
		.copied = v->disk_bytes };

	if (o->progress)
		o->progress(o->arg, &stat);
}

/* As many under way as there are chunks, or memory for them: one was there from the beginning. */
static int fill_slots(struct shf_verify *v, struct walk *w, struct slot *slots)
{
	int n = 0;

	do {
		struct slot *s = &slots[n];

		if (!v->chunk[n])
			v->chunk[n] = shf_alloc(v->chunk_bytes + SHF_ALIGN, 1);
		if (!v->chunk[n])
			break;
		s->io.done = read_done;
		s->buf = v->chunk[n] + (SHF_ALIGN - (uintptr_t)v->chunk[n] % SHF_ALIGN);
		start(v, w, s);
	} while (slots[n++].full && n < SHF_VERIFY_CHUNKS);
	return n;
}

void shf_verify_data(struct shf_verify *v)
{
	const struct shf_team *team = &v->step->run->team;
	uint64_t all = v->first[v->step->layout.files_n], ranks = (uint64_t)team->ranks;
	uint64_t rank = (uint64_t)team->rank, more = all % ranks;
	struct walk w = { .at = all / ranks * rank + (rank < more ? rank : more) };
	struct slot slots[SHF_VERIFY_CHUNKS] = { 0 };
	uint64_t blocks = all / ranks + (rank < more);
	uint32_t closed = 0;
	int n;

	w.end = w.at + blocks;
	v->trial.turn = 2 * SHF_VERIFY_CHUNKS;
	n = fill_slots(v, &w, slots);
	for (int i = 0; slots[i].full; i = (i + 1) % n) {
		direct_close(v, &closed, slots[i].c.file);
		finish(v, &slots[i]);
		tell_progress(v, blocks);
		start(v, &w, &slots[i]);
	}
	direct_close(v, &closed, (uint32_t)v->step->layout.files_n);
}
