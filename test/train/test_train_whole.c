/* SPDX-License-Identifier: Apache-2.0 */
/* Whole trainings on ranks that are threads of this process. So a trainer has no globals, and the
 * tests can let any exchange of any rank fail, which must be an error on all ranks. */
#include "t.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bind.h"
#include "dataprep.h"
#include "lm.h"
#include "ranks_threads.h"
#include "rmtree.h"
#include "tokenfile.h"
#include "trainloop.h"
#include "trainthreads.h"

enum { RANKS = 3 };
static const char model[] = MODEL;

/* Makes a run with checkpoints 1 and 2. */
static void train_two(const char *run)
{
	train_on(2, run, "2", "save-every: 1");
}

TEST(ranks_that_are_threads_save_the_files_of_one_rank)
{
	char path[200], run[20];

	prepare();
	for (int i = 0; i < LAYOUTS; i++) {
		snprintf(run, sizeof(run), "whole/run%d", i);
		train_layout(i, run, "3", "");
		snprintf(path, sizeof(path), "%s/checkpoint-3", run);
		same_tensors("whole/run0/checkpoint-3", path);
	}
	rmtree("whole");
}

/* The first and the last stage have different matrices. */
TEST(stages_of_a_model_whose_head_is_not_tied_save_the_files_of_one_rank)
{
	char text[sizeof(model)], *tied;

	prepare();
	memcpy(text, model, sizeof(text));
	tied = strstr(text, ", \"tie_word");
	CHECK(tied != NULL);
	snprintf(tied, sizeof(text) - (size_t)(tied - text), "}");
	put_text("whole/model.json", text);
	train_on(1, "whole/one", "3", "");
	train_on(4, "whole/run", "3", "{mesh: {tp: 2, pp: 2}, schedule: interleaved, chunks: 2}");
	same_tensors("whole/one/checkpoint-3", "whole/run/checkpoint-3");
	rmtree("whole");
}

TEST(ranks_go_on_with_what_other_ranks_saved_as_if_nothing_had_been)
{
	static const int order[] = { 5, 17, 8, 12, 19, 0, 20, 4, 13, 24, 15, 22, 10, 2, 14,
				     21, 7, 3, 16, 18, 23, 11, 9, 6, 1 };
	_Static_assert(sizeof(order) / sizeof(order[0]) == LAYOUTS, "each layout is in the order");

	prepare();
	train_layout(1, "whole/all", "25", "");
	for (int i = 0; i < LAYOUTS; i++) {
		char steps[12];

		snprintf(steps, sizeof(steps), "%d", 1 + i);
		train_layout(order[i], "whole/part", steps, "");
	}
	same_tensors("whole/all/checkpoint-25", "whole/part/checkpoint-25");
	rmtree("whole");
}

/* Returns how many files of offloaded moments have a name in the directory of the tests. */
static int count_offloaded(void)
{
	DIR *dir = opendir("whole");
	const struct dirent *e;
	int n = 0;

	CHECK(dir != NULL);
	while ((e = readdir(dir)))
		n += strncmp(e->d_name, "sheaf-offload", 13) == 0;
	closedir(dir);
	return n;
}

TEST(moments_in_a_file_leave_nothing_behind_and_need_a_directory)
{
	prepare();
	train_on(2, "whole/one", "3", "save-every: 1");
	train_on(2, "whole/run", "3", "{offload: whole, save-every: 1}");
	same_tensors("whole/one/checkpoint-3", "whole/run/checkpoint-3");
	CHECK_INT(count_offloaded(), 0);
	train_fails(2, "whole/run2", "offload: whole/none", TR_ENOENT, "offload whole/none: No");
	rmtree("whole");
}

