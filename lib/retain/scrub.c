/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a committed step again, turn by turn. Each turn reads at most a block, so that the thread
 * that takes the turns can be stopped soon. The phases are: manifest and head of the table; pages
 * of the table; blocks; attached files.
 *
 * Always true: the first damage, and the first failure to read, ends the reading. A page of the
 * table is used only after it was checked against the page table, and the page table is used only
 * after it was checked against the sum in the manifest. */
#include "scrub.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "manifest_read.h"
#include "name_in_step.h"
#include "place.h"
#include "read_ring.h"

#define READ_BYTES SHF_BLOCK    /* size of the read buffer */
#define PAGES_A_TURN (READ_BYTES / SHF_SUMS_PAGE)

enum { BEGIN, TABLE, DATA, SMALL, ALL_READ };

/* All memory is allocated here, except for the manifest and the page table, whose sizes the first
 * turn learns. So turns after the first cannot fail for lack of memory. */
int shf_scrub_init(struct shf_scrub *r, const struct shf_sys *sys, int dir, int64_t step,
                   const char *session, const char *where, struct sheaf_error *err)
{
	*r = (struct shf_scrub){ .sys = sys, .dir = dir, .step = step, .shares = 1,
		.sums_fd = -1, .fd = -1, .direct = -1, .phase = BEGIN };
	snprintf(r->session, sizeof(r->session), "%.32s", session);
	snprintf(r->where, sizeof(r->where), "%s", where);
	r->room = shf_alloc(READ_BYTES + SHF_ALIGN, 1);
	r->buf = r->room ? r->room + (SHF_ALIGN - (uintptr_t)r->room % SHF_ALIGN) : NULL;
	for (int i = 0; i < SHF_TABLE_SECTIONS; i++) {
		r->table[i].bytes = shf_alloc(SHF_SUMS_PAGE, 1);
		r->table[i].page = UINT64_MAX;
	}
	if (r->room && r->table[0].bytes && r->table[1].bytes && r->table[2].bytes)
		return 0;
	shf_scrub_release(r);
	return shf_fail(err, SHEAF_ENOMEM, "no memory to read step %" PRId64 " again", step);
}

void shf_scrub_release(struct shf_scrub *r)
{
	shf_fd_close(r->sys, &r->fd);
	shf_fd_close(r->sys, &r->direct);
	shf_fd_close(r->sys, &r->sums_fd);
	shf_fd_close(r->sys, &r->dir);
	shf_free(r->room);
	shf_free(r->pages);
	for (int i = 0; i < SHF_TABLE_SECTIONS; i++)
		shf_free(r->table[i].bytes);
	shf_arena_release(&r->arena);
	*r = (struct shf_scrub){ .sys = r->sys, .rc = r->rc, .err = r->err, .cut = r->cut,
		.bytes = r->bytes, .dir = -1, .sums_fd = -1, .fd = -1, .direct = -1 };
}

/* ---- the ends of the reading ---- */

/* Ends the reading with the message in r->err, as damage. Returns false, as a last turn does. */
static bool end_as_damaged(struct shf_scrub *r)
{
	r->rc = r->err.code = SHEAF_ECORRUPT;
	return false;
}

/* Ends the reading with an errno. If a file that the manifest names does not exist, is a link or a
 * folder, or is larger than possible, the result is damage; any other errno proves nothing about
 * the step. */
static bool end_as_unread(struct shf_scrub *r, int sys, const char *name)
{
	r->rc = shf_fail_sys(&r->err, sys, "%s/%s", r->where, name);
	if (r->rc == SHEAF_ENOENT || sys == ELOOP || sys == EISDIR || sys == EFBIG)
		r->rc = r->err.code = SHEAF_ECORRUPT;
	return false;
}

/* ---- reading ---- */

/* Reads all n bytes at `off`, with retries after EIO. A file that ends too early is damage. Returns
 * false if the reading has ended. */
static bool read_scrubbed(struct shf_scrub *r, int fd, void *to, uint64_t n, uint64_t off,
                          const char *name)
{
	int64_t got = shf_read_now(r->sys, fd, to, n, off, false, NULL);

	if (got < 0)
		return end_as_unread(r, (int)-got, name);
	r->bytes += (uint64_t)got;
	if ((uint64_t)got == n)
		return true;
	shf_fail(&r->err, SHEAF_ECORRUPT, "%s/%s: ends at byte %" PRIu64, r->where, name,
	         off + (uint64_t)got);
	return end_as_damaged(r);
}

