/* SPDX-License-Identifier: Apache-2.0 */
/* lib/retain/scrub.c reads a step again that is made here byte by byte: tensors that end at a
 * block's end, tables of several pages, and tables with wrong entries whose checksums are right. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include "crc64.h"
#include "place.h"
#include "scrub.h"
#include "simdisk.h"
#include "starve.h"
#include "simover.h"
#include "t.h"
#include "deal_home.h"

#define ID "00112233445566778899aabbccddeeff"
#define OTHER "ffeeddccbbaa99887766554433221100"
#define SMALL "config.json"
enum { FILES = 3, TENSORS = 3000, HEAD = 64 };

static const char *const names[FILES] = { "model-00001-of-00003.safetensors",
	"model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors" };

struct made {
	struct simdisk *disk;
	uint64_t bytes[FILES];
	uint64_t ends[FILES][TENSORS];  /* where tensors end; the first begins behind the header */
	uint32_t tensors_n[FILES];
	uint64_t names_bytes, small_bytes;
	uint8_t *table;                 /* owned, as is what follows */
	uint8_t *data[FILES];
	struct shf_sums_head head;
	struct shf_mf_file files[FILES], attached, sums;
};

static uint64_t blocks_of(uint64_t bytes)
{
	return (bytes + SHF_BLOCK - 1) / SHF_BLOCK;
}

static void put_file_record(struct made *m, int f, uint64_t block, uint64_t tensor)
{
	struct shf_sums_file r = { m->bytes[f], block, tensor, m->tensors_n[f], HEAD };
	uint64_t off = HEAD;

	shf_sums_put_file(m->table + m->head.files_off + (uint64_t)f * SHF_SUMS_FILE, &r);
	for (uint32_t i = 0; i < m->tensors_n[f]; i++) {
		struct shf_sums_tensor t = { .off = off, .bytes = m->ends[f][i] - off,
			.file = (uint32_t)f };

		t.digest = shf_crc64_raw(0, m->data[f] + off, (size_t)t.bytes);
		shf_sums_put_tensor(m->table + m->head.tensors_off +
		                    (tensor + i) * SHF_SUMS_TENSOR, &t);
		off = m->ends[f][i];
	}
	for (uint64_t b = 0; b < blocks_of(m->bytes[f]); b++) {
		uint64_t at = b * SHF_BLOCK, left = m->bytes[f] - at;
		uint64_t n = left < SHF_BLOCK ? left : SHF_BLOCK;

		shf_put64(m->table + m->head.blocks_off + (block + b) * 8,
		          shf_crc64(m->data[f] + at, (size_t)n));
	}
}

static void put(struct made *m, const char *name, const void *bytes, uint64_t n)
{
	char path[100];

	snprintf(path, sizeof(path), "step/%s", name);
	CHECK_INT(simdisk_put(m->disk, path, bytes, (size_t)n), 0);
}

/* Makes files with m's sizes and tensors; the table is not on disk yet. */
static void make(struct made *m)
{
	uint8_t *small = calloc(1, (size_t)m->small_bytes + 1);
	uint64_t block = 0, tensor = 0;

	m->disk = simdisk_new(0x5eaf, SIMDISK_STRICT);
	m->head = (struct shf_sums_head){ .files_n = FILES, .names_bytes = m->names_bytes };
	for (int f = 0; f < FILES; f++) {
		m->head.tensors_n += m->tensors_n[f];
		m->head.blocks_n += blocks_of(m->bytes[f]);
	}
	CHECK(shf_sums_layout(&m->head));
	m->table = calloc(1, (size_t)m->head.bytes);
	shf_sums_put_head(m->table, &m->head);
	for (int f = 0; f < FILES; f++) {
		m->data[f] = malloc((size_t)m->bytes[f]);
		for (uint64_t i = 0; i < m->bytes[f]; i++)
			m->data[f][i] = (uint8_t)(i * 7 + i / 251 + (uint64_t)f);
		put_file_record(m, f, block, tensor);
		block += blocks_of(m->bytes[f]);
		tensor += m->tensors_n[f];
		m->files[f] = (struct shf_mf_file){ names[f], m->bytes[f],
			shf_crc64(m->data[f], (size_t)m->bytes[f]) };
		put(m, names[f], m->data[f], m->bytes[f]);
	}
	m->attached = (struct shf_mf_file){ SMALL, m->small_bytes,
		shf_crc64(small, (size_t)m->small_bytes) };
	put(m, SMALL, small, m->small_bytes);
	free(small);
}