/* Each parameter is in one group, also of a model that is in several stages and shards. */
TEST(a_checkpoint_says_with_which_optimizer_its_parameters_were_updated)
{
	static const char adamw[] = "\"betas\": [0.9, 0.95], \"eps\": 1e-08, \"weight_decay\": 0";
	static const char muon_first[] = "\"optimizers\": [{\"type\": \"Muon\", \"groups\": 1}, "
		"{\"type\": \"AdamW\", \"groups\": 2}]}";
	static const char adamw_only[] = "\"optimizers\": [{\"type\": \"AdamW\", \"groups\": 2}]}";
	char text[8192], *at;
	size_t n;

	for (int muon = 0; muon < 2; muon++) {
		int names = 0;

		prepare();
		train_on(4, "whole/run", "2", muon ? "{mesh: {tp: 2, pp: 2}, optimizer: muon}" :
			 "mesh: {tp: 2, pp: 2}");
		n = read_whole("whole/run/checkpoint-2/param_groups.json", text, sizeof(text) - 1);
		text[n] = 0;
		for (at = text; (at = strstr(at, ".weight\"")) != NULL; at++)
			names++;
		CHECK_INT(names, 2 + 4 * 9);
		at = strstr(text, adamw);
		CHECK(at != NULL && strstr(at + 1, adamw) != NULL);
		CHECK((strstr(text, "\"momentum\": 0.9, \"weight_decay\": 0.1}") != NULL) == muon);
		CHECK(strstr(text, muon ? muon_first : adamw_only) != NULL);
	}
	rmtree("whole");
}

TEST(ranks_with_different_options_do_not_train)
{
	static const char *const others[] = { "lr: 0.02", "run: whole/other", "resume: none",
					      "save-every: 1" };

	prepare();
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		struct rank rank[RANKS];

		CHECK_RC(train_with(RANKS, "whole/run", "2", "", others[i], 0, rank), TR_EINVAL,
			 &rank[0].err);
		CHECK(strstr(rank[0].err.msg, "different options") != NULL);
		CHECK_INT(access("whole/run", F_OK), -1);
	}
	rmtree("whole");
}

TEST(a_run_that_cannot_be_saved_to_is_refused_before_the_training)
{
	prepare();
	train_two("whole/run");
	train_fails(2, "whole/run", "resume: none", TR_EINVAL, "the training begins with step 0");
	train_fails(2, "whole/run", "resume: whole/run@1", TR_EINVAL, "rewind");
	train_two("whole/other");
	train_fails(2, "whole/run", "resume: whole/other@1", TR_EINVAL,
		    "has checkpoints of its own, up to step 2");
	rmtree("whole");
}

TEST(a_run_is_the_same_one_by_every_path_and_another_is_not_rewound)
{
	prepare();
	train_two("whole/run");
	train_two("whole/other");
	train_fails(2, "whole/run", "{resume: whole/other@1, rewind: true}", TR_EINVAL,
		    "is not in whole/run");
	CHECK_INT(access("whole/run/checkpoint-2", F_OK), 0);
	CHECK_INT(access("whole/other/checkpoint-2", F_OK), 0);
	train_on(2, "whole/run", "3", "{resume: ./whole//run@1, rewind: true}");
	CHECK_INT(access("whole/run/checkpoint-2", F_OK), -1);
	CHECK_INT(access("whole/run/checkpoint-3", F_OK), 0);
	rmtree("whole");
}

TEST(nothing_is_set_aside_before_all_is_checked)
{
	static const char *const bad[] = { "batch: 7", "model: whole/none", "data: whole/none" };

	prepare();
	train_two("whole/run");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char flags[100];

		snprintf(flags, sizeof(flags), "{resume: whole/run@1, rewind: true, %s}", bad[i]);
		train_fails(2, "whole/run", flags, i ? TR_ENOENT : TR_EINVAL, "");
		CHECK_INT(access("whole/run/checkpoint-2", F_OK), 0);
	}
	train_fails(2, "whole/run", "{resume: whole/run@5, rewind: true}", TR_ENOENT, "");
	CHECK_INT(access("whole/run/checkpoint-2", F_OK), 0);
	rmtree("whole");
}

/* In a pipeline no stage waits for what the one that cannot read a sample would send. */
TEST(a_save_in_flight_is_completed_when_a_later_step_fails)
{
	static const unsigned char bad[2] = { 0xff, 0xff };
	static const char *const layouts[] = { "", ", mesh: {pp: 2}, micro-batch: 1",
		", mesh: {pp: 2}, micro-batch: 1, schedule: interleaved, chunks: 2" };
	char flags[120], run[20], path[60];
	struct tr_tokenfile tokens;
	struct tr_error err;
	int fd;

	prepare();
	CHECK_RC(tr_tokenfile_open(&tokens, "whole/data", &err), 0, &err);
	fd = open("whole/data", O_WRONLY);
	/* A token of the second step, which follows the 12 samples of the first. */
	CHECK_INT(pwrite(fd, bad, sizeof(bad), tokens.tokens_at + 2 * (12 * 9 + 5)), sizeof(bad));
	close(fd);
	tr_tokenfile_close(&tokens);
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		snprintf(flags, sizeof(flags), "{save-every: 1, shuffle: false%s}", layouts[i]);
		snprintf(run, sizeof(run), "whole/run%zu", i);
		train_fails(2, run, flags, TR_EINVAL, "65535");
		snprintf(path, sizeof(path), "%s/checkpoint-1/train.yaml", run);
		CHECK_INT(access(path, F_OK), 0);
	}
	rmtree("whole");
}

