/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of Hugging Face whose index is lost, damaged, partial or wrong: they are read by the
 * headers of their files, it is said, and the index is written anew. */
#define main t_main
#include "t.h"
#undef main
#include "written.h"
#include "hands.h"
#include "repair_index.h"
#include "rewritten.h"
#include "sheaf-inspect.h"
#include "verify_step.h"

#define N1 "model-00001-of-00002.safetensors"
#define N2 "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"

static const struct hand_tensor first[] = {
	{ "embed", SHEAF_BF16, 2, { 31, 37 } },
	{ "l.0.w", SHEAF_F32, 2, { 29, 13 } },
};
static const struct hand_tensor second[] = {
	{ "l.1.w", SHEAF_F32, 2, { 29, 13 } },
	{ "norm", SHEAF_F16, 1, { 37 } },
};
static const char right[] = "{\n  \"metadata\": {\n    \"total_size\": 5384\n  },\n"
	"  \"weight_map\": {\n    \"embed\": \"" N1 "\",\n    \"l.0.w\": \"" N1 "\",\n"
	"    \"l.1.w\": \"" N2 "\",\n    \"norm\": \"" N2 "\"\n  }\n}\n";

static void put(struct simdisk *disk, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

/* index NULL: it has none. */
static struct simdisk *hf_on(enum simdisk_model model, const char *index)
{
	struct simdisk *disk = simdisk_new(5, model);

	hands_file(disk, "hf/" N1, first, 2, 0);
	hands_file(disk, "hf/" N2, second, 2, 3);
	if (index)
		put(disk, "hf/" INDEX, index);
	return disk;
}

static struct simdisk *hf(const char *index)
{
	return hf_on(SIMDISK_STRICT, index);
}

static void held(struct hand *h)
{
	hand_cut(hand_add(h, "model", "embed", SHEAF_BF16, 2, 31, 37), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "model", "l.0.w", SHEAF_F32, 2, 29, 13), 1, h->rank, h->ranks);
	hand_add(h, "model", "l.1.w", SHEAF_F32, 2, 29, 13);
	hand_add(h, "model", "norm", SHEAF_F16, 1, 37);
}

static void all_are_right(struct simdisk *disk)
{
	for (int ranks = 1; ranks < 4; ranks += 2) {
		struct play p = hands_play(disk, ranks, held);

		p.path = "hf";
		p.opts.flags = 0;
		p.flags = SHEAF_LOAD_STRICT;
		LOADED(p);
		CHECK_INT(p.report.loaded, 4);
	}
}

static struct sheaf_checkpoint *opened(struct simdisk *disk, const char *path)
{
	struct shf_opts o = { .flags = 0 };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	CHECK_RC(shf_step_open_path(&step, path, NULL, &o, process(disk), &err), 0, &err);
	return step;
}

static struct { int n, kind; char file[100]; } finding;

static void find(void *arg, const struct sheaf_finding *f)
{
	(void)arg;
	finding.n += f->kind == SHEAF_FINDING_INDEX;
	snprintf(finding.file, sizeof(finding.file), "%s", f->file);
}

/* Verifies it; returns how many findings are of an index. */
static int findings(struct simdisk *disk)
{
	struct sheaf_report r = { .size = sizeof(r), .finding = find };
	struct sheaf_checkpoint *step = opened(disk, "hf");
	struct sheaf_error err;

	finding.n = 0;
	CHECK_RC(shf_step_verify(step, &r, &err), finding.n ? SHEAF_ECORRUPT : SHEAF_EFORMAT, &err);
	shf_step_put(step);
	return finding.n;
}

static struct written repair_by(struct simdisk *disk, const struct shf_sys *sys)
{
	struct shf_opts opts = { .io_threads = 1 };
	struct written w = { .rc = 0 };
	struct sheaf_checkpoint *step = NULL;

	w.rc = shf_step_open_path(&step, "hf", NULL, &opts, sys, &w.err);
	starve_left = hungry;
	if (w.rc == 0)
		w.rc = shf_step_repair_index(step, &w.err);
	starve_left = 0;
	w.report.loaded = w.rc > 0;
	w.rc = w.rc > 0 ? 0 : w.rc;
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return w;
}

static void index_is_right(struct simdisk *disk, const void *arg)
{
	size_t n;
	char *text = simdisk_get(disk, "hf/" INDEX, &n);

	(void)arg;
	CHECK(text && n == sizeof(right) - 1 && memcmp(text, right, n) == 0);
	free(text);
}

