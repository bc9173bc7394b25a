/* SPDX-License-Identifier: Apache-2.0 */
/* The sheaf command: what its verbs share.
 *
 * Answers go to stdout, the rest to stderr; exit 0 yes, 1 no, 2 could not tell. With --json every
 * line is one object. Names come from files that anybody may have written, so nothing of them
 * reaches a terminal raw: cli_put for people, cli_str for JSON.
 */
#ifndef CLI_H
#define CLI_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "sheaf.h"
#include "sheaf-inspect.h"

#define CLI_POS_MAX 64
#define CLI_OPTS_MAX 16

struct cli_opt {
	const char *name, *arg, *help;  /* arg NULL: a flag; help NULL: not built, refused */
};
struct cli_args;
struct cli_verb {
	const char *name, *brief, *synopsis;
	const char *text;               /* paragraphs of its page */
	const char *exits, *examples;
	const struct cli_opt *opts;     /* ended by a NULL name; --json and --help are all verbs' */
	int pos_min, pos_max;
	const char *pos_names;          /* for the sentence when there are too few */
	int (*run)(const struct cli_args *a);   /* the exit status */
};
struct cli_args {
	const struct cli_verb *verb;
	const char *pos[CLI_POS_MAX];
	int pos_n;
	const char *value[CLI_OPTS_MAX];        /* by index in verb->opts; flags: "" */
	bool json, help;
};
extern const struct cli_verb cli_ls, cli_show, cli_verify, cli_diff, cli_cat, cli_plan, cli_prune,
	cli_mark, cli_rewind, cli_aside, cli_copy, cli_convert, cli_export, cli_import,
	cli_recover, cli_repair_index, cli_agent, cli_stats, cli_bench;
extern const struct cli_verb *const cli_verbs[];        /* NULL-ended */
const struct cli_verb *cli_verb_find(const char *name); /* NULL: none such */
const char *cli_near(const char *word, const char *const *words, size_t n);     /* NULL: none */

/* 0, or 2 with the line out. */
int cli_args_parse(struct cli_args *a, const struct cli_verb *verb, int argc, char **argv);
const char *cli_value(const struct cli_args *a, const char *name);      /* NULL: not given */
bool cli_flag(const struct cli_args *a, const char *name);
/* A number option: 0, or 2 with the line out. Not given: *out is left alone. */
int cli_int(const struct cli_args *a, const char *name, int64_t least, int64_t most, int64_t *out);
/* The same of bytes, which may end in K, M, G or T (powers of 1024). */
int cli_bytes(const struct cli_args *a, const char *name, int64_t least, int64_t most,
              int64_t *out);
int cli_real(const struct cli_args *a, const char *name, double *out);  /* finite, from 0 */
void cli_help_verb(FILE *f, const struct cli_verb *verb);
void cli_help_all(FILE *f);

/* Errors: one line `sheaf: what: where: why (hint)`, or an object, to stderr. */
int cli_usage(const struct cli_args *a, const char *where, const char *why, const char *hint);
int cli_error(const struct cli_args *a, int code, const char *where, const char *why,
              const char *hint);
int cli_nomem(const struct cli_args *a);
/* Begins a line on stderr that says something about a path, and is no error. */
void cli_say_of(const char *path);
/* The exit status of a result code: 1 if it answers no (damaged, different, of another format, or
 * what was to be made exists), 2 if the verb could not do its work. */
int cli_exit_code(int code);

/* Text of unknown origin. */
void cli_put(FILE *f, const char *text);
int cli_width(const char *text);                /* columns that cli_put takes */
json_t *cli_str(const char *text);              /* NULL or "": null */
json_t *cli_num(int64_t v);                     /* -1: null */
void cli_line(json_t *object);                  /* one line on stdout; steals */
void cli_part(json_t *value);                   /* the same without the end of line; steals */
void cli_open(json_t *object);                  /* and without its closing brace; steals */
/* All dimensions of a tensor, or NULL if it has more than the library tells. */
const int64_t *cli_dims(const struct sheaf_tensor *t);
void cli_shape(FILE *f, int ndim, const int64_t *shape);        /* [3, 4]; NULL: [99 dimensions] */
json_t *cli_shape_json(int ndim, const int64_t *shape);

/* Places: RUN, RUN@N, RUN@latest, a directory, a file. */
enum cli_kind { CLI_RUN, CLI_RUN_STEP, CLI_DIR, CLI_FILE };
struct cli_place {
	enum cli_kind kind;
	char *path;                     /* owned; without @N */
	int64_t step;                   /* of CLI_RUN_STEP; SHEAF_LATEST */
	bool bare;                      /* of CLI_RUN: a directory in which nothing is a run's */
};
/* 0, or an exit status with the line out. */
int cli_place_parse(struct cli_place *p, const struct cli_args *a, const char *text);
/* A run, and no step of it. 0, or an exit status with the line out. */
int cli_place_run(struct cli_place *p, const struct cli_args *a, const char *text);
void cli_place_release(struct cli_place *p);
struct cli_step {
	struct cli_place place;
	struct sheaf_run *run;          /* NULL: opened by path */
	struct sheaf_checkpoint *step;
};
/* Raises the limit on open files to the largest that this process may have. */
void cli_want_descriptors(void);
/* Returns a hint for cli_error: what to do about an error. NULL: there is none. text: its
 * buffer. */
const char *cli_hint_for(const struct sheaf_error *err, char text[100]);
/* A place as one step: a run alone is its latest. 0, or an exit status with the line out. */
int cli_step_open(struct cli_step *s, const struct cli_args *a, const char *text, bool unverified);
void cli_step_close(struct cli_step *s);
/* Reads the configuration of the model of a step from `file`. file NULL: from config.json, which is
 * attached to the step, lies in the directory of another program, or lies beside its file. Returns
 * NULL if there is none. Owned by the caller. */
