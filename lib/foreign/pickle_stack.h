/* SPDX-License-Identifier: Apache-2.0 */
/* The stack and the input of the machine that reads a pickle. Functions that return an int return 0
 * or a negative code. */
#ifndef SHF_PICKLE_STACK_H
#define SHF_PICKLE_STACK_H
#include "pickle.h"
#include "pickle_memo.h"

#define SHF_PK_TEXT_READ ((uint64_t)64 << 10)   /* longer texts stay in the file */
#define SHF_PK_FEW_MAX 8        /* bytes that fit into a record of kind FEW */
#define SHF_PK_ARRAY_MAX 32     /* items of the longest array that is used again */
#define SHF_PK_NOT_EARLY (SIZE_MAX - 2)         /* a height that no mark has */
#define SHF_PK_TEXTS 17         /* sizes of texts whose memory is used again, in steps of 16
                                 * bytes */
struct shf_pk_machine {
	struct shf_pickle *p;
	/* The window: bytes [base, base + n) of the pickle, of which byte `at` of the window is
	 * next. If the pickle is in memory, the window is all of it. */
	const uint8_t *bytes;
	size_t n, at;
	uint64_t base;
	const struct shf_region *region;        /* NULL: the pickle is in memory */
	uint8_t *window;                /* owned; the memory of the window of a file */
	size_t window_cap, ahead;       /* ahead: bytes that the next read of the file takes */
	uint64_t op;                    /* offset of the current opcode in the pickle */
	uint64_t left_out;              /* bytes that stay in the file */
	struct shf_pk **stack;          /* owned; stack_max pointers */
	size_t height, stack_max;       /* height: how many are on the stack */
	size_t floor;                   /* the height of the last mark; 0: there is none. No opcode
	                                 * reaches below it */
	struct shf_buf marks;           /* of size_t: heights of the stack */
	struct shf_pk_memo memo;
	const struct shf_pickle_taker *taker;   /* NULL: none */
	/* The pairs above one mark are offered to the taker when they are complete
	 * (shf_pk_take_early). early: the height of this mark; early_n: pairs that were taken, and
	 * do not count in the dictionary yet. */
	size_t early;
	uint32_t early_n;
	struct shf_pk *slab;
	size_t slab_n;                  /* records left in the slab */
	/* What was released and is used again. The first member of each refers to the next one. */
	struct shf_pk *free_records;
	struct shf_pk_call *free_calls;
	struct shf_pk **free_arrays[SHF_PK_ARRAY_MAX + 1];      /* by length */
	uint8_t *free_texts[SHF_PK_TEXTS];      /* by size */
	struct shf_pk **releasing;      /* owned; records that shf_pk_release has still to visit */
	size_t releasing_n, releasing_max;
	struct shf_pk *none, *yes, *no, *empty; /* made at first use; empty: a TUPLE */
	struct shf_pk *small[256];      /* the integers from 0 to 255, made at first use; most of
	                                 * the numbers in a pickle */
	/* Globals that may be called, whatever the arguments, by their address. */
	const struct shf_pk *fine[64];
	const char *where;
	struct sheaf_error *err;
};
/* Returns EFORMAT with a message that names the byte of the current opcode. */
int shf_pk_fail(struct shf_pk_machine *m, const char *why);
int shf_pk_no_memory(struct shf_pk_machine *m);
/* Returns EFORMAT: the input ends in the middle of an opcode. */
int shf_pk_short(struct shf_pk_machine *m);
/* Makes an empty record; NULL: no memory. */
struct shf_pk *shf_pk_new(struct shf_pk_machine *m, enum shf_pk_kind kind);
struct shf_pk_call *shf_pk_call_new(struct shf_pk_machine *m);  /* NULL: no memory */
/* Gives back a record and all below it to which nothing else refers. GLOBALs and PERSIDs stay. */
void shf_pk_release(struct shf_pk_machine *m, struct shf_pk *v);

/* Pushes a record when the stack is full. NULL: no memory. */
int shf_pk_push_more(struct shf_pk_machine *m, struct shf_pk *v);
static inline int shf_pk_push(struct shf_pk_machine *m, struct shf_pk *v)
{
	if (!v || m->height == m->stack_max)
		return shf_pk_push_more(m, v);
	m->stack[m->height++] = v;
	return 0;
}
/* Take the top off the stack, or only look at it; NULL: nothing is above the last mark, for which
 * shf_pk_empty is the error. */
static inline struct shf_pk *shf_pk_pop(struct shf_pk_machine *m)
{
	return m->height > m->floor ? m->stack[--m->height] : NULL;
}
static inline struct shf_pk *shf_pk_top(const struct shf_pk_machine *m)
{
	return m->height > m->floor ? m->stack[m->height - 1] : NULL;
}
int shf_pk_empty(struct shf_pk_machine *m);
/* Sets a mark. The pairs above it are taken early if the taker took some of the same dictionary. */
int shf_pk_mark(struct shf_pk_machine *m);
/* Offers the only pair above the mark `early` to the taker, if the next opcode, op, shows that the
 * pair is complete: it begins another key. */
void shf_pk_take_early(struct shf_pk_machine *m, uint8_t op);
/* Returns how many pairs above the last mark were taken early. The caller counts them. */
uint32_t shf_pk_early_end(struct shf_pk_machine *m);
/* Takes the last mark away; false: there is none. */
bool shf_pk_unmark(struct shf_pk_machine *m);
/* Takes all items above the last mark, and the mark. They stay valid until the next push. */
int shf_pk_pop_mark(struct shf_pk_machine *m, struct shf_pk ***items, size_t *n);
/* Appends n pointers to a container. width: 2 for a dict, else 1. */
int shf_pk_append(struct shf_pk_machine *m, struct shf_pk *v, struct shf_pk *const *items, size_t n,
                  unsigned width);
/* Pushes a new container of these items: of a dict, keys and values in turn. */
int shf_pk_push_items(struct shf_pk_machine *m, enum shf_pk_kind kind, struct shf_pk *const *items,
                      size_t n);

/* Goes back to the first byte of the input. */
void shf_pk_rewind(struct shf_pk_machine *m);
/* Reads on until the window has n more bytes, which it has not. Returns as shf_pk_need. */
int shf_pk_need_more(struct shf_pk_machine *m, size_t n);
/* Returns 1 if the window has n more bytes, 0 if the pickle ends before, or a negative code. */
static inline int shf_pk_need(struct shf_pk_machine *m, size_t n)
{
	return m->n - m->at >= n ? 1 : shf_pk_need_more(m, n);
}
/* Returns the offset in the pickle of the next byte. */
static inline uint64_t shf_pk_tell(const struct shf_pk_machine *m)
{
	return m->base + m->at;
}
/* Take from the input: a little-endian number of `width` bytes; n bytes; a line without its
 * newline. What they return is valid until the pickle is released. */
static inline int shf_pk_number(struct shf_pk_machine *m, unsigned width, uint64_t *out)
{
	int rc = shf_pk_need(m, width);
	uint64_t v = 0;

	if (rc <= 0)
		return rc < 0 ? rc : shf_pk_short(m);
	for (unsigned i = 0; i < width; i++)
		v |= (uint64_t)m->bytes[m->at + i] << 8 * i;
	m->at += width;
	*out = v;
	return 0;
}
int shf_pk_bytes(struct shf_pk_machine *m, uint64_t n, const char **out);
int shf_pk_line(struct shf_pk_machine *m, const char **out, size_t *n);
/* Leaves n bytes of the input in the file. *at gets where they are. */
int shf_pk_leave(struct shf_pk_machine *m, uint64_t n, uint64_t *at);
#endif
