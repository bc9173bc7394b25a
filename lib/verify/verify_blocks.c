/* SPDX-License-Identifier: Apache-2.0 */
/* Reads every byte of the tensor files once. Blocks are numbered over all files by the sizes in the
 * manifest, so that the ranks need not agree on what is on disk. They are dealt in one contiguous
 * share per rank. A share is read in chunks, in order: while one chunk is summed, the others are in
 * flight. Bytes that were not in the page cache before are dropped from it after reading, so that a
 * verification does not evict other processes' data.
 *
 * Invariant: a tensor's digest includes only bytes of blocks whose sum is right. A digest is
 * compared only if all bytes of the tensor are included, so one damage gives one finding. */
#include "verify_blocks.h"
#include <inttypes.h>
#include <stdio.h>
#include "crc64.h"
#include "err.h"
#include "name_in_step.h"
#include "run_env.h"
#include "run_io.h"
#include "sheaf-inspect.h"
#include "sheaf-stat.h"
#include "step.h"
#include "step_blocks.h"
#include "step_files.h"
#include "verify.h"
#include "verify_files.h"
#include "verify_findings.h"

struct chunk {                  /* bytes of one file, from the start of a block */
	uint32_t file;
	uint64_t off, len;
};
struct walk {                   /* the walk over this rank's share of all blocks */
	struct shf_verify *v;
	struct shf_read_ring ring;
	uint64_t at, end;               /* next block and end of the share; blocks are counted
	                                 * over all files */
	uint32_t file;                  /* file that block `at` lies in, or an earlier one */
	uint32_t closed;                /* direct descriptors of the files before this one are
	                                 * closed */
	bool tried;                     /* direct I/O for `file` was tried */
};

/* Finds the record of the tensor that is damaged in a block with a wrong sum, or UINT64_MAX if the
 * header is damaged. A tensor that lies within the block is checked by its digest, then a header
 * that lies within it by parsing it. If both are right, the tensor that extends beyond the block is
 * suspected. */
static uint64_t find_suspect(const struct shf_verify *v, uint32_t f, uint64_t lo, const uint8_t *p,
                             uint64_t n)
{
	uint64_t header = shf_sums_file(&v->step->sums, f).header_bytes, part;
	uint64_t i = shf_block_suspect(v->step, f, lo, p, n, &part);
	struct shf_verify_at at;

	if (i == UINT64_MAX && (lo >= header ||
	                        (lo == 0 && header <= n &&
	                         shf_verify_header(v, f, p, header, &at, NULL) == 0)))
		i = part;
	return i;
}

/* Reports a block with a wrong sum, and the tensor that is suspected. */
static void find_bad_block(struct shf_verify *v, uint32_t f, uint64_t lo, const uint8_t *p,
                           uint64_t n, uint64_t got, uint64_t want)
{
	struct shf_verify_at at = SHF_AT_FILE(v->step->layout.files[f].name);
	uint64_t i = find_suspect(v, f, lo, p, n);
	struct sheaf_error e;
	char who[256] = "header";

	at.block = (int64_t)(lo / SHF_BLOCK);
	at.offset = (int64_t)lo;
	if (i != UINT64_MAX) {
		struct shf_sums_tensor t = shf_sums_tensor(&v->step->sums, i);

		at.family = shf_sums_family(&v->step->sums, &t);
		at.name = shf_sums_name(&v->step->sums, &t);
		snprintf(who, sizeof(who), "%s/%.140s", at.family, at.name);
	}
	shf_block_fail(v->step, f, lo / SHF_BLOCK, got, want, who, &e);
	shf_verify_find(v, SHEAF_FINDING_CHECKSUM, &at, &e);
}

/* A run shorter than this is summed twice, while it is in the L1 cache, which is cheaper than
 * shifting its sum. */
#define SHORT_RUN 128

/* Returns the sum of a block, and adds its bytes to the digests of the tensors in it. Each byte is
 * summed once: the sum of a run of bytes goes to the tensor and, shifted, to the block. way 1 adds.
 * way -1 (UINT64_MAX) removes the same bytes again if the block turned out to be wrong; sums are
 * combined by XOR, so adding one a second time removes it. */