/* ---- the memory of a save in flight ---- */

/* The size of the last file without a name that was made: the moments of a rank. */
static _Atomic int64_t offloaded;
static _Atomic int unmapped, in_flight;

T_REPLACES int posix_fallocate(int fd, off_t from, off_t n)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_nlink == 0)
		offloaded = n;
	return syscall(SYS_fallocate, fd, 0, from, n) < 0 ? errno : 0;
}

/* Returns how many saves to whole/run are in flight. */
static int count_saves(void)
{
	DIR *dir = opendir("whole/run/.sheaf/stage");
	const struct dirent *e;
	int n = 0;

	while (dir && (e = readdir(dir)))
		n += e->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

T_REPLACES int munmap(void *at, size_t n)
{
	if (offloaded && (int64_t)n == offloaded) {
		unmapped++;
		in_flight += count_saves();
	}
	return (int)syscall(SYS_munmap, at, n);
}

TEST(memory_is_released_after_the_save_that_reads_it)
{
	prepare();
	offloaded = 0;
	unmapped = 0;
	in_flight = 0;
	train_fails(2, "whole/run", "{offload: whole, save-every: 1, lr: 1000, clip: 0, "
		    "weight-decay: 100}", TR_ENAN, "step 4: the gradient is not a number");
	CHECK(access("whole/run/checkpoint-2", F_OK) == 0);
	CHECK(access("whole/run/checkpoint-3", F_OK) != 0);
	CHECK(unmapped > 0);
	CHECK_INT(in_flight, 0);
	offloaded = 0;
	rmtree("whole");
}

TEST(no_step_goes_past_the_last_epoch)
{
	prepare();                      /* 223 samples */
	train_fails(2, "whole/none", "{epochs: 1, batch: 240}", TR_EINVAL, "there is no step");
	train_on(2, "whole/run", "4", "{epochs: 3, batch: 402}");
	CHECK_INT(access("whole/run/checkpoint-1", F_OK), 0);
	CHECK_INT(access("whole/run/checkpoint-2", F_OK), -1);
	rmtree("whole");
}

TEST(a_resume_notices_other_data_and_another_model)
{
	static const char elsewhere[] = "resume: whole/run@2";
	struct tr_tokenfile tokens;
	struct tr_error err;
	char text[sizeof(model) + 40];
	int fd;

	prepare();
	train_two("whole/run");
	/* Another base of the rotation does not change a shape. */
	snprintf(text, sizeof(text), "%.*s, \"rope_theta\": 500000}", (int)sizeof(model) - 2,
		 model);
	put_text("whole/model.json", text);
	train_fails(2, "whole/run", "", TR_EINVAL, "rope_theta");
	train_fails(2, "whole/other", elsewhere, TR_EINVAL, "rope_theta");
	put_text("whole/model.json", model);
	/* The same length, and another token. */
	CHECK_RC(tr_tokenfile_open(&tokens, "whole/data", &err), 0, &err);
	fd = open("whole/data", O_WRONLY);
	CHECK_INT(pwrite(fd, "x", 1, tokens.tokens_at + 2 * 1000), 1);
	close(fd);
	tr_tokenfile_close(&tokens);
	train_fails(2, "whole/run", "", TR_EINVAL, "is not the data of whole/run@2");
	train_on(2, "whole/other", "3", elsewhere);
	rmtree("whole");
}

/* ---- a store without the training ---- */

struct alone {                          /* a trainer of one rank, and the checkpoints of a run */
	struct tr_ranks g;
	struct tr_mesh mesh;
	struct tr_trainer t;
	struct tr_store *s;
};

/* memory      1: with the agent of the run, for saves to memory
 * timeout_ms  how long ranks wait for each other */
static void open_alone(struct alone *a, const char *config, const char *run, int memory,
		       int timeout_ms)
{
	const struct tr_store_opts so = { .run = run, .agent = memory ? "auto" : "none",
					  .memory = memory };
	const struct tr_isa *isa;
	struct tr_model_config c;
	struct tr_error err;

	*a = (struct alone){ .t = { .mesh = &a->mesh, .leaves = 1, .pieces = 1 } };
	tr_ranks_alone(&a->g);
	a->g.timeout_ms = timeout_ms;
	CHECK_RC(tr_mesh_make(&a->mesh, &a->g, 1, 1, 1, &err), 0, &err);
	CHECK_RC(tr_model_config_read(&c, config, strlen(config), "config", &err), 0, &err);
	CHECK_RC(tr_isa_find(&isa, "portable", &err), 0, &err);
	CHECK_RC(tr_backend_cpu(&a->t.be, isa, &err), 0, &err);
	CHECK_RC(tr_trainer_init(&a->t, &c, 1, 4, &err), 0, &err);
	CHECK_RC(tr_store_open(&a->s, &so, &a->g, &err), 0, &err);
	CHECK_RC(tr_store_describe(a->s, &a->t, &err), 0, &err);
}

static void close_alone(struct alone *a)
{
	tr_store_close(a->s, 0);
	tr_trainer_release(&a->t);
	tr_backend_free(a->t.be);
	tr_mesh_release(&a->mesh);
}

static void set_items(struct tr_trainer *t, const struct tr_param *p, float weight, float m,
		      float v)
{
	float *w = tr_model_weights(t->model);

	for (int64_t i = p->offset; i < p->offset + p->items; i++) {
		w[i] = weight;
		t->adamw.m[i] = m;
		t->adamw.v[i] = v;
	}
}

/* Overwrites the last parameters first, because the background copy begins with the others. */
static void save_and_overwrite(struct tr_store *s, struct tr_trainer *t, enum tr_place to)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	const struct tr_progress place = { .step = 1, .adam_step = 1 };
	struct tr_gate gate = tr_store_gate(s);
	struct tr_error err;
	int64_t step;

	for (int i = 0; i < reg->n; i++)
		if (reg->param[i].tied_to < 0)
			set_items(t, &reg->param[i], 1.0f + (float)i, -1.0f - (float)i, 0.5f);
	CHECK_RC(tr_store_begin(s, to, &place, NULL, 0, &err), 0, &err);
	for (int i = reg->n - 1; i >= 0; i--) {
		if (reg->param[i].tied_to >= 0)
			continue;
		CHECK_RC(gate.wait(gate.arg, i, &err), 0, &err);
		set_items(t, &reg->param[i], 0, 0, 0);
	}
	CHECK_RC(tr_store_advance(s, to, 60000, &step, &err), 0, &err);
	CHECK_INT(step, 1);
}

