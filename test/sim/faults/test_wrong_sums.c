/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong numbers in the table of sums, with every checksum above them recomputed, so that no
 * checksum shows it. Whatever then loads, reads, verifies, copies, prunes or salvages is right or
 * refuses with a sentence; nothing returns EBUG, and nothing is left open. */
#include "acts.h"
#include <inttypes.h>
#include <stdlib.h>
#include "crc64.h"
#include "mem.h"
#include "sums.h"
#include "t.h"
#include "deal_home.h"

#define STEP "run/checkpoint-12/"

static const struct lie {
	size_t at, bytes;               /* in a record */
	const char *name;
} of_tensor[] = { { 0, 8, "off" }, { 8, 8, "bytes" }, { 16, 4, "file" }, { 20, 4, "name bytes" },
	{ 24, 8, "name off" }, { 32, 8, "key" }, { 40, 8, "digest" }, { 48, 2, "dtype" },
	{ 50, 1, "ndim" }, { 51, 1, "pad" }, { 52, 4, "slot" }, { 56, 8, "items" } },
  of_file[] = { { 0, 8, "bytes" }, { 8, 8, "first block" }, { 16, 8, "first tensor" },
	{ 24, 4, "tensors" }, { 28, 4, "header bytes" } },
  of_head[] = { { 8, 4, "version" }, { 12, 4, "flags" }, { 16, 8, "files" }, { 24, 8, "tensors" },
	{ 32, 8, "blocks" }, { 40, 8, "names" }, { 56, 8, "tensors off" }, { 72, 8, "names off" },
	{ 80, 8, "pages off" } };
#define N(a) (sizeof(a) / sizeof((a)[0]))

static const struct {
	const char *name;
	int (*act)(struct hand *h);
	int ranks;
} acts[] = { { "load", act_load, 1 }, { "load", act_load, 2 }, { "verify", act_verify, 2 },
             { "peek", act_peek, 1 }, { "prune", act_prune, 1 }, { "save", act_save, 1 },
             { "copy", act_copy, 1 } };

/* ---- writing it wrong ---- */

struct table {
	uint8_t *bytes;                 /* owned */
	size_t n;
	struct shf_sums_head head;
};

static struct table table_of(struct simdisk *disk)
{
	struct table t = { .bytes = NULL };
	struct sheaf_error err;

	t.bytes = simdisk_get(disk, STEP "sheaf.sums", &t.n);
	CHECK(t.bytes != NULL);
	CHECK_RC(shf_sums_get_head(&t.head, t.bytes, t.n, "", &err), 0, &err);
	return t;
}

static uint64_t sum_of(const struct table *t)
{
	uint64_t pages = t->head.pages_off;

	return shf_crc64_more(shf_crc64(t->bytes, SHF_SUMS_HEADER), t->bytes + pages,
	                      t->n - (size_t)pages);
}

/* In the manifest, and the manifest's own. */
static void mend_manifest(struct simdisk *disk, uint64_t was, uint64_t is)
{
	char from[17], to[17], self[33], *at;
	size_t n;
	char *text = simdisk_get(disk, STEP "sheaf.json", &n);

	snprintf(from, sizeof(from), "%016" PRIx64, was);
	snprintf(to, sizeof(to), "%016" PRIx64, is);
	text[n - 1] = '\0';
	at = strstr(text, from);
	CHECK(at != NULL);
	memcpy(at, to, 16);
	text[n - 1] = '\n';
	snprintf(self, sizeof(self), ",\n \"self\": \"%016" PRIx64 "\"}\n",
	         shf_crc64(text, n - 31));
	memcpy(text + n - 31, self, 31);
	CHECK_INT(simdisk_put(disk, STEP "sheaf.json", text, n), 0);
	free(text);
}

static void mend(struct simdisk *disk, struct table *t, uint64_t was)
{
	uint64_t pages = t->head.pages_off;

	shf_put64(t->bytes + SHF_SUMS_HEADER - 8, shf_crc64(t->bytes, SHF_SUMS_HEADER - 8));
	for (uint64_t at = 0, p = pages; at < pages; at += SHF_SUMS_PAGE, p += 8) {
		uint64_t n = pages - at < SHF_SUMS_PAGE ? pages - at : SHF_SUMS_PAGE;

		shf_put64(t->bytes + p, shf_crc64(t->bytes + at, (size_t)n));
	}
	CHECK_INT(simdisk_put(disk, STEP "sheaf.sums", t->bytes, t->n), 0);
	mend_manifest(disk, was, sum_of(t));
}

