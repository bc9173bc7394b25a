/* SPDX-License-Identifier: Apache-2.0 */
#include "trainopts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind { TEXT, INTEGER, NUMBER, SWITCH, CHOICE, AXES, COUNTS };
/* COMPUTES: the option changes what is computed, so a resume takes its value from the checkpoint if
 * it is not set. NEEDED: a job cannot do without it. OR_ZERO: 0 is below `least`, and may be set,
 * too. */
enum { COMPUTES = 1, NEEDED = 2, OR_ZERO = 4 };

struct option {
	const char *key;
	enum kind kind;
	unsigned flags;
	size_t at;                      /* in struct tr_opts */
	double least, most;
	const char *value;              /* default; NULL: none */
	const char *choices;            /* "a|b|c" */
	const char *help;
};

#define AT(field) offsetof(struct tr_opts, field)
#define MANY 1e15

static const struct option table[] = {
	{ "run", TEXT, NEEDED, AT(run), 0, 0, NULL, NULL,
	  "directory of the checkpoints; created if it does not exist" },
	{ "model", TEXT, COMPUTES | NEEDED, AT(model), 0, 0, NULL, NULL,
	  "the config.json of a model, or a Hugging Face directory that has one" },
	{ "init", CHOICE, COMPUTES, AT(init), 0, 0, "random", "random|model",
	  "initial weights: random, from seed, or read from the directory of model" },
	{ "seed", INTEGER, COMPUTES, AT(seed), 0, MANY, "1", NULL,
	  "seed of the initial weights and of the order of samples" },
	{ "dtype", CHOICE, COMPUTES, AT(dtype), 0, 0, "fp32", "fp32|bf16",
	  "type of weights and activations; with bf16 the optimizer has fp32 masters" },
	{ "mesh", AXES, 0, AT(mesh), 1, 65536, NULL, NULL,
	  "ranks of each axis, such as dp=2,tp=2; their product is the number of ranks" },
	{ "virtual", AXES, COMPUTES, AT(virtual), 1, 65536, NULL, NULL,
	  "pieces of sums, such as dp=4,tp=4: every mesh whose axes divide it gives equal bits" },
	{ "sp", SWITCH, 0, AT(sp), 0, 0, "false", NULL,
	  "with tp in mesh: cut the tokens outside attention, too, which saves memory" },
	{ "schedule", CHOICE, 0, AT(schedule), 0, 0, "1f1b", "1f1b|afab|interleaved",
	  "with pp in mesh: order in which a stage works; afab: all forward, then all backward" },
	{ "chunks", INTEGER, 0, AT(chunks), 1, TR_COUNTS_MAX, "1", NULL,
	  "with schedule interleaved: parts of the model that a stage has" },
	{ "stages", COUNTS, 0, AT(stages), 1, 65536, NULL, NULL,
	  "layers of each part of the model, such as 3,2,3; by default nearly equal numbers" },
	{ "zero", INTEGER, 0, AT(zero), 0, 2, "0", NULL,
	  "1: a rank of dp has moments for its share of the weights only; 2: also gradients" },
	{ "zero-form", CHOICE, 0, AT(zero_form), 0, 0, "tensor", "tensor|flat",
	  "with zero: shares of whole parameters, or equal ones that cut parameters" },
	{ "overlap", SWITCH, 0, AT(overlap), 0, 0, "false", NULL,
	  "with dp in mesh: exchange gradients and weights of layers while others are computed" },
	{ "batch", INTEGER, COMPUTES | NEEDED, AT(batch), 1, 1 << 24, NULL, NULL,
	  "samples in a step, over all ranks" },
	{ "micro-batch", INTEGER, 0, AT(micro_batch), 1, 1 << 24, NULL, NULL,
	  "samples that a rank computes at once; by default all, with pp in mesh a part of them" },
	{ "seq", INTEGER, COMPUTES | NEEDED, AT(seq), 1, 1 << 20, NULL, NULL,
	  "tokens in a sample" },
	{ "recompute", CHOICE, 0, AT(recompute), 0, 0, "none", "none|block",
	  "with block, keep only the input of each layer and compute it again; less memory" },
	{ "offload", TEXT, 0, AT(offload), 0, 0, NULL, NULL,
	  "directory for files that have the moments, masters and average, which saves memory" },
	{ "dropout", NUMBER, COMPUTES, AT(dropout), 0, 0.99, "0", NULL,
	  "share of the embedding and of the outputs of attention and MLP that is set to 0" },
	{ "attention-dropout", NUMBER, COMPUTES, AT(attention_dropout), 0, 0.99, "0", NULL,
	  "share of the probabilities of attention that is set to 0" },
	{ "steps", INTEGER, COMPUTES, AT(steps), 1, MANY, NULL, NULL,
	  "updates after which the training ends; lr falls until then" },
	{ "epochs", INTEGER, COMPUTES, AT(epochs), 1, 1 << 24, NULL, NULL,
	  "passes over the data after which the training ends, if steps does not before" },
	{ "optimizer", CHOICE, COMPUTES, AT(optimizer), 0, 0, "adamw", "adamw|muon",
	  "with muon, it updates the matrices of layers, and adamw everything else" },
	{ "lr", NUMBER, COMPUTES, AT(lr), 0, 1e3, "3e-4", NULL, "largest learning rate" },
	{ "min-lr", NUMBER, COMPUTES, AT(min_lr), 0, 1e3, "0", NULL,
	  "learning rate to which lr falls" },
	{ "warmup", INTEGER, COMPUTES, AT(warmup), 0, MANY, "0", NULL,
	  "steps in which the learning rate rises to lr" },
	{ "decay", CHOICE, COMPUTES, AT(decay), 0, 0, "cosine", "constant|linear|cosine",
	  "how the learning rate falls to min-lr" },
	{ "beta1", NUMBER, COMPUTES, AT(beta1), 0, 0.9999999, "0.9", NULL,
	  "decay rate of the first moment of AdamW, and of the momentum of Muon" },
	{ "beta2", NUMBER, COMPUTES, AT(beta2), 0, 0.9999999, "0.95", NULL,
	  "decay rate of the second moment of AdamW" },
	{ "eps", NUMBER, COMPUTES, AT(eps), 1.2e-38, 1, "1e-8", NULL, "epsilon of AdamW" },
	{ "weight-decay", NUMBER, COMPUTES, AT(weight_decay), 0, 100, "0.1", NULL,
	  "weight decay of matrices, also of the embedding and the head, not of vectors" },
	{ "ema", NUMBER, COMPUTES, AT(ema), 0, 0.9999999, "0", NULL,
	  "decay of a moving average of the weights, which checkpoints have, too; 0: none" },
	{ "clip", NUMBER, COMPUTES, AT(clip), 0, 1e30, "1", NULL,
	  "largest norm of the gradient; 0: no limit" },
	{ "data", TEXT, COMPUTES | NEEDED, AT(data), 0, 0, NULL, NULL,
	  "token file, made by sheaf-train data" },
	{ "shuffle", SWITCH, COMPUTES, AT(shuffle), 0, 0, "true", NULL,
	  "take the samples of each epoch in a random order, from seed" },
	{ "document-attention", SWITCH, COMPUTES, AT(document_attention), 0, 0, "false", NULL,
	  "keep attention, positions and targets inside each document of the data" },
	{ "eval-data", TEXT, 0, AT(eval_data), 0, 0, NULL, NULL,
	  "token file whose loss is computed, without training on it" },
	{ "eval-every", INTEGER, 0, AT(eval_every), 0, MANY, "0", NULL,
	  "steps from one evaluation of eval-data to the next; one is at the end in any case" },
	{ "eval-ema", SWITCH, 0, AT(eval_ema), 0, 0, "false", NULL,
	  "with ema: evaluate the average of the weights instead of the weights" },
	{ "save-every", INTEGER, 0, AT(save_every), 0, MANY, "0", NULL,
	  "steps from one checkpoint to the next; one is saved at the end in any case" },
	{ "save-memory-every", INTEGER, 0, AT(save_memory_every), 0, MANY, "0", NULL,
	  "steps from one checkpoint in the memory of the nodes to the next; see agent" },
	{ "agent", TEXT, 0, AT(agent), 0, 0, "auto", NULL,
	  "sheaf agent of each node, which keeps checkpoints in memory: auto, none or its socket" },
	{ "keep-last", INTEGER, 0, AT(keep_last), 0, 1 << 20, "0", NULL,
	  "newest checkpoints that are kept; 0: all" },
	{ "keep-every", INTEGER, 0, AT(keep_every), 0, INT32_MAX, "0", NULL,
	  "with keep-last: checkpoints whose step is a multiple of this are kept, too" },
	{ "keep-best", INTEGER, 0, AT(keep_best), 0, 1 << 20, "0", NULL,
	  "with keep-last: so many with the smallest loss of eval-data are kept, too" },
	{ "resume", TEXT, 0, AT(resume), 0, 0, "auto", NULL,
	  "where to begin: auto (newest one of run), none, RUN@STEP, RUN@latest or a directory" },
	{ "rewind", SWITCH, 0, AT(rewind), 0, 0, "false", NULL,
	  "with resume RUN@STEP of run itself: set the newer checkpoints aside" },
	{ "isa", TEXT, 0, AT(isa), 0, 0, "auto", NULL,
	  "instruction set: auto, portable, avx2, avx512, or avx512-bf16, which has other bits" },
	{ "stop-seconds", INTEGER, 0, AT(stop_seconds), 1, 1 << 24, "30", NULL,
	  "time that SIGUSR2, SIGTERM, SIGHUP and SIGINT leave to save the last step and stop" },
	{ "timeout-ms", INTEGER, 0, AT(timeout_ms), 1, 1 << 30, "600000", NULL,
	  "how long ranks wait for each other" },
	{ "link-gbps", NUMBER, OR_ZERO, AT(link_gbps), 1e-3, 1e6, "0", NULL,
	  "delay messages as a network of so many 10^9 bits a second would; 0: no delay" },
	{ "link-us", NUMBER, 0, AT(link_us), 0, 1e6, "0", NULL,
	  "delay messages as a network with a latency of so many microseconds would" },
	{ "trace", CHOICE, 0, AT(trace), 0, 0, "none", "none|samples",
	  "with samples, an event of each step and rank of dp: the positions of its samples" },
};
enum { OPTIONS = sizeof(table) / sizeof(table[0]) };
_Static_assert((int)OPTIONS <= (int)TR_OPTS_MAX, "struct tr_opts has no room for their sources");

