/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups of single tensors in a step that is asleep.
 *
 * Invariants: a byte of step->sums is read only after need_table() has returned true for its page.
 * A record's ranges are checked before they are followed, because a good page only proves that the
 * bytes are those that were written, not that they make sense. */
#include "step_lookup.h"
#include <string.h>
#include "crc64.h"
#include "place.h"
#include "step.h"
#include "step_blocks.h"
#include "step_files.h"

#define HEADERS_MAX 64  /* headers that are parsed one by one; a lookup that needs one more wakes
	                 * the step */

void shf_step_lookup_release(struct sheaf_checkpoint *step)
{
	struct shf_step_lookup *p = &step->peek;
	const struct shf_sys *sys = step->run->sys;

	if (p->fd >= 0)
		shf_sys_close(sys, p->fd);
	p->fd = -1;
	shf_free(p->have);
	p->have = NULL;
	shf_arena_release(&p->arena);
	p->st = (struct shf_st){ 0 };
}

/* Reads bytes [off, off + n) of sheaf.sums to their place in memory; false if they cannot all be
 * read. */
static bool read_at(struct sheaf_checkpoint *step, uint64_t off, uint64_t n)
{
	const struct shf_sys *sys = step->run->sys;

	return shf_sys_pread(sys, step->peek.fd, step->sums_bytes + off, (size_t)n,
			     off) == (int64_t)n;
}

/* Makes bytes [off, off + n) of the table available: reads the pages that they lie in and checks
 * each against the page table. Pages that were checked before are not read again. */
static bool need_table(struct sheaf_checkpoint *step, uint64_t off, uint64_t n)
{
	const struct shf_sums_head *h = &step->sums.head;
	uint64_t end = off + n;

	for (uint64_t page = off / SHF_SUMS_PAGE; page * SHF_SUMS_PAGE < end; page++) {
		uint64_t at = page * SHF_SUMS_PAGE, len = shf_sums_page_bytes(h, page);

		if (step->peek.have[page])
			continue;
		if (!read_at(step, at, len) ||
		    shf_crc64(step->sums_bytes + at, (size_t)len) !=
		            shf_get64(step->sums_bytes + h->pages_off + page * 8))
			return false;
		step->peek.have[page] = 1;
	}
	return true;
}

/* Reads the head and the page table, and checks both against the CRC in the manifest. After this
 * every page can be checked by itself. */
static bool read_head(struct sheaf_checkpoint *step)
{
	uint64_t bytes = step->manifest.sums.bytes;
	struct shf_sums_head *h = &step->sums.head;
	struct sheaf_error e;

	return read_at(step, 0, SHF_SUMS_HEADER) &&
	       shf_sums_get_head(h, step->sums_bytes, bytes, "", &e) == 0 &&
	       h->files_n == step->manifest.files_n &&
	       read_at(step, h->pages_off, bytes - h->pages_off) &&
	       shf_sums_crc(h, step->sums_bytes, step->sums_bytes + h->pages_off) ==
	               step->manifest.sums.crc;
}

/* Memory for the whole table is allocated, but only pages that a lookup reads into take physical
 * memory. On any error the step is not put to sleep: the caller then reads the whole table and
 * reports what is wrong. */
bool shf_step_lookup_init(struct sheaf_checkpoint *step)
{
	const struct shf_sys *sys = step->run->sys;
	struct shf_step_lookup *p = &step->peek;
	uint64_t bytes = step->manifest.sums.bytes;
	struct shf_stat st;
	struct sheaf_error unsaid; /* the caller reads the whole table and reports the error */

	if (bytes < SHF_SUMS_HEADER)
		return false;
	p->fd = shf_sys_open(sys, step->dir, "sheaf.sums", shf_step_follow(step), 0);
	if (p->fd >= 0 && shf_sys_fstat(sys, p->fd, &st) >= 0 && st.bytes == bytes &&
	    shf_step_sums_fit(step, p->fd, &unsaid) == 0) {
		step->sums_bytes = shf_zalloc((size_t)bytes, 1);
		p->have = shf_zalloc((size_t)(bytes / SHF_SUMS_PAGE) + 1, 1);
		step->sums.bytes = step->sums_bytes;
		step->asleep = step->sums_bytes && p->have && read_head(step);
	}
	if (!step->asleep) {
		shf_free(step->sums_bytes);
		step->sums_bytes = NULL;
		step->sums = (struct shf_sums){ 0 };
		shf_step_lookup_release(step);
	}
	return step->asleep;
}

/* Copies record i to *t and makes sure that its name is loaded and ends in NUL. slot_at() must have
 * loaded the record. false: the record's ranges are wrong, or a page is bad. */
static bool read_record(struct sheaf_checkpoint *step, uint64_t i, struct shf_sums_tensor *t)
{
	const struct shf_sums_head *h = &step->sums.head;
	const char *text;

	*t = shf_sums_tensor(&step->sums, i);
	if (t->file >= h->files_n || t->name_off > h->names_bytes ||
	    t->name_bytes >= h->names_bytes - t->name_off ||
	    !need_table(step, h->names_off + t->name_off, (uint64_t)t->name_bytes + 1))
		return false;
	text = shf_sums_family(&step->sums, t);
	return !text[t->name_bytes] && strlen(text) < t->name_bytes;
}

/* Finds the i-th tensor in order of keys. *slot: the number of its record, which record i holds in
 * its field `slot`; *key: its key. false: a page is bad, or the number is out of range. */
