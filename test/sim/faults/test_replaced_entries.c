/* SPDX-License-Identifier: Apache-2.0 */
/* Each directory entry of a run is replaced by something else: nothing, a folder, a link, an empty
 * file, other text, a far too long one. Every act on the run then ends with one code and a
 * sentence, everything else stays as it was, and nothing is left open. */
#include "acts.h"
#include <stdlib.h>
#include "t.h"

#define SUMS "run/checkpoint-12/sheaf.sums"
#define GONE_ID "00112233445566778899aabbccddeeff"
static const char *const names[] = {
	"run/.sheaf/run", "run/.sheaf/lock", "run/.sheaf/rewind", "run/.sheaf/descent",
	"run/.sheaf/stage", "run/.sheaf/trash", "run/.sheaf/aside", "run/.sheaf/marks",
	"run/.sheaf/tries", "run/.sheaf/marks/10", "run/.sheaf/marks/12",
	"run/.sheaf/stage/copy-12-" GONE_ID, "run/.sheaf/stage/40-" GONE_ID,
	"run/.sheaf/trash/41-" GONE_ID, "run/.sheaf/aside/42-" GONE_ID,
	"run/.sheaf/tries/12-" GONE_ID, "run/.sheaf/tmp-" GONE_ID, "run/.sheaf/proof-" GONE_ID,
	"run/checkpoint-20", "run/checkpoint-12", "run/checkpoint-11",
	"run/checkpoint-12/sheaf.json", SUMS, "run/checkpoint-12/extra-3.json",
	"run/checkpoint-12/model.safetensors.index.json",
	"run/checkpoint-12/model-00001-of-00001.safetensors", "run/checkpoint-12/ema",
	"run/checkpoint-11/sheaf.json", "run/checkpoint-10/sheaf.json", "run/.sheaf",
	"other/run", "other/run/.sheaf/run", "other/run/checkpoint-12",
	"hf/model.safetensors.index.json", "hf/model-00001-of-00002.safetensors", "hf/config.json",
	"shards/model-00002-of-00002.safetensors", "shards/model-00003-of-00002.safetensors",
	"shards/other.safetensors", "shards/other.safetensors.index.json", "shards", "hf",
};
#define NAMES (sizeof(names) / sizeof(names[0]))
enum odd { GONE, FOLDER, FULL_FOLDER, LINK, EMPTY, TEXT, LONG, ODDS };
static const char *const odd_names[ODDS] = { "gone", "a folder", "a full folder", "a link",
	"empty", "other text", "long" };

static const struct {
	const char *name;
	int (*act)(struct hand *h);
} acts[] = {
	{ "look", act_look }, { "save", act_save }, { "load", act_load }, { "verify", act_verify },
	{ "peek", act_peek }, { "prune", act_prune }, { "rewind", act_rewind },
	{ "salvage", act_salvage }, { "copy", act_copy }, { "foreign", act_foreign },
	{ "shards", act_shards }, { "file", act_file },
};
#define ACTS (sizeof(acts) / sizeof(acts[0]))

static void make(struct simdisk *disk, const char *path, enum odd odd)
{
	enum { MUCH = 2 << 20 };
	char inside[200];
	char *much;

	(void)simdisk_remove(disk, path);
	snprintf(inside, sizeof(inside), "%s/inside", path);
	switch (odd) {
	case FOLDER:
	case FULL_FOLDER:
		CHECK_INT(simdisk_put(disk, inside, "x", 1), 0);
		if (odd == FOLDER)
			CHECK_INT(simdisk_remove(disk, inside), 0);
		break;
	case LINK:
		CHECK_INT(simdisk_symlink(disk, "inside", path), 0);
		break;
	case EMPTY:
		CHECK_INT(simdisk_put(disk, path, "", 0), 0);
		break;
	case TEXT:
		CHECK_INT(simdisk_put(disk, path, "sheaf-other 9\n", 14), 0);
		break;
	case LONG:
		much = malloc(MUCH);
		memset(much, 'k', MUCH);
		CHECK_INT(simdisk_put(disk, path, much, MUCH), 0);
		free(much);
		break;
	default:
		break;
	}
}

static bool concerns(const char *path, const char *act)
{
	bool foreign = strcmp(act, "foreign") == 0 || strcmp(act, "file") == 0 ||
	               strcmp(act, "shards") == 0;

	return foreign == (strncmp(path, "hf", 2) == 0 || strncmp(path, "shards", 6) == 0) &&
	       (strncmp(path, "other", 5) != 0 || strcmp(act, "copy") == 0);
}

/* "" or what is wrong. */
static const char *judge(const struct play *p, uint64_t before, uint64_t after)
{
	if (p->rc > 0)
		return "ranks have different codes, or descriptors are open";
	if (p->rc == SHEAF_EBUG)
		return "it calls itself broken";
	if (p->rc < 0 && (p->err.code != p->rc || strlen(p->err.msg) < 8))
		return "no sentence";
	if (before != after)
		return "a step that nobody asked for is another now";
	return "";
}

/* Step 10 is kept, and no act but that of pruning asks for another. */
static int one(struct simdisk *base, size_t name, enum odd odd, size_t act, int tally[2])
{
	struct simdisk *disk = acts_disk_copy(base);
	struct play p = hands_play(disk, 1, acts_hold);
	const char *why;
	uint64_t before;

	simdisk_set_trace(disk, false);
	make(disk, names[name], odd);
	before = simdisk_hash(disk, "run/checkpoint-10");
	p.path = "";
	p.opts.keep_last = acts[act].act == act_prune;
	(void)hands_run(&p, acts[act].act, true);
	why = judge(&p, before, acts[act].act == act_prune ? before
	                        : simdisk_hash(disk, "run/checkpoint-10"));
	if (why[0])
		print_error("%s is %s: %s: %s (%d: %s)\n", names[name], odd_names[odd],
		            acts[act].name, why, p.rc, p.err.msg);
	tally[p.rc != 0]++;
	simdisk_free(disk);
	return why[0] != '\0';
}

TEST(no_name_that_is_something_else_does_harm)
{
	struct simdisk *base = acts_disk(1);
	int tally[2] = { 0 }, bad = 0;

	for (size_t name = 0; name < NAMES; name++)
		for (enum odd odd = GONE; odd < ODDS; odd++)
			for (size_t act = 0; act < ACTS && bad < 20; act++)
				if (concerns(names[name], acts[act].name))
					bad += one(base, name, odd, act, tally);
	printf("# %zu names, %d oddities: %d acts did what was asked, %d said why not\n", NAMES,
	       ODDS, tally[0], tally[1]);
	simdisk_free(base);
	CHECK_INT(bad, 0);
	CHECK(tally[0] > 500 && tally[1] > 200);
}
