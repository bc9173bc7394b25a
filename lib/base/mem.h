/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: sizes that cannot overflow, growing buffers, arenas for allocations that are freed
 * together, little-endian put and get. All allocation of the library goes through shf_alloc and its
 * relatives, so that tests can make the n-th one fail (test/memfail.h). */
#ifndef SHF_MEM_H
#define SHF_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Set *out to a * b or a + b. Return false, with *out as it was, on overflow. */
bool shf_mul(size_t *out, size_t a, size_t b);
bool shf_add(size_t *out, size_t a, size_t b);
bool shf_mul64(uint64_t *out, uint64_t a, uint64_t b);
bool shf_add64(uint64_t *out, uint64_t a, uint64_t b);

/* Allocation of n items of `size` bytes. NULL: out of memory, or n * size overflows. If n * size is
 * 0 the result is a valid pointer. zalloc zeroes. realloc keeps the old block on failure. free
 * takes NULL. */
void *shf_alloc(size_t n, size_t size);
void *shf_zalloc(size_t n, size_t size);
void *shf_realloc(void *p, size_t n, size_t size);
char *shf_strdup(const char *s);
void shf_free(void *p);

/* A buffer that grows. A zeroed one is valid and empty. A failed append sets `oom`, and later
 * appends do nothing, so one check at the end is enough. */
struct shf_buf {
	uint8_t *data;          /* owned */
	size_t len, cap;
	bool oom;
};
#define SHF_BUF_INIT { NULL, 0, 0, false }
void shf_buf_release(struct shf_buf *b);
void shf_bufs_free(struct shf_buf *bufs, int n);        /* releases n buffers and frees their array,
                                                         * which may be NULL */
void shf_buf_reset(struct shf_buf *b);                  /* len = 0, oom = false; keeps its memory */
int  shf_buf_reserve(struct shf_buf *b, size_t more);   /* 0 or SHEAF_ENOMEM */
uint8_t *shf_buf_extend(struct shf_buf *b, size_t n);   /* appends n zero bytes and returns them, or
                                                         * NULL if there is no memory */
uint8_t *shf_buf_room(struct shf_buf *b, size_t n);     /* appends n bytes that the caller fills,
                                                         * and returns them, or NULL if there is no
                                                         * memory */
void shf_buf_add(struct shf_buf *b, const void *bytes, size_t n);
void shf_buf_adds(struct shf_buf *b, const char *s);
void shf_buf_addf(struct shf_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void shf_buf_u8(struct shf_buf *b, uint8_t v);
void shf_buf_u16(struct shf_buf *b, uint16_t v);
void shf_buf_u32(struct shf_buf *b, uint32_t v);
void shf_buf_u64(struct shf_buf *b, uint64_t v);

/* A bounded reader over bytes, little-endian. Reading past the end sets bad and returns 0. */
struct shf_cur {
	const uint8_t *p, *end;
	bool bad;
};
uint8_t  shf_cur_u8(struct shf_cur *c);
uint16_t shf_cur_u16(struct shf_cur *c);
uint32_t shf_cur_u32(struct shf_cur *c);
uint64_t shf_cur_u64(struct shf_cur *c);
const uint8_t *shf_cur_bytes(struct shf_cur *c, size_t n); /* sets bad and returns NULL if fewer
                                                            * than n bytes are left */

/* In the header, because compilers turn each into one load or store if they can inline it. */
static inline void shf_put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}

static inline void shf_put32(uint8_t *p, uint32_t v)
{
	shf_put16(p, (uint16_t)v);
	shf_put16(p + 2, (uint16_t)(v >> 16));
}

static inline void shf_put64(uint8_t *p, uint64_t v)
{
	shf_put32(p, (uint32_t)v);
	shf_put32(p + 4, (uint32_t)(v >> 32));
}

static inline uint16_t shf_get16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t shf_get32(const uint8_t *p)
{
	return shf_get16(p) | (uint32_t)shf_get16(p + 2) << 16;
}

static inline uint64_t shf_get64(const uint8_t *p)
{
	return shf_get32(p) | (uint64_t)shf_get32(p + 4) << 32;
}

/* Allocations that are freed together. A zeroed arena is valid. Memory is aligned to 16 and zeroed.
 * With ASan there are red zones between allocations. */
struct shf_arena {
	struct shf_arena_chunk *chunks; /* owned */
	size_t used;                    /* bytes used in the newest chunk */
};
void *shf_arena_alloc(struct shf_arena *a, size_t n, size_t size);     /* NULL: out of memory */
char *shf_arena_strdup(struct shf_arena *a, const char *s, size_t n);  /* copies n bytes and adds a
                                                                        * NUL */
void shf_arena_release(struct shf_arena *a);
#endif
