/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of the store, with each of its calls of the disk failing in turn, and each open
 * for lack of descriptors. If it then returns 0, its answer and the run are the same as without the
 * failure; exceptions are named beside the operation. If it returns an error, it has a sentence,
 * and the operation works when it is repeated. Each file is also opened once as descriptor 0, which
 * is a valid one. */
#include <errno.h>
#include <stdlib.h>
#include "aside.h"
#include "aside_restore.h"
#include "done_files.h"
#include "err.h"
#include "fresh_list.h"
#include "leftovers.h"
#include "lived.h"
#include "manifest_read.h"
#include "marks.h"
#include "stage.h"
#include "prune_steps.h"
#include "tries.h"
#include "sheaf-admin.h"

static struct simdisk *base;            /* a run with something of everything */
static bool aside_empties;              /* the operation takes the one step out of .sheaf/aside */
static int64_t shift;                   /* of the numbers of its steps, which are 1 to 9 without */

/* Between the numbers here and those on the disk. */
static int64_t number(int64_t step)
{
	return step + shift;
}

static int64_t plain(int64_t step)      /* foreign ones are where they are */
{
	return step < 0 || step > 50 ? step : step - shift;
}

/* A day later: nothing of it is made or removed by age alone. */
static struct simdisk *built(void)
{
	struct simdisk *disk;
	struct world w;
	char path[80];

	start(&w, 0);
	for (int64_t i = 1; i <= 8; i++) {
		w.loss = i > 6 ? "0.25" : NULL;
		CHECK_RC(world_save(&w, number(i), i > 1 ? number(i - 1) : -1), 0, &w.err);
	}
	CHECK_RC(world_rewind(&w, number(7)), 0, &w.err);       /* 8 is aside */
	for (int64_t i = 1; i <= 3; i++)
		CHECK_RC(world_mark(&w, number(i), 'k'), 0, &w.err);
	CHECK_RC(world_mark(&w, number(4), 'b'), 0, &w.err);
	CHECK(shf_tries_add(&w.store[0], number(6), world_find(&w, number(6))->session,
	                    &w.err) > 0);
	snprintf(path, sizeof(path), RUN "/checkpoint-%d/config.json", (int)number(5));
	CHECK_INT(simdisk_remove(w.disk, path), 0);
	CHECK(world_prune(&w, 5, number(7), 3600) >= 0);        /* 4 is in the trash */
	CHECK_RC(world_write(&w, number(9)), 0, &w.err);
	world_kill(&w);                                 /* its stage stays */
	disk = simdisk_twin(w.disk);
	CHECK(disk);
	simdisk_free(w.disk);
	return disk;
}

static void build(void)
{
	base = base ? base : built();
}

/* The step for which a stage is made. If its deletion fails, the next job deletes it, so it is not
 * among the answers that are compared. */
enum { STAGED = 12 };

/* ---- what is asked ---- */

/* What is found out of an answer here, of no code, begins so. */
#define SAYS "it says so: "

struct answer {
	char text[6000];
	size_t n;
};

static void say(struct answer *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct answer *a, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(a->text + a->n, sizeof(a->text) - a->n, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(a->text) - a->n)
		abort();
	a->n += (size_t)n;
}

static int ask_list(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	struct shf_list list;
	int rc = shf_list_noted(s, "loss", &list, err), there = rc == 0, aside = 0, staged = 0;

	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		const struct shf_entry *e = &list.entries[i];

		if (plain(e->step) == STAGED)
			continue;
		/* What it cannot read it says of its entry. */
		if (e->unread || e->mark == '?' || e->tries < 0)
			rc = shf_fail(err, SHEAF_EIO, SAYS "%s", e->path);
		aside += e->state == SHF_ASIDE;
		staged += e->state == SHF_STAGED;
		say(a, "%lld %d %d %.10s %s %lld %llu %c %d %d %s %d %d\n",
		    (long long)plain(e->step),
		    e->state, e->remains, e->path, e->session, (long long)plain(e->parent),
		    (unsigned long long)e->bytes, e->mark ? e->mark : '-', e->tries, e->noted,
		    e->value, e->best, e->adopted);
	}
	if (there)
		shf_list_release(&list);
	/* Where a folder of .sheaf cannot be read the steps are listed without it. */
	if (rc == 0 && !((aside || aside_empties) && staged))
		rc = shf_fail(err, SHEAF_EIO, SAYS "nothing is aside, or staged");
	return rc;
}

