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
	struct shf_pk *v = m->free_records;

	if (v) {
		m->free_records = v->u.of;
		*v = (struct shf_pk){ 0 };
	} else {
		if (!m->slab_n) {
			m->slab = shf_arena_alloc(&m->p->arena, SLAB, sizeof(*m->slab));
			if (!m->slab)
				return NULL;
			m->slab_n = SLAB;
		}
		v = &m->slab[--m->slab_n];
	}
	v->kind = (uint8_t)kind;
	m->p->records++;
	return v;
}

struct shf_pk_call *shf_pk_call_new(struct shf_pk_machine *m)
{
	struct shf_pk_call *call = m->free_calls;

	if (!call)
		return shf_arena_alloc(&m->p->arena, 1, sizeof(*call));
	m->free_calls = call->next_free;
	return call;
}

/* Returns an array of cap > 0 pointers, not zeroed; NULL: no memory. */
static struct shf_pk **pk_array_new(struct shf_pk_machine *m, size_t cap)
{
	struct shf_pk **a = cap <= SHF_PK_ARRAY_MAX ? m->free_arrays[cap] : NULL;

	if (!a)
		return shf_arena_alloc(&m->p->arena, cap, sizeof(*a));
	m->free_arrays[cap] = (struct shf_pk **)(void *)a[0];
	return a;
}

static void pk_array_release(struct shf_pk_machine *m, struct shf_pk **a, size_t cap)
{
	if (cap == 0 || cap > SHF_PK_ARRAY_MAX)
		return;
	a[0] = (struct shf_pk *)(void *)m->free_arrays[cap];
	m->free_arrays[cap] = a;
}

/* The memory of a text of n bytes in a file: 8 bytes for its place, the text, and a NUL. It is
 * rounded up, so that it can be used for another text of about that length. */
static size_t pk_text_size(size_t n)
{
	return (n + 9 + 15) / 16;
}

static uint8_t *pk_text_new(struct shf_pk_machine *m, size_t n)
{
	size_t size = pk_text_size(n);
	uint8_t *text = size < SHF_PK_TEXTS ? m->free_texts[size] : NULL;

	if (!text)
		return shf_arena_alloc(&m->p->arena, size, 16);
	memcpy(&m->free_texts[size], text, sizeof(m->free_texts[0]));
	text[8 + n] = '\0';
	return text;
}

static void pk_text_release(struct shf_pk_machine *m, const struct shf_pk *v)
{
	uint8_t *text = (uint8_t *)(uintptr_t)v->u.s - 8;
	size_t size = pk_text_size(v->n);

	if (!m->taker || !m->taker->texts_go || !v->cap || size >= SHF_PK_TEXTS)
		return;
	memcpy(text, &m->free_texts[size], sizeof(m->free_texts[0]));
	m->free_texts[size] = text;
}

static void pk_release_later(struct shf_pk_machine *m, const struct shf_pk *v)
{
	struct shf_pk *w = (struct shf_pk *)(uintptr_t)v;

	if (!w || w->shared || w->kind == SHF_PK_GLOBAL || w->kind == SHF_PK_PERSID)
		return;
	if (m->releasing_n == m->releasing_max) {
		size_t max = m->releasing_max ? 2 * m->releasing_max : 64;
		struct shf_pk **more = shf_realloc(m->releasing, max, sizeof(struct shf_pk *));

		if (!more)
			return;
		m->releasing = more;
		m->releasing_max = max;
	}
	m->releasing[m->releasing_n++] = w;
}

/* Without recursion, because records may lie within one another to any depth. A record to which one
 * thing refers is reached once. If there is no memory, some records are not used again. */
void shf_pk_release(struct shf_pk_machine *m, struct shf_pk *v)
{
	pk_release_later(m, v);
	while (m->releasing_n) {
		struct shf_pk_call *c;

		v = m->releasing[--m->releasing_n];
		if (v->kind == SHF_PK_CALL) {
			c = v->u.call;
			pk_release_later(m, c->args);
			pk_release_later(m, c->kwargs);
			pk_release_later(m, c->state);
			pk_release_later(m, c->list);
			pk_release_later(m, c->dict);
			c->next_free = m->free_calls;
			m->free_calls = c;
		} else if (v->kind >= SHF_PK_TUPLE && v->kind <= SHF_PK_DICT) {
			size_t n = (size_t)v->n * (v->kind == SHF_PK_DICT ? 2 : 1);

			/* Most items are shared: names of members, and small numbers. */
			for (size_t i = 0; i < n; i++)
				if (!v->u.a[i]->shared)
					pk_release_later(m, v->u.a[i]);
			pk_array_release(m, v->u.a, v->cap);
		} else if (v->kind == SHF_PK_STR) {
			pk_text_release(m, v);
		}
		v->u.of = m->free_records;
		m->free_records = v;
	}
}

/* ---- the stack ---- */

