/* SPDX-License-Identifier: Apache-2.0 */
/* Maps: what their texts mean, and what is wrong with those that are refused. Plans are compared
 * item by item: each item that is made comes from one item of the source, each of these is taken
 * once, and a map back undoes the map. */
#include "dtype.h"
#include "map_plan.h"
#include "memfail.h"
#include "natural.h"
#include "t.h"

static struct sheaf_error err;

/* ---- texts ---- */

#define HEAD "sheaf-map 1 a b\n"
#define NOT(text, why) { HEAD text, "x.map:" why }
static const struct { const char *text, *sentence; } refused[] = {
	{ "", "x.map:1: is not a map; the first line must be: sheaf-map 1 LEFT RIGHT" },
	{ "map 1 a b\n", "x.map:1: is not a map; the first line must be: sheaf-map 1 LEFT RIGHT" },
	{ "sheaf-map 2 a b\n", "x.map:1: this version of the language is not known; this sheaf "
	  "reads version 1" },
	{ "sheaf-map 1 a\n", "x.map:1: the first line must name both sides, as in sheaf-map 1 hf "
	  "paddle" },
	{ "sheaf-map 1 a a\n", "x.map:1: the first line must name two sides, as in sheaf-map 1 hf "
	  "paddle" },
	{ "# nothing\n\n", "x.map:1: is not a map; the first line must be: sheaf-map 1 LEFT "
	  "RIGHT" },
	{ "sheaf-map 1 a b\n\xff\n", "x.map: is not a map: it is not a text of at most 1 MiB" },
	NOT("", "1: has no rule"),
	NOT("let x 3\n", "2: '=' and a number are expected after x"),
	NOT("let x = 3 4\n", "2: '4' is one too many"),
	NOT("let up = 3\n", "2: up is a word of the language"),
	NOT("let x = 1\nlet x = 2\n", "3: x is defined twice"),
	NOT("let x = y\n", "2: y is not known; it must be defined before, by let, arg or for"),
	NOT("for n = 3\nlet x = n\n", "3: n is a counter, which only names of tensors can use"),
	NOT("let x = (1\n", "2: a bracket is not closed"),
	NOT("let x = 1 +\n", "2: a number or a name is expected before ''"),
	NOT("let x = 99999999999999999999\n", "2: a number is beyond 64 bits"),
	NOT("let x = config\n", "2: config must be followed by a key, as in config.hidden_size"),
	NOT("let x = up(3)\n", "2: up needs two numbers, as in up(n, 128)"),
	NOT("let x = ((((((((1))))))))\n", "2: brackets are more than 8 deep"),
	NOT("p = q\nlet x = 1\n", "3: let, arg and for must come before the first rule"),
	NOT("p\n", "2: '=' is expected between the sides of a rule"),
	NOT("p [x\n", "2: the bracket of the dimensions is not closed"),
	NOT("p [x , y] = q [x y]\n", "2: an axis is expected before ', y] = q [x y]'"),
	NOT("p = \n", "2: a name of a tensor is expected"),
	NOT("p = q r\n", "2: 'r' is one too many; tensors must have commas between them"),
	NOT("p {x} = q\n", "2: '=' is expected before '{x} = q'"),
	NOT("p.{x} = q\n", "2: x is not known; it must be defined before, by let, arg or for"),
	NOT("p.{*}.{*} = q.{*}\n", "2: a name has {*} at most once"),
	NOT("for n = 2\np.{n:99} = q.{n}\n", "3: a width is from 1 to 18 digits, as in {l:5}"),
	NOT("for n = 2\np.{n = q.{n}\n", "3: a brace is not closed"),
	NOT("p [x y] : FLOAT = q [x y]\n", "2: 'FLOAT' is not a type; use the names of "
	    "safetensors, such as BF16 and F8_E4M3"),
	NOT("p [x] : F4 = q [x]\n", "2: types smaller than a byte cannot be mapped"),
	NOT("p [()] = q [x]\n", "2: a bracket has no axis"),
	NOT("p [a b c d e f g h i] = q [x]\n", "2: a tensor has more than 8 dimensions"),
	{ HEAD "p [((((((((x))))))))] = q [x]\n", NULL },
	NOT("p [(((((((((x)))))))))] = q [x]\n", "2: brackets are more than 8 deep"),
	NOT("p [(x + zero)] = q [x]\n", "2: zero needs a number of items, as in zero(n)"),
	/* what is not bijective */
	NOT("p [x x] = q [x]\n", "2: p: has twice the axis x"),
	NOT("p [x] = q [x y]\n", "2: p has a part with the axes x, and nothing on side b has "
	    "these"),
	NOT("p [x], q [x] = r [(x + x)]\n", "2: two parts of side a have the axes x, so it is not "
	    "known which is which; name an axis of each differently"),
	NOT("p [x], q [y] = r [(x + y)]\n", "2: p cannot be made from side b, because the sizes of "
	    "these axes are not known: x; they must be defined by let"),
	NOT("p [(x y)] = q [x y]\n", "2: q cannot be made from side a, because the sizes of these "
	    "axes are not known: x y; they must be defined by let"),
	NOT("p [x] = q [(x + zero(3))], r [zero(2)]\n", "2: r is nothing but padding"),
	NOT("for n = 2\np.{n} = q\n", "3: p.{n} has a part with the axes n, and nothing on side b "
	    "has these"),
	NOT("for n = 2\np.{n} [n] = q [n]\n", "3: p.{n}: has twice the axis n"),
	NOT("p, q = r\n", "2: p: either both sides have dimensions, or the rule is a rename of one "
	    "tensor"),
	NOT("p [x] = r\n", "2: p: either both sides have dimensions, or the rule is a rename of "
	    "one tensor"),
	NOT("p.{*} = r\n", "2: p.{*}: a rule with {*} has one tensor on each side, each with {*} "
	    "and no other number in its name"),
	/* the other lines */
	NOT("also p.{*} q.{*}\n", "2: '=' is expected between the places"),
	NOT("also p = q.{*}\n", "2: a place of state needs {*}, which stands for the name of the "
	    "weight"),
	NOT("for n = 2\nalso p.{n}.{*} = q.{*}\n", "3: a place of state has {*} and no other "
	    "brace"),
	NOT("also p.{*} in Nowhere = q.{*}\n", "2: in must be followed by a family, as in "
	    "optimizer"),
	NOT("drop c x\n", "2: drop must be followed by a or b, and the name of a tensor"),
	NOT("p = q\n r s = t\n", "2: 'r s = t' is one too many; tensors must have commas between "
	    "them"),
	NOT("let g = 2\nlet q = 3\np [(g q d) h],\n  k [(g d) h] = f [(g (q + k) d) h]\n",
	    "4: k has a part with the axes g d h, and nothing on side b has these"),
};