/* With a timeout of the ranks that is shorter than the copy, a gate waits all the same. */
static void check_gates(enum tr_place to, int timeout_ms)
{
	static const char big[] = "{\"model_type\": \"qwen2\", \"vocab_size\": 2048, "
		"\"hidden_size\": 512, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
		"\"num_key_value_heads\": 1, \"intermediate_size\": 8192, "
		"\"tie_word_embeddings\": true}";
	const struct tr_registry *reg;
	struct tr_progress found;
	struct alone a;
	struct tr_error err;
	const char *config;
	int64_t wrong = 0;
	size_t n;
	float *w;

	open_alone(&a, big, "whole/run", to == TR_TO_MEMORY, timeout_ms);
	save_and_overwrite(a.s, &a.t, to);
	CHECK_RC(tr_store_find(a.s, "auto", 0, &found, &config, &n, &err), 0, &err);
	CHECK(found.step == 1 && found.on_disk == (to == TR_TO_DISK));
	CHECK_RC(tr_store_load(a.s, &found.step, &err), 0, &err);
	CHECK_INT(found.step, 1);
	reg = tr_model_registry(a.t.model);
	w = tr_model_weights(a.t.model);
	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		const float want = 1.0f + (float)i;

		for (int64_t k = p->offset; p->tied_to < 0 && k < p->offset + p->items; k++)
			wrong += w[k] != want ||
				a.t.adamw.m[k] != -want || a.t.adamw.v[k] != 0.5f;
	}
	CHECK_INT(wrong, 0);
	close_alone(&a);
}

TEST(a_save_has_no_byte_that_was_written_after_a_gate)
{
	struct agent agent;

	prepare();
	check_gates(TR_TO_DISK, 60000);
	rmtree("whole/run");
	check_gates(TR_TO_DISK, 1);
	rmtree("whole/run");
	start_agent(&agent, "whole/run");
	check_gates(TR_TO_MEMORY, 60000);
	stop_agent(&agent);
	rmtree("whole");
}

