/* SPDX-License-Identifier: Apache-2.0 */
/* Checks bytes of a step against its sums, block by block, and reads the headers of its files. */
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

const char *shf_tensor_at(const struct sheaf_step *step, uint32_t f, uint64_t at, char *text,
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
	return text;
}

static int bad_block(const struct sheaf_step *step, uint32_t f, uint64_t block, uint64_t got,
                     uint64_t want, const char *who, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: block %" PRIu64 " at byte %" PRIu64
	                " has checksum %016" PRIx64 ", want %016" PRIx64 " (%s)", step->path,
	                step->layout.files[f].name, block, block * SHF_BLOCK, got, want, who);
}

/* What a block that has the sum `got` should have. The table was proved when it was opened; memory
 * of it that changed since does not lead out of it: then nothing is right. */
static uint64_t block_want(const struct sheaf_step *step, uint32_t f, uint64_t block, uint64_t got)
{
	uint64_t first = shf_sums_file(&step->sums, f).first_block, n = step->sums.head.blocks_n;

	return first < n && block < n - first ? shf_sums_block(&step->sums, first + block) : ~got;
}

int shf_block_check(const struct sheaf_step *step, uint32_t f, uint64_t block, uint64_t got,
                    struct sheaf_error *err)
{
	uint64_t want = block_want(step, f, block, got);
	char who[256];

	if (got == want)
		return 0;
	shf_tensor_at(step, f, block * SHF_BLOCK, who, sizeof(who));
	return bad_block(step, f, block, got, want, who, err);
}

/* Its name, where the table still has it. */
static bool name_of(const struct shf_sums *s, const struct shf_sums_tensor *t, char *who,
                    size_t who_n)
{
	uint64_t n = s->head.names_bytes;
	const char *text, *end;

	if (t->name_off >= n || t->name_bytes >= n - t->name_off)
		return false;
	text = shf_sums_family(s, t);
	end = memchr(text, 0, t->name_bytes);
	if (end)
		snprintf(who, who_n, "%s/%.*s", text, (int)(text + t->name_bytes - end - 1),
		         end + 1);
	return end != NULL;
}

/* Who in a block is not what it was: a tensor that lies in it whole is known by its digest;
 * otherwise it is the one that the block begins with, as far as anybody can tell. No more of the
 * table is believed here than of the block: it may be what has changed. */
static void suspect(const struct sheaf_step *step, uint32_t f, uint64_t lo, const uint8_t *bytes,
                    uint64_t n, char *who, size_t who_n)
{
	const struct shf_sums *s = &step->sums;
	struct shf_sums_file sf = shf_sums_file(s, f);
	uint64_t all = step->asleep ? 0 : s->head.tensors_n;

	for (uint64_t i = sf.first_tensor; i < all && i - sf.first_tensor < sf.tensors_n; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(s, i);

		if (t.off >= lo + n)
			break;
		if (t.off < lo || t.bytes > lo + n - t.off ||
		    shf_crc64_raw(0, bytes + (t.off - lo), (size_t)t.bytes) == t.digest)
			continue;
		if (name_of(s, &t, who, who_n))
			return;
	}
	shf_tensor_at(step, f, lo, who, who_n);
}

int shf_blocks_check(const struct sheaf_step *step, uint32_t f, uint64_t lo, const uint8_t *bytes,
                     uint64_t n, int64_t *first_bad, struct sheaf_error *err)
{
	if (first_bad)
		*first_bad = -1;
	if (!always(step->sound && step->sums_rc == 0))
		return shf_fail(err, SHEAF_EBUG, "%s: has no sums to check by", step->path);
	for (uint64_t at = 0; at < n; at += SHF_BLOCK) {
		uint64_t len = n - at < SHF_BLOCK ? n - at : SHF_BLOCK,
			 block = (lo + at) / SHF_BLOCK;
		uint64_t got = shf_crc64(bytes + at, (size_t)len);
		uint64_t want = block_want(step, f, block, got);
		char who[256];

		if (got == want)
			continue;
		if (first_bad)
			*first_bad = (int64_t)block;
		suspect(step, f, lo + at, bytes + at, len, who, sizeof(who));
		return bad_block(step, f, block, got, want, who, err);
	}
	return 0;
}