static int open_in_scrubbed(const struct shf_scrub *r, const char *name, int flags)
{
	return shf_in_step_open(r->sys, r->dir, name, flags | SHF_O_NOFOLLOW);
}

/* Drops bytes [off, bytes) of the file from the page cache before they are read through it, so that
 * the read returns what is on disk. */
static void forget_range(const struct shf_scrub *r, int fd, uint64_t off, uint64_t bytes)
{
	if (off < bytes)
		shf_sys_forget(r->sys, fd, off, bytes - off);
}

/* Opens a file of the manifest, sets *fd, and compares the length of the file with the one in the
 * manifest. Returns false if the reading has ended. */
static bool open_scrubbed(struct shf_scrub *r, const struct shf_mf_file *file, int *fd)
{
	struct shf_stat st;
	int rc;

	*fd = open_in_scrubbed(r, file->name, 0);
	if (*fd < 0)
		return end_as_unread(r, -*fd, file->name);
	rc = shf_sys_fstat(r->sys, *fd, &st);
	if (rc < 0)
		return end_as_unread(r, -rc, file->name);
	if (st.type == SHF_T_FILE && st.bytes == file->bytes)
		return true;
	shf_fail(&r->err, SHEAF_ECORRUPT, "%s/%s: %" PRIu64 " bytes, the manifest says %" PRIu64,
	         r->where, file->name, st.bytes, file->bytes);
	return end_as_damaged(r);
}

/* ---- manifest and table ---- */

/* Reads and decodes sheaf.json. The manifest must be that of the save that was committed, not of a
 * later save with the same number. */
static bool read_own_manifest(struct shf_scrub *r)
{
	struct shf_stat st = { .bytes = 0 };
	char where[320];
	int fd = open_in_scrubbed(r, "sheaf.json", 0), rc;
	uint8_t *text = NULL;
	bool good;

	if (fd < 0)
		return end_as_unread(r, -fd, "sheaf.json");
	rc = shf_sys_fstat(r->sys, fd, &st);
	if (rc >= 0 && st.bytes <= SHF_MANIFEST_MAX)
		text = shf_alloc((size_t)st.bytes, 1);
	forget_range(r, fd, 0, st.bytes);
	good = text ? read_scrubbed(r, fd, text, st.bytes, 0, "sheaf.json")
	            : end_as_unread(r, rc < 0 ? -rc : st.bytes > SHF_MANIFEST_MAX ? EFBIG : ENOMEM,
	                            "sheaf.json");
	snprintf(where, sizeof(where), "%s/sheaf.json", r->where);
	if (good)
		r->rc = shf_manifest_decode(&r->manifest, &r->arena, text, (size_t)st.bytes, where,
		                            &r->err);
	shf_free(text);
	shf_fd_close(r->sys, &fd);
	if (r->rc < 0)
		return false;
	if (r->run && r->run[0] && strcmp(r->manifest.run, r->run)) {
		shf_fail(&r->err, SHEAF_ECORRUPT, "%s: is of run %s, and this is run %s", where,
		         r->manifest.run, r->run);
		return end_as_damaged(r);
	}
	if (r->manifest.step == r->step &&
	    (!r->session[0] || strcmp(r->manifest.session, r->session) == 0))
		return true;
	shf_fail(&r->err, SHEAF_ECORRUPT, "%s: is not the checkpoint that was committed, but step "
	         "%" PRId64 " of session %s", where, r->manifest.step, r->manifest.session);
	return end_as_damaged(r);
}

static uint64_t blocks_of_file(uint64_t bytes)
{
	return bytes / SHF_BLOCK + (bytes % SHF_BLOCK != 0);
}

/* Checks that the table has records for exactly the files and blocks of the manifest. After this
 * check, the record of each file and block lies inside the table. */