static void *field(const struct tr_opts *o, const struct option *t)
{
	return (char *)(uintptr_t)o + t->at;
}

static int find(const char *key)
{
	for (int i = 0; i < OPTIONS; i++)
		if (strcmp(table[i].key, key) == 0)
			return i;
	return -1;
}

static int read_integer(const char *text, int64_t *x)
{
	char *end;
	long long value;

	errno = 0;
	value = strtoll(text, &end, 10);
	*x = value;
	return *text && !*end && !errno && strchr("-0123456789", *text);
}

static int read_number(const char *text, double *x)
{
	char *end;

	*x = strtod(text, &end);
	return *text && !*end && isfinite(*x) && *text != ' ';
}

/* "dp=2,tp=4". Axes that are not named are 1. */
static int read_axes(const struct option *t, const char *text, struct tr_axes *a)
{
	struct tr_axes got = { 0, 0, 0 };

	while (*text) {
		int64_t *axis = strncmp(text, "dp=", 3) == 0 ? &got.dp :
			strncmp(text, "tp=", 3) == 0 ? &got.tp :
			strncmp(text, "pp=", 3) == 0 ? &got.pp : NULL;
		char one[24];
		size_t n;

		if (!axis || *axis)
			return 0;
		text += 3;
		n = strcspn(text, ",");
		if (n >= sizeof(one))
			return 0;
		snprintf(one, sizeof(one), "%.*s", (int)n, text);
		if (!read_integer(one, axis) || (double)*axis < t->least ||
		    (double)*axis > t->most)
			return 0;
		text += n;
		if (*text == ',' && !*++text)
			return 0;
	}
	a->dp = got.dp ? got.dp : 1;
	a->tp = got.tp ? got.tp : 1;
	a->pp = got.pp ? got.pp : 1;
	return got.dp || got.tp || got.pp;
}