TEST(a_map_that_is_not_right_is_refused_in_one_sentence)
{
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		struct shf_map m;
		int rc = shf_map_parse(&m, "x.map", refused[i].text, strlen(refused[i].text), &err);

		CHECK_RC(rc, refused[i].sentence ? SHEAF_EINVAL : 0, &err);
		if (refused[i].sentence)
			CHECK_STR(err.msg, refused[i].sentence);
		shf_map_release(&m);
	}
}

/* Each text is cut at each byte, and each byte is replaced: the parser ends, and reads nothing
 * beyond (the address sanitizer says so). */
TEST(no_cut_and_no_byte_of_a_map_leads_beyond_it)
{
	static const char text[] = HEAD "arg t = 2\nlet g = config.a or up(3, t) * (4 - 1) / 3\n"
		"for l = 2 # layers\nalso {*}/m in optimizer = o.{*}\ndrop a x.{l}\n"
		"maybe p.{l + 1:02} [(g t d) 1 h], k.{l} [(g (d2)) h] : BF16\n"
		"  = f [l (g (t d + d2) + zero(up(g, 8) - g)) h] : bits F16\n{*} = y.{*}\n";

	for (size_t cut = 0; cut < sizeof(text); cut++)
		for (int with = 0; with < 3; with++) {
			char *own = malloc(cut ? cut : 1);
			struct shf_map m;
			int rc;

			CHECK(own != NULL);
			memcpy(own, text, cut);
			if (with && cut)
				own[cut / 2] = "*{("[with];
			rc = shf_map_parse(&m, "x.map", own, cut, &err);
			CHECK(rc == 0 || rc == SHEAF_EINVAL);
			shf_map_release(&m);
			free(own);
		}
}

/* ---- plans ---- */

#define TENSORS_MAX 200
struct model { struct shf_layout l; struct shf_lt_tensor tensors[TENSORS_MAX]; };
static struct model left, right, back;
static uint8_t single[16];      /* the value that tensors of one item have */

static int tensor_order(const void *a, const void *b)
{
	const struct shf_lt_tensor *x = a, *y = b;

	return x->family != y->family ? (x->family > y->family) - (x->family < y->family)
	                              : shf_natural(x->name, y->name);
}

static void begin(struct model *m)
{
	static const char *const families[] = { "model", "master_weights", "optimizer" };

	shf_layout_release(&m->l);
	m->l.tensors = m->tensors;
	m->l.families = shf_arena_alloc(&m->l.arena, 3, sizeof(*m->l.families));
	for (size_t f = 0; f < 3; f++)
		m->l.families[m->l.families_n++] = (struct shf_lt_family){ .name = families[f] };
}

static void add_dims(struct model *m, int family, const char *name, int dtype, int ndim,
                     const int64_t *dims)
{
	struct shf_lt_tensor *t = &m->tensors[m->l.tensors_n++];
	uint64_t items = 1;

	CHECK(m->l.tensors_n <= TENSORS_MAX);
	*t = (struct shf_lt_tensor){ .family = (uint32_t)family, .dtype = dtype,
		.items.ndim = ndim, .name = shf_arena_strdup(&m->l.arena, name, strlen(name)) };
	for (int d = 0; d < ndim; d++)
		items *= (uint64_t)(t->items.dim[d] = dims[d]);
	t->bytes = items * shf_dtype(dtype)->bits / 8;
}

static void add(struct model *m, int family, const char *name, int ndim, ...)
{
	int64_t dims[8];
	va_list ap;

	va_start(ap, ndim);
	for (int d = 0; d < ndim; d++)
		dims[d] = va_arg(ap, int);
	va_end(ap);
	add_dims(m, family, name, SHEAF_BF16, ndim, dims);
}

