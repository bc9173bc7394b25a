/* SPDX-License-Identifier: Apache-2.0 */
/* What a verify reports about what it could not read. Each of its calls fails in turn, and the
 * report names the file, the call and the reason. */
#include "looks.h"

#define DENIED ": Permission denied"
static int nth;
static size_t from;

static void fail_nth(struct simdisk *disk)
{
	from = simdisk_calls(disk);
	simdisk_fail_at(disk, nth, EACCES);
}

struct call {
	char kind[16], at[64];          /* as "stat", "ema"; at is a folder or what is read */
	char name[64];                  /* that is asked for in it, or "" */
	long n, off;                    /* of a read */
};

/* Of "17 stat(ema, "x") = -13" or "18 pread(x, 5 at 0) = -13". */
static struct call call_of(const char *text)
{
	struct call c = { .n = -1 };

	CHECK(sscanf(text, "%*d %15[a-z_](%63[^,], ", c.kind, c.at) == 2);
	text = strchr(text, ',');
	if (sscanf(text, ", \"%63[^\"]", c.name) != 1)
		(void)sscanf(text, ", %ld at %ld", &c.n, &c.off);
	return c;
}

/* One verify whose nth call fails; false: it makes fewer. */
static bool next(struct look *l, struct call *c)
{
	nth++;
	l->between = fail_nth;
	*c = (struct call){ .kind = "" };
	(void)verify(l);
	if (simdisk_fired(l->disk))
		*c = call_of(simdisk_call_text(l->disk, from + (size_t)nth - 1));
	simdisk_faults_clear(l->disk);
	return c->kind[0];
}

static bool did(const struct call *c, const char *kind)
{
	return strcmp(c->kind, kind) == 0;
}

/* The sentence of a call behind the opening of the step; folder: of what is asked for. */
static void sentence(const struct call *c, char want[300])
{
	const char *file = c->name[0] ? c->name : c->at;
	const char *dash = strstr(file, "-0000");
	char folder[64] = "";

	if (strncmp(file, "model", 5) && dash)
		snprintf(folder, sizeof(folder), "%.*s/", (int)(dash - file), file);
	else if (strncmp(file, "model", 5) && strstr(file, ".safetensors."))
		snprintf(folder, sizeof(folder), "%.*s/", (int)strcspn(file, "."), file);
	if (did(c, "list"))
		snprintf(want, 300, "run/checkpoint-7: listing it" DENIED);
	else if (did(c, "pread") && strcmp(file, "sheaf.sums"))
		snprintf(want, 300, STEP "%s%s: reading %ld bytes at %ld" DENIED, folder, file,
		         c->n, c->off);
	else
		snprintf(want, 300, STEP "%s%s" DENIED, folder, file);
}

static bool is_folder(const struct call *c)
{
	return did(c, "open") && !strchr(c->name, '.');
}

TEST(each_call_that_fails_is_told_with_its_file)
{
	struct simdisk *disk = disk_new();
	struct look l = { .disk = disk, .ranks = 1 };
	bool opening = true;            /* headers are read, which a verify looks at again */
	int told = 0, quiet = 0, folders = 0;
	struct call c;
	char want[300];

	for (nth = 0; next(&l, &c);) {
		opening &= !did(&c, "stat");
		CHECK_INT(l.n, 0);
		if (l.err[0].code == 0) {
			CHECK(did(&c, "close") || did(&c, "unlock") || opening);
			CHECK(strcmp(c.name[0] ? c.name : c.at, "sheaf.sums") || did(&c, "close"));
			quiet++;
			continue;
		}
		CHECK_INT(l.err[0].code, SHEAF_EIO);
		CHECK_INT(l.err[0].sys, EACCES);
		told++;
		sentence(&c, want);
		if (is_folder(&c)) {    /* what was wanted of it is named, or it was listed */
			snprintf(want, sizeof(want), STEP "%s/%s", c.name, c.name);
			CHECK(strncmp(l.err[0].msg, want, strlen(want)) == 0 ||
			      strcmp(l.err[0].msg, "run/checkpoint-7: listing it" DENIED) == 0);
			folders++;
		} else if (did(&c, "submit")) {
			snprintf(want, sizeof(want), "%s: reading ", c.at);
			CHECK(strstr(l.err[0].msg, want) != NULL);
		} else {
			CHECK_STR(l.err[0].msg, want);
		}
	}
	print_message("# %d told, %d in folders, %d quiet\n", told, folders, quiet);
	CHECK(told > 50 && folders > 10);
	simdisk_free(disk);
}

