/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a Python pickle into records, and executes nothing of it.
 *
 * A pickle is a program. This machine knows its opcodes, but it has no way to import or to call
 * anything: a global becomes a record with its name, and a call becomes a record of what would be
 * called with which arguments. All records lie in one arena and are freed at once.
 *
 * What bounds it: a record costs at least one byte of the pickle that is read, so memory is linear
 * in the number of these. A first pass over the opcodes finds out which entries of the memo are
 * used, so only those are kept in it. Records may refer to the same record, and even to themselves,
 * so whoever walks through them must bound depth and number of steps. */
#ifndef SHF_PICKLE_H
#define SHF_PICKLE_H
#include "mem.h"
#include "region.h"
#include "sheaf.h"

#define SHF_PICKLE_MAX (UINT64_C(1) << 30)      /* bytes of a pickle */
enum shf_pk_kind {
	SHF_PK_NONE, SHF_PK_BOOL, SHF_PK_INT, SHF_PK_LONG, SHF_PK_FLOAT, SHF_PK_STR, SHF_PK_BYTES,
	SHF_PK_TUPLE, SHF_PK_LIST, SHF_PK_SET, SHF_PK_DICT, SHF_PK_GLOBAL, SHF_PK_CALL,
	SHF_PK_PERSID, SHF_PK_STORED, SHF_PK_FEW
};
struct shf_pk_stored {          /* bytes, or a long text, that were left in the file */
	uint64_t at, bytes;             /* at: from the start of the pickle */
	bool text;                      /* UTF-8, of a STR */
};
struct shf_pk {
	uint8_t kind;                   /* enum shf_pk_kind */
	bool shared;                    /* more than one thing may refer to it */
	uint32_t n, cap;                /* n: bytes of a text; items; pairs of a dict; GLOBAL: bytes
	                                 * of the module's name. cap: of a container; STR: 1 if
	                                 * shf_pk_text_place can say where it is; FEW: the lower
	                                 * half of its place (shf_pk_few_place) */
	uint32_t taken;                 /* of a dict: pairs that a struct shf_pickle_taker took;
	                                 * FEW: the upper half of its place */
	union {
		int64_t i;              /* BOOL, INT; FEW: n <= 8 bytes, little-endian */
		double f;
		const char *s;          /* STR, BYTES and LONG (little-endian, two's complement): n
		                         * bytes, borrowed from the pickle or in the arena; GLOBAL:
		                         * "module.name", NUL-ended */
		struct shf_pk **a;      /* items; of a dict, keys and values in turn */
		struct shf_pk_call *call;
		struct shf_pk *of;      /* PERSID: the persistent id */
		const struct shf_pk_stored *stored;
	} u;
};
struct shf_pk_call {            /* what would be called, and what would be done to the result */
	union {
		const struct shf_pk *func;      /* a GLOBAL */
		struct shf_pk_call *next_free;  /* of a record that was released */
	};
	const struct shf_pk *args;      /* a TUPLE */
	const struct shf_pk *kwargs;    /* NULL: none */
	const struct shf_pk *state;     /* NULL: the result is not changed by BUILD */
	struct shf_pk *list, *dict;     /* NULL, or items that are appended or set */
};
struct shf_pickle {
	const struct shf_pk *root;
	uint64_t bytes;                 /* length of the pickle, with its STOP */
	uint64_t read;                  /* how many of them were read */
	uint64_t records;               /* how many records it has */
	bool cut;                       /* reading it failed because its bytes end too early */
	struct shf_buf persids;         /* owned; of const struct shf_pk *: all PERSIDs */
	struct shf_arena arena;
};
/* Reads the pickle at the beginning of n bytes, which must outlive the records. where: for
 * sentences. EFORMAT: it is damaged, has an opcode that is not read, or its execution would call
 * something that is not data ("unpickling this would call os.system"). The caller releases *p after
 * a failure, too. */
int shf_pickle_read(struct shf_pickle *p, const uint8_t *bytes, size_t n, const char *where,
                    struct sheaf_error *err);
/* Takes pairs out of dictionaries while a pickle is read, so that a long pickle of many small
 * objects needs memory only for the result. */
struct shf_pickle_taker {
	/* Called for each key and value that are set in a dictionary, when both are complete.
	 * Returns true if the pair is to be taken: it is then no pair of the dictionary, but
	 * counts in its `taken`, and its records are used for others, except for GLOBALs. Up to
	 * 8 bytes are a record of kind FEW and not left in the file, so that numbers of NumPy can
	 * be read. */
	bool (*take)(void *arg, const struct shf_pk *key, const struct shf_pk *value);
	void *arg;
	/* The memory of the texts of a pair that was taken is used for others, too, so the taker
	 * copies those that it keeps. Otherwise texts stay where they are. */
	bool texts_go;
};
/* Reads the pickle at the beginning of a file, which may be larger than memory: all bytes, and
 * texts of more than 64 KiB, stay in the file and become STORED. The rest may have 1 GiB. taker:
 * NULL: none. */
int shf_pickle_read_file(struct shf_pickle *p, const struct shf_region *r,
                         const struct shf_pickle_taker *taker, struct sheaf_error *err);
void shf_pickle_release(struct shf_pickle *p);

/* ---- looking at records; NULL is fine and is nothing ---- */

bool shf_pk_is_global(const struct shf_pk *v, const char *name);        /* "module.name" */
/* Returns the call if v is a call of this global that nothing was done to, or NULL. */
const struct shf_pk_call *shf_pk_call_of(const struct shf_pk *v, const char *name);
bool shf_pk_text_is(const struct shf_pk *v, const char *text);          /* a STR */
/* Sets *at and *bytes to where a text lies in the file that shf_pickle_read_file read; false: v is
 * not a text, or its place is unknown. */
bool shf_pk_text_place(const struct shf_pk *v, uint64_t *at, uint64_t *bytes);
/* Returns where the bytes of a FEW lie in the file. */
static inline uint64_t shf_pk_few_place(const struct shf_pk *v)
{
	return (uint64_t)v->taken << 32 | v->cap;
}
const struct shf_pk *shf_pk_at(const struct shf_pk *v, uint32_t i);     /* of a TUPLE or LIST */
/* Returns the value of a key of a DICT: the last one that it was given, as Python does. */
const struct shf_pk *shf_pk_get(const struct shf_pk *v, const char *key);
bool shf_pk_int(const struct shf_pk *v, int64_t *out);                  /* an INT */
bool shf_pk_is_row(const struct shf_pk *v);                             /* a TUPLE or LIST */
/* Copies the items of a TUPLE or LIST, which must be n integers >= 0. Returns false if v is
 * anything else. get: reads one item, as shf_pk_int does. */
bool shf_pk_counts(int64_t *to, const struct shf_pk *v, uint32_t n,
                   bool (*get)(const struct shf_pk *item, int64_t *out));
#endif
