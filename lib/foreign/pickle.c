/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that reads a pickle. Every opcode of protocols 0 to 5 is handled, or refused by name:
 * extension codes and buffers outside the pickle mean nothing without the program that wrote
 * them.
 *
 * Invariants: a record is made from at least one byte of the input. Lengths are compared with the
 * rest of the input before they are used. The memo has no entry above the offset of the opcode that
 * sets it. A record is released only if nothing but what is released refers to it: the memo, DUP
 * and constants set its mark `shared`. */
#include "pickle.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "decimal.h"
#include "err.h"
#include "pickle_calls.h"
#include "pickle_stack.h"
#include "valid.h"

static int pk_push_text(struct shf_pk_machine *m, enum shf_pk_kind kind, const char *s, uint64_t n)
{
	struct shf_pk *v = shf_pk_new(m, kind);

	if (!v)
		return shf_pk_no_memory(m);
	v->u.s = s;
	v->n = (uint32_t)n;             /* the pickle has at most 1 GiB */
	return shf_pk_push(m, v);
}

/* Pushes n bytes that stay in the file. */
static int pk_push_stored(struct shf_pk_machine *m, bool text, uint64_t n)
{
	struct shf_pk *v = shf_pk_new(m, SHF_PK_STORED);
	struct shf_pk_stored *of = shf_arena_alloc(&m->p->arena, 1, sizeof(*of));
	int rc;

	if (!v || !of)
		return shf_pk_no_memory(m);
	rc = shf_pk_leave(m, n, &of->at);
	of->bytes = n;
	of->text = text;
	v->u.stored = of;
	return rc < 0 ? rc : shf_pk_push(m, v);
}

/* Pushes n <= SHF_PK_FEW_MAX bytes, which are in the record itself. */
static int pk_push_few(struct shf_pk_machine *m, unsigned n)
{
	struct shf_pk *v = shf_pk_new(m, SHF_PK_FEW);
	uint64_t bytes = 0, at = shf_pk_tell(m);
	int rc = v ? shf_pk_number(m, n, &bytes) : shf_pk_no_memory(m);

	if (rc < 0)
		return rc;
	v->u.i = (int64_t)bytes;
	v->n = n;
	v->cap = (uint32_t)at;
	v->taken = (uint32_t)(at >> 32);
	return shf_pk_push(m, v);
}

/* Pushes the text of `width` bytes of length and then its bytes. */
static int pk_counted(struct shf_pk_machine *m, enum shf_pk_kind kind, unsigned width)
{
	const char *s = NULL;
	uint64_t n = 0;
	int rc = shf_pk_number(m, width, &n);

	if (rc == 0 && m->taker && kind == SHF_PK_BYTES && n <= SHF_PK_FEW_MAX)
		return pk_push_few(m, (unsigned)n);
	if (rc == 0 && m->region && (kind == SHF_PK_BYTES || n > SHF_PK_TEXT_READ))
		return pk_push_stored(m, kind == SHF_PK_STR, n);
	if (rc == 0)
		rc = shf_pk_bytes(m, n, &s);
	if (rc == 0)
		rc = pk_push_text(m, kind, s, n);
	if (rc == 0 && kind == SHF_PK_STR)
		shf_pk_top(m)->cap = m->region != NULL;
	return rc;
}

/* Pushes a value of which one record is enough: *kept, which is made at its first use. */
static int pk_push_constant(struct shf_pk_machine *m, struct shf_pk **kept, enum shf_pk_kind kind,
                            int64_t i)
{
	if (!*kept) {
		*kept = shf_pk_new(m, kind);
		if (!*kept)
			return shf_pk_no_memory(m);
		(*kept)->u.i = i;
		(*kept)->shared = true;
	}
	return shf_pk_push(m, *kept);
}

static int pk_push_int(struct shf_pk_machine *m, int64_t i)
{
	struct shf_pk *v;

	if (i >= 0 && i < 256)
		return pk_push_constant(m, &m->small[i], SHF_PK_INT, i);
	v = shf_pk_new(m, SHF_PK_INT);
	if (v)
		v->u.i = i;
	return shf_pk_push(m, v);
}

