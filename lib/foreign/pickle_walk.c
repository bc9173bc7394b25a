/* SPDX-License-Identifier: Apache-2.0 */
/* Values may be shared, and a list may hold itself, so the walk has three limits: of its depth, of
 * the number of its steps, which is proportional to the length of the pickle, and of the memory
 * that names take. The cost of a step is limited, too: a step is one value with at most NAME_STEP
 * bytes of its key, and of a long text only the beginning is copied. */
#include "pickle_walk.h"
#include <inttypes.h>
#include <string.h>
#include "decimal.h"
#include "err.h"
#include "valid.h"

#define WALK_DEPTH 100
#define NAME_MAX_BYTES 4096
#define NAME_STEP 64            /* bytes of a key that cost one step more */
#define LIST_SHOWN 16           /* values of a list that are shown */
#define TEXT_SHOWN 1024         /* bytes of a text that are shown */
#define ENCODED_SHOWN 4096      /* bytes of a text whose characters are counted */
#define COUNT_STEPS 10000       /* most steps for counting the tensors in a value that is not
                                 * read */
#define ROOT_NOTE "(root)"      /* key of a note about the whole */
#define ROOT_NAME "tensor"      /* of a tensor that is not in any dictionary */

struct walk {
	struct shf_foreign *f;
	const struct shf_walk_kind *by;
	struct shf_buf name;            /* the path to the current value */
	uint64_t steps, names;          /* what is left: steps, bytes of names */
	struct sheaf_error *err;
};

static int walk_value(struct walk *w, const struct shf_pk *v, int depth);

static int walk_fail(const struct walk *w, const char *why)
{
	return shf_fail(w->err, SHEAF_EFORMAT, "%s: %s", w->f->path, why);
}