/* ---- a place far into the data ---- */

enum { FAR = 1000000000 };              /* samples before it */

/* Lowest bytes of whole/far behind its header that were read. */
static _Atomic int64_t lowest_read;
static int64_t header_end;
static ino_t far_inode;

/* Of a file of data that is watched: how often it was read, and the most that this process had of
 * offloaded memory then, in KiB. */
static ino_t watched;
static int watched_reads;
static long most_resident;

static void count_resident(void)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[4096];
	long kib = 0, sum = 0;
	int in_file = 0;

	while (f && fgets(line, sizeof(line), f)) {
		if (strchr("0123456789abcdef", line[0]))        /* the addresses of a mapping */
			in_file = strstr(line, "/sheaf-offload-") != NULL;
		if (in_file && sscanf(line, "Rss: %ld kB", &kib) == 1)
			sum += kib;
	}
	if (f)
		fclose(f);
	watched_reads++;
	most_resident = sum > most_resident ? sum : most_resident;
}

T_REPLACES ssize_t pread(int fd, void *to, size_t n, off_t at)
{
	struct stat st;
	int64_t lowest = lowest_read;

	if (watched && fstat(fd, &st) == 0 && st.st_ino == watched)
		count_resident();
	if (far_inode && fstat(fd, &st) == 0 && st.st_ino == far_inode && at >= header_end)
		while (at < lowest && !atomic_compare_exchange_weak(&lowest_read, &lowest, at))
			;
	return syscall(SYS_pread64, fd, to, n, at);
}

/* Makes a file of zeros without blocks, with more than a MiB behind sample FAR. */
static void make_far(void)
{
	const int64_t tokens = 9 * ((int64_t)FAR + 100000);
	char header[200];
	int n = snprintf(header, sizeof(header), "{\"tokens\":{\"dtype\":\"U16\",\"shape\":[%lld],"
			 "\"data_offsets\":[0,%lld]}}", (long long)tokens, (long long)tokens * 2);
	FILE *f = fopen("whole/far", "wb");
	struct stat st;

	CHECK(f && fputc(n, f) == n && fwrite("\0\0\0\0\0\0", 1, 7, f) == 7);
	CHECK(fputs(header, f) >= 0 && fclose(f) == 0);
	CHECK_INT(truncate("whole/far", 8 + n + tokens * 2), 0);
	CHECK_INT(stat("whole/far", &st), 0);
	header_end = 8 + n;
	far_inode = st.st_ino;
	lowest_read = st.st_size;
}

/* Saves checkpoint 1 of whole/run again as one that has consumed FAR samples. */
static void save_far(void)
{
	static char config[4096], yaml[4096];
	const struct tr_attachment files[2] = {
		{ "config.json", config, read_whole("whole/run/checkpoint-1/config.json", config,
						    sizeof(config)) },
		{ "train.yaml", yaml, read_whole("whole/run/checkpoint-1/train.yaml", yaml,
						 sizeof(yaml)) } };
	const struct tr_progress place = { .step = 1, .adam_step = 1, .consumed = FAR };
	struct alone a;
	struct tr_error err;
	int64_t step;

	open_alone(&a, model, "whole/far-run", 0, 60000);
	CHECK_RC(tr_store_begin(a.s, TR_TO_DISK, &place, files, 2, &err), 0, &err);
	CHECK_RC(tr_store_advance(a.s, TR_TO_DISK, -1, &step, &err), 0, &err);
	close_alone(&a);
}

TEST(a_resume_far_into_the_data_reads_nothing_before_its_place)
{
	static const char flags[] = "{data: whole/far, shuffle: false}";

	prepare();
	make_far();
	train_on(1, "whole/run", "1", flags);
	CHECK(lowest_read == header_end);
	save_far();
	lowest_read = INT64_MAX;
	train_on(2, "whole/next", "3",
		 "{data: whole/far, shuffle: false, resume: whole/far-run@1}");
	CHECK(lowest_read == header_end + (int64_t)FAR * 9 * 2);
	CHECK_INT(access("whole/next/checkpoint-3", F_OK), 0);
	far_inode = 0;
	rmtree("whole");
}