/* Pushes a little-endian integer of n bytes: an INT if n is at most 8, else a LONG. */
static int pk_push_long(struct shf_pk_machine *m, uint64_t n)
{
	const char *s = NULL;
	uint64_t v = 0;
	int rc = n > 8 ? shf_pk_bytes(m, n, &s) : shf_pk_number(m, (unsigned)n, &v);

	if (rc < 0)
		return rc;
	if (n > 8)
		return pk_push_text(m, SHF_PK_LONG, s, n);
	if (n && n < 8 && v >> (8 * n - 1))
		v |= UINT64_MAX << 8 * n;
	return pk_push_int(m, (int64_t)v);
}

/* Reads a decimal number of protocol 0. "01" and "00" of opcode INT are True and False. One that
 * does not fit 64 bits is kept as text. */
static int pk_push_decimal(struct shf_pk_machine *m, bool may_be_bool)
{
	char text[32], *end;
	const char *s = NULL;
	long long v;
	size_t n = 0;
	int rc = shf_pk_line(m, &s, &n);

	if (rc < 0)
		return rc;
	if (may_be_bool && n == 2 && s[0] == '0' && (s[1] == '0' || s[1] == '1'))
		return s[1] == '1' ? pk_push_constant(m, &m->yes, SHF_PK_BOOL, 1)
		                   : pk_push_constant(m, &m->no, SHF_PK_BOOL, 0);
	if (n && s[n - 1] == 'L')
		n--;
	if (n == 0)
		return shf_pk_fail(m, "has an empty number");
	if (memchr(s, 0, n))
		return shf_pk_fail(m, "has a number that is malformed");
	if (n >= sizeof(text))
		return pk_push_text(m, SHF_PK_STR, s, n);
	memcpy(text, s, n);
	text[n] = '\0';
	errno = 0;
	v = strtoll(text, &end, 10);
	if (*end)
		return shf_pk_fail(m, "has a number that is malformed");
	return errno ? pk_push_text(m, SHF_PK_STR, s, n) : pk_push_int(m, v);
}

static int pk_push_float(struct shf_pk_machine *m, double f)
{
	struct shf_pk *v = shf_pk_new(m, SHF_PK_FLOAT);

	if (!v)
		return shf_pk_no_memory(m);
	v->u.f = f;
	return shf_pk_push(m, v);
}

/* Protocol 0 writes the digits, later ones write 8 bytes, the highest first. */
static int pk_read_float(struct shf_pk_machine *m, bool text)
{
	char digits[64], *end;
	const char *s = NULL;
	uint64_t bits = 0;
	double f;
	size_t n = 8;
	int rc = text ? shf_pk_line(m, &s, &n) : shf_pk_bytes(m, 8, &s);

	if (rc < 0)
		return rc;
	if (text) {
		if (n == 0 || n >= sizeof(digits) || memchr(s, 0, n))
			return shf_pk_fail(m, "has a number that is malformed");
		memcpy(digits, s, n);
		digits[n] = '\0';
		f = shf_decimal_strtod(digits, &end);
		return *end ? shf_pk_fail(m, "has a number that is malformed")
		            : pk_push_float(m, f);
	}
	for (int i = 0; i < 8; i++)
		bits = bits << 8 | (uint8_t)s[i];
	memcpy(&f, &bits, sizeof(f));
	return pk_push_float(m, f);
}

/* Reads a text of protocol 0. Its escapes are kept as they stand, so a text with a backslash is no
 * name that anything here would know. STRING has quotes. */
static int pk_push_quoted(struct shf_pk_machine *m, bool quotes)
{
	const char *s = NULL;
	size_t n = 0;
	int rc = shf_pk_line(m, &s, &n);

	if (rc < 0)
		return rc;
	if (!quotes)
		return pk_push_text(m, SHF_PK_STR, s, n);
	if (n < 2 || (s[0] != '"' && s[0] != '\'') || s[n - 1] != s[0])
		return shf_pk_fail(m, "has a text without quotes");
	return pk_push_text(m, SHF_PK_STR, s + 1, n - 2);
}

