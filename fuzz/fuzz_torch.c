/* SPDX-License-Identifier: Apache-2.0 */
/* A file of torch.save. By the first byte: 0, the input is the file; 1, it is the pickle of a sound
 * archive with storages "0" and "1"; 2, it is a legacy file behind its magic number. What is taken
 * can be listed and read to its end, and its header is one that the reader of safetensors takes. */
#include "foreign.h"
#include "foreign_dir.h"
#include "foreign_read.h"
#include "fuzz.h"
#include "pickle.h"
#include "ramdisk.h"
#include "safetensors.h"

#define PATH "f.pt"

static struct ramdisk disk;

struct record { const char *name; const uint8_t *bytes; size_t n, at; };

/* An archive without sums: they are checked by a verification alone. */
static void put_archive(struct shf_buf *b, struct record *r, size_t n)
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
		MUST(rc == 0 || (rc == SHEAF_EFORMAT && strstr(err.msg, "dimensions")));
	}
}

static void found(void *arg, bool is_sum, const char *file, int64_t offset,
                  const struct sheaf_error *e)
{
	(void)is_sum;
	MUST(file && e->msg[0] && offset >= -1);
	++*(int *)arg;
}

/* Takes the bytes. */
static void open_file(struct shf_buf *bytes)
{
	struct shf_foreign_findings to = { .found = found };
	struct sheaf_error err = { .msg = "" };
	struct shf_foreign *f = NULL;
	int rc, findings = 0;

	MUST(!bytes->oom);
	ramdisk_init(&disk);
	ram_put(&disk, NULL, PATH, SHF_T_FILE, bytes->data, bytes->len);
	rc = shf_foreign_is_here(&disk.sys, PATH, &err);
	MUST(rc == 0 || rc == 1 || (rc == SHEAF_EFORMAT && !strncmp(err.msg, PATH, strlen(PATH))));
	if (rc == 1) {
		rc = shf_foreign_open(&f, &disk.sys, PATH, &err);
		MUST(rc == 0 || (rc == SHEAF_EFORMAT && !strncmp(err.msg, PATH, strlen(PATH))));
	}
	if (f) {
		check_header(f);
		check_tensors(f);
		to.arg = &findings;
		rc = f->format->verify ? f->format->verify(f, &to, &err) : 0;
		MUST(rc == 0 || rc == SHEAF_EFORMAT);
		shf_foreign_free(f);
	}
	MUST(disk.open_n == 0);
	ramdisk_release(&disk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t magic[] = "\x80\x02\x8a\nl\xfc\x9c" "F\xf9 "
								 "j\xa8P\x19.\x80\x02M\xe9\x03.";
	struct shf_buf b = SHF_BUF_INIT;
	uint8_t data0[256];

	if (size < 2)
		return 0;
	memset(data0, 7, sizeof(data0));
	if (data[0] % 3 == 1) {
		struct record r[] = { { "a/data.pkl", data + 1, size - 1, 0 },
			{ "a/data/0", data0, 64, 0 }, { "a/data/1", data0, 256, 0 },
			{ "a/byteorder", (const uint8_t *)"little", 6, 0 } };

		put_archive(&b, r, sizeof(r) / sizeof(r[0]));
	} else {
		if (data[0] % 3 == 2)
			shf_buf_add(&b, magic, sizeof(magic) - 1);
		shf_buf_add(&b, data + 1, size - 1);
	}
	open_file(&b);
	return 0;
}
