/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the n-th allocation of the library on this thread fail. Allocations of the simulated
 * machine do not fail. Include once, in the test's only file, and link with `starve`
 * (test/sim/meson.build). */
#ifndef STARVE_H
#define STARVE_H
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include "mem.h"

static _Thread_local long starve_left;  /* 0: none fails; 1: the next one */
static atomic_bool starved;             /* an allocation has failed */
/* Called for each allocation on this thread; NULL: none. */
static _Thread_local void (*starve_asked)(void);

static bool starve_now(void)
{
	if (starve_asked)
		starve_asked();
	if (starve_left == 0 || --starve_left > 0)
		return false;
	starved = true;
	return true;
}

#define STARVE_WRAP(type, name, params, args)                                 \
	type __real_##name params;                                            \
	type __wrap_##name params;                                            \
	type __wrap_##name params                                             \
	{                                                                     \
		return starve_now() ? 0 : __real_##name args;                 \
	}
STARVE_WRAP(void *, shf_alloc, (size_t n, size_t size), (n, size))
STARVE_WRAP(void *, shf_zalloc, (size_t n, size_t size), (n, size))
STARVE_WRAP(void *, shf_realloc, (void *p, size_t n, size_t size), (p, n, size))
STARVE_WRAP(char *, shf_strdup, (const char *s), (s))
STARVE_WRAP(void *, shf_arena_alloc, (struct shf_arena *a, size_t n, size_t size), (a, n, size))
STARVE_WRAP(char *, shf_arena_strdup, (struct shf_arena *a, const char *s, size_t n), (a, s, n))

/* A buffer that cannot grow sets oom. */
#define STARVE_ADD(name, params, args)                                        \
	void __real_##name params;                                            \
	void __wrap_##name params;                                            \
	void __wrap_##name params                                             \
	{                                                                     \
		if (starve_now())                                             \
			b->oom = true;                                        \
		else                                                          \
			__real_##name args;                                   \
	}
int __real_shf_buf_reserve(struct shf_buf *b, size_t more);
int __wrap_shf_buf_reserve(struct shf_buf *b, size_t more);
int __wrap_shf_buf_reserve(struct shf_buf *b, size_t more)
{
	if (!starve_now())
		return __real_shf_buf_reserve(b, more);
	b->oom = true;
	return SHEAF_ENOMEM;
}

uint8_t *__real_shf_buf_extend(struct shf_buf *b, size_t n);
uint8_t *__wrap_shf_buf_extend(struct shf_buf *b, size_t n);
uint8_t *__wrap_shf_buf_extend(struct shf_buf *b, size_t n)
{
	if (!starve_now())
		return __real_shf_buf_extend(b, n);
	b->oom = true;
	return NULL;
}

uint8_t *__real_shf_buf_room(struct shf_buf *b, size_t n);
uint8_t *__wrap_shf_buf_room(struct shf_buf *b, size_t n);
uint8_t *__wrap_shf_buf_room(struct shf_buf *b, size_t n)
{
	if (!starve_now())
		return __real_shf_buf_room(b, n);
	b->oom = true;
	return NULL;
}

STARVE_ADD(shf_buf_add, (struct shf_buf *b, const void *p, size_t n), (b, p, n))
void __wrap_shf_buf_addf(struct shf_buf *b, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void __wrap_shf_buf_addf(struct shf_buf *b, const char *fmt, ...)
{
	char text[1024];
	va_list args;
	int n;

	if (starve_now()) {
		b->oom = true;
		return;
	}
	va_start(args, fmt);
	n = vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(text))
		abort();
	__real_shf_buf_add(b, text, (size_t)n);
}

STARVE_ADD(shf_buf_adds, (struct shf_buf *b, const char *s), (b, s))
STARVE_ADD(shf_buf_u8, (struct shf_buf *b, uint8_t v), (b, v))
STARVE_ADD(shf_buf_u16, (struct shf_buf *b, uint16_t v), (b, v))
STARVE_ADD(shf_buf_u32, (struct shf_buf *b, uint32_t v), (b, v))
STARVE_ADD(shf_buf_u64, (struct shf_buf *b, uint64_t v), (b, v))
#endif