/* ---- globals and calls ---- */

static int pk_push_global(struct shf_pk_machine *m, const char *module, size_t module_n,
                          const char *name, size_t name_n)
{
	struct shf_pk *v = shf_pk_new(m, SHF_PK_GLOBAL);
	char *text;

	/* No name is so long, and the quadratic cost of a memo full of long ones is bounded. */
	if (module_n + name_n > 1000 || !module_n || !name_n || memchr(module, 0, module_n) ||
	    memchr(name, 0, name_n))
		return shf_pk_fail(m, "has a global whose name is empty, has a NUL, or is longer "
		                   "than 1000 bytes");
	text = shf_arena_alloc(&m->p->arena, module_n + name_n + 2, 1);
	if (!v || !text)
		return shf_pk_no_memory(m);
	memcpy(text, module, module_n);
	text[module_n] = '.';
	memcpy(text + module_n + 1, name, name_n);
	v->u.s = text;
	v->n = (uint32_t)module_n;
	return shf_pk_push(m, v);
}

/* Reads module and name, the two lines of GLOBAL, and pushes the global. INST does the same. */
static int pk_global_lines(struct shf_pk_machine *m)
{
	const char *module = NULL, *name = NULL;
	size_t module_n = 0, name_n = 0;
	int rc = shf_pk_line(m, &module, &module_n);

	if (rc == 0)
		rc = shf_pk_line(m, &name, &name_n);
	return rc < 0 ? rc : pk_push_global(m, module, module_n, name, name_n);
}

static int pk_stack_global(struct shf_pk_machine *m)
{
	struct shf_pk *name = shf_pk_pop(m), *module = shf_pk_pop(m);

	if (!name || !module)
		return shf_pk_empty(m);
	if (name->kind != SHF_PK_STR || module->kind != SHF_PK_STR)
		return shf_pk_fail(m, "has a global whose name is not a text");
	return pk_push_global(m, module->u.s, module->n, name->u.s, name->n);
}

/* Whether a pickle may not call this. A pickle calls few globals, each of them often, so the answer
 * is kept where it does not depend on the arguments. */
static bool is_refused(struct shf_pk_machine *m, const struct shf_pk *func,
                       const struct shf_pk *args)
{
	const struct shf_pk **fine = &m->fine[(uintptr_t)func / sizeof(*func) % 64];

	if (*fine == func)
		return false;
	if (shf_pickle_is_refused(func, args))
		return true;
	if (!strstr(func->u.s, "getattr") && !strstr(func->u.s, "eval"))
		*fine = func;
	return false;
}

/* A torch.Size is a tuple: pushes the only argument. */
static int pk_size(struct shf_pk_machine *m, struct shf_pk *args)
{
	struct shf_pk *size = args->u.a[0];

	if (args->shared) {
		size->shared = true;
	} else {
		args->n = 0;
		shf_pk_release(m, args);
	}
	return shf_pk_push(m, size);
}

/* Pushes the record of a call. An ordered dictionary is a dictionary from the start, because it is
 * what models are saved as. */