static bool table_fits(struct shf_scrub *r, const char *where)
{
	uint64_t blocks = 0;

	for (size_t f = 0; f < r->manifest.files_n; f++)
		blocks += blocks_of_file(r->manifest.files[f].bytes);
	if (r->head.files_n == r->manifest.files_n && r->head.blocks_n == blocks)
		return true;
	shf_fail(&r->err, SHEAF_ECORRUPT, "%s: has checksums of %" PRIu64 " files and %" PRIu64 " "
	         "blocks, the manifest names %zu and %" PRIu64, where, r->head.files_n,
	         r->head.blocks_n, r->manifest.files_n, blocks);
	return end_as_damaged(r);
}

/* Reads the head and the page table of sheaf.sums, and checks both against the sum in the manifest.
 * Then every other page can be checked when it is needed. */
static bool open_table(struct shf_scrub *r)
{
	const struct shf_mf_file *sums = &r->manifest.sums;
	uint64_t n, crc;
	char where[320];

	snprintf(where, sizeof(where), "%s/sheaf.sums", r->where);
	if (!open_scrubbed(r, sums, &r->sums_fd))
		return false;
	forget_range(r, r->sums_fd, 0, sums->bytes);
	if (sums->bytes >= SHF_SUMS_HEADER &&
	    !read_scrubbed(r, r->sums_fd, r->buf, SHF_SUMS_HEADER, 0, sums->name))
		return false;
	r->rc = shf_sums_get_head(&r->head, r->buf, sums->bytes, where, &r->err);
	if (r->rc < 0)
		return false;
	n = sums->bytes - r->head.pages_off;
	r->pages = shf_alloc((size_t)n, 1);
	if (!r->pages)
		return end_as_unread(r, ENOMEM, sums->name);
	if (!read_scrubbed(r, r->sums_fd, r->pages, n, r->head.pages_off, sums->name))
		return false;
	/* The manifest has a sum of only head and page table; the page table has the sums of the
	 * other pages. */
	crc = shf_sums_crc(&r->head, r->buf, r->pages);
	if (crc == sums->crc)
		return table_fits(r, where);
	shf_fail(&r->err, SHEAF_ECORRUPT, "%s: header and page table have checksum %016" PRIx64
	         ", want %016" PRIx64, where, crc, sums->crc);
	return end_as_damaged(r);
}

/* Reads page p of the table into `to` and checks it. */
static bool table_page(struct shf_scrub *r, uint64_t p, uint8_t *to)
{
	uint64_t off = p * SHF_SUMS_PAGE, n = shf_sums_page_bytes(&r->head, p), got, want;

	if (!read_scrubbed(r, r->sums_fd, to, n, off, "sheaf.sums"))
		return false;
	got = shf_crc64(to, (size_t)n);
	want = shf_get64(r->pages + p * 8);
	if (got == want)
		return true;
	shf_fail(&r->err, SHEAF_ECORRUPT, "%s/sheaf.sums: page %" PRIu64 " at byte %" PRIu64
	         " has checksum %016" PRIx64 ", want %016" PRIx64, r->where, p, off, got, want);
	return end_as_damaged(r);
}

/* Returns the record at `off` of the table, or NULL if the reading has ended. Records are 8, 32 or
 * 64 bytes long, so no record crosses a page. The last page of each section is kept, because the
 * records of a section are read in order. */
static const uint8_t *table_record(struct shf_scrub *r, int section, uint64_t off)
{
	struct shf_scrub_page *t = &r->table[section];
	uint64_t page = off / SHF_SUMS_PAGE;

	if (t->page != page) {
		/* Marked as empty until the page is read, because the read may fail halfway. */
		t->page = UINT64_MAX;
		if (!table_page(r, page, t->bytes))
			return NULL;
		t->page = page;
	}
	return t->bytes + off % SHF_SUMS_PAGE;
}

static bool tensor_get(struct shf_scrub *r, uint64_t i, struct shf_sums_tensor *t)
{
	const uint8_t *p = table_record(r, SHF_TABLE_TENSORS,
	                                r->head.tensors_off + i * SHF_SUMS_TENSOR);

	if (p)
		*t = shf_sums_get_tensor(p);
	return p != NULL;
}

/* A turn of the phase TABLE. Checks some pages of the table. The pages are dealt to the shares
 * round robin, so that every page is checked, whether its records are used or not. */
