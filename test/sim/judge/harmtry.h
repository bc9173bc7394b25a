/* SPDX-License-Identifier: Apache-2.0 */
/* One look at a run with a changed byte: a step is opened, verified and loaded, in some order, by
 * one rank or by two. The result is judged only by what was changed. */
#ifndef HARMTRY_H
#define HARMTRY_H
#include "harmrun.h"

enum { HARM_FOUND = 24, HARM_CHANGED = 24 };
enum harm_order { HARM_VERIFY_FIRST, HARM_LOAD_FIRST, HARM_READ_FIRST, HARM_ORDERS };

struct harm_found {
	char what[16], file[160], family[40], name[80];
	int64_t block;
};
/* Processes and memory, which can be used for any number of looks */
struct harm_eye {
	struct simdisk *disk;           /* borrowed */
	const struct shf_sys *sys[HARM_RANKS];
	struct harm_hand alone, half[HARM_RANKS];
	uint64_t seed, looks;
};
struct harm_look {
	const char *dir;                /* of the run */
	const char *path;               /* of a step; NULL: the step is opened by number */
	int64_t step;                   /* may be SHEAF_LATEST */
	int ranks;
	enum harm_order order;
	const char *attached;           /* a file to read, too; may be NULL */
	bool verify_only;               /* its tensors are not those of struct harm_hand */
	/* results; of rank 0 if both ranks must agree */
	int run_rc, open_rc, verify_rc, load_rc, attached_rc, read_rc;  /* 1: not called */
	char open_msg[500], verify_msg[500], load_msg[500], attached_msg[500];
	char read_msg[500], read_who[130];      /* of the read of one tensor */
	int64_t opened;                 /* number of the step, or -1 */
	struct harm_found found[HARM_FOUND];
	int found_n;
	uint64_t findings;
	bool right, touched;            /* right: all values are; touched: memory was changed */
	bool read_right;
	bool agreed;                    /* the ranks have the same results */
	char log[1000];
};
/* clears *e; members that are not set have defaults */
void harm_eye_open(struct harm_eye *e, struct simdisk *disk, uint64_t salt);
void harm_eye_move(struct harm_eye *e, struct simdisk *disk);   /* to another disk */
void harm_eye_close(struct harm_eye *e);
/* Runs the look. Returns false if descriptors were left open. */
bool harm_look(struct harm_eye *e, struct harm_look *l);

/* The changes to a committed step */
struct harm_changed {
	const struct harm_file *file[HARM_CHANGED];
	int n;
	const char *extra;              /* a file that the manifest lacks; may be NULL */
	/* if one bit of a tensor file was flipped: the tensor that has it; "": it is in the
	 * header */
	const char *family, *name;      /* NULL: not known */
};
/* Returns whether a message names one of the changed files. */
bool harm_named(const struct harm_changed *c, const char *msg);
/* Returns "" or what is wrong. wrong_restore: a load returned 0, but memory is not what was
 * saved. */
const char *harm_judge(const struct harm_look *l, const struct harm_changed *c, char why[600],
                       bool *wrong_restore);
#endif
