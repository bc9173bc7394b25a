/* SPDX-License-Identifier: Apache-2.0 */
/* The agent of a node stops, restarts or belongs to another run at any moment: what becomes of the
 * steps in its memory, of a state with a single image, and of cards that must grow. */
#include <errno.h>
#include <stdlib.h>
#include "step.h"
#include "restarts.h"
#include "save_publish.h"
#include "save.h"
#include "starve.h"
#include "step_attached.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "agent_link.h"
#include "step_open.h"
#include "verify_step.h"
#include "step_copy.h"
#include "run_ops.h"
#include "load.h"

/* A job of one rank, step by step. */
struct one {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine m;
	struct sheaf_error err;
	int gone;                       /* logged: a step is in memory no more */
	int lost;                       /* logged: until an agent answers */
	int others;                     /* logged: the agent is another directory's */
	char told[2000];                /* logged of agents and memory, line by line */
};

static void hear(void *arg, int level, const char *line)
{
	struct one *o = arg;

	(void)level;
	if (strstr(line, "agent") || strstr(line, "memory"))
		snprintf(o->told + strlen(o->told), sizeof(o->told) - strlen(o->told), "%s\n",
		         line);
	o->gone += strcmp(line, "run: step 1 is no longer in memory: a newer save needed its "
	                  "staging buffer") == 0;
	o->lost += strstr(line, "run: checkpoints are not kept in memory until an agent "
	                  "answers: ") == line;
	o->others += strstr(line, "or a copy of this run") != NULL;
}

static void begin_as(struct one *o, struct simdisk *disk, const char *path,
                     const struct shf_opts *how)
{
	static uint64_t pid = 50000;
	struct shf_opts opts = *how;

	opts.io_threads = 1;
	opts.log = hear;
	opts.arg = o;
	*o = (struct one){ .disk = disk, .sys = simdisk_process(disk, pid++, 0) };
	o->state = re_state(&o->m, 0, 1);
	CHECK_RC(shf_run_open(&o->run, path, NULL, &opts, o->sys, &o->err), 0, &o->err);
}

static void begin_with(struct one *o, struct simdisk *disk, const char *path, int images,
                       uint64_t staging)
{
	begin_as(o, disk, path, &(struct shf_opts){ .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.images_max = images, .staging_bytes_max = staging });
}

static void begin_at(struct one *o, struct simdisk *disk, const char *path, int images)
{
	begin_with(o, disk, path, images, 0);
}

static void begin(struct one *o, int images)
{
	begin_at(o, re_world(1), "run", images);
}

/* The process ends; the disk and its agents stay. */
static struct simdisk *leave(struct one *o)
{
	shf_run_close(o->run);
	shf_state_put(o->state);
	re_free(&o->m);
	CHECK_INT(simdisk_open_n(o->sys), 0);
	simdisk_kill(o->disk, o->sys);
	return o->disk;
}

static void end(struct one *o)
{
	simdisk_free(leave(o));
}

static struct sheaf_save *begun(struct one *o, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	re_paint(&o->m, step);
	CHECK_RC(shf_save_begin(&save, o->run, step, o->state, &opts, &o->err), 0, &o->err);
	return save;
}

static int committed(struct one *o, struct sheaf_save *save)
{
	int rc = shf_save_commit(save, -1, &o->err);

	shf_save_free(save);
	return rc;
}

static int saved(struct one *o, int64_t step, uint64_t flags)
{
	return committed(o, begun(o, step, flags));
}

/* With so many bytes attached, which its card has, too. */
static int saved_with(struct one *o, int64_t step, size_t n)
{
	struct sheaf_save *save = begun(o, step, SHEAF_SAVE_NO_DISK);
	uint8_t *bytes = malloc(n);

	memset(bytes, (int)step, n);
	CHECK_INT(shf_save_attach(save, "more.bin", bytes, n, NULL), 0);
	free(bytes);
	return committed(o, save);
}

/* Which step a job that comes then would take, and it is that. */
static void resumes(struct one *o, int64_t want, bool memory)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, o->run, SHEAF_LATEST, &o->err);

	CHECK_RC(rc, want < 0 ? SHEAF_ENOENT : 0, &o->err);
	if (rc == 0) {
		CHECK_INT(step->number, want);
		re_paint(&o->m, 9999);
		CHECK_RC(shf_step_load(step, o->state, SHEAF_LOAD_STRICT, &report, &o->err), 0,
		         &o->err);
		CHECK((report.memory_bytes > 0) == memory);
	}
	shf_step_put(step);
}

