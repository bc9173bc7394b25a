/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of sheaf-bench: one table for all options, checked before anything is done */
#include "bench.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const char bench_usage[] =
	"usage: sheaf-bench save|load|reshard --run DIR --step S [options]\n"
	"       sheaf-bench stall --run DIR [--gb 1] [--every K] [--step-ms 1500] [options]\n"
	"\n"
	"Fill, save, load and check training state whose every item is a function of\n"
	"(seed, step, family, name, index); or step as a trainer does and measure what\n"
	"saving costs. Run it under mpirun, one process a rank.\n"
	"\n"
	"  --run DIR              the run\n"
	"  --step S               the step; `load` takes `latest`\n"
	"  --steps K, --every E   steps S, S+E, ... K of them (1, 1)\n"
	"what the state is, one of\n"
	"  --state FILE           a description: {\"tensors\": [...], \"adam\": bool}\n"
	"  --like PATH            family model of a checkpoint or RUN@STEP, with its values\n"
	"  --preset NAME          qwen2-0.5b, qwen2-mini, qwen2-7b, llama-7b, moe-small\n"
	"  --gb X                 as many layers of a preset as make X * 1e9 bytes in all\n"
	"  --adam                 also master weights and two moments\n"
	"  --families A,B         only these families\n"
	"  --seed N               of the values (0)\n"
	"who holds it\n"
	"  --mesh dp=2,tp=2,pp=1,ep=1   axes not named are 1; the last varies fastest\n"
	"  --expert-mesh ep=4     experts on a mesh of their own over the same ranks\n"
	"  --zero 0|1|2|3         flat ranges over dp: 1, 2 optimizer, 3 the model too\n"
	"  --to MESH, --to-zero Z `reshard` loads in this layout (zero: as saved)\n"
	"  --nodes N              ranks split evenly over N nodes that share no memory\n"
	"how\n"
	"  --staging-bytes N, --file-bytes N, --io-threads N, --keep-last N\n"
	"  --io auto|pwrite|buffered, --isa auto|scalar, --timeout-ms N (60000)\n"
	"  --lenient              load what is there; weights and masters where absent: one\n"
	"                         from the other\n"
	"  --convert              the stored dtype may differ\n"
	"to measure\n"
	"  --rounds N             save: steps S, S+E, ... with the values of step S, filled once;\n"
	"                         load: step S again and again, the first and last time checked\n"
	"  --on-line              a round waits for a line on standard input\n"
	"  --unverified           load without looking at any checksum\n"
	"  --async                save: a step is committed when the next ones have begun\n"
	"  --lazy                 with --async: copied behind, memory changes at its gates\n"
	"  --in-place             save: all but the model is not staged (SHEAF_SLICE_IN_PLACE)\n"
	"  --images N             of --async (2)\n"
	"  --copy-threads N       of --lazy: a rank's threads that copy, at most (4)\n"
	"  --copy-cpus LIST, --copy-rate N  of --lazy: where its threads run (0-3,8), and how\n"
	"                         many bytes a second they copy at most\n"
	"  --agent auto|PATH|none the memory tier: what `sheaf agent` keeps (none)\n"
	"  --memory-every M       save, with an agent: steps S, S+M, ... those between the ones\n"
	"                         of --every to memory alone\n"
	"  --copies 2, --copies-behind  with an agent: steps in memory lie on the next node\n"
	"                         too; sent by a thread, not inside commits\n"
	"  --deadline-ms N        save: so much time for what flies after the last begin, then it\n"
	"                         is given up\n"
	"  --signal-dir DIR       save: done files there\n"
	"  --ema C                save: with moving averages of the masters, coefficient C\n"
	"  --metrics              save: lines for `sheaf stats`\n"
	"of stall, which has --adam, and without a state a preset of --gb (1)\n"
	"  --step-ms N            how long a step without saves should last (1500)\n"
	"  --step-memcpys X       the same, by a memcpy of the bytes\n"
	"  --every K              save at each K-th step (5)\n"
	"  --memory-every M       save to memory at each M-th (1)\n"
	"  --agent auto|PATH|none the socket of `sheaf agent`; none: no such modes (its own)\n"
	"  --modes A,B            of none, none2, lazy-memory, lazy-disk, copy-memory, copy-disk\n"
	"  --steps N, --warmup N  counted steps of a block (10), and before (3)\n"
	"  --commit-behind        a thread commits\n"
	"  --rounds N             blocks of each mode (3); --on-line: a line is MODE [K]\n"
	"  --compute-threads N    of a rank (1)\n"
	"all\n"
	"  --json                 events on stdout;  --events FILE  added there\n"
	"\n"
	"Exit 0; 1 values are wrong, or ECORRUPT, EDIVERGED, ELAYOUT, EFORMAT; 2 all else.\n";