static int ask_newest(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	struct shf_newest n, below;
	int rc = shf_store_newest(s, number(4), &n, err);

	if (rc == 0)
		rc = shf_store_newest_below(s, number(6), number(5), &below, err);
	/* What it cannot read may be newer, and has no session that is known. */
	if (rc == 0 && (n.newest != n.known || below.newest != below.known))
		rc = shf_fail(err, SHEAF_EIO, SAYS "newest");
	if (rc == 0)
		say(a, "%d %d %lld %lld %s, %d %d %lld %lld %s\n", n.exists, n.is_bad,
		    (long long)plain(n.newest), (long long)plain(n.known), n.session,
		    below.exists, below.is_bad, (long long)plain(below.newest),
		    (long long)plain(below.known), below.session);
	return rc;
}

static int ask_latest(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	struct shf_seek lower = { .below = number(6), .floor = -1 };
	int64_t step = -1, under = -1;
	int rc = shf_store_latest(s, &step, NULL, NULL, err), low = 0;

	if (rc == 0)    /* under 6 there is a damaged one */
		low = shf_store_seek(s, &lower, &under, err);
	if (low == SHEAF_EIO)
		return low;
	if (rc == 0)
		say(a, "%lld, %d %lld\n", (long long)plain(step), low, (long long)plain(under));
	return rc;
}