static int pk_call(struct shf_pk_machine *m, const struct shf_pk *func, const struct shf_pk *args,
                   const struct shf_pk *kwargs)
{
	struct shf_pk *v;

	if (!func || !args)
		return shf_pk_empty(m);
	/* Legacy files of torch have classes of models with their source: ("module", class, file,
	 * text). */
	if (func->kind == SHF_PK_PERSID && shf_pk_text_is(shf_pk_at(func->u.of, 0), "module") &&
	    shf_pk_at(func->u.of, 1))
		func = shf_pk_at(func->u.of, 1);
	if (func->kind != SHF_PK_GLOBAL)
		return shf_pk_fail(m, "would call something that is not a global");
	if (args->kind != SHF_PK_TUPLE || (kwargs && kwargs->kind != SHF_PK_DICT))
		return shf_pk_fail(m, "has a call whose arguments are not a tuple");
	if (is_refused(m, func, args))
		return shf_fail(m->err, SHEAF_EFORMAT, "%s: pickle, byte %" PRIu64 ": unpickling "
		                "this would call %.*s; nothing of it was executed", m->where, m->op,
		                shf_name_show(func->u.s), func->u.s);
	/* func->n, the length of the module's name, is compared first, because most calls are of
	 * modules with names of another length. */
	if (args->n == 0 && !kwargs && (func->n == 8 || func->n == 11) &&
	    (shf_pk_is_global(func, "collections.OrderedDict") ||
	     shf_pk_is_global(func, "builtins.dict") || shf_pk_is_global(func, "__builtin__.dict")))
		return shf_pk_push(m, shf_pk_new(m, SHF_PK_DICT));
	if (args->n == 1 && !kwargs && func->n == 5 && args->u.a[0]->kind == SHF_PK_TUPLE &&
	    shf_pk_is_global(func, "torch.Size"))
		return pk_size(m, (struct shf_pk *)(uintptr_t)args);
	v = shf_pk_new(m, SHF_PK_CALL);
	if (!v)
		return shf_pk_no_memory(m);
	v->u.call = shf_pk_call_new(m);
	if (!v->u.call)
		return shf_pk_no_memory(m);
	*v->u.call = (struct shf_pk_call){ .func = func, .args = args, .kwargs = kwargs };
	return shf_pk_push(m, v);
}

/* Takes arguments off the stack, up to the mark, and for OBJ the class below them. */
static int pk_call_marked(struct shf_pk_machine *m, const struct shf_pk *func)
{
	struct shf_pk **items = NULL, *args;
	size_t n = 0;
	int rc = shf_pk_pop_mark(m, &items, &n);

	if (rc < 0)
		return rc;
	if (!func && n == 0)
		return shf_pk_empty(m);
	if (!func) {
		func = *items++;
		n--;
	}
	rc = shf_pk_push_items(m, SHF_PK_TUPLE, items, n);
	args = rc == 0 ? shf_pk_pop(m) : NULL;
	return rc < 0 ? rc : pk_call(m, func, args, NULL);
}

static int pk_inst(struct shf_pk_machine *m)
{
	struct shf_pk *func;
	int rc = pk_global_lines(m);

	func = rc == 0 ? shf_pk_pop(m) : NULL;
	return rc < 0 ? rc : pk_call_marked(m, func);
}

/* Attributes of a dictionary, such as _metadata of a state_dict, are dropped. */
static int pk_build(struct shf_pk_machine *m)
{
	struct shf_pk *state = shf_pk_pop(m), *v = shf_pk_top(m);

	if (!state || !v)
		return shf_pk_empty(m);
	if (v->kind == SHF_PK_DICT)
		return 0;
	if (v->kind != SHF_PK_CALL)
		return shf_pk_fail(m, "would set the state of something that is not an object");
	if (v->u.call->state)
		return shf_pk_fail(m, "would set the state of an object twice");
	v->u.call->state = state;
	return 0;
}

static int pk_persid(struct shf_pk_machine *m, struct shf_pk *id)
{
	struct shf_pk *v = shf_pk_new(m, SHF_PK_PERSID);

	if (!id)
		return shf_pk_empty(m);
	if (!v)
		return shf_pk_no_memory(m);
	v->u.of = id;
	shf_buf_add(&m->p->persids, &v, sizeof(v));
	return m->p->persids.oom ? shf_pk_no_memory(m) : shf_pk_push(m, v);
}

/* ---- containers ---- */

/* Offers the pairs to the taker. Returns how many items are left, which are moved to the front. */
static size_t pk_take_pairs(struct shf_pk_machine *m, struct shf_pk *v, struct shf_pk **items,
                            size_t n)
{
	size_t left = 0;

	for (size_t i = 0; i < n; i += 2) {
		if (m->taker->take(m->taker->arg, items[i], items[i + 1])) {
			v->taken++;
			shf_pk_release(m, items[i]);
			shf_pk_release(m, items[i + 1]);
			continue;
		}
		items[left++] = items[i];
		items[left++] = items[i + 1];
	}
	return left;
}

