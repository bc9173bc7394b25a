/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf diff: compares two steps tensor by tensor, whatever their files. It always reads the
 * values: comparing digests would be faster, but would prove less. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sheaf-inspect.h"
#include "workload.h"

#define WINDOW (INT64_C(4) << 20)

struct diff {
	const struct cli_args *a;
	const char *family;             /* NULL: all */
	struct sheaf_checkpoint *left, *right;
	bool exact;
	double rtol, atol;
	char *x, *y;                    /* buffers of one window; owned */
	struct cli_pairs pairs;
	json_t *left_out;               /* families that only one side has, and that are not
					 * compared; owned */
	uint64_t tensors, different;
	uint64_t following;             /* tensors that only one side has and that are no
	                                 * difference, see cli_pairs_follows */
};

struct gap {                            /* how two tensors differ */
	int64_t count, first, where;    /* in items; where: the place of max_abs, or -1 */
	double max_abs, max_rel;
};

/* --- items -------------------------------------------------------------------------------- */

static bool is_same(double a, double b)
{
	return a == b || (isnan(a) && isnan(b));
}

/* Sets *gap = |a - b| and *size = |b|, for a complex item of both parts. Returns false if an item
 * is not a number. */
static bool values_of(int lt, int rt, const char *x, const char *y, double *gap, double *size,
		      bool *same)
{
	double a, b, ai = 0, bi = 0;

	if (!wl_value(&a, lt, x) || !wl_value(&b, rt, y))
		return false;
	if (lt == SHEAF_C64)
		wl_value(&ai, lt, x + 4);
	if (rt == SHEAF_C64)
		wl_value(&bi, rt, y + 4);
	*gap = hypot(a - b, ai - bi);
	*size = hypot(b, bi);
	*same = is_same(a, b) && is_same(ai, bi);
	return true;
}

static void gap_note(struct gap *g, int64_t item, double gap, double size)
{
	if (!isfinite(gap))
		return;
	if (g->where < 0 || gap > g->max_abs) {
		g->max_abs = gap;
		g->where = item;
	}
	if (size > 0 && gap / size > g->max_rel)
		g->max_rel = gap / size;
}

/* Returns whether one item is equal; its bits may differ. An infinity equals only itself. */
static bool item_equal(const struct diff *d, int lt, int rt, const char *x, const char *y,
		       int64_t item, struct gap *g)
{
	double gap = 0, size = 0;
	bool same = false, known = values_of(lt, rt, x, y, &gap, &size, &same);

	if (known && !same)
		gap_note(g, item, gap, size);
	if (d->exact || !known)
		return lt == rt && memcmp(x, y, wl_unit_bytes(lt)) == 0;
	return same || (isfinite(gap) && isfinite(size) && gap <= d->atol + d->rtol * size);
}

static void items_compare(const struct diff *d, const struct cli_box *l, const struct cli_box *r,
			  int64_t from, int64_t n, struct gap *g)
{
	int lt = l->t.dtype, rt = r->t.dtype, bits = sheaf_dtype_bits(lt);
	size_t xs = wl_unit_bytes(lt), ys = wl_unit_bytes(rt);
	int64_t units = bits < 8 ? (int64_t)cli_box_bytes(l, n) : n;

	for (int64_t k = 0; k < units; k++) {
		const char *x = d->x + (size_t)k * xs, *y = d->y + (size_t)k * ys;
		int64_t item = from + (bits < 8 ? k * 8 / bits : k);

		if (lt == rt && memcmp(x, y, xs) == 0)
			continue;
		if (!item_equal(d, lt, rt, x, y, item, g) && g->count++ == 0)
			g->first = item;
	}
}

/* --- the report -------------------------------------------------------------------------- */

static void index_of(const struct sheaf_tensor *t, int64_t item, int64_t *at)
{
	for (int d = t->ndim; d-- > 0;) {
		at[d] = t->shape[d] ? item % t->shape[d] : 0;
		item /= t->shape[d] ? t->shape[d] : 1;
	}
}

static json_t *real(const struct gap *g, double v)
{
	json_t *x = g && g->where >= 0 && isfinite(v) ? json_real(v) : NULL;

	return x ? x : json_null();
}

/* Adds {dtypes, shapes} of both sides, for tensors in which these differ. */
static void add_both(json_t *v, const struct sheaf_tensor *l, const struct sheaf_tensor *r)
{
	const char *lt = sheaf_dtype_name(l->dtype), *rt = sheaf_dtype_name(r->dtype);

	json_object_set_new(v, "dtypes", json_pack("[o,o]", cli_str(lt), cli_str(rt)));
	json_object_set_new(v, "shapes", json_pack("[o,o]", cli_shape_json(l->ndim, cli_dims(l)),
						   cli_shape_json(r->ndim, cli_dims(r))));
}

