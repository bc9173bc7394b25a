/* SPDX-License-Identifier: Apache-2.0 */
/* Memory. Invariant: no other file of the library calls malloc, calloc, realloc or free, so a test
 * that replaces them (test/memfail.h) can make every allocation fail. */
#include "mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sheaf.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif

/* Bytes after each allocation of an arena that belong to no caller: ASan reports an access to
 * them. */
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#define RED_ZONE ((size_t)16)
#define hide(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define show(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define RED_ZONE ((size_t)0)
#define hide(p, n) ((void)(p), (void)(n))
#define show(p, n) ((void)(p), (void)(n))
#endif

bool shf_mul(size_t *out, size_t a, size_t b)
{
	size_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*out = product;
	return true;
}

bool shf_add(size_t *out, size_t a, size_t b)
{
	size_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*out = sum;
	return true;
}

bool shf_mul64(uint64_t *out, uint64_t a, uint64_t b)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*out = product;
	return true;
}

bool shf_add64(uint64_t *out, uint64_t a, uint64_t b)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*out = sum;
	return true;
}

/* A size of 0 allocates one byte, so NULL always means that there is no memory. */
void *shf_alloc(size_t n, size_t size)
{
	size_t bytes;

	if (!shf_mul(&bytes, n, size))
		return NULL;
	return malloc(bytes ? bytes : 1);
}

void *shf_zalloc(size_t n, size_t size)
{
	size_t bytes;

	if (!shf_mul(&bytes, n, size))
		return NULL;
	return calloc(bytes ? bytes : 1, 1);
}

void *shf_realloc(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (!shf_mul(&bytes, n, size))
		return NULL;
	return realloc(p, bytes ? bytes : 1);
}

char *shf_strdup(const char *s)
{
	size_t n = strlen(s) + 1;
	char *copy = shf_alloc(n, 1);

	if (copy)
		memcpy(copy, s, n);
	return copy;
}

void shf_free(void *p)
{
	free(p);
}

void shf_buf_release(struct shf_buf *b)
{
	if (!b)
		return;
	shf_free(b->data);
	*b = (struct shf_buf)SHF_BUF_INIT;
}

void shf_bufs_free(struct shf_buf *bufs, int n)
{
	for (int i = 0; bufs && i < n; i++)
		shf_buf_release(&bufs[i]);
	shf_free(bufs);
}

void shf_buf_reset(struct shf_buf *b)
{
	b->len = 0;
	b->oom = false;
}

/* A failure sets b->oom, and every later append does nothing. So callers append without checks and
 * check once at the end. */
int shf_buf_reserve(struct shf_buf *b, size_t more)
{
	size_t want, cap;
	uint8_t *data;

	if (b->oom)
		return SHEAF_ENOMEM;
	if (!shf_add(&want, b->len, more))
		goto oom;
	if (b->data && want <= b->cap)
		return 0;
	/* Doubling keeps appends linear in time. If twice the size overflows, only what is needed
	 * is allocated. */
	if (!shf_mul(&cap, b->cap, 2) || cap < want)
		cap = want;
	if (cap < 64)
		cap = 64;
	data = shf_realloc(b->data, cap, 1);
	if (!data)
		goto oom;
	b->data = data;
	b->cap = cap;
	return 0;
oom:
	b->oom = true;
	return SHEAF_ENOMEM;
}

/* The pointer is valid until the next append, which may move the buffer. */
uint8_t *shf_buf_room(struct shf_buf *b, size_t n)
{
	uint8_t *p;

	if (shf_buf_reserve(b, n))
		return NULL;
	p = b->data + b->len;
	b->len += n;
	return p;
}

uint8_t *shf_buf_extend(struct shf_buf *b, size_t n)
{
	uint8_t *p = shf_buf_room(b, n);

	if (p)
		memset(p, 0, n);
	return p;
}

void shf_buf_add(struct shf_buf *b, const void *bytes, size_t n)
{
	if (!n || shf_buf_reserve(b, n))
		return;
	memcpy(b->data + b->len, bytes, n);
	b->len += n;
}

void shf_buf_adds(struct shf_buf *b, const char *s)
{
	shf_buf_add(b, s, strlen(s));
}

/* The text is formatted twice: once for its length, once into the buffer. The arguments are
 * read twice too, hence the two va_start(). */
void shf_buf_addf(struct shf_buf *b, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0) {
		b->oom = true;  /* the text is longer than INT_MAX: treated like a lack of memory */
		return;
	}
	/* vsnprintf() needs room for a NUL, which len does not count. */
	if (shf_buf_reserve(b, (size_t)n + 1))
		return;
	va_start(ap, fmt);
	vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

void shf_buf_u8(struct shf_buf *b, uint8_t v)
{
	shf_buf_add(b, &v, 1);
}

void shf_buf_u16(struct shf_buf *b, uint16_t v)
{
	uint8_t p[2];

	shf_put16(p, v);
	shf_buf_add(b, p, sizeof(p));
}

void shf_buf_u32(struct shf_buf *b, uint32_t v)
{
	uint8_t p[4];

	shf_put32(p, v);
	shf_buf_add(b, p, sizeof(p));
}