/* Appends to a list or set, or sets items of a dict. An object that is not one of them, such as an
 * instance of a class derived from list, keeps them in a list or dict of its own. */
static int pk_add(struct shf_pk_machine *m, struct shf_pk *v, struct shf_pk **items, size_t n,
                  bool pairs)
{
	struct shf_pk **own;

	if (v->kind == SHF_PK_CALL) {
		own = pairs ? &v->u.call->dict : &v->u.call->list;
		if (!*own)
			*own = shf_pk_new(m, pairs ? SHF_PK_DICT : SHF_PK_LIST);
		if (!*own)
			return shf_pk_no_memory(m);
		v = *own;
	}
	if (pairs ? v->kind != SHF_PK_DICT : v->kind != SHF_PK_LIST && v->kind != SHF_PK_SET)
		return shf_pk_fail(m, "adds items to what has none");
	if (pairs && n % 2)
		return shf_pk_fail(m, "has a key without a value");
	if (pairs && m->taker)
		n = pk_take_pairs(m, v, items, n);
	return shf_pk_append(m, v, items, n, pairs ? 2 : 1);
}

/* Adds all items above the mark to the container below it. */
static int pk_add_marked(struct shf_pk_machine *m, bool pairs)
{
	uint32_t early = pairs ? shf_pk_early_end(m) : 0;
	struct shf_pk **items = NULL, *v;
	size_t n = 0;
	int rc = shf_pk_pop_mark(m, &items, &n);

	v = rc == 0 ? shf_pk_top(m) : NULL;
	if (rc < 0)
		return rc;
	if (early && v)                 /* it is the dictionary that was below the mark */
		v->taken += early;
	return v ? pk_add(m, v, items, n, pairs) : shf_pk_empty(m);
}

/* Adds the item, or the key and value, on the stack to the container below them. */
static int pk_add_one(struct shf_pk_machine *m, bool pair)
{
	struct shf_pk *items[2], *v;

	items[1] = pair ? shf_pk_pop(m) : NULL;
	items[0] = shf_pk_pop(m);
	v = shf_pk_top(m);
	if (!items[0] || !v || (pair && !items[1]))
		return shf_pk_empty(m);
	return pk_add(m, v, items, pair ? 2 : 1, pair);
}

static int pk_tuple(struct shf_pk_machine *m, size_t n)
{
	struct shf_pk *items[3] = { NULL };

	for (size_t i = n; i-- > 0;)
		if (!(items[i] = shf_pk_pop(m)))
			return shf_pk_empty(m);
	return shf_pk_push_items(m, SHF_PK_TUPLE, items, n);
}

static int pk_marked(struct shf_pk_machine *m, enum shf_pk_kind kind)
{
	struct shf_pk **items = NULL;
	size_t n = 0;
	int rc = shf_pk_pop_mark(m, &items, &n);

	return rc < 0 ? rc : shf_pk_push_items(m, kind, items, n);
}

/* Takes the top off the stack: an item, or the mark if nothing is above it. */
static int pk_drop(struct shf_pk_machine *m)
{
	if (shf_pk_pop(m))
		return 0;
	return shf_pk_unmark(m) ? 0 : shf_pk_empty(m);
}

static int pk_dup(struct shf_pk_machine *m)
{
	struct shf_pk *v = shf_pk_top(m);

	if (!v)
		return shf_pk_empty(m);
	v->shared = true;
	return shf_pk_push(m, v);
}

/* ---- opcodes, by what they do. Each function gets its own ones only, from pk_step ---- */

