/* SPDX-License-Identifier: Apache-2.0 */
/* Checks bytes of a step against its sums, block by block, and reads the headers of its files. This
 * is the only place that compares a block with the table and words the error. Loads stop at the
 * first bad block. A verification sums blocks in its own pass and reports all bad ones, with the
 * same message. */
#include "step_blocks.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "safetensors.h"
#include "state.h"
#include "step.h"
#include "step_files.h"

/* Writes the name of the tensor that lies at byte `at` of file f, or "header" if no tensor does or
 * the catalog is not built yet. */
static void name_tensor_at(const struct sheaf_checkpoint *step, uint32_t f, uint64_t at, char *text,
                           size_t n)
{
	const struct shf_layout *l = &step->layout;
	uint32_t i = l->by_place ? shf_layout_at(l, f, at) : 0;

	snprintf(text, n, "header");
	if (l->by_place && i < l->files[f].first_tensor + l->files[f].tensors_n) {
		const struct shf_lt_tensor *t = &l->tensors[l->by_place[i]];

		if (t->off <= at)
			snprintf(text, n, "%s/%s", l->families[t->family].name, t->name);
	}
}

int shf_block_fail(const struct sheaf_checkpoint *step, uint32_t f, uint64_t block, uint64_t got,
                   uint64_t want, const char *who, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: block %" PRIu64 " at byte %" PRIu64
	                " has checksum %016" PRIx64 ", want %016" PRIx64 " (%s)", step->path,
	                step->layout.files[f].name, block, block * SHF_BLOCK, got, want, who);
}

/* Returns the sum that a block should have. The table was checked when the step was opened, but it
 * may lie in memory that has changed since. A record that would now lead outside the table makes
 * the block wrong, whatever its sum is. */
static uint64_t block_want(const struct sheaf_checkpoint *step, uint32_t f, uint64_t block,
                           uint64_t got)
{
	uint64_t first = shf_sums_file(&step->sums, f).first_block, n = step->sums.head.blocks_n;

	return first < n && block < n - first ? shf_sums_block(&step->sums, first + block) : ~got;
}

int shf_block_check(const struct sheaf_checkpoint *step, uint32_t f, uint64_t block, uint64_t got,
                    struct sheaf_error *err)
{
	uint64_t want = block_want(step, f, block, got);
	char who[256];

	if (got == want)
		return 0;
	name_tensor_at(step, f, block * SHF_BLOCK, who, sizeof(who));
	return shf_block_fail(step, f, block, got, want, who, err);
}

/* Finds the record by binary search. Records beyond the end of the table are never looked at,
 * whatever the file's record says. */
