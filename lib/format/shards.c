/* SPDX-License-Identifier: Apache-2.0 */
#include "shards.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last "-of-" is the one before n, because the name of a model may have one, too. */
bool shf_shard_of(struct shf_shard *s, const char *name, const char *tail)
{
	size_t bytes = strlen(name), end = strlen(tail);
	const char *dash = NULL;

	if (bytes < end || strcmp(name + bytes - end, tail))
		return false;
	for (const char *p = strstr(name, "-of-"); p; p = strstr(p + 1, "-of-"))
		dash = p;
	if (!dash || dash - name < 6 || sscanf(dash - 6, "-%5u-of-%5u.", &s->k, &s->n) != 2)
		return false;
	s->stem = (int)(dash - 6 - name);
	return true;
}

static int shard_names_order(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Whether a sorted list has this name. */
static bool list_has(const void *names, size_t n, const char *name)
{
	return n && bsearch(&name, names, n, sizeof(name), shard_names_order);
}

static bool has_shard(char *const *names, size_t names_n, const char *name, const char *tail,
                      const struct shf_shard *s, unsigned k, char want[300])
{
	snprintf(want, 300, "%.*s-%05u-of-%05u%s", s->stem, name, k, s->n, tail);
	return list_has(names, names_n, want);
}

/* As the caller asks for every shard, all n are looked at by looking at two neighbours of each, at
 * a cost of n, not n * n. */
bool shf_shard_is_missing(char *const *names, size_t n, const char *name, const char *tail,
                          char want[300])
{
	struct shf_shard s;
	unsigned before, after;

	if (!shf_shard_of(&s, name, tail) || s.n == 0)
		return false;
	before = s.k < 2 ? 1 : s.k - 1 < s.n ? s.k - 1 : s.n;
	after = s.k < s.n ? s.k + 1 : s.n;
	if (has_shard(names, n, name, tail, &s, before, want) &&
	    has_shard(names, n, name, tail, &s, after, want))
		return false;
	/* Some shard is missing: finds the first one, for the message. */
	for (unsigned j = 1; j <= s.n && has_shard(names, n, name, tail, &s, j, want); j++)
		;
	return true;
}

/* Writes what the names of all shards of a model have in common. Returns false if they are not
 * shards. */
static bool common_name(char common[300], const char *name, const char *tail)
{
	struct shf_shard s;

	if (!shf_shard_of(&s, name, tail) || s.k < 1 || s.k > s.n)
		return false;
	snprintf(common, 300, "%.*s-%05u", s.stem, name, s.n);
	return true;
}

/* Sorts a list, and keeps each name once. Returns how many there are. */
static size_t sort_once(struct shf_buf *list)
{
	const char **a = (const char **)(void *)list->data;
	size_t n = list->len / sizeof(*a), kept = 0;

	if (n)
		qsort(a, n, sizeof(*a), shard_names_order);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || strcmp(a[i], a[kept - 1]))
			a[kept++] = a[i];
	return kept;
}

/* Whether a file is one of those that the index names, or a shard of the same model as one of
 * them. */
static bool is_of_index(const char *name, const char *tail, const struct shf_buf *want,
                        size_t want_n, const struct shf_buf *models, size_t models_n)
{
	char common[300];

	return list_has(want->data, want_n, name) ||
	       (common_name(common, name, tail) && list_has(models->data, models_n, common));
}

bool shf_shards_are_beside(const struct shf_index *index, const char *whole, char *const *names,
                           size_t n)
{
	bool beside = false;

	for (size_t i = 0; i < n; i++)
		beside |= strcmp(names[i], whole) == 0;
	for (size_t i = 0; i < index->n && beside; i++)
		beside = strcmp(index->entries[i].file, whole) != 0;
	return beside;
}

int shf_shards_of_index(struct shf_buf *out, const struct shf_index *index, char *const *names,
                        size_t n, const char *tail, const char **missing)
{
	struct shf_buf want = SHF_BUF_INIT, models = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	size_t want_n, models_n;
	const char *const *a;
	char common[300], *own;
	bool oom = false;

	*missing = NULL;
	/* Most tensors of an index are in the same file as the tensor before: skipping repeated
	 * names keeps the list short. */
	for (size_t i = 0; i < index->n; i++)
		if (i == 0 || strcmp(index->entries[i].file, index->entries[i - 1].file))
			shf_buf_add(&want, &index->entries[i].file, sizeof(char *));
	want_n = want.oom ? 0 : sort_once(&want);
	a = (const char *const *)(void *)want.data;
	for (size_t i = 0; i < want_n; i++) {
		if (!*missing && !list_has(names, n, a[i]))
			*missing = a[i];
		if (!common_name(common, a[i], tail))
			continue;
		own = shf_arena_strdup(&arena, common, strlen(common));
		oom |= !own;
		if (own)
			shf_buf_add(&models, &own, sizeof(own));
	}
	models_n = models.oom ? 0 : sort_once(&models);
	for (size_t i = 0; i < n; i++)
		if (is_of_index(names[i], tail, &want, want_n, &models, models_n))
			shf_buf_add(out, &names[i], sizeof(names[i]));
	oom |= want.oom || models.oom || out->oom;
	shf_buf_release(&want);
	shf_buf_release(&models);
	shf_arena_release(&arena);
	return oom ? -ENOMEM : 0;
}
