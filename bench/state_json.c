/* SPDX-License-Identifier: Apache-2.0 */
/* Parses STATE.json: {"tensors": [{name, dtype, shape, tp_axis, stage, expert, experts, family,
 * tied_to}], "adam": bool}. Only name, dtype and shape are required. An unknown member is an error,
 * because a misspelt one would silently describe another state. */
#include "workload.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_MAX_BYTES ((size_t)1 << 30)

struct where {
	const char *path;
	size_t i;
};

static int wrong(const struct where *w, struct sheaf_error *err, const char *what)
{
	return wl_fail(err, SHEAF_EINVAL, "%.300s: tensor %zu: %s", w->path, w->i, what);
}

/* Reads an integer member of at least `least`; if it is null or missing, the value is `none`. */
static int get_int(json_t *v, const struct where *w, const char *key, int64_t least, int64_t none,
		   int64_t *out, struct sheaf_error *err)
{
	json_t *x = json_object_get(v, key);

	if (!x || json_is_null(x)) {
		*out = none;
		return 0;
	}
	if (!json_is_integer(x) || json_integer_value(x) < least)
		return wl_fail(err, SHEAF_EINVAL, "%.300s: tensor %zu: \"%s\" is not an integer of "
			       "at least %lld", w->path, w->i, key, (long long)least);
	*out = json_integer_value(x);
	return 0;
}

/* Reads a string member without NUL bytes; NULL if it is null or missing. */
static int get_text(json_t *v, const struct where *w, const char *key, char **out,
		    struct sheaf_error *err)
{
	json_t *x = json_object_get(v, key);

	*out = NULL;
	if (!x || json_is_null(x))
		return 0;
	if (!json_is_string(x) || json_string_length(x) == 0 ||
	    strlen(json_string_value(x)) != json_string_length(x))
		return wl_fail(err, SHEAF_EINVAL, "%.300s: tensor %zu: \"%s\" is not a string",
		               w->path,
			       w->i, key);
	*out = (char *)(uintptr_t)json_string_value(x); /* borrowed; wl_model_add copies */
	return 0;
}

static int get_shape(json_t *v, const struct where *w, struct wl_tensor *t, struct sheaf_error *err)
{
	json_t *shape = json_object_get(v, "shape"), *x;
	size_t d;

	if (!json_is_array(shape))
		return wrong(w, err, "\"shape\" is not an array");
	if (json_array_size(shape) > SHEAF_DIMS_MAX)
		return wrong(w, err, "\"shape\" has more than 8 dimensions");
	json_array_foreach(shape, d, x) {
		if (!json_is_integer(x) || json_integer_value(x) < 0)
			return wrong(w, err, "\"shape\" holds something that is not an integer of "
			             "at least 0");
		t->shape[d] = json_integer_value(x);
	}
	t->ndim = (int32_t)json_array_size(shape);
	return 0;
}

static int known_members(json_t *v, const char *const *known, const char *where,
			 struct sheaf_error *err)
{
	const char *key;
	json_t *x;

	json_object_foreach(v, key, x) {
		size_t k = 0;

		while (known[k] && strcmp(known[k], key) != 0)
			k++;
		if (!known[k])
			return wl_fail(err, SHEAF_EINVAL, "%.340s: unknown member \"%.60s\"", where,
				       key);
	}
	return 0;
}

/* Reads expert, stage and axis, which must be consistent. */
static int get_places(json_t *v, const struct where *w, struct wl_tensor *t,
		      struct sheaf_error *err)
{
	int64_t axis = -1;
	int rc;

	rc = get_int(v, w, "tp_axis", 0, -1, &axis, err);
	if (rc == 0)
		rc = get_int(v, w, "stage", 0, -1, &t->stage, err);
	if (rc == 0)
		rc = get_int(v, w, "expert", 0, -1, &t->expert, err);
	if (rc == 0)
		rc = get_int(v, w, "experts", 1, -1, &t->experts, err);
	if (rc < 0)
		return rc;
	if (axis >= t->ndim)
		return wrong(w, err, "\"tp_axis\" is beyond its dimensions");
	if (t->stage > 1000000000)
		return wrong(w, err, "\"stage\" is larger than 1000000000");
	if (t->expert > 1000000000 || t->experts > 1000000000)
		return wrong(w, err, "\"expert\" or \"experts\" is larger than 1000000000");
	if (t->expert >= 0 && t->experts >= 0 && t->expert >= t->experts)
		return wrong(w, err, "\"expert\" is not below \"experts\"");
	if (t->expert >= 0 && t->experts < 0)
		return wrong(w, err, "has \"expert\" and no \"experts\": one of how many?");
	t->tp_axis = (int32_t)axis;
	return 0;
}