static uint64_t sum_block(struct shf_verify *v, uint32_t f, uint64_t lo, const uint8_t *p,
                          uint64_t n, uint64_t way)
{
	const struct shf_sums *s = &v->step->sums;
	struct shf_sums_file sf = shf_sums_file(s, f);
	uint64_t end = sf.first_tensor + sf.tensors_n, hi = lo + n, at = lo, raw = 0;

	for (uint64_t i = shf_step_record(v->step, f, lo); i < end && at < hi; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(s, i);
		uint64_t k, sum;

		if (t.off >= hi)
			break;
		if (t.bytes == 0)
			continue;
		if (t.off > at) { /* the header or padding */
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

/* Whether the read was of the sink's file, not of the step's own. */
static bool is_elsewhere(const struct shf_read *r)
{
	return r->of != NULL;
}

/* Passes a chunk to the sink if it was read from the step and is good. If it was read from the
 * sink's own file and is bad, calls refuse() instead. */
static void pass_to_sink(struct shf_verify *v, const struct shf_read *r, uint64_t n, bool good)
{
	struct sheaf_error e;
	int rc;

	if (is_elsewhere(r) && !good)
		v->sink->refuse(v->sink, r->file);
	if (is_elsewhere(r) || !good || v->over)
		return;
	rc = v->sink->put(v->sink, r->file, r->req.off, r->buf, n, &e);
	if (rc < 0)
		shf_verify_blind(v, rc, &e);
	v->over |= rc < 0;
}

/* Checks the sums of the blocks in a chunk, and reports those that are wrong. */
static void check_chunk(struct shf_verify *v, const struct shf_read *r, uint64_t bytes)
{
	const struct sheaf_checkpoint *step = v->step;
	const uint8_t *p = r->buf;
	bool good = true;

	/* Without a table, adds the bytes to the sum of the whole file, which match_raw() compares,
	 * shifted by the number of bytes that follow in the file. */
	if (step->sound && !v->sums)
		v->raw[r->file] ^= shf_crc64_shift(shf_crc64_raw(0, p, (size_t)bytes),
		                                   shf_verify_want(v, r->file) - r->req.off -
		                                           bytes);
	for (uint64_t at = 0; v->sums && at < bytes; at += SHF_BLOCK) {
		uint64_t n = bytes - at < SHF_BLOCK ? bytes - at : SHF_BLOCK, lo = r->req.off + at;
		uint64_t block = shf_sums_file(&step->sums, r->file).first_block + lo / SHF_BLOCK;
		uint64_t want = shf_sums_block(&step->sums, block);
		uint64_t got = sum_block(v, r->file, lo, p + at, n, 1);

		if (got == want)
			continue;
		/* Removes the bytes of the bad block from the digests. */
		(void)sum_block(v, r->file, lo, p + at, n, UINT64_MAX);
		good = false;
		if (!is_elsewhere(r))
			find_bad_block(v, r->file, lo, p + at, n, got, want);
	}
	if (v->sink)
		pass_to_sink(v, r, bytes, good);
}

/* ---- chunks ---- */

/* Returns how many bytes of file f are read and checked. If the file is too short, only its
 * complete blocks are: its length was reported already, and the partial block would be a second
 * finding for the same damage. */
static uint64_t limit(const struct shf_verify *v, uint32_t f)
{
	uint64_t want = shf_verify_want(v, f);

	if (v->bytes[f] == SHF_GONE)
		return 0;
	/* A foreign file has no sums. If its header is not valid either, there is nothing to check,
	 * and the file may be an endless sparse one. */
	if (!v->step->sound && v->step->layout.files[f].header_bytes == 0)
		return 0;
	return v->bytes[f] >= want ? want : v->bytes[f] / SHF_BLOCK * SHF_BLOCK;
}

/* Cuts the next chunk from the share: up to SHF_VERIFY_CHUNK bytes of one file, from the start of a
 * block. false: the share is done, or the sink gets no more bytes. */
static bool next_chunk(struct walk *w, struct chunk *c)
{
	const struct shf_verify *v = w->v;

	while (w->at < w->end && !v->over) {
		uint64_t off, last, stop;

		/* Moves to the file that block `at` lies in; empty files are skipped. */
		for (; v->first[w->file + 1] <= w->at; w->tried = false)
			w->file++;
		off = (w->at - v->first[w->file]) * SHF_BLOCK;
		last = limit(v, w->file);
		/* The rest of this file is missing or is not to be read: goes on with the next
		 * file. */
		if (off >= last) {
			w->at = v->first[w->file + 1];
			continue;
		}
		/* The chunk ends with the share, with the file, or at its full length, whichever
		 * comes first. */
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

/* A chunk that could not be read proves nothing about the step, so it is recorded as blind, not as
 * a finding. With a sink, it stops the copy. */
static void not_read(struct shf_verify *v, const struct shf_read *r, int code)
{
	struct sheaf_error e;
	int rc;

	if (is_elsewhere(r)) {
		pass_to_sink(v, r, 0, false);
		return;
	}
	rc = shf_submit_fail(&e, code, "%s/%s: reading %zu bytes at %" PRIu64, v->step->path,
	                     v->step->layout.files[r->file].name, r->req.len, r->req.off);
	shf_verify_blind(v, rc, &e);
	v->over |= v->sink != NULL;
}

/* Opens the file a second time for direct I/O, if its chunks are large. If the file system refuses
 * that, the file is read through the page cache. */
static void direct_open(struct shf_verify *v, const struct chunk *c)
{
	int fd;

	if (c->len < SHF_VERIFY_CHUNK || (v->sink && v->sink->from(v->sink, c->file) >= 0))
		return;
	fd = shf_in_step_open(v->step->run->sys, v->step->dir, v->step->layout.files[c->file].name,
	                      SHF_O_DIRECT | shf_verify_follow(v));
	v->direct[c->file] = fd > 0 ? fd : 0;
}

/* Closes the direct descriptors of the files before `end`. Chunks are read in the order of the
 * files, so no read of those files is in flight. Without this, a step of thousands of files would
 * run out of descriptors. */
static void direct_close(struct walk *w, uint32_t end)
{
	const struct shf_sys *sys = w->v->step->run->sys;

	for (; w->closed < end; w->closed++)
		if (w->v->direct[w->closed] > 0)
			shf_sys_close(sys, w->v->direct[w->closed]);
}

/* Callback of the ring: fills in the next read. Returns 1, or 0 at the end of the share. A chunk of
 * which the page cache has at least half is read through the cache, because the disk would be
 * slower. */
static int describe_chunk(void *arg, struct shf_read *r, struct sheaf_error *err)
{
	struct walk *w = arg;
	struct shf_verify *v = w->v;
	const struct shf_sys *sys = v->step->run->sys;
	struct sheaf_error e;
	struct chunk c;

	(void)err;
	while (next_chunk(w, &c)) {
		int fd = v->sink ? v->sink->from(v->sink, c.file) : -1;
		int64_t here;

		r->of = fd >= 0 ? v->sink : NULL;
		if (fd < 0)
			fd = shf_step_fd(v->step, c.file, &e);
		if (fd < 0) {
			shf_verify_blind(v, fd, &e);
			continue;
		}
		if (!w->tried)
			direct_open(v, &c);
		w->tried = true;
		here = shf_sys_resident(sys, fd, c.off, c.len);
		/* Only reads from the disk are timed for the trial of direct against buffered
		 * reads. */
		r->file = c.file;
		r->timed = here < 0 || (uint64_t)here < c.len / 2;
		r->req = (struct shf_io){ .fd = fd, .buf = r->buf, .len = (size_t)c.len,
			.off = c.off };
		if (r->timed && shf_read_trial_direct(&w->ring.trial))
			r->req.direct = v->direct[c.file];
		return 1;
	}
	return 0;
}

/* Callback of the ring: checks a chunk that was read. */
static int take_chunk(void *arg, struct shf_read *r, int64_t got, struct sheaf_error *err)
{
	struct walk *w = arg;
	struct shf_verify *v = w->v;
	const struct shf_sys *sys = v->step->run->sys;
	struct shf_verify_at at = SHF_AT_FILE(v->step->layout.files[r->file].name);
	uint64_t n = (uint64_t)got;
	struct sheaf_error e;

	(void)err;
	direct_close(w, r->file);
	/* Bytes that this read brought into the page cache are dropped from it. Bytes that were
	 * cached before may be in use. */
	if (r->timed && !r->req.direct)
		shf_sys_forget(sys, r->req.fd, r->req.off, r->req.len);
	if (got < 0) {
		not_read(v, r, (int)got);
		return 0;
	}
	v->disk_bytes += n;
	if (n < r->req.len && is_elsewhere(r)) {
		pass_to_sink(v, r, 0, false);
		return 0;
	}
	if (n < r->req.len) { /* the file has become shorter during the verification */
		at.offset = (int64_t)(r->req.off + n);
		(void)shf_step_file_got(v->step, r->file, r->req.off, r->req.len, got, &e);
		shf_verify_find(v, SHEAF_FINDING_TRUNCATED, &at, &e);
		n = n / SHF_BLOCK * SHF_BLOCK;
	}
	check_chunk(v, r, n);
	return 0;
}

/* Reports the progress of this rank to the caller's progress function. blocks: size of its share.
 * Returns false if that ends the verification. */
static bool report_progress(struct shf_verify *v, uint64_t blocks)
{
	struct sheaf_stat stat = { .size = sizeof(stat), .phase = SHEAF_PHASE_VERIFYING,
	                           .held = blocks * SHF_BLOCK,
		.copied = v->disk_bytes };

	struct sheaf_error e;

	if (shf_run_reports(v->step->run, &stat))
		return true;
	shf_verify_blind(v, shf_fail(&e, SHEAF_EFAILED, "%s: opts.progress ended the verification",
	                             v->step->path), &e);
	return false;
}

/* Allocates a buffer for each chunk that can be in flight, and returns their number. If memory runs
 * out, fewer will do: chunk[0] was allocated by verify_setup(). */
static uint64_t make_buffers(const struct walk *walk, struct shf_read *reads)
{
	struct walk w = *walk;          /* a copy, advanced only to count the chunks */
	struct shf_verify *v = w.v;
	struct chunk c;
	uint64_t n = 0;

	for (; n < SHF_VERIFY_CHUNKS && next_chunk(&w, &c); n++) {
		if (!v->chunk[n])
			v->chunk[n] = shf_alloc(v->chunk_bytes + SHF_ALIGN, 1);
		if (!v->chunk[n])
			break;
		reads[n].buf = v->chunk[n] + (SHF_ALIGN - (uintptr_t)v->chunk[n] % SHF_ALIGN);
	}
	return n;
}

/* The sizes of the shares differ by at most a block. The ring tries whether direct or buffered
 * reads are faster (direct_reads.h). */
void shf_verify_data(struct shf_verify *v)
{
	const struct shf_team *team = &v->step->run->team;
	uint64_t all = v->first[v->step->layout.files_n], ranks = (uint64_t)team->ranks;
	uint64_t rank = (uint64_t)team->rank, more = all % ranks;
	uint64_t blocks = all / ranks + (rank < more);
	struct shf_read reads[SHF_VERIFY_CHUNKS] = { 0 };
	struct walk w = { .v = v, .at = all / ranks * rank + (rank < more ? rank : more),
		.ring = { .run = v->step->run, .reads = reads, .next = describe_chunk,
		          .took = take_chunk, .arg = &w } };

	w.end = w.at + blocks;
	w.ring.n = make_buffers(&w, reads);
	w.ring.trial.turn = UINT64_C(2) * SHF_VERIFY_CHUNKS;
	while (shf_read_ring_turn(&w.ring, NULL) > 0 && report_progress(v, blocks))
		;
	shf_read_ring_drop(&w.ring);
	v->retries += w.ring.retries;
	direct_close(&w, (uint32_t)v->step->layout.files_n);
}