static int tell_left(void *arg, const struct shf_left *left)
{
	if (strcmp(sheaf_leftover_kind_name(left->kind), "unread") == 0)
		return SHEAF_EIO;
	/* A lock is that of who operated; trash goes as far as it can be deleted. */
	if (strcmp(sheaf_leftover_kind_name(left->kind), "lock") != 0 &&
	    strcmp(sheaf_leftover_kind_name(left->kind), "trash") != 0 &&
	    plain(left->step) != STAGED)
		say(arg, "%s %s %lld %llu %d %.10s\n", sheaf_leftover_kind_name(left->kind),
		    sheaf_leftover_action_name(left->action),
		    (long long)plain(left->step), (unsigned long long)left->bytes, left->whole,
		    left->path);
	/* Of what is aside it says that it is not whole, and why. */
	return strcmp(sheaf_leftover_kind_name(left->kind),
	              "aside") == 0 && !left->whole && plain(left->step) > 5
	       ? SHEAF_EIO : 0;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A directory is in no order. */
static void sort_lines(struct answer *a)
{
	struct answer was = *a;
	char *lines[100], *save = NULL;
	size_t n = 0;

	for (char *p = strtok_r(was.text, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
		lines[n++] = p;
	qsort(lines, n, sizeof(*lines), by_text);
	a->n = 0;
	for (size_t i = 0; i < n; i++)
		say(a, "%s\n", lines[i]);
}

static int ask_left(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	int rc = shf_store_left(s, tell_left, a, err);

	sort_lines(a);
	return rc < 0 && !err->msg[0] ? shf_fail(err, rc, SAYS "a step") : rc;
}

static int ask_manifest(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	int rc = shf_store_manifest(s, number(7), &m, &arena, err);

	if (rc == 0)
		say(a, "%lld %s %s %zu\n", (long long)plain(m.step), m.session, m.run, m.files_n);
	shf_arena_release(&arena);
	return rc;
}

static int ask_first(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_newest n;
	struct shf_manifest m;
	int64_t step = -1;
	int rc = shf_store_manifest(s, number(1), &m, &arena, err);

	if (rc == 0)
		rc = shf_store_newest_below(s, number(2), number(1), &n, err);
	if (rc == 0)
		rc = shf_store_seek(s, &(struct shf_seek){ .below = number(2), .floor = -1 }, &step,
		                    err);
	if (rc == 0 && n.known < 0)
		rc = shf_fail(err, SHEAF_EIO, SAYS "newest");
	if (rc == 0)
		say(a, "%lld %s %d %lld %lld %s, %lld %lld\n", (long long)plain(m.step), m.session,
		    n.exists, (long long)plain(n.newest), (long long)plain(n.known), n.session,
		    (long long)plain(step), (long long)plain(shf_step_older(s, number(2))));
	shf_arena_release(&arena);
	return rc;
}

static int ask_identity(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	char id[SHF_IDENTITY];
	int rc = shf_store_identity(s, id, err);

	if (rc == 0)
		say(a, "%s\n", id);
	return rc;
}

/* ---- what is done ---- */

static int do_nothing(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)s;
	(void)a;
	(void)err;
	return 0;
}

static int do_keep(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return shf_store_mark(s, number(6), 'k', err);
}

static int do_unmark(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return shf_store_mark(s, number(3), 0, err);
}

static int do_rewind(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return shf_store_rewind(s, number(3), err);
}

static int do_rewind_all(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return shf_store_rewind(s, number(1), err);
}

static bool is_there(struct shf_store *s, int64_t step)
{
	struct shf_newest n;

	return shf_store_newest(s, step, &n, NULL) != 0 || n.exists;
}

static bool any_save(void *arg, int64_t step, const char *session)
{
	(void)arg;
	(void)session;
	return step >= 0;
}

/* Step 8 is aside, and step 7 is the newest. Neither is done twice. */
static int do_aside(struct shf_store *s, int (*act)(struct shf_store *, const char *,
                                                    struct sheaf_error *),
                    struct sheaf_error *err)
{
	static const char folder[] = ".sheaf/aside/";
	struct shf_list list;
	char name[64] = "";
	int rc = shf_store_list(s, &list, err);

	for (size_t i = 0; rc == 0 && i < list.n; i++)
		if (list.entries[i].state == SHF_ASIDE)
			snprintf(name, sizeof(name), "%.60s",
			         list.entries[i].path + strlen(folder));
	if (rc < 0)
		return rc;
	shf_list_release(&list);
	if (name[0])
		return act(s, name, err);
	if (shf_asides_some(s, any_save, NULL) == 0 &&
	    (is_there(s, number(8)) || act == shf_aside_delete))
		return 0;
	return shf_fail(err, SHEAF_EIO, SAYS "it is not listed");
}

static int do_restore(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return do_aside(s, shf_aside_restore, err);
}

static int do_delete(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return do_aside(s, shf_aside_delete, err);
}

static int do_unmark_first(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return shf_store_mark(s, number(1), 0, err);
}

static int do_rewind_none(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	int rc = shf_store_rewind(s, number(7), err);
	uint64_t n = rc == 0 ? shf_store_rewinds(s) : 0;

	if (n == UINT64_MAX)
		return shf_fail(err, SHEAF_EIO, SAYS "who knows how often");
	say(a, "%llu\n", (unsigned long long)n);
	return rc;
}

static int do_prune(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	struct shf_prune p = { .keep_last = 1, .keep_best = 1, .best_note = "loss",
		.verified.step = number(7), .keep = -1, .grace_s = 3600 };
	int n = shf_store_prune(s, &p, NULL, NULL, err);

	(void)a;
	/* What it cannot read stays. */
	if (n >= 0 && is_there(s, number(6)))
		return shf_fail(err, SHEAF_EIO, SAYS "it stays");
	return n < 0 ? n : 0;
}

static int do_count(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	char session[33] = "";
	struct shf_list list;
	int rc = shf_store_list(s, &list, err);

	for (size_t i = 0; rc == 0 && i < list.n; i++)
		if (list.entries[i].step == number(6))
			memcpy(session, list.entries[i].session, 33);
	if (rc < 0)
		return rc;
	shf_list_release(&list);
	if (!session[0])
		return shf_fail(err, SHEAF_EIO, SAYS "no session");
	rc = shf_tries_add(s, number(6), session, err);
	if (rc >= 0)
		say(a, "%d tries\n", rc);
	if (rc >= 0)
		rc = shf_tries_forget(s, err);
	return rc;
}

/* Is the mark that it lives locked? Whoever asks next may not have it. */
static int lives(struct shf_store *s, const struct shf_stage *g, struct answer *a,
                 struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	int fd = shf_sys_open(sys, g->dir, "alive-0", SHF_O_WRITE, 0);
	int rc = fd < 0 ? fd : shf_sys_lock(sys, fd, true);

	shf_fd_close(sys, &fd);
	if (rc < 0 && rc != -EAGAIN)
		return shf_fail(err, SHEAF_EIO, SAYS "locked");
	say(a, "%s\n", rc < 0 ? "it lives" : "nobody has it");
	return 0;
}

static int do_stage(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	static const char *const folders[] = { ".", "optimizer", NULL };
	struct shf_stage g = { .dir = -1, .alive = -1 };
	int rc = shf_stage_new(s, &g, number(STAGED), folders, err);

	if (rc == 0)
		rc = shf_stage_alive(s, &g, 0, err);
	if (rc == 0)
		rc = lives(s, &g, a, err);
	shf_stage_discard(s, &g);
	return rc;
}

static int do_done(struct shf_store *s, struct answer *a, struct sheaf_error *err)
{
	(void)a;
	return shf_done_put_newest(s, RUN "/done", err);
}

/* ---- what is said ---- */

/* Each sentence of a failed call, up to its error: the path, and what was tried. # stands for any
 * number, * for any session. */
#define LATEST "step #, the latest, cannot be read: run/checkpoint-#"
static const char *const said[] = {
	"run/.sheaf/aside", "run/.sheaf/descent", "run/.sheaf/lock", "run/.sheaf/marks",
	"run/.sheaf/marks/#", "run/.sheaf/marks/#-*", "run/.sheaf/rewind", "run/.sheaf/rewinds",
	"run/.sheaf/run",
	"run/.sheaf/stage", "run/.sheaf/stage: deleting what dead jobs left", "run/.sheaf/trash",
	"run/.sheaf/trash: sync before deleting", "run/.sheaf/tries", "run/.sheaf/tries/#-*",
	"run/.sheaf", "run/.sheaf: identifying the directory", "run/checkpoint-#",
	"run/checkpoint-#/sheaf.json", "run/checkpoint-#: moving it away", "run/done",
	"run/done/model.#.done", "run/done/optimizer.#.done", "run/done/whole-step.#.done",
	"run/done: fsync of the directory", "run: reading random bytes for the session",
		"run: listing its steps",
	"run: no run directory here (SHEAF_RUN_CREATE makes one)", "run: setting steps aside",
	"run: fsync of the directory after setting "
		"step # aside",
	"run: fsync of the directory", "run: fsync of the directory above",
	"run: the steps to set aside", "run: identifying this process",
	"run/.sheaf/stage/#-*", "run/.sheaf/stage/#-*/alive-#", "run/.sheaf/stage/#-*/optimizer",
	"run: step #", "run/.sheaf/stage/#-*/sheaf.json", "run/.sheaf/aside/#-*",
	"run/.sheaf/aside/#-*/sheaf.json", "run/.sheaf/aside/#-*: moving it back",
	"run/.sheaf/aside/#-*: deleting it", "run/.sheaf/aside/#-*: finding the step that it "
		"follows",
	"run/.sheaf/aside/#-*/sheaf.sums: finding the file that the manifest names",
	"run/.sheaf/aside/#-*/config.json: finding the file that the manifest names",
	"run/.sheaf/aside/#-*/model-#-of-#.safetensors: finding the file that the manifest names",
	"run/.sheaf/aside/#-*/optimizer/optimizer-#-of-#.safetensors: finding the file that the "
	"manifest names",
	"run/checkpoint-#: finding the step that it follows",
	"run/checkpoint-#: brought back, but a power failure may set it aside again: fsync of the "
	"directory",
	"run/.sheaf/trash/#-*",
	"run/.sheaf/trash/#-*/sheaf.json",
	LATEST "",
	LATEST "/sheaf.json",
	LATEST "/sheaf.sums: finding the file that the manifest names",
	LATEST "/config.json: finding the file that the manifest names",
	LATEST "/model-#-of-#.safetensors: finding the file that the manifest names",
	LATEST "/optimizer/optimizer-#-of-#.safetensors: finding the file that the manifest names",
};

static void mask(char *to, const char *from)
{
	while (*from) {
		if (strspn(from, "0123456789abcdef") >= 32) {
			*to++ = '*';
			from += 32;
		} else if (*from >= '0' && *from <= '9') {
			*to++ = '#';
			from += strspn(from, "0123456789");
		} else {
			*to++ = *from++;
		}
	}
	*to = '\0';
}

static bool is_said(const char *sentence)
{
	static const char *const errors[] = { ": Input/output error", ": Too many open files" };
	char got[500], *error = NULL;

	mask(got, sentence);
	if (strncmp(got, SAYS, strlen(SAYS)) == 0)
		return true;
	for (size_t i = 0; i < 2 && !error; i++) {
		error = strstr(got, errors[i]);
		if (error && error[strlen(errors[i])])
			return false;
	}
	if (!error)
		return false;
	*error = '\0';
	for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++)
		if (strcmp(said[i], got) == 0)
			return true;
	return false;
}

/* ---- each call fails ---- */

struct operation {
	const char *name;
	bool writes;
	int (*call)(struct shf_store *s, struct answer *a, struct sheaf_error *err);
};

static int operate(const struct operation *o, const struct shf_sys *sys, struct answer *a,
                   struct sheaf_error *err)
{
	struct shf_store s;
	int rc = o->writes ? shf_store_own(&s, sys, RUN, false, 0, err)
	                   : shf_store_open(&s, sys, RUN, err);

	aside_empties = o->call == do_restore || o->call == do_delete;
	*a = (struct answer){ .n = 0 };
	if (rc < 0)
		return rc;
	rc = o->call(&s, a, err);
	if (rc < 0 && !err->msg[0])
		print_error("%s: %d without a sentence\n", o->name, rc);
	shf_store_close(&s);
	return rc;
}

/* The run as a reader finds it afterwards. */
static void look(struct simdisk *disk, struct answer *a)
{
	const struct shf_sys *sys = simdisk_process(disk, 99, 0);
	struct sheaf_error err;
	struct shf_store s;

	CHECK_RC(shf_store_open(&s, sys, RUN, &err), 0, &err);
	CHECK_RC(ask_list(&s, a, &err), 0, &err);
	CHECK_RC(ask_left(&s, a, &err), 0, &err);
	shf_store_close(&s);
}

static bool is_as(const char *what, const struct answer *got, const struct answer *want)
{
	if (strcmp(got->text, want->text) == 0)
		return true;
	print_error("%s is:\n%sand should be:\n%s", what, got->text, want->text);
	return false;
}

static bool same_after(const struct operation *o, struct simdisk *disk,
                       const struct answer *want)
{
	struct answer after = { .n = 0 };

	if (!o->writes)
		return true;
	look(disk, &after);
	return is_as("the run", &after, want);
}

static bool one_fails(const struct operation *o, struct simdisk_fault fault,
                      const struct answer *want, const struct answer *then, bool *last)
{
	struct simdisk *disk = simdisk_twin(base);
	const struct shf_sys *sys = simdisk_process(disk, 1, 0), *again;
	struct sheaf_error err = { 0 };
	struct answer got;
	size_t at;
	int rc;
	bool good;

	fault.process = sys;
	simdisk_fault(disk, &fault);
	at = simdisk_calls(disk) + (size_t)fault.nth - 1;
	rc = operate(o, sys, &got, &err);
	*last = !simdisk_fired(disk);
	simdisk_faults_clear(disk);
	if (rc == 0)
		good = is_as("the answer", &got, want) && same_after(o, disk, then);
	else
		good = is_said(err.msg) && !*last && fault.how != SIMDISK_ZERO;
	if (good && rc < 0 && o->writes) {
		again = simdisk_process(disk, 2, 0);
		rc = operate(o, again, &got, &err);
		good = rc == 0 && same_after(o, disk, then);
	}
	if (!good)
		print_error("%s: %d: %s: with %s %d: %s\n", o->name, rc, err.msg,
		            fault.kind == SIMDISK_ANY ? "call" : "descriptor", fault.nth,
		            fault.kind == SIMDISK_OPEN || at >= simdisk_calls(disk)
		            ? "" : simdisk_call_text(disk, at));
	simdisk_free(disk);
	return good;
}

static void each_call(const struct operation *o)
{
	static const struct simdisk_fault faults[] = {
		{ .error = EIO }, { .how = SIMDISK_ZERO, .kind = SIMDISK_OPEN },
		{ .error = EMFILE, .kind = SIMDISK_OPEN } };
	struct simdisk *disk;
	struct answer want, then = { .n = 0 };
	struct sheaf_error err;
	int bad = 0, n[3] = { 0 };

	build();
	disk = simdisk_twin(base);
	CHECK_RC(operate(o, simdisk_process(disk, 1, 0), &want, &err), 0, &err);
	look(disk, &then);
	simdisk_free(disk);
	for (int i = 0; i < 3; i++)
		for (bool last = false; !last && bad < 40; ) {
			struct simdisk_fault fault = faults[i];

			fault.nth = ++n[i];
			bad += !one_fails(o, fault, &want, &then, &last);
		}
	printf("# %s: each of %d calls and %d descriptors\n", o->name, n[0] - 1, n[1] - 1);
	CHECK_INT(bad, 0);
	CHECK(n[0] > 2 && n[1] > 2 && n[2] == n[1]);
}

#define EACH(claim, ...)                                                      \
	TEST(claim)                                                           \
	{                                                                     \
		static const struct operation o = { __VA_ARGS__ };            \
		each_call(&o);                                          \
	}

EACH(a_list_is_whole_or_says_what_it_lacks, "list", false, ask_list)
EACH(what_is_newest_is_that_or_unknown, "newest", false, ask_newest)
EACH(what_is_latest_is_that_or_unknown, "latest", false, ask_latest)
EACH(what_is_left_is_told_whole_or_not, "left", false, ask_left)
EACH(a_manifest_is_read_or_not, "manifest", false, ask_manifest)
EACH(an_identity_is_known_or_not, "identity", false, ask_identity)
EACH(an_opened_run_is_recovered_or_will_be, "own", true, do_nothing)
EACH(a_step_is_marked_or_can_be, "mark", true, do_keep)
EACH(a_mark_is_taken_away_or_can_be, "unmark", true, do_unmark)
EACH(a_rewind_is_done_or_can_be, "rewind", true, do_rewind)
EACH(a_rewind_of_nothing_is_counted_or_can_be, "rewind none", true, do_rewind_none)
EACH(a_step_is_brought_back_or_can_be, "restore", true, do_restore)
EACH(what_was_set_aside_is_deleted_or_can_be, "delete", true, do_delete)
EACH(a_prune_is_done_or_can_be, "prune", true, do_prune)
EACH(a_try_is_counted_or_can_be, "count", true, do_count)
EACH(a_stage_is_made_and_locked_or_can_be, "stage", true, do_stage)
EACH(all_is_rewound_to_the_first_step_or_can_be, "rewind all", true, do_rewind_all)
EACH(the_first_step_loses_its_mark_or_can, "unmark first", true, do_unmark_first)
EACH(done_files_are_put_or_can_be, "done", true, do_done)

static const struct operation all[] = {
	{ "list", false, ask_list }, { "newest", false, ask_newest },
	{ "latest", false, ask_latest }, { "left", false, ask_left },
	{ "manifest", false, ask_manifest }, { "first", false, ask_first },
	{ "own", true, do_nothing }, { "mark", true, do_keep },
	{ "unmark", true, do_unmark }, { "unmark first", true, do_unmark_first },
	{ "rewind", true, do_rewind }, { "rewind all", true, do_rewind_all },
	{ "restore", true, do_restore }, { "delete", true, do_delete },
	{ "no rewind", true, do_rewind_none }, { "prune", true, do_prune },
	{ "count", true, do_count }, { "stage", true, do_stage },
	{ "done", true, do_done },
};

/* The first step may have any number. */
TEST(step_0_is_one_like_others)
{
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct answer got[2], then[2] = { { .n = 0 }, { .n = 0 } };
		struct sheaf_error err;

		for (int zero = 0; zero < 2; zero++) {
			struct simdisk *disk;

			shift = -zero;
			disk = built();
			CHECK_RC(operate(&all[i], simdisk_process(disk, 1, 0), &got[zero], &err),
			         0, &err);
			look(disk, &then[zero]);
			simdisk_free(disk);
		}
		shift = 0;
		if (!is_as("the answer", &got[1], &got[0]) || !is_as("the run", &then[1], &then[0]))
			print_error("of %s\n", all[i].name);
		CHECK_STR(got[1].text, got[0].text);
		CHECK_STR(then[1].text, then[0].text);
	}
}

