/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of commitoracle.h. It reads the disk only by simdisk_get and by listing directories,
 * and the promises from the world's ledger. */
#include "commitoracle.h"
#include "plaincrc.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 64

static const struct foreign {
	const char *path, *text;
} foreign[] = {
	{ RUN "/notes.txt", "lr 3e-4" },
	{ RUN "/checkpoint-abc/model.safetensors", "abc" },
	{ RUN "/checkpoint-007/model.safetensors", "seven" },
	{ RUN "/checkpoint-90/model.safetensors", "ninety" },
	{ RUN "/checkpoint-91", "a file" },
	{ RUN "/.sheaf/mine", "kept" },
	{ RUN "/.sheaf/stage/thoughts", "kept too" },
	{ RUN "/.sheaf/trash/treasure/x", "gold" },
};

struct judge {
	const struct world *w;
	struct simdisk *disk;
	const struct shf_sys *sys;
	int64_t cut;
	bool recovered, seen[KNOWN_MAX];
	char *buf;
	bool bad;
};

struct names {
	char text[NAMES_MAX][80];
	size_t n;
};

void oracle_put_foreign(struct simdisk *disk)
{
	for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
		if (simdisk_put(disk, foreign[i].path, foreign[i].text, strlen(foreign[i].text)))
			abort();
}

__attribute__((format(printf, 2, 3)))
static void bad(struct judge *j, const char *fmt, ...)
{
	va_list args;

	if (j->bad)
		return;
	j->bad = true;
	va_start(args, fmt);
	vsnprintf(j->buf, 300, fmt, args);
	va_end(args);
}

static int add_name(void *arg, const char *name)
{
	struct names *names = arg;

	if (names->n == NAMES_MAX || strlen(name) >= sizeof(names->text[0]))
		abort();
	strcpy(names->text[names->n++], name);
	return 0;
}

static bool list(struct judge *j, const char *path, struct names *names)
{
	int fd = shf_sys_open(j->sys, SHF_CWD, path, SHF_O_DIR, 0);

	names->n = 0;
	if (fd < 0)
		return false;
	shf_sys_list(j->sys, fd, add_name, names);
	shf_sys_close(j->sys, fd);
	return true;
}

/* The expected content of a file of a save. It is cached, because the same content is needed
 * thousands of times. */
struct wanted {
	char session[33], file[80];
	uint8_t bytes[5000];
	size_t n;
	uint64_t crc;
};

static const struct wanted *wanted_of(const char *session, const char *file, size_t n)
{
	static struct wanted all[64];
	static size_t next;
	struct wanted *w;

	for (size_t i = 0; i < 64; i++)
		if (all[i].n == n && !strcmp(all[i].session, session) && !strcmp(all[i].file, file))
			return &all[i];
	w = &all[next++ % 64];
	if (n > sizeof(w->bytes))
		abort();
	snprintf(w->session, sizeof(w->session), "%s", session);
	snprintf(w->file, sizeof(w->file), "%s", file);
	w->n = n;
	world_fill(w->bytes, n, session, file);
	w->crc = plain_crc(w->bytes, n);
	return w;
}

struct record {                 /* the members of a manifest that are used here */
	int64_t step;
	char session[33];
	size_t files_n;
	struct { char name[80]; uint64_t bytes, crc; } files[8];
};

static const char *after(const char *text, const char *key)
{
	const char *p = text ? strstr(text, key) : NULL;

	return p ? p + strlen(key) : NULL;
}

/* Returns false if the text is not a manifest with a valid checksum of its own. */
static bool read_manifest(const char *text, size_t n, struct record *r)
{
	static const char tail[] = ",\n \"self\": \"0123456789abcdef\"}\n";
	const size_t tail_n = sizeof(tail) - 1;
	const char *p;
	char *end;

	if (!text || n < tail_n || memcmp(text + n - tail_n, tail, 12) != 0 ||
	    memcmp(text + n - 3, "\"}\n", 3) != 0 ||
	    strtoull(text + n - 19, &end, 16) != plain_crc(text, n - tail_n))
		return false;
	memset(r, 0, sizeof(*r));
	p = after(text, "\"step\": ");
	r->step = p ? strtoll(p, NULL, 10) : -1;
	p = after(text, "\"session\": \"");
	if (p)
		memcpy(r->session, p, 32);
	for (p = after(text, "\"files\": ["); p && (p = after(p, "{\"name\": \"")) != NULL; ) {
		const char *quote = strchr(p, '"');

		if (r->files_n == 8 || !quote || quote - p >= 80)
			return false;
		memcpy(r->files[r->files_n].name, p, (size_t)(quote - p));
		p = after(quote, "\"bytes\": ");
		r->files[r->files_n].bytes = p ? strtoull(p, NULL, 10) : 0;
		p = after(p, "\"crc\": \"");
		r->files[r->files_n++].crc = p ? strtoull(p, NULL, 16) : 0;
	}
	return r->step >= 0 && r->session[0] && r->files_n == 4;
}

