/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-train: the command. */
#include <errno.h>
#include <inttypes.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "configread.h"
#include "dataprep.h"
#include "ranks_mpi.h"
#include "trainloop.h"
#include "trainplan.h"
#include "trainplot.h"
#include "trainsetup.h"
#include "trainstart.h"
#include "trainreport.h"

enum { EXIT_NO = 1, EXIT_TROUBLE = 2, JOBS_MAX = 256, TELL_MS_MAX = 60000,
       FIRST_S = 2, AGAIN_NS = 1000000000 };

struct command {
	struct tr_opts opts;
	int json, print_config, evaluates;
	const char *events;
};

static void usage(FILE *to)
{
	fputs("usage: mpirun -n RANKS sheaf-train run CONFIG [--KEY VALUE ...] [--json] "
	      "[--events FILE]\n"
	      "       sheaf-train run CONFIG [--KEY VALUE ...] --print-config\n"
	      "       mpirun -n RANKS sheaf-train eval CONFIG [--KEY VALUE ...] [--json] "
	      "[--events FILE]\n"
	      "       sheaf-train plan CONFIG [--KEY VALUE ...] [--json]\n"
	      "       sheaf-train plot RUN... [-o FILE]\n"
	      "       sheaf-train data IN... -o FILE [-j N] [--tokenizer bytes]\n"
	      "       sheaf-train help | --version\n", to);
}

static void help(FILE *to)
{
	usage(to);
	fputs("\n"
	      "`run` trains a Qwen2 or Llama model. CONFIG is YAML, a line `KEY: VALUE` for each\n"
	      "option. A value on the command line overrides that of the file, which overrides\n"
	      "the default, or, if the option changes what is computed, that of the checkpoint\n"
	      "that is resumed. `eval` computes the loss of eval-data with the checkpoint that\n"
	      "resume finds, and saves nothing. `plan` prints the memory that each rank of the\n"
	      "mesh would need, and needs no mpirun. `plot` draws runs from their events:\n"
	      "directories, or files of events, as an SVG to stdout or FILE.\n"
	      "`data` makes a token file from text or JSONL, with a token for each byte, on N\n"
	      "threads.\n"
	      "\n"
	      "  --json          write events, or the plan, to stdout, a line of JSON each\n"
	      "  --events FILE   append events to FILE, and not to events.jsonl in the run\n"
	      "  --print-config  print the options as YAML, with those of the checkpoint that\n"
	      "                  would be resumed, and exit\n"
	      "\n"
	      "KEYs:\n", to);
	tr_opts_help(to);
	fputs("\nSIGUSR1 saves and goes on; SIGUSR2, SIGTERM, SIGHUP and SIGINT save and stop,\n"
	      "and a second SIGINT ends the program at once.\n"
	      "Exit status: 0 finished, or saved and stopped; 1 the loss is not a number, or a\n"
	      "checkpoint, the data or the model is damaged or has another layout or format;\n"
	      "2 another error.\n", to);
}

static int exit_status(int rc)
{
	switch (rc) {
	case 0:
		return 0;
	case TR_ENAN:
	case TR_ECORRUPT:
	case TR_EDIVERGED:
	case TR_ELAYOUT:
	case TR_EFORMAT:
		return EXIT_NO;
	default:
		return EXIT_TROUBLE;
	}
}

static int complain(const struct tr_error *err)
{
	fprintf(stderr, "sheaf-train: %s\n", err->msg);
	return exit_status(err->code);
}

/* ---- signals ---- */

/* A process has one handler for each signal, so what the handlers need is global. */
static struct tr_signals signals;
static volatile sig_atomic_t stop_seconds;
static const struct tr_events *volatile told_to;        /* NULL: events are not open */

static void on_save(int sig)
{
	(void)sig;
	signals.save = 1;
}

static void on_stop(int sig)
{
	(void)sig;
	if (signals.stop_ns)
		return;
	signals.stop_ns = tr_clock_ns();
	alarm((unsigned)stop_seconds);
}

/* Ctrl-C. A second one means that the user does not want to wait. But a launcher may forward the
 * signal that the terminal has also sent to the ranks, so a second one that arrives at once is the
 * same one. */
static void on_interrupt(int sig)
{
	if (signals.stop_ns && tr_clock_ns() - signals.stop_ns > AGAIN_NS)
		_exit(EXIT_TROUBLE);
	on_stop(sig);
}

#define LATE "stop-seconds are over before the last step was saved; the next job resumes from " \
	"the checkpoint before it"