/* The data is read before each step. The masters are read for the hash of the step before. */
TEST(offloaded_memory_leaves_the_process_before_a_step_begins)
{
	struct stat st;

	prepare();
	CHECK_INT(stat("whole/data", &st), 0);
	watched = st.st_ino;
	watched_reads = 0;
	most_resident = 0;
	train_on(1, "whole/run", "4", "{offload: whole, dtype: bf16}");
	watched = 0;
	CHECK(watched_reads >= 4);
	CHECK_INT(most_resident, 0);
	rmtree("whole");
}

/* ---- a disk that is full ---- */

/* How many of the next calls find the disk full: those that ask for its room, and those of fsync
 * after some that work. */
static _Atomic int no_room, fsyncs_before, full_fsyncs;

T_REPLACES int fstatvfs(int fd, struct statvfs *v)
{
	struct statfs f;
	struct stat st;
	int rc = fstatfs(fd, &f);

	/* The library reads the free blocks, their size and the id only. */
	if (rc == 0)
		*v = (struct statvfs){ .f_bavail = f.f_bavail, .f_frsize = 4096 };
	if (no_room > 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
		no_room--;
		v->f_bavail = 0;
	}
	return rc;
}

T_REPLACES int fsync(int fd)
{
	if (full_fsyncs > 0 && --fsyncs_before < 0) {
		full_fsyncs--;
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

static int is_saved(int step)
{
	char path[60];

	snprintf(path, sizeof(path), "whole/run/checkpoint-%d", step);
	return access(path, F_OK) == 0;
}

TEST(the_training_goes_on_while_the_disk_is_full_and_is_saved_when_it_is_free)
{
	prepare();
	train_on(2, "whole/plain", "5", "");
	no_room = 4;                    /* a save asks again when it has emptied the trash */
	train_on(2, "whole/run", "5", "save-every: 1");
	CHECK_INT(no_room, 0);
	CHECK(!is_saved(1) && !is_saved(2) && is_saved(3) && is_saved(4) && is_saved(5));
	same_tensors("whole/plain/checkpoint-5", "whole/run/checkpoint-5");
	rmtree("whole/run");
	/* The save of a step fails after its gates were called. */
	fsyncs_before = 50;
	full_fsyncs = 1;
	train_on(2, "whole/run", "5", "save-every: 1");
	CHECK_INT(full_fsyncs, 0);
	CHECK_INT(is_saved(1) + is_saved(2) + is_saved(3) + is_saved(4), 3);
	CHECK(is_saved(5));
	same_tensors("whole/plain/checkpoint-5", "whole/run/checkpoint-5");
	rmtree("whole/run");
	no_room = 1000;
	train_fails(2, "whole/run", "save-every: 1", TR_ENOSPC, "free space there");
	no_room = 0;
	CHECK(!is_saved(4));
	rmtree("whole");
}

static int lose(int ranks, const char *flags)
{
	int lost = 0;

	for (int nth = 1 + t_from(T_STRIDE); nth < 800; nth += T_STRIDE) {
		struct rank rank[RANKS_MAX];
		char run[30];
		int rc;

		snprintf(run, sizeof(run), "whole/run%d-%d", ranks, nth);
		rc = train_with(ranks, run, "3", flags, flags, nth, rank);
		if (rc == 0)
			break;
		CHECK_INT(rc, TR_ELOST);
		lost++;
	}
	return lost;
}

TEST(a_rank_that_is_lost_at_any_exchange_ends_all_ranks)
{
	prepare();
	CHECK(lose(RANKS, "{zero: 1, zero-form: flat}") > 0);
	CHECK(lose(4, "{mesh: {dp: 2, tp: 2}, sp: true, zero: 1, dtype: bf16, optimizer: muon}") >
	      0);
	CHECK(lose(4, "{mesh: {tp: 2, pp: 2}, schedule: interleaved, chunks: 2}") > 0);
	CHECK(lose(4, "{mesh: {dp: 2, pp: 2}, zero: 2, overlap: true, micro-batch: 2}") > 0);
	CHECK(lose(2, "{mesh: {dp: 2}, zero: 1, overlap: true, link-us: 1}") > 0);
	rmtree("whole");
}

TEST(pieces_that_do_not_divide_the_kv_heads_are_refused)
{
	prepare();
	train_fails(3, "whole/run", "{mesh: {tp: 3}, virtual: {dp: 1, tp: 3}}", TR_EINVAL,
		    "virtual tp=3 does not divide num_key_value_heads 2 of model whole/model.json");
	rmtree("whole");
}