/* "3,2,3" */
static int read_counts(const struct option *t, const char *text, struct tr_counts *c)
{
	struct tr_counts got = { .n = 0 };

	for (;;) {
		size_t n = strcspn(text, ",");
		char one[24];

		if (n >= sizeof(one) || got.n == TR_COUNTS_MAX)
			return 0;
		snprintf(one, sizeof(one), "%.*s", (int)n, text);
		if (!read_integer(one, &got.count[got.n]) ||
		    (double)got.count[got.n] < t->least || (double)got.count[got.n] > t->most)
			return 0;
		got.n++;
		if (!text[n])
			break;
		text += n + 1;
	}
	*c = got;
	return 1;
}

static int read_choice(const struct option *t, const char *text, int64_t *x)
{
	const char *at = t->choices;

	for (*x = 0; at; (*x)++) {
		size_t n = strcspn(at, "|");

		if (strlen(text) == n && strncmp(at, text, n) == 0)
			return 1;
		at = at[n] ? at + n + 1 : NULL;
	}
	return 0;
}

static int within(const struct option *t, double x)
{
	return (x >= t->least && x <= t->most) || (x == 0 && (t->flags & OR_ZERO));
}

/* Returns whether the character at c is U+2028, U+2029, U+FFFE or U+FFFF. YAML takes the first two
 * for ends of lines, and refuses the others. */