static void judge_file(struct judge *j, const char *dir, const struct record *r, size_t i)
{
	const struct wanted *want;
	char path[300];
	uint8_t *bytes;
	size_t n = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, r->files[i].name);
	bytes = simdisk_get(j->disk, path, &n);
	if (!bytes) {
		bad(j, "I8: %s is gone", path);
		return;
	}
	want = wanted_of(r->session, r->files[i].name, (size_t)r->files[i].bytes);
	if (n != want->n)
		bad(j, "I8: %s has %zu bytes", path, n);
	else if (memcmp(bytes, want->bytes, n) != 0)
		bad(j, "I8: %s holds other bytes than were written", path);
	else if (want->crc != r->files[i].crc)
		bad(j, "I8: %s does not match the manifest", path);
	free(bytes);
}

static bool is_named(const struct record *r, const char *folder, const char *name)
{
	char full[200];

	snprintf(full, sizeof(full), "%s%s%s", folder, folder[0] ? "/" : "", name);
	for (size_t i = 0; i < r->files_n; i++)
		if (strcmp(r->files[i].name, full) == 0)
			return true;
	return !folder[0] && (!strcmp(name, "sheaf.json") || !strcmp(name, "optimizer"));
}

/* Checks that everything that a manifest names is there and right, and nothing else. In a stage,
 * half of C6's rename may have left the old name, too. */
static void judge_whole(struct judge *j, const char *dir, const struct record *r, bool staged)
{
	struct names names;
	char sub[300];

	for (size_t i = 0; i < r->files_n; i++)
		judge_file(j, dir, r, i);
	list(j, dir, &names);
	for (size_t i = 0; i < names.n; i++)
		if (!is_named(r, "", names.text[i]) &&
		    !(staged && !strcmp(names.text[i], "sheaf.json.tmp")))
			bad(j, "I1: %s holds a stray %s", dir, names.text[i]);
	snprintf(sub, sizeof(sub), "%s/optimizer", dir);
	list(j, sub, &names);
	for (size_t i = 0; i < names.n; i++)
		if (!is_named(r, "optimizer", names.text[i]))
			bad(j, "I1: %s holds a stray %s", sub, names.text[i]);
}

static const struct known *known_of(struct judge *j, int64_t step, const char *session)
{
	for (size_t i = 0; i < j->w->known_n; i++)
		if (j->w->known[i].step == step && !strcmp(j->w->known[i].session, session))
			return &j->w->known[i];
	return NULL;
}

/* Returns 1 and sets *r for a manifest with a valid checksum of its own, 0 if there is none, -1 if
 * it is broken. */
static int manifest_of(struct judge *j, const char *dir, struct record *r)
{
	char path[300];
	size_t n = 0;
	char *text;
	int rc = -1;

	snprintf(path, sizeof(path), "%s/sheaf.json", dir);
	text = simdisk_get(j->disk, path, &n);
	if (!text)
		return 0;
	text = realloc(text, n + 1);
	if (!text)
		abort();
	text[n] = '\0';
	if (read_manifest(text, n, r))
		rc = 1;
	free(text);
	return rc;
}

/* Checks checkpoint-<n>: it is complete, and its save may have published it. */
static void judge_step(struct judge *j, const char *name, int64_t step)
{
	const struct known *k;
	struct record r;
	char dir[200];

	snprintf(dir, sizeof(dir), RUN "/%s", name);
	if (manifest_of(j, dir, &r) != 1) {
		bad(j, "I8: %s is visible without a valid manifest", dir);
		return;
	}
	if (r.step != step)
		bad(j, "I8: %s says it is step %lld", dir, (long long)r.step);
	k = known_of(j, step, r.session);
	if (!k) {
		bad(j, "I5: %s is of no known save", dir);
		return;
	}
	if (k->publishing >= j->cut)
		bad(j, "I1: %s appeared before it was published", dir);
	if (k->rc < 0 && k->rc != SHEAF_EINDOUBT)
		bad(j, "I7: %s exists though its save failed", dir);
	if (k->gone <= j->cut)
		bad(j, "%s is back, though it was %s", dir, k->rewound ? "rewound" : "pruned");
	judge_whole(j, dir, &r, false);
	j->seen[k - j->w->known] = true;
}

/* Parses "12" or "12-<session>", in canonical form. */
static bool number(const char *s, int64_t *step, const char **session)
{
	char *end, again[40];

	*step = strtoll(s, &end, 10);
	snprintf(again, sizeof(again), "%lld", (long long)*step);
	if (end == s || strlen(again) != (size_t)(end - s) || memcmp(again, s, strlen(again)))
		return false;
	*session = *end == '-' ? end + 1 : NULL;
	return *end == '\0' || (*end == '-' && strlen(end + 1) == 32);
}