/* What is wrong, and what a person is told of it. */
static const struct { const char *index, *why; int found; } flaws[] = {
	{ NULL, INDEX ": missing; the headers of the files were read instead", 0 },
	{ "", INDEX ": unexpected end at byte 0; the headers", 1 },
	{ "{\"weight_map\":{\"embed\":\"" N1 "\",", INDEX ": unexpected end at byte ", 1 },
	{ "{\"weight_map\":{}}", INDEX ": it lists no tensor; the headers", 1 },
	{ "{\"weight_map\":{\"embed\":\"" N1 "\"}}", INDEX ": 3 tensors, such as l.0.w, are not in "
	  "it; the headers", 1 },
	{ "{\"weight_map\":{\"embed\":\"" N1 "\",\"l.0.w\":\"" N1 "\",\"norm\":\"" N2 "\"}}",
	  INDEX ": tensor l.1.w is not in it; the headers", 1 },
	{ "{\"weight_map\":{\"embed\":\"" N2 "\",\"l.0.w\":\"" N1 "\",\"l.1.w\":\"" N2
	  "\",\"norm\":\"" N2 "\"}}",
	  INDEX ": tensor embed is in another file than it says; the headers", 1 },
	{ "{\"weight_map\":{\"embed\":\"gone.safetensors\",\"l.0.w\":\"" N2 "\"}}",
	  INDEX ": 2 tensors, such as embed, are in other files than it says; 2 tensors, such as "
	  "l.1.w, are not in it; the headers", 1 },
};

TEST(an_index_that_is_not_right_is_said_and_written_anew)
{
	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		struct simdisk *disk = hf(flaws[i].index);
		struct sheaf_checkpoint *step = opened(disk, "hf");
		struct written w;

		if (!step->index_evidence || !strstr(step->index_evidence, flaws[i].why))
			fail_msg("%zu: %s", i, step->index_evidence);
		shf_step_put(step);
		CHECK_INT(findings(disk), flaws[i].found);
		CHECK(!flaws[i].found || strcmp(finding.file, INDEX) == 0);
		all_are_right(disk);
		w = repair_by(disk, process(disk));
		CHECK_RC(w.rc, 0, &w.err);
		CHECK_INT(w.report.loaded, 1);
		index_is_right(disk, NULL);
		step = opened(disk, "hf");
		CHECK(!step->index_evidence && !step->index_flaw);
		shf_step_put(step);
		CHECK_INT(findings(disk), 0);
		all_are_right(disk);
		w = repair_by(disk, process(disk));
		CHECK_RC(w.rc, 0, &w.err);
		CHECK_INT(w.report.loaded, 0);
		simdisk_free(disk);
	}
}

static void repair_is_refused(const char *index, int code, const char *why)
{
	struct simdisk *disk = hf(index);
	struct written w = repair_by(disk, process(disk));
	char *text;
	size_t n;

	CHECK_RC(w.rc, code, &w.err);
	if (!strstr(w.err.msg, why))
		fail_msg("%s", w.err.msg);
	text = simdisk_get(disk, "hf/" INDEX, &n);
	CHECK(n == strlen(index) && memcmp(text, index, n) == 0);
	free(text);
	simdisk_free(disk);
}

TEST(an_index_that_shows_that_a_file_is_missing_stays)
{
	repair_is_refused("{\"weight_map\":{\"embed\":\"" N1 "\",\"l.2.w\":\"" N2 "\"}}",
	                  SHEAF_EFORMAT, "the index says that tensor l.2.w is in " N2 ", but");
	repair_is_refused("{\"weight_map\":{\"embed\":\"gone.safetensors\",\"x\":\"gone"
	                  ".safetensors\"}}", SHEAF_EFORMAT, "that tensor x is in gone.");
	repair_is_refused("{\"weight_map\":{\"embed\":\"../" N1 "\"}}", SHEAF_EFORMAT,
	                  "hf/" INDEX ": file in weight_map that is not a plain file name");
}

TEST(files_of_another_model_are_not_taken_for_shards_that_the_index_left_out)
{
	static const char index[] = "{\"weight_map\":{\"embed\":\"" N1 "\",\"l.0.w\":\"" N1 "\"}}";
	struct simdisk *disk = hf(index);
	struct sheaf_checkpoint *step;

	hands_file(disk, "hf/model-00002-of-00003.safetensors", first, 2, 0);
	hands_file(disk, "hf/consolidated.safetensors", first, 2, 0);
	hands_file(disk, "hf/models-00002-of-00002.safetensors", first, 2, 0);
	hands_file(disk, "hf/model-00003-of-00002.safetensors", first, 2, 0);
	all_are_right(disk);
	step = opened(disk, "hf");
	CHECK_INT(step->layout.files_n, 2);
	shf_step_put(step);
	simdisk_free(disk);
}

TEST(a_single_file_needs_no_index)
{
	struct simdisk *disk = simdisk_new(5, SIMDISK_STRICT);
	struct written w;

	hands_file(disk, "hf/model.safetensors", first, 2, 0);
	w = repair_by(disk, process(disk));
	CHECK_RC(w.rc, 0, &w.err);
	CHECK(!w.report.loaded && !simdisk_exists(disk, "hf/" INDEX));
	simdisk_free(disk);
}

