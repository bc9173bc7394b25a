/* SPDX-License-Identifier: Apache-2.0 */
#include "map_name.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"

int shf_map_name_make(struct shf_map_values *v, const struct shf_map_tensor *t, const char *star,
                      struct shf_buf *out, struct sheaf_error *err)
{
	for (uint32_t i = 0; i < t->segs_n; i++) {
		const struct shf_map_seg *s = &t->segs[i];
		int64_t n;
		int rc;

		if (s->text || s->width == SHF_MAP_STAR) {
			shf_buf_adds(out, s->text ? s->text : star ? star : "");
			continue;
		}
		rc = shf_map_eval(v, &s->expr, t->line, &n, err);
		if (rc < 0)
			return rc;
		if (n < 0)
			return shf_fail(err, SHEAF_EINVAL, "%s:%d: %.200s: a number in the name is "
			                "negative: %" PRId64, v->map->path, t->line, t->text, n);
		shf_buf_addf(out, "%0*" PRId64, s->width, n);
	}
	return out->oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its names", v->map->path)
	                : 0;
}

bool shf_map_name_match(const struct shf_map_tensor *t, const char *name, size_t n,
                        const char **star, size_t *star_n)
{
	const char *end = name + n;
	uint32_t i, k;

	for (i = 0; i < t->segs_n && t->segs[i].text; i++) {
		size_t m = strlen(t->segs[i].text);

		if ((size_t)(end - name) < m || memcmp(name, t->segs[i].text, m))
			return false;
		name += m;
	}
	for (k = t->segs_n; k > i && t->segs[k - 1].text; k--) {
		size_t m = strlen(t->segs[k - 1].text);

		if ((size_t)(end - name) < m || memcmp(end - m, t->segs[k - 1].text, m))
			return false;
		end -= m;
	}
	*star = name;
	*star_n = (size_t)(end - name);
	return end > name;
}

uint64_t shf_map_count_begin(const struct shf_map_count *c)
{
	uint64_t all = 1;

	for (int i = 0; i < c->rule->axes_n; i++) {
		int var = c->rule->axes[i].var;

		if (!(c->axes >> i & 1))
			continue;
		c->values->index[var] = 0;
		if (!shf_mul64(&all, all, (uint64_t)c->values->var[var]))
			all = UINT64_MAX / 2;
	}
	return all;
}

bool shf_map_count_next(const struct shf_map_count *c)
{
	for (int i = c->rule->axes_n - 1; i >= 0; i--) {
		int var = c->rule->axes[i].var;

		if (!(c->axes >> i & 1))
			continue;
		if (++c->values->index[var] < c->values->var[var])
			return true;
		c->values->index[var] = 0;
	}
	return false;
}

uint64_t shf_map_count_at(const struct shf_map_count *c)
{
	uint64_t at = 0;

	for (int i = 0; i < c->rule->axes_n; i++)
		if (c->axes >> i & 1)
			at = at * (uint64_t)c->values->var[c->rule->axes[i].var] +
			     (uint64_t)c->values->index[c->rule->axes[i].var];
	return at;
}