static void print_json(const struct sheaf_tensor *t, const struct sheaf_tensor *r,
		       const char *what, const struct gap *g)
{
	int64_t at[SHEAF_DIMS_MAX];
	json_t *v = json_pack("{s:o,s:o,s:s}", "family", cli_str(t->family), "name",
			      cli_str(t->name), "what", what);

	if (r)
		add_both(v, t, r);

	json_object_set_new(v, "count", g ? json_integer(g->count) : json_null());
	json_object_set_new(v, "first", g ? json_integer(g->first) : json_null());
	json_object_set_new(v, "max_abs", real(g, g ? g->max_abs : 0));
	json_object_set_new(v, "max_rel", real(g, g ? g->max_rel : 0));
	if (g) {
		index_of(t, g->first, at);
		json_object_set_new(v, "first_index", cli_shape_json(t->ndim, at));
	}
	if (g && g->where >= 0) {
		index_of(t, g->where, at);
		json_object_set_new(v, "max_index", cli_shape_json(t->ndim, at));
	}
	cli_line(v);
}

static void print_kind(const struct sheaf_tensor *t)
{
	printf("%s ", sheaf_dtype_name(t->dtype));
	cli_shape(stdout, t->ndim, cli_dims(t));
}

static void print_text(const struct sheaf_tensor *t, const struct sheaf_tensor *r,
		       const char *what, const struct gap *g)
{
	int64_t at[SHEAF_DIMS_MAX];

	cli_put(stdout, t->family);
	putchar('/');
	cli_put(stdout, t->name);
	printf(": %s", what);
	if (r) {
		fputs(", ", stdout);
		print_kind(t);
		fputs(" and ", stdout);
		print_kind(r);
	}
	if (g) {
		index_of(t, g->first, at);
		printf(" differ in %lld item%s, first at ", (long long)g->count,
		       g->count == 1 ? "" : "s");
		cli_shape(stdout, t->ndim, at);
	}
	if (g && g->where >= 0) {
		index_of(t, g->where, at);
		printf(", most by %.6g at ", g->max_abs);
		cli_shape(stdout, t->ndim, at);
		printf(" (relative at most %.3g)", g->max_rel);
	}
	putchar('\n');
}

/* Reports a difference. r: the tensor of the other side, if the shapes or the dtypes differ. */
static void differs(struct diff *d, const struct sheaf_tensor *t, const struct sheaf_tensor *r,
		    const char *what, const struct gap *g)
{
	d->different++;
	if (d->a->json)
		print_json(t, r, what, g);
	else
		print_text(t, r, what, g);
}

/* --- tensors ------------------------------------------------------------------------------ */

/* Compares the values by windows. Returns 0, or an exit status after printing the error. */
static int values(struct diff *d, const struct sheaf_tensor *lt, const struct sheaf_tensor *rt)
{
	struct gap g = { .where = -1 };
	struct sheaf_error err = { .msg = "" };
	struct cli_box l, r;

	cli_box_init(&l, lt);
	cli_box_init(&r, rt);
	for (int64_t at = 0; at < l.items;) {
		int64_t n = cli_box_window(&l, at, WINDOW);
		int rc;

		/* The wider dtype determines the window, so that both fit. */
		if (cli_box_bytes(&r, n) > (uint64_t)WINDOW)
			n = cli_box_window(&r, at, WINDOW);
		rc = cli_box_read(d->left, &l, at, n, d->x, &err);
		if (rc < 0)
			return cli_error(d->a, rc, d->a->pos[0], err.msg, NULL);
		rc = cli_box_read(d->right, &r, at, n, d->y, &err);
		if (rc < 0)
			return cli_error(d->a, rc, d->a->pos[1], err.msg, NULL);
		if (lt->dtype != rt->dtype || memcmp(d->x, d->y, cli_box_bytes(&l, n)) != 0)
			items_compare(d, &l, &r, at, n, &g);
		at += n;
	}
	if (g.count)
		differs(d, &l.t, NULL, "values", &g); /* l.t: has the dimensions that were read */
	return 0;
}

static int both(struct diff *d, const struct sheaf_tensor *l, const struct sheaf_tensor *r)
{
	bool small = sheaf_dtype_bits(l->dtype) < 8 || sheaf_dtype_bits(r->dtype) < 8;
	const int64_t *x = cli_dims(l), *y = cli_dims(r);

	/* For more than 64 dimensions only their number and the number of items are known. */
	if (l->ndim != r->ndim || (x && y && memcmp(x, y, sizeof(*x) * (size_t)l->ndim) != 0) ||
	    l->bytes / (uint64_t)sheaf_dtype_bits(l->dtype) !=
	    r->bytes / (uint64_t)sheaf_dtype_bits(r->dtype)) {
		differs(d, l, r, "shape", NULL);
		return 0;
	}
	if (l->dtype != r->dtype && (d->exact || small)) {
		differs(d, l, r, "dtype", NULL);
		return 0;
	}
	return values(d, l, r);
}

