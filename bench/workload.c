/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a state: adding them, Adam's families, choosing families, order */
#include "workload.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int wl_fail(struct sheaf_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	err->sys = 0;
	err->rank = -1;
	va_start(ap, fmt);
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	return code;
}

const char *wl_code_name(int code)
{
	const char *name = sheaf_code_name(code);

	return name ? name : code > 0 ? "EVALUE" : "EUNKNOWN";
}

const char *wl_size(char text[32], uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double v = (double)bytes;
	int u = 0;

	while (v >= 1024 && u < 6) {
		v /= 1024;
		u++;
	}
	if (v >= 1023.95 && u < 6) { /* it would print as 1024.0 */
		v /= 1024;
		u++;
	}
	snprintf(text, 32, u ? "%.1f %s" : "%.0f %s", v, units[u]);
	return text;
}

/* --- natural order ------------------------------------------------------------------------ */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static size_t run_of(const char *s, bool digits)
{
	size_t n = 0;

	while (s[n] && is_digit(s[n]) == digits)
		n++;
	return n;
}

static int bytes_cmp(const char *a, size_t an, const char *b, size_t bn)
{
	int d = memcmp(a, b, an < bn ? an : bn);

	return d ? d : (an > bn) - (an < bn);
}

/* Compares two runs of digits by value. Sets *zeros by which one has fewer leading zeros. */
static int digits_cmp(const char *a, size_t an, const char *b, size_t bn, int *zeros)
{
	size_t az = 0, bz = 0;

	while (az + 1 < an && a[az] == '0')
		az++;
	while (bz + 1 < bn && b[bz] == '0')
		bz++;
	*zeros = (az > bz) - (az < bz);
	if (an - az != bn - bz)
		return an - az < bn - bz ? -1 : 1;
	return memcmp(a + az, b + bz, an - az);
}

int wl_natural(const char *a, const char *b)
{
	const char *a0 = a, *b0 = b;
	int zeros = 0, z, d;

	while (*a && *b) {
		bool ad = is_digit(*a), bd = is_digit(*b);
		size_t an, bn;

		if (ad != bd)
			return ad ? -1 : 1;
		an = run_of(a, ad);
		bn = run_of(b, bd);
		if (ad) {
			d = digits_cmp(a, an, b, bn, &z);
			if (!zeros)
				zeros = z;
		} else {
			d = bytes_cmp(a, an, b, bn);
		}
		if (d)
			return d;
		a += an;
		b += bn;
	}
	if (*a || *b)
		return *a ? 1 : -1;
	return zeros ? zeros : strcmp(a0, b0);
}

/* --- the list ----------------------------------------------------------------------------- */

static void tensor_release(struct wl_tensor *t)
{
	free(t->family);
	free(t->name);
	free(t->tied_to);
}

void wl_model_release(struct wl_model *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->n; i++)
		tensor_release(&m->t[i]);
	free(m->t);
	*m = (struct wl_model){ 0 };
}

int64_t wl_items(const struct wl_tensor *t)
{
	int64_t items = 1;

	for (int d = 0; d < t->ndim; d++)
		items *= t->shape[d];
	return items;
}

uint64_t wl_bytes(int dtype, int64_t items)
{
	uint64_t bits = (uint64_t)sheaf_dtype_bits(dtype);

	return bits < 8 ? (uint64_t)items / 8 * bits + (uint64_t)items % 8 * bits / 8
			: (uint64_t)items * (bits / 8);
}

int wl_shape_check(int dtype, int ndim, const int64_t *shape, const char *name,
		   struct sheaf_error *err)
{
	int bits = sheaf_dtype_bits(dtype);
	int64_t items = 1, widest = 1;

	if (!bits)
		return wl_fail(err, SHEAF_EINVAL, "%.200s: dtype %d is not one of safetensors",
		               name,
			       dtype);
	if (ndim < 0 || ndim > SHEAF_DIMS_MAX)
		return wl_fail(err, SHEAF_EINVAL, "%.200s: %d dimensions, at most %d can be", name,
			       ndim, SHEAF_DIMS_MAX);
	for (int d = 0; d < ndim; d++) {
		/* Computes the product without zeros, too, because the strides of an empty tensor
		 * must fit as well. */
		if (shape[d] < 0 ||
		    __builtin_mul_overflow(widest, shape[d] ? shape[d] : 1, &widest) ||
		    widest > INT64_MAX / 128)
			return wl_fail(err, SHEAF_EINVAL, "%.200s: its shape overflows", name);
		items *= shape[d];
	}
	if (bits < 8 && items % 8 * bits % 8)
		return wl_fail(err, SHEAF_EINVAL, "%.200s: %lld items of %s do not fill whole "
		               "bytes",
			       name, (long long)items, sheaf_dtype_name(dtype));
	return 0;
}

