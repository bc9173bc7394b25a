/* SPDX-License-Identifier: Apache-2.0 */
#include "rowfeed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "nested.h"
#include "sampleorder.h"

enum { FIELDS_MAX = 8 };

int tr_rowfeed_reads(const struct tr_rowfeed *f)
{
	return f->o.ranks->rank == (f->o.source ? f->o.source[f->o.ranks->rank] : 0);
}

/* Returns whether this is the first rank that reads. */
static int is_first(const struct tr_rowfeed *f)
{
	return f->o.ranks->rank == (f->o.source ? f->o.source[0] : 0);
}

/* Puts the rank before the message of a failure to read, because the same file may be good on
 * another node. */
static int name_rank(const struct tr_rowfeed *f, int code, struct tr_error *err)
{
	char why[sizeof(err->msg)];

	if (code == 0 || !err || f->o.job_ranks == 1)
		return code;
	memcpy(why, err->msg, sizeof(why));
	return tr_fail(err, code, "rank %d: %.*s", f->o.ranks->all_rank, (int)sizeof(why) - 20,
		       why);
}

static struct tr_nest integer(const char *name, int64_t x)
{
	return (struct tr_nest){ .kind = TR_NEST_INTEGER, .name = name, .of.integer = x };
}

static int64_t find_integer(const struct tr_nest *root, const char *name)
{
	for (int64_t i = 0; i < root->of.in.n; i++)
		if (strcmp(root->of.in.child[i].name, name) == 0)
			return root->of.in.child[i].of.integer;
	return 0;
}

static int open_file(struct tr_rowfeed *f, struct tr_error *err)
{
	int rc = tr_tokenfile_open(&f->file, f->o.data, err);

	if (rc == 0 && f->o.documents)
		rc = tr_tokenfile_check_documents(&f->file, err);
	if (rc == 0)
		rc = tr_tokenfile_hash(&f->file, &f->hash, err);
	if (rc < 0)
		return name_rank(f, rc, err);
	f->tokens = f->file.n;
	f->samples = tr_tokenfile_samples(&f->file, f->o.seq);
	return 0;
}

int tr_rowfeed_open(struct tr_rowfeed *f, const struct tr_rowfeed_opts *o, struct tr_error *err)
{
	struct tr_nest field[3], root = { .kind = TR_NEST_FIELDS, .of.in = { 3, field } };
	struct tr_nest_tree tree = { .root = &root };
	const struct tr_nest_memory none = { .alloc = NULL };
	int rc;

	*f = (struct tr_rowfeed){ .o = *o, .file = { .fd = -1 } };
	rc = tr_batch_init(&f->batch, o->seqs_max, o->seq, o->documents, err);
	if (rc == 0 && tr_rowfeed_reads(f))
		rc = open_file(f, err);
	field[0] = integer("tokens", f->tokens);
	field[1] = integer("samples", f->samples);
	field[2] = integer("hash", (int64_t)f->hash);
	rc = tr_nest_broadcast(o->ranks, o->source, rc, &tree, &none, err);
	if (rc < 0 || tr_rowfeed_reads(f))
		return rc;
	f->tokens = find_integer(tree.root, "tokens");
	f->samples = find_integer(tree.root, "samples");
	f->hash = (uint64_t)find_integer(tree.root, "hash");
	tr_nest_release(&tree);
	return 0;
}

void tr_rowfeed_close(struct tr_rowfeed *f)
{
	tr_tokenfile_close(&f->file);
	tr_batch_release(&f->batch);
}

static int64_t sample_at(const struct tr_rowfeed *f, int64_t position)
{
	return tr_sample_at(f->o.seed, f->o.shuffle, f->samples, position);
}

/* ---- rows ---- */

static int read_rows(struct tr_rowfeed *f, const int64_t *position, int64_t n,
		     struct tr_error *err)
{
	int rc = 0;

	tr_batch_clear(&f->batch);
	for (int64_t j = 0; rc == 0 && j < n; j++)
		rc = tr_batch_add(&f->batch, &f->file, sample_at(f, position[j]), position[j],
				  f->o.vocab, err);
	return name_rank(f, rc, err);
}

static struct tr_nest array(const char *name, enum tr_item_type type, int64_t n, void *data)
{
	return (struct tr_nest){ .kind = TR_NEST_ARRAY, .name = name,
		.of.array = { .type = type, .dims = 1, .shape = { n }, .data = data } };
}

