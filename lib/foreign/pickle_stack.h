/* SPDX-License-Identifier: Apache-2.0 */
/* The stack and the input of the machine that reads a pickle. Functions that return an int return 0
 * or a negative code. */
#ifndef SHF_PICKLE_STACK_H
#define SHF_PICKLE_STACK_H
#include "pickle.h"

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
	uint64_t op;                    /* offset of the present opcode in the pickle */
	uint64_t left_out;              /* bytes that stay in the file */
	struct shf_buf stack, marks;    /* of struct shf_pk *; of size_t: heights of the stack */
	struct shf_buf memo;            /* of struct shf_pk * */
	struct shf_pk *slab;
	size_t slab_n;                  /* records left in the slab */
	struct shf_pk *none, *yes, *no; /* made at first use */
	struct shf_pk *small[256];      /* the integers from 0 to 255, made at first use; most of
	                                 * the numbers in a pickle */
	/* Globals that may be called, whatever the arguments, by their address. */
	const struct shf_pk *fine[64];
	const char *where;
	struct sheaf_error *err;
};
/* Returns EFORMAT with a message that names the byte of the present opcode. */
int shf_pk_fail(struct shf_pk_machine *m, const char *why);
int shf_pk_no_memory(struct shf_pk_machine *m);
/* Makes an empty record; NULL: no memory. */
struct shf_pk *shf_pk_new(struct shf_pk_machine *m, enum shf_pk_kind kind);

size_t shf_pk_height(const struct shf_pk_machine *m);   /* items on the stack */
int shf_pk_push(struct shf_pk_machine *m, struct shf_pk *v);    /* NULL: no memory */
/* Take the top off the stack, or only look at it; NULL: nothing is above the last mark, for which
 * shf_pk_empty is the error. */
struct shf_pk *shf_pk_pop(struct shf_pk_machine *m);
struct shf_pk *shf_pk_top(const struct shf_pk_machine *m);
int shf_pk_empty(struct shf_pk_machine *m);
/* Takes all items above the last mark, and the mark. They stay valid until the next push. */
int shf_pk_pop_mark(struct shf_pk_machine *m, struct shf_pk ***items, size_t *n);
/* Appends n pointers to a container. width: 2 for a dict, else 1. */
int shf_pk_append(struct shf_pk_machine *m, struct shf_pk *v, struct shf_pk *const *items, size_t n,
                  unsigned width);
/* Pushes a new container of these items: of a dict, keys and values in turn. */
int shf_pk_push_items(struct shf_pk_machine *m, enum shf_pk_kind kind, struct shf_pk *const *items,
                      size_t n);

/* Returns 1 if the window has n more bytes, 0 if the pickle ends before, or a negative code. */
int shf_pk_need(struct shf_pk_machine *m, size_t n);
/* Returns the offset in the pickle of the next byte. */
static inline uint64_t shf_pk_tell(const struct shf_pk_machine *m)
{
	return m->base + m->at;
}
/* Take from the input: a little-endian number of `width` bytes; n bytes; a line without its
 * newline. What they return is valid until the pickle is released. */
int shf_pk_number(struct shf_pk_machine *m, unsigned width, uint64_t *out);
int shf_pk_bytes(struct shf_pk_machine *m, uint64_t n, const char **out);
int shf_pk_line(struct shf_pk_machine *m, const char **out, size_t *n);
/* Leaves n bytes of the input in the file. *at gets where they are. */
int shf_pk_leave(struct shf_pk_machine *m, uint64_t n, uint64_t *at);
#endif
