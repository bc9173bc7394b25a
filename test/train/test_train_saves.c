/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that ask a training for checkpoints, on ranks that are threads of this process. Rank 0
 * writes an event at a known place of each step, and at this moment the tests set what a handler of
 * any rank would set. */
#include "t.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "rmtree.h"
#include "trainloop.h"
#include "trainthreads.h"
#include "traintold.h"

/* What happens when rank 0 has written the event of step `at`. By then the ranks have agreed on the
 * saves of this step, so signals count in the next one. */
static struct {
	int at;                         /* 0: never */
	int rank;                       /* whose signals are set */
	int save;
	int64_t stop_ns;                /* as in struct tr_signals */
	int disk_hangs;                 /* from then on no fsync returns before an event "error" */
} plan;
static struct tr_signals signals[RANKS_MAX];

static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t disk_works = PTHREAD_COND_INITIALIZER;
static int hangs;                       /* guarded by disk */
static _Atomic int fsync_ms;            /* how long an fsync takes, below 1000 */

static void let_disk_hang(int how)
{
	pthread_mutex_lock(&disk);
	hangs = how;
	pthread_cond_broadcast(&disk_works);
	pthread_mutex_unlock(&disk);
}

static void event_written(const char *line)
{
	char step[60];

	snprintf(step, sizeof(step), "\"event\":\"step\",\"step\":%d,", plan.at);
	if (strstr(line, step)) {
		signals[plan.rank].save = plan.save;
		signals[plan.rank].stop_ns = plan.stop_ns;
		let_disk_hang(plan.disk_hangs);
	}
	if (strstr(line, "\"event\":\"error\"") || strstr(line, "\"event\":\"end\""))
		let_disk_hang(0);
}

T_REPLACES int fsync(int fd)
{
	pthread_mutex_lock(&disk);
	while (hangs)
		pthread_cond_wait(&disk_works, &disk);
	pthread_mutex_unlock(&disk);
	nanosleep(&(struct timespec){ .tv_nsec = fsync_ms * 1000000L }, NULL);
	return (int)syscall(SYS_fsync, fd);
}

/* Trains on n threads with the signals of the plan. Returns what all ranks return. */
static int train_signalled(int n, const char *run, const char *steps, const char *flags,
			   struct rank *rank)
{
	int rc;

	memset(signals, 0, sizeof(signals));
	signals_of_ranks = signals;
	begin_to_listen(event_written);
	rc = train_with(n, run, steps, flags, flags, 0, rank);
	signals_of_ranks = NULL;
	rank_0_tells = 0;
	return rc;
}

static const struct {
	int ranks;
	const char *flags;
} layouts[] = { { 1, "" }, { 2, "" }, { 4, "mesh: {tp: 2, pp: 2}" },
		{ 3, "zero: 1\nzero-form: flat\noverlap: true" }, { 2, "offload: whole" } };
enum { LAYOUTS_OF_SIGNALS = sizeof(layouts) / sizeof(layouts[0]) };

/* Trains 5 steps in each layout, with a signal after step 2 to some of the ranks, one at a time.
 * The last checkpoint must have the tensors of a training without signals.
 * save      1: the signal asks for a save; 0: to save and stop
 * finishes  checks the events, and makes the steps that are left */
static void signal_layouts(int save, void (*finishes)(int layout_i, int r))
{
	struct rank rank[RANKS_MAX];

	prepare();
	train_on(1, "whole/plain", "5", "");
	for (int i = 0; i < LAYOUTS_OF_SIGNALS; i++) {
		for (int r = i % 2; r < layouts[i].ranks; r += 3) {
			plan.at = 2;
			plan.rank = r;
			plan.save = save;
			plan.stop_ns = save ? 0 : tr_clock_ns();
			CHECK_RC(train_signalled(layouts[i].ranks, "whole/run", "5",
						 layouts[i].flags, rank), 0, &rank[0].err);
			CHECK_INT(count("\"event\":\"saved\",\"step\":3,"), 1);
			finishes(i, r);
			same_tensors("whole/plain/checkpoint-5", "whole/run/checkpoint-5");
			rmtree("whole/run");
		}
	}
	rmtree("whole");
}

static void has_saved_and_gone_on(int layout_i, int r)
{
	(void)layout_i;
	CHECK_INT(count("\"event\":\"saved\""), 2);
	CHECK_INT(count("\"event\":\"end\",\"reason\":\"steps\",\"step\":5"), 1);
	CHECK(!signals[r].save && signals[r].ended);
}