static bool turn_table(struct shf_scrub *r)
{
	uint64_t n = (r->head.pages_off + SHF_SUMS_PAGE - 1) / SHF_SUMS_PAGE;

	for (uint64_t i = 0; i < PAGES_A_TURN && r->page < n; i++, r->page += r->shares)
		if (!table_page(r, r->page, r->buf))
			return false;
	if (r->page >= n)
		r->phase = DATA;
	return true;
}

/* ---- blocks ---- */

/* Sets r->at and r->end to the range of blocks of this share. */
static void deal_scrub_shares(struct shf_scrub *r)
{
	uint64_t all = r->head.blocks_n, more = all % r->shares;

	r->at = all / r->shares * r->share + (r->share < more ? r->share : more);
	r->end = r->at + all / r->shares + (r->share < more);
}

/* The turn of the phase BEGIN. */
static bool turn_begin(struct shf_scrub *r)
{
	if (!read_own_manifest(r) || !open_table(r))
		return false;
	deal_scrub_shares(r);
	r->page = r->small = r->share;
	r->small_crc = shf_crc64(NULL, 0);
	r->phase = TABLE;
	return true;
}

/* Finds the first tensor of the open file that ends after byte lo, where this share begins in the
 * file. Sets r->whole if the tensor does not begin before lo. */
static bool seek_tensor(struct shf_scrub *r, uint64_t lo)
{
	uint64_t from = r->sums_file.first_tensor, to = from + r->sums_file.tensors_n;
	struct shf_sums_tensor t;

	while (from < to) {
		uint64_t mid = from + (to - from) / 2;

		if (!tensor_get(r, mid, &t))
			return false;
		if (t.off + t.bytes <= lo)
			from = mid + 1;
		else
			to = mid;
	}
	r->tensor = from;
	r->digest = 0;
	r->whole = true;
	if (from == r->sums_file.first_tensor + r->sums_file.tensors_n)
		return true;
	if (!tensor_get(r, from, &t))
		return false;
	r->whole = t.off >= lo;
	return true;
}

/* Opens the file of the next block, if it is not open yet, and checks its record in the table. The
 * file before is closed first, so at most two descriptors, buffered and direct, are open at a
 * time. */
static bool enter_file(struct shf_scrub *r)
{
	const struct shf_mf_file *m = &r->manifest.files[r->file];
	const uint8_t *p;

	/* Moves on to the file in which block `at` lies. */
	while (r->at - r->first >= blocks_of_file(m->bytes)) {
		shf_fd_close(r->sys, &r->fd);
		shf_fd_close(r->sys, &r->direct);
		r->first += blocks_of_file(m->bytes);
		m = &r->manifest.files[++r->file];
	}
	if (r->fd >= 0)
		return true;
	p = table_record(r, SHF_TABLE_FILES, r->head.files_off + r->file * (uint64_t)SHF_SUMS_FILE);
	if (!p)
		return false;
	r->sums_file = shf_sums_get_file(p);
	if (r->sums_file.bytes != m->bytes || r->sums_file.first_block != r->first ||
	    r->sums_file.tensors_n > r->head.tensors_n ||
	    r->sums_file.first_tensor > r->head.tensors_n - r->sums_file.tensors_n) {
		shf_fail(&r->err, SHEAF_ECORRUPT, "%s/sheaf.sums: contradicts the manifest about "
		         "%s", r->where, m->name);
		return end_as_damaged(r);
	}
	if (!open_scrubbed(r, m, &r->fd))
		return false;
	/* If direct I/O is refused, r->direct is negative and all bytes are read through the page
	 * cache. */
	r->direct = r->buffered || m->bytes < SHF_BLOCK
	            ? -1 : open_in_scrubbed(r, m->name, SHF_O_DIRECT);
	forget_range(r, r->fd, r->direct >= 0 ? m->bytes / SHF_ALIGN * SHF_ALIGN : 0, m->bytes);
	return seek_tensor(r, (r->at - r->first) * SHF_BLOCK);
}

/* Reads n bytes at lo into r->buf: whole pages with direct I/O, if this file can be read so, and
 * the rest through the page cache. Bytes are dropped from the page cache before they are read
 * through it. */
