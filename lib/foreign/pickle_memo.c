/* SPDX-License-Identifier: Apache-2.0 */
#include "pickle_memo.h"
#include <string.h>
#include "err.h"
#include "pickle_stack.h"

/* ---- which entries are used ---- */

enum {                          /* what follows an opcode */
	END,                            /* nothing: STOP, and opcodes that are refused or unknown */
	FIXED,                          /* plus n: n bytes */
	COUNTED = 16,                   /* plus n: a length of n bytes, and then a text */
	STORED = 32,                    /* plus n: a length of n bytes, and then bytes */
	LINE = 48, LINES,               /* one or two lines */
	ASKS = 64,                      /* plus n: the index of an entry, of n bytes */
	ASKS_LINE = 80                  /* the index of an entry, in digits */
};

/* By opcode of the protocols 0 to 5. */
static const uint8_t follows[256] = {
	['('] = FIXED, [')'] = FIXED, ['0'] = FIXED, ['1'] = FIXED, ['2'] = FIXED, ['N'] = FIXED,
	['Q'] = FIXED, ['R'] = FIXED, [']'] = FIXED, ['a'] = FIXED, ['b'] = FIXED, ['d'] = FIXED,
	['e'] = FIXED, ['l'] = FIXED, ['o'] = FIXED, ['s'] = FIXED, ['t'] = FIXED, ['u'] = FIXED,
	['}'] = FIXED, [0x81] = FIXED, [0x85] = FIXED, [0x86] = FIXED, [0x87] = FIXED,
	[0x88] = FIXED, [0x89] = FIXED, [0x8f] = FIXED, [0x90] = FIXED, [0x91] = FIXED,
	[0x92] = FIXED, [0x93] = FIXED, [0x94] = FIXED,
	['K'] = FIXED + 1, ['q'] = FIXED + 1, [0x80] = FIXED + 1, ['M'] = FIXED + 2,
	['J'] = FIXED + 4, ['r'] = FIXED + 4, ['G'] = FIXED + 8, [0x95] = FIXED + 8,
	['U'] = COUNTED + 1, [0x8a] = COUNTED + 1, [0x8c] = COUNTED + 1, ['T'] = COUNTED + 4,
	['X'] = COUNTED + 4, [0x8b] = COUNTED + 4, [0x8d] = COUNTED + 8,
	['C'] = STORED + 1, ['B'] = STORED + 4, [0x8e] = STORED + 8, [0x96] = STORED + 8,
	['F'] = LINE, ['I'] = LINE, ['L'] = LINE, ['P'] = LINE, ['S'] = LINE, ['V'] = LINE,
	['p'] = LINE, ['c'] = LINES, ['i'] = LINES,
	['h'] = ASKS + 1, ['j'] = ASKS + 4, ['g'] = ASKS_LINE,
};

/* Notes that entry i is used. The index of an entry never exceeds the offset of the opcode that
 * uses it. */
static int memo_note(struct shf_pk_machine *m, uint64_t i)
{
	struct shf_pk_memo *memo = &m->memo;
	size_t words = memo->used.len / sizeof(uint64_t), want = (size_t)(i / 64) + 1;

	if (i > m->op - m->left_out || i < SHF_PK_MEMO_FIRST)
		return 0;
	if (want > words &&
	    !shf_buf_extend(&memo->used, (want - words) * sizeof(uint64_t)))
		return shf_pk_no_memory(m);
	((uint64_t *)(void *)memo->used.data)[i / 64] |= UINT64_C(1) << i % 64;
	return 0;
}

/* Skips n bytes. What the machine leaves in the file is left there here, too. */
static int memo_skip_bytes(struct shf_pk_machine *m, uint64_t n, bool is_stored)
{
	uint64_t at;
	int rc;

	if (m->region && (is_stored || n > SHF_PK_TEXT_READ))
		return shf_pk_leave(m, n, &at);
	rc = n > SHF_PICKLE_MAX ? 0 : shf_pk_need(m, (size_t)n);
	if (rc > 0)
		m->at += (size_t)n;
	return rc > 0 ? 0 : rc < 0 ? rc : shf_pk_short(m);
}

static int memo_skip_line(struct shf_pk_machine *m)
{
	size_t seen = 0;

	for (;;) {
		const uint8_t *from = m->bytes + m->at + seen;
		const uint8_t *end = m->n > m->at + seen ? memchr(from, '\n', m->n - m->at - seen)
		                                         : NULL;
		int rc;

		if (end) {
			m->at = (size_t)(end - m->bytes) + 1;
			return 0;
		}
		seen = m->n - m->at;
		rc = seen > SHF_PICKLE_MAX ? 0 : shf_pk_need(m, seen + 1);
		if (rc <= 0)
			return rc < 0 ? rc : shf_pk_short(m);
	}
}

/* Skips what follows an opcode, and notes the entry that it uses. EFORMAT: the pickle is
 * damaged. */
static int memo_skip(struct shf_pk_machine *m, uint8_t after)
{
	uint64_t v = 0;
	int rc;

	if (after >= ASKS) {
		rc = after == ASKS_LINE ? shf_pk_memo_line(m, &v)
		                        : shf_pk_number(m, after - ASKS, &v);
		return rc < 0 ? rc : memo_note(m, v);
	}
	if (after >= LINE) {
		rc = memo_skip_line(m);
		return rc == 0 && after == LINES ? memo_skip_line(m) : rc;
	}
	if (after < COUNTED)
		return memo_skip_bytes(m, after - FIXED, false);
	rc = shf_pk_number(m, after % 16u, &v);
	return rc == 0 ? memo_skip_bytes(m, v, after >= STORED &&
	                                 !(m->taker && v <= SHF_PK_FEW_MAX)) : rc;
}

