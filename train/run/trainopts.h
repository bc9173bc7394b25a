/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a training: one table says how each is called, what it may be, its default, and
 * its help. */
#ifndef TRAINOPTS_H
#define TRAINOPTS_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tr_error.h"

/* Where a value comes from. A later one wins. */
enum tr_source { TR_FROM_DEFAULT, TR_FROM_CHECKPOINT, TR_FROM_FILE, TR_FROM_FLAG };

struct tr_axes {
	int64_t dp, tp, pp;
};
enum { TR_OPTS_MAX = 64 };

struct tr_opts {
	char *run, *model, *data, *resume;      /* owned, as all strings */
	int64_t init, decay, dtype;             /* which of their choices */
	char *isa;
	int64_t seed, batch, micro_batch, seq, steps, epochs, warmup, save_every, keep_last,
		timeout_ms;
	int64_t shuffle, rewind;                /* 0 or 1 */
	struct tr_axes mesh, virtual;           /* 0: not set */
	double lr, min_lr, beta1, beta2, eps, weight_decay, clip;
	unsigned char source[TR_OPTS_MAX];      /* enum tr_source, by number of the option */
};
enum { TR_INIT_RANDOM, TR_INIT_MODEL };

/* Sets all to their defaults. */
int tr_opts_init(struct tr_opts *o, struct tr_error *err);
void tr_opts_release(struct tr_opts *o);
/* Sets an option from text, unless its value comes from a better source. where: stands before
 * messages, such as "--" or "a.yaml: line 3: ". EINVAL: there is no such option, or it may not have
 * that value. */
int tr_opts_set(struct tr_opts *o, const char *key, const char *text, enum tr_source source,
		const char *where, struct tr_error *err);
/* Whether an option has no argument on the command line: a boolean. -1: there is no such option. */
int tr_opts_is_switch(const char *key);
/* Completes what depends on other options and on the number of ranks, and checks them. EINVAL names
 * the options. */
int tr_opts_check(struct tr_opts *o, int ranks, struct tr_error *err);

/* Reads a file of YAML: a mapping of options to values, or, for mesh and virtual, to mappings.
 * Anchors, tags, duplicate keys and everything else are refused with the line. */
int tr_opts_read_yaml(struct tr_opts *o, const char *text, size_t n, const char *name,
		      enum tr_source source, struct tr_error *err);
/* Writes YAML that reproduces them: all options that are set or have a default. Returns the text,
 * which the caller frees; NULL: no memory. */
char *tr_opts_yaml(const struct tr_opts *o);
/* Keys of the options that differ, NULL at the end; at most TR_OPTS_MAX + 1 of them. Options that
 * say how to run and not what to compute are left out. */
void tr_opts_differ(const struct tr_opts *a, const struct tr_opts *b, const char **keys);
void tr_opts_help(FILE *to);
#endif