/* The table with its sums, and a manifest with the table's. */
static void seal(struct made *m)
{
	struct shf_mf_family model = { "model", ".", FILES, m->head.tensors_n, 1 };
	struct shf_manifest mf = { .step = 1, .session = ID, .run = OTHER,
		.created = "2026-01-31T12:00:00Z", .version = "0.1.0", .commit = "abcdef",
		.compiler = "gcc 12", .file_bytes_max = 1, .ranks = 1, .families = &model,
		.families_n = 1,
		.files = m->files, .files_n = FILES, .attached = &m->attached, .attached_n = 1 };
	uint64_t pages = m->head.pages_off, n;
	struct shf_buf text = SHF_BUF_INIT;
	struct sheaf_error err;

	shf_put64(m->table + 120, shf_crc64(m->table, 120));
	for (uint64_t at = 0, p = pages; at < pages; at += n, p += 8) {
		n = pages - at < SHF_SUMS_PAGE ? pages - at : SHF_SUMS_PAGE;
		shf_put64(m->table + p, shf_crc64(m->table + at, (size_t)n));
	}
	mf.sums = m->sums.name ? m->sums : (struct shf_mf_file){ "sheaf.sums", m->head.bytes,
		shf_crc64_more(shf_crc64(m->table, SHF_SUMS_HEADER), m->table + pages,
		               (size_t)(m->head.bytes - pages)) };
	put(m, "sheaf.sums", m->table, mf.sums.bytes);
	CHECK_RC(shf_manifest_encode(&text, &mf, &err), 0, &err);
	put(m, "sheaf.json", text.data, text.len);
	shf_buf_release(&text);
}

static void drop(struct made *m)
{
	free(m->table);
	for (int f = 0; f < FILES; f++)
		free(m->data[f]);
	simdisk_free(m->disk);
	free(m);
}

/* Two blocks with one tensor, each; a small file. */
static struct made *plain(void)
{
	struct made *m = calloc(1, sizeof(*m));

	m->small_bytes = 100;
	for (int f = 0; f < FILES; f++) {
		m->bytes[f] = f < 2 ? 2 * SHF_BLOCK : 5000;
		m->tensors_n[f] = 2;
		m->ends[f][0] = f < 2 ? SHF_BLOCK : 3000;
		m->ends[f][1] = m->bytes[f];
	}
	return m;
}

static uint8_t *file_record(struct made *m, int f)
{
	return m->table + m->head.files_off + (uint64_t)f * SHF_SUMS_FILE;
}

static uint8_t *tensor_record(struct made *m, uint64_t t)
{
	return m->table + m->head.tensors_off + t * SHF_SUMS_TENSOR;
}

struct asked {
	const char *session;            /* NULL: the right one */
	int64_t step;                   /* 0: the right one */
	uint32_t share, shares;
	bool buffered;
	long starve;
	const char *run;                /* NULL: any */
};

/* All turns of it; no descriptor is left open. */
static struct shf_scrub reread(struct made *m, struct asked a)
{
	static uint64_t pid = 100;
	const struct shf_sys *sys = simdisk_process(m->disk, pid++, 0);
	struct sheaf_error err = { 0 };
	struct shf_scrub r;
	int dir = shf_sys_open(sys, SHF_CWD, "step", SHF_O_DIR, 0), rc;

	CHECK(dir >= 0);
	starved = false;
	starve_left = a.starve;
	rc = shf_scrub_init(&r, sys, dir, a.step ? a.step : 1, a.session ? a.session : ID,
	                    "step", &err);
	if (rc == 0) {
		r.share = a.share;
		r.shares = a.shares ? a.shares : 1;
		r.buffered = a.buffered;
		r.run = a.run;
		while (shf_scrub_turn(&r))
			;
		CHECK(r.rc < 0 || !shf_scrub_turn(&r)); /* over is over */
		shf_scrub_release(&r);
	} else {
		r.rc = rc;
		r.err = err;
	}
	starve_left = 0;
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(m->disk, sys);
	return r;
}