enum kind { FLAG, TEXT, INT, SEED };

static const struct opt {
	const char *name;
	enum kind kind;
	size_t at;
	int64_t least, most;
	unsigned verbs;
} table[] = {
#define AT(member) offsetof(struct bench_opts, member)
#define VALUES (BENCH_SAVE | BENCH_LOAD | BENCH_RESHARD)
#define ALL (VALUES | BENCH_STALL)
	{ "run", TEXT, AT(run), 0, 0, ALL },
	{ "step", TEXT, AT(step_text), 0, 0, ALL },
	{ "steps", INT, AT(steps), 1, 1000000000, ALL },
	{ "every", INT, AT(every), 1, 1000000000, ALL },
	{ "state", TEXT, AT(state), 0, 0, ALL },
	{ "like", TEXT, AT(like), 0, 0, ALL },
	{ "preset", TEXT, AT(preset), 0, 0, ALL },
	{ "gb", TEXT, AT(gb_text), 0, 0, ALL },
	{ "mesh", TEXT, AT(mesh), 0, 0, ALL },
	{ "expert-mesh", TEXT, AT(expert_mesh), 0, 0, ALL },
	{ "to", TEXT, AT(to), 0, 0, BENCH_RESHARD },
	{ "zero", INT, AT(zero), 0, 3, ALL },
	{ "to-zero", INT, AT(to_zero), 0, 3, BENCH_RESHARD },
	{ "adam", FLAG, AT(adam), 0, 0, ALL },
	{ "families", TEXT, AT(families), 0, 0, ALL },
	{ "seed", SEED, AT(seed), 0, 0, ALL },
	{ "nodes", INT, AT(nodes), 1, 1 << 24, ALL },
	{ "staging-bytes", INT, AT(staging_bytes), 1, INT64_MAX, ALL },
	{ "file-bytes", INT, AT(file_bytes), 1, INT64_MAX, ALL },
	{ "io-threads", INT, AT(io_threads), 1, 4096, ALL },
	{ "io", TEXT, AT(io), 0, 0, ALL },
	{ "isa", TEXT, AT(isa), 0, 0, ALL },
	{ "timeout-ms", INT, AT(timeout_ms), 1, INT32_MAX, ALL },
	{ "keep-last", INT, AT(keep_last), 1, INT32_MAX, VALUES },
	{ "rounds", INT, AT(rounds), 1, 1000000000, BENCH_SAVE | BENCH_LOAD | BENCH_STALL },
	{ "on-line", FLAG, AT(on_line), 0, 0, BENCH_SAVE | BENCH_LOAD | BENCH_STALL },
	{ "async", FLAG, AT(async), 0, 0, BENCH_SAVE },
	{ "lazy", FLAG, AT(lazy), 0, 0, BENCH_SAVE },
	{ "in-place", FLAG, AT(in_place), 0, 0, BENCH_SAVE },
	{ "images", INT, AT(images), 1, 8, BENCH_SAVE | BENCH_STALL },
	{ "copy-threads", INT, AT(copy_threads), 1, 256, BENCH_SAVE | BENCH_STALL },
	{ "copy-cpus", TEXT, AT(copy_cpus), 0, 0, BENCH_SAVE | BENCH_STALL },
	{ "copy-rate", INT, AT(copy_rate), 1, INT64_MAX, BENCH_SAVE | BENCH_STALL },
	{ "step-ms", INT, AT(step_ms), 1, 3600000, BENCH_STALL },
	{ "step-memcpys", TEXT, AT(memcpys_text), 0, 0, BENCH_STALL },
	{ "warmup", INT, AT(warmup), 0, 1000000, BENCH_STALL },
	{ "agent", TEXT, AT(agent), 0, 0, ALL },
	{ "memory-every", INT, AT(memory_every), 1, 1000000000, BENCH_SAVE | BENCH_STALL },
	{ "copies", INT, AT(copies), 1, 2, BENCH_SAVE },
	{ "copies-behind", FLAG, AT(copies_behind), 0, 0, BENCH_SAVE },
	{ "modes", TEXT, AT(modes), 0, 0, BENCH_STALL },
	{ "commit-behind", FLAG, AT(commit_behind), 0, 0, BENCH_STALL },
	{ "compute-threads", INT, AT(compute_threads), 1, 1024, BENCH_STALL },
	{ "ema", TEXT, AT(ema_text), 0, 0, BENCH_SAVE },
	{ "metrics", FLAG, AT(metrics), 0, 0, BENCH_SAVE },
	{ "deadline-ms", INT, AT(deadline_ms), 1, INT32_MAX, BENCH_SAVE },
	{ "signal-dir", TEXT, AT(signal_dir), 0, 0, BENCH_SAVE },
	{ "unverified", FLAG, AT(unverified), 0, 0, BENCH_LOAD },
	{ "lenient", FLAG, AT(lenient), 0, 0, VALUES },
	{ "convert", FLAG, AT(convert), 0, 0, VALUES },
	{ "json", FLAG, AT(json), 0, 0, ALL },
	{ "events", TEXT, AT(events), 0, 0, ALL },
	{ "help", FLAG, AT(help), 0, 0, ALL },
#undef AT
#undef VALUES
#undef ALL
};