static void end(struct model *m)
{
	qsort(m->tensors, m->l.tensors_n, sizeof(m->tensors[0]), tensor_order);
	for (size_t f = 0; f < m->l.families_n; f++)
		m->l.families[f].tensors_n = 0;
	for (size_t i = 0; i < m->l.tensors_n; i++) {
		struct shf_lt_family *f = &m->l.families[m->tensors[i].family];

		if (f->tensors_n++ == 0)
			f->first_tensor = (uint32_t)i;
	}
}

static int same_value(void *arg, uint32_t tensor, void *to, uint64_t n, struct sheaf_error *e)
{
	(void)arg;
	(void)e;
	memcpy(to, single, n);
	((uint8_t *)to)[0] = (uint8_t)(single[0] == 0xff ? tensor : single[0]);
	return 0;
}

static struct shf_map map;      /* of the present plan */

static const char *family;      /* that is mapped; NULL: all */

static int plan(struct shf_map_plan *p, const char *text, const struct shf_layout *of, int to,
                const char *set, const char *config)
{
	struct shf_map_how how = { .to = to, .family = family, .prefix = "", .read = same_value };
	struct shf_map_config c = { 0 };
	int rc = shf_map_parse(&map, "x.map", text, strlen(text), &err);

	*p = (struct shf_map_plan){ 0 };
	if (rc == 0 && config)
		rc = shf_map_config_read(&c, "config.json", config, strlen(config), &err);
	if (rc == 0 && set)
		rc = shf_map_config_give(&c, set, &err);
	if (rc == 0)
		rc = shf_map_plan_make(p, &map, &c, of, "src", &how, &err);
	shf_map_config_release(&c);
	return rc;
}

static void plan_end(struct shf_map_plan *p)
{
	shf_map_plan_release(p);
	shf_map_release(&map);
}

static const struct shf_map_made *made_of(const struct shf_map_plan *p, size_t *n)
{
	*n = p->made.len / sizeof(struct shf_map_made);
	return (const void *)p->made.data;
}

/* Where an item of what is made comes from: tensor << 32 | item; UINT64_MAX: padding. */
static void sources_of(const struct shf_map_plan *p, const struct shf_map_made *t, uint64_t *from,
                       uint64_t items)
{
	const struct shf_map_piece *x = (const void *)p->pieces.data;

	for (uint64_t i = 0; i < items; i++)
		from[i] = UINT64_MAX;
	for (size_t k = t->first; k < t->first + t->n; k++) {
		uint64_t all = 1;

		for (int a = 0; a < x[k].box->n; a++)
			all *= x[k].box->axis[a].n;
		for (uint64_t i = 0; i < all; i++) {
			uint64_t src = x[k].src, dst = x[k].dst, rest = i;

			for (int a = x[k].box->n; a-- > 0; rest /= x[k].box->axis[a].n) {
				src += rest % x[k].box->axis[a].n * x[k].box->axis[a].src;
				dst += rest % x[k].box->axis[a].n * x[k].box->axis[a].dst;
			}
			CHECK(dst < items && dst < x[k].dst + x[k].span);
			CHECK(from[dst] == UINT64_MAX);
			from[dst] = (uint64_t)x[k].from << 32 | src;
		}
	}
}

static uint64_t items_of(const struct shf_lt_tensor *t)
{
	return t->bytes * 8 / shf_dtype(t->dtype)->bits;
}

#define ITEMS_MAX 20000
/* Of each tensor of a model, where its items come from in the model before. */
struct origin { uint64_t *of[TENSORS_MAX]; };

/* Makes the model on the other side, and proves that each item of the source is taken once. */
static void apply(const char *text, const struct model *from, int to, const char *config,
                  struct model *out, struct origin *o)
{
	static uint8_t taken[TENSORS_MAX][ITEMS_MAX];
	struct shf_map_plan p;
	const struct shf_map_made *made;
	size_t n;

	CHECK_RC(plan(&p, text, &from->l, to, NULL, config), 0, &err);
	made = made_of(&p, &n);
	begin(out);
	memset(taken, 0, sizeof(taken));
	for (size_t i = 0; i < n; i++)
		add_dims(out, strcmp(made[i].family, "model") ? 2 : 0, made[i].name,
		         made[i].dtype, made[i].ndim, made[i].dims);
	end(out);
	for (size_t i = 0; i < n; i++) {
		int64_t at = shf_layout_find(&out->l, made[i].family, made[i].name);
		uint64_t items = items_of(&out->tensors[at]);

		CHECK(items <= ITEMS_MAX);
		o->of[at] = calloc(items + 1, sizeof(uint64_t));
		sources_of(&p, &made[i], o->of[at], items);
		for (uint64_t k = 0; k < items; k++) {
			uint64_t x = o->of[at][k];

			CHECK(x != UINT64_MAX || made[i].padded);
			if (x != UINT64_MAX)
				CHECK_INT(taken[x >> 32][x & 0xffffffff]++, 0);
		}
	}
	for (size_t i = 0; i < from->l.tensors_n; i++)
		for (uint64_t k = 0; k < items_of(&from->tensors[i]) && to == 1; k++)
			CHECK_INT(taken[i][k], 1);
	plan_end(&p);
}