/* Writes a message from a signal handler, which can do nothing about a failure. */
static void write_or_not(int fd, const char *message, size_t n)
{
	ssize_t put = write(fd, message, n);

	(void)put;
}

/* Ends the process when stop-seconds are over, whatever it is waiting for: a step that takes
 * longer, a rank that is lost, or a disk. */
static void on_alarm(int sig)
{
	static const char late[] = "sheaf-train: " LATE "\n";
	static const char event[] = "{\"event\":\"error\",\"code\":\"EAGAIN\",\"rank\":0,"
		"\"message\":\"" LATE "\"}\n";
	const struct tr_events *e = told_to;

	(void)sig;
	if (signals.ended)
		_exit(0);
	if (e && e->writes && e->json)
		write_or_not(STDOUT_FILENO, event, sizeof(event) - 1);
	if (e && e->writes && e->fd >= 0)
		write_or_not(e->fd, event, sizeof(event) - 1);
	write_or_not(STDERR_FILENO, late, sizeof(late) - 1);
	_exit(EXIT_TROUBLE);
}

static void handle(int sig, void (*handler)(int))
{
	struct sigaction act = { .sa_handler = handler, .sa_flags = SA_RESTART };

	sigfillset(&act.sa_mask);
	sigaction(sig, &act, NULL);
}

/* Does the same unless the signal is ignored, as SIGHUP is by nohup, and SIGINT in the background
 * of a script. */