#define SAYS(r, want, words)                                                             \
	do {                                                                             \
		CHECK_RC((r).rc, (want), &(r).err);                                      \
		CHECK_INT((r).err.code, (want));                                         \
		if (!strstr((r).err.msg, (words)))                                       \
			print_error("%s:%d: %s\n", __FILE__, __LINE__, (r).err.msg);     \
		CHECK(strstr((r).err.msg, (words)) != NULL);                             \
	} while (0)

static struct {                 /* what went past the page cache, by descriptor */
	struct { bool direct; uint64_t from, to; } fds[64];     /* from, to: were forgotten */
	bool refused;
	uint64_t bytes, cached;         /* cached: what the cache may have had for long */
} past;

static int open_and_note(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	int fd = simover_real()->file.open(arg, dir, name, flags, mode);

	if (fd >= 0) {
		memset(&past.fds[fd % 64], 0, sizeof(*past.fds));
		past.fds[fd % 64].direct = flags & SHF_O_DIRECT;
	}
	return fd;
}

static void forget_and_note(void *arg, int fd, uint64_t off, uint64_t n)
{
	past.fds[fd % 64].from = off;
	past.fds[fd % 64].to = off + n;
	simover_real()->file.forget(arg, fd, off, n);
}

static int64_t pread_and_note(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	if (past.fds[fd % 64].direct && past.refused)
		return -EINVAL;
	if (past.fds[fd % 64].direct)
		past.bytes += n;
	else if (off < past.fds[fd % 64].from || off + n > past.fds[fd % 64].to)
		past.cached += n;
	return simover_real()->file.pread(arg, fd, buf, n, off);
}

/* Else what is proved is what the page cache has, not what the disk has. */
TEST(whole_pages_are_read_past_the_page_cache_and_the_rest_is_forgotten_there)
{
	struct made *m = plain();

	make(m);
	seal(m);
	for (int way = 0; way < 3; way++) {
		const struct shf_sys *sys = simdisk_process(m->disk, 90 + (uint64_t)way, 0);
		struct sheaf_error err = { 0 };
		struct shf_scrub r;
		int dir = shf_sys_open(sys, SHF_CWD, "step", SHF_O_DIR, 0);

		memset(&past, 0, sizeof(past));
		past.refused = way == 2;
		simover(sys)->file.open = open_and_note;
		simover(sys)->file.forget = forget_and_note;
		simover(sys)->file.pread = pread_and_note;
		CHECK_RC(shf_scrub_init(&r, sys, dir, 1, ID, "step", &err), 0, &err);
		r.buffered = way == 1;
		while (shf_scrub_turn(&r))
			;
		CHECK_RC(r.rc, 0, &r.err);
		shf_scrub_release(&r);
		/* The third file is shorter than a block. */
		CHECK_INT(past.bytes, way ? 0 : m->bytes[0] + m->bytes[1]);
		CHECK_INT(past.cached, 0);
		simdisk_kill(m->disk, sys);
	}
	drop(m);
}

TEST(tensors_may_end_where_a_block_does)
{
	struct made *m = plain();

	make(m);
	seal(m);
	for (uint32_t shares = 1; shares <= 6; shares++) {
		uint64_t cut = 0;

		for (uint32_t i = 0; i < shares; i++) {
			struct shf_scrub r = reread(m, (struct asked){ .share = i,
				.shares = shares });

			CHECK_RC(r.rc, 0, &r.err);
			CHECK_INT(r.cut, 0);    /* no tensor lies in two blocks */
			cut ^= r.cut;
		}
		CHECK_INT(cut, 0);
	}
	drop(m);
}

/* The last bytes of a file are no whole page, so they are not read past the page cache; who may
 * not do that at all reads the same. */
TEST(a_last_block_may_be_shorter_than_a_page)
{
	struct made *m = plain();
	struct shf_scrub r;

	m->bytes[0] += 1000;
	m->ends[0][1] = m->bytes[0];
	make(m);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	CHECK_RC(r.rc, 0, &r.err);
	r = reread(m, (struct asked){ .buffered = true });
	CHECK_RC(r.rc, 0, &r.err);
	CHECK(r.bytes > m->bytes[0] + m->bytes[1] + m->bytes[2] + m->small_bytes);
	simdisk_flip(m->disk, "step/model-00001-of-00003.safetensors", 8 * m->bytes[0] - 1);
	r = reread(m, (struct asked){ .shares = 1 });
	SAYS(r, SHEAF_ECORRUPT, "block 2 at byte 2097152");
	drop(m);
}