static void next_at_resumes(struct simdisk *disk, const char *path, int64_t want, bool memory)
{
	struct one o;

	begin_at(&o, disk, path, 2);
	resumes(&o, want, memory);
	(void)leave(&o);
}

static void next_resumes(struct simdisk *disk, int64_t want, bool memory)
{
	next_at_resumes(disk, "run", want, memory);
}

/* ---- */

TEST(an_agent_that_is_not_there_or_another_runs_is_told_apart)
{
	static const struct {
		int error, code;
		const char *says;
	} ways[] = { { ENOENT, SHEAF_ENOENT, "no agent answers (start one on this node: sheaf "
		"agent RUN --detach)" },
		{ ECONNREFUSED, SHEAF_ENOENT, "no agent answers (start one on this node: sheaf "
			"agent RUN --detach)" },
		{ EXDEV, SHEAF_EINVAL, "the agent on this socket serves another run, or a copy of "
		  "this run; give each its own socket (sheaf agent RUN --socket PATH, "
		  "opts.memory_tier.agent)" },
		{ EACCES, SHEAF_EIO, "connecting to the agent: Permission denied" } };
	struct one o;
	int keep;

	begin(&o, 1);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		simdisk_fault(o.disk, &(struct simdisk_fault){ .nth = 1, .error = ways[i].error,
		                                               .kind = SIMDISK_KEEP });
		CHECK_INT(shf_agent_connect(&o.run->store, NULL, &keep, NULL, &o.err),
		          ways[i].code);
		CHECK_STR(o.err.msg, ways[i].says);
	}
	CHECK_INT(shf_agent_connect(&o.run->store, NULL, &keep, NULL, &o.err), 0);
	end(&o);
}

/* What came of one that may be refused when it begins. */
static int tried(struct one *o, int64_t step, uint64_t flags, struct shf_buf *said)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;
	int rc;

	re_paint(&o->m, step);
	rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);
	rc = rc < 0 ? rc : committed(o, save);
	if (rc < 0)
		shf_buf_addf(said, "%s\n", o->err.msg);
	return rc;
}

/* The nth call of an agent fails, of a job that saves to disk, to memory, and to both. */
static void one_call_fails(int nth, int error, struct shf_buf *said, int *fired)
{
	struct one o;
	struct simdisk *disk = re_world(1);

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = error,
	                                             .kind = SIMDISK_KEEP });
	begin_at(&o, disk, "run", 3);
	shf_buf_addf(said, "%d:\n", nth);
	CHECK_INT(tried(&o, 1, 0, said), 0);
	(void)tried(&o, 2, SHEAF_SAVE_NO_DISK, said);
	CHECK_INT(tried(&o, 3, 0, said), 0);
	*fired = simdisk_fired(disk);
	simdisk_faults_clear(disk);
	shf_buf_adds(said, o.told);
	simdisk_advance(o.disk, 3);
	CHECK_INT(saved(&o, 4, SHEAF_SAVE_NO_DISK), 0);
	(void)leave(&o);
	next_resumes(disk, 4, true);
	simdisk_free(disk);
}

#define UNTIL "run: checkpoints are not kept in memory until an agent answers: "
#define NO_AGENT "step 2: not saved, because on some node no agent answers, or its --memory-max " \
	"is too small (check with sheaf agent RUN --status on each node)\n"
#define PASSING "passing a staging buffer to the agent: Broken pipe, rank 0\n"
#define LOST "the agent was lost or has no memory left for it (sheaf agent --memory-max)\n"
#define NOT_KEPT "run: step 1 is not kept in memory: step 1: " LOST
#define KEPT "run: step 2 is in memory, rank 0\n"
static const char wanted[] =
	"1:\n" "run: no checkpoint is kept in memory: connecting to the agent: Broken pipe, "
	"rank 0\n" KEPT
	"2:\n" "run: the checkpoints in memory are not known: sending a request to the agent: "
	"Broken pipe, rank 0\n" KEPT
	"3:\n" KEPT
	"4:\n" UNTIL PASSING NOT_KEPT KEPT
	"5:\n" UNTIL PASSING NOT_KEPT KEPT
	"6:\n" KEPT
	"7:\n" NO_AGENT UNTIL "sending a message to the agent: Broken pipe, rank 0\n"
	"8:\n" NO_AGENT UNTIL PASSING
	"9:\n" "step 2: " LOST UNTIL PASSING
	"10:\n" KEPT UNTIL "sending a message to the agent: Broken pipe, rank 0\n"
	"11:\n" KEPT;