static void handle_unless_ignored(int sig, void (*handler)(int))
{
	struct sigaction old;

	if (sigaction(sig, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
		handle(sig, handler);
}

/* Makes a write to a program that has ended fail, instead of killing the process. */
static void outlive_readers(void)
{
	handle(SIGPIPE, SIG_IGN);
}

/* Makes a write beyond the largest size of files (ulimit -f) fail, instead of killing the
 * process. */
static void outlive_limits(void)
{
	handle(SIGXFSZ, SIG_IGN);
}

static void catch_signals(const struct tr_opts *o)
{
	stop_seconds = (sig_atomic_t)o->stop_seconds;
	handle(SIGALRM, on_alarm);
	handle(SIGUSR1, on_save);
	handle(SIGUSR2, on_stop);
	handle(SIGTERM, on_stop);
	handle_unless_ignored(SIGHUP, on_stop);
	handle_unless_ignored(SIGINT, on_interrupt);
}

/* ---- run ---- */

/* Returns whether the argument after a switch is meant as its value: true or false, or a word that
 * tr_opts_set refuses. Any other one is the next argument, such as CONFIG. */
static int means_yes_or_no(const char *value)
{
	static const char *const words[] = { "true", "false", "yes", "no", "on", "off", "0", "1" };

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcasecmp(value, words[i]) == 0)
			return 1;
	return 0;
}

/* Sets the option of --KEY VALUE or --KEY=VALUE. A switch needs no value. Returns the number of
 * arguments that this took. */
static int take_flag(struct command *c, int argc, char **argv, struct tr_error *err)
{
	char key[64], *equals = strchr(argv[0], '=');
	const char *value = equals ? equals + 1 : argc > 1 ? argv[1] : NULL;
	size_t n = equals ? (size_t)(equals - argv[0]) : strlen(argv[0]);
	int taken = equals ? 1 : 2, rc;

	snprintf(key, sizeof(key), "%.*s", (int)(n < 60 ? n : 60) - 2, argv[0] + 2);
	if (strcmp(key, "events") == 0 && value) {
		c->events = value;
		return taken;
	}
	if (!equals && tr_opts_is_switch(key) && !(value && means_yes_or_no(value))) {
		value = "true";
		taken = 1;
	}
	if (!value)
		return tr_fail(err, TR_EINVAL, "--%s: it needs a value; see sheaf-train --help",
			       key);
	rc = tr_opts_set(&c->opts, key, value, TR_FROM_FLAG, "--", err);
	return rc < 0 ? rc : taken;
}

static int read_config(struct command *c, const char *path, struct tr_error *err)
{
	char *text;
	size_t n;
	int rc = tr_config_read(path, &text, &n, err);

	if (rc == 0)
		rc = tr_opts_read_yaml(&c->opts, text, n, path, TR_FROM_FILE, err);
	free(text);
	return rc;
}

/* Refuses an argument that would be a second CONFIG. It may be meant as the value of a switch. */
static int refuse_second(const char *arg, const char *before, const char *config,
			 struct tr_error *err)
{
	if (strncmp(before, "--", 2) == 0 && tr_opts_is_switch(before + 2))
		return tr_fail(err, TR_EINVAL, "%s: it must be true or false, not '%s'; there is a "
			       "CONFIG already, %s", before, arg, config);
	return tr_fail(err, TR_EINVAL, "%s: there is a CONFIG already, %s; give one", arg, config);
}

static int read_arguments(struct command *c, int argc, char **argv, struct tr_error *err)
{
	const char *config = NULL;
	int rc = tr_opts_init(&c->opts, err);

	for (int i = 0; rc >= 0 && i < argc;) {
		rc = 1;
		if (strcmp(argv[i], "--json") == 0) {
			c->json = 1;
		} else if (strcmp(argv[i], "--print-config") == 0) {
			c->print_config = 1;
		} else if (strncmp(argv[i], "--", 2) == 0) {
			rc = take_flag(c, argc - i, argv + i, err);
		} else if (!config) {
			config = argv[i];
		} else {
			rc = refuse_second(argv[i], argv[i - 1], config, err);
		}
		i += rc;
	}
	if (rc < 0)
		return rc;
	return config ? read_config(c, config, err) :
		tr_fail(err, TR_EINVAL, "which CONFIG? See sheaf-train --help");
}

/* Sets options that are not set to those of the checkpoint that a job would resume. With resume
 * none a job takes none, so the run is not opened. */
static int take_options(struct command *c, struct tr_error *err)
{
	struct tr_ranks alone;

	tr_ranks_alone(&alone);
	return c->opts.run && strcmp(c->opts.resume, "none") != 0 ?
		tr_job_options(&alone, &c->opts, c->evaluates, err) : 0;
}

static int print_config(struct command *c, struct tr_error *err)
{
	char *text;
	int rc = take_options(c, err);

	if (rc < 0)
		return rc;
	text = tr_opts_yaml(&c->opts);
	if (!text)
		return tr_fail(err, TR_ENOMEM, "no memory for the options");
	fputs(text, stdout);
	free(text);
	return fflush(stdout) == 0 ? 0 : tr_fail(err, TR_EIO, "stdout: %s", strerror(errno));
}

static int train(struct command *c, struct tr_ranks *ranks, struct tr_error *err)
{
	struct tr_events events;
	int rc = tr_events_open(&events, ranks->rank == 0, c->json, c->events, err);

	if (rc == 0 && !c->evaluates)
		rc = tr_events_in_run(&events, c->opts.run, err);
	rc = tr_agree(ranks, rc, err);
	told_to = &events;
	if (rc == 0)
		rc = c->evaluates ? tr_evaluate(ranks, &c->opts, &events, err) :
			tr_train(ranks, &c->opts, &events, &signals, err);
	told_to = NULL;
	tr_events_close(&events);
	return rc;
}

/* Waits before this rank ends. mpirun kills all ranks when one has ended, and before that rank
 * tr_teller must write the event of the error, which it learns of in its next exchange. When that
 * rank has ended, mpirun ends this wait. */
static void leave_teller_time(const struct tr_ranks *ranks, const struct tr_error *err)
{
	int ms = ranks->timeout_ms < TELL_MS_MAX ? ranks->timeout_ms : TELL_MS_MAX;
	const struct timespec nap = { .tv_sec = ms / 1000,
				      .tv_nsec = (long)(ms % 1000) * 1000000 };

	if (ranks->rank != tr_teller(err))
		nanosleep(&nap, NULL);
}

/* Returns whether this is a rank other than 0. Before MPI has begun, a variable of Open MPI, PMIx
 * or PMI says so. */
static int is_other_rank(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *rank = getenv(names[i]);

		if (rank)
			return strcmp(rank, "0") != 0;
	}
	return 0;
}

/* Writes an error as an event, if --json or --events is among the arguments. Arguments after the
 * wrong one were not read. */
static void tell_first(struct command *c, int argc, char **argv, struct tr_error *err)
{
	struct tr_events events;

	for (int i = 0; i < argc; i++)
		c->json |= strcmp(argv[i], "--json") == 0;
	err->rank = 0;
	if (tr_events_open(&events, 1, c->json, c->events, NULL) == 0)
		tr_tell_error(&events, err->code, err);
	tr_events_close(&events);
}

/* Reports an error before MPI has begun. As a rule all ranks have the same files and flags, so all
 * of them have the same message. mpirun kills the others when rank 0 has ended, so they wait, and
 * only rank 0 prints it. */