static int read_tensor(struct wl_model *m, json_t *v, const char *path, size_t i,
		       struct sheaf_error *err)
{
	static const char *const known[] = { "name", "dtype", "shape", "tp_axis", "stage", "expert",
					     "experts", "family", "tied_to", NULL };
	struct where w = { path, i };
	struct wl_tensor t = { .tp_axis = -1 };
	char *dtype, where[600];
	int rc;

	snprintf(where, sizeof(where), "%.300s: tensor %zu", path, i);
	if (!json_is_object(v))
		return wrong(&w, err, "is not an object");
	rc = known_members(v, known, where, err);
	if (rc == 0)
		rc = get_text(v, &w, "name", &t.name, err);
	if (rc == 0)
		rc = get_text(v, &w, "dtype", &dtype, err);
	if (rc == 0)
		rc = get_text(v, &w, "family", &t.family, err);
	if (rc == 0)
		rc = get_text(v, &w, "tied_to", &t.tied_to, err);
	if (rc == 0)
		rc = get_shape(v, &w, &t, err);
	if (rc == 0)
		rc = get_places(v, &w, &t, err);
	if (rc < 0)
		return rc;
	if (!t.name)
		return wrong(&w, err, "has no \"name\"");
	if (!dtype)
		return wrong(&w, err, "has no \"dtype\"");
	t.dtype = sheaf_dtype_from_name(dtype);
	if (!t.dtype)
		return wl_fail(err, SHEAF_EINVAL, "%.340s: dtype \"%.20s\" is not one of "
		               "safetensors",
			       where, dtype);
	return wl_model_add(m, &t, err);
}

int wl_model_parse(struct wl_model *m, const char *text, size_t n, const char *path,
		   struct sheaf_error *err)
{
	static const char *const known[] = { "tensors", "adam", NULL };
	json_error_t at;
	json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &at), *list, *v;
	size_t i;
	int rc;

	if (!root)
		return wl_fail(err, SHEAF_EINVAL, "%.300s: line %d: %s", path, at.line, at.text);
	if (!json_is_object(root)) {
		rc = wl_fail(err, SHEAF_EINVAL, "%.300s: is not a JSON object", path);
		goto out;
	}
	rc = known_members(root, known, path, err);
	if (rc < 0)
		goto out;
	v = json_object_get(root, "adam");
	list = json_object_get(root, "tensors");
	if (v && !json_is_boolean(v))
		rc = wl_fail(err, SHEAF_EINVAL, "%.300s: \"adam\" is neither true nor false", path);
	else if (!json_is_array(list))
		rc = wl_fail(err, SHEAF_EINVAL, "%.300s: has no array \"tensors\"", path);
	if (rc < 0)
		goto out;
	m->adam = json_is_true(v);
	json_array_foreach(list, i, v) {
		rc = read_tensor(m, v, path, i, err);
		if (rc < 0)
			goto out;
	}
out:
	json_decref(root);
	return rc;
}

int wl_model_read(struct wl_model *m, const char *path, struct sheaf_error *err)
{
	FILE *f = fopen(path, "rbe");
	size_t n = 0, cap = 0, got;
	char *text = NULL, *more;
	struct stat st;
	int rc = 0;

	if (!f)
		return wl_fail(err, SHEAF_ENOENT, "%.300s: %s", path, strerror(errno));
	/* A device has no end. A pipe is allowed: it may be a `<(command)`. */
	if (fstat(fileno(f), &st) == 0 && (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode))) {
		fclose(f);
		return wl_fail(err, SHEAF_ENOENT, "%.300s: is a device, not a file", path);
	}
	for (;;) {
		if (cap - n < 65536) {
			cap = cap ? 2 * cap : 131072;
			more = cap <= FILE_MAX_BYTES ? realloc(text, cap) : NULL;
			if (!more) {
				rc = wl_fail(err, SHEAF_ENOMEM,
					     "%.300s: no memory for its text", path);
				goto out;
			}
			text = more;
		}
		got = fread(text + n, 1, cap - n, f);
		n += got;
		if (got == 0)
			break;
	}
	if (ferror(f))
		rc = wl_fail(err, SHEAF_EIO, "%.300s: %s", path, strerror(errno));
	else
		rc = wl_model_parse(m, text, n, path, err);
out:
	free(text);
	fclose(f);
	return rc;
}