TEST(each_call_of_an_agent_that_fails_is_told_in_full_and_the_next_step_is_kept)
{
	struct shf_buf said = SHF_BUF_INIT;

	for (int nth = 1, fired = 1; fired; nth++)
		one_call_fails(nth, EPIPE, &said, &fired);
	shf_buf_add(&said, "", 1);
	CHECK_STR((char *)said.data, wanted);
	shf_buf_release(&said);
}

static void other_state(struct one *o, int64_t cols)
{
	shf_state_put(o->state);
	re_free(&o->m);
	re_cols = cols;
	o->state = re_state(&o->m, 0, 1);
}

/* Of the small state there is room for two images, of the large one for one. */
TEST(a_state_that_has_one_image_takes_that_of_what_is_newest_and_says_so)
{
	struct simdisk *disk;
	struct one o;

	begin_with(&o, re_world(1), "run", 0, 500000);
	CHECK_INT(saved(&o, 1, SHEAF_SAVE_NO_DISK), 0);
	CHECK_INT(o.gone, 0);
	other_state(&o, 3000);
	CHECK_INT(saved(&o, 2, 0), 0);
	CHECK_INT(o.gone, 1);
	disk = leave(&o);
	next_resumes(disk, 2, false);
	re_cols = 700;
	simdisk_free(disk);
}

TEST(what_is_attached_to_a_step_in_memory_comes_back)
{
	struct sheaf_checkpoint *step = NULL;
	struct simdisk *disk;
	struct one o;
	const void *bytes = NULL;
	size_t n = 0;

	begin(&o, 2);
	CHECK_INT(saved_with(&o, 1, 100), 0);
	CHECK_INT(saved_with(&o, 2, 100), 0);
	CHECK_INT(saved_with(&o, 3, 100), 0);
	CHECK_INT(saved_with(&o, 4, 300000), 0); /* a larger card in place of another */
	disk = leave(&o);
	begin_at(&o, disk, "run", 2);
	CHECK_RC(shf_step_open(&step, o.run, SHEAF_LATEST, &o.err), 0, &o.err);
	CHECK_INT(step->number, 4);
	CHECK_RC(shf_step_attached(step, "more.bin", &bytes, &n, &o.err), 0, &o.err);
	CHECK_INT(n, 300000);
	CHECK(((const uint8_t *)bytes)[0] == 4 && ((const uint8_t *)bytes)[n - 1] == 4);
	shf_step_put(step);
	end(&o);
}

/* The card grows, and there is no memory for it, or the agent does not take it. */
TEST(a_card_that_cannot_grow_fails_its_step_and_no_other)
{
	static const enum simdisk_kind kinds[] = { SIMDISK_SHM_NEW, SIMDISK_KEEP };
	static const uint8_t much[300000];

	for (int i = 0; i < 2; i++) {
		struct simdisk *disk;
		struct sheaf_save *save;
		struct one o;

		begin(&o, 2);
		CHECK_INT(saved(&o, 1, SHEAF_SAVE_NO_DISK), 0);
		CHECK_INT(saved(&o, 2, SHEAF_SAVE_NO_DISK), 0);
		save = begun(&o, 3, SHEAF_SAVE_NO_DISK);
		CHECK_INT(shf_save_attach(save, "more.bin", much, sizeof(much), NULL), 0);
		simdisk_fault(o.disk, &(struct simdisk_fault){
			.nth = 1, .error = i ? EPIPE : ENOMEM, .kind = kinds[i] });
		CHECK_INT(committed(&o, save), i ? SHEAF_EFAILED : SHEAF_ENOMEM);
		CHECK_STR(o.err.msg, i ? "step 3: the agent was lost or has no memory left for it "
		          "(sheaf agent --memory-max)"
		                       : "allocating the header of a staging buffer: Cannot "
		                               "allocate memory");
		CHECK_INT(simdisk_fired(o.disk), 1);
		CHECK_INT(o.lost, i);
		disk = leave(&o);
		next_resumes(disk, 2, true);
		simdisk_free(disk);
	}
}

