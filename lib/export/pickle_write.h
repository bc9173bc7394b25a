/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a pickle: the few opcodes that files of torch and Paddle need. All of it is in memory. If
 * there is not enough, `out` says so. Values of which a pickle has many are written once and then
 * recalled. */
#ifndef SHF_PICKLE_WRITE_H
#define SHF_PICKLE_WRITE_H
#include "mem.h"

struct shf_pkw {
	struct shf_buf out;             /* owned */
	uint32_t memo;                  /* how many values can be recalled */
	/* What can be recalled, in the order of its numbers; borrowed, static texts. module NULL: a
	 * text; else a global, or a value that shf_pkw_keep was given these names for. */
	struct { const char *module, *name; } known[64];
};
void shf_pkw_begin(struct shf_pkw *w, uint8_t protocol);
void shf_pkw_end(struct shf_pkw *w);            /* appends STOP; the value on the stack is the
                                                 * result */
void shf_pkw_release(struct shf_pkw *w);
void shf_pkw_op(struct shf_pkw *w, char opcode);
void shf_pkw_int(struct shf_pkw *w, uint64_t v);        /* v <= INT64_MAX */
void shf_pkw_text(struct shf_pkw *w, const char *text, size_t n);
void shf_pkw_float(struct shf_pkw *w, double v);
/* Puts a static text, or the global module.name, and recalls it the next time. */
void shf_pkw_known_text(struct shf_pkw *w, const char *text);
void shf_pkw_global(struct shf_pkw *w, const char *module, const char *name);
/* Puts the value that was kept under these names. Returns whether there is one. */
bool shf_pkw_recall(struct shf_pkw *w, const char *module, const char *name);
/* Keeps the value that was put last. If there is no room, it must be put again the next time. */
void shf_pkw_keep(struct shf_pkw *w, const char *module, const char *name);
/* Puts a tuple of n numbers. */
void shf_pkw_ints(struct shf_pkw *w, const int64_t *v, int n);
/* Begins an object of this class, whose members follow as keys and values. */
void shf_pkw_object_begin(struct shf_pkw *w, const char *module, const char *name);
void shf_pkw_object_end(struct shf_pkw *w);
/* Begins item i of a dictionary, whose last SETITEMS the caller puts. There is one for every 1000
 * items, as Python has it, so that readers need little memory. */
void shf_pkw_next_item(struct shf_pkw *w, size_t i);

/* Opcodes, as pickletools.py names them. */
#define SHF_PKW_MARK '('
#define SHF_PKW_TUPLE 't'
#define SHF_PKW_TUPLE1 '\x85'
#define SHF_PKW_TUPLE2 '\x86'
#define SHF_PKW_TUPLE3 '\x87'
#define SHF_PKW_EMPTY_TUPLE ')'
#define SHF_PKW_EMPTY_DICT '}'
#define SHF_PKW_EMPTY_LIST ']'
#define SHF_PKW_SETITEMS 'u'
#define SHF_PKW_APPEND 'a'
#define SHF_PKW_REDUCE 'R'
#define SHF_PKW_NEWOBJ '\x81'
#define SHF_PKW_BUILD 'b'
#define SHF_PKW_BINPERSID 'Q'
#define SHF_PKW_NEWTRUE '\x88'
#define SHF_PKW_NEWFALSE '\x89'
#define SHF_PKW_NONE 'N'
#define SHF_PKW_POP '0'
#endif