static int is_no_text(const char *c)
{
	return strncmp(c, "\xe2\x80\xa8", 3) == 0 || strncmp(c, "\xe2\x80\xa9", 3) == 0 ||
		strncmp(c, "\xef\xbf\xbe", 3) == 0 || strncmp(c, "\xef\xbf\xbf", 3) == 0;
}

/* Returns whether a text is UTF-8 without control characters. YAML and JSON can hold it
 * unchanged. */
static int is_text(const char *text)
{
	const unsigned char *c = (const unsigned char *)text;

	while (*c) {
		int more = *c < 0x80 ? 0 : *c >= 0xc2 && *c < 0xe0 ? 1 : *c >= 0xe0 && *c < 0xf0 ?
			2 : *c >= 0xf0 && *c < 0xf5 ? 3 : -1;

		if (more < 0 || *c < ' ' || *c == 0x7f || (*c == 0xc2 && c[1] < 0xa0) ||
		    (*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] > 0x9f) ||
		    (*c == 0xf0 && c[1] < 0x90) || (*c == 0xf4 && c[1] > 0x8f) ||
		    is_no_text((const char *)c))
			return 0;
		for (c++; more > 0; more--, c++)
			if ((*c & 0xc0) != 0x80)
				return 0;
	}
	return 1;
}

/* Returns whether the option may have that value. */
static int read_value(const struct option *t, const char *text, struct tr_opts *o)
{
	int64_t x;
	double d;

	switch (t->kind) {
	case INTEGER:
		if (!read_integer(text, &x) || !within(t, (double)x))
			return 0;
		break;
	case COUNTS:
		return read_counts(t, text, field(o, t));
	case NUMBER:
		if (!read_number(text, &d) || !within(t, d))
			return 0;
		*(double *)field(o, t) = d;
		return 1;
	case SWITCH:
		x = strcmp(text, "true") == 0;
		if (!x && strcmp(text, "false") != 0)
			return 0;
		break;
	case CHOICE:
		if (!read_choice(t, text, &x))
			return 0;
		break;
	case AXES:
		return read_axes(t, text, field(o, t));
	default:
		return *text != 0 && is_text(text);
	}
	*(int64_t *)field(o, t) = x;
	return 1;
}

static void say_kind(const struct option *t, char *to, size_t n)
{
	switch (t->kind) {
	case INTEGER:
		snprintf(to, n, "a whole number from %.0f to %.0f", t->least, t->most);
		break;
	case NUMBER:
		if (t->flags & OR_ZERO)
			snprintf(to, n, "0, or a number from %.9g to %.9g", t->least, t->most);
		else
			snprintf(to, n, "a number from %.9g to %.9g", t->least, t->most);
		break;
	case SWITCH:
		snprintf(to, n, "true or false");
		break;
	case CHOICE:
		snprintf(to, n, "one of %s", t->choices);
		break;
	case AXES:
		snprintf(to, n, "such as dp=2,tp=2, with dp, tp and pp from 1");
		break;
	case COUNTS:
		snprintf(to, n, "such as 3,2,3, each from %.0f to %.0f", t->least, t->most);
		break;
	default:
		snprintf(to, n, "a text of UTF-8 without control characters");
	}
}