/* No tensor of it ends behind the block where a share begins. */
TEST(a_file_may_have_no_tensors)
{
	struct made *m = plain();
	struct shf_scrub r;

	m->tensors_n[1] = 0;
	make(m);
	seal(m);
	for (uint32_t shares = 1; shares <= 5; shares++)
		for (uint32_t i = 0; i < shares; i++) {
			r = reread(m, (struct asked){ .share = i, .shares = shares });
			CHECK_RC(r.rc, 0, &r.err);
		}
	drop(m);
}

TEST(a_table_may_be_longer_than_a_turn)
{
	struct made *m = plain();
	struct shf_scrub r;

	m->names_bytes = 40 * SHF_SUMS_PAGE;
	make(m);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	CHECK_RC(r.rc, 0, &r.err);
	CHECK(r.bytes > m->head.bytes);
	/* A page that no record is in is looked at, too. */
	CHECK_INT(simdisk_flip(m->disk, "step/sheaf.sums", 8 * 39 * SHF_SUMS_PAGE), 0);
	r = reread(m, (struct asked){ .shares = 1 });
	SAYS(r, SHEAF_ECORRUPT, "step/sheaf.sums: page 39");
	drop(m);
}

TEST(an_attached_file_may_be_longer_than_a_turn)
{
	struct made *m = plain();
	struct shf_scrub r;

	m->small_bytes = SHF_BLOCK * 5 / 2;
	make(m);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	CHECK_RC(r.rc, 0, &r.err);
	CHECK_INT(simdisk_flip(m->disk, "step/" SMALL, 8 * m->small_bytes - 8), 0);
	r = reread(m, (struct asked){ .shares = 1 });
	SAYS(r, SHEAF_ECORRUPT, "step/" SMALL ": checksum");
	drop(m);
}

TEST(what_is_not_the_step_that_was_committed_is_damage)
{
	struct made *m = plain();
	struct shf_scrub r;

	make(m);
	seal(m);
	r = reread(m, (struct asked){ .step = 2 });
	SAYS(r, SHEAF_ECORRUPT, "is not the checkpoint that was committed, but step 1");
	r = reread(m, (struct asked){ .session = OTHER });
	SAYS(r, SHEAF_ECORRUPT, "of session " ID);
	drop(m);
}

TEST(a_file_of_another_length_is_damage)
{
	static const char *const odd[] = { SMALL, "model-00003-of-00003.safetensors" };

	for (int i = 0; i < 2; i++) {
		struct made *m = plain();
		struct shf_scrub r;

		make(m);
		seal(m);
		put(m, odd[i], "xy", 2);
		r = reread(m, (struct asked){ .shares = 1 });
		SAYS(r, SHEAF_ECORRUPT, odd[i]);
		SAYS(r, SHEAF_ECORRUPT, "2 bytes, the manifest says");
		drop(m);
	}
}

TEST(a_folder_in_the_place_of_a_file_is_damage)
{
	static const char *const odd[] = { SMALL, "model-00003-of-00003.safetensors",
		"sheaf.sums", "sheaf.json" };

	for (int i = 0; i < 4; i++) {
		struct made *m = plain();
		struct shf_scrub r;
		char path[100];

		make(m);
		seal(m);
		snprintf(path, sizeof(path), "step/%s", odd[i]);
		CHECK_INT(simdisk_remove(m->disk, path), 0);
		CHECK_INT(simdisk_put(m->disk, strcat(path, "/x"), "x", 1), 0);
		r = reread(m, (struct asked){ .shares = 1 });
		SAYS(r, SHEAF_ECORRUPT, odd[i]);
		drop(m);
	}
}

TEST(a_table_without_a_header_is_damage)
{
	struct made *m = plain();
	struct shf_scrub r;

	make(m);
	m->sums = (struct shf_mf_file){ "sheaf.sums", SHF_SUMS_HEADER - 1, 5 };
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	SAYS(r, SHEAF_ECORRUPT, "127 bytes are too short for a file of checksums");
	drop(m);
}