static void origin_free(struct origin *o)
{
	for (size_t i = 0; i < TENSORS_MAX; i++) {
		free(o->of[i]);
		o->of[i] = NULL;
	}
}

/* There and back: every item is where it was. */
static void there_and_back(const char *text, const char *config)
{
	static struct origin there, home;

	end(&left);
	apply(text, &left, 1, config, &right, &there);
	apply(text, &right, 0, config, &back, &home);
	CHECK_INT(back.l.tensors_n, left.l.tensors_n);
	for (size_t i = 0; i < left.l.tensors_n; i++) {
		const struct shf_lt_tensor *t = &left.tensors[i], *b = &back.tensors[i];

		CHECK_STR(b->name, t->name);
		CHECK_INT(b->items.ndim, t->items.ndim);
		for (int d = 0; d < t->items.ndim; d++)
			CHECK_INT(b->items.dim[d], t->items.dim[d]);
		for (uint64_t k = 0; k < items_of(t); k++) {
			uint64_t x = home.of[i][k];

			CHECK(there.of[x >> 32][x & 0xffffffff] == ((uint64_t)i << 32 | k));
		}
	}
	origin_free(&there);
	origin_free(&home);
}

static const char many[] = HEAD
	"let g = config.g\nlet q = config.heads / g\nlet k = 1\nlet v = 1\nlet two = 2\n"
	"let t = config.tp\nlet a = config.f / t\nlet b = config.f / t\n"
	"for l = config.l\nfor e = config.e\nfor r = config.tp\n"
	"for s = config.stages\nfor i = config.l / config.stages\n"
	"q.{l} [(g q d) h], k.{l} [(g k d) h], v.{l} [(g v d) h] = qkv [l (g (q + k + v) d) h]\n"
	"gate.{l}.{e} [(t a) h], up.{l}.{e} [(t b) h] = fc1.{l} [e (t (a + b)) h]\n"
	"norm.{s * (config.l / config.stages) + i} = stage{s}.norm{i:03}\n"
	"rope.{l} [(g two half) h] = rope{l} [h (g half two)]\n"
	"ranks.{l} [(r n) 1] = rank{r}.layer{l} [1 n]\n"
	"deep.{l} [((a + b) (g + k)) h] = deeper.{l} [(h (g + k)) (b + a)]\n"
	"emb [n h] = embedding [(n + zero(up(config.n, 8) - config.n)) h]\n";

/* x: the sizes g, q, d, h, tp, a, l, e, stages and n. */
static void sizes_are(const int *x)
{
	int g = x[0], q = x[1], d = x[2], h = x[3], tp = x[4], a = x[5], l = x[6], e = x[7];
	char config[300], name[40];

	snprintf(config, sizeof(config), "{\"g\": %d, \"heads\": %d, \"tp\": %d, \"f\": %d, "
	         "\"l\": %d, \"e\": %d, \"stages\": %d, \"n\": %d}", g, g * q, tp, tp * a, l, e,
	         x[8], x[9]);
	begin(&left);
	for (int k = 0; k < l; k++) {
		static const char *const qkv[] = { "q", "k", "v" };

		for (int i = 0; i < 3; i++) {
			snprintf(name, sizeof(name), "%s.%d", qkv[i], k);
			add(&left, 0, name, 2, g * (i ? 1 : q) * d, h);
		}
		for (int i = 0; i < e; i++) {
			snprintf(name, sizeof(name), "gate.%d.%d", k, i);
			add(&left, 0, name, 2, tp * a, h);
			snprintf(name, sizeof(name), "up.%d.%d", k, i);
			add(&left, 0, name, 2, tp * a, h);
		}
		snprintf(name, sizeof(name), "norm.%d", k);
		add(&left, 0, name, 1, h);
		snprintf(name, sizeof(name), "rope.%d", k);
		add(&left, 0, name, 2, g * 2 * d, h);
		snprintf(name, sizeof(name), "ranks.%d", k);
		add(&left, 0, name, 2, tp * (d + 1), 1);
		snprintf(name, sizeof(name), "deep.%d", k);
		add(&left, 0, name, 2, 2 * a * (g + 1), h);
	}
	add(&left, 0, "emb", 2, x[9], h);
	there_and_back(many, config);
}

TEST(a_map_and_its_way_back_move_every_item_once_whatever_the_sizes)
{
	uint32_t seed = 12345;

	sizes_are((const int[10]){ 2, 3, 4, 5, 2, 3, 2, 3, 1, 13 });
	sizes_are((const int[10]){ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 });
	for (int i = 0; i < 200; i++) {
		int x[10];

		for (int k = 0; k < 10; k++) {
			seed = seed * 1664525 + 1013904223;
			x[k] = (int)(seed >> 16) % 3 + 1;
		}
		x[2]++;
		x[3] += 2;
		x[6] *= x[8];
		x[9] *= 7;
		sizes_are(x);
	}
}

/* ---- what a checkpoint must have ---- */

