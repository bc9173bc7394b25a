/* SPDX-License-Identifier: Apache-2.0 */
/* Source: torch/_utils.py, torch/serialization.py and torch/_tensor.py of torch 2.13, and files
 * that it wrote. */
#include "torch_tensor.h"
#include <string.h>
#include "dtype.h"

struct torch_type {
	const char *dtype, *storage;    /* torch.<dtype>, torch.<storage> */
	int32_t type;
	bool pair;
};

static const struct torch_type torch_types[] = {
	{ "float64", "DoubleStorage", SHEAF_F64, false },
	{ "float32", "FloatStorage", SHEAF_F32, false },
	{ "float16", "HalfStorage", SHEAF_F16, false },
	{ "bfloat16", "BFloat16Storage", SHEAF_BF16, false },
	{ "int64", "LongStorage", SHEAF_I64, false },
	{ "int32", "IntStorage", SHEAF_I32, false },
	{ "int16", "ShortStorage", SHEAF_I16, false },
	{ "int8", "CharStorage", SHEAF_I8, false },
	{ "uint8", "ByteStorage", SHEAF_U8, false },
	{ "bool", "BoolStorage", SHEAF_BOOL, false },
	{ "complex64", "ComplexFloatStorage", SHEAF_C64, false },
	{ "complex128", "ComplexDoubleStorage", SHEAF_F64, true },
	{ "complex32", NULL, SHEAF_F16, true },
	{ "uint16", NULL, SHEAF_U16, false },
	{ "uint32", NULL, SHEAF_U32, false },
	{ "uint64", NULL, SHEAF_U64, false },
	{ "float8_e4m3fn", NULL, SHEAF_F8_E4M3, false },
	{ "float8_e5m2", NULL, SHEAF_F8_E5M2, false },
	{ "float8_e4m3fnuz", NULL, SHEAF_F8_E4M3FNUZ, false },
	{ "float8_e5m2fnuz", NULL, SHEAF_F8_E5M2FNUZ, false },
	{ "float8_e8m0fnu", NULL, SHEAF_F8_E8M0, false },
};

/* Finds the row of a global torch.<name>. storage: the name is that of a class of storages. */
static const struct torch_type *torch_type_of(const struct shf_pk *v, bool storage)
{
	if (!v || v->kind != SHF_PK_GLOBAL || v->n != 5 || memcmp(v->u.s, "torch.", 6))
		return NULL;
	for (size_t i = 0; i < sizeof(torch_types) / sizeof(torch_types[0]); i++) {
		const struct torch_type *t = &torch_types[i];
		const char *name = storage ? t->storage : t->dtype;

		if (name && strcmp(v->u.s + 6, name) == 0)
			return t;
	}
	return NULL;
}

bool shf_torch_dtype(const struct shf_pk *v, int32_t *dtype, bool *pair)
{
	const struct torch_type *t = torch_type_of(v, false);

	if (!t)
		return false;
	*dtype = t->type;
	*pair = t->pair;
	return true;
}

const char *shf_torch_type_name(int32_t dtype, const char **storage)
{
	for (size_t i = 0; i < sizeof(torch_types) / sizeof(torch_types[0]); i++)
		if (torch_types[i].type == dtype && !torch_types[i].pair) {
			*storage = torch_types[i].storage;
			return torch_types[i].dtype;
		}
	return NULL;
}

uint32_t shf_torch_item_bytes(const struct shf_torch_tensor *t)
{
	return shf_dtype(t->dtype)->bits / 8u * (t->pair ? 2 : 1);
}

const struct shf_pk *shf_torch_size(const struct shf_pk *v)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, "torch.Size");

	if (c && !c->state)
		v = c->args->n == 1 ? shf_pk_at(c->args, 0) : c->args->n == 0 ? c->args : NULL;
	return v && v->kind == SHF_PK_TUPLE ? v : NULL;
}

/* Reads the persistent id of a storage: ("storage", class, key, location, size), and in legacy
 * files the view: None, or (key of the view, offset, size). Sizes are in items of the class; in
 * bytes for UntypedStorage, which has no type: *typed is false then. */