json_t *cli_config_of(const struct cli_step *s, const char *file);
/* Shows the step through the map that --map names, if it does. family: the family of it that is
 * wanted; NULL: all. The prefix is that of --prefix. 0, or an exit status with the line out. */
int cli_step_map(struct cli_step *s, const struct cli_args *a, const char *family);
/* RUN@N or RUN@latest, for verbs that change a run. 0, or an exit status with the line out. */
int cli_place_step(struct cli_place *p, const struct cli_args *a, const char *text);
/* Is there such a file in the directory? */
bool cli_has(const char *dir, const char *file);
/* It is not there, for certain: neither is true where the disk does not say. */
bool cli_lacks(const char *dir, const char *file);

/* Everything in a run, copied. */
struct cli_item {
	char *session, *created, *path; /* owned */
	int64_t step, parent;
	uint64_t bytes;
	int32_t tries, mark;
	int32_t state;                  /* enum sheaf_item_state; 0: an agent has it, and the disk
	                                 * has not */
};
struct cli_list {
	struct cli_item *items;         /* owned */
	size_t n, cap;
};
void cli_item_release(struct cli_item *it);
int cli_list_read(struct cli_list *list, struct sheaf_run *run, struct sheaf_error *err);
void cli_list_release(struct cli_list *list);
/* The step that latest means, without opening it; -1: none. run: its path. */
int64_t cli_list_newest(const struct cli_list *list, const char *run);
/* The same of a run that is open, with ENOENT where there is none. Under the run's lock, so that
 * none newer comes in between. */
int cli_newest(struct sheaf_run *r, const char *path, int64_t *step, struct sheaf_error *err);

/* A box of a tensor, read as windows of its row-major items. */
struct cli_box {
	struct sheaf_tensor t;
	int64_t start[SHEAF_DIMS_MAX], count[SHEAF_DIMS_MAX];
	int64_t items;
	bool whole;
	bool wide;                      /* it has more dimensions than a slice can: t then has one
	                                 * dimension, and is read as bytes */
	int32_t ndim;                   /* as it is stored */
};
/* All of a tensor whose dimensions are known (cli_dims). */
void cli_box_init(struct cli_box *b, const struct sheaf_tensor *t);
int cli_box_read(struct sheaf_checkpoint *step, const struct cli_box *b, int64_t from, int64_t n,
                 void *dst, struct sheaf_error *err);
/* Items of a window from `from`, at most `bytes`; windows end where 1-MiB blocks of the file do. */
int64_t cli_box_window(const struct cli_box *b, int64_t from, int64_t bytes);
uint64_t cli_box_bytes(const struct cli_box *b, int64_t items);

/* The line on the terminal while a checkpoint is written anew. */
struct cli_progress {
	double began, shown;            /* in seconds; shown: when the line was last written */
	double seconds;                 /* how long it took, from the end on */
	bool on;
};
void cli_progress_begin(struct cli_progress *p, const struct cli_args *a);
/* Shows progress and time left, at most five times a second. arg: a struct cli_progress. */
int cli_progress_show(void *arg, uint64_t done, uint64_t total);
void cli_progress_end(struct cli_progress *p);
/* Says how many tensors of another program's checkpoint are not read, if there are any: they are
 * missing in what was written. */
void cli_say_unread(const char *src, struct sheaf_checkpoint *step);
/* Prints the names of the files, and the number of the notes, that an export of the step to `dst`
 * does not have. */
void cli_say_left_out(const struct cli_args *a, const struct cli_step *s, const char *dst);
/* Returns whether trainers with Paddle go on from a directory of this format. */
bool cli_is_for_paddle(const char *format);
/* Takes --dtype, --max-shard-size and --mem. 0, or 2 with the line out. */
int cli_writing_options(const struct cli_args *a, int32_t *dtype, uint64_t *file_bytes_max,
                        uint64_t *memory_bytes);

/* Two checkpoints that are compared. */
#define CLI_FAMILIES_MAX 256
struct cli_families { const char *names[CLI_FAMILIES_MAX]; int n; };
struct cli_pairs {
	struct sheaf_checkpoint *side[2];       /* borrowed */
	struct cli_families families[2];        /* of both sides; names are borrowed */
	bool of_programs;               /* one side is of sheaf, and the other of another program */
	char between;                   /* not '\0': side `joined` has no families of its own. Its
	                                 * names of tensors begin with a family of the other side
	                                 * and this character */
	int joined;
};
void cli_pairs_init(struct cli_pairs *p, struct sheaf_checkpoint *left,
                    struct sheaf_checkpoint *right);
bool cli_families_have(const struct cli_families *f, const char *family);
/* Returns the family of a tensor of this side, 0 or 1. The tensor may have it in its name. */
const char *cli_pairs_family(const struct cli_pairs *p, int side, const struct sheaf_tensor *t);
/* Finds the tensor on the other side that this one of `side` is compared with. ELAYOUT: none. */
int cli_pairs_find(const struct cli_pairs *p, int side, const struct sheaf_tensor *t,
                   struct sheaf_tensor *out);
/* Returns whether a tensor has a number of updates or a power of a beta, and the sides are of
 * different programs. One of them may keep such values in another form. */
bool cli_pairs_follows(const struct cli_pairs *p, const struct sheaf_tensor *t);

/* show --hf: what a Hugging Face loader would miss; the exit status. */
int cli_show_hf(const struct cli_args *a, struct cli_step *s);
#endif
