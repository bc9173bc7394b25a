/* SPDX-License-Identifier: Apache-2.0 */
/* A map says how the tensors of a model are called and laid out in two programs.
 *
 * The language (doc/mapping.md). A map is a text. Each rule is an equation between tensors of the
 * left side and tensors of the right side, in the axes that both have:
 *
 *   sheaf-map 1 hf megatron
 *   arg tp = 1
 *   let g = config.num_key_value_heads
 *   let q = config.num_attention_heads / g
 *   let k = 1
 *   let v = 1
 *   for l = config.num_hidden_layers
 *   model.layers.{l}.self_attn.q_proj.weight [(g q d) h],
 *     model.layers.{l}.self_attn.k_proj.weight [(g k d) h],
 *     model.layers.{l}.self_attn.v_proj.weight [(g v d) h]
 *     = decoder.layers.self_attention.linear_qkv.weight [l (g (q + k + v) d) h]
 *
 * [a b] are dimensions, (a b) is one dimension of two axes, the last one fastest, and (a + b) is
 * one after the other: slice, concatenate, reshape, permute and transpose are all of this form. An
 * axis may also be a number in a name: {l} on the left and l on the right stacks layers or experts.
 * (v + zero(n)) is padding. A rule without dimensions is a rename, and {*} in it stands for any
 * text. A type after the dimensions (: BF16) is a cast. `maybe` begins a rule whose tensors may be
 * missing, `drop SIDE NAME` names tensors that the other side does not have, and `also` says where
 * the state of the optimizer for a tensor is if that is not <name>/<key> on both sides.
 *
 * Why one text serves both directions, and what is proved. Choosing one summand of each sum divides
 * a tensor into cells. A cell is the product of its axes: those in its dimensions and those in its
 * name. A rule is refused unless no cell has an axis twice, no two cells of a side have the same
 * axes, and the cells of both sides have the same sets of axes. Then, whatever the sizes, the items
 * of both sides are the same tuples of indices, each once (map_check.c). For a checkpoint at hand
 * it is checked before anything is read that the sizes fit, that no tensor is taken or made twice
 * (so that names made by expressions are distinct), and that each tensor is taken (map_plan.c).
 *
 * How it is read (map_read.c). In a cell the offset of an item is a sum of index times stride, on
 * both sides. So each tensor that is made is a list of pieces: axes with two strides, and two
 * offsets. A read of a range of its items cuts the pieces at the range, and reads what is left by
 * lib/foreign/strided.c in windows. No tensor is made as a whole. map_step.c shows the result as a
 * checkpoint, so that show, cat, diff, load, export and import need not know of maps.
 *
 * What may go wrong, and where it is caught:
 * - Two rules take or make one tensor, or the numbers in names coincide: refused, with both lines.
 * - A tensor that no rule takes: listed, and refused. Nothing is guessed from its name.
 * - Axes of unknown size: refused by map_check.c for both directions, without a checkpoint.
 * - A tied name: a rule that takes it reads the tensor it is tied to.
 * - State of the optimizer: every rule is applied again to each pair of a family and a key that the
 *   source has, with the same axes. State of one value for each tensor (a step, powers of beta)
 *   must be equal in all tensors that become one, and is repeated where one becomes several. One
 *   item of state is such a value unless its weight has one item, too (map_make.c).
 * - Types: the pieces of a tensor must have one type. Casts count for the model and not for state.
 * - Padding is made of zeros, and dropped in the other direction: it is not part of the bijection.
 * - Overflow: all arithmetic is checked; division must leave no remainder.
 * - Hostile texts: bounded length, nesting, axes, cells and names made; no recursion by input. */
#ifndef SHF_MAP_H
#define SHF_MAP_H
#include "mem.h"
#include "sheaf.h"

#define SHF_MAP_BYTES_MAX (UINT64_C(1) << 20)
#define SHF_MAP_VARS_MAX 64
#define SHF_MAP_AXES_MAX 24             /* of a rule */
#define SHF_MAP_SIDE_MAX 64             /* tensors on a side of a rule */
#define SHF_MAP_CELLS_MAX 64            /* of a tensor */
#define SHF_MAP_DEEP_MAX 8              /* brackets in brackets */
#define SHF_MAP_OPS_MAX 64              /* of an expression */
#define SHF_MAP_NAME_MAX 1024           /* bytes of a name */
#define SHF_MAP_STAR (-1)               /* see struct shf_map_seg */