static int refuse_newer(const char *where, const char *key, struct tr_error *err)
{
	return tr_fail(err, TR_EFORMAT, "%s%s: this version does not know this option or its "
		       "value, so a newer one has saved the checkpoint; use a newer sheaf-train",
		       where, key);
}

/* Returns whether an option is taken from a checkpoint. If a flag or a file has set steps or
 * epochs, the other of the two is not taken, because each says when the training ends. */
static int is_taken(const struct tr_opts *o, int i)
{
	static const char *const ends[] = { "steps", "epochs" };
	int n = sizeof(ends) / sizeof(ends[0]);

	/* Only options that change what is computed are taken. */
	if (!(table[i].flags & COMPUTES))
		return 0;
	for (int k = 0; k < n; k++)
		if (strcmp(table[i].key, ends[k]) == 0 &&
		    o->source[find(ends[n - 1 - k])] > TR_FROM_CHECKPOINT)
			return 0;
	return 1;
}

int tr_opts_set(struct tr_opts *o, const char *key, const char *text, enum tr_source source,
		const char *where, struct tr_error *err)
{
	int i = find(key);
	const struct option *t = &table[i < 0 ? 0 : i];
	char expected[80], *copy;

	if (i < 0 && source == TR_FROM_CHECKPOINT)
		return refuse_newer(where, key, err);
	if (i < 0)
		return tr_fail(err, TR_EINVAL, "%s%s: there is no such option; see sheaf-train "
			       "--help", where, key);
	if (o->source[i] > source || (source == TR_FROM_CHECKPOINT && !is_taken(o, i)))
		return 0;
	if (!read_value(t, text, o)) {
		if (source == TR_FROM_CHECKPOINT)
			return refuse_newer(where, key, err);
		say_kind(t, expected, sizeof(expected));
		return tr_fail(err, TR_EINVAL, "%s%s: it must be %s, not '%.100s'", where, key,
			       expected, text);
	}
	o->source[i] = (unsigned char)source;
	if (t->kind != TEXT)
		return 0;
	copy = strdup(text);
	if (!copy)
		return tr_fail(err, TR_ENOMEM, "no memory for the options");
	free(*(char **)field(o, t));
	*(char **)field(o, t) = copy;
	return 0;
}

int tr_opts_is_switch(const char *key)
{
	int i = find(key);

	return i >= 0 && table[i].kind == SWITCH;
}

int tr_opts_is_list(const char *key)
{
	int i = find(key);

	return i < 0 || table[i].kind == COUNTS;
}