static bool read_scrubbed_block(struct shf_scrub *r, uint64_t lo, uint64_t n)
{
	const char *name = r->manifest.files[r->file].name;
	uint64_t pages = n / SHF_ALIGN * SHF_ALIGN;
	int64_t got = 0;

	if (r->direct >= 0 && pages)
		got = shf_sys_pread(r->sys, r->direct, r->buf, (size_t)pages, lo);
	if (got == (int64_t)pages) {
		r->bytes += pages;
	} else {
		got = 0; /* the buffered read below reports errors */
		forget_range(r, r->fd, lo, lo + n);
	}
	return (uint64_t)got == n ||
	       read_scrubbed(r, r->fd, r->buf + got, n - (uint64_t)got, lo + (uint64_t)got, name);
}

/* A block whose bytes are being summed. */
struct block_sums {
	const uint8_t *p;               /* its next byte */
	uint64_t at;                    /* offset of that byte in the file */
	uint64_t raw;                   /* raw sum of the bytes before it */
	bool is_bad;                    /* a tensor has a wrong digest; the first one: */
	struct shf_sums_tensor bad;
	uint64_t bad_digest;            /* what its digest is */
};

/* Sums the bytes up to `to`, which belong to no tensor. */
static void sum_rest(struct block_sums *b, uint64_t to)
{
	b->raw = shf_crc64_raw(b->raw, b->p, (size_t)(to - b->at));
	b->p += to - b->at;
	b->at = to;
}

/* A run shorter than this is summed twice, while it is in the L1 cache, which is cheaper than
 * shifting its sum. */
#define SHORT_RUN 128

/* Sums the bytes up to `to`, which belong to the tensor that is being summed. */
static void sum_run(struct shf_scrub *r, struct block_sums *b, uint64_t to)
{
	uint64_t n = to - b->at, sum = shf_crc64_raw(0, b->p, (size_t)n);

	r->digest = shf_crc64_shift(r->digest, n) ^ sum;
	b->raw = n < SHORT_RUN ? shf_crc64_raw(b->raw, b->p, (size_t)n)
	                       : shf_crc64_shift(b->raw, n) ^ sum;
	b->p += n;
	b->at = to;
}

/* Sums the block up to byte hi of the file, and adds its bytes to the digests of the tensors that
 * they belong to. Each byte is summed once. A tensor that lies in several shares goes to `cut`:
 * each share adds the sum of its part, and the share with the end of the tensor also the stored
 * digest. The XOR of the cuts of all shares is 0 if all such tensors are right. Returns false if
 * the reading has ended. A wrong digest does not end it, but is noted, because the sum of the block
 * is compared before it. */
static bool sum_scrubbed_block(struct shf_scrub *r, struct block_sums *b, uint64_t hi)
{
	uint64_t last = r->sums_file.first_tensor + r->sums_file.tensors_n;
	struct shf_sums_tensor t;

	for (; r->tensor < last; r->tensor++, r->digest = 0, r->whole = true) {
		if (!tensor_get(r, r->tensor, &t))
			return false;
		if (t.off >= hi)
			break;
		if (t.off > b->at)
			sum_rest(b, t.off);
		if (t.off + t.bytes > hi) {
			sum_run(r, b, hi);
			if (r->at + 1 == r->end) /* the rest of the tensor is in the next share */
				r->cut ^= shf_crc64_shift(r->digest, t.off + t.bytes - hi);
			return true;
		}
		if (t.off + t.bytes > b->at)
			sum_run(r, b, t.off + t.bytes);
		/* If the tensor is right, the parts in all shares and the stored digest cancel
		 * out. */
		if (!r->whole)
			r->cut ^= r->digest ^ t.digest;
		if (!r->whole || r->digest == t.digest || b->is_bad)
			continue;
		b->is_bad = true;
		b->bad = t;
		b->bad_digest = r->digest;
	}
	sum_rest(b, hi);
	return true;
}