static bool slot_at(struct sheaf_checkpoint *step, uint64_t i, uint64_t *slot, uint64_t *key)
{
	const struct shf_sums_head *h = &step->sums.head;
	uint64_t off = h->tensors_off + i * SHF_SUMS_TENSOR;

	if (!need_table(step, off, SHF_SUMS_TENSOR))
		return false;
	*slot = shf_sums_tensor(&step->sums, i).slot;
	off = h->tensors_off + *slot * SHF_SUMS_TENSOR;
	if (*slot >= h->tensors_n || !need_table(step, off, SHF_SUMS_TENSOR))
		return false;
	*key = shf_sums_tensor(&step->sums, *slot).key;
	return true;
}

/* Finds the record of family/name by binary search for its key, then among the records with the
 * same key. false: not found, or a page is bad. The caller cannot tell which, and reads the whole
 * table. */
static bool find_record(struct sheaf_checkpoint *step, const char *family, const char *name,
                        struct shf_sums_tensor *t)
{
	uint64_t want = shf_sums_key(family, name), slot, key;
	uint64_t lo = 0, hi = step->sums.head.tensors_n;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (!slot_at(step, mid, &slot, &key))
			return false;
		if (key < want)
			lo = mid + 1;
		else
			hi = mid;
	}
	/* Keys are hashes, so several names may have the same one. */
	for (; lo < step->sums.head.tensors_n; lo++) {
		if (!slot_at(step, lo, &slot, &key) || key != want || !read_record(step, slot, t))
			return false;
		if (strcmp(shf_sums_family(&step->sums, t), family) == 0 &&
		    strcmp(shf_sums_name(&step->sums, t), name) == 0)
			return true;
	}
	return false;
}

/* Loads the sums of the blocks that bytes [lo, hi) of a file lie in. */
static bool need_blocks(struct sheaf_checkpoint *step, const struct shf_sums_file *f, uint64_t lo,
                        uint64_t hi)
{
	uint64_t first = f->first_block + lo / SHF_BLOCK;
	uint64_t end = f->first_block + (hi + SHF_BLOCK - 1) / SHF_BLOCK;

	return need_table(step, step->sums.head.blocks_off + first * 8, (end - first) * 8);
}

/* Reads and parses the header of file f, and keeps it until another file's is wanted. Fails after
 * HEADERS_MAX headers: for so many lookups it is cheaper to wake the step. */
static bool read_one_header(struct sheaf_checkpoint *step, uint32_t f, struct shf_sums_file *sf)
{
	const struct shf_sums_head *h = &step->sums.head;
	struct shf_lt_file *file = &step->layout.files[f];
	struct shf_step_lookup *p = &step->peek;
	struct shf_buf bytes = SHF_BUF_INIT;
	struct sheaf_error e = { 0 };
	uint64_t size, blocks;
	bool good;

	if (!need_table(step, h->files_off + f * (uint64_t)SHF_SUMS_FILE, SHF_SUMS_FILE))
		return false;
	*sf = shf_sums_file(&step->sums, f);
	blocks = sf->bytes / SHF_BLOCK + (sf->bytes % SHF_BLOCK != 0);
	/* A good page only proves that its bytes are those that were written, so ranges are checked
	 * before they are followed. */
	if (sf->bytes != step->manifest.files[f].bytes || sf->header_bytes > sf->bytes ||
	    sf->first_block > h->blocks_n || blocks > h->blocks_n - sf->first_block)
		return false;
	if (p->st.n > 0 && p->file == f)
		return true;
	if (p->headers_n++ == HEADERS_MAX || !need_blocks(step, sf, 0, sf->header_bytes))
		return false;
	shf_arena_release(&p->arena);
	p->arena = (struct shf_arena){ 0 };
	p->st = (struct shf_st){ 0 };
	p->file = f;
	good = shf_header_read(step, f, &size, &bytes, &e) == 0 &&
	       bytes.len == sf->header_bytes &&
	       shf_st_parse(&p->st, &p->arena, bytes.data, bytes.len, size, file->name, &e) == 0;
	shf_buf_release(&bytes);
	if (!good)
		p->st = (struct shf_st){ 0 };
	file->bytes = sf->bytes;
	file->header_bytes = sf->header_bytes;
	return good;
}

/* Finds the tensor in the header of its file and checks that header and table agree on it. Then
 * loads the sums of all its blocks. */
static bool match_record(struct sheaf_checkpoint *step, const struct shf_sums_tensor *r,
                         struct shf_lt_tensor *t)
{
	const char *family = shf_sums_family(&step->sums, r), *name = shf_sums_name(&step->sums, r);
	struct shf_sums_file sf;

	if (!read_one_header(step, r->file, &sf))
		return false;
	for (size_t i = 0; i < step->peek.st.n; i++) {
		const struct shf_st_tensor *st = &step->peek.st.tensors[i];

		if (strcmp(st->name, name))
			continue;
		if (shf_catalog_tensor(step, st, r->file, t) < 0 || t->wide ||
		    t->off != r->off || t->bytes != r->bytes || (uint32_t)t->dtype != r->dtype ||
		    t->items.ndim != r->ndim ||
		    strcmp(step->layout.families[t->family].name, family) != 0)
			return false;
		t->name = name;
		t->digest = r->digest;
		return need_blocks(step, &sf, t->off, t->off + t->bytes);
	}
	return false;
}

bool shf_step_lookup(struct sheaf_checkpoint *step, const char *family, const char *name,
                     struct shf_lt_tensor *t)
{
	struct shf_sums_tensor r;

	return step->asleep && !shf_layout_tied_to(&step->layout, family, name) &&
	       find_record(step, family, name, &r) && match_record(step, &r, t);
}
