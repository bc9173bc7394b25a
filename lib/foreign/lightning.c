/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of PyTorch Lightning (.ckpt): a torch.save file with the weights in state_dict and
 * the state_dict of each optimizer in optimizer_states. All other torch.save files are opened
 * here, too, archives and legacy ones: what they are is known once the pickle is read.
 *
 * Source: trainer/connectors/checkpoint_connector.py of Lightning 2.6, and files that
 * Lightning wrote. */
#include "lightning.h"
#include <string.h>
#include "err.h"
#include "torch_states.h"
#include "torch_training.h"
#include "torch_walk.h"
#include "torch_zip.h"
#include "zip_verify.h"

#define KEY "pytorch-lightning_version"

struct lightning {
	struct shf_foreign *f;
	bool is;                        /* the file has KEY */
	struct shf_buf names;           /* owned; of const char *: of parameters by number */
	struct shf_torch_training training;     /* if it is no file of Lightning */
};

static int begin_lightning(void *arg, const struct shf_pk *root, const char *where,
                           struct sheaf_error *err)
{
	struct lightning *l = arg;
	const struct shf_pk *first = shf_pk_at(shf_pk_get(root, "optimizer_states"), 0);

	l->is = root->kind == SHF_PK_DICT && shf_pk_get(root, KEY);
	if (!l->is)
		return shf_torch_training_begin(&l->training, l->f, root) ? 0
		     : shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its names", where);
	l->f->format = &shf_lightning;
	l->f->why = "a torch.save file with " KEY;
	if (first && !shf_torch_states_read_names(l->f, first, &l->names))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its names", where);
	return 0;
}

/* Takes optimizer_states.<number>. off a name, and sets *number to its digits. Returns false if it
 * does not begin so. */
static bool of_optimizer(const char **name, size_t *n, const char **number, size_t *digits)
{
	static const char head[] = "optimizer_states.";
	size_t at = sizeof(head) - 1;

	if (*n <= at || memcmp(*name, head, at))
		return false;
	*number = *name + at;
	for (*digits = 0; at < *n && (*name)[at] >= '0' && (*name)[at] <= '9'; at++)
		++*digits;
	if (at + 1 >= *n || (*name)[at] != '.')
		return false;
	*name += at + 1;
	*n -= at + 1;
	return true;
}

/* Shows weights by their names in the module, and state of the first optimizer by its parameters;
 * that of another one has its number before them. What callbacks have is of a family of its own. */
static void show_lightning(void *arg, const char *name, size_t n, const char **family,
                           struct shf_buf *shown)
{
	static const char weights[] = "state_dict.";
	const struct lightning *l = arg;
	const char *rest = name, *number;
	size_t left = n, digits;
	char prefix[16] = "";

	if (!l->is) {
		shf_buf_add(shown, name, n);
		return;
	}
	if (n > sizeof(weights) - 1 && memcmp(name, weights, sizeof(weights) - 1) == 0) {
		shf_buf_add(shown, name + sizeof(weights) - 1, n - (sizeof(weights) - 1));
		return;
	}
	*family = "trainer";
	if (of_optimizer(&rest, &left, &number, &digits) && digits < sizeof(prefix) - 1) {
		*family = "optimizer";
		if (*number != '0') {
			memcpy(prefix, number, digits);
			prefix[digits] = '.';
		}
		if (shf_torch_states_show(rest, left, prefix, family, shown))
			return;
	}
	shf_buf_add(shown, name, n);
}

/* add: reads the file, shf_torch_save_add or shf_torch_legacy_add. */
static int open_values(struct shf_foreign *f,
                       int (*add)(struct shf_foreign *f, uint32_t file,
                                  const struct shf_torch_show *show, struct sheaf_error *err),
                       struct sheaf_error *err)
{
	struct lightning l = { .f = f };
	struct shf_torch_states states = { .prefix = "", .weights = "", .names = &l.names };
	const struct shf_torch_show show = { .begin = begin_lightning, .show = show_lightning,
		.arg = &l };
	int rc = add(f, 0, &show, err);

	states.end = f->tensors.len / sizeof(struct shf_foreign_tensor);
	if (rc == 0 && l.is)
		rc = shf_torch_states_rename(f, &states, err);
	else if (rc == 0)
		rc = shf_torch_training_rename(&l.training, f, err);
	shf_torch_training_release(&l.training);
	shf_buf_release(&l.names);
	return rc;
}

int shf_lightning_open(struct shf_foreign *f, struct sheaf_error *err)
{
	return open_values(f, shf_torch_save_add, err);
}

int shf_lightning_open_legacy(struct shf_foreign *f, struct sheaf_error *err)
{
	return open_values(f, shf_torch_legacy_add, err);
}

const struct shf_foreign_format shf_lightning = {
	.name = "lightning",
	.open = shf_lightning_open,
	.verify = shf_zip_verify_files,
};