static int op_number(struct shf_pk_machine *m, uint8_t op)
{
	uint64_t v = 0;
	int rc;

	switch (op) {
	case 'I': return pk_push_decimal(m, true);
	case 'L': return pk_push_decimal(m, false);
	case 'F': return pk_read_float(m, true);
	case 'G': return pk_read_float(m, false);
	case 'N': return pk_push_constant(m, &m->none, SHF_PK_NONE, 0);
	case 0x88: return pk_push_constant(m, &m->yes, SHF_PK_BOOL, 1);
	case 0x89: return pk_push_constant(m, &m->no, SHF_PK_BOOL, 0);
	case 'J':
		rc = shf_pk_number(m, 4, &v);
		return rc < 0 ? rc : pk_push_int(m, (int32_t)(uint32_t)v);
	case 'K':
	case 'M':
		rc = shf_pk_number(m, op == 'K' ? 1 : 2, &v);
		return rc < 0 ? rc : pk_push_int(m, (int64_t)v);
	case 0x8a:
	case 0x8b:
		rc = shf_pk_number(m, op == 0x8a ? 1 : 4, &v);
		return rc < 0 ? rc : pk_push_long(m, v);
	default: return SHEAF_EBUG;
	}
}

static int op_text(struct shf_pk_machine *m, uint8_t op)
{
	switch (op) {
	case 'S': return pk_push_quoted(m, true);
	case 'V': return pk_push_quoted(m, false);
	case 'T': return pk_counted(m, SHF_PK_STR, 4);          /* BINSTRING */
	case 'U': return pk_counted(m, SHF_PK_STR, 1);          /* SHORT_BINSTRING */
	case 'X': return pk_counted(m, SHF_PK_STR, 4);          /* BINUNICODE */
	case 0x8c: return pk_counted(m, SHF_PK_STR, 1);         /* SHORT_BINUNICODE */
	case 0x8d: return pk_counted(m, SHF_PK_STR, 8);         /* BINUNICODE8 */
	case 'B': return pk_counted(m, SHF_PK_BYTES, 4);
	case 'C': return pk_counted(m, SHF_PK_BYTES, 1);
	case 0x8e: return pk_counted(m, SHF_PK_BYTES, 8);
	case 0x96: return pk_counted(m, SHF_PK_BYTES, 8);       /* BYTEARRAY8 */
	default: return SHEAF_EBUG;
	}
}

static int op_container(struct shf_pk_machine *m, uint8_t op)
{
	switch (op) {
	case '(': return shf_pk_mark(m);
	case '0': return pk_drop(m);
	case '1': {
		struct shf_pk **items = NULL;
		size_t n = 0;

		return shf_pk_pop_mark(m, &items, &n);
	}
	case '2': return pk_dup(m);
	case ')': return pk_push_constant(m, &m->empty, SHF_PK_TUPLE, 0);
	case ']': return shf_pk_push_items(m, SHF_PK_LIST, NULL, 0);
	case '}': return shf_pk_push_items(m, SHF_PK_DICT, NULL, 0);
	case 0x8f: return shf_pk_push_items(m, SHF_PK_SET, NULL, 0);
	case 't': return pk_marked(m, SHF_PK_TUPLE);
	case 'l': return pk_marked(m, SHF_PK_LIST);
	case 'd': return pk_marked(m, SHF_PK_DICT);
	case 0x91: return pk_marked(m, SHF_PK_SET);             /* FROZENSET */
	case 0x85: return pk_tuple(m, 1);
	case 0x86: return pk_tuple(m, 2);
	case 0x87: return pk_tuple(m, 3);
	case 'a': return pk_add_one(m, false);
	case 's': return pk_add_one(m, true);
	case 'e': return pk_add_marked(m, false);
	case 'u': return pk_add_marked(m, true);
	case 0x90: return pk_add_marked(m, false);              /* ADDITEMS */
	default: return SHEAF_EBUG;
	}
}