static int read_exact(const struct sheaf_step *step, int fd, const char *name, uint8_t *to,
                      uint64_t n, uint64_t off, struct sheaf_error *err)
{
	const struct shf_sys *sys = step->run->sys;
	int64_t got = sys->ops->pread(sys->arg, fd, to, (size_t)n, off);

	for (int tries = 0; got == -EIO && tries < 3; tries++)
		got = sys->ops->pread(sys->arg, fd, to, (size_t)n, off);
	if (got < 0)
		return shf_fail_sys(err, (int)-got, "%s/%s: reading %" PRIu64 " bytes at %" PRIu64,
		                    step->path, name, n, off);
	if ((uint64_t)got != n)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: ends at byte %" PRIu64, step->path,
				name, off + (uint64_t)got);
	return 0;
}

/* What the manifest and the sums say of a file, against the file. */
static int check_size(const struct sheaf_step *step, uint32_t f, uint64_t bytes,
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

/* Bytes of the header with its length: as the sums have them, so that a damaged length is found
 * where all damage is found, by its block; else as the file says. */
static int header_span(const struct sheaf_step *step, uint32_t f, int fd, uint64_t bytes,
                       bool proven, uint64_t *n, struct sheaf_error *err)
{
	const char *name = step->layout.files[f].name;
	uint8_t first[8];
	int rc;

	if (proven) {
		*n = shf_sums_file(&step->sums, f).header_bytes;
		if (*n <= 8 + SHF_ST_HEADER_MAX && *n <= bytes)
			return 0;
	}
	if (bytes < 8)
		return shf_fail(err, SHEAF_EFORMAT,
				"%s/%s: %" PRIu64 " bytes are no safetensors file", step->path,
				name, bytes);
	rc = read_exact(step, fd, name, first, 8, 0, err);
	return rc == 0 ? shf_st_header_bytes(n, first, bytes, name, err) : rc;
}

int shf_header_read(struct sheaf_step *step, uint32_t f, uint64_t *file_bytes, struct shf_buf *out,
                    struct sheaf_error *err)
{
	const char *name = step->layout.files[f].name;
	const struct shf_sys *sys = step->run->sys;
	bool sums = step->sound && step->sums_rc == 0;
	bool proven = sums && !(step->run->opts.flags & SHEAF_UNVERIFIED);
	struct shf_stat st;
	uint64_t n = 0, take;
	int fd = shf_step_fd(step, f, err), rc = fd;

	if (rc < 0) /* a link is no file of ours */
		return step->sound && (err->sys == ENOENT || err->sys == ENOTDIR ||
		                       err->sys == ELOOP) ? SHEAF_ECORRUPT : rc;
	rc = sys->ops->fstat(sys->arg, fd, &st);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/%s", step->path, name);
	if (st.type != SHF_T_FILE)
		return shf_fail(err, step->sound ? SHEAF_ECORRUPT : SHEAF_EFORMAT,
		                "%s/%s: no plain file", step->path, name);
	*file_bytes = st.bytes;
	rc = check_size(step, f, st.bytes, err);
	if (rc == 0)
		rc = header_span(step, f, fd, st.bytes, proven, &n, err);
	if (rc < 0) /* ours, once whole */
		return step->sound && rc == SHEAF_EFORMAT ? SHEAF_ECORRUPT : rc;
	take = n;
	if (sums) {
		take = (n + SHF_BLOCK - 1) / SHF_BLOCK * SHF_BLOCK;
		take = take < st.bytes ? take : st.bytes;
	}
	if (shf_buf_reserve(out, (size_t)take) < 0 || !shf_buf_extend(out, (size_t)take))
		return shf_fail(err, SHEAF_ENOMEM, "%s/%s: no memory for its header", step->path,
				name);
	rc = read_exact(step, fd, name, out->data, take, 0, err);
	if (rc == 0 && proven)
		rc = shf_blocks_check(step, f, 0, out->data, take, NULL, err);
	out->len = (size_t)n;
	return rc;
}

int shf_catalog_tensor(struct sheaf_step *step, const struct shf_st_tensor *st, uint32_t f,
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
		return shf_fail(&step->cat_err, SHEAF_EFORMAT, "%s/%s: tensor %s: its shape is no "
		                "number of bytes", step->path, file->name, t->name);
	t->loose = t->off % t->unit != 0;
	if (t->loose && step->sound) /* placement never does that */
		return shf_fail(&step->cat_err, SHEAF_ECORRUPT,
				"%s/%s: tensor %s at byte %" PRIu64 " is not aligned to its items",
				step->path, file->name, t->name, t->off);
	return 0;
}