void shf_buf_u64(struct shf_buf *b, uint64_t v)
{
	uint8_t p[8];

	shf_put64(p, v);
	shf_buf_add(b, p, sizeof(p));
}

/* Compares n with the bytes that are left instead of adding it to the pointer, which would be
 * undefined past the end. Once bad, the reader stays bad, so a record is decoded whole and checked
 * once. */
const uint8_t *shf_cur_bytes(struct shf_cur *c, size_t n)
{
	static const uint8_t none[1];
	const uint8_t *p = c->p;

	if (c->bad)
		return NULL;
	if (!p)
		p = none;       /* an empty reader may have p NULL; reading 0 bytes from it
		                 * succeeds, and NULL would mean that it failed */
	if (n > (size_t)(c->end - c->p)) {
		c->bad = true;
		return NULL;
	}
	if (n)
		c->p += n;
	return p;
}

uint8_t shf_cur_u8(struct shf_cur *c)
{
	const uint8_t *p = shf_cur_bytes(c, 1);

	return p ? p[0] : 0;
}

uint16_t shf_cur_u16(struct shf_cur *c)
{
	const uint8_t *p = shf_cur_bytes(c, 2);

	return p ? shf_get16(p) : 0;
}

uint32_t shf_cur_u32(struct shf_cur *c)
{
	const uint8_t *p = shf_cur_bytes(c, 4);

	return p ? shf_get32(p) : 0;
}

uint64_t shf_cur_u64(struct shf_cur *c)
{
	const uint8_t *p = shf_cur_bytes(c, 8);

	return p ? shf_get64(p) : 0;
}

/* A chunk is zeroed when it is allocated, and no part of it is given out twice, so allocations are
 * zeroed. */
struct shf_arena_chunk {
	struct shf_arena_chunk *next;   /* owned */
	size_t cap;                     /* bytes of data, a multiple of 16 */
	_Alignas(16) uint8_t data[];
};
_Static_assert(_Alignof(max_align_t) >= 16, "malloc aligns what it gives to 16");

#define CHUNK_MIN ((size_t)4096)
#define CHUNK_MAX ((size_t)1 << 20)

/* Allocates a chunk of cap bytes. All of it is poisoned for ASan until parts of it are given
 * out. */
static struct shf_arena_chunk *chunk_new(size_t cap)
{
	struct shf_arena_chunk *chunk;
	size_t bytes;

	if (!shf_add(&bytes, sizeof(*chunk), cap))
		return NULL;
	chunk = shf_zalloc(bytes, 1);
	if (!chunk)
		return NULL;
	chunk->cap = cap;
	hide(chunk->data, cap);
	return chunk;
}

/* Returns a chunk with room for `bytes` more, at *off. Each chunk is twice as large as the one
 * before, up to CHUNK_MAX. An allocation of more than a quarter of the next chunk gets a chunk of
 * its own, which is inserted after the newest, so that the rest of the newest stays in use. */
static struct shf_arena_chunk *chunk_for(struct shf_arena *a, size_t bytes, size_t *off)
{
	struct shf_arena_chunk *newest = a->chunks, *chunk;
	size_t cap = newest ? newest->cap * 2 : CHUNK_MIN;

	if (newest && bytes <= newest->cap - a->used) {
		*off = a->used;
		a->used += bytes;
		return newest;
	}
	if (cap > CHUNK_MAX)
		cap = CHUNK_MAX;
	chunk = chunk_new(bytes > cap / 4 ? bytes : cap);
	if (!chunk)
		return NULL;
	*off = 0;
	if (newest && bytes > cap / 4) {
		chunk->next = newest->next;
		newest->next = chunk;
	} else {
		chunk->next = newest;
		a->chunks = chunk;
		a->used = bytes;
	}
	return chunk;
}

/* Sizes are rounded up to 16 bytes, which keeps every allocation aligned. With ASan at least 16
 * bytes after each stay poisoned, so a write past its end is reported. */
void *shf_arena_alloc(struct shf_arena *a, size_t n, size_t size)
{
	struct shf_arena_chunk *chunk;
	size_t bytes, padded, off;

	if (!shf_mul(&bytes, n, size))
		return NULL;
	if (!bytes)
		bytes = 1;
	if (!shf_add(&padded, bytes, 15 + RED_ZONE))
		return NULL;
	padded &= ~(size_t)15;
	chunk = chunk_for(a, padded, &off);
	if (!chunk)
		return NULL;
	show(chunk->data + off, bytes);
	return chunk->data + off;
}

char *shf_arena_strdup(struct shf_arena *a, const char *s, size_t n)
{
	size_t bytes;
	char *copy;

	if (!shf_add(&bytes, n, 1))
		return NULL;
	copy = shf_arena_alloc(a, bytes, 1);
	if (copy && n)
		memcpy(copy, s, n);
	return copy;
}

void shf_arena_release(struct shf_arena *a)
{
	struct shf_arena_chunk *chunk, *next;

	if (!a)
		return;
	for (chunk = a->chunks; chunk; chunk = next) {
		next = chunk->next;
		show(chunk->data, chunk->cap);
		shf_free(chunk);
	}
	*a = (struct shf_arena){ NULL, 0 };
}