static void judge_stage(struct judge *j)
{
	struct names names;
	const char *session;
	struct record r;
	char dir[200];
	int64_t step;

	list(j, RUN "/.sheaf/stage", &names);
	for (size_t i = 0; i < names.n; i++) {
		int found;

		if (!number(names.text[i], &step, &session) || !session)
			continue;
		snprintf(dir, sizeof(dir), RUN "/.sheaf/stage/%s", names.text[i]);
		for (size_t q = 0; q < j->w->known_n; q++)
			if (!strcmp(j->w->known[q].stage, names.text[i]) &&
			    j->w->known[q].acked <= j->cut)
				bad(j, "C9: %s is still there after its step was told", dir);
		if (j->recovered)
			continue;       /* may be half deleted; it cannot be published now */
		found = manifest_of(j, dir, &r);
		if (found < 0)
			bad(j, "I2: %s has a broken manifest", dir);
		else if (found && known_of(j, step, session)->rc == 0)
			judge_whole(j, dir, &r, true);
	}
}

/* Checks that steps which a rewind set aside are kept, complete. */
static void judge_aside(struct judge *j)
{
	for (size_t i = 0; i < j->w->known_n; i++) {
		const struct known *k = &j->w->known[i];
		struct record r;
		char dir[200];

		if (!k->rewound || k->gone > j->cut)
			continue;
		snprintf(dir, sizeof(dir), RUN "/.sheaf/aside/%s", k->stage);
		if (manifest_of(j, dir, &r) != 1)
			bad(j, "%s was lost by a rewind that was acknowledged", dir);
		else
			judge_whole(j, dir, &r, false);
	}
}

/* Checks that a rewind that a cut interrupted is finished, or never happened: all its steps are
 * there or none. */
static void judge_rewind(struct judge *j)
{
	for (size_t a = 0; a < j->w->known_n; a++)
		for (size_t b = 0; b < a; b++) {
			const struct known *x = &j->w->known[a], *y = &j->w->known[b];

			if (x->rewound && y->rewound && x->leaving == y->leaving &&
			    x->leaving < j->cut && j->seen[a] != j->seen[b])
				bad(j, "a rewind stopped half-way: step %lld is %s, %lld is %s",
				    (long long)x->step, j->seen[a] ? "there" : "aside",
				    (long long)y->step, j->seen[b] ? "there" : "aside");
		}
}

/* Returns a step's mark, and checks it: it is the last one acknowledged, or one in progress. */
static char judge_mark(struct judge *j, int64_t step)
{
	char path[64], mark = 0, want = 0, other = 0;
	bool open = false;
	size_t n = 0;
	char *text;

	snprintf(path, sizeof(path), RUN "/.sheaf/marks/%lld", (long long)step);
	text = simdisk_get(j->disk, path, &n);
	if (text)
		mark = n == 1 || (n == 34 && text[1] == ' ') ? text[0] : '?';
	free(text);
	for (size_t i = 0; i < j->w->marks_n; i++) {
		const struct marking *k = &j->w->marks[i];

		if (k->step != step || k->calling >= j->cut)
			continue;
		open = k->done > j->cut;
		other = open ? want : 0;
		want = k->mark;
	}
	if (mark != want && !(open && mark == other))
		bad(j, "the mark of step %lld is %d, not %d", (long long)step, mark, want);
	return mark;
}

static void judge_promises(struct judge *j)
{
	for (size_t i = 0; i < j->w->known_n; i++) {
		const struct known *k = &j->w->known[i];

		if (k->acked <= j->cut && k->leaving >= j->cut && !j->seen[i])
			bad(j, "I7: step %lld was acknowledged and is gone", (long long)k->step);
	}
	for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
		size_t n = 0;
		char *text = simdisk_get(j->disk, foreign[i].path, &n);

		if (!text || n != strlen(foreign[i].text) || memcmp(text, foreign[i].text, n))
			bad(j, "%s, which is not ours, was touched", foreign[i].path);
		free(text);
	}
}

const char *oracle_judge(const struct world *w, struct simdisk *crashed, int64_t cut,
                         bool recovered, int64_t *newest, char buf[300])
{
	struct judge j = { .w = w, .disk = crashed, .cut = cut, .recovered = recovered,
	                   .buf = buf };
	struct names names;
	const char *session;
	int64_t step, best = -1;

	j.sys = simdisk_process(crashed, 60000, 9);
	list(&j, RUN, &names);
	for (size_t i = 0; i < names.n; i++) {
		if (strncmp(names.text[i], "checkpoint-", 11) != 0 ||
		    !number(names.text[i] + 11, &step, &session) || session || step >= 90)
			continue;
		judge_step(&j, names.text[i], step);
		if (judge_mark(&j, step) != 'b' && step > best)
			best = step;
	}
	judge_stage(&j);
	judge_aside(&j);
	if (recovered)
		judge_rewind(&j);
	judge_promises(&j);
	simdisk_kill(crashed, j.sys);
	if (newest)
		*newest = best;
	return j.bad ? buf : NULL;
}
