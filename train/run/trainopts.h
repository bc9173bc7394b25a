/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a job. One table has the name, type, limits, default and help of each. */
#ifndef TRAINOPTS_H
#define TRAINOPTS_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tr_error.h"

/* Where a value comes from. A later source overrides an earlier one. */
enum tr_source { TR_FROM_DEFAULT, TR_FROM_CHECKPOINT, TR_FROM_FILE, TR_FROM_FLAG };

struct tr_axes {
	int64_t dp, tp, pp;
};
enum { TR_OPTS_MAX = 64, TR_COUNTS_MAX = 512 };
struct tr_counts {
	int n;                          /* 0: not set */
	int64_t count[TR_COUNTS_MAX];
};

struct tr_opts {
	char *run, *model, *data, *eval_data, *resume;  /* owned, as all strings */
	/* The number of the choice. */
	int64_t init, decay, dtype, trace, schedule, zero_form, recompute, optimizer;
	char *isa, *offload, *agent;
	int64_t seed, batch, micro_batch, seq, steps, epochs, warmup, eval_every, save_every,
		save_memory_every, keep_last, keep_every, keep_best, stop_seconds, timeout_ms,
		chunks, zero;
	int64_t shuffle, rewind, sp, document_attention, overlap,
		eval_ema;                       /* 0 or 1 */
	struct tr_axes mesh, virtual;           /* 0: not set */
	struct tr_counts stages;
	double lr, min_lr, beta1, beta2, eps, weight_decay, ema, clip, dropout,
		attention_dropout, link_gbps, link_us;
	unsigned char source[TR_OPTS_MAX];      /* enum tr_source, by number of the option */
};
enum { TR_INIT_RANDOM, TR_INIT_MODEL };
enum { TR_TRACE_NONE, TR_TRACE_SAMPLES };
enum { TR_ADAMW, TR_MUON };

/* Sets all options to their defaults. */
int tr_opts_init(struct tr_opts *o, struct tr_error *err);
void tr_opts_release(struct tr_opts *o);
/* Sets all options to their defaults, or to no value, that neither a file nor a flag has set: those
 * of a checkpoint, and those that tr_opts_check has computed. */
int tr_opts_reset(struct tr_opts *o, struct tr_error *err);
/* Sets an option from text, unless its value has a source that overrides this one. From a
 * checkpoint come only options that change what is computed. If a file or a flag has set steps or
 * epochs, neither of them comes from a checkpoint.
 * where  the beginning of messages, such as "--" or "a.yaml: line 3: ".
 * EINVAL: there is no such option, or it may not have that value. EFORMAT: the same, but the source
 * is TR_FROM_CHECKPOINT: a newer version of the trainer wrote the checkpoint. */
int tr_opts_set(struct tr_opts *o, const char *key, const char *text, enum tr_source source,
		const char *where, struct tr_error *err);
/* Returns whether a key is that of an option which is true or false, so that --KEY alone sets
 * it. */
int tr_opts_is_switch(const char *key);
/* Returns whether a key is that of an option whose value is several numbers, or of none. */
int tr_opts_is_list(const char *key);
/* Returns the key of an option that must be set and is not, or NULL. */
const char *tr_opts_missing(const struct tr_opts *o);
/* Sets the options that follow from others and from the number of ranks, and checks that all fit
 * together.
 * ranks  0: it is still unknown, so only what does not depend on it is checked.
 * EINVAL: they do not; the message names them. */
int tr_opts_check(struct tr_opts *o, int ranks, struct tr_error *err);

/* Sets options from YAML: a mapping of options to values, or, for mesh and virtual, to mappings,
 * and for stages to a list.
 * Everything else, such as anchors, tags and duplicate keys, is EINVAL. The message has the
 * line. */
int tr_opts_read_yaml(struct tr_opts *o, const char *text, size_t n, const char *name,
		      enum tr_source source, struct tr_error *err);
/* Returns YAML that sets the same options: all that are set or have a default. The caller frees the
 * text. NULL: no memory. */
char *tr_opts_yaml(const struct tr_opts *o);
/* Sets `keys` to the keys of the options that are different in a and b, and a NULL after them. It
 * has room for TR_OPTS_MAX + 1. Options that do not change what is computed are left out. */
void tr_opts_differ(const struct tr_opts *a, const struct tr_opts *b, const char **keys);
/* Writes the list of all options for --help. */
void tr_opts_help(FILE *to);
#endif