TEST(whichever_rank_gets_a_signal_to_save_all_save_the_next_step_and_go_on)
{
	signal_layouts(1, has_saved_and_gone_on);
}

static void has_stopped(int layout_i, int r)
{
	(void)r;
	CHECK_INT(count("\"event\":\"end\",\"reason\":\"signal\",\"step\":3"), 1);
	CHECK_INT(count("\"event\":\"step\""), 3);
	plan.stop_ns = 0;
	train_on(layouts[layout_i].ranks, "whole/run", "5", layouts[layout_i].flags);
}

TEST(whichever_rank_gets_a_signal_to_stop_all_save_the_next_step_and_end)
{
	signal_layouts(0, has_stopped);
}

/* A signal comes when an evaluation of several rounds begins. */
TEST(an_evaluation_ends_early_at_a_signal_and_its_step_is_saved)
{
	static const char *const more[] = { "", "eval-ema: true" };
	struct rank rank[RANKS_MAX];
	char flags[200];

	prepare_with_long_eval();
	train_on(1, "whole/plain", "4", "save-every: 2");
	for (int i = 0; i < 2 * LAYOUTS_OF_SIGNALS; i++) {
		const int n = layouts[i / 2].ranks, stops = i % 2;

		memset(&plan, 0, sizeof(plan));
		plan.at = 2;
		plan.rank = n - 1;
		plan.save = !stops;
		plan.stop_ns = stops ? tr_clock_ns() : 0;
		snprintf(flags, sizeof(flags), "%s\nmicro-batch: 1\neval-data: whole/eval\n"
			 "eval-every: 1\n%s", layouts[i / 2].flags, more[i / 2 % 2]);
		CHECK_RC(train_signalled(n, "whole/run", "4", flags, rank), 0, &rank[0].err);
		CHECK_INT(count("\"event\":\"eval\",\"step\":2,"), !stops);
		CHECK_INT(count("\"event\":\"step\""), stops ? 2 : 4);
		CHECK_INT(count("\"event\":\"end\""), 1);
		/* The save begins before the evaluation that is told. */
		if (!stops)
			CHECK_INT(count("\"event\":\"saved\",\"step\":2,"), 1);
		same_tensors("whole/plain/checkpoint-2", "whole/run/checkpoint-2");
		if (!stops)
			same_tensors("whole/plain/checkpoint-4", "whole/run/checkpoint-4");
		rmtree("whole/run");
	}
	memset(&plan, 0, sizeof(plan));
	rmtree("whole");
}

/* A signal before the first step, as a scheduler may send it to a job that is still loading. */
TEST(a_training_that_is_stopped_before_its_first_step_ends_without_one)
{
	struct rank rank[RANKS_MAX];

	prepare();
	plan.at = 0;
	signals[1].stop_ns = tr_clock_ns();
	signals_of_ranks = signals;
	CHECK_RC(train_with(2, "whole/run", "5", "", "", 0, rank), 0, &rank[0].err);
	signals_of_ranks = NULL;
	CHECK(signals[0].ended && access("whole/run/checkpoint-5", F_OK) < 0);
	memset(signals, 0, sizeof(signals));
	rmtree("whole");
}

/* The disk answers no fsync any more, so neither the save in flight nor the last one can be
 * committed. With stop-seconds 1 that ends in time. */
TEST(a_training_that_cannot_be_saved_in_time_says_so_and_its_earlier_checkpoint_is_there)
{
	struct rank rank[RANKS_MAX];

	prepare();
	plan.at = 5;
	plan.rank = 1;
	plan.save = 0;
	plan.stop_ns = tr_clock_ns();
	plan.disk_hangs = 1;
	CHECK_RC(train_signalled(2, "whole/run", "9", "{save-every: 2, stop-seconds: 1}", rank),
		 TR_EAGAIN, &rank[0].err);
	CHECK(strstr(rank[1].err.msg, "step 6 could not be saved within stop-seconds 1 (") != NULL);
	CHECK(strstr(rank[1].err.msg, "the newest checkpoint is that of step ") != NULL);
	CHECK_INT(count("\"event\":\"error\",\"code\":\"EAGAIN\""), 1);
	CHECK_INT(count("\"event\":\"end\""), 0);
	CHECK(!signals[0].ended && access("whole/run/checkpoint-2", F_OK) == 0);
	memset(&plan, 0, sizeof(plan));
	train_on(2, "whole/run", "7", "");
	CHECK_INT(access("whole/run/checkpoint-7", F_OK), 0);
	rmtree("whole");
}