enum shf_map_op_kind {
	SHF_MAP_NUMBER, SHF_MAP_VAR, SHF_MAP_CONFIG, SHF_MAP_ADD, SHF_MAP_SUB, SHF_MAP_MUL,
	SHF_MAP_DIV, SHF_MAP_MOD, SHF_MAP_UP, SHF_MAP_OR
};
/* An expression, in the order in which a stack machine evaluates it. */
struct shf_map_op {
	enum shf_map_op_kind kind;
	int64_t number;                 /* of NUMBER; of VAR: which variable */
	const char *key;                /* of CONFIG */
};
struct shf_map_expr { const struct shf_map_op *ops; uint32_t n; };
enum shf_map_var_kind { SHF_MAP_LET, SHF_MAP_ARG, SHF_MAP_FOR };
struct shf_map_var {
	enum shf_map_var_kind kind;
	const char *name;
	int line;
	struct shf_map_expr expr;       /* n 0: an argument that must be given */
};
/* A part of a name: a text, or a number. */
struct shf_map_seg {
	const char *text;               /* NULL: a number */
	int width;                      /* of a number: least digits; SHF_MAP_STAR: it is {*} */
	struct shf_map_expr expr;
};
/* An item of a dimension: an axis, padding, or one of several products. */
struct shf_map_term {
	enum shf_map_term_kind { SHF_MAP_AXIS, SHF_MAP_ONE, SHF_MAP_ZERO, SHF_MAP_SUM } kind;
	int axis;                       /* number of the axis in the rule; of a sum: its number in
	                                 * the tensor */
	struct shf_map_expr expr;       /* of ZERO */
	const struct shf_map_product *alts;     /* of SUM */
	uint32_t alts_n;
};
struct shf_map_product { const struct shf_map_term *terms; uint32_t n; };
/* A choice of one summand of each sum. */
struct shf_map_cell {
	uint32_t axes;                  /* those in the name and in the dimensions, as bits */
	uint32_t inner;                 /* those in the dimensions */
	bool padding;
	uint8_t choice[16];             /* by sum */
	int other;                      /* tensor of the other side with the same axes */
	int other_cell;
};
struct shf_map_tensor {
	int line;
	const char *text;               /* its name as it is written, for sentences */
	const struct shf_map_seg *segs;
	uint32_t segs_n;
	uint32_t outer;                 /* axes in its name, as bits */
	bool star;                      /* its name has {*} */
	bool shaped;                    /* it has dimensions */
	const struct shf_map_product *dims;
	int32_t ndim;
	uint32_t sums_n;
	uint8_t alts[16];               /* by sum: how many summands */
	int32_t dtype;                  /* 0: any */
	bool bits;                      /* its bytes are taken as that type */
	struct shf_map_cell *cells;     /* filled in by shf_map_check */
	uint32_t cells_n;
};
struct shf_map_axis {
	const char *name;
	int var;                        /* the variable that has its size; -1: the tensors have */
	bool counted;                   /* that variable is of `for` */
};
struct shf_map_rule {
	int line;
	bool maybe;
	struct shf_map_axis axes[SHF_MAP_AXES_MAX];
	int axes_n;
	struct shf_map_tensor *sides[2];
	uint32_t n[2];
};
/* Where the state of a tensor is: `also`. A name is before + name of the tensor + after. */
struct shf_map_place { const char *before, *after, *family; };
struct shf_map_also { int line; struct shf_map_place sides[2]; };
struct shf_map_drop { int side; struct shf_map_rule rule; };    /* the name is rule.sides[0] */
struct shf_map {
	struct shf_arena arena;         /* of all below */
	const char *path;
	const char *sides[2];
	struct shf_map_var vars[SHF_MAP_VARS_MAX];
	int vars_n;
	struct shf_buf rules, also, drops;      /* of the structs above */
};

/* Reads a text, n bytes, and checks each rule (map_check.h). path: for sentences. EINVAL: the
 * message names line and rule. The caller releases *m, after a failure, too. */
int shf_map_parse(struct shf_map *m, const char *path, const char *text, size_t n,
                  struct sheaf_error *err);
void shf_map_release(struct shf_map *m);

static inline const struct shf_map_rule *shf_map_rules(const struct shf_map *m, size_t *n)
{
	*n = m->rules.len / sizeof(struct shf_map_rule);
	return (const struct shf_map_rule *)(const void *)m->rules.data;
}
#endif