static bool read_storage(struct shf_torch_tensor *t, const struct shf_pk *v, bool *typed)
{
	const struct shf_pk *id = v && v->kind == SHF_PK_PERSID ? v->u.of : NULL, *view;
	const struct shf_pk *of = shf_pk_at(id, 1);
	const struct torch_type *type = torch_type_of(of, true);
	int64_t n, first, part;
	uint32_t item;

	if (!id || id->kind != SHF_PK_TUPLE || (id->n != 5 && id->n != 6) ||
	    !shf_pk_text_is(shf_pk_at(id, 0), "storage"))
		return false;
	*typed = type != NULL;
	if (!type && !shf_pk_is_global(of, "torch.storage.UntypedStorage") &&
	    !shf_pk_is_global(of, "torch.UntypedStorage"))
		return false;
	t->key = shf_pk_at(id, 2);
	if (!t->key || t->key->kind != SHF_PK_STR || !shf_pk_int(shf_pk_at(id, 4), &n) || n < 0)
		return false;
	if (type) {
		t->dtype = type->type;
		t->pair = type->pair;
	}
	item = type ? shf_torch_item_bytes(t) : 1;
	view = shf_pk_at(id, 5);
	if (view && view->kind != SHF_PK_NONE) {
		if (!shf_pk_int(shf_pk_at(view, 1), &first) ||
		    !shf_pk_int(shf_pk_at(view, 2), &part) || first < 0 || part < 0 || first > n ||
		    part > n - first)
			return false;
		n = part;
	} else {
		first = 0;
	}
	if (n > INT64_MAX / item || first > INT64_MAX / item)
		return false;
	t->storage_bytes = (uint64_t)n * item;
	t->storage_item = item;
	t->view_at = first * item;
	return true;
}

bool shf_torch_storage(const struct shf_pk *v, const struct shf_pk **key, uint32_t *item)
{
	static const struct { const char *name; uint32_t item; } quantised[] = {
		{ "torch.QInt8Storage", 1 }, { "torch.QUInt8Storage", 1 },
		{ "torch.QInt32Storage", 4 }, { "torch.QUInt4x2Storage", 1 },
		{ "torch.QUInt2x4Storage", 1 } };
	const struct shf_pk *id = v && v->kind == SHF_PK_PERSID ? v->u.of : NULL;
	struct shf_torch_tensor t = { 0 };
	bool typed;

	/* Their tensors are not read, but the bytes of their storages must be passed over. */
	for (size_t i = 0; i < sizeof(quantised) / sizeof(quantised[0]); i++)
		if (shf_pk_text_is(shf_pk_at(id, 0), "storage") && shf_pk_at(id, 2) &&
		    shf_pk_at(id, 2)->kind == SHF_PK_STR &&
		    shf_pk_is_global(shf_pk_at(id, 1), quantised[i].name)) {
			*key = shf_pk_at(id, 2);
			*item = quantised[i].item;
			return true;
		}
	if (!read_storage(&t, v, &typed))
		return false;
	*key = t.key;
	*item = t.storage_item;
	return true;
}

/* Reads dimensions and strides. */
static bool read_dims(struct shf_torch_tensor *t, const struct shf_pk *dims,
                      const struct shf_pk *strides)
{
	int64_t v;

	t->dims = shf_torch_size(dims);
	t->strides = shf_torch_size(strides);
	if (!t->dims || !t->strides || t->dims->n != t->strides->n || t->dims->n > 64)
		return false;
	for (uint32_t i = 0; i < t->dims->n; i++)
		if (!shf_pk_int(t->dims->u.a[i], &v) || v < 0 ||
		    !shf_pk_int(t->strides->u.a[i], &v) || v < 0)
			return false;
	t->ndim = (int32_t)t->dims->n;
	return true;
}

