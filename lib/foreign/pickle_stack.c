/* SPDX-License-Identifier: Apache-2.0 */
#include "pickle_stack.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"

#define SLAB 256                /* records that are allocated together */

int shf_pk_fail(struct shf_pk_machine *m, const char *why)
{
	return shf_fail(m->err, SHEAF_EFORMAT, "%s: pickle, byte %" PRIu64 ": %s", m->where,
	                m->op, why);
}

int shf_pk_no_memory(struct shf_pk_machine *m)
{
	return shf_fail(m->err, SHEAF_ENOMEM, "%s: no memory for its pickle", m->where);
}

struct shf_pk *shf_pk_new(struct shf_pk_machine *m, enum shf_pk_kind kind)
{
	struct shf_pk *v;

	if (!m->slab_n) {
		m->slab = shf_arena_alloc(&m->p->arena, SLAB, sizeof(*m->slab));
		if (!m->slab)
			return NULL;
		m->slab_n = SLAB;
	}
	v = &m->slab[--m->slab_n];
	v->kind = (uint8_t)kind;
	m->p->records++;
	return v;
}

/* ---- the stack ---- */

size_t shf_pk_height(const struct shf_pk_machine *m)
{
	return m->stack.len / sizeof(struct shf_pk *);
}

static struct shf_pk **pk_items(const struct shf_pk_machine *m)
{
	return (struct shf_pk **)(void *)m->stack.data;
}

/* Returns the height below which no opcode may reach: that of the last mark. */
static size_t pk_floor(const struct shf_pk_machine *m)
{
	const size_t *marks = (const size_t *)(const void *)m->marks.data;

	return m->marks.len ? marks[m->marks.len / sizeof(size_t) - 1] : 0;
}

int shf_pk_push(struct shf_pk_machine *m, struct shf_pk *v)
{
	if (v)
		shf_buf_add(&m->stack, &v, sizeof(v));
	return v && !m->stack.oom ? 0 : shf_pk_no_memory(m);
}

/* Takes the top off the stack; NULL: nothing is above the last mark. */
struct shf_pk *shf_pk_pop(struct shf_pk_machine *m)
{
	size_t n = shf_pk_height(m);

	if (n <= pk_floor(m))
		return NULL;
	m->stack.len -= sizeof(struct shf_pk *);
	return pk_items(m)[n - 1];
}

struct shf_pk *shf_pk_top(const struct shf_pk_machine *m)
{
	size_t n = shf_pk_height(m);

	return n > pk_floor(m) ? pk_items(m)[n - 1] : NULL;
}

int shf_pk_empty(struct shf_pk_machine *m)
{
	return shf_pk_fail(m, "takes more from the stack than there is");
}

/* Takes all items above the last mark, and the mark. They stay valid until the next push. */
int shf_pk_pop_mark(struct shf_pk_machine *m, struct shf_pk ***items, size_t *n)
{
	size_t mark = pk_floor(m);

	if (!m->marks.len)
		return shf_pk_fail(m, "has no mark on the stack");
	m->marks.len -= sizeof(size_t);
	*items = m->stack.len ? pk_items(m) + mark : NULL; /* NULL: nothing was ever pushed */
	*n = shf_pk_height(m) - mark;
	m->stack.len = mark * sizeof(struct shf_pk *);
	return *n <= UINT32_MAX / 4 ? 0 : shf_pk_fail(m, "has too many items");
}

/* Appends n pointers to a container. Arrays grow by doubling, so what is left behind in the arena
 * is no more than what is used. */
int shf_pk_append(struct shf_pk_machine *m, struct shf_pk *v, struct shf_pk *const *items, size_t n,
                     unsigned width)
{
	size_t have = (size_t)v->n * width;

	if (n > UINT32_MAX / 4 - have)
		return shf_pk_fail(m, "has too many items");
	if (have + n > v->cap) {
		size_t cap = have + n > 2 * have ? have + n : 2 * have;
		struct shf_pk **a = shf_arena_alloc(&m->p->arena, cap, sizeof(*a));

		if (!a)
			return shf_pk_no_memory(m);
		if (have)
			memcpy(a, v->u.a, have * sizeof(*a));
		v->u.a = a;
		v->cap = (uint32_t)cap;
	}
	if (n)
		memcpy(v->u.a + have, items, n * sizeof(*items));
	v->n += (uint32_t)(n / width);
	return 0;
}

/* Pushes a new container of these items. width: 2 for a dict, else 1. */
int shf_pk_push_items(struct shf_pk_machine *m, enum shf_pk_kind kind, struct shf_pk *const *items,
                         size_t n)
{
	struct shf_pk *v = shf_pk_new(m, kind);
	unsigned width = kind == SHF_PK_DICT ? 2 : 1;
	int rc;

	if (!v)
		return shf_pk_no_memory(m);
	if (n % width)
		return shf_pk_fail(m, "has a key without a value");
	rc = shf_pk_append(m, v, items, n, width);
	return rc < 0 ? rc : shf_pk_push(m, v);
}