/* It goes between begin and commit, and between steps; another takes its place. */
TEST(without_the_agent_it_was_begun_with_no_step_is_in_memory)
{
	struct simdisk *disk;
	struct sheaf_save *save;
	struct one o;

	begin(&o, 2);
	CHECK_INT(saved(&o, 1, 0), 0);
	CHECK_INT(saved(&o, 2, 0), 0);
	CHECK_INT(saved(&o, 3, SHEAF_SAVE_NO_DISK), 0); /* each image has a card by now */
	save = begun(&o, 4, SHEAF_SAVE_NO_DISK);
	simdisk_kill_agent(o.disk, 0);
	CHECK_INT(committed(&o, save), SHEAF_EFAILED);
	CHECK_STR(o.err.msg, "step 4: the agent was lost or has no memory left for it (sheaf agent "
	          "--memory-max)");
	CHECK_INT(o.lost, 1);
	simdisk_advance(o.disk, 2);
	CHECK_INT(saved(&o, 5, SHEAF_SAVE_NO_DISK), 0);
	simdisk_kill_agent(o.disk, 0);
	resumes(&o, 2, false);          /* asked after it here */
	CHECK_INT(o.lost, 2);
	simdisk_advance(o.disk, 2);
	CHECK_INT(saved(&o, 6, SHEAF_SAVE_NO_DISK), 0);
	disk = leave(&o);
	next_resumes(disk, 6, true);
	simdisk_free(disk);
}

static int names_like(void *arg, const char *name)
{
	*(int *)arg += strcmp(name, "notes of somebody") == 0 ? 100 : 1;
	return 0;
}

static int kept(const struct one *o)
{
	int keep, n = 0;

	CHECK_INT(shf_sys_keep_open(o->sys, "auto/x", "", "", &keep, NULL), 0);
	CHECK_INT(shf_sys_keep_list(o->sys, keep, names_like, &n), 0);
	return n;
}

/* What an earlier job left goes when there is something newer; what is no image stays. */
TEST(names_that_are_no_images_are_left_alone)
{
	struct shf_shm shm = { NULL, 0, -1 };
	struct simdisk *disk;
	struct one o;
	int keep;

	begin(&o, 2);
	CHECK_INT(shf_sys_keep_open(o.sys, "auto/x", "", "", &keep, NULL), 0);
	CHECK_INT(shf_sys_shm_new(o.sys, &shm, 4096, true), 0);
	CHECK_INT(shf_sys_keep_put(o.sys, keep, "notes of somebody", &shm), 0);
	shf_sys_shm_free(o.sys, &shm);
	CHECK_INT(saved(&o, 1, SHEAF_SAVE_NO_DISK), 0);
	CHECK_INT(saved(&o, 2, SHEAF_SAVE_NO_DISK), 0);
	CHECK_INT(kept(&o), 104);
	disk = leave(&o);
	begin_at(&o, disk, "run", 2);
	resumes(&o, 2, true);
	CHECK_INT(saved(&o, 3, SHEAF_SAVE_NO_DISK), 0);
	CHECK_INT(saved(&o, 4, SHEAF_SAVE_NO_DISK), 0);
	CHECK_INT(kept(&o), 104);
	end(&o);
}

/* Also where there was no memory once to look for it. */
TEST(what_an_earlier_job_left_goes_in_the_end)
{
	int failed = 0;

	starved = true;
	for (long nth = 1; starved; nth++) {
		struct simdisk *disk;
		struct sheaf_save *save;
		struct one o;

		begin(&o, 2);
		CHECK_INT(saved(&o, 1, SHEAF_SAVE_NO_DISK), 0);
		CHECK_INT(saved(&o, 2, SHEAF_SAVE_NO_DISK), 0);
		disk = leave(&o);
		begin_at(&o, disk, "run", 2);
		resumes(&o, 2, true);
		save = begun(&o, 3, SHEAF_SAVE_NO_DISK);
		starved = false;
		starve_left = nth;
		failed += committed(&o, save) < 0;
		starve_left = 0;
		CHECK_INT(saved(&o, 4, SHEAF_SAVE_NO_DISK), 0);
		CHECK_INT(saved(&o, 5, SHEAF_SAVE_NO_DISK), 0);
		CHECK_INT(kept(&o), 4);
		disk = leave(&o);
		if (nth % 16 == 0)
			next_resumes(disk, 5, true);
		simdisk_free(disk);
	}
	CHECK(failed > 10);
}

/* ---- what a step in memory follows ---- */