/* Says why a map of `left` to the right is refused. */
static const char *why_not(const char *text, const char *set, const char *config)
{
	struct shf_map_plan p;
	int rc;

	end(&left);
	rc = plan(&p, text, &left.l, 1, set, config);
	CHECK(rc == SHEAF_ELAYOUT || rc == SHEAF_EINVAL || rc == SHEAF_EFORMAT);
	plan_end(&p);
	return err.msg;
}

static void begin_small(void)
{
	begin(&left);
	add(&left, 0, "p", 2, 4, 6);
	add(&left, 0, "q.0", 1, 4);
	add(&left, 0, "q.1", 1, 4);
}

static const struct { const char *text, *set, *config, *sentence; } unfit[] = {
	{ HEAD "p = r\n",
	  NULL, NULL,
	  "src: no rule of x.map takes, from a to b, 2 tensors: q.0, q.1; add a rule or "
	  "a drop" },
	{ HEAD "p [x y z] = r [x y z]\n{*} = {*}\n",
	  NULL, NULL,
	  "p has shape [4, 6], which does not fit x.map:2: it has a different number of "
	  "dimensions; check that the map and config.json are those of this model" },
	{ HEAD "let g = 5\np [(g x) y] = r [g x y]\n{*} = {*}\n",
	  NULL, NULL,
	  "p has shape [4, 6], which does not fit x.map:3: no size of an axis gives "
	  "that; check that the map and config.json are those of this model" },
	{ HEAD "let g = 5\np [g y] = r [g y]\n{*} = {*}\n",
	  NULL, NULL,
	  "p has shape [4, 6], which does not fit x.map:3: the rule gives [5, 6]; check "
	  "that the map and config.json are those of this model" },
	{ HEAD "p = r\np = s\n{*} = {*}\n",
	  NULL, NULL,
	  "x.map:3: takes p, which the rule of line 2 takes already; each tensor must be "
	  "taken once" },
	{ HEAD "p = q.0\n{*} = {*}\n",
	  NULL, NULL,
	  "x.map:3: makes q.0, which the rule of line 2 makes already; each tensor must "
	  "be made once" },
	{ HEAD "for n = 3\nq.{n} = r.{n}\np = p\n",
	  NULL, NULL,
	  "src: has no tensor q.2, which x.map:3 needs; check that map and config.json "
	  "are those of this model" },
	{ HEAD "for n = 3\nmaybe q.{n} [x] = r [n x]\np = p\n",
	  NULL, NULL,
	  "src: has no tensor q.2, which x.map:3 needs; check that map and config.json "
	  "are those of this model" },
	{ HEAD "for n = 2\nq.{n / 2} = r.{n}\np = p\n",
	  NULL, NULL,
	  "x.map:3: a division leaves a remainder: 1 and 2; check it against config.json" },
	{ HEAD "for n = 2\nq.{n - 1} = r.{n}\np = p\n",
	  NULL, NULL,
	  "x.map:3: q.{n - 1}: a number in the name is negative: -1" },
	{ HEAD "for n = 2\nq.{n} = r.{n * 0}\np = p\n",
	  NULL, NULL,
	  "x.map:3: makes r.0, which the rule of line 3 makes already; each tensor must "
	  "be made once" },
	{ HEAD "for n = 99999999999\nq.{n} = r.{n}\n",
	  NULL, NULL,
	  "x.map:3: q.{n} counts far more names than src has tensors; check it against "
	  "config.json" },
	{ HEAD "let n = 9223372036854775807 + 1\np = q\n",
	  NULL, NULL,
	  "x.map:2: an expression is beyond 64 bits: 9223372036854775807 and 1; check it "
	  "against config.json" },
	{ HEAD "let n = 1 - 2\np = q\n",
	  NULL, NULL,
	  "x.map:2: n is -1; sizes and counts must not be negative" },
	{ HEAD "let n = config.n\np = q\n",
	  NULL, NULL,
	  "x.map:2: needs n, and there is no config.json; give it, as in --set n=N" },
	{ HEAD "let n = config.n\np = q\n",
	  NULL, "{\"n\": \"3\"}",
	  "x.map:2: config.json has no whole number named n; give it, as in --set n=N" },
	{ HEAD "arg n\np = q\n",
	  NULL, NULL,
	  "x.map:2: n must be given, as in --set n=1" },
	{ HEAD "p = q\n",
	  "m=3", NULL,
	  "x.map: nothing asks for m, which was given" },
	{ HEAD "p = q\n",
	  "m=x", NULL,
	  "'m=x' is not NAME=NUMBER, as in tp=2" },
	{ HEAD "p = q\n",
	  NULL, "[]",
	  "config.json: is not a JSON object" },
	{ HEAD "p = q\n",
	  NULL, "{",
	  "config.json: is not JSON: unexpected end at byte 1" },
	{ HEAD "p [x y] = r [x (y + zero(5 - 6))]\n{*} = {*}\n",
	  NULL, NULL,
	  "x.map:2: padding of -1 items; check it against config.json" },
	{ HEAD "p [x y] = r [x (y + zero(1 * 4611686018427387904))]\n{*} = {*}\n",
	  NULL, NULL,
	  "x.map:2: r would have a size beyond 63 bits" },
	{ HEAD "p : F32 = r\n{*} = {*}\n",
	  NULL, NULL,
	  "p has type BF16, which does not fit x.map:2: F32" },
	{ HEAD "p = r : I32\n{*} = {*}\n",
	  NULL, NULL,
	  "x.map:2: r: BF16 cannot become I32" },
	{ HEAD "p = r : bits F32\n{*} = {*}\n",
	  NULL, NULL,
	  "x.map:2: r: BF16 cannot become F32" },
};