/* ---- what a table says wrongly, with every sum above it right ---- */

static void lie(void (*edit)(struct made *m), const char *words)
{
	struct made *m = plain();
	struct shf_scrub r;

	make(m);
	edit(m);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	SAYS(r, SHEAF_ECORRUPT, words);
	drop(m);
}

static void one_file_more(struct made *m)
{
	shf_put64(m->table + 16, FILES + 1); /* where all else lies does not change with that */
}

static void other_bytes(struct made *m)
{
	shf_put64(file_record(m, 1), m->bytes[1] + 1);
}

static void other_block(struct made *m)
{
	shf_put64(file_record(m, 1) + 8, 3);
}

static void too_many_tensors(struct made *m)
{
	shf_put32(file_record(m, 2) + 24, 3);
}

/* Counted from there, its last one is number 1 of the first file. */
static void tensors_from_far_off(struct made *m)
{
	shf_put64(file_record(m, 2) + 16, UINT64_MAX);
}

static void more_tensors_than_all(struct made *m)
{
	shf_put32(file_record(m, 2) + 24, UINT32_MAX);
}

static void fewer_blocks(struct made *m)
{
	shf_put64(m->table + 32, 1);
}

static void other_digest(struct made *m)
{
	*(tensor_record(m, 4) + SHF_SUMS_DIGEST) ^= 1;
}

TEST(what_a_table_says_wrongly_is_damage)
{
	lie(one_file_more, "has checksums of 4 files and 5 blocks, the manifest names 3 and 5");
	lie(other_bytes, "contradicts the manifest about model-00002-of-00003.safetensors");
	lie(other_block, "contradicts the manifest about model-00002-of-00003.safetensors");
	lie(too_many_tensors, "contradicts the manifest about model-00003-of-00003.safetensors");
	lie(tensors_from_far_off, "contradicts the manifest about "
	    "model-00003-of-00003.safetensors");
	lie(more_tensors_than_all,
	    "contradicts the manifest about model-00003-of-00003.safetensors");
	lie(fewer_blocks, "has checksums of 3 files and 1 blocks");
	lie(other_digest, "model-00003-of-00003.safetensors: tensor at byte 64 has digest");
}

/* ---- what is said, in full ---- */

static void __attribute__((format(printf, 2, 3))) says_all(const struct shf_scrub *r,
                                                           const char *fmt, ...)
{
	char want[500];
	va_list args;

	va_start(args, fmt);
	vsnprintf(want, sizeof(want), fmt, args);
	va_end(args);
	CHECK_INT(r->rc, SHEAF_ECORRUPT);
	CHECK_STR(r->err.msg, want);
}

/* Of n bytes with that bit turned over. */
static uint64_t turned(const uint8_t *bytes, uint64_t n, uint64_t bit)
{
	uint8_t *copy = malloc((size_t)n);
	uint64_t crc;

	memcpy(copy, bytes, (size_t)n);
	copy[bit / 8] ^= (uint8_t)(1U << bit % 8);
	crc = shf_crc64(copy, (size_t)n);
	free(copy);
	return crc;
}