#define TABLE_N (sizeof(table) / sizeof(table[0]))

static bool number(const char *s, uint64_t *out)
{
	char *end;

	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	*out = strtoull(s, &end, 10);
	return !*end && !errno;
}

static int take(struct bench_opts *o, const struct opt *opt, const char *value,
		struct sheaf_error *err)
{
	void *at = (char *)o + opt->at;
	uint64_t v;

	switch (opt->kind) {
	case FLAG:
		*(bool *)at = true;
		return 0;
	case TEXT:
		if (!*value)
			return wl_fail(err, SHEAF_EINVAL, "--%s: is empty", opt->name);
		*(const char **)at = value;
		return 0;
	case SEED:
		if (!number(value, &v))
			return wl_fail(err, SHEAF_EINVAL, "--%s: '%.60s' is not a number from 0 to "
				       "2^64 - 1", opt->name, value);
		*(uint64_t *)at = v;
		return 0;
	default:
		if (!number(value, &v) || v > INT64_MAX || (int64_t)v < opt->least ||
		    (int64_t)v > opt->most)
			return wl_fail(err, SHEAF_EINVAL, "--%s: '%.60s' is not a number from %lld "
				       "to %lld", opt->name, value, (long long)opt->least,
				       (long long)opt->most);
		*(int64_t *)at = (int64_t)v;
		return 0;
	}
}

static const struct opt *find(const char *arg, size_t n)
{
	for (size_t i = 0; i < TABLE_N; i++)
		if (strlen(table[i].name) == n && memcmp(table[i].name, arg, n) == 0)
			return &table[i];
	return NULL;
}