TEST(a_map_that_does_not_fit_is_refused_before_anything_is_read)
{
	for (size_t i = 0; i < sizeof(unfit) / sizeof(unfit[0]); i++) {
		begin_small();
		CHECK_STR(why_not(unfit[i].text, unfit[i].set, unfit[i].config),
		          unfit[i].sentence);
	}
}

TEST(numbers_come_from_config_json_and_from_the_caller)
{
	struct shf_map_plan p;
	const struct shf_map_made *made;
	size_t n;

	begin(&left);
	add(&left, 0, "p", 2, 6, 4);
	end(&left);
	CHECK_RC(plan(&p, HEAD "arg t = 1\nlet a = config.x.y\n"
	              "let b = config.none or config.t / 2\n"
	              "p [(a x) (b y)] = r [x y a b]\n", &left.l, 1, "x.y=3",
	              "{\"l\": [1, {\"a\": 2}], \"x\": {\"y\": 2, \"f\": 1.5}, \"t\": 4, "
	              "\"s\": \"7\"}"),
	         0, &err);
	made = made_of(&p, &n);
	CHECK_INT(n, 1);
	CHECK_INT(made[0].ndim, 4);
	CHECK_INT(made[0].dims[0], 2);
	CHECK_INT(made[0].dims[2], 3);
	CHECK_INT(made[0].dims[3], 2);
	plan_end(&p);
}

/* ---- state of the optimizer ---- */

static const char fuse[] = HEAD "let a = 2\nlet b = 3\nalso {*}/m in optimizer = o.m.{*}\n"
	"p [a h], q [b h] = r [h (a + b)]\n{*} = x.{*}\n";

/* Begins a model that `fuse` maps, with state m of each weight. */
static void begin_with_state(void)
{
	begin(&left);
	add(&left, 0, "p", 2, 2, 5);
	add(&left, 0, "q", 2, 3, 5);
	add(&left, 0, "n", 1, 5);
	add(&left, 2, "p/m", 2, 2, 5);
	add(&left, 2, "q/m", 2, 3, 5);
	add(&left, 2, "n/m", 1, 5);
}

TEST(state_of_the_optimizer_is_mapped_as_its_weights_are)
{
	static struct origin there;
	int64_t w, m;

	begin_with_state();
	add(&left, 2, "p/exp", 2, 2, 5);
	add(&left, 2, "q/exp", 2, 3, 5);
	add(&left, 2, "n/exp", 1, 5);
	there_and_back(fuse, NULL);
	apply(fuse, &left, 1, NULL, &right, &there);
	w = shf_layout_find(&right.l, "model", "r");
	m = shf_layout_find(&right.l, "model", "o.m.r");
	CHECK(w >= 0 && m >= 0 && shf_layout_find(&right.l, "optimizer", "r/exp") >= 0);
	CHECK(shf_layout_find(&right.l, "model", "o.m.x.n") >= 0);
	for (uint64_t k = 0; k < 25; k++)
		CHECK_INT(there.of[m][k] & 0xffffffff, there.of[w][k] & 0xffffffff);
	origin_free(&there);
	/* Part of the state is worse than none. */
	begin(&left);
	add(&left, 0, "p", 2, 2, 5);
	add(&left, 0, "q", 2, 3, 5);
	add(&left, 2, "p/m", 2, 2, 5);
	CHECK_STR(why_not(fuse, NULL, NULL), "src: has no tensor q/m, which x.map:5 needs; check "
	          "that map and config.json are those of this model");
}

/* Maps one family of a model. Returns how many tensors are made of it, or a negative code. */
static int made_alone(const char *text, const struct shf_layout *of, int to, const char *only)
{
	struct shf_map_plan p;
	size_t n;
	int rc;

	family = only;
	rc = plan(&p, text, of, to, NULL, NULL);
	family = NULL;
	(void)made_of(&p, &n);
	plan_end(&p);
	return rc < 0 ? rc : (int)n;
}