/* Lists the arrays of the batch. A receiver has memory for them in its own, so this list says where
 * each is and how long it may be. Returns their number. */
static int list_arrays(struct tr_batch *b, int64_t seqs, int64_t parts, int64_t n,
		       struct tr_nest *field)
{
	const struct tr_nest list[] = {
		array("begin", TR_ITEM_I64, seqs + 1, b->begin),
		array("sample", TR_ITEM_I64, seqs, b->sample),
		array("part", TR_ITEM_I64, parts + 1, b->part),
		array("token", TR_ITEM_I32, n, b->token),
		array("target", TR_ITEM_I32, n, b->target),
		array("position", TR_ITEM_I32, n, b->position),
		array("weight", TR_ITEM_F32, n, b->weight),
	};

	_Static_assert(sizeof(list) / sizeof(list[0]) <= FIELDS_MAX, "room for all fields");
	memcpy(field, list, sizeof(list));
	return (int)(sizeof(list) / sizeof(list[0]));
}

/* Returns the memory of the batch for the array of that name, or NULL if it is too long. */
static void *find_memory(void *arg, const char *name, const struct tr_array *a, size_t bytes)
{
	struct tr_batch *b = arg;
	struct tr_nest field[FIELDS_MAX];
	int64_t tokens = b->seqs_max * b->seq;
	int n = list_arrays(b, b->seqs_max, tokens, tokens, field);

	(void)a;
	for (int i = 0; i < n; i++)
		if (strcmp(field[i].name, name) == 0 &&
		    bytes <= tr_array_bytes(&field[i].of.array))
			return field[i].of.array.data;
	return NULL;
}

int tr_rowfeed_fill(struct tr_rowfeed *f, const int64_t *position, int64_t samples, int code,
		    struct tr_rows *rows, struct tr_error *err)
{
	struct tr_batch *b = &f->batch;
	struct tr_nest field[FIELDS_MAX + 2], root = { .kind = TR_NEST_FIELDS };
	struct tr_nest_tree tree = { .root = &root };
	const struct tr_nest_memory m = { find_memory, b };
	int n, rc = code;

	if (rc == 0 && tr_rowfeed_reads(f))
		rc = read_rows(f, position, samples, err);
	n = list_arrays(b, b->seqs, b->parts, b->n, field);
	field[n] = integer("seqs", b->seqs);
	field[n + 1] = integer("parts", b->parts);
	root.of.in.n = n + 2;
	root.of.in.child = field;
	rc = tr_nest_broadcast(f->o.ranks, f->o.source, rc, &tree, &m, err);
	if (rc < 0)
		return rc;
	if (!tr_rowfeed_reads(f)) {
		b->seqs = find_integer(tree.root, "seqs");
		b->parts = find_integer(tree.root, "parts");
		b->n = b->begin[b->seqs];
		tr_nest_release(&tree);
	}
	*rows = (struct tr_rows){ .n = b->n, .seqs = b->seqs, .begin = b->begin,
		.sample = b->sample, .token = b->token, .target = b->target, .weight = b->weight,
		.position = b->position, .part = f->o.documents ? b->part : NULL,
		.parts = b->parts };
	return 0;
}

int tr_rowfeed_check(struct tr_rowfeed *f, uint64_t *targets, struct tr_error *err)
{
	struct tr_batch *b = &f->batch;
	int rc = 0;

	*targets = 0;
	for (int64_t i = 0; rc == 0 && tr_rowfeed_reads(f) && i < f->samples; i++) {
		tr_batch_clear(b);
		rc = tr_batch_add(b, &f->file, i, i, f->o.vocab, err);
		for (int64_t j = 0; rc == 0 && j < b->n; j++)
			*targets += b->weight[j] > 0;
	}
	return name_rank(f, rc, err);
}

int tr_rowfeed_count(struct tr_rowfeed *f, const int64_t *position, int64_t n, uint64_t *count,
		     struct tr_error *err)
{
	int rc = 0;

	*count = 0;
	for (int64_t j = 0; rc == 0 && is_first(f) && j < n; j++)
		rc = tr_batch_count(&f->batch, &f->file, sample_at(f, position[j]), count, err);
	return name_rank(f, rc, err);
}
