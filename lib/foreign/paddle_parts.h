/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of which each rank of a job with Paddle wrote what it had, joined by what the names of
 * their files say: optimizer.tp00_pp01_shard02.safetensors. */
#ifndef SHF_PADDLE_PARTS_H
#define SHF_PADDLE_PARTS_H
#include "foreign_st.h"

struct shf_pd_rank { int tp, pp, shard, moe; };         /* -1: the degree is 1 */
struct shf_pd_part {            /* what one rank has of a tensor */
	const char *name, *family;      /* in f's arena */
	const char *of;                 /* the parameter that it belongs to, for its shape */
	struct shf_pd_rank rank;
	int32_t dtype, ndim;
	const int64_t *dims, *stride;   /* stride: NULL: row-major */
	uint32_t file;
	uint64_t at;
	struct shf_foreign_text *text;  /* as that of a piece */
};
struct shf_pd_shape {           /* the shape of a parameter */
	const char *name;
	int32_t ndim;
	const int64_t *dims;
	bool local;                     /* it is that of what a tensor-parallel rank has */
	bool split;                     /* local: tensor-parallel ranks have different parts */
};
struct shf_pd_parts {
	struct shf_foreign *f;
	struct shf_buf parts, shapes;   /* owned; of the structs above */
	uint64_t apart;                 /* parts that could not be joined */
};
/* Reads the ranks of a name like <kind>.tp00_pp01_shard02<end>; what is left out is -1. <kind><end>
 * is the name if no degree is above 1. Returns false if it is no such name. */
bool shf_pd_rank_of(struct shf_pd_rank *rank, const char *name, const char *kind, const char *end);
/* Adds a tensor of a safetensors file as a part. like: its family, its rank and its file. of: the
 * parameter that it belongs to. payload: where the payload of the file begins. EFORMAT: it has more
 * than 8 dimensions, or a type of less than a byte. */
int shf_pd_parts_add_st(struct shf_pd_parts *p, const struct shf_pd_part *like,
                        const struct shf_st_tensor *t, const char *of, uint64_t payload,
                        struct sheaf_error *err);
/* Adds the tensors that the parts make. Those that cannot be joined are added each as its rank
 * wrote it, under <name>@<ranks>. EFORMAT: a part is missing or does not fit. */
int shf_pd_parts_join(struct shf_pd_parts *p, struct sheaf_error *err);
void shf_pd_parts_release(struct shf_pd_parts *p);
#endif