TEST(bytes_that_changed_are_told_with_both_sums)
{
	static const uint8_t small[100];
	struct made *m = plain();
	uint64_t bit = 8 * (SHF_BLOCK + 5) + 3, head;
	char path[100];
	struct shf_scrub r;

	make(m);
	seal(m);
	snprintf(path, sizeof(path), "step/%s", names[1]);
	CHECK_INT(simdisk_flip(m->disk, path, bit), 0);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/%s: block 1 at byte 1048576 has checksum %016" PRIx64 ", want %016"
	         PRIx64, names[1], turned(m->data[1] + SHF_BLOCK, SHF_BLOCK, bit - 8 * SHF_BLOCK),
	         shf_crc64(m->data[1] + SHF_BLOCK, SHF_BLOCK));
	CHECK_INT(simdisk_flip(m->disk, path, bit), 0);
	CHECK_INT(simdisk_flip(m->disk, "step/" SMALL, 77), 0);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/" SMALL ": checksum %016" PRIx64 ", want %016" PRIx64,
	         turned(small, sizeof(small), 77), shf_crc64(small, sizeof(small)));
	CHECK_INT(simdisk_flip(m->disk, "step/" SMALL, 77), 0);
	bit = 8 * m->head.tensors_off;
	CHECK_INT(simdisk_flip(m->disk, "step/sheaf.sums", bit), 0);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/sheaf.sums: page 0 at byte 0 has checksum %016" PRIx64 ", want %016"
	         PRIx64, turned(m->table, m->head.pages_off, bit),
	         shf_crc64(m->table, (size_t)m->head.pages_off));
	CHECK_INT(simdisk_flip(m->disk, "step/sheaf.sums", bit), 0);
	head = shf_crc64(m->table, SHF_SUMS_HEADER);
	CHECK_INT(simdisk_flip(m->disk, "step/sheaf.sums", 8 * m->head.pages_off + 1), 0);
	m->table[m->head.pages_off] ^= 2;
	r = reread(m, (struct asked){ .shares = 1 });
	bit = shf_crc64_more(head, m->table + m->head.pages_off, 8);
	m->table[m->head.pages_off] ^= 2;
	says_all(&r, "step/sheaf.sums: header and page table have checksum %016" PRIx64
	         ", want %016" PRIx64, bit,
	         shf_crc64_more(head, m->table + m->head.pages_off, 8));
	drop(m);
}

TEST(lengths_digests_and_names_are_told_with_what_they_should_be)
{
	struct made *m = plain();
	uint64_t digest;
	struct shf_scrub r;

	make(m);
	digest = shf_get64(tensor_record(m, 4) + SHF_SUMS_DIGEST);
	other_digest(m);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/%s: tensor at byte 64 has digest %016" PRIx64 ", want %016" PRIx64,
	         names[2], digest, shf_get64(tensor_record(m, 4) + SHF_SUMS_DIGEST));
	other_digest(m);
	seal(m);
	r = reread(m, (struct asked){ .step = 2 });
	says_all(&r, "step/sheaf.json: is not the checkpoint that was committed, but step 1 of "
	         "session " ID);
	r = reread(m, (struct asked){ .run = ID });
	says_all(&r, "step/sheaf.json: is of run " OTHER ", and this is run " ID);
	r = reread(m, (struct asked){ .run = OTHER });
	CHECK_RC(r.rc, 0, &r.err);
	r = reread(m, (struct asked){ .run = "" });
	CHECK_RC(r.rc, 0, &r.err);
	one_file_more(m);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/sheaf.sums: has checksums of 4 files and 5 blocks, the manifest names 3 "
	         "and 5");
	shf_put64(m->table + 16, FILES);
	other_block(m);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/sheaf.sums: contradicts the manifest about %s", names[1]);
	shf_put64(file_record(m, 1) + 8, 2);
	seal(m);
	r = reread(m, (struct asked){ .shares = 1 });
	CHECK_RC(r.rc, 0, &r.err);
	put(m, SMALL, "xy", 2);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/" SMALL ": 2 bytes, the manifest says 100");
	put(m, names[2], m->data[2], 4999);
	r = reread(m, (struct asked){ .shares = 1 });
	says_all(&r, "step/%s: 4999 bytes, the manifest says 5000", names[2]);
	drop(m);
}

/* A file that ends while it is read, and one that cannot be read a few times. */
static int fails;               /* so many more reads of what is asked for at `odd_off` */
static uint64_t odd_off;
static int64_t odd_result;

static int64_t pread_oddly(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	int64_t got = simover_real()->file.pread(arg, fd, buf, n, off);

	if (off != odd_off || n != 5000 || fails == 0)
		return got;
	fails--;
	return odd_result;
}