TEST(state_that_a_map_moves_to_another_family_is_not_lost)
{
	static const char both[] = HEAD "let a = 2\nlet b = 3\n"
		"also {*}/m in optimizer = {*}/m in optimizer\n"
		"also {*}/m in optimizer = o.m.{*}\n"
		"p [a h], q [b h] = r [h (a + b)]\n{*} = x.{*}\n";

	begin_with_state();
	end(&left);
	CHECK_RC(made_alone(fuse, &left.l, 1, "optimizer"), SHEAF_EINVAL, &err);
	CHECK_STR(err.msg, "src: family optimizer cannot be mapped alone, because x.map makes its "
	          "o.m.r in family model; map all families, or add 'in optimizer' to the also "
	          "line of the map");
	CHECK_INT(made_alone(fuse, &left.l, 1, "model"), 2);
	CHECK_INT(made_alone(fuse, &left.l, 1, NULL), 4);
	/* Of two lines with one place on the left, the first says where the state goes. */
	CHECK_INT(made_alone(both, &left.l, 1, "optimizer"), 2);
	/* Both places of the right are read, and what is no weight is not part of the model. */
	begin(&right);
	add(&right, 0, "r", 2, 5, 5);
	add(&right, 0, "o.m.r", 2, 5, 5);
	end(&right);
	CHECK_INT(made_alone(both, &right.l, 0, "model"), 4);
	begin(&right);
	add(&right, 0, "r", 2, 5, 5);
	add(&right, 2, "r/m", 2, 5, 5);
	end(&right);
	CHECK_INT(made_alone(both, &right.l, 0, NULL), 4);
	CHECK_INT(made_alone(both, &right.l, 0, "optimizer"), 2);
}

TEST(state_of_one_value_is_shared)
{
	struct shf_map_plan p;
	const struct shf_map_made *made;
	size_t n;

	begin(&left);
	add(&left, 0, "p", 2, 2, 5);
	add(&left, 0, "q", 2, 3, 5);
	add(&left, 2, "p/step", 0);
	add(&left, 2, "q/step", 0);
	end(&left);
	single[0] = 7;
	CHECK_RC(plan(&p, fuse, &left.l, 1, NULL, NULL), 0, &err);
	made = made_of(&p, &n);
	CHECK_INT(n, 2);
	CHECK_STR(made[1].name, "r/step");
	CHECK_INT(made[1].ndim, 0);
	CHECK_INT(made[1].n, 1);
	plan_end(&p);
	single[0] = 0xff;       /* the values differ */
	CHECK_RC(plan(&p, fuse, &left.l, 1, NULL, NULL), SHEAF_ELAYOUT, &err);
	CHECK_STR(err.msg, "q/step and p/step have one value each, and the rule of x.map:5 makes "
	          "one tensor of them, but the values differ");
	plan_end(&p);
	single[0] = 7;
	begin(&right);
	add(&right, 0, "r", 2, 5, 5);
	add(&right, 2, "r/step", 1, 1);
	end(&right);
	CHECK_RC(plan(&p, fuse, &right.l, 0, NULL, NULL), 0, &err);
	made = made_of(&p, &n);
	CHECK_INT(n, 4);
	CHECK_STR(made[2].name, "p/step");
	CHECK_INT(made[3].dims[0], 1);
	plan_end(&p);
}

static const char short_rules[] = HEAD "let x = 1\nlet y = 1\nfor k = 2\n"
	"also {*} in master_weights = master.{*}\n"
	"a [x], b [y] = ab [(x + y)]\nl.{k}.s [n] = ls [k n]\n";

/* Adds weights of one item each, or state of them: the rules above make two tensors of these. */
static void add_short(int family_i, const char *key)
{
	static const char *const names[] = { "a", "b", "l.0.s", "l.1.s" };
	char name[40];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(name, sizeof(name), "%s%s", names[i], key);
		add(&left, family_i, name, 1, 1);
	}
}

/* Maps the short weights, and says how many items each tensor has that is made last. */
static void made_short_are(size_t want, uint64_t items)
{
	struct shf_map_plan p;
	const struct shf_map_made *made;
	size_t n;

	end(&left);
	CHECK_RC(plan(&p, short_rules, &left.l, 1, NULL, NULL), 0, &err);
	made = made_of(&p, &n);
	CHECK_INT(n, want);
	for (size_t i = n - 2; i < n; i++) {
		CHECK_INT(made[i].items, items);
		CHECK_INT(made[i].n, items);
	}
	plan_end(&p);
}

TEST(state_of_a_weight_of_one_item_is_divided_as_the_weight_is)
{
	single[0] = 0xff;       /* values differ */
	begin(&left);
	add_short(0, "");
	add_short(2, "/moment1_0");
	there_and_back(short_rules, NULL);
	made_short_are(4, 2);
	begin(&left);           /* the same of a key that only the weights explain */
	add_short(0, "");
	add_short(2, "/exp");
	made_short_are(4, 2);
	begin(&left);           /* known keys explain themselves */
	add_short(2, "/moment2_0");
	made_short_are(2, 2);
	begin(&left);
	add_short(1, "");
	made_short_are(2, 2);
	single[0] = 7;
	begin(&left);
	add_short(0, "");
	add_short(2, "/step");
	made_short_are(4, 1);
	begin(&left);
	add_short(2, "/other");
	made_short_are(2, 1);
}

TEST(too_many_kinds_of_state_are_refused)
{
	char name[20];

	begin(&left);
	for (int i = 0; i < 65; i++) {
		snprintf(name, sizeof(name), "n/k%d", i);
		add(&left, 2, name, 1, 4);
	}
	CHECK_STR(why_not(fuse, NULL, NULL), "src: has more than 64 kinds of state of the "
	          "optimizer and families; name the family to map");
}