/* Sets memo->asked to the lowest used entry from i on. */
static void memo_ask_from(struct shf_pk_memo *memo, uint64_t i)
{
	const uint64_t *used = (const uint64_t *)(const void *)memo->used.data;
	size_t words = memo->used.len / sizeof(*used), w = (size_t)(i / 64);
	uint64_t bits = w < words ? used[w] & UINT64_MAX << i % 64 : 0;

	while (!bits && w + 1 < words)
		bits = used[++w];
	memo->asked = bits ? 64 * (uint64_t)w + (unsigned)__builtin_ctzll(bits) : UINT64_MAX;
}

/* Makes room for the entries that are used. */
static int memo_count(struct shf_pk_machine *m)
{
	struct shf_pk_memo *memo = &m->memo;
	const uint64_t *used = (const uint64_t *)(const void *)memo->used.data;
	size_t words = memo->used.len / sizeof(*used);
	uint32_t n = 0;

	memo->before = shf_alloc(words, sizeof(*memo->before));
	for (size_t w = 0; memo->before && w < words; w++) {
		memo->before[w] = n;
		n += (uint32_t)__builtin_popcountll(used[w]);
	}
	memo->kept = shf_zalloc(n, sizeof(struct shf_pk *));
	memo_ask_from(memo, 0);
	return memo->before && memo->kept ? 0 : shf_pk_no_memory(m);
}

/* Does most of the work of memo_skip for opcodes that are in memory, without looking at the end of
 * the input each time. */
static void memo_run(struct shf_pk_machine *m)
{
	const uint8_t *p = m->bytes + m->at, *end = m->bytes + m->n;

	while (end - p > 16) {
		uint8_t after = follows[*p];

		if (after && after < COUNTED)
			p += 1 + after - FIXED;
		else if (*p == 0x8c && end - p > 2 + p[1])      /* SHORT_BINUNICODE */
			p += 2 + p[1];
		else if (*p == 'h')             /* BINGET; such entries are always kept */
			p += 2;
		else
			break;
	}
	m->at = (size_t)(p - m->bytes);
}

int shf_pk_memo_scan(struct shf_pk_machine *m)
{
	struct sheaf_error *err = m->err, own;
	int rc = 0;

	m->err = &own;
	while (rc == 0) {
		uint8_t after;

		if (m->n - m->at > 16)
			memo_run(m);
		m->op = shf_pk_tell(m);
		rc = m->op - m->left_out > SHF_PICKLE_MAX ? 0 : shf_pk_need(m, 1);
		after = rc > 0 ? follows[m->bytes[m->at++]] : END;
		if (after == END)
			break;
		rc = memo_skip(m, after);
	}
	m->err = err;
	m->p->cut = false;
	shf_pk_rewind(m);
	if (rc < 0 && rc != SHEAF_EFORMAT) {
		if (err)
			*err = own;
		return rc;
	}
	return memo_count(m);
}

/* ---- entries ---- */

/* Returns the place of entry i, or NULL if nothing uses it. */
static struct shf_pk **memo_at(const struct shf_pk_memo *memo, uint64_t i)
{
	const uint64_t *used = (const uint64_t *)(const void *)memo->used.data;
	size_t w = (size_t)(i / 64);

	if (w >= memo->used.len / sizeof(*used) || !(used[w] >> i % 64 & 1))
		return NULL;
	return &memo->kept[memo->before[w] + (uint32_t)__builtin_popcountll(
	                   used[w] & ((UINT64_C(1) << i % 64) - 1))];
}

int shf_pk_memo_put(struct shf_pk_machine *m, uint64_t i)
{
	struct shf_pk *v = shf_pk_top(m), **at;

	if (!v)
		return shf_pk_empty(m);
	if (i > m->op - m->left_out)
		return shf_pk_fail(m, "has a memo that is larger than the pickle");
	at = i < SHF_PK_MEMO_FIRST ? &m->memo.first[i] : memo_at(&m->memo, i);
	if (i >= m->memo.next) {
		m->memo.next = i + 1;
		if (i >= m->memo.asked)
			memo_ask_from(&m->memo, i + 1);
	}
	if (at) {
		*at = v;
		v->shared = true;
	}
	return 0;
}

int shf_pk_memo_get(struct shf_pk_machine *m, uint64_t i)
{
	struct shf_pk **at = i < SHF_PK_MEMO_FIRST ? &m->memo.first[i] : memo_at(&m->memo, i);

	if (!at || !*at)
		return shf_pk_fail(m, "reads a memo entry that was never written");
	return shf_pk_push(m, *at);
}

int shf_pk_memo_line(struct shf_pk_machine *m, uint64_t *i)
{
	const char *s = NULL;
	size_t n = 0;
	int rc = shf_pk_line(m, &s, &n);

	*i = 0;
	if (rc == 0 && (n == 0 || n > 10))
		rc = shf_pk_fail(m, "has a memo index that is not a number");
	for (size_t k = 0; rc == 0 && k < n; k++) {
		if (s[k] < '0' || s[k] > '9')
			return shf_pk_fail(m, "has a memo index that is not a number");
		*i = *i * 10 + (uint64_t)(s[k] - '0');
	}
	return rc;
}

void shf_pk_memo_release(struct shf_pk_memo *memo)
{
	shf_buf_release(&memo->used);
	shf_free(memo->before);
	shf_free(memo->kept);
}