static int parse_all(struct bench_opts *o, int argc, char **argv, struct sheaf_error *err)
{
	uint64_t seen = 0;

	for (int i = 2; i < argc; i++) {
		const char *arg = argv[i], *value = NULL;
		const struct opt *opt = NULL;
		size_t n = 0;
		int rc;

		if (strncmp(arg, "--", 2) == 0) {
			n = strcspn(arg + 2, "=");
			opt = find(arg + 2, n);
		}
		if (!opt || !(opt->verbs & (unsigned)o->verb))
			return wl_fail(err, SHEAF_EINVAL, "%s: %s '%.100s'", o->verb_name,
				       *arg == '-' ? "unknown option" : "unexpected argument", arg);
		if (seen >> (opt - table) & 1)
			return wl_fail(err, SHEAF_EINVAL, "--%s: was given twice", opt->name);
		seen |= UINT64_C(1) << (opt - table);
		if (arg[n + 2] == '=')
			value = arg + n + 3;
		if (opt->kind == FLAG && value)
			return wl_fail(err, SHEAF_EINVAL, "--%s: takes no value", opt->name);
		if (opt->kind != FLAG && !value) {
			value = ++i < argc ? argv[i] : NULL;
			if (!value)
				return wl_fail(err, SHEAF_EINVAL, "--%s: needs a value", opt->name);
		}
		rc = take(o, opt, value, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static bool is_one_of(const char *s, const char *const *of)
{
	for (; *of; of++)
		if (strcmp(s, *of) == 0)
			return true;
	return false;
}

/* Rejects values of --io and --isa that do not exist or cannot be forced. */
static int check_ways(struct bench_opts *o, struct sheaf_error *err)
{
	static const char *const io[] = { "auto", "pwrite", "buffered", NULL };
	static const char *const isa[] = { "auto", "scalar", NULL };
	static const char *const isa_later[] = { "avx2", "avx512", NULL };

	if (o->io && strcmp(o->io, "uring") == 0)
		return wl_fail(err, SHEAF_EINVAL, "--io uring: cannot be forced; auto uses "
		               "io_uring where the kernel has it");
	if (o->io && !is_one_of(o->io, io))
		return wl_fail(err, SHEAF_EINVAL, "--io: '%.60s' is none of auto, uring, pwrite, "
			       "buffered", o->io);
	if (o->isa && is_one_of(o->isa, isa_later))
		return wl_fail(err, SHEAF_EINVAL, "--isa %s: cannot be forced; auto uses what the "
		               "processor has", o->isa);
	if (o->isa && !is_one_of(o->isa, isa))
		return wl_fail(err, SHEAF_EINVAL, "--isa: '%.60s' is none of auto, scalar, avx2, "
			       "avx512", o->isa);
	return 0;
}

static int check_step(struct bench_opts *o, struct sheaf_error *err)
{
	uint64_t v;

	if (o->verb == BENCH_STALL && !o->step_text)
		o->step_text = "1";
	if (!o->step_text)
		return wl_fail(err, SHEAF_EINVAL, "%s: needs --step", o->verb_name);
	if (strcmp(o->step_text, "latest") == 0) {
		if (o->verb != BENCH_LOAD)
			return wl_fail(err, SHEAF_EINVAL, "--step latest: is for load, not for %s",
				       o->verb_name);
		if (o->steps > 1)
			return wl_fail(err, SHEAF_EINVAL, "--step latest: is one step, not --steps "
				       "%lld", (long long)o->steps);
		o->step = SHEAF_LATEST;
		return 0;
	}
	if (!number(o->step_text, &v) || v > INT64_MAX)
		return wl_fail(err, SHEAF_EINVAL, "--step: '%.60s' is not a number of at least 0",
			       o->step_text);
	o->step = (int64_t)v;
	if (o->step > INT64_MAX - (o->steps - 1) * o->every)
		return wl_fail(err, SHEAF_EINVAL, "--step: the last step is beyond 2^63 - 1");
	return 0;
}

static int check_rounds(struct bench_opts *o, struct sheaf_error *err)
{
	if (!o->rounds && o->on_line)
		return wl_fail(err, SHEAF_EINVAL, "--on-line: is for --rounds");
	if (o->on_line && o->deadline_ms)
		return wl_fail(err, SHEAF_EINVAL, "--deadline-ms: is after the last step, which "
			       "--on-line does not know");
	if (!o->rounds || o->verb == BENCH_STALL)
		return 0;
	if (o->steps > 1)
		return wl_fail(err, SHEAF_EINVAL, "--rounds: has one step each, not --steps %lld",
			       (long long)o->steps);
	if (o->verb == BENCH_SAVE && o->step > INT64_MAX - (o->rounds - 1) * o->every)
		return wl_fail(err, SHEAF_EINVAL, "--rounds: the last step is beyond 2^63 - 1");
	return 0;
}

static int check_async(struct bench_opts *o, struct sheaf_error *err)
{
	if (o->verb == BENCH_STALL)
		return 0;
	if (!o->async && (o->lazy || o->images))
		return wl_fail(err, SHEAF_EINVAL, "--%s: is for --async",
			       o->lazy ? "lazy" : "images");
	if (!o->lazy && (o->copy_threads || o->copy_cpus || o->copy_rate))
		return wl_fail(err, SHEAF_EINVAL, "--%s: is for --lazy",
			       o->copy_threads ? "copy-threads"
			       : o->copy_cpus ? "copy-cpus" : "copy-rate");
	if (o->async && !o->images)
		o->images = 2;
	return 0;
}

static int check_memory(struct bench_opts *o, struct sheaf_error *err)
{
	o->no_agent = o->agent && strcmp(o->agent, "none") == 0;
	if (o->no_agent)
		o->agent = NULL;
	if (o->verb == BENCH_STALL)
		return 0;
	if (o->copies == 2 && !o->agent)
		return wl_fail(err, SHEAF_EINVAL, "--copies 2: needs an --agent");
	if (o->copies_behind && o->copies != 2)
		return wl_fail(err, SHEAF_EINVAL, "--copies-behind: needs --copies 2");
	if (!o->memory_every)
		return 0;
	if (!o->agent)
		return wl_fail(err, SHEAF_EINVAL, "--memory-every: needs an --agent");
	if (o->rounds || o->every % o->memory_every)
		return wl_fail(err, SHEAF_EINVAL, "--memory-every: %s",
			       o->rounds ? "is not for --rounds" : "must divide --every");
	if (o->images == 1)
		return wl_fail(err, SHEAF_EINVAL, "--memory-every: needs two --images");
	return 0;
}

static int check_gb(struct bench_opts *o, struct sheaf_error *err)
{
	char *end;

	if (!o->gb_text)
		return 0;
	if (!o->preset)
		return wl_fail(err, SHEAF_EINVAL, "--gb: scales a --preset, and there is none");
	o->gb = strtod(o->gb_text, &end);
	if (*end || !(o->gb > 0) || !(o->gb < 1e6))
		return wl_fail(err, SHEAF_EINVAL, "--gb: '%.60s' is not a number above 0",
		               o->gb_text);
	return 0;
}

static int check_memcpys(struct bench_opts *o, struct sheaf_error *err)
{
	char *end;

	if (!o->memcpys_text)
		return 0;
	o->step_memcpys = strtod(o->memcpys_text, &end);
	if (*end || !(o->step_memcpys > 0) || !(o->step_memcpys < 1e6))
		return wl_fail(err, SHEAF_EINVAL, "--step-memcpys: '%.60s' is not a number above 0",
			       o->memcpys_text);
	return 0;
}

static int check_ema(struct bench_opts *o, struct sheaf_error *err)
{
	char *end;

	o->ema = -1;
	if (!o->ema_text)
		return 0;
	o->ema = strtod(o->ema_text, &end);
	if (*end || !(o->ema >= 0) || !(o->ema < 1))
		return wl_fail(err, SHEAF_EINVAL, "--ema: '%.60s' must be at least 0 and less than "
			       "1", o->ema_text);
	return 0;
}

static int check_stall(struct bench_opts *o, struct sheaf_error *err)
{
	unsigned mask;
	int64_t steps;

	if (o->verb != BENCH_STALL)
		return 0;
	if (__builtin_mul_overflow(o->steps, o->rounds, &steps) || steps > 10000000)
		return wl_fail(err, SHEAF_EINVAL, "stall: more than 10000000 steps of a mode");
	return bench_stall_modes(o->modes, !o->no_agent, &mask, err);
}

/* Returns the default options of a verb. */
static struct bench_opts defaults(enum bench_verb verb)
{
	struct bench_opts o = { .verb = verb, .steps = 1, .every = 1, .to_zero = -1,
				.timeout_ms = 60000 };

	if (verb != BENCH_STALL)
		return o;
	o.steps = 10;
	o.every = 5;
	o.memory_every = 1;
	o.rounds = 3;
	o.warmup = 3;
	o.step_ms = 1500;
	o.images = 2;
	o.compute_threads = 1;
	o.adam = true;
	return o;
}

static int check_state(struct bench_opts *o, struct sheaf_error *err)
{
	int given = !!o->state + !!o->like + !!o->preset;

	if (!o->run)
		return wl_fail(err, SHEAF_EINVAL, "%s: needs --run", o->verb_name);
	if (!given && o->verb == BENCH_STALL) {
		o->preset = "qwen2-mini";
		if (!o->gb_text)
			o->gb_text = "1";
		return 0;
	}
	if (given != 1)
		return wl_fail(err, SHEAF_EINVAL, "%s: %s one of --state, --like, --preset",
			       o->verb_name, given ? "give only" : "needs");
	if (o->verb == BENCH_RESHARD && !o->to)
		return wl_fail(err, SHEAF_EINVAL, "reshard: needs --to");
	return 0;
}

static bool verb_of(const char *name, enum bench_verb *verb)
{
	static const struct { const char *name; enum bench_verb verb; } verbs[] = {
		{ "save", BENCH_SAVE }, { "load", BENCH_LOAD }, { "reshard", BENCH_RESHARD },
		{ "stall", BENCH_STALL },
	};

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (strcmp(verbs[i].name, name) == 0) {
			*verb = verbs[i].verb;
			return true;
		}
	}
	return false;
}

int bench_opts_parse(struct bench_opts *o, int argc, char **argv, struct sheaf_error *err)
{
	static int (*const checks[])(struct bench_opts *o, struct sheaf_error *err) = {
		check_state, check_step, check_rounds, check_async, check_memory, check_stall,
		check_gb, check_memcpys, check_ema, check_ways,
	};
	struct bench_opts made = { .help = true };
	enum bench_verb verb;
	int rc = 0;

	if (argc < 2)
		return wl_fail(err, SHEAF_EINVAL, "needs a verb: save, load, reshard or stall");
	if (verb_of(argv[1], &verb)) {
		made = defaults(verb);
		made.verb_name = argv[1];
		rc = parse_all(&made, argc, argv, err);
	} else if (strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "help") != 0) {
		return wl_fail(err, SHEAF_EINVAL, "unknown verb '%.60s', there are save, load, "
			       "reshard, stall", argv[1]);
	}
	for (size_t i = 0; rc == 0 && !made.help && i < sizeof(checks) / sizeof(checks[0]); i++)
		rc = checks[i](&made, err);
	if (made.to_zero < 0)
		made.to_zero = made.zero;
	if (rc == 0)
		*o = made;
	return rc;
}
