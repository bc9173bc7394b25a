/* SPDX-License-Identifier: Apache-2.0 */
/* The memo of the machine that reads a pickle. Python memoizes nearly every object, and refers back
 * to few of them. A first pass over the opcodes, which looks only at their lengths and at the
 * entries that they use, finds out which entries are needed. */
#ifndef SHF_PICKLE_MEMO_H
#define SHF_PICKLE_MEMO_H
#include "pickle.h"

#define SHF_PK_MEMO_FIRST 256   /* entries that a BINGET can use */
struct shf_pk_machine;
struct shf_pk_memo {
	struct shf_pk *first[SHF_PK_MEMO_FIRST];        /* the first entries, used or not; NULL: not
	                                                 * entered yet */
	struct shf_buf used;            /* owned; of uint64_t: a bit for each entry, 1: a GET uses
	                                 * it */
	uint32_t *before;               /* owned; by word of `used`: bits set in earlier words */
	struct shf_pk **kept;           /* owned; by number among the entries that are used; NULL:
	                                 * not entered yet */
	uint64_t next;                  /* one more than the highest entry so far */
	uint64_t asked;                 /* the lowest used entry that is neither below `next` nor
	                                 * one of the first ones; UINT64_MAX: none */
};
/* Finds out which entries the pickle uses, and rewinds the input. A damaged pickle is scanned up to
 * the damage, which is reported when it is read. ENOMEM, EIO. */
int shf_pk_memo_scan(struct shf_pk_machine *m);
/* Whether entry `next` is none of the first ones, and nothing uses it. */
static inline bool shf_pk_memo_is_idle(const struct shf_pk_memo *memo)
{
	return memo->next >= SHF_PK_MEMO_FIRST && memo->next < memo->asked;
}
/* Enters the top of the stack as entry i. */
int shf_pk_memo_put(struct shf_pk_machine *m, uint64_t i);
/* Pushes entry i. */
int shf_pk_memo_get(struct shf_pk_machine *m, uint64_t i);
/* Reads the index of an entry that is written in digits. */
int shf_pk_memo_line(struct shf_pk_machine *m, uint64_t *i);
void shf_pk_memo_release(struct shf_pk_memo *memo);
#endif