int wl_model_add(struct wl_model *m, const struct wl_tensor *t, struct sheaf_error *err)
{
	struct wl_tensor copy = *t, *more;
	size_t cap;
	int rc = wl_shape_check(t->dtype, t->ndim, t->shape, t->name, err);

	if (rc < 0)
		return rc;
	if (strlen(t->name) > WL_NAME_MAX)
		return wl_fail(err, SHEAF_EINVAL, "%.100s...: a name of %zu bytes, at most %d can "
			       "be", t->name, strlen(t->name), WL_NAME_MAX);
	if (m->n == m->cap) {
		cap = m->cap ? 2 * m->cap : 64;
		more = cap <= SIZE_MAX / sizeof(*more) ? realloc(m->t, cap * sizeof(*more)) : NULL;
		if (!more)
			goto nomem;
		m->t = more;
		m->cap = cap;
	}
	copy.name = strdup(t->name);
	copy.family = strdup(t->family ? t->family : "model");
	copy.tied_to = t->tied_to ? strdup(t->tied_to) : NULL;
	if (!copy.name || !copy.family || (t->tied_to && !copy.tied_to)) {
		tensor_release(&copy);
		goto nomem;
	}
	m->t[m->n++] = copy;
	return 0;
nomem:
	return wl_fail(err, SHEAF_ENOMEM, "no memory for %zu tensors", m->n + 1);
}

/* --- Adam --------------------------------------------------------------------------------- */

/* F64, F32, F16, BF16 and the smaller floating types, but not C64 */
static bool is_floating(int dtype)
{
	const char *name = sheaf_dtype_name(dtype);

	return name && (name[0] == 'F' || strcmp(name, "BF16") == 0);
}

static int add_derived(struct wl_model *m, size_t of, const char *family, const char *kind,
		       struct sheaf_error *err)
{
	struct wl_tensor t = m->t[of];
	size_t name_n = strlen(t.name) + strlen(kind) + 1;
	size_t tied_n = t.tied_to ? strlen(t.tied_to) + strlen(kind) + 1 : 0;
	char *name = malloc(name_n), *tied = tied_n ? malloc(tied_n) : NULL;
	int rc;

	if (name_n > WL_NAME_MAX + 1) {
		rc = wl_fail(err, SHEAF_EINVAL, "%.100s...: with %s for Adam its name has %zu "
			     "bytes, at most %d can be", t.name, kind, name_n - 1, WL_NAME_MAX);
		goto out;
	}
	if (!name || (tied_n && !tied)) {
		rc = wl_fail(err, SHEAF_ENOMEM, "no memory for the name %.200s%s", t.name, kind);
		goto out;
	}
	stpcpy(stpcpy(name, t.name), kind);
	if (tied)
		stpcpy(stpcpy(tied, t.tied_to), kind);
	t.family = (char *)(uintptr_t)family; /* copied by wl_model_add */
	t.name = name;
	t.tied_to = tied;
	t.dtype = SHEAF_F32;
	t.stored = false;
	rc = wl_model_add(m, &t, err);
out:
	free(name);
	free(tied);
	return rc;
}

/* A tied tensor is one parameter with two names, so its master and moments are tied as well. */
int wl_model_adam(struct wl_model *m, struct sheaf_error *err)
{
	size_t n = m->n;
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		if (strcmp(m->t[i].family, "model") != 0 || !is_floating(m->t[i].dtype))
			continue;
		if (m->t[i].dtype != SHEAF_F32)
			rc = add_derived(m, i, "master_weights", "", err);
		if (rc == 0)
			rc = add_derived(m, i, "optimizer", "/moment1_0", err);
		if (rc == 0)
			rc = add_derived(m, i, "optimizer", "/moment2_0", err);
	}
	m->adam = true;
	return rc;
}