/* ---- the input ---- */

#define AHEAD_MIN ((size_t)4 << 10)     /* bytes of the first read behind what was left out */
#define AHEAD_MAX ((size_t)256 << 10)

static int pk_short(struct shf_pk_machine *m)
{
	m->p->cut = true;
	return shf_pk_fail(m, "ends in the middle of an opcode");
}

/* Returns how many bytes of the pickle are behind the next one. */
static uint64_t pk_left(const struct shf_pk_machine *m)
{
	return m->region ? m->region->bytes - shf_pk_tell(m) : m->n - m->at;
}

/* What is read in a row is read in ever longer parts. Behind a tensor there is often only the head
 * of the next one, so a read there is short. */
int shf_pk_need(struct shf_pk_machine *m, size_t n)
{
	size_t have = m->n - m->at, want = n > have + m->ahead ? n : have + m->ahead;
	uint64_t left = pk_left(m);
	int rc;

	if (have >= n)
		return 1;
	if (left < n)
		return 0;
	if (left < want)
		want = (size_t)left;
	if (want > m->window_cap) {
		uint8_t *more = shf_realloc(m->window, want, 1);

		if (!more)
			return shf_pk_no_memory(m);
		m->window = more;
		m->window_cap = want;
		m->bytes = more;
	}
	if (have && m->at)
		memmove(m->window, m->window + m->at, have);
	m->base += m->at;
	m->at = 0;
	m->n = have;
	rc = shf_region_read(m->region, m->window + have, want - have, m->base + have, m->err);
	if (rc < 0)
		return rc;
	m->n = want;
	m->ahead = m->ahead < AHEAD_MIN ? AHEAD_MIN
	         : m->ahead < AHEAD_MAX ? 2 * m->ahead : AHEAD_MAX;
	return 1;
}

/* Reads a little-endian number of `width` bytes. */
int shf_pk_number(struct shf_pk_machine *m, unsigned width, uint64_t *out)
{
	int rc = shf_pk_need(m, width);
	uint64_t v = 0;

	if (rc <= 0)
		return rc < 0 ? rc : pk_short(m);
	for (unsigned i = 0; i < width; i++)
		v |= (uint64_t)m->bytes[m->at + i] << 8 * i;
	m->at += width;
	*out = v;
	return 0;
}

static int pk_beyond(struct shf_pk_machine *m)
{
	m->p->cut = true;
	return shf_pk_fail(m, "has a length beyond its end");
}

/* Takes n bytes of the window, which has them. Those of a file are copied, because the window moves
 * on, and the 8 bytes before the copy say where they were (shf_pk_text_place). */
static int pk_take(struct shf_pk_machine *m, size_t n, const char **out)
{
	const uint8_t *from = m->bytes + m->at;
	uint8_t *copy;

	m->at += n;
	*out = (const char *)from;
	if (!m->region)
		return 0;
	copy = shf_arena_alloc(&m->p->arena, n + 9, 1);
	if (!copy)
		return shf_pk_no_memory(m);
	shf_put64(copy, shf_pk_tell(m) - n);
	if (n)
		memcpy(copy + 8, from, n);
	*out = (const char *)copy + 8;
	return 0;
}

/* Takes n bytes of the input. */
int shf_pk_bytes(struct shf_pk_machine *m, uint64_t n, const char **out)
{
	int rc;

	if (n > pk_left(m))
		return pk_beyond(m);
	if (n > SHF_PICKLE_MAX)
		return shf_pk_fail(m, "has a text of more than 1 GiB");
	rc = n ? shf_pk_need(m, (size_t)n) : 1;
	return rc < 0 ? rc : pk_take(m, (size_t)n, out);
}

/* Takes a line, without its newline. */
int shf_pk_line(struct shf_pk_machine *m, const char **out, size_t *n)
{
	size_t seen = 0;

	for (;;) {
		const uint8_t *from = m->bytes + m->at + seen, *end;
		int rc;

		end = m->n > m->at + seen ? memchr(from, '\n', m->n - m->at - seen) : NULL;
		if (end) {
			*n = (size_t)(end - (m->bytes + m->at));
			rc = pk_take(m, *n, out);
			m->at++;
			return rc;
		}
		seen = m->n - m->at;
		if (seen > SHF_PICKLE_MAX)
			return shf_pk_fail(m, "has a line of more than 1 GiB");
		rc = shf_pk_need(m, seen + 1);
		if (rc <= 0)
			return rc < 0 ? rc : pk_short(m);
	}
}

int shf_pk_leave(struct shf_pk_machine *m, uint64_t n, uint64_t *at)
{
	if (n > pk_left(m))
		return pk_beyond(m);
	*at = shf_pk_tell(m);
	m->left_out += n;
	if (n <= m->n - m->at) {
		m->at += (size_t)n;
		return 0;
	}
	m->base = *at + n;
	m->at = m->n = 0;
	m->ahead = AHEAD_MIN;
	return 0;
}