/* ---- links ---- */

/* The first that begins with a number. */
static int first_name(void *arg, const char *name)
{
	if (name[0] < '0' || name[0] > '9')
		return 0;
	snprintf(arg, 100, "%.90s", name);
	return 1;
}

/* The path, in which * stands for the first name there of a step and a session. */
static void find_path(struct simdisk *disk, const char *pattern, char path[300])
{
	const struct shf_sys *sys = simdisk_process(disk, 98, 0);
	const char *star = strchr(pattern, '*');
	char name[100] = "";
	int dir;

	snprintf(path, 300, RUN "/%.*s", star ? (int)(star - pattern) : 100, pattern);
	if (!star)
		return;
	dir = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0);
	CHECK(dir >= 0);
	CHECK_INT(shf_sys_list(sys, dir, first_name, name), 1);
	shf_sys_close(sys, dir);
	snprintf(path + strlen(path), 200, "%s%s", name, star + 1);
}

/* In the place of that file or folder stands a link to where it was moved, or to nowhere. */
static struct simdisk *linked(const char *pattern, bool nowhere)
{
	struct simdisk *disk = simdisk_twin(base);
	char path[300];

	find_path(disk, pattern, path);
	if (simdisk_exists(disk, path)) {
		CHECK_INT(simdisk_copy(disk, path, "/elsewhere"), 0);
		CHECK_INT(simdisk_remove(disk, path), 0);
	} else {
		CHECK_INT(simdisk_put(disk, "/elsewhere", "sheaf-rewind 1\n", 15), 0);
	}
	CHECK_INT(simdisk_symlink(disk, nowhere ? "/not-there" : "/elsewhere", path), 0);
	return disk;
}

