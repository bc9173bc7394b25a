/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the n-th allocation fail, on whatever thread it is. Include once, in the test's only file,
 * and link with memfail_args (test/unit/meson.build), which sends malloc, calloc and realloc of the
 * program and of the library here; shared libraries keep their own.
 *
 *      for (long nth = 1;; nth++) {
 *              memfail_at(nth);
 *              rc = what_is_tested();
 *              if (!memfail_end())
 *                      break;          // past the last allocation: all were tried
 *              CHECK(rc == SHEAF_ENOMEM);
 *      }
 */
#ifndef MEMFAIL_H
#define MEMFAIL_H
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static atomic_long memfail_left;        /* 0: none fails; 1: the next one */
static atomic_bool memfail_fired;

/* The nth allocation from now fails, and no other. */
static inline void memfail_at(long nth)
{
	atomic_store(&memfail_fired, false);
	atomic_store(&memfail_left, nth);
}

/* None fails any more; whether one did. */
static inline bool memfail_end(void)
{
	atomic_store(&memfail_left, 0);
	return atomic_load(&memfail_fired);
}

static inline bool memfail_now(void)
{
	long left = atomic_load(&memfail_left);

	while (left > 0)
		if (atomic_compare_exchange_weak(&memfail_left, &left, left - 1))
			break;
	if (left != 1)
		return false;
	atomic_store(&memfail_fired, true);
	errno = ENOMEM;
	return true;
}

void *__wrap_malloc(size_t n)
{
	return memfail_now() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return memfail_now() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return memfail_now() ? NULL : __real_realloc(p, n);
}
#endif