/* --- the verb ----------------------------------------------------------------------------- */

static bool wanted(const struct diff *d, int side, const struct sheaf_tensor *t)
{
	const char *family = cli_pairs_family(&d->pairs, side, t);

	if (d->family)
		return strcmp(d->family, family) == 0;
	return !json_object_get(d->left_out, family);
}

/* If one side is from Sheaf and the other from another program, compares only families that both
 * have, because many programs write only weights. Notes the families that only one side has. */
static void choose_families(struct diff *d)
{
	if (d->family || !d->pairs.of_programs || d->pairs.between)
		return;
	for (int k = 0; k < 2; k++) {
		const struct cli_families *of = &d->pairs.families[k];

		for (int i = 0; i < of->n; i++)
			if (!cli_families_have(&d->pairs.families[1 - k], of->names[i]))
				json_object_set_new(d->left_out, of->names[i], json_true());
	}
}

/* Counts and reports a tensor that only one side has, unless it follows from others. */
static void alone(struct diff *d, int side, const struct sheaf_tensor *t)
{
	if (cli_pairs_follows(&d->pairs, side, t)) {
		d->following++;
		return;
	}
	d->tensors++;
	differs(d, t, NULL, side == 0 ? "left-only" : "right-only", NULL);
}

/* Lists the families of one side, as many as fit. */
static void families_text(char text[200], const struct cli_families *f)
{
	size_t at = (size_t)snprintf(text, 200, "%s", f->n ? f->names[0] : "none");

	for (int i = 1; i < f->n && at < 200; i++)
		at += (size_t)snprintf(text + at, 200 - at, ", %s", f->names[i]);
}

/* Refuses an answer if no tensor was compared. But two checkpoints without tensors are the same. */
static int check_compared(const struct diff *d)
{
	char left[200], right[200], why[600];

	if (d->tensors)
		return 0;
	if (d->following)
		return cli_error(d->a, SHEAF_ENOENT, d->a->pos[1], "nothing was compared: there "
				 "are only numbers of updates and powers of betas",
				 "choose another family with --family");
	if (d->family)
		return cli_error(d->a, SHEAF_ENOENT, d->family, "neither side has this family",
				 NULL);
	if (!json_object_size(d->left_out))
		return 0;
	families_text(left, &d->pairs.families[0]);
	families_text(right, &d->pairs.families[1]);
	snprintf(why, sizeof(why), "nothing was compared, because no family is on both sides: the "
		 "left has %s, the right has %s", left, right);
	return cli_error(d->a, SHEAF_ENOENT, d->a->pos[1], why,
			 "choose one with --family; what one side lacks is then a difference");
}

static int compare(struct diff *d)
{
	struct sheaf_tensor l = { .size = sizeof(l) }, r = { .size = sizeof(r) };
	int rc = 0;

	for (size_t i = 0; rc == 0 && sheaf_checkpoint_tensor(d->left, i, &l, NULL) == 0; i++) {
		if (!wanted(d, 0, &l))
			continue;
		if (cli_pairs_find(&d->pairs, 0, &l, &r) < 0) {
			alone(d, 0, &l);
			continue;
		}
		d->tensors++;
		rc = both(d, &l, &r);
	}
	for (size_t i = 0; rc == 0 && sheaf_checkpoint_tensor(d->right, i, &r, NULL) == 0; i++) {
		if (wanted(d, 1, &r) && cli_pairs_find(&d->pairs, 1, &r, &l) < 0)
			alone(d, 1, &r);
	}
	return rc ? rc : check_compared(d);
}

static int answer(const struct diff *d)
{
	const char *family, *before = "not compared, because one side alone has them: ";
	json_t *names = json_array(), *value;

	json_object_foreach(d->left_out, family, value)
		json_array_append_new(names, cli_str(family));
	if (d->a->json) {
		cli_line(json_pack("{s:s,s:I,s:I,s:I,s:o}", "result",
				   d->different ? "different" : "same", "tensors",
				   (json_int_t)d->tensors, "different", (json_int_t)d->different,
				   "following", (json_int_t)d->following, "left_out", names));
		return d->different ? 1 : 0;
	}
	json_decref(names);
	if (d->different)
		printf("%llu of %llu tensors differ\n", (unsigned long long)d->different,
		       (unsigned long long)d->tensors);
	if (!d->different && !isatty(STDOUT_FILENO))
		return 0;
	json_object_foreach(d->left_out, family, value) {
		printf("%s%s", before, family);
		before = ", ";
	}
	if (json_object_size(d->left_out))
		putchar('\n');
	if (d->following)
		printf("not compared, because one side alone has them, and they follow from the "
		       "number of updates or are tied to other tensors: %llu tensors\n",
		       (unsigned long long)d->following);
	return d->different ? 1 : 0;
}