TEST(padding_that_is_left_out_is_counted)
{
	struct shf_map_plan p;

	begin(&left);
	add(&left, 0, "e", 2, 8, 3);
	end(&left);
	CHECK_RC(plan(&p, HEAD "let n = 5\nw [n h] = e [(n + zero(3)) h]\n", &left.l, 0, NULL,
	              NULL), 0, &err);
	CHECK_INT(p.padding, 9);
	plan_end(&p);
}

TEST(a_name_with_a_slash_is_no_state)
{
	struct shf_map_plan p;
	const struct shf_map_made *made;
	size_t n;

	begin(&left);
	add(&left, 0, "layers/kernel", 2, 2, 5);
	add(&left, 0, "layers/kernel/moment1_0", 2, 2, 5);
	end(&left);
	CHECK_RC(plan(&p, HEAD "{*}/kernel [i o] = {*}.weight [o i]\n{*} = {*}\n", &left.l, 1, NULL,
	              NULL), 0, &err);
	made = made_of(&p, &n);
	CHECK_INT(n, 2);
	CHECK_STR(made[0].name, "layers.weight");
	CHECK_STR(made[1].name, "layers.weight/moment1_0");
	CHECK_INT(made[1].dims[0], 5);
	plan_end(&p);
}

TEST(a_tied_name_is_read_from_the_tensor_that_it_is_tied_to)
{
	struct shf_lt_tied tied = { 0, "head", "emb" };
	struct shf_map_plan p;
	size_t n;

	begin(&left);
	add(&left, 0, "emb", 2, 3, 5);
	end(&left);
	left.l.tied = &tied, left.l.tied_n = 1;
	CHECK_RC(plan(&p, HEAD "emb = e\nmaybe head [o i] = h [i o]\n", &left.l, 1, NULL, NULL), 0,
	         &err);
	(void)made_of(&p, &n);
	CHECK_INT(n, 2);
	plan_end(&p);
	CHECK_RC(plan(&p, HEAD "emb = e\n", &left.l, 1, NULL, NULL), SHEAF_ELAYOUT, &err);
	CHECK_STR(err.msg, "src: no rule of x.map takes, from a to b, 1 tensor: head; add a rule "
	          "or a drop");
	plan_end(&p);
	CHECK_RC(plan(&p, HEAD "drop a head\nemb = e\n", &left.l, 1, NULL, NULL), 0, &err);
	plan_end(&p);
}

TEST(a_star_takes_tied_names_as_well)
{
	struct shf_lt_tied tied = { 0, "head", "emb" };
	static const struct { const char *text; size_t n; } tries[] = {
		{ HEAD "{*} = y.{*}\n", 2 },
		{ HEAD "emb = e\n{*} [o i] = y.{*} [i o]\n", 2 },
		{ HEAD "emb = e\ndrop a {*}\n", 1 },
		{ HEAD "emb = e\ndrop a h{*}\n{*} = y.{*}\n", 1 },
	};
	const struct shf_map_made *made;
	struct shf_map_plan p;
	size_t n;

	begin(&left);
	add(&left, 0, "emb", 2, 3, 5);
	end(&left);
	left.l.tied = &tied, left.l.tied_n = 1;
	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		CHECK_RC(plan(&p, tries[i].text, &left.l, 1, NULL, NULL), 0, &err);
		made = made_of(&p, &n);
		CHECK_INT(n, tries[i].n);
		CHECK_STR(made[n - 1].name, n == 2 ? "y.head" : "e");
		plan_end(&p);
	}
	CHECK_RC(plan(&p, HEAD "emb = e\n{*} [x] = y.{*} [x]\n", &left.l, 1, NULL, NULL),
	         SHEAF_ELAYOUT, &err);
	plan_end(&p);
}

/* Moments that are one array of zeros have a key only in a tied name. */
TEST(state_that_is_only_tied_is_turned_as_its_weight)
{
	struct shf_lt_tied tied = { 2, "w/moment2_0", "w/moment1_0" };
	const struct shf_map_made *made;
	struct shf_map_plan p;
	size_t n;

	begin(&left);
	add(&left, 0, "w", 2, 3, 5);
	add(&left, 2, "w/moment1_0", 2, 3, 5);
	end(&left);
	left.l.tied = &tied, left.l.tied_n = 1;
	CHECK_RC(plan(&p, HEAD "w [o i] = v [i o]\n{*} = {*}", &left.l, 1, NULL, NULL), 0,
	         &err);
	made = made_of(&p, &n);
	CHECK_INT(n, 3);
	for (size_t i = 0; i < n; i++)
		CHECK(made[i].name[0] == 'v' && made[i].dims[0] == 5 && made[i].dims[1] == 3);
	plan_end(&p);
}

/* ---- memory ---- */

TEST(no_allocation_that_fails_is_overlooked)
{
	begin_with_state();
	add(&left, 2, "p/step", 0);
	add(&left, 2, "q/step", 0);
	end(&left);
	single[0] = 7;
	for (long nth = 1;; nth++) {
		struct shf_map_plan p;
		int rc;

		memfail_at(nth);
		rc = plan(&p, fuse, &left.l, 1, NULL, "{\"a\": 1}");
		plan_end(&p);
		if (!memfail_end())
			break;
		CHECK_RC(rc, SHEAF_ENOMEM, &err);
	}
}
