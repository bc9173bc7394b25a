/* SPDX-License-Identifier: Apache-2.0 */
/* A save of DeepSpeed while it is read. The optimizer of each data-parallel rank has one flat
 * tensor (a part) for each group of parameters and for each kind of value: weights, first moments,
 * second moments and so on. Several parts, read one after another, make a run, and each parameter
 * is a range of a run:
 * - With ZeRO 1 and 2, a run has the parts of one group on all ranks. Of a group of experts, it has
 *   the parts of the ranks that have the same experts.
 * - With ZeRO 3, a run has the parts of all groups on one rank. Each parameter has a range in the
 *   run of every rank.
 * - A frozen parameter of ZeRO 3 is a run of its own, with one part of each rank.
 * The order of the parameters in a run, and their shapes, are in the file of the model only. */
#ifndef SHF_DSPD_SAVE_H
#define SHF_DSPD_SAVE_H
#include "dspd_dir.h"
#include "torch_walk.h"
#include "torch_zip.h"

#define SHF_DSPD_KINDS_MAX 16   /* kinds of tensors that the optimizer has */
#define SHF_DSPD_TENSOR_COST 256        /* bytes that a tensor counts for beside its name */
#define SHF_DSPD_FP32 0         /* the kind of the weights */
#define SHF_DSPD_FROZEN SHF_DSPD_KINDS_MAX      /* the kind of frozen parameters */
struct shf_dspd_param {
	const char *name;               /* in f's arena */
	uint32_t group;
	int32_t ndim;
	const int64_t *dims;
	uint64_t items;
	uint64_t at;                    /* first item in its run */
	bool frozen;
	bool whole;                     /* the file of the model has its values */
	bool f32;                       /* ... as F32 */
	bool found;                     /* of a universal checkpoint: its weights were found */
	uint32_t kinds;                 /* ... a bit for each kind of state that it has */
	size_t tensor;                  /* found: the number of the tensor in `model` that they
	                                 * are; SIZE_MAX: they are none */
};
struct shf_dspd_part {          /* a flat tensor */
	uint32_t kind, run, seq;        /* seq: its place in the run */
	uint32_t file;
	int32_t dtype;
	uint64_t at, items;             /* at: in the file */
	uint64_t start;                 /* items before it in its run */
};
struct shf_dspd_box {           /* what a rank of model parallelism has of a parameter */
	const char *name;
	int mp;
	int32_t ndim;
	const int64_t *dims;            /* of the whole */
	const int64_t *start, *count;
	bool replica;                   /* rank 0 has the same */
};
struct shf_dspd_boxed {         /* one rank's box of a tensor that is joined later */
	struct shf_dspd_box box;
	const char *family, *key;       /* key: NULL: it has none */
	int32_t dtype;
	size_t first, n;                /* among box_pieces */
};
struct shf_dspd_weight { const char *name; bool f32; };     /* one of a file of its own */
struct shf_dspd_entry { struct shf_dspd_name x; const char *name; };    /* a file */
struct shf_dspd_tie { const char *name, *of; };
struct shf_dspd_group {         /* what the optimizer says of a group of parameters */
	int64_t count;                  /* how many parts make a run. All ranks have one, but for a
	                                 * group of experts the ranks are divided into several
	                                 * runs. 0: the group is not read */
	int64_t said;                   /* the count that the file of rank 0 has */
	int64_t step;                   /* -1: not said */
	uint32_t step_file;             /* where rank 0 has it as an F32; UINT32_MAX: nowhere */
	uint64_t step_at;
	uint64_t part;                  /* items of the part of rank 0 */
	uint64_t items;                 /* of all its parameters, with what is between them */
};
struct shf_dspd {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_dspd_dir dir;
	struct shf_buf entries;         /* owned; of struct shf_dspd_entry, by model parallelism,
	                                 * kind and rank */
	int mp, mp_n;                   /* the current rank of model parallelism; how many */
	int tp_n;                       /* how many ranks have parts of the same weights: all of
	                                 * them, or with stages of a pipeline fewer */
	bool layers;                    /* there are files of layers, as a pipeline writes them */
	struct shf_buf weights;         /* owned; of struct shf_dspd_weight, sorted by name: from
	                                 * the files of layers and experts */
	int64_t experts;                /* in each layer that has some; 0: not said */
	int world;                      /* ranks of data parallelism */
	int stage;                      /* 3, or less */
	bool module;                    /* the file of the model has tensors */
	bool steps_differ;              /* groups of parameters have made different steps */
	struct shf_buf params, by_name; /* owned; of struct shf_dspd_param; of pointers to them,
	                                 * sorted */
	struct shf_buf ties;            /* owned; of struct shf_dspd_tie */
	struct shf_buf parts;           /* owned; of struct shf_dspd_part */
	struct shf_buf groups;          /* owned; of struct shf_dspd_group */
	struct shf_buf boxes;           /* owned; of struct shf_dspd_box, by name and rank */
	struct shf_buf boxed;           /* owned; of struct shf_dspd_boxed */
	struct shf_buf box_pieces;      /* owned; of struct shf_foreign_piece */
	uint64_t rank_items;            /* ZeRO 3: items of weights that each rank has */
	const char *kinds[SHF_DSPD_KINDS_MAX];  /* names of the optimizer, in f's arena */
	uint32_t kinds_n;
	uint64_t names_left;            /* how many bytes of memory may still be used for names of
	                                 * tensors, and for what is kept of tensors */
	const char *version;            /* of DeepSpeed; NULL: not said yet */
	int64_t steps;                  /* of the training; -1: not said yet */
};
struct shf_dspd_file {          /* an open archive */
	uint32_t file;
	const char *where;
	struct shf_torch_zip zip;
};
/* Lists a folder under the one that has the save, or that one itself if `under` is NULL. Returns 1
 * if it is no folder. The caller releases l->a, after a failure, too. */