static void beside(int64_t load, int64_t step)
{
	struct sheaf_checkpoint *opened = NULL;
	struct sheaf_save *save = NULL;
	struct simdisk *disk;
	struct one o;
	char want[100];
	int rc;

	begin(&o, 2);
	CHECK_INT(saved(&o, 1, 0), 0);
	CHECK_INT(saved(&o, 3, 0), 0);
	disk = leave(&o);
	simdisk_kill_agent(disk, 0);
	begin_at(&o, disk, "run", 2);
	if (load > 0) {
		CHECK_RC(shf_step_open(&opened, o.run, load, &o.err), 0, &o.err);
		CHECK_RC(shf_step_load(opened, o.state, SHEAF_LOAD_STRICT, NULL, &o.err), 0,
		         &o.err);
		shf_step_put(opened);
	}
	save = begun(&o, step, SHEAF_SAVE_NO_DISK);
	rc = committed(&o, save);
	CHECK_RC(rc, SHEAF_EFAILED, &o.err);
	snprintf(want, sizeof(want), "step %d in memory would not follow step 3 in run; call "
	         "sheaf_run_rewind to save after an older step", (int)step);
	CHECK_STR(o.err.msg, want);
	disk = leave(&o);
	next_resumes(disk, 3, false);
	simdisk_free(disk);
}

TEST(a_step_in_memory_beside_one_on_disk_needs_a_rewind)
{
	beside(1, 4);
	beside(0, 3);
	beside(0, 2);
}

/* 3 goes to disk before 2, which was begun first, has come to memory. */
TEST(a_step_that_comes_to_memory_behind_a_newer_one_on_disk_is_refused)
{
	struct sheaf_save *two, *three;
	struct simdisk *disk;
	struct one o;

	begin(&o, 4);
	CHECK_INT(saved(&o, 1, 0), 0);
	two = begun(&o, 2, SHEAF_SAVE_NO_DISK);
	three = begun(&o, 3, 0);
	CHECK_RC(committed(&o, three), 0, &o.err);
	CHECK_RC(committed(&o, two), SHEAF_EFAILED, &o.err);
	CHECK(strstr(o.err.msg, "step 2 is not newer than step 3 on disk; call sheaf_run_rewind to "
	             "save after an older step") != NULL);
	disk = leave(&o);
	next_resumes(disk, 3, true);
	simdisk_free(disk);
}

/* The agent comes while 2 is being published behind: what then comes to memory follows 2. */
TEST(an_agent_that_comes_while_a_step_is_published_has_what_follows_it)
{
	struct sheaf_save *two;
	struct simdisk *disk;
	struct one o;

	begin(&o, 4);
	CHECK_INT(saved(&o, 1, 0), 0);
	disk = leave(&o);
	simdisk_kill_agent(disk, 0);
	simdisk_set_agents(disk, 0);
	simdisk_set_task_steps(disk, 0);
	begin_at(&o, disk, "run", 4);
	resumes(&o, 1, false);
	two = begun(&o, 2, 0);
	for (int i = 0; i < 3; i++)
		CHECK_RC(shf_save_commit(two, 0, &o.err), SHEAF_EAGAIN, &o.err);
	CHECK(shf_save_publish_current(o.run) == two);
	simdisk_set_agents(disk, UINT64_C(1) << 30);
	simdisk_advance(disk, 99);
	CHECK_RC(saved(&o, 3, SHEAF_SAVE_NO_DISK), 0, &o.err);
	CHECK_RC(committed(&o, two), 0, &o.err);
	disk = leave(&o);
	next_resumes(disk, 3, true);
	simdisk_free(disk);
}

TEST(a_rewind_to_what_is_newest_in_memory_too_loses_nothing)
{
	struct simdisk *disk;
	struct one o;

	begin(&o, 3);
	CHECK_RC(shf_run_rewind(o.run, 0, &o.err), SHEAF_ENOENT, &o.err);
	CHECK_INT(saved(&o, 1, 0), 0);
	CHECK_INT(saved(&o, 2, 0), 0);
	CHECK_RC(shf_run_rewind(o.run, 2, &o.err), 0, &o.err);
	CHECK_INT(saved(&o, 3, SHEAF_SAVE_NO_DISK), 0);
	disk = leave(&o);
	next_resumes(disk, 3, true);
	simdisk_free(disk);
}

TEST(a_step_in_the_memory_of_one_node_is_verified_there)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	struct simdisk *disk;
	struct one o;

	begin(&o, 2);
	CHECK_INT(saved(&o, 1, SHEAF_SAVE_NO_DISK), 0);
	disk = leave(&o);
	begin_at(&o, disk, "run", 2);
	CHECK_RC(shf_step_open(&step, o.run, SHEAF_LATEST, &o.err), 0, &o.err);
	CHECK_RC(shf_step_verify(step, &report, &o.err), 0, &o.err);
	CHECK_INT(report.findings, 0);
	CHECK_INT(report.loaded, RE_TENSORS);
	shf_step_put(step);
	end(&o);
}