uint64_t shf_step_record(const struct sheaf_checkpoint *step, uint32_t f, uint64_t at)
{
	struct shf_sums_file sf = shf_sums_file(&step->sums, f);
	uint64_t lo = sf.first_tensor, hi = lo + sf.tensors_n;

	hi = hi < step->sums.head.tensors_n ? hi : step->sums.head.tensors_n;
	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;
		struct shf_sums_tensor t = shf_sums_tensor(&step->sums, mid);

		if (t.off + t.bytes <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The table is trusted no more than the block, because it may be the table that has changed: every
 * offset of a record is checked before it is used. */
uint64_t shf_block_suspect(const struct sheaf_checkpoint *step, uint32_t f, uint64_t lo,
                           const uint8_t *bytes, uint64_t n, uint64_t *part)
{
	const struct shf_sums *s = &step->sums;
	struct shf_sums_file sf = shf_sums_file(s, f);
	uint64_t first = shf_step_record(step, f, lo);

	*part = UINT64_MAX;
	for (uint64_t i = first; i < s->head.tensors_n && i - sf.first_tensor < sf.tensors_n; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(s, i);

		if (t.off >= lo + n)
			break;
		/* Part of the tensor is in another block, so its digest cannot be computed here. */
		if (t.off < lo || t.bytes > lo + n - t.off)
			*part = *part == UINT64_MAX ? i : *part;
		else if (shf_crc64_raw(0, bytes + (t.off - lo), (size_t)t.bytes) != t.digest)
			return i;
	}
	return UINT64_MAX;
}

/* Writes the name of record i to `who`, as family/name. Returns false if the record no longer
 * points to a valid name. */
static bool name_record(const struct shf_sums *s, uint64_t i, char *who, size_t who_n)
{
	struct shf_sums_tensor t = shf_sums_tensor(s, i);
	uint64_t n = s->head.names_bytes;
	const char *text, *end;

	if (t.name_off >= n || t.name_bytes >= n - t.name_off)
		return false;
	text = shf_sums_family(s, &t);
	end = memchr(text, 0, t.name_bytes);
	if (end)
		snprintf(who, who_n, "%s/%.*s", text, (int)(text + t.name_bytes - end - 1),
		         end + 1);
	return end != NULL;
}

/* Sums each block and compares it. The message names the tensor that is damaged, or suspected. */
int shf_blocks_check(const struct sheaf_checkpoint *step, uint32_t f, uint64_t lo,
                     const uint8_t *bytes, uint64_t n, int64_t *first_bad, struct sheaf_error *err)
{
	if (first_bad)
		*first_bad = -1;
	if (!always(step->sound && step->sums_rc == 0))
		return shf_fail(err, SHEAF_EBUG, "%s: has no checksums, so it cannot be checked; "
		                "SHEAF_RUN_UNVERIFIED reads it without", step->path);
	for (uint64_t at = 0; at < n; at += SHF_BLOCK) {
		uint64_t len = n - at < SHF_BLOCK ? n - at : SHF_BLOCK,
			 block = (lo + at) / SHF_BLOCK;
		uint64_t got = shf_crc64(bytes + at, (size_t)len);
		uint64_t want = block_want(step, f, block, got);
		uint64_t bad, part;
		char who[256];

		if (got == want)
			continue;
		if (first_bad)
			*first_bad = (int64_t)block;
		/* The records of a step that is asleep have not been checked yet, so none is
		 * used. */
		bad = step->asleep ? UINT64_MAX
		                   : shf_block_suspect(step, f, lo + at, bytes + at, len, &part);
		if (bad == UINT64_MAX || !name_record(&step->sums, bad, who, sizeof(who)))
			name_tensor_at(step, f, lo + at, who, sizeof(who));
		return shf_block_fail(step, f, block, got, want, who, err);
	}
	return 0;
}

/* Compares the size of the file with the manifest. */
static int check_file_size(const struct sheaf_checkpoint *step, uint32_t f, uint64_t bytes,
                           struct sheaf_error *err)
{
	uint64_t want;

	if (!step->sound)
		return 0;
	want = step->manifest.files[f].bytes;
	if (bytes == want)
		return 0;
	return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: %" PRIu64 " bytes, the manifest says %" PRIu64,
	                step->path, step->layout.files[f].name, bytes, want);
}

/* Finds the length of the header, including its length field. If the blocks can be checked
 * (`proven`), the length is taken from the table, so that a damaged length field in the file is
 * found by the sum of its block. Otherwise it is read from the file. */
static int header_bytes(struct sheaf_checkpoint *step, uint32_t f, uint64_t bytes, bool proven,
                        uint64_t *n, struct sheaf_error *err)
{
	const char *name = step->layout.files[f].name;
	uint8_t first[8];
	int rc;

	if (proven) {
		*n = shf_sums_file(&step->sums, f).header_bytes;
		if (*n <= 8 + SHF_ST_HEADER_MAX && *n <= bytes)
			return 0;
	}
	/* No sums, or a length in the table that cannot be right: the length field of the file is
	 * used. */
	if (bytes < 8)
		return shf_fail(err, SHEAF_EFORMAT,
				"%s/%s: %" PRIu64 " bytes are too short for a safetensors file",
				step->path,
				name, bytes);
	rc = shf_step_file_read(step, f, first, 8, 0, NULL, err);
	return rc == 0 ? shf_st_header_bytes(n, first, bytes, name, err) : rc;
}

/* If there are sums, whole blocks are read even if the header is shorter, because only whole blocks
 * can be checked. An invalid header is damage in a step of this library, and an unknown format in a
 * foreign one. */
int shf_header_read(struct sheaf_checkpoint *step, uint32_t f, uint64_t *file_bytes,
                    struct shf_buf *out, struct sheaf_error *err)
{
	const char *name = step->layout.files[f].name;
	const struct shf_sys *sys = step->run->sys;
	bool sums = step->sound && step->sums_rc == 0;
	bool proven = sums && !(step->run->opts.flags & SHEAF_RUN_UNVERIFIED);
	struct shf_stat st;
	uint64_t n = 0, take;
	int fd = shf_step_fd(step, f, err), rc = fd;

	if (rc < 0) /* in a saved step no file is missing or a link */
		return step->sound && (err->sys == ENOENT || err->sys == ENOTDIR ||
		                       err->sys == ELOOP) ? SHEAF_ECORRUPT : rc;
	rc = shf_sys_fstat(sys, fd, &st);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/%s", step->path, name);
	if (st.type != SHF_T_FILE)
		return shf_fail(err, step->sound ? SHEAF_ECORRUPT : SHEAF_EFORMAT,
		                "%s/%s: not a regular file", step->path, name);
	*file_bytes = st.bytes;
	step->seen[f] = st;
	rc = check_file_size(step, f, st.bytes, err);
	if (rc == 0)
		rc = header_bytes(step, f, st.bytes, proven, &n, err);
	if (rc < 0) /* in a saved step every file has a valid header */
		return step->sound && rc == SHEAF_EFORMAT ? SHEAF_ECORRUPT : rc;
	take = n;
	if (sums) {
		take = (n + SHF_BLOCK - 1) / SHF_BLOCK * SHF_BLOCK;
		take = take < st.bytes ? take : st.bytes;
	}
	if (shf_buf_reserve(out, (size_t)take) < 0 || !shf_buf_extend(out, (size_t)take))
		return shf_fail(err, SHEAF_ENOMEM, "%s/%s: no memory for its header", step->path,
				name);
	rc = shf_step_file_read(step, f, out->data, take, 0, NULL, err);
	if (rc == 0 && proven)
		rc = shf_blocks_check(step, f, 0, out->data, take, NULL, err);
	out->len = (size_t)n;
	return rc;
}

/* A tensor with more dimensions than a slice can have is described as a row of bytes. A tensor that
 * is not aligned to its items in the file is marked `loose`: it is read by itself, not dealt in
 * stripes. A save never places one so, and in a step with a manifest it is damage. */
int shf_catalog_tensor(struct sheaf_checkpoint *step, const struct shf_st_tensor *st, uint32_t f,
                       struct shf_lt_tensor *t)
{
	struct shf_lt_file *file = &step->layout.files[f];

	*t = (struct shf_lt_tensor){ .name = st->name, .family = file->family, .file = f,
		.dtype = st->dtype, .off = file->header_bytes + st->off, .bytes = st->bytes };
	if (st->ndim > SHEAF_DIMS_MAX) {
		t->wide = st->ndim;
		t->dims = st->dims;
		t->unit = 1;
		t->items = t->shape = (struct shf_shape){ 1, { (int64_t)st->bytes } };
		return 0;
	}
	t->items.ndim = st->ndim;
	memcpy(t->items.dim, st->shape, sizeof(int64_t) * (size_t)st->ndim);
	if (!shf_units_of(&t->shape, &t->unit, t->dtype, &t->items))
		return shf_fail(&step->cat_err, SHEAF_EFORMAT, "%s/%s: tensor %s: its shape does "
		                "not fill whole bytes", step->path, file->name, t->name);
	t->loose = t->off % t->unit != 0;
	if (t->loose && step->sound)
		return shf_fail(&step->cat_err, SHEAF_ECORRUPT,
				"%s/%s: tensor %s at byte %" PRIu64 " is not aligned to its items",
				step->path, file->name, t->name, t->off);
	return 0;
}
