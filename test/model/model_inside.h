/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of the model share: the state (model.c), the codes that a call may
 * return (model_codes.c), the changes that it makes (model_take.c), and reads (model_read.c). */
#ifndef MODEL_INSIDE_H
#define MODEL_INSIDE_H
#include "model.h"

struct latest { /* ids that may be returned; none: or none at all */
	int ids[ENTRIES + MEMORIES];
	int n, attempts;
	const struct job_model *who, *asks; /* who: its own counts do not matter */
	bool none, blind; /* blind: a reader beside a writer cannot see whose the counts are */
};

bool is_there(const struct entry *e);
struct entry *entry_of(struct run_model *r, int64_t step);
struct entry *entry_by_id(struct run_model *r, int id);
struct entry *newest(struct run_model *r, bool bad_too, bool unsure_too);
/* Returns how many sessions loaded it without progress, as `who` counts: a session does not count
 * its own attempt, and a reader not that of the writer that has the run open. who NULL: counts
 * all. */
int tries_of(const struct run_model *r, const struct job_model *who, int id);
/* Returns whether so many sessions loaded it without progress, and there is an older step. */
bool is_spent(const struct run_model *r, const struct entry *e, int attempts,
	      const struct job_model *who);
bool is_used(const struct model *m, int run);
int64_t step_of_id(const struct model *m, int run, int id);
void latest_of(const struct model *m, int run, int nodes, const struct job_model *asks,
	       struct latest *l);
bool latest_allows(const struct latest *l, int id);
/* Finds the ids that a read may return, by number or as the newest, and whether there may be
 * none. */
void wanted(const struct model *m, int run, int nodes, const struct job_model *asks, int64_t step,
	    struct latest *l);
void memory_forget(struct model *m, int identity, int64_t above);
/* After a save: forgets the steps in memory that its job had left behind before the save began. */
void memory_forget_left(struct model *m, const struct job_model *j, const struct save_model *s);
/* Marks all steps in memory as unsure: there is a newer one, or the agents may have dropped
 * some. */
void memory_shake(struct model *m, int identity);
void memory_add(struct model *m, const struct job_model *j, const struct save_model *s);
bool is_first(const struct job_model *j, const struct save_model *s);
bool all_of(const bool *is, int n);
bool in_flight(const struct save_model *s);
int flying(const struct job_model *j);
bool unput(const struct job_model *j, bool failed_too);
bool publishes(const struct job_model *j);
/* Returns whether a save that follows `parent` would follow a step that is older than the newest,
 * or that is set aside. */
bool is_back(const struct model *m, const struct job_model *j, int parent, bool unsure_too);
/* Returns the codes for a read that finds nothing. ENOENT only if there is no step at all: steps in
 * memory without a base on disk count, but the model does not know all steps that agents have. */
uint32_t codes_of_nothing(const struct model *m, int run, int64_t step);
/* Codes that a commit, or a load before it, may return because the number is taken on disk. */
uint32_t codes_of_number(const struct model *m, const struct job_model *j, int parent,
			 int64_t step);
bool broken(char why[400], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool check_values(const struct reply *r, const struct latest *l, char why[400]);
/* Checks the average: e = w at first, then fma(c, e, d * w), with c = d = 1/2. */
bool check_average(const struct model *m, int run, const struct reply *r, char why[400]);
const struct average *average_of(const struct model *m, int run, int id);
void let_go(struct model *m, struct job_model *j, int slot);
void pass_gates(struct job_model *j);
/* Sets a bad or spent step aside, because the stage of a save takes its number. */
void give_number(struct model *m, int run, struct entry *e);
/* This call may make the stage of a save in flight, so an error in the save's number is found
 * now. */
void find_numbers(const struct model *m, struct job_model *j);
bool take_load(struct model *m, const struct call *c, const struct reply *r, char why[400]);
bool take_hold(struct model *m, const struct call *c, const struct reply *r, char why[400]);
bool take_held(struct model *m, const struct call *c, const struct reply *r, char why[400]);
#endif