/* Of no operation can it be told whether there is something behind the link. */
static void as_if_nowhere(const struct operation *o, const char *pattern)
{
	struct answer got[2];
	struct sheaf_error err[2] = { { 0 }, { 0 } };
	int rc[2];

	for (int nowhere = 0; nowhere < 2; nowhere++) {
		struct simdisk *disk = linked(pattern, nowhere);
		uint64_t was = simdisk_hash(disk, "/elsewhere");

		rc[nowhere] = operate(o, simdisk_process(disk, 1, 0), &got[nowhere],
		                      &err[nowhere]);
		CHECK(simdisk_hash(disk, "/elsewhere") == was);
		CHECK(!simdisk_exists(disk, "/not-there"));
		simdisk_free(disk);
	}
	if (rc[0] != rc[1] || strcmp(err[0].msg, err[1].msg) != 0 ||
	    !is_as("the answer", &got[0], &got[1]))
		print_error("%s: %s is a link: %d, %s; and to nowhere: %d, %s\n", o->name,
		            pattern, rc[0], err[0].msg, rc[1], err[1].msg);
	CHECK_INT(rc[0], rc[1]);
	CHECK_STR(err[0].msg, err[1].msg);
	CHECK_STR(got[0].text, got[1].text);
}

TEST(a_link_in_a_run_is_followed_by_nobody)
{
	static const char *const paths[] = { ".sheaf", ".sheaf/lock", ".sheaf/door", ".sheaf/run",
		".sheaf/stage", ".sheaf/trash", ".sheaf/aside", ".sheaf/marks", ".sheaf/tries",
		".sheaf/descent", ".sheaf/rewind", ".sheaf/rewinds", ".sheaf/marks/3",
		".sheaf/marks/4", "checkpoint-7", "checkpoint-7/sheaf.json",
		"checkpoint-7/sheaf.sums", "checkpoint-7/config.json", "checkpoint-7/optimizer",
		".sheaf/stage/*", ".sheaf/stage/*/alive-0", ".sheaf/stage/*/alive-1",
		".sheaf/trash/*", ".sheaf/trash/*/sheaf.json", ".sheaf/trash/*/sheaf.pruned",
		".sheaf/aside/*", ".sheaf/aside/*/sheaf.json", ".sheaf/tries/*" };
	static const char skip[] = "no rewind, unmark first, manifest, first";

	build();
	for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
		for (size_t k = 0; k < sizeof(all) / sizeof(*all); k++)
			if (!strstr(skip, all[k].name))
				as_if_nowhere(&all[k], paths[i]);
}