static int run(const struct cli_args *a)
{
	struct diff d = { .a = a, .family = cli_value(a, "family") };
	struct cli_step left = { 0 }, right = { 0 };
	int rc = cli_real(a, "rtol", &d.rtol);

	if (!rc)
		rc = cli_real(a, "atol", &d.atol);
	if (rc)
		return rc;
	d.exact = !cli_value(a, "rtol") && !cli_value(a, "atol");
	d.x = malloc((size_t)WINDOW + 16);
	d.y = malloc((size_t)WINDOW + 16);
	if (!d.x || !d.y)
		rc = cli_nomem(a);
	if (!rc)
		rc = cli_step_open(&left, a, a->pos[0], cli_flag(a, "unverified"));
	if (!rc)
		rc = cli_step_map(&left, a, d.family);
	if (!rc)
		rc = cli_step_open(&right, a, a->pos[1], cli_flag(a, "unverified"));
	d.left = left.step;
	d.right = right.step;
	d.left_out = json_object();
	if (!rc) {
		cli_pairs_init(&d.pairs, &left, &right);
		choose_families(&d);
	}
	if (!rc)
		rc = compare(&d);
	if (!rc)
		rc = answer(&d);
	cli_step_close(&left);
	cli_step_close(&right);
	json_decref(d.left_out);
	free(d.x);
	free(d.y);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "family", "F", "only this family" },
	{ "rtol", "X", "relative tolerance, of the right side" },
	{ "atol", "X", "absolute tolerance" },
	{ "map", "MAP", "map names and shapes: a file, or a map that comes with sheaf" },
	{ "to", "SIDE", "the side of the map that is made (the right one)" },
	{ "set", "NAME=N,...", "numbers for the map, such as tp=2" },
	{ "config", "FILE", "the config.json for the map (that of A)" },
	{ "unverified", NULL, "read past damaged blocks" },
	{ 0 },
};
const struct cli_verb cli_diff = {
	.name = "diff",
	.brief = "compare two steps tensor by tensor",
	.synopsis = "sheaf diff A B [--family F] [--rtol X] [--atol X] [--unverified] [--json]\n"
		    "                  [--map MAP [--to SIDE] [--set NAME=N,...] [--config FILE]]",
	.text = "Compares by family and name, however many ranks or files made each side; A\n"
		"and B may be steps, Hugging Face directories or single files. Memory is\n"
		"bounded.\n\n"
		"Without tolerances bits are compared, a NaN equals itself, and dtypes must\n"
		"agree. With --rtol or --atol values are equal where |a - b| <= atol + rtol *\n"
		"|b| in fp64, NaN equals NaN, infinities equal themselves only, and dtypes\n"
		"may differ; types smaller than a byte are compared by bits.\n\n"
		"A tensor or family on one side only is a difference, unless --family leaves\n"
		"it out. But where one side is a step of sheaf and the other is a directory or\n"
		"file of another program, the families that both have are compared, and powers of\n"
		"betas and numbers of updates that one side alone has are no difference. A file\n"
		"that sheaf convert --all wrote as torch, dcp, npz or paddle has the families in\n"
		"its names, where they are found.\n\n"
		"A name that one side alone has is no difference if it is tied there to a tensor\n"
		"that both sides have: many formats store tied weights once.\n\n"
		"With --map A is compared as the map shows it (see doc/mapping.md), so that B may\n"
		"be the same model with the names and shapes of another program. A step of sheaf\n"
		"stays one through a map: two of them must have the same families.\n\n"
		"With --json each differing tensor is {family, name, what: left-only, right-only,\n"
		"dtype, shape or values, dtypes, shapes (of both sides), count, first, max_abs,\n"
		"max_rel}; first is the row-major number of an item. Last comes {result: same or\n"
		"different, tensors, different, following: tensors of one side that follow from\n"
		"the number of updates or are tied to others, left_out: families}. Silent when\n"
		"both are the same.",
	.exits = "  0  the same\n"
		 "  1  they differ, or one is damaged\n"
		 "  2  no such step, it could not be read, or nothing was compared",
	.examples = "  sheaf diff runs/a@1000 runs/b@1000\n"
		    "  sheaf diff runs/a model-hf/ --family model --rtol 1e-2\n"
		    "  sheaf diff qwen2-hf qwen2-paddle --map qwen2-hf-paddle",
	.opts = opts,
	.pos_min = 2,
	.pos_max = 2,
	.pos_names = "A B",
	.run = run,
};
