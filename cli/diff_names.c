/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs the tensors of two checkpoints for sheaf diff. Usually both have the same family and name.
 * But a file that sheaf convert --all wrote in a format without families, such as torch.save, has
 * the families in the names of its tensors: model.norm.weight, or model/norm.weight in a file of
 * NumPy. Where state of the optimizer is in a family of its own, it has the names of such weights:
 * model.norm.weight/moment1_0. */
#include "cli.h"

#include <stdio.h>
#include <string.h>
#include "sheaf-inspect.h"

static void list_families(struct cli_families *f, struct sheaf_checkpoint *step)
{
	struct sheaf_tensor t = { .size = sizeof(t) };

	f->n = 0;
	for (size_t i = 0; sheaf_checkpoint_tensor(step, i, &t, NULL) == 0; i++)
		if (f->n < CLI_FAMILIES_MAX && (!f->n || strcmp(f->names[f->n - 1], t.family)))
			f->names[f->n++] = t.family;    /* tensors are sorted by family */
}

bool cli_families_have(const struct cli_families *f, const char *family)
{
	for (int i = 0; i < f->n; i++)
		if (strcmp(f->names[i], family) == 0)
			return true;
	return false;
}

/* Finds the tensor whose name is a family, the character `between` and a name; or the state of that
 * name of such a weight. */
static int find_joined(struct sheaf_checkpoint *in, char between, const char *family,
                       const char *name, struct sheaf_tensor *out)
{
	char whole[8192];
	int n = snprintf(whole, sizeof(whole), "%s%c%s", family, between, name);

	if (n < (int)sizeof(whole) && sheaf_checkpoint_find(in, NULL, whole, out, NULL) == 0)
		return 0;
	n = snprintf(whole, sizeof(whole), "model%c%s", between, name);
	return n < (int)sizeof(whole) && strcmp(family, "model")
	       ? sheaf_checkpoint_find(in, family, whole, out, NULL) : SHEAF_ELAYOUT;
}

/* Returns whether the names of tensors in `step`, whose families are `mine`, begin with a family in
 * `other` and this character. Tries the first tensor of each family. */
static bool is_joined(struct sheaf_checkpoint *step, const struct cli_families *mine,
                      struct sheaf_checkpoint *other, char between)
{
	struct sheaf_tensor t = { .size = sizeof(t) }, x = { .size = sizeof(x) };
	char last[80] = "";

	if (!cli_families_have(mine, "model"))
		return false;
	for (size_t i = 0; sheaf_checkpoint_tensor(other, i, &t, NULL) == 0; i++) {
		if (strcmp(last, t.family) == 0)
			continue;
		snprintf(last, sizeof(last), "%s", t.family);
		if (sheaf_checkpoint_find(step, t.family, t.name, &x, NULL) == 0 ||
		    find_joined(step, between, t.family, t.name, &x) < 0)
			return false;
	}
	return *last != '\0';
}

/* Returns whether two checkpoints of other programs have different formats. */
static bool formats_differ(struct sheaf_checkpoint *a, struct sheaf_checkpoint *b)
{
	struct sheaf_checkpoint_info x = { .size = sizeof(x) }, y = { .size = sizeof(y) };

	return sheaf_checkpoint_get_info(a, &x, NULL) == 0 &&
	       sheaf_checkpoint_get_info(b, &y, NULL) == 0 && strcmp(x.format, y.format) != 0;
}

void cli_pairs_init(struct cli_pairs *p, const struct cli_step *left,
                    const struct cli_step *right)
{
	bool foreign[2] = { !left->of_sheaf, !right->of_sheaf };

	*p = (struct cli_pairs){ .side = { left->step, right->step } };
	p->of_programs = foreign[0] != foreign[1] ||
	                 (foreign[0] && formats_differ(left->step, right->step));
	for (int k = 0; k < 2; k++)
		list_families(&p->families[k], p->side[k]);
	for (int k = 0; k < 2 && !p->between; k++)
		for (const char *c = "./"; *c && !p->between; c++)
			if (foreign[k] &&
			    is_joined(p->side[k], &p->families[k], p->side[1 - k], *c)) {
				p->joined = k;
				p->between = *c;
			}
}

