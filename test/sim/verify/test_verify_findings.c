/* SPDX-License-Identifier: Apache-2.0 */
/* Each finding of a verify is complete: the file, the numbers that differ, and which of them is the
 * right one. */
#include "looks.h"
#include <stdarg.h>
#include "sheaf-inspect.h"
#include "step.h"
#include "step_open.h"
#include "verify_step.h"

static struct look look;

static void __attribute__((format(printf, 2, 3))) says(struct simdisk *disk, const char *fmt, ...)
{
	char want[500];
	va_list args;

	va_start(args, fmt);
	vsnprintf(want, sizeof(want), fmt, args);
	va_end(args);
	look = (struct look){ .disk = disk, .ranks = 1 };
	CHECK_INT(verify(&look), SHEAF_ECORRUPT);
	CHECK_INT(look.n, 1);
	CHECK_STR(look.found[0].msg, want);
	CHECK_STR(look.err[0].msg, want);
}

TEST(sizes_and_files_that_are_gone)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	const char *name = files.name[1];
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(name), &n), *more = calloc(n + 1, 1);

	CHECK(bytes && more);
	memcpy(more, bytes, n);
	put(disk, name, more, n + 1);
	says(disk, STEP "%s: %zu bytes, the manifest says %zu", name, n + 1, n);
	CHECK_STR(look.found[0].what, "extended");
	put(disk, name, bytes, n - 1);
	look = (struct look){ .disk = disk, .ranks = 1 };
	CHECK_INT(verify(&look), SHEAF_ECORRUPT);
	CHECK_STR(look.found[0].what, "truncated");
	snprintf((char *)more, n, STEP "%s: %zu bytes, the manifest says %zu", name, n - 1, n);
	CHECK_STR(look.found[0].msg, (char *)more);
	CHECK_INT(simdisk_remove(disk, path_of(name)), 0);
	says(disk, STEP "%s: missing", name);
	put(disk, name, bytes, n);
	put(disk, "nobodys.bin", bytes, n);
	says(disk, STEP "nobodys.bin: the manifest does not name it");
	free(bytes);
	free(more);
	simdisk_free(disk);
}

TEST(checksums_of_files_as_they_are_and_as_they_should_be)
{
	struct simdisk *disk = disk_new();
	struct files files = files_of(disk);
	const char *name = files.name[0];
	uint64_t was = crc_of(disk, "config.json");
	char text[500];

	flip(disk, "config.json", 2, 2);
	says(disk, STEP "config.json: checksum %016" PRIx64 ", want %016" PRIx64,
	     crc_of(disk, "config.json"), was);
	flip(disk, "config.json", 2, 2);
	was = crc_of(disk, name);
	crc_edit(disk, was, was ^ 1);
	says(disk, STEP "sheaf.json: says checksum %016" PRIx64 " of %s, its blocks in sheaf.sums "
	     "make %016" PRIx64, was ^ 1, name, was);
	crc_edit(disk, was ^ 1, was);
	flip(disk, "sheaf.sums", 200, 3);
	flip(disk, name, 5000, 3);
	look = (struct look){ .disk = disk, .ranks = 1 };
	CHECK_INT(verify(&look), SHEAF_ECORRUPT);
	CHECK_INT(look.n, 2);
	snprintf(text, sizeof(text), STEP "%s: the file has checksum %016" PRIx64 ", want "
	         "%016" PRIx64 "; sheaf.sums is damaged, so the place is not known", name,
	         crc_of(disk, name), was);
	CHECK_STR(look.found[1].msg, text);
	simdisk_free(disk);
}