/* --- families ----------------------------------------------------------------------------- */

/* Returns whether a state may lack this family, without its name being a mistake. */
static bool is_usual(const char *s, size_t n)
{
	static const char *const usual[] = { "model", "master_weights", "optimizer", "ema" };

	for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++)
		if (strlen(usual[i]) == n && memcmp(usual[i], s, n) == 0)
			return true;
	return false;
}

static bool listed(const char *families, const char *family)
{
	size_t want = strlen(family);

	for (const char *s = families;;) {
		size_t n = strcspn(s, ",");

		if (n == want && memcmp(s, family, n) == 0)
			return true;
		if (!s[n])
			return false;
		s += n + 1;
	}
}

int wl_model_keep(struct wl_model *m, const char *families, struct sheaf_error *err)
{
	size_t kept = 0;

	for (const char *s = families;;) {
		size_t n = strcspn(s, ","), i = 0;

		while (i < m->n && !(strlen(m->t[i].family) == n &&
				     memcmp(m->t[i].family, s, n) == 0))
			i++;
		if (i == m->n && !is_usual(s, n))
			return wl_fail(err, SHEAF_EINVAL, "the state has no family '%.*s'",
				       n < 60 ? (int)n : 60, s);
		if (!s[n])
			break;
		s += n + 1;
	}
	for (size_t i = 0; i < m->n; i++) {
		if (listed(families, m->t[i].family))
			m->t[kept++] = m->t[i];
		else
			tensor_release(&m->t[i]);
	}
	m->n = kept;
	return 0;
}

/* --- sealing ------------------------------------------------------------------------------ */

static int tensor_cmp(const void *a, const void *b)
{
	const struct wl_tensor *x = a, *y = b;
	int d = wl_natural(x->name, y->name);

	return d ? d : strcmp(x->family, y->family);
}

static const struct wl_tensor *find(const struct wl_model *m, const char *family, const char *name)
{
	struct wl_tensor key = { .family = (char *)(uintptr_t)family,
				 .name = (char *)(uintptr_t)name };

	return m->n ? bsearch(&key, m->t, m->n, sizeof(*m->t), tensor_cmp) : NULL;
}

size_t wl_model_find(const struct wl_model *m, const char *family, const char *name)
{
	const struct wl_tensor *t = find(m, family, name);

	return t ? (size_t)(t - m->t) : m->n;
}

static int check_tie(const struct wl_model *m, const struct wl_tensor *t, struct sheaf_error *err)
{
	const struct wl_tensor *to = find(m, t->family, t->tied_to);

	if (!to || to->tied_to)
		return wl_fail(err, SHEAF_EINVAL, "%.150s: tied to %.150s, which %s", t->name,
			       t->tied_to, to ? "is tied itself" : "is not in its family");
	if (to->dtype != t->dtype || to->ndim != t->ndim ||
	    memcmp(to->shape, t->shape, sizeof(t->shape)) != 0)
		return wl_fail(err, SHEAF_EINVAL,
			       "%.150s: tied to %.150s, which has another dtype or shape", t->name,
			       t->tied_to);
	return 0;
}

int wl_model_seal(struct wl_model *m, struct sheaf_error *err)
{
	int64_t experts = 0;
	int rc;

	if (m->n)
		qsort(m->t, m->n, sizeof(*m->t), tensor_cmp);
	m->stages = 1;
	for (size_t i = 0; i < m->n; i++) {
		const struct wl_tensor *t = &m->t[i];

		if (i && tensor_cmp(&m->t[i - 1], t) == 0)
			return wl_fail(err, SHEAF_EINVAL, "%.200s: twice in family %.100s", t->name,
				       t->family);
		if (t->tied_to) {
			rc = check_tie(m, t, err);
			if (rc < 0)
				return rc;
		}
		if (t->stage >= m->stages)
			m->stages = t->stage + 1;
		if (t->expert >= experts)
			experts = t->expert + 1;
	}
	/* Without "experts", their number is the highest number plus one. */
	for (size_t i = 0; i < m->n; i++)
		if (m->t[i].expert >= 0 && m->t[i].experts < 0)
			m->t[i].experts = experts;
	return 0;
}
