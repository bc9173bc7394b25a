/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the model share: what there is (model.c), what a call may return
 * (model_codes.c), what it changes (model_take.c), and what is read (model_read.c). */
#ifndef MODEL_INSIDE_H
#define MODEL_INSIDE_H
#include "model.h"

struct latest { /* ids that may be given, or that there is none */
	int ids[ENTRIES + MEMORIES];
	int n, attempts;
	const struct job_model *who, *asks; /* who: has made the counts that do not matter */
	bool none, blind; /* blind: a reader beside a writer cannot see whose the counts are */
};

bool is_there(const struct entry *e);
struct entry *entry_of(struct run_model *r, int64_t step);
struct entry *entry_by_id(struct run_model *r, int id);
struct entry *newest(struct run_model *r, bool bad_too, bool unsure_too);
/* Who asks for the newest: a session does not hold against a step what it counted itself, nor does
 * a reader what the writer counted that has the run open. NULL: somebody without that option. */
int tries_of(const struct run_model *r, const struct job_model *who, int id);
/* Did so many sessions load it in vain, while an older one is left? */
bool is_spent(const struct run_model *r, const struct entry *e, int attempts,
	      const struct job_model *who);
bool is_used(const struct model *m, int run);
int64_t step_of_id(const struct model *m, int run, int id);
void latest_of(const struct model *m, int run, int nodes, const struct job_model *asks,
	       struct latest *l);
bool latest_allows(const struct latest *l, int id);
/* By number or the newest: which ids, and whether there may be none. */
void wanted(const struct model *m, int run, int nodes, const struct job_model *asks, int64_t step,
	    struct latest *l);
void memory_forget(struct model *m, int identity, int64_t above);
/* A save is there: what its job had left behind in memory when it was begun is not, nor does it
 * follow this one. */
void memory_forget_left(struct model *m, const struct job_model *j, const struct save_model *s);
/* Something newer is there, or it is not known what the agents let go. */
void memory_shake(struct model *m, int identity);
void memory_add(struct model *m, const struct job_model *j, const struct save_model *s);
bool is_first(const struct job_model *j, const struct save_model *s);
bool all_of(const bool *is, int n);
bool in_flight(const struct save_model *s);
int flying(const struct job_model *j);
bool unput(const struct job_model *j, bool failed_too);
bool publishes(const struct job_model *j);
/* Would what follows `parent` follow an older step than the newest, or one that is set aside? */
bool is_back(const struct model *m, const struct job_model *j, int parent, bool unsure_too);
/* There is none to be given: ENOENT only where there is none at all. What memory has that follows
 * nothing on disk counts, but the model does not know all that agents still have. */
uint32_t codes_of_nothing(const struct model *m, int run, int64_t step);
/* Codes that a commit, or a load before it, may return because the number is taken on disk. */
uint32_t codes_of_number(const struct model *m, const struct job_model *j, int parent,
			 int64_t step);
bool broken(char why[400], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool check_values(const struct reply *r, const struct latest *l, char why[400]);
/* e = w at first, then fma(c, e, d * w), with c = d = 1/2. */
bool check_average(const struct model *m, int run, const struct reply *r, char why[400]);
const struct average *average_of(const struct model *m, int run, int id);
void let_go(struct model *m, struct job_model *j, int slot);
void pass_gates(struct job_model *j);
/* The stage of a save takes the number of a bad step, or a condemned one: that is set aside. */
void give_number(struct model *m, int run, struct entry *e);
/* The stage of a save in flight may be made by this call: what is wrong with its number is found
 * now. */
void find_numbers(const struct model *m, struct job_model *j);
bool take_load(struct model *m, const struct call *c, const struct reply *r, char why[400]);
bool take_hold(struct model *m, const struct call *c, const struct reply *r, char why[400]);
bool take_held(struct model *m, const struct call *c, const struct reply *r, char why[400]);
#endif