/* One more, one less, nothing, all ones, one high bit. */
enum { WAYS = 5 };
static void say_wrong(uint8_t *at, size_t bytes, int way)
{
	uint64_t v = 0;

	memcpy(&v, at, bytes);
	v = way == 0 ? v + 1 : way == 1 ? v - 1 : way == 2 ? 0 : way == 3 ? UINT64_MAX
	  : v ^ UINT64_C(1) << (8 * bytes - 1);
	memcpy(at, &v, bytes);
}

/* ---- and asking for it ---- */

static const char *judge(const struct play *p)
{
	if (p->rc > 0)
		return "ranks have different codes, or descriptors are open";
	if (p->rc == SHEAF_EBUG)
		return "it calls itself broken, or loads what is wrong";
	if (p->rc < 0 && (p->err.code != p->rc || strlen(p->err.msg) < 8))
		return "no sentence";
	return "";
}

struct told {
	int bad, done, refused;
};

static void ask(struct simdisk *lied, const char *what, struct told *told)
{
	static size_t turn;

	/* Under a sanitizer each lie meets a few acts, and each act many lies. */
	for (size_t i = turn++ % T_FEWER; i < N(acts) && told->bad < 20; i += T_FEWER) {
		struct simdisk *disk = acts_disk_copy(lied);
		struct play p = hands_play(disk, acts[i].ranks, acts_hold);
		const char *why;

		simdisk_set_trace(disk, false);
		p.path = "";
		p.opts.keep_last = acts[i].act == act_prune || acts[i].act == act_save;
		(void)hands_run(&p, acts[i].act, false);
		why = judge(&p);
		if (why[0])
			print_error("%s: %s by %d: %s (%d: %s)\n", what, acts[i].name,
			            acts[i].ranks, why, p.rc, p.err.msg);
		told->bad += why[0] != '\0';
		told->done += p.rc == 0;
		told->refused += p.rc != 0;
		simdisk_free(disk);
	}
}

static void lie(struct simdisk *base, uint64_t off, const struct lie *l, const char *what, int n,
                struct told *told)
{
	for (int way = 0; way < WAYS && told->bad < 20; way++) {
		struct simdisk *disk = acts_disk_copy(base);
		struct table t = table_of(disk);
		uint64_t was = sum_of(&t);
		char name[80];

		say_wrong(t.bytes + off + l->at, l->bytes, way);
		mend(disk, &t, was);
		simdisk_settle(disk);
		snprintf(name, sizeof(name), "%s %d, %s, way %d", what, n, l->name, way);
		ask(disk, name, told);
		free(t.bytes);
		simdisk_free(disk);
	}
}

TEST(what_the_table_says_wrongly_is_never_loaded_as_right)
{
	struct simdisk *base = acts_disk(1);
	struct table t = table_of(base);
	uint64_t tensors[] = { 0, t.head.tensors_n / 2, t.head.tensors_n - 1 };
	struct told told = { 0 };

	for (size_t i = 0; i < N(of_head); i++)
		lie(base, 0, &of_head[i], "head", 0, &told);
	for (uint64_t f = 0; f < t.head.files_n; f += t.head.files_n - 1)
		for (size_t i = 0; i < N(of_file); i++)
			lie(base, t.head.files_off + f * SHF_SUMS_FILE, &of_file[i], "file", (int)f,
			    &told);
	for (size_t k = 0; k < N(tensors); k++)
		for (size_t i = 0; i < N(of_tensor); i++)
			lie(base, t.head.tensors_off + tensors[k] * SHF_SUMS_TENSOR, &of_tensor[i],
			    "tensor", (int)tensors[k], &told);
	printf("# %d acts did what was asked, %d said why not\n", told.done, told.refused);
	free(t.bytes);
	simdisk_free(base);
	CHECK_INT(told.bad, 0);
	CHECK(told.refused > 500 / T_FEWER && told.done > 100 / T_FEWER);
}