int shf_pk_push_more(struct shf_pk_machine *m, struct shf_pk *v)
{
	size_t more = m->stack_max ? 2 * m->stack_max : 64;
	struct shf_pk **stack = v ? shf_realloc(m->stack, more, sizeof(struct shf_pk *)) : NULL;

	if (!stack)
		return shf_pk_no_memory(m);
	m->stack = stack;
	m->stack_max = more;
	m->stack[m->height++] = v;
	return 0;
}

int shf_pk_empty(struct shf_pk_machine *m)
{
	return shf_pk_fail(m, "takes more from the stack than there is");
}

int shf_pk_mark(struct shf_pk_machine *m)
{
	const struct shf_pk *below = shf_pk_top(m);

	if (m->taker && m->early_n == 0 && below && below->kind == SHF_PK_DICT && below->taken)
		m->early = m->height;
	shf_buf_add(&m->marks, &m->height, sizeof(m->height));
	m->floor = m->height;
	return m->marks.oom ? shf_pk_no_memory(m) : 0;
}

uint32_t shf_pk_early_end(struct shf_pk_machine *m)
{
	uint32_t n = m->floor == m->early ? m->early_n : 0;

	m->early_n -= n;
	return n;
}

/* Whether an opcode begins the key of the next pair: a text, a global or an entry of the memo. */
static bool begins_key(uint8_t op)
{
	return op == 'h' || op == 'j' || op == 0x8c || op == 'X' || op == 'c';
}

/* Whether a value is complete: an object gets nothing more once it has its state. A list or a tuple
 * may go on after its first items, and then what looks like the next key is another item. */
static bool is_complete(const struct shf_pk *v)
{
	return v->kind == SHF_PK_CALL && v->u.call->state;
}

/* Python sets a thousand pairs by one opcode. Taken one by one, their records are used again while
 * the processor has them in its cache. A taken pair is gone from the stack, so a pickle that does
 * anything but set it in the dictionary below the mark is refused. */
void shf_pk_take_early(struct shf_pk_machine *m, uint8_t op)
{
	struct shf_pk **pair = m->stack + m->early;

	if (!begins_key(op) || !is_complete(pair[1]) ||
	    !m->taker->take(m->taker->arg, pair[0], pair[1]))
		return;
	m->early_n++;
	m->height = m->early;
	shf_pk_release(m, pair[0]);
	shf_pk_release(m, pair[1]);
}

bool shf_pk_unmark(struct shf_pk_machine *m)
{
	const size_t *marks = (const size_t *)(const void *)m->marks.data;

	if (!m->marks.len || (m->early_n && m->floor == m->early))
		return false;
	if (m->floor == m->early)
		m->early = SHF_PK_NOT_EARLY;
	m->marks.len -= sizeof(*marks);
	m->floor = m->marks.len ? marks[m->marks.len / sizeof(*marks) - 1] : 0;
	return true;
}

int shf_pk_pop_mark(struct shf_pk_machine *m, struct shf_pk ***items, size_t *n)
{
	size_t mark = m->floor;

	if (m->early_n && mark == m->early)
		return shf_pk_fail(m, "makes something else of the pairs of a dictionary");
	if (!shf_pk_unmark(m))
		return shf_pk_fail(m, "has no mark on the stack");
	*items = m->stack ? m->stack + mark : NULL;     /* NULL: nothing was ever pushed */
	*n = m->height - mark;
	m->height = mark;
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
		struct shf_pk **a = pk_array_new(m, cap);

		if (!a)
			return shf_pk_no_memory(m);
		if (have)
			memcpy(a, v->u.a, have * sizeof(*a));
		pk_array_release(m, v->u.a, v->cap);
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

#define AHEAD_MIN ((size_t)4 << 10)     /* bytes of the first read after what was left out */
#define AHEAD_MAX ((size_t)256 << 10)

int shf_pk_short(struct shf_pk_machine *m)
{
	m->p->cut = true;
	return shf_pk_fail(m, "ends in the middle of an opcode");
}

/* Returns how many bytes of the pickle follow the next one. */
static uint64_t pk_left(const struct shf_pk_machine *m)
{
	return m->region ? m->region->bytes - shf_pk_tell(m) : m->n - m->at;
}

/* What is read in a row is read in ever longer parts. Behind a tensor there is often only the head
 * of the next one, so a read there is short. */
int shf_pk_need_more(struct shf_pk_machine *m, size_t n)
{
	size_t have = m->n - m->at, want = n > have + m->ahead ? n : have + m->ahead;
	uint64_t left = pk_left(m);
	int rc;

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

void shf_pk_rewind(struct shf_pk_machine *m)
{
	m->at = 0;
	m->left_out = 0;
	if (m->region) {
		m->n = 0;
		m->base = 0;
		m->ahead = 0;
	}
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
	copy = pk_text_new(m, n);
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
			return rc < 0 ? rc : shf_pk_short(m);
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