static void mended(struct simdisk *disk, const char *name, const char *was, const char *is_now)
{
	struct files files = files_of(disk);
	uint64_t crc, f = 0;

	while (strcmp(files.name[f], name))
		f++;
	crc = crc_of(disk, name);
	patch(disk, name, was, is_now);
	mend_block(disk, name, f, crc);
}

/* Of a header that is not as sheaf.sums describes it nothing is found where it cannot be read, and
 * anything else that fails hides it no more. */
TEST(a_header_that_cannot_be_read_again_is_no_damage)
{
#define EMA "ema/ema-00001-of-00001.safetensors"
	struct simdisk *disk = disk_new();
	struct look l = { .disk = disk, .ranks = 1 };
	int blind = 0, header = 0;
	struct call c;

	mended(disk, EMA, "layers.0.norm", "layers.0.form");
	for (nth = 0; next(&l, &c);) {
		if (l.err[0].code == SHEAF_ECORRUPT) {
			CHECK_INT(l.n, 1);
			CHECK_STR(l.found[0].what, "header");
			CHECK_STR(l.err[0].msg, STEP EMA ": tensor layers.0.form is not as "
			          "sheaf.sums describes it");
			continue;
		}
		CHECK_INT(l.err[0].code, SHEAF_EIO);
		CHECK_INT(l.n, 0);
		CHECK(strcmp(c.name[0] ? c.name : c.at, "sheaf.sums") == 0 ||
		      strncmp(c.name[0] ? c.name : c.at, "ema", 3) == 0);
		blind++;
		header += strcmp(l.err[0].msg, STEP EMA ": reading its header" DENIED) == 0;
	}
	CHECK_INT(blind, 6);
	CHECK_INT(header, 1);
	simdisk_free(disk);
}

/* Headers of somebody else's directory: what is the matter with one is told where it can be read,
 * and that it cannot where not. */
TEST(a_strange_header_that_cannot_be_read_again_is_no_damage)
{
	struct simdisk *disk = disk_new();
	struct look l = { .disk = disk, .ranks = 1, .path = "hf" };
	const char *name = "hf/model-00001-of-00001.safetensors";
	int found = 0, header = 0;
	struct call c;

	CHECK_INT(simdisk_put(disk, name, "\x10\0\0\0\0\0\0\0{\"a\":{}}        ", 24), 0);
	for (nth = 0; next(&l, &c);) {
		found += l.err[0].code == SHEAF_ECORRUPT && l.n == 1 &&
			 strcmp(l.found[0].what, "header") == 0;
		CHECK(l.err[0].code == SHEAF_ECORRUPT || l.err[0].code == SHEAF_EIO);
		CHECK_INT(l.n, l.err[0].code == SHEAF_ECORRUPT);
		if (did(&c, "pread")) {
			CHECK_STR(l.err[0].msg, "hf/model-00001-of-00001.safetensors: reading its "
			          "header" DENIED);
			header++;
		}
	}
	CHECK(found > 0);
	CHECK_INT(header, 2);
	simdisk_free(disk);
}

/* With any one of the descriptors being 0 the same is found, and told in the same words. */
static void same_with_each_0(struct simdisk *disk, const char *path)
{
	struct look plain = { .disk = disk, .ranks = 1, .path = path };
	bool fired = true;
	int opens = 0;

	CHECK_RC(verify(&plain), SHEAF_ECORRUPT, &plain.err[0]);
	CHECK_INT(plain.n, 1);
	CHECK_STR(plain.found[0].what, "header");
	for (; fired; opens++) {
		struct look l = { .disk = disk, .ranks = 1, .path = path };

		simdisk_fault(disk, &(struct simdisk_fault){ .nth = opens + 1,
			.kind = SIMDISK_OPEN, .how = SIMDISK_ZERO });
		CHECK_RC(verify(&l), SHEAF_ECORRUPT, &l.err[0]);
		fired = simdisk_fired(disk) > 0;
		simdisk_faults_clear(disk);
		CHECK_INT(l.n, 1);
		CHECK_STR(l.found[0].what, "header");
		CHECK_STR(l.found[0].msg, plain.found[0].msg);
		CHECK_STR(l.err[0].msg, plain.err[0].msg);
	}
	CHECK(opens > 3);
}

TEST(a_wrong_header_is_found_alike_if_its_file_has_descriptor_0)
{
	struct simdisk *disk = disk_new();

	mended(disk, EMA, "layers.0.norm", "layers.0.form");
	same_with_each_0(disk, NULL);
	CHECK_INT(simdisk_put(disk, "hf/model-00001-of-00001.safetensors",
	                      "\x10\0\0\0\0\0\0\0{\"a\":{}}        ", 24), 0);
	same_with_each_0(disk, "hf");
	simdisk_free(disk);
}
