/* SPDX-License-Identifier: Apache-2.0 */
#include "everycut.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct everycut_opt everycut = { .seed = 0x5eaf };

/* States that have been judged, with the promises that held */
struct judged {
	uint64_t *hashes;               /* owned; open addressing, 0: free */
	size_t n, cap;
};

static bool judged_add(struct judged *t, uint64_t h)
{
	h += h == 0;
	if (2 * (t->n + 1) > t->cap) {
		struct judged more = { calloc(t->cap ? 2 * t->cap : 1024, 8), 0,
		                       t->cap ? 2 * t->cap : 1024 };

		if (!more.hashes)
			abort();
		for (size_t i = 0; i < t->cap; i++)
			if (t->hashes[i])
				judged_add(&more, t->hashes[i]);
		free(t->hashes);
		*t = more;
	}
	for (size_t i = h & (t->cap - 1);; i = (i + 1) & (t->cap - 1)) {
		if (t->hashes[i] == h)
			return false;
		if (t->hashes[i] == 0) {
			t->hashes[i] = h;
			t->n++;
			return true;
		}
	}
}

static bool try_state(const struct everycut_hunt *h, struct judged *judged, size_t cut,
                      const struct simdisk_choice *choice, char why[400])
{
	struct simdisk *disk = simdisk_crash(h->disk, cut, choice);
	uint64_t hash = simdisk_hash(disk, "/") * 0x9e3779b97f4a7c15 +
	                h->promised(h->story, (int64_t)cut);
	char own[300] = "";

	everycut.states++;
	if (judged_add(judged, hash)) {
		everycut.distinct++;
		if (*h->judge(h->story, disk, (int64_t)cut, own))
			snprintf(why, 400, "cut %zu, after call %zu: %s", cut,
			         simdisk_cut_call(h->disk, cut), own);
	}
	simdisk_free(disk);
	return !why[0];
}

static bool has_data(struct simdisk *disk, size_t cut, size_t n, const uint64_t *kept)
{
	char text[200];

	for (size_t i = 0; i < n; i++) {
		if (!(kept[i / 64] >> (i % 64) & 1))
			continue;
		simdisk_item_text(disk, cut, i, text, sizeof(text));
		if (strstr(text, "data"))
			return true;
	}
	return false;
}

static bool try_tears(const struct everycut_hunt *h, struct judged *judged, size_t cut,
                      const struct simdisk_sets *s, char why[400])
{
	for (unsigned tear = 512; tear <= 4096; tear *= 8) {
		struct simdisk_choice choice = { s->kept, tear, everycut.seed + s->count };

		if (!try_state(h, judged, cut, &choice, why))
			return false;
	}
	return true;
}

static bool try_cut(const struct everycut_hunt *h, struct judged *judged, size_t cut,
                    char why[400])
{
	size_t n = simdisk_unsynced(h->disk, cut);
	struct simdisk_sets s;
	bool fine = true;

	simdisk_sets_begin(&s, n, everycut.seed + cut);
	if (!everycut.all) {
		s.all_max = h->all_max;
		s.small_max = h->small_max;
		s.seeded = h->seeded;
	}
	while (fine && simdisk_sets_next(&s)) {
		struct simdisk_choice choice = { s.kept, 0, 0 };

		fine = try_state(h, judged, cut, &choice, why);
		if (fine && (everycut.all || n <= h->torn_all || s.count % 8 == 0) &&
		    has_data(h->disk, cut, n, s.kept))
			fine = try_tears(h, judged, cut, &s, why);
	}
	simdisk_sets_end(&s);
	return fine;
}

bool everycut_hunt(const struct everycut_hunt *h, char why[400])
{
	size_t cut_n = simdisk_cut_n(h->disk), stride = h->stride ? h->stride : 1;
	struct judged judged = { NULL, 0, 0 };
	bool fine = true;

	why[0] = '\0';
	for (size_t cut = h->first; fine && cut < cut_n; cut += stride)
		fine = try_cut(h, &judged, cut, why);
	free(judged.hashes);
	return fine;
}

int everycut_main(int argc, char **argv, int (*run)(int argc, char **argv))
{
	int n = 1;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--long") == 0)
			everycut.all = true;
		else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			everycut.seed = strtoull(argv[++i], NULL, 0);
		else
			argv[n++] = argv[i];
	}
	argv[n] = NULL;
	n = run(n, argv);
	printf("# %llu crash states, %llu of them different, seed 0x%llx\n",
	       (unsigned long long)everycut.states, (unsigned long long)everycut.distinct,
	       (unsigned long long)everycut.seed);
	return n;
}