int shf_dspd_list(struct shf_dspd *d, const char *under, struct shf_arena *arena,
                  struct shf_listing *l);
/* Opens an archive of the folder: in `under` of it, unless that is NULL. */
int shf_dspd_open(struct shf_dspd *d, const char *under, const char *name,
                  struct shf_dspd_file *x);
void shf_dspd_close(struct shf_dspd *d, struct shf_dspd_file *x);
int shf_dspd_no_memory(const struct shf_dspd *d);
int shf_dspd_bad(const struct shf_dspd *d, const char *where, const char *why);
/* Finds out where a tensor is: file, at, and stride, in f's arena. */
int shf_dspd_place(struct shf_dspd *d, const struct shf_dspd_file *x,
                   const struct shf_torch_tensor *t, const char *name,
                   struct shf_foreign_piece *piece);
/* Finds out where a flat tensor is. Returns 1 if v is one, and fills in dtype, at, items and file
 * of *part. */
int shf_dspd_flat(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                  const char *name, struct shf_dspd_part *part);
/* Adds a tensor of an archive, with the shape that it has there, under a name of n bytes. Returns
 * 1, or 0 if v is no tensor. */
int shf_dspd_add(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                 const char *family, const char *name, size_t n);
/* Counts n bytes against names_left. EFORMAT: there are fewer. So the memory that a
 * list of tensors takes is in proportion to the bytes of the pickles. */
int shf_dspd_charge(struct shf_dspd *d, size_t n);
/* Copies a name of n bytes into f's arena. NULL: no memory, or names are too long; *d->err says
 * which. */
const char *shf_dspd_keep(struct shf_dspd *d, const char *name, size_t n);
/* Makes the name that a tensor is shown under: <name>, <name>/<key>, or <name>@mp<rank> and so on
 * if there are several ranks of model parallelism. Returns as shf_dspd_keep. */
const char *shf_dspd_shown(struct shf_dspd *d, const char *name, size_t n, const char *key);
/* Adds a flat tensor as one with the shape of a parameter. */
int shf_dspd_add_flat(struct shf_dspd *d, const struct shf_dspd_part *part,
                      const struct shf_dspd_param *p, const char *family, const char *name);
/* Checks that all files say the same. */
int shf_dspd_same_save(struct shf_dspd *d, const struct shf_dspd_file *x,
                       const struct shf_pk *root);
/* Reads which boxes ranks of tensor parallelism have, from the file of the model of rank 0. */
int shf_dspd_boxes(struct shf_dspd *d, const struct shf_pk *root);
/* Keeps a tensor of the current rank whose pieces are the last x->n of f->pieces, if it is a box of
 * a parameter: the pieces are taken away. Returns 1 then, and 0 if nothing says what it is. */
int shf_dspd_boxed(struct shf_dspd *d, const struct shf_foreign_tensor *x, const char *name,
                   size_t n, const char *key);
/* Adds the tensors that the boxes of all ranks make. */
int shf_dspd_join_boxes(struct shf_dspd *d);
/* Reads the files of layers and experts. l: the names in the folder. */
int shf_dspd_layers(struct shf_dspd *d, const struct shf_listing *l);
/* Finds a weight of these files. NULL: there is none. */
const struct shf_dspd_weight *shf_dspd_weight(const struct shf_dspd *d, const char *name);
/* Returns into how many runs the ranks are divided for a group, each with experts of its own; 1 if
 * all ranks have the same parameters. */
uint32_t shf_dspd_spread(const struct shf_dspd *d, const struct shf_dspd_group *g);
/* Returns the files of a kind of the current rank of model parallelism, by rank. */
const struct shf_dspd_entry *shf_dspd_entries(const struct shf_dspd *d, bool optimizer, size_t *n);
/* Reads the files of the model of the current rank of model parallelism. */
int shf_dspd_model(struct shf_dspd *d);
/* Reads the files of the optimizer of that rank. */
int shf_dspd_optimizer(struct shf_dspd *d);
/* Reads a count of steps: a number, or a tensor of one, which is at byte *at. -1: it is neither. */
int shf_dspd_step(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                  int64_t *step, uint64_t *at);
/* Notes the settings of the optimizer. groups NULL: there are none. */
int shf_dspd_note_groups(struct shf_dspd *d, const struct shf_dspd_file *x,
                         const struct shf_pk *groups);
/* Adds the tensors that the parts make. */
int shf_dspd_join(struct shf_dspd *d);
/* Reads the folder zero of a universal checkpoint. */
int shf_dspd_universal(struct shf_dspd *d);
/* Whether a tensor has the shape of a parameter. */
bool shf_dspd_has_shape(const struct shf_torch_tensor *t, const struct shf_dspd_param *p);
/* Finds a parameter by its name. NULL: there is none. */
struct shf_dspd_param *shf_dspd_param(const struct shf_dspd *d, const char *name, size_t n);
#endif