/* Reads the dictionary that says how the values differ from what is stored. */
static bool read_bits(struct shf_torch_tensor *t, const struct shf_pk *v)
{
	if (!v || v->kind == SHF_PK_NONE)
		return true;
	if (v->kind != SHF_PK_DICT)
		return false;
	for (uint32_t i = 0; i < v->n; i++) {
		const struct shf_pk *key = v->u.a[2 * i], *value = v->u.a[2 * i + 1];

		if (value->kind != SHF_PK_BOOL)
			return false;
		if (shf_pk_text_is(key, "conj"))
			t->conj = value->u.i;
		else if (shf_pk_text_is(key, "neg"))
			t->neg = value->u.i;
		else
			return false;
	}
	return true;
}

/* Whether a wrapper, which may convert, leaves the dtype as it is. */
static bool is_dtype(const struct shf_torch_tensor *t, const struct shf_pk *v)
{
	int32_t dtype;
	bool pair;

	return !v || (shf_torch_dtype(v, &dtype, &pair) && dtype == t->dtype && pair == t->pair);
}

/* Reads the arguments of a rebuild function. bits: the place of the dictionary in them; type: of
 * the dtype, or 0 if the storage has it. */
static enum shf_tensor_kind read_rebuild(struct shf_torch_tensor *t, const struct shf_pk *args,
                                        uint32_t type, uint32_t bits, const char **why)
{
	bool typed;
	char kind;

	*why = "a tensor of unknown structure";
	if (args->kind != SHF_PK_TUPLE || args->n < 4 || args->n > bits + 1 ||
	    !read_storage(t, shf_pk_at(args, 0), &typed) || (!type && !typed))
		return SHF_TENSOR_UNREAD;
	if (type && !shf_torch_dtype(shf_pk_at(args, type), &t->dtype, &t->pair)) {
		*why = "a tensor of a dtype that is not read";
		return SHF_TENSOR_UNREAD;
	}
	if (!shf_pk_int(shf_pk_at(args, 1), &t->at) || t->at < 0 ||
	    !read_dims(t, shf_pk_at(args, 2), shf_pk_at(args, 3)) ||
	    !read_bits(t, shf_pk_at(args, bits)))
		return SHF_TENSOR_UNREAD;
	kind = shf_dtype(t->dtype)->kind;
	if ((t->conj && !t->pair && kind != 'c') || (t->neg && kind != 'f' && kind != 'c'))
		return SHF_TENSOR_UNREAD;
	return SHF_TENSOR_READ;
}

/* Reads _rebuild_from_type_v2(function, type, arguments, attributes): a tensor of a class with
 * attributes, which are dropped if the class is one of torch's own. */
static const struct shf_pk *rebuild_args(const struct shf_pk_call *c, const char **func,
                                         const char **why)
{
	static const char *const own[] = { "torch.Tensor", "torch.nn.parameter.Parameter",
		"torch.nn.Parameter", "torch.nn.parameter.Buffer", "torch._tensor.Tensor" };
	const struct shf_pk *f = shf_pk_at(c->args, 0), *type = shf_pk_at(c->args, 1);
	const struct shf_pk *args = shf_pk_at(c->args, 2);

	*why = "a tensor of unknown class";
	if (!f || f->kind != SHF_PK_GLOBAL || !args || args->kind != SHF_PK_TUPLE)
		return NULL;
	*func = f->u.s;
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (shf_pk_is_global(type, own[i]))
			return args;
	return NULL;
}

/* Parameters are wrapped tensors, and a wrapped tensor may be wrapped again. Returns the innermost
 * call; *func and *args: what is called, and with what; *dtype: NULL, or what a wrapper says. */
