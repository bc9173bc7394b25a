/* SPDX-License-Identifier: Apache-2.0 */
/* One look at a run that was harmed: a step is opened, verified and loaded, in one order or
 * another, by one rank or by two; and what it must say, judged by what was changed alone. */
#ifndef HARMTRY_H
#define HARMTRY_H
#include "harmrun.h"

enum { HARM_FOUND = 24, HARM_CHANGED = 24 };
enum harm_order { HARM_VERIFY_FIRST, HARM_LOAD_FIRST, HARM_READ_FIRST, HARM_ORDERS };

struct harm_found {
	char what[16], file[160], family[40], name[80];
	int64_t block;
};
/* What looks: processes and memory, for as many looks as one likes. */
struct harm_eye {
	struct simdisk *disk;           /* borrowed */
	const struct shf_sys *sys[HARM_RANKS];
	struct harm_hand alone, half[HARM_RANKS];
	uint64_t seed, looks;
};
struct harm_look {
	const char *dir;                /* of the run */
	const char *path;               /* of a step, or NULL: by number */
	int64_t step;                   /* SHEAF_LATEST too */
	int ranks;
	enum harm_order order;
	const char *attached;           /* to be read too, or NULL */
	bool verify_only;               /* its tensors are not those of the hands */
	/* what came of it, of rank 0 where both must say the same */
	int run_rc, open_rc, verify_rc, load_rc, attached_rc, read_rc;  /* 1: not asked */
	char open_msg[500], verify_msg[500], load_msg[500], attached_msg[500];
	char read_msg[500], read_who[130];      /* of one tensor, alone */
	int64_t opened;                 /* number of the step, -1 */
	struct harm_found found[HARM_FOUND];
	int found_n;
	uint64_t findings;
	bool right, touched;            /* of the caller's memory */
	bool read_right;
	bool agreed;                    /* ranks said the same */
	char log[1000];
};
/* clear: what is not said takes its default */
void harm_eye_open(struct harm_eye *e, struct simdisk *disk, uint64_t salt);
void harm_eye_move(struct harm_eye *e, struct simdisk *disk);   /* to another disk */
void harm_eye_close(struct harm_eye *e);
/* Looks. false: something was left open. */
bool harm_look(struct harm_eye *e, struct harm_look *l);

/* What of a step is not as it was committed. */
struct harm_changed {
	const struct harm_file *file[HARM_CHANGED];
	int n;
	const char *extra;              /* a name that is not the manifest's, or NULL */
	/* one flipped bit in a file of tensors is also in this tensor; "": in the header */
	const char *family, *name;      /* NULL: nobody knows */
};
/* Does a sentence name one of them? */
bool harm_named(const struct harm_changed *c, const char *msg);
/* "" or what is wrong. wrong_restore: a load said 0 and the memory is not what was saved. */
const char *harm_judge(const struct harm_look *l, const struct harm_changed *c, char why[600],
                       bool *wrong_restore);
#endif