/* ---- which of them is taken ---- */

static void opens(struct one *o, int64_t n, int rc, bool memory)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;

	CHECK_RC(shf_step_open(&step, o->run, n, &o->err), rc, &o->err);
	if (rc == 0) {
		CHECK(n == SHEAF_LATEST || step->number == n);
		CHECK_RC(shf_step_load(step, o->state, SHEAF_LOAD_STRICT, &report, &o->err), 0,
		         &o->err);
		CHECK((report.memory_bytes > 0) == memory);
	}
	shf_step_put(step);
}

TEST(a_step_that_is_asked_for_by_its_number_is_that_one_wherever_it_is)
{
	struct simdisk *disk;
	struct one o;

	begin(&o, 2);
	CHECK_INT(saved(&o, 1, 0), 0);
	CHECK_INT(saved(&o, 2, SHEAF_SAVE_NO_DISK), 0);
	CHECK_INT(saved(&o, 3, SHEAF_SAVE_NO_DISK), 0);
	disk = leave(&o);
	begin_at(&o, disk, "run", 2);
	opens(&o, 9, SHEAF_ENOENT, false);
	opens(&o, 2, 0, true);
	opens(&o, 1, 0, false);         /* its image has step 3 now */
	opens(&o, 3, 0, true);
	end(&o);
}

/* The same number was saved again by a job that had no agent. */
TEST(of_two_saves_of_a_number_the_disks_is_taken)
{
	struct simdisk *disk;
	struct one o;

	begin(&o, 2);
	CHECK_INT(saved(&o, 1, 0), 0);
	CHECK_INT(saved(&o, 2, 0), 0);
	disk = leave(&o);
	CHECK_INT(simdisk_remove(disk, "run/checkpoint-2"), 0);
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = ENOENT, .always = true,
	                                             .kind = SIMDISK_KEEP });
	begin_at(&o, disk, "run", 2);
	CHECK_INT(saved(&o, 2, 0), 0);
	disk = leave(&o);
	simdisk_faults_clear(disk);
	begin_at(&o, disk, "run", 2);
	opens(&o, SHEAF_LATEST, 0, false);
	opens(&o, 2, 0, false);
	end(&o);
}

static void damage(struct simdisk *disk, int64_t step)
{
	char path[80];

	snprintf(path, sizeof(path), "run/checkpoint-%d/model-00001-of-00001.safetensors",
	         (int)step);
	CHECK_INT(simdisk_flip(disk, path, 8 * 5000), 0);
}

/* The newest step lies in memory, whole, and on disk, damaged: it dominates nothing. */
TEST(a_prune_proves_what_lies_on_disk_and_not_what_memory_has_of_it)
{
	struct shf_opts opts = { .agent = "auto", .keep_last = 1,
		.io_threads = 1 };
	int64_t steps[4];
	struct simdisk *disk;
	struct one o;

	begin(&o, 2);
	CHECK_INT(saved(&o, 1, 0), 0);
	CHECK_INT(saved(&o, 2, 0), 0);
	disk = leave(&o);
	damage(disk, 2);
	o.sys = simdisk_process(disk, 60000, 0);
	CHECK_RC(shf_run_open(&o.run, "run", NULL, &opts, o.sys, &o.err), 0, &o.err);
	CHECK_INT(shf_run_prune(o.run, false, NULL, NULL, &o.err), SHEAF_ECORRUPT);
	CHECK_INT(sheaf_run_steps(o.run, steps, 4, &o.err), 2);
	shf_run_close(o.run);
	simdisk_kill(disk, o.sys);
	simdisk_free(disk);
}

/* ---- which step a load from memory goes on from ---- */

static void begin_pruning(struct one *o)
{
	begin_as(o, re_world(1), "run", &(struct shf_opts){ .flags = SHEAF_RUN_CREATE,
		.agent = "auto", .images_max = 2, .keep_last = 1 });
}

static struct sheaf_checkpoint *opened(struct one *o, int64_t n)
{
	struct sheaf_checkpoint *step = NULL;

	CHECK_RC(shf_step_open(&step, o->run, n, &o->err), 0, &o->err);
	return step;
}

static void loads(struct one *o, struct sheaf_checkpoint *step)
{
	CHECK_RC(shf_step_load(step, o->state, SHEAF_LOAD_STRICT, NULL, &o->err), 0, &o->err);
	shf_step_put(step);
}