static int complain_first(struct command *c, int argc, char **argv, struct tr_error *err)
{
	const struct timespec nap = { .tv_sec = FIRST_S };

	if (is_other_rank())
		nanosleep(&nap, NULL);
	else
		tell_first(c, argc, argv, err);
	return complain(err);
}

static int run(int argc, char **argv, int evaluates)
{
	struct command c = { .evaluates = evaluates };
	struct tr_error err = { .rank = -1 };
	struct tr_ranks ranks = { .rank = 0 };
	int rc = read_arguments(&c, argc, argv, &err), level, status, rank = 0;

	if (rc == 0)
		rc = c.print_config ? print_config(&c, &err) : tr_setup_check(&c.opts, 0, &err);
	if (rc < 0 || c.print_config) {
		status = rc < 0 ? complain_first(&c, argc, argv, &err) : 0;
		tr_opts_release(&c.opts);
		return status;
	}
	outlive_readers();
	if (!evaluates)
		catch_signals(&c.opts);
	MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
	rc = tr_ranks_mpi(&ranks, MPI_COMM_WORLD, (int)c.opts.timeout_ms, &err);
	if (rc == 0) {
		rank = ranks.rank;
		rc = train(&c, &ranks, &err);
	}
	status = exit_status(rc);
	if (rc == 0)
		alarm(0);
	if (rc < 0 && (rank == 0 || rc == TR_ELOST))
		complain(&err);
	fflush(NULL);
	tr_opts_release(&c.opts);
	/* MPI_Finalize would wait for ranks that have ended. */
	if (rc == TR_ELOST) {
		leave_teller_time(&ranks, &err);
		_exit(status);
	}
	tr_ranks_free(&ranks);
	MPI_Finalize();
	return status;
}

static int plan(int argc, char **argv)
{
	struct command c = { .json = 0 };
	struct tr_error err = { .rank = -1 };
	int rc = read_arguments(&c, argc, argv, &err), status;

	if (rc == 0)
		rc = take_options(&c, &err);
	if (rc == 0)
		rc = tr_plan_print(&c.opts, c.json, &err);
	status = rc < 0 ? complain(&err) : 0;
	tr_opts_release(&c.opts);
	return status;
}

/* ---- plot ---- */

static int write_text(const char *path, const char *text, size_t n, struct tr_error *err)
{
	FILE *to = path ? fopen(path, "we") : stdout;
	int good = to && fwrite(text, 1, n, to) == n, rc;
	struct stat st;

	if (to)
		good &= (path ? fclose(to) : fflush(to)) == 0;
	if (good)
		return 0;
	rc = tr_fail(err, TR_EIO, "%s: %s", path ? path : "stdout", strerror(errno));
	/* Part of a picture is of no use. */
	if (to && path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
		unlink(path);
	return rc;
}

/* Draws the whole picture before its file is opened: the file may be an older picture. */
static int plot_to(const char *const *run, int n, const char *path, struct tr_error *err)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes);
	int rc = to ? tr_plot(run, n, to, err) : TR_ENOMEM;

	if ((to && fclose(to) != 0) || !to)
		rc = tr_fail(err, TR_ENOMEM, "no memory for a picture");
	if (rc == 0)
		rc = write_text(path, text, bytes, err);
	free(text);
	return rc;
}

static int plot(int argc, char **argv)
{
	struct tr_error err = { .rank = -1 };
	const char *out = NULL;
	int n = 0, rc = 0;

	for (int i = 0; rc == 0 && i < argc; i++) {
		if (strcmp(argv[i], "-o") == 0 && i + 1 < argc)
			out = argv[++i];
		else if (argv[i][0] == '-')
			rc = tr_fail(&err, TR_EINVAL, "%s: there is no such option, or it needs a "
				     "value; see sheaf-train --help", argv[i]);
		else
			argv[n++] = argv[i];
	}
	if (rc == 0 && (n < 1 || n > TR_PLOT_RUNS_MAX))
		rc = tr_fail(&err, TR_EINVAL, "plot draws 1 to %d runs, not %d; see sheaf-train "
			     "--help", TR_PLOT_RUNS_MAX, n);
	if (rc == 0)
		rc = plot_to((const char *const *)argv, n, out, &err);
	return rc < 0 ? complain(&err) : 0;
}

/* ---- data ---- */

