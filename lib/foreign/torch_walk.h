/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the tensors and other values of a pickle of torch. */
#ifndef SHF_TORCH_WALK_H
#define SHF_TORCH_WALK_H
#include "torch_tensor.h"

/* Finds out where a tensor is: *piece gets file, at, and stride, in f's arena. */
typedef int shf_torch_place_fn(void *arg, struct shf_foreign *f, const struct shf_torch_tensor *t,
                               const char *name, struct shf_foreign_piece *piece,
                               struct sheaf_error *err);
/* How the tensors of a file are shown. */
struct shf_torch_show {
	/* Looks at the values of a file before they are listed; NULL: nothing does. Returns a
	 * negative code if they are refused. where: the path of the file. */
	int (*begin)(void *arg, const struct shf_pk *root, const char *where,
	             struct sheaf_error *err);
	/* Sets *family (NULL: "model"), and appends the name under which a tensor is shown. name: n
	 * bytes, the keys that lead to it. */
	void (*show)(void *arg, const char *name, size_t n, const char **family,
	             struct shf_buf *shown);
	void *arg;
	const char *prefix;             /* what the names of the file begin with, before `show` is
	                                 * asked; NULL: nothing */
	bool local;                     /* a DTensor is listed as the tensor of the rank's part of
	                                 * it; otherwise it is not read */
};
/* Adds all tensors and notes of the pickle to f. where: the path of its file. show: NULL: tensors
 * have their own names, and are of the family "model". */
int shf_torch_walk(struct shf_foreign *f, const struct shf_pickle *pickle, const char *where,
                   shf_torch_place_fn *place, void *arg, const struct shf_torch_show *show,
                   struct sheaf_error *err);
/* Adds notes of all values of a dictionary of the pickle. Of tensors the notes say that they are
 * not listed. prefix: of the keys; NULL: none. */
int shf_torch_walk_notes(struct shf_foreign *f, const struct shf_pickle *pickle,
                         const struct shf_pk *dict, const char *prefix, struct sheaf_error *err);
/* Adds all tensors and notes of a torch.save file, an archive or a legacy one. */
int shf_torch_save_add(struct shf_foreign *f, uint32_t file, const struct shf_torch_show *show,
                       struct sheaf_error *err);
int shf_torch_legacy_add(struct shf_foreign *f, uint32_t file, const struct shf_torch_show *show,
                         struct sheaf_error *err);
/* Returns 1 if the file begins with the magic number of legacy files, and sets *why; 0 if not. */
int shf_torch_is_legacy(const struct shf_region *r, const char **why, struct sheaf_error *err);
#define SHF_TORCH_STATE_MAX 65  /* bytes of the name of a state of the optimizer, with its NUL */
/* Translates the name of a state of the optimizer, such as exp_avg. Returns false if a tensor
 * cannot have that name. */
bool shf_torch_state_name(char ours[SHF_TORCH_STATE_MAX], const char *theirs, size_t n);
#endif