/* Each fsync takes much longer than ranks wait for each other. */
TEST(the_last_step_is_saved_however_long_it_takes)
{
	struct rank rank[RANKS_MAX];

	prepare();
	train_on(1, "whole/plain", "3", "");
	hub_timeout_ms = 20;
	fsync_ms = 300;
	CHECK_RC(train_with(1, "whole/run", "3", "{save-every: 2, stop-seconds: 1}", "", 0, rank),
		 0, &rank[0].err);
	hub_timeout_ms = 20000;
	fsync_ms = 0;
	same_tensors("whole/plain/checkpoint-3", "whole/run/checkpoint-3");
	rmtree("whole");
}

/* ---- checkpoints in memory ---- */

/* Loses a rank of a training that saves to memory only. Returns the last step of which an event
 * says that it was saved. */
static int lose_a_rank(int nth, const char *flags)
{
	struct rank rank[RANKS_MAX];

	begin_to_listen(NULL);
	CHECK_RC(train_with(3, "whole/run", "9", flags, flags, nth, rank), TR_ELOST, &rank[0].err);
	rank_0_tells = 0;
	CHECK_INT(access("whole/run/checkpoint-1", F_OK), -1);
	return last_step("\"event\":\"saved\",\"step\":", ",\"to\":\"memory\"");
}

/* The next job, in another layout, begins with the newest step in memory. If it has no step to
 * make, it saves this one to the disk. */
TEST(after_a_rank_was_lost_training_goes_on_from_memory_as_if_nothing_had_been)
{
	struct rank rank[RANKS_MAX];
	struct agent agent;
	int resumed = 0;

	prepare();
	train_on(1, "whole/plain", "9", "");
	for (int nth = 250 + t_from(T_STRIDE); nth < 400; nth += 7 * T_STRIDE) {
		char steps[12], path[60];
		int saved, begun;

		start_agent(&agent, "whole/run");
		saved = lose_a_rank(nth, "{zero: 1, save-memory-every: 1}");
		snprintf(steps, sizeof(steps), "%d", saved ? saved : 1);
		CHECK_RC(train_signalled(2, "whole/run", steps, "mesh: {tp: 2}", rank), 0,
			 &rank[0].err);
		begun = first_step();
		CHECK(begun == saved || begun == saved + 1);
		resumed += begun > 1;
		snprintf(path, sizeof(path), "whole/run/checkpoint-%d", begun ? begun : 1);
		CHECK_INT(access(path, F_OK), 0);
		train_on(4, "whole/run", "9", "{mesh: {dp: 2, pp: 2}, save-memory-every: 1}");
		same_tensors("whole/plain/checkpoint-9", "whole/run/checkpoint-9");
		stop_agent(&agent);
		rmtree("whole/run");
	}
	CHECK(resumed > 0);
	rmtree("whole");
}

/* The run has no checkpoint on disk, so nothing can be set aside. */
TEST(a_step_in_memory_is_resumed_by_its_number_with_and_without_rewind)
{
	static const char *const more[] = { "", "rewind: true, " };
	struct rank rank[RANKS_MAX];
	struct agent agent;

	prepare();
	for (int i = 0; i < 2; i++) {
		char steps[12], flags[100];
		int saved;

		start_agent(&agent, "whole/run");
		saved = lose_a_rank(390, "{zero: 1, save-memory-every: 1}");
		CHECK(saved > 0);
		snprintf(steps, sizeof(steps), "%d", saved + 1);
		snprintf(flags, sizeof(flags), "{%sresume: whole/run@%d}", more[i], saved);
		CHECK_RC(train_signalled(2, "whole/run", steps, flags, rank), 0, &rank[0].err);
		CHECK_INT(first_step(), saved);
		stop_agent(&agent);
		rmtree("whole/run");
	}
	rmtree("whole");
}

/* The next job has no step to make, and no data for an evaluation. */
TEST(a_step_in_memory_has_its_loss_also_when_it_is_saved_to_the_disk)
{
	static char text[1 << 16];
	struct rank rank[RANKS_MAX];
	struct agent agent;
	char steps[12], path[80];
	int saved;
	size_t n;

	prepare_with_eval();
	start_agent(&agent, "whole/run");
	saved = lose_a_rank(390, "{zero: 1, save-memory-every: 1, eval-every: 1, "
			    "eval-data: whole/eval}");
	CHECK(saved > 0);
	snprintf(steps, sizeof(steps), "%d", saved);
	CHECK_RC(train_signalled(2, "whole/run", steps, "", rank), 0, &rank[0].err);
	stop_agent(&agent);
	snprintf(path, sizeof(path), "whole/run/checkpoint-%d/sheaf.json", saved);
	n = read_whole(path, text, sizeof(text) - 1);
	CHECK(n > 0);
	text[n] = 0;
	CHECK(strstr(text, "\"eval.loss\"") != NULL);
	rmtree("whole");
}