static bool unwrap(const struct shf_pk *v, const char **func, const struct shf_pk **args,
                   const struct shf_pk **dtype, const char **why)
{
	for (int depth = 0; v && v->kind == SHF_PK_CALL && depth < 8; depth++) {
		const struct shf_pk_call *c = v->u.call;

		*func = c->func->u.s;
		*args = c->args;
		if (strncmp(*func, "torch._", 7) && strcmp(*func, "torch.nn.parameter.Parameter"))
			return false;
		if (c->state || c->kwargs || c->list || c->dict) {
			*why = "a tensor that is changed after it is made";
			return false;
		}
		if (strcmp(*func, "torch._utils._rebuild_parameter") &&
		    strcmp(*func, "torch._utils._rebuild_parameter_with_state") &&
		    strcmp(*func, "torch._utils._rebuild_device_tensor_from_cpu_tensor")) {
			if (strcmp(*func, "torch._tensor._rebuild_from_type_v2") == 0)
				*args = rebuild_args(c, func, why);
			return true;
		}
		if (strcmp(*func, "torch._utils._rebuild_device_tensor_from_cpu_tensor") == 0)
			*dtype = shf_pk_at(c->args, 1);
		v = shf_pk_at(c->args, 0);
	}
	return false;
}

/* A DTensor is _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor, arguments, state). The
 * state is a dictionary of attributes, one of which is the local tensor, or a pair of such a
 * dictionary and one of slots. */
const struct shf_pk *shf_torch_local_of(const struct shf_pk *v)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, "torch._tensor._rebuild_from_type_v2");
	const struct shf_pk *local, *state, *type = c ? shf_pk_at(c->args, 1) : NULL;

	if (!shf_pk_is_global(type, "torch.distributed.tensor.DTensor") &&
	    !shf_pk_is_global(type, "torch.distributed.tensor._api.DTensor") &&
	    !shf_pk_is_global(type, "torch.distributed._tensor.api.DTensor"))
		return v;
	state = shf_pk_at(c->args, 3);
	local = shf_pk_get(state, "_local_tensor");
	for (uint32_t i = 0; i < 2 && !local; i++)
		local = shf_pk_get(shf_pk_at(state, i), "_local_tensor");
	return local ? local : v;
}

enum shf_tensor_kind shf_torch_tensor_of(struct shf_torch_tensor *t, const struct shf_pk *v,
                                        const char **why)
{
	static const struct { const char *name, *why; } unread[] = {
		{ "_rebuild_qtensor", "a quantised tensor, which sheaf does not read" },
		{ "_rebuild_sparse_tensor", "a sparse tensor, which sheaf does not read" },
		{ "_rebuild_sparse_csr_tensor", "a sparse tensor, which sheaf does not read" },
		{ "_rebuild_nested_tensor", "a nested tensor, which sheaf does not read" },
		{ "_rebuild_meta_tensor_no_storage", "a tensor on the meta device, which has no "
		  "values" },
		{ "_rebuild_wrapper_subclass", "a tensor of unknown class" },
		{ "_rebuild_device_tensor_from_numpy", "a tensor that is kept as a NumPy array, "
		  "which sheaf does not read" },
	};
	const struct shf_pk *args = NULL, *dtype = NULL;
	enum shf_tensor_kind kind = SHF_TENSOR_UNREAD;
	const char *func = NULL;

	*t = (struct shf_torch_tensor){ 0 };
	*why = NULL;
	if (!unwrap(v, &func, &args, &dtype, why) || strncmp(func, "torch._utils._rebuild", 21))
		return *why ? SHF_TENSOR_UNREAD : SHF_TENSOR_NONE;
	func += 13;
	for (size_t i = 0; i < sizeof(unread) / sizeof(unread[0]); i++)
		if (strcmp(func, unread[i].name) == 0) {
			*why = unread[i].why;
			return SHF_TENSOR_UNREAD;
		}
	if (args && strcmp(func, "_rebuild_tensor") == 0)
		kind = read_rebuild(t, args, 0, 4, why);
	else if (args && strcmp(func, "_rebuild_tensor_v2") == 0)
		kind = read_rebuild(t, args, 0, 6, why);
	else if (args && strcmp(func, "_rebuild_tensor_v3") == 0)
		kind = read_rebuild(t, args, 6, 7, why);
	else if (!*why)
		*why = "a tensor that is rebuilt in an unknown way";
	if (kind == SHF_TENSOR_READ && !is_dtype(t, dtype)) {
		*why = "a tensor that is converted to another dtype, which sheaf does not read";
		kind = SHF_TENSOR_UNREAD;
	}
	return kind;
}