static int op_memo(struct shf_pk_machine *m, uint8_t op)
{
	unsigned width = op == 'q' || op == 'h' ? 1 : 4;
	uint64_t i = 0;
	int rc;

	switch (op) {
	case 'p':
	case 'g':
		rc = shf_pk_memo_line(m, &i);
		if (rc < 0)
			return rc;
		return op == 'p' ? shf_pk_memo_put(m, i) : shf_pk_memo_get(m, i);
	case 'q':
	case 'r':
		rc = shf_pk_number(m, width, &i);
		return rc < 0 ? rc : shf_pk_memo_put(m, i);
	case 'h':
	case 'j':
		rc = shf_pk_number(m, width, &i);
		return rc < 0 ? rc : shf_pk_memo_get(m, i);
	default: return SHEAF_EBUG;
	}
}

static int op_call(struct shf_pk_machine *m, uint8_t op)
{
	const struct shf_pk *args, *kwargs;
	const char *s = NULL;
	uint64_t v = 0;
	size_t n = 0;
	int rc;

	switch (op) {
	case 'c': return pk_global_lines(m);
	case 0x93: return pk_stack_global(m);
	case 'R':
	case 0x81:                                              /* NEWOBJ */
		args = shf_pk_pop(m);
		return pk_call(m, shf_pk_pop(m), args, NULL);
	case 0x92:                                              /* NEWOBJ_EX */
		kwargs = shf_pk_pop(m);
		args = shf_pk_pop(m);
		return kwargs ? pk_call(m, shf_pk_pop(m), args, kwargs) : shf_pk_empty(m);
	case 'i': return pk_inst(m);
	case 'o': return pk_call_marked(m, NULL);
	case 'b': return pk_build(m);
	case 'Q': return pk_persid(m, shf_pk_pop(m));
	case 'P':
		rc = shf_pk_line(m, &s, &n);
		if (rc == 0)
			rc = pk_push_text(m, SHF_PK_STR, s, n);
		return rc < 0 ? rc : pk_persid(m, shf_pk_pop(m));
	case 0x80:
		rc = shf_pk_number(m, 1, &v);
		if (rc == 0 && v > 5)
			rc = shf_pk_fail(m, "has a protocol above 5, which is not known");
		return rc;
	case 0x95: return shf_pk_number(m, 8, &v);                  /* FRAME: a hint for readers */
	case 0x82:
	case 0x83:
	case 0x84:
		return shf_pk_fail(m, "has an extension code (EXT), which only its writer knows");
	case 0x97:
	case 0x98: return shf_pk_fail(m, "has a buffer that is kept outside the pickle");
	default: return SHEAF_EBUG;
	}
}

static int pk_step(struct shf_pk_machine *m, uint8_t op)
{
	switch (op) {
	case 0x94:                      /* MEMOIZE, a third of what Python writes */
		return shf_pk_memo_put(m, m->memo.next);
	case 'p': case 'g': case 'q': case 'r': case 'h': case 'j':
		return op_memo(m, op);
	case '(': case '0': case '1': case '2': case ')': case ']': case '}': case 0x8f: case 't':
	case 'l': case 'd': case 0x91: case 0x85: case 0x86: case 0x87: case 'a': case 's':
	case 'e': case 'u': case 0x90:
		return op_container(m, op);
	case 'S': case 'V': case 'T': case 'U': case 'X': case 0x8c: case 0x8d: case 'B':
	case 'C': case 0x8e: case 0x96:
		return op_text(m, op);
	case 'I': case 'L': case 'F': case 'G': case 'N': case 0x88: case 0x89: case 'J':
	case 'K': case 'M': case 0x8a: case 0x8b:
		return op_number(m, op);
	case 'c': case 0x93: case 'R': case 0x81: case 0x92: case 'i': case 'o': case 'b':
	case 'Q': case 'P': case 0x80: case 0x95: case 0x82: case 0x83: case 0x84: case 0x97:
	case 0x98:
		return op_call(m, op);
	default:
		return shf_fail(m->err, SHEAF_EFORMAT, "%s: pickle, byte %" PRIu64 ": has an "
		                "unknown opcode %02x", m->where, m->op, op);
	}
}

/* Returns what an opcode pushes that is a number of two bytes, or is there already: the name of a
 * member, a small number or a constant; NULL: pk_step does it. *width: the bytes of the opcode. */