TEST(a_read_is_tried_four_times_and_a_short_one_is_damage)
{
	static const struct {
		int64_t result;
		int fails, code;
		const char *words;
	} rows[] = {
		{ -EIO, 3, 0, "" }, { -EIO, 4, SHEAF_EIO, ": Input/output error" },
		{ -EACCES, 1, SHEAF_EIO, ": Permission denied" },
		{ 4999, 1, SHEAF_ECORRUPT, ": ends at byte 4999" },
		{ 0, 1, SHEAF_ECORRUPT, ": ends at byte 0" },
	};
	struct made *m = plain();

	make(m);
	seal(m);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct shf_sys *sys = simdisk_process(m->disk, 700 + i, 0);
		struct sheaf_error err = { 0 };
		struct shf_scrub r;
		char want[200];

		simover(sys)->file.pread = pread_oddly;
		odd_off = 0;
		odd_result = rows[i].result;
		fails = rows[i].fails;
		CHECK_RC(shf_scrub_init(&r, sys, shf_sys_open(sys, SHF_CWD, "step",
		                        SHF_O_DIR, 0), 1, ID, "step", &err), 0, &err);
		while (shf_scrub_turn(&r))
			;
		CHECK_INT(r.rc, rows[i].code);
		CHECK_INT(fails, 0);
		snprintf(want, sizeof(want), "step/%s%s", names[2], rows[i].words);
		if (r.rc)
			CHECK_STR(r.err.msg, want);
		shf_scrub_release(&r);
		CHECK_INT(simdisk_open_n(sys), 0);
		simdisk_kill(m->disk, sys);
	}
	drop(m);
}

TEST(a_manifest_may_have_one_mebibyte)
{
	static const uint64_t sizes[] = { SHF_MANIFEST_MAX, SHF_MANIFEST_MAX + 1 };
	uint8_t *text = calloc(1, SHF_MANIFEST_MAX + 1);
	struct made *m = plain();

	make(m);
	seal(m);
	for (int i = 0; i < 2; i++) {
		struct shf_scrub r;

		put(m, "sheaf.json", text, sizes[i]);
		r = reread(m, (struct asked){ .shares = 1 });
		CHECK_INT(r.rc, SHEAF_ECORRUPT);
		CHECK((strcmp(r.err.msg, "step/sheaf.json: File too large") == 0) == (i == 1));
	}
	free(text);
	drop(m);
}

/* ---- less than it needs ---- */

TEST(without_memory_nothing_is_said_of_the_step)
{
	struct made *m = plain();
	struct shf_scrub r;
	long nth = 1;

	make(m);
	seal(m);
	for (;; nth++) {
		r = reread(m, (struct asked){ .starve = nth });
		if (!starved)
			break;
		SAYS(r, SHEAF_ENOMEM, "");
		CHECK(r.err.msg[0]);
		if (nth <= 1 + SHF_TABLE_SECTIONS)
			SAYS(r, SHEAF_ENOMEM, "no memory to read step 1 again");
	}
	CHECK(nth > 6);
	CHECK_RC(r.rc, 0, &r.err);
	drop(m);
}

/* Tensors in three pages of the table; that of the second block's first one begins with it. */
static struct made *many(void)
{
	enum { FIRST = 1020 };
	struct made *m = plain();

	m->tensors_n[0] = TENSORS;
	for (uint32_t i = 0; i < TENSORS; i++)
		m->ends[0][i] = SHF_BLOCK + (i + 1) * 64 - FIRST * 64;
	m->ends[0][TENSORS - 1] = m->bytes[0];
	return m;
}

TEST(each_read_may_fail_where_the_table_has_many_pages)
{
	struct made *m = many();
	long n = 0;

	make(m);
	seal(m);
	CHECK_INT((tensor_record(m, 1020) - m->table) % (ptrdiff_t)SHF_SUMS_PAGE, 0);
	simdisk_set_trace(m->disk, false);
	for (uint32_t share = 0; share < 5; share++)
		for (int nth = 1, hit = 1; hit; nth++) {
			struct simdisk_fault fault = { .nth = nth, .error = EACCES,
				.kind = SIMDISK_PREAD };
			struct shf_scrub r;

			simdisk_fault(m->disk, &fault);
			r = reread(m, (struct asked){ .share = share, .shares = 5,
				.buffered = true });
			hit = simdisk_fired(m->disk);
			simdisk_faults_clear(m->disk);
			n += hit;
			if (hit)
				SAYS(r, SHEAF_EIO, "step/");
			else
				CHECK_RC(r.rc, 0, &r.err);
		}
	printf("# %ld reads failed\n", n);
	CHECK(n > 20);
	drop(m);
}