TEST(a_prune_leaves_the_step_that_was_loaded_last_and_no_earlier_one)
{
	struct sheaf_save *two, *three;
	int64_t steps[4];
	struct one o;

	begin_pruning(&o);
	two = begun(&o, 2, 0);
	three = begun(&o, 3, 0);
	CHECK_INT(committed(&o, two), 0);
	CHECK_INT(committed(&o, three), 0);
	loads(&o, opened(&o, 2));
	loads(&o, opened(&o, SHEAF_LATEST));
	CHECK_INT(shf_run_prune(o.run, false, NULL, NULL, &o.err), 1);
	CHECK_INT(sheaf_run_steps(o.run, steps, 4, &o.err), 1);
	CHECK_INT(steps[0], 3);
	end(&o);
}

TEST(a_prune_leaves_an_older_step_that_was_loaded_from_memory)
{
	struct sheaf_save *four, *refused = NULL;
	struct sheaf_checkpoint *two;
	int64_t steps[4];
	struct one o;

	begin_pruning(&o);
	CHECK_INT(saved(&o, 2, 0), 0);
	four = begun(&o, 4, 0);
	two = opened(&o, SHEAF_LATEST);
	CHECK(two->number == 2 && two->run->lineage.memory_of);
	CHECK_INT(committed(&o, four), 0);
	loads(&o, two);
	CHECK_INT(shf_run_prune(o.run, false, NULL, NULL, &o.err), 0);
	CHECK_INT(sheaf_run_steps(o.run, steps, 4, &o.err), 2);
	CHECK_INT(shf_save_begin(&refused, o.run, 5, o.state, NULL, &o.err), SHEAF_EINVAL);
	CHECK(strstr(o.err.msg, "step 2 was loaded, but run has later steps up to 4") != NULL);
	end(&o);
}

TEST(a_step_that_came_to_disk_since_it_was_opened_is_gone_on_from)
{
	struct sheaf_save *two, *four;
	struct sheaf_checkpoint *step;
	struct one o;

	begin(&o, 2);
	two = begun(&o, 2, 0);
	four = begun(&o, 4, 0);
	CHECK_INT(committed(&o, two), 0);
	CHECK_INT(shf_save_commit(four, 0, &o.err), SHEAF_EAGAIN);
	step = opened(&o, SHEAF_LATEST);
	CHECK(step->number == 4 && step->run->lineage.memory_of);
	CHECK_INT(committed(&o, four), 0);
	loads(&o, step);
	CHECK_INT(saved(&o, 8, 0), 0);
	end(&o);
}

/* ---- which directory an agent is of ---- */

/* Step 1 is on disk, 2 in memory. */
static struct simdisk *one_and_two(const char *agent)
{
	struct one o;

	begin_as(&o, re_world(1), "run", &(struct shf_opts){ .flags = SHEAF_RUN_CREATE,
		.agent = agent, .images_max = 2 });
	CHECK_INT(saved(&o, 1, 0), 0);
	CHECK_INT(saved(&o, 2, SHEAF_SAVE_NO_DISK), 0);
	return leave(&o);
}

static void identity_of(struct simdisk *disk, const char *path, char out[SHF_IDENTITY])
{
	const struct shf_sys *sys = simdisk_process(disk, 49999, 0);
	struct shf_store store;
	struct sheaf_error err;

	CHECK_RC(shf_store_open(&store, sys, path, &err), 0, &err);
	CHECK_RC(shf_store_identity(&store, out, &err), 0, &err);
	shf_store_close(&store);
	simdisk_kill(disk, sys);
}

TEST(a_copy_of_a_run_has_an_agent_of_its_own)
{
	struct simdisk *disk = one_and_two("auto");
	char run[SHF_IDENTITY], copy[SHF_IDENTITY];
	struct one o;

	CHECK_INT(simdisk_copy(disk, "run", "copy"), 0);
	identity_of(disk, "run", run);
	identity_of(disk, "copy", copy);
	CHECK(strncmp(run, copy, 33) == 0 && strcmp(run, copy) != 0);
	begin_at(&o, disk, "copy", 2);
	resumes(&o, 1, false);
	CHECK_INT(saved(&o, 3, SHEAF_SAVE_NO_DISK), 0);
	CHECK_INT(saved(&o, 4, 0), 0);
	(void)leave(&o);
	CHECK_INT(simdisk_agents(disk, 0), 2);
	CHECK_INT(simdisk_kept_by(disk, 0, run), 4);
	CHECK_INT(simdisk_kept_by(disk, 0, copy), 4);
	next_resumes(disk, 2, true);
	next_at_resumes(disk, "copy", 4, true);
	simdisk_kill_agent_of(disk, 0, copy);
	next_resumes(disk, 2, true);
	next_at_resumes(disk, "copy", 4, false);
	simdisk_free(disk);
}