/* What the manifest says of tensors, against the table. */
TEST(tensors_that_a_manifest_miscounts_or_misties)
{
	struct simdisk *disk = disk_new();
	struct table t = table_read(disk);
	struct shf_sums_tensor r = shf_sums_tensor(&t.s, 0);
	char *text = manifest_text(disk), first[80];
	const char *ema = strstr(text, "\"dir\": \"ema\"");
	unsigned long long bytes = 0;

	CHECK(ema && sscanf(strstr(ema, "\"bytes\": "), "\"bytes\": %llu", &bytes) == 1);
	manifest_edit(disk, "\"dir\": \"ema\", \"files\": 1, \"tensors\": 1",
	              "\"dir\": \"ema\", \"files\": 1, \"tensors\": 2");
	says(disk, STEP "sheaf.json: says that family ema has 2 tensors, %llu bytes; sheaf.sums "
	     "has 1, %llu", bytes, bytes);
	manifest_edit(disk, "\"dir\": \"ema\", \"files\": 1, \"tensors\": 2",
	              "\"dir\": \"ema\", \"files\": 1, \"tensors\": 1");
	manifest_edit(disk, "\"head.weight\", \"embed.weight\"", "\"head.weight\", \"embed\"");
	says(disk, STEP "sheaf.json: model/head.weight is tied to embed, which is not stored");
	/* The first tensor of all may be tied to, and not be tied. */
	CHECK_STR(shf_sums_family(&t.s, &r), "model");
	snprintf(first, sizeof(first), "\"head.weight\", \"%.40s\"", shf_sums_name(&t.s, &r));
	manifest_edit(disk, "\"head.weight\", \"embed\"", first);
	look = (struct look){ .disk = disk, .ranks = 1 };
	CHECK_RC(verify(&look), 0, &look.err[0]);
	manifest_edit(disk, first, "\"head.weight\", \"embed.weight\"");
	snprintf(first, sizeof(first), "\"%.40s\", \"steps\"", shf_sums_name(&t.s, &r));
	manifest_edit(disk, "\"head.weight\", \"embed.weight\"", first);
	says(disk, STEP "sheaf.json: model/%s is tied to steps, but stored",
	     shf_sums_name(&t.s, &r));
	free(text);
	free(t.bytes);
	simdisk_free(disk);
}

static void first_found(void *arg, const struct sheaf_finding *f)
{
	struct found *found = arg;

	if (!found->msg[0]) {
		snprintf(found->what, sizeof(found->what), "%s",
	         sheaf_finding_kind_name(f->kind));
		snprintf(found->msg, sizeof(found->msg), "%s", f->msg);
		snprintf(found->file, sizeof(found->file), "%s", f->file);
		found->offset = f->offset;
	}
}

/* A verify of which the nth read of a tensor file finds half of what is there. */
static int verify_half(struct simdisk *disk, const struct shf_sys *sys, int nth,
                       struct found *found)
{
	struct sheaf_report report = { .size = sizeof(report), .finding = first_found,
		.arg = found };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	int fired, rc;

	*found = (struct found){ .msg = "" };
	CHECK_RC(shf_step_open_path(&step, "run/checkpoint-7", NULL, NULL, sys, &err), 0, &err);
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .kind = SIMDISK_PREAD,
		.how = SIMDISK_PART, .name = "-of-" });
	rc = shf_step_verify(step, &report, &err);
	fired = simdisk_fired(disk);
	CHECK_RC(rc, fired ? SHEAF_ECORRUPT : 0, &err);
	simdisk_faults_clear(disk);
	shf_step_put(step);
	return fired;
}

TEST(a_file_that_ends_while_it_is_read_is_told_where)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 5, 0);
	struct found found;
	char want[300];
	int blocks = 0;

	for (int nth = 1; verify_half(disk, sys, nth, &found); nth++) {
		if (strcmp(found.what, "header") == 0)
			continue;
		snprintf(want, sizeof(want), STEP "%s: ends at byte %llu", found.file,
		         (unsigned long long)found.offset);
		CHECK(simdisk_exists(disk, path_of(found.file)));
		CHECK_STR(found.what, "truncated");
		CHECK_STR(found.msg, want);
		blocks++;
	}
	CHECK(blocks >= 3);
	simdisk_free(disk);
}

/* ---- indexes and headers that tell something else, with every sum above them right ---- */

TEST(an_index_is_told_what_it_lists_wrongly)
{
	struct simdisk *disk = disk_new();
	static const char name[] = "model.safetensors.index.json";
	static const char *const change[][3] = {
		{ "\"steps\": \"model-", "\"slept\": \"model-",
		  "lists tensor slept, which is not stored" },
		{ "\"steps\": \"model-00003", "\"steps\": \"model-00001",
		  "says that steps is in model-00001-of-00003.safetensors, but it is in "
		  "model-00003-of-00003.safetensors" },
		{ ",\n    \"steps\": \"model-00003-of-00003.safetensors\"",
		  "                                                 ",
		  "lists 20 tensors, but 21 are stored" },
	};

	for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
		uint64_t was = crc_of(disk, name);

		patch(disk, name, change[i][0], change[i][1]);
		crc_edit(disk, was, crc_of(disk, name));
		says(disk, STEP "%s: %s", name, change[i][2]);
		CHECK_STR(look.found[0].what, "index");
		CHECK_STR(look.found[0].family, look.found[0].name[0] ? "model" : "");
		was = crc_of(disk, name);
		patch(disk, name, change[i][1], change[i][0]);
		crc_edit(disk, was, crc_of(disk, name));
	}
	simdisk_free(disk);
}

