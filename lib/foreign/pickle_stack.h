/* SPDX-License-Identifier: Apache-2.0 */
/* The stack and the input of the machine that reads a pickle. Functions that return an int return 0
 * or a negative code. */
#ifndef SHF_PICKLE_STACK_H
#define SHF_PICKLE_STACK_H
#include "pickle.h"

struct shf_pk_machine {
	struct shf_pickle *p;
	const uint8_t *bytes;
	size_t n, at, op;               /* at: next byte; op: offset of the present opcode */
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

/* Take from the input: a little-endian number of `width` bytes; n bytes; a line without its
 * newline. */
int shf_pk_number(struct shf_pk_machine *m, unsigned width, uint64_t *out);
int shf_pk_bytes(struct shf_pk_machine *m, uint64_t n, const char **out);
int shf_pk_line(struct shf_pk_machine *m, const char **out, size_t *n);
#endif