/* A turn of the phase DATA: reads and checks one block. */
static bool turn_data(struct shf_scrub *r)
{
	const uint8_t *p;
	struct block_sums b = { .p = r->buf };
	uint64_t left, n, got, want;

	if (r->at == r->end) {
		shf_fd_close(r->sys, &r->fd);
		shf_fd_close(r->sys, &r->direct);
		r->phase = SMALL;
		return true;
	}
	if (!enter_file(r))
		return false;
	b.at = (r->at - r->first) * SHF_BLOCK;
	left = r->sums_file.bytes - b.at;
	n = left < SHF_BLOCK ? left : SHF_BLOCK;
	p = table_record(r, SHF_TABLE_BLOCKS, r->head.blocks_off + r->at * 8);
	if (!p)
		return false;
	want = shf_get64(p);
	if (!read_scrubbed_block(r, b.at, n) || !sum_scrubbed_block(r, &b, b.at + n))
		return false;
	got = b.raw ^ shf_crc64_ones(n);
	if (got != want) {
		shf_fail(&r->err, SHEAF_ECORRUPT, "%s/%s: block %" PRIu64 " at byte %" PRIu64
		         " has checksum %016" PRIx64 ", want %016" PRIx64, r->where,
		         r->manifest.files[r->file].name, r->at - r->first,
		         (r->at - r->first) * SHF_BLOCK, got, want);
		return end_as_damaged(r);
	}
	if (b.is_bad) {
		shf_fail(&r->err, SHEAF_ECORRUPT, "%s/%s: tensor at byte %" PRIu64 " has digest "
		         "%016" PRIx64 ", want %016" PRIx64, r->where,
		         r->manifest.files[r->file].name, b.bad.off, b.bad_digest, b.bad.digest);
		return end_as_damaged(r);
	}
	r->at++;
	return true;
}

/* ---- attached files and indexes ---- */

/* A turn of the phase SMALL: up to a block of an attached file. */
static bool turn_small(struct shf_scrub *r)
{
	const struct shf_mf_file *f;
	uint64_t n;

	if (r->small >= r->manifest.attached_n) {
		r->phase = ALL_READ;
		return false;
	}
	f = &r->manifest.attached[r->small];
	/* The first turn of this file. */
	if (r->fd < 0) {
		if (!open_scrubbed(r, f, &r->fd))
			return false;
		forget_range(r, r->fd, 0, f->bytes);
	}
	n = f->bytes - r->small_at < READ_BYTES ? f->bytes - r->small_at : READ_BYTES;
	if (!read_scrubbed(r, r->fd, r->buf, n, r->small_at, f->name))
		return false;
	r->small_crc = shf_crc64_more(r->small_crc, r->buf, (size_t)n);
	r->small_at += n;
	if (r->small_at < f->bytes)
		return true;
	if (r->small_crc != f->crc) {
		shf_fail(&r->err, SHEAF_ECORRUPT, "%s/%s: checksum %016" PRIx64 ", want %016"
		         PRIx64, r->where, f->name, r->small_crc, f->crc);
		return end_as_damaged(r);
	}
	shf_fd_close(r->sys, &r->fd);
	r->small += r->shares;
	r->small_at = 0;
	r->small_crc = shf_crc64(NULL, 0);
	return true;
}

/* One thread at a time may call this; it need not be the same thread each time. */
bool shf_scrub_turn(void *reread)
{
	struct shf_scrub *r = reread;

	switch (r->phase) {
	case BEGIN:
		return turn_begin(r);
	case TABLE:
		return turn_table(r);
	case DATA:
		return turn_data(r);
	case SMALL:
		return turn_small(r);
	default:
		return false;
	}
}

/* ---- for other readers ---- */

/* Drops one file from the page cache; ignores errors. */
static void forget_file(const struct shf_sys *sys, int dir, const char *name, uint64_t bytes)
{
	int fd = shf_in_step_open(sys, dir, name, SHF_O_NOFOLLOW);

	if (fd >= 0 && bytes)
		shf_sys_forget(sys, fd, 0, bytes);
	shf_fd_close(sys, &fd);
}

/* The manifest is dropped first, so that the list of the other files comes from the manifest on
 * disk. */
void shf_scrub_drop_cache(const struct shf_sys *sys, int dir)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error err;

	forget_file(sys, dir, "sheaf.json", SHF_MANIFEST_MAX);
	if (shf_manifest_read(sys, dir, "", &m, &arena, &err) == 0) {
		forget_file(sys, dir, m.sums.name, m.sums.bytes);
		for (size_t i = 0; i < m.files_n; i++)
			forget_file(sys, dir, m.files[i].name, m.files[i].bytes);
		for (size_t i = 0; i < m.attached_n; i++)
			forget_file(sys, dir, m.attached[i].name, m.attached[i].bytes);
	}
	shf_arena_release(&arena);
}