TEST(an_index_is_told_the_size_that_it_should_name)
{
	struct simdisk *disk = disk_new();
	static const char name[] = "ema/ema.safetensors.index.json";
	size_t n;
	char *text = simdisk_get(disk, path_of(name), &n), *at;
	unsigned long long bytes = 0;
	uint64_t was = crc_of(disk, name);

	at = memmem(text, n, "\"total_size\": ", 14);
	CHECK(at && sscanf(at + 14, "%llu", &bytes) == 1);
	at[14]++;
	put(disk, name, text, n);
	crc_edit(disk, was, crc_of(disk, name));
	at[14]--;
	was = 0;
	CHECK(sscanf(at + 14, "%llu", &bytes) == 1);
	at[14]++;
	says(disk, STEP "%s: total_size is %.*s, the tensors have %llu bytes", name,
	     (int)strspn(at + 14, "0123456789"), at + 14, bytes);
	free(text);
	simdisk_free(disk);
}

static const char ema[] = "ema/ema-00001-of-00001.safetensors";

/* A byte of its header, and all sums above it. */
static void header_byte(struct simdisk *disk, uint64_t at, int by)
{
	struct files files = files_of(disk);
	uint64_t was = crc_of(disk, ema), f = 0;
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(ema), &n);

	while (strcmp(files.name[f], ema))
		f++;
	bytes[at] = (uint8_t)(bytes[at] + by);
	put(disk, ema, bytes, n);
	mend_block(disk, ema, f, was);
	free(bytes);
}

TEST(a_header_is_told_what_it_says_wrongly)
{
	struct simdisk *disk = disk_new();
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path_of(ema), &n), *p, *pt;
	uint64_t header = 8 + shf_get64(bytes);

	header_byte(disk, 0, -8);
	says(disk, STEP "%s: says that its header has %" PRIu64 " bytes, sheaf.sums says %" PRIu64,
	     ema, header - 8, header);
	CHECK_STR(look.found[0].what, "header");
	header_byte(disk, 0, 8);
	p = memmem(bytes, n, "layers.0.norm", 13);
	pt = memmem(bytes, n, "\"pt\"", 4);
	CHECK(p && pt);
	header_byte(disk, (uint64_t)(p - bytes), 1);
	says(disk, STEP "%s: tensor mayers.0.norm is not as sheaf.sums describes it", ema);
	CHECK_STR(look.found[0].name, "");
	/* That is looked at where something else is wrong. */
	header_byte(disk, (uint64_t)(pt - bytes) + 1, 1);
	says(disk, STEP "%s: its header lacks {\"format\":\"pt\"}", ema);
	CHECK_STR(look.found[0].name, "");
	header_byte(disk, (uint64_t)(pt - bytes) + 1, -1);
	header_byte(disk, (uint64_t)(p - bytes), -1);
	p = memmem(bytes, n, "\"F32\"", 5);
	CHECK(p != NULL);
	header_byte(disk, (uint64_t)(p - bytes) + 1, 'I' - 'F');
	says(disk, STEP "%s: tensor layers.0.norm is not as sheaf.sums describes it", ema);
	CHECK_STR(look.found[0].family, "ema");
	CHECK_STR(look.found[0].name, "layers.0.norm");
	free(bytes);
	simdisk_free(disk);
}

/* ---- what the opening of a step finds ---- */

static void opens(struct simdisk *disk, int ranks, int code, const char *sentence)
{
	look = (struct look){ .disk = disk, .ranks = ranks };
	CHECK_RC(verify(&look), code, &look.err[0]);
	if (!strstr(look.err[0].msg, sentence))
		CHECK_STR(look.err[0].msg, sentence);
}

TEST(a_manifest_that_ties_in_a_family_of_nobody_does_not_open)
{
	struct simdisk *disk = disk_new();

	manifest_edit(disk, "[\"model\", \"head.weight\"", "[\"nobody\", \"head.weight\"");
	for (int ranks = 1; ranks <= 2; ranks++)
		opens(disk, ranks, SHEAF_ECORRUPT, "run/checkpoint-7/sheaf.json: "
		      "nobody/head.weight is tied in a family that it does not have");
	simdisk_free(disk);
}
