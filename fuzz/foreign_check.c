/* SPDX-License-Identifier: Apache-2.0 */
#include "foreign_check.h"
#include "foreign.h"
#include "foreign_dir.h"
#include "foreign_read.h"
#include "fuzz.h"
#include "safetensors.h"

void put_archive(struct shf_buf *b, struct ram_record *r, size_t n)
{
	size_t dir;

	for (size_t i = 0; i < n; i++) {
		r[i].at = b->len;
		shf_buf_u32(b, 0x04034b50);
		shf_buf_u32(b, 0x08080000);
		shf_buf_extend(b, 18);
		shf_buf_u16(b, (uint16_t)strlen(r[i].name));
		shf_buf_u16(b, 0);
		shf_buf_adds(b, r[i].name);
		shf_buf_add(b, r[i].bytes, r[i].n);
	}
	dir = b->len;
	for (size_t i = 0; i < n; i++) {
		shf_buf_u32(b, 0x02014b50);
		shf_buf_extend(b, 16);
		shf_buf_u32(b, (uint32_t)r[i].n);
		shf_buf_u32(b, (uint32_t)r[i].n);
		shf_buf_u16(b, (uint16_t)strlen(r[i].name));
		shf_buf_extend(b, 12);
		shf_buf_u32(b, (uint32_t)r[i].at);
		shf_buf_adds(b, r[i].name);
	}
	shf_buf_u32(b, 0x06054b50);
	shf_buf_u32(b, 0);
	shf_buf_u16(b, (uint16_t)n);
	shf_buf_u16(b, (uint16_t)n);
	shf_buf_u32(b, (uint32_t)(b->len - dir - 12));
	shf_buf_u32(b, (uint32_t)dir);
	shf_buf_u16(b, 0);
}

static void check_header(const struct shf_foreign *f)
{
	const struct shf_sys *sys = shf_foreign_sys(f);
	int dir = shf_sys_open(sys, SHF_CWD, SHF_FOREIGN_DIR, SHF_O_DIR, 0);
	size_t n;

	shf_foreign_tensors(f, &n);
	for (size_t i = 0; shf_foreign_shown(f, i); i++) {
		int fd = shf_sys_open(sys, dir, shf_foreign_shown(f, i), 0, 0);
		struct shf_arena arena = { 0 };
		struct sheaf_error err;
		struct shf_stat stat;
		uint8_t head[8], *bytes;
		struct shf_st st;
		uint64_t len;

		MUST(fd >= 0 && shf_sys_fstat(sys, fd, &stat) == 0);
		MUST(shf_sys_pread(sys, fd, head, 8, 0) == 8);
		MUST(shf_st_header_bytes(&len, head, stat.bytes, "shown", &err) == 0);
		bytes = malloc(len);
		MUST(bytes && shf_sys_pread(sys, fd, bytes, len, 0) == (int64_t)len);
		MUST(shf_st_parse(&st, &arena, bytes, len, stat.bytes, "shown", &err) == 0);
		MUST(n >= st.n);
		n -= st.n;
		free(bytes);
		shf_arena_release(&arena);
	}
	MUST(n == 0);
}

/* Whether a read of the tensor may find out that it is damaged: its items are found only then, it
 * is compressed, or it is refused. */
static bool may_be_refused(const struct shf_foreign *f, const struct shf_foreign_tensor *t)
{
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;

	for (size_t i = t->first; i < t->first + t->n; i++)
		if (p[i].packed)
			return true;
	return t->refused || f->format->resolve || f->format->make_pieces;
}

/* Each tensor lies within its file, so what is read of it is there. */
static void check_tensors(struct shf_foreign *f)
{
	uint8_t some[600];
	size_t n;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n);

	for (size_t i = 0; i < n && i < 64; i++) {
		uint64_t len = t[i].bytes < sizeof(some) ? t[i].bytes : sizeof(some);
		struct sheaf_error err;
		int rc = len ? shf_foreign_gather(f, &t[i], some, len, 0, &err) : 0;

		if (rc == 0 && len)
			rc = shf_foreign_gather(f, &t[i], some, len, t[i].bytes - len, &err);
		MUST(rc == 0 || (rc == SHEAF_EFORMAT && err.msg[0] && may_be_refused(f, &t[i])) ||
		     (rc == SHEAF_EFORMAT && (strstr(err.msg, "dimensions") ||
		                              strstr(err.msg, "the text of an array"))));
	}
}

static void found(void *arg, bool is_sum, const char *file, int64_t offset,
                  const struct sheaf_error *e)
{
	(void)is_sum;
	MUST(file && e->msg[0] && offset >= -1);
	++*(int *)arg;
}

void check_foreign(struct ramdisk *disk, const char *path)
{
	struct shf_foreign_findings to = { .found = found };
	struct sheaf_error err = { .msg = "" };
	struct shf_foreign *f = NULL;
	int rc, findings = 0;

	rc = shf_foreign_is_here(&disk->sys, path, &err);
	MUST(rc == 0 || rc == 1 || (rc == SHEAF_EFORMAT && err.msg[0]));
	if (rc == 1) {
		rc = shf_foreign_open(&f, &disk->sys, path, &err);
		MUST(rc == 0 || (rc == SHEAF_EFORMAT && !strncmp(err.msg, path, strlen(path))));
	}
	if (f) {
		check_header(f);
		check_tensors(f);
		to.arg = &findings;
		rc = f->format->verify ? f->format->verify(f, &to, &err) : 0;
		MUST(rc == 0 || rc == SHEAF_EFORMAT);
		shf_foreign_free(f);
	}
	MUST(disk->open_n == 0);
	ramdisk_release(disk);
}