static int walk_no_memory(const struct walk *w)
{
	return shf_fail(w->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", w->f->path);
}

/* Adds a note about the current value. */
#define walk_note(w, ...) \
	shf_foreign_note((w)->f, (w)->err, \
	                 (w)->name.len ? (const char *)(w)->name.data : ROOT_NOTE, \
	                 (w)->name.len ? (w)->name.len : strlen(ROOT_NOTE), __VA_ARGS__)

/* Takes n steps. */
static int walk_steps(struct walk *w, uint64_t n)
{
	if (w->steps < n)
		return walk_fail(w, "its values refer to each other so often that they cannot be "
		                 "listed");
	w->steps -= n;
	return 0;
}

/* Counts tensors that are not read, unless the walk is for values other than tensors. */
static void walk_unread(struct walk *w, uint64_t n)
{
	if (w->by->add)
		w->f->unread_n += n;
}

/* ---- values that are no tensors ---- */

static void put_float(struct shf_buf *out, double v)
{
	char text[SHF_DECIMAL_DOUBLE];

	shf_decimal_print(text, v);
	shf_buf_adds(out, text);
}

static void put_some(struct shf_buf *out, const struct shf_pk *text)
{
	shf_buf_add(out, text->u.s, text->n < TEXT_SHOWN ? text->n : TEXT_SHOWN);
}

bool shf_walk_scalar(struct shf_buf *out, const struct shf_pk *v)
{
	const struct shf_pk_call *c;

	switch (v->kind) {
	case SHF_PK_NONE: shf_buf_adds(out, "none"); return true;
	case SHF_PK_BOOL: shf_buf_adds(out, v->u.i ? "true" : "false"); return true;
	case SHF_PK_INT: shf_buf_addf(out, "%" PRId64, v->u.i); return true;
	case SHF_PK_FLOAT: put_float(out, v->u.f); return true;
	case SHF_PK_LONG: shf_buf_addf(out, "an integer of %" PRIu32 " bytes", v->n); return true;
	case SHF_PK_STR: put_some(out, v); return true;
	case SHF_PK_BYTES: shf_buf_addf(out, "%" PRIu32 " bytes", v->n); return true;
	case SHF_PK_STORED: shf_buf_addf(out, v->u.stored->text ? "a text of %" PRIu64 " bytes"
		                         : "%" PRIu64 " bytes", v->u.stored->bytes); return true;
	case SHF_PK_GLOBAL: shf_buf_adds(out, v->u.s); return true;
	default: break;
	}
	c = shf_pk_call_of(v, "_codecs.encode"); /* bytes, in protocol 2 */
	if (c && !c->state && c->args->n == 2 && shf_pk_at(c->args, 0)->kind == SHF_PK_STR) {
		const struct shf_pk *text = shf_pk_at(c->args, 0);
		uint32_t n = 0;

		/* Each character of the text is a byte. */
		for (uint32_t i = 0; i < text->n && i < ENCODED_SHOWN; i++)
			n += (text->u.s[i] & 0xc0) != 0x80;
		shf_buf_addf(out, "%s%" PRIu32 " bytes", text->n > ENCODED_SHOWN ? "more than " :
			     "", n);
		return true;
	}
	c = shf_pk_call_of(v, "torch.device");
	if (c && c->args->n && shf_pk_at(c->args, 0)->kind == SHF_PK_STR) {
		put_some(out, shf_pk_at(c->args, 0));
		return true;
	}
	return false;
}

/* Counts the tensors that a value leads to, by at most `steps` steps. */
static uint64_t count_tensors(const struct walk *w, const struct shf_pk *v, int depth,
                              uint64_t *steps)
{
	const char *why;
	uint64_t n = 0;

	if (!v || depth > WALK_DEPTH || !*steps)
		return 0;
	--*steps;
	if (v->kind == SHF_PK_CALL) {
		const struct shf_pk_call *c = v->u.call;

		if (w->by->look(v, &why) != SHF_TENSOR_NONE)
			return 1;
		return count_tensors(w, c->args, depth + 1, steps) +
		       count_tensors(w, c->kwargs, depth + 1, steps) +
		       count_tensors(w, c->state, depth + 1, steps) +
		       count_tensors(w, c->list, depth + 1, steps) +
		       count_tensors(w, c->dict, depth + 1, steps);
	}
	if (v->kind < SHF_PK_TUPLE || v->kind > SHF_PK_DICT)
		return 0;
	for (uint32_t i = 0; i < (v->kind == SHF_PK_DICT ? 2 : 1) * v->n; i++)
		n += count_tensors(w, v->u.a[i], depth + 1, steps);
	return n;
}

/* Notes an object of unknown class. What is in it is counted, and not listed. */
static int walk_opaque(struct walk *w, const struct shf_pk *v)
{
	uint64_t steps = w->steps < COUNT_STEPS ? w->steps : COUNT_STEPS, had = steps;
	uint64_t n = count_tensors(w, v, 0, &steps);
	const char *of = v->kind == SHF_PK_CALL ? v->u.call->func->u.s : "a storage";

	w->steps -= had - steps;
	walk_unread(w, n);
	if (n)
		return walk_note(w, "an object of %.*s, which sheaf does not read; %" PRIu64 "%s "
		                 "tensor%s in it cannot be loaded", shf_name_show(of), of, n,
		                 steps ? "" : " or more", n == 1 ? "" : "s");
	return walk_note(w, "an object of %.*s, which sheaf does not read", shf_name_show(of), of);
}

/* ---- containers ---- */

/* Appends a key to the name, or only its beginning if the name gets too long for a tensor. Returns
 * false if the key is neither a string nor a number. *back: the length of the name before. */
static bool name_push(struct walk *w, const struct shf_pk *key, uint32_t i, size_t *back)
{
	size_t room;

	*back = w->name.len;
	if (key && key->kind != SHF_PK_STR && key->kind != SHF_PK_INT)
		return false;
	if (w->name.len)
		shf_buf_adds(&w->name, ".");
	if (!key)
		shf_buf_addf(&w->name, "%" PRIu32, i);
	else if (key->kind == SHF_PK_INT)
		shf_buf_addf(&w->name, "%" PRId64, key->u.i);
	/* One byte more than a tensor's name may have shows that the name is too long. */
	room = w->name.len <= NAME_MAX_BYTES ? NAME_MAX_BYTES + 1 - w->name.len : 0;
	if (key && key->kind == SHF_PK_STR)
		shf_buf_add(&w->name, key->u.s, key->n < room ? key->n : room);
	return true;
}

/* Walks the value of a key, or of place i of a list if key is NULL. Returns 1 if the key is neither
 * a text nor a number. */
static int walk_entry(struct walk *w, const struct shf_pk *key, uint32_t i, const struct shf_pk *v,
                      int depth)
{
	size_t back;
	int rc;

	if (!name_push(w, key, i, &back))
		return 1;
	rc = walk_steps(w, (w->name.len - back) / NAME_STEP);
	if (rc == 0)
		rc = walk_value(w, v, depth);
	w->name.len = back;
	return rc;
}

static int walk_dict(struct walk *w, const struct shf_pk *v, int depth)
{
	uint64_t strange = 0, tensors = 0, steps;
	int rc = 0;

	if (v->n == 0)
		return w->name.len ? walk_note(w, "{}") : 0;
	for (uint32_t i = 0; i < v->n && rc == 0; i++) {
		rc = walk_entry(w, v->u.a[2 * i], 0, v->u.a[2 * i + 1], depth + 1);
		if (rc <= 0)
			continue;
		steps = COUNT_STEPS;
		strange++;
		tensors += count_tensors(w, v->u.a[2 * i + 1], depth, &steps);
		rc = walk_steps(w, 1 + COUNT_STEPS - steps);
	}
	walk_unread(w, tensors);
	if (rc == 0 && strange)
		rc = walk_note(w, "%" PRIu64 " entr%s whose key is neither a string nor a number "
		               "%s not listed, with %" PRIu64 " tensor%s that cannot be loaded",
		               strange, strange == 1 ? "y" : "ies", strange == 1 ? "is" : "are",
		               tensors, tensors == 1 ? "" : "s");
	return rc;
}

/* A list of plain values is one note. */
static int walk_list(struct walk *w, const struct shf_pk *v, int depth)
{
	struct shf_buf text = SHF_BUF_INIT;
	bool plain = true;
	int rc = 0;

	for (uint32_t i = 0; i < v->n && plain && rc == 0; i++) {
		size_t had = text.len;

		rc = walk_steps(w, 1);
		shf_buf_adds(&text, i ? ", " : "");
		plain = shf_walk_scalar(&text, v->u.a[i]);
		text.len = i < LIST_SHOWN && text.len < 2 * TEXT_SHOWN ? text.len : had;
	}
	if (rc == 0 && plain && text.oom)
		rc = walk_no_memory(w);
	else if (rc == 0 && plain)
		rc = walk_note(w, v->n > LIST_SHOWN ? "[%.*s, ...], %" PRIu32 " values" : "[%.*s]",
		               (int)text.len,
		               text.len ? (const char *)text.data : "", v->n);
	shf_buf_release(&text);
	for (uint32_t i = 0; !plain && i < v->n && rc == 0; i++)
		rc = walk_entry(w, NULL, i, v->u.a[i], depth + 1);
	return rc;
}

/* Returns what a value holds if it is listed as a list, or NULL. */
static const struct shf_pk *as_list(const struct walk *w, const struct shf_pk *v)
{
	if (v->kind == SHF_PK_LIST || v->kind == SHF_PK_SET || v->kind == SHF_PK_TUPLE)
		return v;
	return w->by->list ? w->by->list(v) : NULL;
}

/* Classes whose instances are dictionaries in all but name: what they hold is listed as the
 * entries of one. */
static const struct shf_pk *as_dict(const struct shf_pk *v)
{
	const struct shf_pk_call *c = v->kind == SHF_PK_CALL ? v->u.call : NULL;

	if (!c || c->list || c->kwargs)
		return NULL;
	if (c->dict && !c->state && (shf_pk_is_global(c->func, "collections.defaultdict") ||
	                             shf_pk_is_global(c->func, "collections.Counter")))
		return c->dict;
	if (c->state && !c->dict && c->state->kind == SHF_PK_DICT && c->args->n == 0 &&
	    (shf_pk_is_global(c->func, "argparse.Namespace") ||
	     shf_pk_is_global(c->func, "types.SimpleNamespace")))
		return c->state;
	return NULL;
}

static int walk_tensor(struct walk *w, const struct shf_pk *v)
{
	size_t n = w->name.len;
	int rc;

	if (n == 0)
		shf_buf_adds(&w->name, ROOT_NAME);
	shf_buf_u8(&w->name, 0);
	if (w->name.oom)
		return walk_no_memory(w);
	w->names = w->names > w->name.len ? w->names - w->name.len : 0;
	if (!w->names)
		return walk_fail(w, "its names are longer than can be listed");
	if (w->name.len > NAME_MAX_BYTES) {
		w->name.len = n;
		walk_unread(w, 1);
		return walk_note(w, "a tensor whose name has more than %d bytes, which sheaf does "
		                 "not read", NAME_MAX_BYTES);
	}
	rc = w->by->add(w->by->arg, w->f, v, (const char *)w->name.data, w->name.len - 1, w->err);
	w->name.len = n;
	return rc;
}

static int walk_value(struct walk *w, const struct shf_pk *v, int depth)
{
	struct shf_buf text = SHF_BUF_INIT;
	const struct shf_pk *dict, *list;
	enum shf_tensor_kind kind;
	const char *why;
	int rc;

	rc = walk_steps(w, 1);
	if (rc < 0)
		return rc;
	if (depth > WALK_DEPTH)
		return walk_note(w, "a value that is nested more than %d deep, which sheaf does "
		                 "not read", WALK_DEPTH);
	kind = w->by->look(v, &why);
	if (kind == SHF_TENSOR_READ)
		return walk_tensor(w, v);
	if (kind == SHF_TENSOR_UNREAD) {
		walk_unread(w, 1);
		return walk_note(w, "%s", why);
	}
	dict = v->kind == SHF_PK_DICT ? v : as_dict(v);
	if (dict)
		return walk_dict(w, dict, depth);
	list = as_list(w, v);
	if (list)
		return walk_list(w, list, depth);
	if (!shf_walk_scalar(&text, v))
		rc = walk_opaque(w, v);
	else if (text.oom)
		rc = walk_no_memory(w);
	else
		rc = walk_note(w, "%.*s", (int)text.len,
		               text.len ? (const char *)text.data : "");
	shf_buf_release(&text);
	return rc;
}

int shf_walk(struct shf_foreign *f, const struct shf_pickle *pickle, const struct shf_pk *root,
             const struct shf_walk_kind *by, struct sheaf_error *err)
{
	struct walk w = { .f = f, .by = by, .err = err, .steps = 4 * pickle->read + 4096,
		.names = (UINT64_C(64) << 20) + 16 * pickle->read };
	int rc;

	if (by->prefix)
		shf_buf_adds(&w.name, by->prefix);
	rc = walk_value(&w, root, 0);
	shf_buf_release(&w.name);
	return rc < 0 || !by->add ? rc : shf_foreign_check_names(f, err);
}