/* The whole file and the shards cannot both be the model: the rule is that of transformers. */
TEST(a_whole_file_comes_before_an_index_of_shards)
{
	static const struct hand_tensor whole[] = { { "norm", SHEAF_F16, 1, { 37 } } };
	struct simdisk *disk = hf(right);
	struct sheaf_checkpoint *step;
	struct written w;

	hands_file(disk, "hf/model.safetensors", whole, 1, 0);
	for (int again = 0; again < 2; again++) {
		step = opened(disk, "hf");
		CHECK_INT(step->layout.tensors_n, 1);
		CHECK_STR(step->layout.tensors[0].name, "norm");
		if (again)
			CHECK(!step->index_evidence);
		else
			CHECK(strstr(step->index_evidence, INDEX ": names other files, and "
			             "model.safetensors is there, which transformers reads") !=
			      NULL);
		shf_step_put(step);
		CHECK_INT(findings(disk), !again);
		w = repair_by(disk, process(disk));
		CHECK_RC(w.rc, 0, &w.err);
	}
	simdisk_free(disk);
}

TEST(a_link_of_the_hub_is_replaced_and_the_blob_stays)
{
	struct simdisk *disk = hf(NULL);
	struct written w;
	char *text;
	size_t n;

	put(disk, "blobs/cc", "{}");
	CHECK_INT(simdisk_symlink(disk, "../blobs/cc", "hf/" INDEX), 0);
	w = repair_by(disk, process(disk));
	CHECK_RC(w.rc, 0, &w.err);
	index_is_right(disk, NULL);
	text = simdisk_get(disk, "blobs/cc", &n);
	CHECK(n == 2 && memcmp(text, "{}", 2) == 0);
	free(text);
	simdisk_free(disk);
}

/* ---- steps of a run ---- */

TEST(a_lost_or_changed_index_of_a_step_gets_the_bytes_that_it_had)
{
	static const char path[] = "run/checkpoint-2/" INDEX;
	struct simdisk *disk = with_one_step(SIMDISK_STRICT, 40, 1, 0);
	char *was, *is;
	size_t n, m;

	was = simdisk_get(disk, path, &n);
	CHECK(was != NULL);
	for (int k = 0; k < 3; k++) {
		struct sheaf_checkpoint *step;
		struct sheaf_error err;

		CHECK_INT(k < 2 ? simdisk_remove(disk, path) : 0, 0);
		if (k == 1)
			put(disk, path, "{}");
		step = opened(disk, "run/checkpoint-2");
		CHECK_INT(shf_step_repair_index(step, &err), k < 2);
		shf_step_put(step);
		is = simdisk_get(disk, path, &m);
		CHECK(is && n == m && memcmp(is, was, n) == 0);
		free(is);
	}
	free(was);
	simdisk_free(disk);
}

/* ---- failures and cuts ---- */

/* It has an index that is right, or the one that it had. */
static void index_is_old_or_right(struct simdisk *disk, const void *arg)
{
	size_t n;
	char *text = simdisk_get(disk, "hf/" INDEX, &n);

	(void)arg;
	CHECK(text && ((n == 2 && memcmp(text, "{}", 2) == 0) ||
	               (n == sizeof(right) - 1 && memcmp(text, right, n) == 0)));
	free(text);
}

TEST(each_call_and_each_allocation_of_a_repair_may_fail)
{
	struct simdisk *base = hf("{}");
	const struct rewriting r = { repair_by, "nothing", index_is_old_or_right, 5, NULL };

	each_call_may_fail(base, &r);
	each_allocation_may_fail(base, &r);
	simdisk_free(base);
}

static const char *judge(const void *story, struct simdisk *disk, int64_t cut, char why[300])
{
	size_t n;
	char *text = simdisk_get(disk, "hf/" INDEX, &n);
	bool is_right = text && n == sizeof(right) - 1 && memcmp(text, right, n) == 0;
	bool is_old = text && n == 2 && memcmp(text, "{}", 2) == 0;

	free(text);
	if (is_right || (is_old && !promised(story, cut)))
		return "";
	return snprintf(why, 300, "the index has %zu bytes", is_old ? n : 0), why;
}

TEST(a_repair_survives_every_cut)
{
	struct story story = { 0 };
	struct simdisk *disk = hf_on(SIMDISK_STRICT, "{}");
	struct written w;

	simdisk_settle(disk);
	w = repair_by(disk, process(disk));
	CHECK_RC(w.rc, 0, &w.err);
	hunt_cuts(disk, &story, 1, judge);
	simdisk_free(disk);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
