/* SPDX-License-Identifier: Apache-2.0 */
/* The sheaf command: declarations that its verbs share.
 *
 * Answers go to stdout, everything else to stderr. The exit status is 0 for yes, 1 for no, and 2 if
 * the verb could not tell. With --json every line is one object. Names come from files that anybody
 * may have written, so all of them are escaped before they are printed: by cli_put for people, by
 * cli_str for JSON.
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
	const char *name, *arg, *help;  /* arg NULL: a flag; help NULL: known, but refused */
};
struct cli_args;
struct cli_verb {
	const char *name, *brief, *synopsis;
	const char *text;               /* paragraphs of its help page */
	const char *exits, *examples;
	const struct cli_opt *opts;     /* the last has a NULL name; every verb has --json and
					 * --help */
	int pos_min, pos_max;
	const char *pos_names;          /* for the error message if arguments are missing */
	int (*run)(const struct cli_args *a);   /* returns the exit status */
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
extern const struct cli_verb *const cli_verbs[];        /* the last is NULL */
const struct cli_verb *cli_verb_find(const char *name); /* NULL: not found */
/* Returns the word that is most similar. */
const char *cli_near(const char *word, const char *const *words, size_t n);     /* NULL: none */

/* Returns 0, or 2 after printing the error. */
int cli_args_parse(struct cli_args *a, const struct cli_verb *verb, int argc, char **argv);
const char *cli_value(const struct cli_args *a, const char *name);      /* NULL: not given */
bool cli_flag(const struct cli_args *a, const char *name);
/* Reads an option whose value is a number. Returns 0, or 2 after printing the error. If the option
 * is not given, leaves *out as it is. */
int cli_int(const struct cli_args *a, const char *name, int64_t least, int64_t most, int64_t *out);
/* The same for a number of bytes, which may end in K, M, G or T (powers of 1024). */
int cli_bytes(const struct cli_args *a, const char *name, int64_t least, int64_t most,
              int64_t *out);
int cli_real(const struct cli_args *a, const char *name, double *out);  /* finite, at least 0 */
void cli_help_verb(FILE *f, const struct cli_verb *verb);
void cli_help_all(FILE *f);

/* Errors: one line `sheaf: what: where: why (hint)`, or an object, to stderr. */
int cli_usage(const struct cli_args *a, const char *where, const char *why, const char *hint);
int cli_error(const struct cli_args *a, int code, const char *where, const char *why,
              const char *hint);
int cli_nomem(const struct cli_args *a);
/* Begins a line on stderr about a path, for what is not an error. */
void cli_say_of(const char *path);
/* Returns the exit status for a result code: 1 if the code is an answer of no (damaged, different,
 * of another format, or DST exists), 2 if the verb could not do its work. */
int cli_exit_code(int code);

/* Text of unknown origin */
void cli_put(FILE *f, const char *text);
int cli_width(const char *text);                /* columns that cli_put uses */
json_t *cli_str(const char *text);              /* NULL or "": null */
json_t *cli_num(int64_t v);                     /* -1: null */
void cli_line(json_t *object);                  /* prints a line; takes ownership */
void cli_part(json_t *value);                   /* without end of line; takes ownership */
void cli_open(json_t *object);                  /* without closing brace; takes ownership */
/* Returns all dimensions of a tensor, or NULL if it has more than the library reports. */
const int64_t *cli_dims(const struct sheaf_tensor *t);
void cli_shape(FILE *f, int ndim, const int64_t *shape);        /* [3, 4]; NULL: [99 dimensions] */
json_t *cli_shape_json(int ndim, const int64_t *shape);

/* Places: RUN, RUN@N, RUN@latest, a directory, a file */
enum cli_kind { CLI_RUN, CLI_RUN_STEP, CLI_DIR, CLI_FILE };
struct cli_place {
	enum cli_kind kind;
	char *path;                     /* owned; without the @N */
	int64_t step;                   /* for CLI_RUN_STEP; may be SHEAF_LATEST */
	bool bare;                      /* for CLI_RUN: the directory has no entry of a run */
};
/* Returns 0, or an exit status after printing the error. */
int cli_place_parse(struct cli_place *p, const struct cli_args *a, const char *text);
/* Parses a run without a step. Returns 0, or an exit status after printing the error. */
int cli_place_run(struct cli_place *p, const struct cli_args *a, const char *text);
void cli_place_release(struct cli_place *p);
struct cli_step {
	struct cli_place place;
	struct sheaf_run *run;          /* NULL: the step was opened by path */
	struct sheaf_checkpoint *step;
	bool of_sheaf;                  /* the checkpoint is a step of Sheaf, though a map may show
	                                 * it under the names of another program */
};
/* Raises the limit on open files to the largest that this process may have. */
void cli_want_descriptors(void);
/* Returns a hint for cli_error, which says what to do about the error, or NULL. text is a buffer
 * for it. */
const char *cli_hint_for(const struct sheaf_error *err, char text[100]);
/* Opens a place as one step; RUN means its latest step. Returns 0, or an exit status after printing
 * the error. */
int cli_step_open(struct cli_step *s, const struct cli_args *a, const char *text, bool unverified);
void cli_step_close(struct cli_step *s);
/* Reads the model's configuration for a step from `file`. If file is NULL, it is read from
 * config.json: the attached file of that name, or the one in the directory of a foreign checkpoint,
 * or the one beside a foreign file. Returns NULL if there is none. The caller owns the result. */
json_t *cli_config_of(const struct cli_step *s, const char *file);
/* Applies the map that --map names to the step, if the option is given. family: the only family
 * that is needed; NULL: all. Names get the prefix of --prefix. Returns 0, or an exit status after
 * printing the error. */
int cli_step_map(struct cli_step *s, const struct cli_args *a, const char *family);
/* Parses RUN@N or RUN@latest, for verbs that change a run. Returns 0, or an exit status after
 * printing the error. */
int cli_place_step(struct cli_place *p, const struct cli_args *a, const char *text);
/* Returns whether the directory has such a file. */
bool cli_has(const char *dir, const char *file);
/* Returns whether it certainly does not exist; false if unknown. */
bool cli_lacks(const char *dir, const char *file);

/* A copied list of everything in a run */
struct cli_item {
	char *session, *created, *path; /* owned */
	int64_t step, parent;
	uint64_t bytes;
	int32_t tries, mark;
	int32_t state;                  /* enum sheaf_item_state; 0: in the memory of an agent, but
	                                 * not on disk */
};
struct cli_list {
	struct cli_item *items;         /* owned */
	size_t n, cap;
};
void cli_item_release(struct cli_item *it);
int cli_list_read(struct cli_list *list, struct sheaf_run *run, struct sheaf_error *err);
void cli_list_release(struct cli_list *list);
/* Returns the step that "latest" means, without opening it; -1: none. run: its path. */
int64_t cli_list_newest(const struct cli_list *list, const char *run);
/* The same for an open run; ENOENT if it has no step, EINVAL if the agent of this node has a newer
 * one in memory, or if a symbolic link has the name of a newer one and is not marked bad. The
 * caller holds the run's lock, so that no newer step appears. */
int cli_newest(struct sheaf_run *r, const char *path, int64_t *step, struct sheaf_error *err);

/* A box of a tensor, read in windows of its row-major items */
struct cli_box {
	struct sheaf_tensor t;
	int64_t start[SHEAF_DIMS_MAX], count[SHEAF_DIMS_MAX];
	int64_t items;
	bool whole;
	bool wide;                      /* the tensor has more dimensions than a slice can: t then
	                                 * has one dimension, and is read as bytes */
	int32_t ndim;                   /* of the stored tensor */
};
/* Makes a box of all of a tensor. */
void cli_box_init(struct cli_box *b, const struct sheaf_tensor *t);
int cli_box_read(struct sheaf_checkpoint *step, const struct cli_box *b, int64_t from, int64_t n,
                 void *dst, struct sheaf_error *err);
/* Returns how many items a window that begins at `from` has, at most `bytes`. Windows end at the
 * ends of 1-MiB blocks of the file. */
int64_t cli_box_window(const struct cli_box *b, int64_t from, int64_t bytes);
uint64_t cli_box_bytes(const struct cli_box *b, int64_t items);

/* The progress line on the terminal while a checkpoint is written */
struct cli_progress {
	double began, shown;            /* in seconds; shown: when the line was last printed */
	double seconds;                 /* total time, set at the end */
	bool on;
};
void cli_progress_begin(struct cli_progress *p, const struct cli_args *a);
/* Shows progress and time left, at most five times a second. arg: a struct cli_progress. */
int cli_progress_show(void *arg, uint64_t done, uint64_t total);
void cli_progress_end(struct cli_progress *p);
/* Says how many tensors of a foreign checkpoint cannot be read, if any: they are missing in the
 * output. */
void cli_say_unread(const char *src, struct sheaf_checkpoint *step);
/* Prints the names of the files, and the number of the notes, that an export of the step to `dst`
 * leaves out. */
void cli_say_left_out(const struct cli_args *a, const struct cli_step *s, const char *dst);
/* Says that it is assumed of which weights the state of the optimizer is, if it is. */
void cli_say_assumed(const char *src, struct sheaf_checkpoint *step);
/* Returns whether trainers of Paddle resume from a directory of this format. */
bool cli_is_for_paddle(const char *format);
/* Reads --dtype, --max-shard-size and --mem. Returns 0, or 2 after printing the error. */
int cli_writing_options(const struct cli_args *a, int32_t *dtype, uint64_t *file_bytes_max,
                        uint64_t *memory_bytes);

/* Two checkpoints that are compared */
#define CLI_FAMILIES_MAX 256
struct cli_families { const char *names[CLI_FAMILIES_MAX]; int n; };
struct cli_pairs {
	struct sheaf_checkpoint *side[2];       /* borrowed */
	struct cli_families families[2];        /* of both sides; names are borrowed */
	bool of_programs;               /* the sides are from different programs */
	char between;                   /* if not '\0': the names of tensors of side `joined` begin
	                                 * with a family of the other side and this character, or in
	                                 * a family of its own for state with `model` and this
	                                 * character */
	int joined;
};
void cli_pairs_init(struct cli_pairs *p, const struct cli_step *left,
                    const struct cli_step *right);
bool cli_families_have(const struct cli_families *f, const char *family);
/* Returns the family of a tensor of this side (0 or 1). It may be part of the tensor's name. */
const char *cli_pairs_family(const struct cli_pairs *p, int side, const struct sheaf_tensor *t);
/* Finds the tensor on the other side to compare with this one of `side`. ELAYOUT: there is none. */
int cli_pairs_find(const struct cli_pairs *p, int side, const struct sheaf_tensor *t,
                   struct sheaf_tensor *out);
/* Returns whether a tensor that only this side has follows from other tensors:
 * - It is tied to a tensor that both sides have.
 * - It holds a step count or a power of a beta, and the sides are from different programs, one of
 *   which may store such values in another form. */
bool cli_pairs_follows(const struct cli_pairs *p, int side, const struct sheaf_tensor *t);

/* show --hf: reports what a Hugging Face loader would miss. Returns the exit status. */
int cli_show_hf(const struct cli_args *a, struct cli_step *s);
#endif