/* By the copy of a step, which takes the run's identity with it. */
TEST(a_run_that_a_step_was_copied_into_has_an_agent_of_its_own)
{
	struct simdisk *disk = one_and_two("auto");
	struct sheaf_checkpoint *step = NULL;
	struct one o;

	begin_at(&o, disk, "run", 2);
	CHECK_RC(shf_step_open(&step, o.run, 1, &o.err), 0, &o.err);
	CHECK_RC(shf_step_copy(step, "copy", NULL, &o.err), 0, &o.err);
	shf_step_put(step);
	(void)leave(&o);
	next_at_resumes(disk, "copy", 1, false);
	next_resumes(disk, 2, true);
	simdisk_free(disk);
}

TEST(a_run_that_was_renamed_finds_its_agent)
{
	struct simdisk *disk = one_and_two("auto");
	const struct shf_sys *sys = simdisk_process(disk, 7, 0);

	CHECK_INT(shf_sys_rename(sys, SHF_CWD, "run", SHF_CWD, "moved", true), 0);
	CHECK_INT(simdisk_copy(disk, "moved", "run"), 0);
	simdisk_kill(disk, sys);
	next_at_resumes(disk, "moved", 2, true);
	next_resumes(disk, 1, false);   /* a copy lies there now */
	next_at_resumes(disk, "moved", 2, true);
	simdisk_free(disk);
}

/* Device numbers change. Where the file system has no number of its own either, the run is not
 * known again, and nothing wrong is loaded. */
TEST(a_run_that_was_mounted_again_finds_its_agent)
{
	for (int drawn = 0; drawn < 2; drawn++) {
		struct simdisk *disk = one_and_two("auto");

		simdisk_remount(disk);
		next_resumes(disk, 2, true);
		simdisk_set_fs_drawn(disk, drawn);
		simdisk_remount(disk);
		next_resumes(disk, drawn ? 1 : 2, !drawn);
		simdisk_free(disk);
	}
}

TEST(a_reader_of_a_read_only_mount_finds_the_agent)
{
	struct simdisk *disk = one_and_two("auto");
	struct one o;

	simdisk_set_read_only(disk, true);
	begin_as(&o, disk, "run",
	         &(struct shf_opts){ .flags = SHEAF_RUN_READONLY, .agent = "auto" });
	resumes(&o, 2, true);
	end(&o);
}

/* The copy is given the socket of the first one's agent. */
TEST(an_agent_of_another_directory_is_done_without_and_said_once)
{
	struct simdisk *disk = one_and_two("/tmp/a.sock");
	struct sheaf_save_opts memory = { .size = sizeof(memory), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;
	struct one o;

	CHECK_INT(simdisk_copy(disk, "run", "copy"), 0);
	begin_as(&o, disk, "copy", &(struct shf_opts){ .agent = "/tmp/a.sock", .images_max = 2 });
	CHECK_INT(o.others, 1);
	resumes(&o, 1, false);
	for (int64_t step = 3; step < 8; step++) {
		simdisk_advance(disk, 100);
		CHECK_RC(shf_save_begin(&save, o.run, step, o.state, &memory, &o.err), SHEAF_EAGAIN,
		         &o.err);
	}
	CHECK_INT(saved(&o, 8, 0), 0);
	CHECK_INT(o.others, 1);
	(void)leave(&o);
	begin_as(&o, disk, "run", &(struct shf_opts){ .agent = "/tmp/a.sock", .images_max = 2 });
	CHECK_INT(o.others, 0);
	resumes(&o, 2, true);
	end(&o);
}

/* If the identity of the directory cannot be found out the job goes on without an agent. */
TEST(a_run_whose_directory_cannot_be_told_does_without_an_agent)
{
	struct simdisk *disk = one_and_two("auto");
	struct one o;

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = EIO, .always = true,
		.kind = SIMDISK_FSTAT, .name = ".sheaf" });
	begin_at(&o, disk, "run", 2);
	resumes(&o, 1, false);
	CHECK(simdisk_fired(disk) > 0);
	simdisk_faults_clear(disk);
	simdisk_advance(disk, 100);
	resumes(&o, 2, true);
	end(&o);
}