/* Takes the option of data at argv[0]. Returns the number of arguments that this took: 0 if it is
 * an input. */
static int take_data_option(struct tr_prepare *p, int argc, char **argv, struct tr_error *err)
{
	const char *value = argc > 1 ? argv[1] : "";
	char *end;
	long jobs;

	if (argc == 1 && (strcmp(argv[0], "-o") == 0 || strcmp(argv[0], "-j") == 0 ||
			  strcmp(argv[0], "--tokenizer") == 0))
		return tr_fail(err, TR_EINVAL, "%s: it needs a value; see sheaf-train --help",
			       argv[0]);
	if (strcmp(argv[0], "-o") == 0) {
		p->out = value;
	} else if (strncmp(argv[0], "-j", 2) == 0) {
		int apart = !argv[0][2];

		value = apart ? value : argv[0] + 2;
		jobs = strtol(value, &end, 10);
		if (!*value || *end || jobs < 1 || jobs > JOBS_MAX)
			return tr_fail(err, TR_EINVAL, "-j %s: it must be a number of threads from "
				       "1 to %d", value, JOBS_MAX);
		p->jobs = (int)jobs;
		return 1 + apart;
	} else if (strcmp(argv[0], "--tokenizer") == 0) {
		if (strcmp(value, "bytes") != 0)
			return tr_fail(err, TR_EINVAL, "--tokenizer %s: it must be bytes; "
				       "train/prepare.py has other tokenizers", value);
	} else if (argv[0][0] == '-') {
		return tr_fail(err, TR_EINVAL, "%s: there is no such option; see sheaf-train "
			       "--help", argv[0]);
	} else {
		return 0;
	}
	return 2;
}

static int data(int argc, char **argv)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	struct tr_prepare p = { .in = (const char *const *)argv,
				.jobs = cores < 1 ? 1 : cores > JOBS_MAX ? JOBS_MAX : (int)cores };
	struct tr_error err = { .rank = -1 };
	struct tr_prepared made;

	for (int i = 0; i < argc;) {
		int taken = take_data_option(&p, argc - i, argv + i, &err);

		if (taken < 0)
			return complain(&err);
		if (taken == 0)
			argv[p.n++] = argv[i++];
		i += taken;
	}
	if (!p.out || !p.n) {
		tr_fail(&err, TR_EINVAL, "data needs files of text or JSONL, and -o FILE; see "
			"sheaf-train --help");
		return complain(&err);
	}
	if (tr_prepare_bytes(&p, &made, &err) < 0)
		return complain(&err);
	printf("%s: %" PRId64 " tokens, %" PRId64 " documents\n", p.out, made.tokens,
	       made.documents);
	return fflush(stdout) == 0 ? 0 : EXIT_TROUBLE;
}

/* Prints the help, or the version. */
static int answer(const char *question)
{
	int version = tr_library_version();

	if (strcmp(question, "--version") == 0 || strcmp(question, "-V") == 0)
		printf("sheaf-train %d.%d.%d\n", version / 10000, version / 100 % 100,
		       version % 100);
	else
		help(stdout);
	return fflush(stdout) == 0 ? 0 : EXIT_TROUBLE;
}

/* Returns whether an argument asks for the help of all commands. */
static int asks_for_help(const char *arg)
{
	return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static int is_question(const char *arg)
{
	return asks_for_help(arg) || strcmp(arg, "help") == 0 || strcmp(arg, "--version") == 0 ||
		strcmp(arg, "-V") == 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && is_question(argv[1]))
		return answer(argv[1]);
	for (int i = 2; i < argc; i++)
		if (asks_for_help(argv[i]))
			return answer(argv[i]);
	outlive_limits();
	if (argc > 1 && strcmp(argv[1], "run") == 0)
		return run(argc - 2, argv + 2, 0);
	if (argc > 1 && strcmp(argv[1], "eval") == 0)
		return run(argc - 2, argv + 2, 1);
	if (argc > 1 && strcmp(argv[1], "plan") == 0)
		return plan(argc - 2, argv + 2);
	if (argc > 1 && strcmp(argv[1], "plot") == 0)
		return plot(argc - 2, argv + 2);
	if (argc > 1 && strcmp(argv[1], "data") == 0)
		return data(argc - 2, argv + 2);
	if (argc > 1)
		fprintf(stderr, "sheaf-train: %s: there is no such command\n", argv[1]);
	usage(stderr);
	fputs("See sheaf-train --help\n", stderr);
	return EXIT_TROUBLE;
}