int tr_opts_init(struct tr_opts *o, struct tr_error *err)
{
	*o = (struct tr_opts){ .seed = 0 };
	for (int i = 0; i < OPTIONS; i++) {
		int rc = table[i].value ? tr_opts_set(o, table[i].key, table[i].value,
						      TR_FROM_DEFAULT, "", err) : 0;

		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Leaves an option without a value. */
static void clear(struct tr_opts *o, const struct option *t)
{
	void *at = field(o, t);

	switch (t->kind) {
	case TEXT:
		free(*(char **)at);
		*(char **)at = NULL;
		break;
	case AXES:
		*(struct tr_axes *)at = (struct tr_axes){ 0, 0, 0 };
		break;
	case COUNTS:
		((struct tr_counts *)at)->n = 0;
		break;
	default:
		*(int64_t *)at = 0;
	}
}

int tr_opts_reset(struct tr_opts *o, struct tr_error *err)
{
	int rc = 0;

	for (int i = 0; rc == 0 && i < OPTIONS; i++) {
		if (o->source[i] > TR_FROM_CHECKPOINT)
			continue;
		o->source[i] = TR_FROM_DEFAULT;
		if (table[i].value)
			rc = tr_opts_set(o, table[i].key, table[i].value, TR_FROM_DEFAULT, "", err);
		else
			clear(o, &table[i]);
	}
	return rc;
}

void tr_opts_release(struct tr_opts *o)
{
	for (int i = 0; i < OPTIONS; i++)
		if (table[i].kind == TEXT)
			free(*(char **)field(o, &table[i]));
	*o = (struct tr_opts){ .seed = 0 };
}

static void write_counts(const struct tr_counts *c, char *to, size_t n)
{
	*to = 0;
	for (int i = 0; i < c->n; i++)
		snprintf(to + strlen(to), n - strlen(to), "%s%" PRId64, i ? "," : "", c->count[i]);
}

/* Writes the shortest text that reads back as the same number. */
static void write_number(double x, char *to, size_t n)
{
	for (int digits = 1; digits <= 17; digits++) {
		snprintf(to, n, "%.*g", digits, x);
		if (strtod(to, NULL) == x)
			break;
	}
}

/* Writes the value of an option as text. Returns 0 if it has none. */
static int value_text(const struct tr_opts *o, const struct option *t, char *to, size_t n)
{
	const void *at = field(o, t);
	const struct tr_axes *a = at;
	int64_t x = 0;
	const char *choice = t->choices;

	if (t->kind == INTEGER || t->kind == SWITCH || t->kind == CHOICE)
		memcpy(&x, at, sizeof(x));
	switch (t->kind) {
	case TEXT:
		if (*(char *const *)at)
			snprintf(to, n, "%s", *(char *const *)at);
		return *(char *const *)at != NULL;
	case INTEGER:
		snprintf(to, n, "%" PRId64, x);
		return t->value || x;
	case NUMBER:
		write_number(*(const double *)at, to, n);
		return 1;
	case SWITCH:
		snprintf(to, n, "%s", x ? "true" : "false");
		return 1;
	case CHOICE:
		for (; x > 0; x--)
			choice = strchr(choice, '|') + 1;
		snprintf(to, n, "%.*s", (int)strcspn(choice, "|"), choice);
		return 1;
	case COUNTS:
		write_counts(at, to, n);
		return *to != 0;
	default:
		snprintf(to, n, "{dp: %" PRId64 ", tp: %" PRId64 ", pp: %" PRId64 "}", a->dp, a->tp,
			 a->pp);
		return a->dp != 0;
	}
}

/* Text is quoted, because YAML would read some of it as something else. */
static void write_option(FILE *to, const struct tr_opts *o, const struct option *t)
{
	char text[4200];

	if (!value_text(o, t, text, sizeof(text)))
		return;
	fprintf(to, "%s: ", t->key);
	if (t->kind != TEXT) {
		fprintf(to, "%s\n", text);
		return;
	}
	fputc('\'', to);
	for (const char *c = text; *c; c++)
		fprintf(to, *c == '\'' ? "''" : "%c", *c);
	fputs("'\n", to);
}

char *tr_opts_yaml(const struct tr_opts *o)
{
	char *text = NULL;
	size_t n;
	FILE *to = open_memstream(&text, &n);

	if (!to)
		return NULL;
	for (int i = 0; i < OPTIONS; i++)
		write_option(to, o, &table[i]);
	if (fclose(to) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

void tr_opts_differ(const struct tr_opts *a, const struct tr_opts *b, const char **keys)
{
	char x[4200], y[4200];

	for (int i = 0; i < OPTIONS; i++) {
		const struct option *t = &table[i];
		int has = value_text(a, t, x, sizeof(x)), had = value_text(b, t, y, sizeof(y));

		if ((t->flags & COMPUTES) && (has != had || (has && strcmp(x, y) != 0)))
			*keys++ = t->key;
	}
	*keys = NULL;
}

void tr_opts_help(FILE *to)
{
	for (int i = 0; i < OPTIONS; i++) {
		const struct option *t = &table[i];
		char kind[80];

		say_kind(t, kind, sizeof(kind));
		fprintf(to, "  %-13s %s\n", t->key, t->help);
		fprintf(to, "  %-13s (%s%s%s)\n", "", kind,
			t->value ? "; default " : t->flags & NEEDED ? "; must be given" : "",
			t->value ? t->value : "");
	}
}

const char *tr_opts_missing(const struct tr_opts *o)
{
	char text[4200];

	for (int i = 0; i < OPTIONS; i++)
		if ((table[i].flags & NEEDED) && !value_text(o, &table[i], text, sizeof(text)))
			return table[i].key;
	return NULL;
}