static struct shf_pk *pk_frequent(struct shf_pk_machine *m, const uint8_t *op, size_t *width)
{
	struct shf_pk *v;

	*width = 2;
	switch (op[0]) {
	case 'h': return m->memo.first[op[1]];
	case 'K': return m->small[op[1]];
	case 'M':
		*width = 3;
		v = op[2] ? shf_pk_new(m, SHF_PK_INT) : m->small[op[1]];
		if (v && op[2])
			v->u.i = op[1] | op[2] << 8;
		return v;
	case ')': *width = 1; return m->empty;
	case 'N': *width = 1; return m->none;
	case 0x89: *width = 1; return m->no;
	default: return NULL;
	}
}

/* Does the next opcodes as long as they are in the window, and are those of which a long pickle has
 * most: they enter in the memo what nothing asks for, or push what pk_frequent knows. */
static void pk_run_frequent(struct shf_pk_machine *m)
{
	while (m->n - m->at > 3 && m->height < m->stack_max && m->height != m->early + 2) {
		const uint8_t *op = m->bytes + m->at;
		struct shf_pk *v;
		size_t width;

		if (op[0] == 0x94 && shf_pk_memo_is_idle(&m->memo) && m->height > m->floor) {
			m->memo.next++;
			m->at++;
			continue;
		}
		v = pk_frequent(m, op, &width);
		if (!v)
			return;
		m->stack[m->height++] = v;
		m->at += width;
	}
}

static int pk_run(struct shf_pk_machine *m)
{
	int rc = shf_pk_memo_scan(m);

	while (rc == 0) {
		uint8_t op;

		pk_run_frequent(m);
		m->op = shf_pk_tell(m);
		if (m->op - m->left_out > SHF_PICKLE_MAX)
			return shf_pk_fail(m, "has more than 1 GiB beside its tensors");
		rc = shf_pk_need(m, 1);
		if (rc < 0)
			return rc;
		if (rc == 0) {
			m->p->cut = true;
			return shf_pk_fail(m, "ends without its STOP");
		}
		op = m->bytes[m->at++];
		if (op == '.')
			break;
		if (m->height == m->early + 2 && m->floor == m->early)
			shf_pk_take_early(m, op);
		rc = pk_step(m, op);
	}
	if (rc < 0)
		return rc;
	m->p->root = shf_pk_pop(m);
	m->p->bytes = shf_pk_tell(m);
	m->p->read = m->p->bytes - m->left_out;
	if (!m->p->root || m->height || m->marks.len)
		return shf_pk_fail(m, "does not end with one value");
	return 0;
}

static int pk_read(struct shf_pk_machine *m)
{
	int rc = pk_run(m);

	shf_free(m->stack);
	shf_free(m->releasing);
	shf_buf_release(&m->marks);
	shf_pk_memo_release(&m->memo);
	shf_free(m->window);
	return rc;
}

int shf_pickle_read(struct shf_pickle *p, const uint8_t *bytes, size_t n, const char *where,
                    struct sheaf_error *err)
{
	struct shf_pk_machine m = { .p = p, .bytes = bytes, .n = n, .where = where, .err = err,
		.early = SHF_PK_NOT_EARLY };

	*p = (struct shf_pickle){ 0 };
	if (n > SHF_PICKLE_MAX)
		return shf_fail(err, SHEAF_EFORMAT, "%s: its pickle has %zu bytes, at most 1 GiB "
		                "is read", where, n);
	return pk_read(&m);
}

int shf_pickle_read_file(struct shf_pickle *p, const struct shf_region *r,
                         const struct shf_pickle_taker *taker, struct sheaf_error *err)
{
	struct shf_pk_machine m = { .p = p, .region = r, .taker = taker, .where = r->where,
		.err = err, .early = SHF_PK_NOT_EARLY };

	*p = (struct shf_pickle){ 0 };
	return pk_read(&m);
}

void shf_pickle_release(struct shf_pickle *p)
{
	shf_arena_release(&p->arena);
	shf_buf_release(&p->persids);
	*p = (struct shf_pickle){ 0 };
}