/* Splits a tensor's name on the joined side at p->between. Returns the family of the other side
 * that it begins with, the longest if there are several, and sets *name to the rest. The rest of
 * the name of a state is what follows `model`. Returns NULL, and leaves *name, if it begins with
 * none. */
static const char *split(const struct cli_pairs *p, const struct sheaf_tensor *t, const char **name)
{
	const struct cli_families *f = &p->families[1 - p->joined];
	const char *family = NULL, *whole = t->name;

	if (strcmp(t->family, "model")) {
		if (strncmp(whole, "model", 5) || whole[5] != p->between)
			return NULL;
		*name = whole + 6;
		return t->family;
	}
	for (int i = 0; i < f->n; i++) {
		size_t n = strlen(f->names[i]);

		if (strncmp(whole, f->names[i], n) == 0 && whole[n] == p->between &&
		    (!family || n > strlen(family))) {
			*name = whole + n + 1;
			family = f->names[i];
		}
	}
	return family;
}

const char *cli_pairs_family(const struct cli_pairs *p, int side, const struct sheaf_tensor *t)
{
	const char *name, *family = NULL;

	if (p->between && side == p->joined)
		family = split(p, t, &name);
	return family ? family : t->family;
}

int cli_pairs_find(const struct cli_pairs *p, int side, const struct sheaf_tensor *t,
                   struct sheaf_tensor *out)
{
	struct sheaf_checkpoint *in = p->side[1 - side];
	const char *name = t->name, *family = t->family;

	if (p->between && side != p->joined)
		return find_joined(in, p->between, family, name, out);
	if (p->between)
		family = split(p, t, &name);
	return family ? sheaf_checkpoint_find(in, family, name, out, NULL) : SHEAF_ELAYOUT;
}

static bool is_tied(struct sheaf_checkpoint *step, const char *name, const char *to)
{
	struct sheaf_tensor t = { .size = sizeof(t) };

	return sheaf_checkpoint_find(step, "model", name, &t, NULL) == 0 && t.tied_to &&
	       strcmp(t.tied_to, to) == 0;
}

/* Returns whether two tensors of a family belong to weights that are tied: they are such weights,
 * their masters or averages, or state <weight>/<key> of them under the same key. */
static bool are_of_tied_weights(struct sheaf_checkpoint *step, const char *a, const char *b)
{
	const char *key_a = strrchr(a, '/'), *key_b = strrchr(b, '/');
	char of_a[1100], of_b[1100];    /* names have at most 1,024 bytes */

	if (is_tied(step, a, b) || is_tied(step, b, a))
		return true;
	if (!key_a || !key_b || strcmp(key_a, key_b))
		return false;
	snprintf(of_a, sizeof(of_a), "%.*s", (int)(key_a - a), a);
	snprintf(of_b, sizeof(of_b), "%.*s", (int)(key_b - b), b);
	return is_tied(step, of_a, of_b) || is_tied(step, of_b, of_a);
}

/* Many formats have tied weights, and what belongs to them, once, and their readers tie them again.
 * They do not tie other tensors that were one array, such as moments of zeros. */
static bool is_tied_to_common(const struct cli_pairs *p, int side, const struct sheaf_tensor *t)
{
	struct sheaf_tensor target = { .size = sizeof(target) }, x = { .size = sizeof(x) };

	return t->tied_to && are_of_tied_weights(p->side[side], t->name, t->tied_to) &&
	       sheaf_checkpoint_find(p->side[side], t->family, t->tied_to, &target, NULL) == 0 &&
	       cli_pairs_find(p, side, &target, &x) == 0;
}

static bool is_count_of_updates(const struct sheaf_tensor *t)
{
	static const char *const kinds[] = { "beta1_pow_acc_0", "beta2_pow_acc_0", "step" };
	const char *slash = strrchr(t->name, '/');

	for (size_t i = 0; slash && i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strcmp(slash + 1, kinds[i]) == 0)
			return true;
	return false;
}

bool cli_pairs_follows(const struct cli_pairs *p, int side, const struct sheaf_tensor *t)
{
	return (p->of_programs && is_count_of_updates(t)) || is_tied_to_common(p, side, t);
}