TEST(without_an_agent_training_goes_on_and_says_so_once)
{
	struct rank rank[RANKS_MAX];

	prepare();
	CHECK_RC(train_signalled(2, "whole/run", "4", "save-memory-every: 1", rank), 0,
		 &rank[0].err);
	CHECK_INT(count("\"event\":\"error\",\"code\":\"EAGAIN\""), 1);
	CHECK_INT(count("\"event\":\"saved\""), 1);
	CHECK_INT(access("whole/run/checkpoint-4", F_OK), 0);
	rmtree("whole");
}

/* The clock runs so many seconds ahead: the library looks for an agent once a second. */
static _Atomic int clock_ahead_s;

T_REPLACES int clock_gettime(clockid_t id, struct timespec *t)
{
	int rc = (int)syscall(SYS_clock_gettime, id, t);

	t->tv_sec += clock_ahead_s;
	return rc;
}

/* An agent comes after step 4, and goes when two steps have been saved to it. */
static struct agent comes_and_goes;
static int saved_to_it;

static void start_and_stop(const char *line)
{
	if (strstr(line, "\"event\":\"step\",\"step\":4,")) {
		start_agent(&comes_and_goes, "whole/run");
		clock_ahead_s = 2;
	}
	if (strstr(line, "\"to\":\"memory\"") && ++saved_to_it == 2)
		stop_agent(&comes_and_goes);
}

TEST(an_agent_that_is_lost_again_is_reported_again)
{
	struct rank rank[RANKS_MAX];

	prepare();
	begin_to_listen(start_and_stop);
	CHECK_RC(train_with(2, "whole/run", "12", "save-memory-every: 1", "save-memory-every: 1", 0,
			    rank), 0, &rank[0].err);
	rank_0_tells = 0;
	clock_ahead_s = 0;
	CHECK_INT(saved_to_it, 2);
	CHECK_INT(count("\"event\":\"error\",\"code\":\"EAGAIN\""), 2);
	rmtree("whole");
}

/* ---- all of them together ---- */

/* Sets the options and the signal of a mix. Returns whether it saves to memory. */
static int draw_mix(int mix, char *flags, size_t n)
{
	const unsigned x = (unsigned)mix * 2654435761u >> 8;
	int in_place = strstr(layout[mix % LAYOUTS].flags, "offload") != NULL;
	unsigned memory = in_place ? 0 : x / 512 % 3;

	snprintf(flags, n, "%s\neval-data: whole/eval\neval-every: %u\nsave-every: %u\n"
		 "keep-last: %u\nsave-memory-every: %u\n", layout[mix % LAYOUTS].flags,
		 mix ? x % 4 : 1, x / 4 % 4, x / 16 % 3, memory);
	if (!strstr(flags, "micro-batch"))
		snprintf(flags + strlen(flags), n - strlen(flags), "micro-batch: %u\n",
			 1 + x / 64 % 5);
	memset(&plan, 0, sizeof(plan));
	plan.at = (int)(x / 2048 % 5);
	plan.rank = (int)(x / 16384 % (unsigned)layout[mix % LAYOUTS].ranks);
	plan.save = 1;
	return memory > 0;
}

/* The first mix evaluates at every step. */
TEST(evaluations_saves_and_signals_change_no_weight_however_often_they_are)
{
	struct agent agent;

	prepare_with_eval();
	train_layout(0, "whole/plain", "5", "");
	for (int mix = 0; mix < 30; mix += mix ? T_STRIDE : 1 + t_from(T_STRIDE)) {
		struct rank rank[RANKS_MAX];
		char flags[350], run[40];
		int in_memory = draw_mix(mix, flags, sizeof(flags));

		snprintf(run, sizeof(run), "whole/run%d", mix);
		if (in_memory)
			start_agent(&agent, run);
		CHECK_RC(train_signalled(layout[mix % LAYOUTS].ranks, run, "5", flags, rank), 0,
			 &rank[0].err);
		CHECK_INT(count("\"event\":\"error\""), 0);
		if (in_memory)
			stop_agent(&agent);
		strcat(run, "/checkpoint-5");
		same_tensors("whole/plain/checkpoint-5", run);
	}
	rmtree("whole");
}
