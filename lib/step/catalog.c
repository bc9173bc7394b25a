/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the catalog of a step: every tensor, where it lies, and its digest. The headers are shared
 * out among the ranks. Each is read and checked by one rank and sent to all, so that a header is
 * read once, not by every rank of the job. All ranks then parse all headers, and so build the same
 * catalog.
 *
 * Wire, per file: u32 file, u32 code, u64 file bytes, u32 sys, u32 header bytes (or bytes of the
 * message when code != 0), then those bytes.
 */
#include "catalog.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "sort.h"
#include "match.h"
#include "memory_dir.h"
#include "natural.h"
#include "safetensors.h"
#include "step.h"
#include "step_blocks.h"

/* Encodes the header h of file f, or the error e if rc < 0. */
static void write_header(struct shf_buf *mine, uint32_t f, int rc, uint64_t bytes,
                         const struct shf_buf *h, const struct sheaf_error *e)
{
	size_t n = rc < 0 ? strlen(e->msg) : h->len;

	shf_buf_u32(mine, f);
	shf_buf_u32(mine, (uint32_t)-rc);
	shf_buf_u64(mine, bytes);
	shf_buf_u32(mine, rc < 0 ? (uint32_t)e->sys : 0);
	shf_buf_u32(mine, (uint32_t)n);
	shf_buf_add(mine, rc < 0 ? (const void *)e->msg : (const void *)h->data, n);
}

/* Returns the index of this rank among the ranks of its node. */
static uint32_t index_in_node(const struct sheaf_run *run)
{
	uint32_t n = 0;

	for (int r = 0; r < run->team.rank; r++)
		n += run->place.nodes[r] == run->place.node;
	return n;
}

/* Whether this rank reads the header of file f. Headers on disk are dealt to ranks by number of the
 * file. A header in the memory of one node is read by a rank of that node, or if a single rank has
 * it, by that rank. */
static bool is_mine(const struct sheaf_run *run, const struct shf_block_access_map *hads,
                    uint32_t f, uint32_t index)
{
	const struct shf_block_access *had = hads && hads->first[f] < hads->first[f + 1]
	                          ? &hads->a[hads->first[f]] : NULL;

	if (!had || had->node < 0)
		return f % (uint32_t)run->team.ranks == (uint32_t)run->team.rank;
	if (had->rank >= 0)
		return had->rank == run->team.rank;
	return had->node == run->place.node && f % (uint32_t)run->place.node_ranks == index;
}

/* Reads the headers dealt to this rank and encodes them into `mine`. A failure of one file does not
 * stop the loop, because all ranks must report the same error: that of the first bad file by
 * number, which another rank may read. */
static void read_mine(struct sheaf_checkpoint *step, struct shf_buf *mine)
{
	const struct sheaf_run *run = step->run;
	const struct shf_block_access_map *hads = step->view ? shf_view_access(step->view) : NULL;
	uint32_t index = index_in_node(run);
	struct shf_buf header = SHF_BUF_INIT;

	for (uint32_t f = 0; f < step->layout.files_n; f++) {
		struct sheaf_error e = { 0 };
		uint64_t bytes = UINT64_MAX;
		int rc;

		if (!is_mine(run, hads, f, index))
			continue;
		shf_buf_reset(&header);
		rc = shf_header_read(step, f, &bytes, &header, &e);
		write_header(mine, f, rc, bytes, &header, &e);
	}
	shf_buf_release(&header);
}

struct parsed {                 /* one file's header */
	struct shf_st st;
	bool here;
};

/* Parses the headers of all ranks. If several files are bad, the one with the lowest number is
 * reported, so that the error does not depend on which rank read what. */
static int parse_headers(struct sheaf_checkpoint *step, const struct shf_buf *all,
                         struct parsed *files, struct shf_arena *arena)
{
	struct shf_cur c = { all->data, all->data + all->len, false };
	uint32_t bad_file = UINT32_MAX;
	int rc = 0;

	while (c.p < c.end) {
		uint32_t f = shf_cur_u32(&c);
		int code = -(int)shf_cur_u32(&c);
		uint64_t bytes = shf_cur_u64(&c);
		int sys = (int)shf_cur_u32(&c);
		uint32_t n = shf_cur_u32(&c);
		const uint8_t *p = shf_cur_bytes(&c, n);
		struct sheaf_error e = { 0 };

		/* The bytes come from this program, so a bad record is a bug and not damage. */
		if (!always(!c.bad && f < step->layout.files_n))
			return shf_fail(&step->cat_err, SHEAF_EBUG, "file headers from another "
			                "rank are incomplete");
		step->file_bytes[f] = bytes;
		if (code < 0) {
			shf_fail(&e, code, "%.*s", (int)n, (const char *)p);
			e.sys = sys;
		} else {
			code = shf_st_parse(&files[f].st, arena, p, n, bytes,
			                    step->layout.files[f].name, &e);
			files[f].here = code == 0;
			if (code < 0 && step->sound && code == SHEAF_EFORMAT)
				code = SHEAF_ECORRUPT; /* a save writes only valid headers */
		}
		if (code < 0 && f < bad_file) {
			bad_file = f;
			rc = code;
			step->cat_err = e;
			step->cat_err.code = code;
		}
		/* The sizes are set for a bad file as well, because a verification reads such a
		 * file, too. */
		step->layout.files[f].bytes = bytes == UINT64_MAX ? 0 : bytes;
		step->layout.files[f].header_bytes = code < 0 ? 0 : files[f].st.header_bytes;
	}
	for (size_t f = 0; f < step->layout.files_n && rc == 0; f++)
		if (!always(files[f].here))
			return shf_fail(&step->cat_err, SHEAF_EBUG, "%s: no rank has read its "
			                "header", step->layout.files[f].name);
	return rc;
}

static int entry_order(const void *a, const void *b)
{
	return strcmp(((const struct shf_index_entry *)a)->name,
	              ((const struct shf_index_entry *)b)->name);
}

/* Returns the file in which the index has the tensor, or NULL. */
static const char *file_in(const struct shf_index *sorted, const char *name)
{
	struct shf_index_entry key = { name, NULL };
	const struct shf_index_entry *e = bsearch(&key, sorted->entries, sorted->n, sizeof(key),
	                                          entry_order);

	return e ? e->file : NULL;
}

/* Orders by family, then by natural order of the name (layer 2 before layer 10). */
static int tensor_order(const void *a, const void *b)
{
	const struct shf_lt_tensor *x = a, *y = b;
	int d = (x->family > y->family) - (x->family < y->family);

	return d ? d : shf_natural(x->name, y->name);
}

/* Of n tensors of one name, each in another file, returns that of the file which the index of a
 * foreign directory names. NULL: there is no index, or it names none of them. */
static const struct shf_lt_tensor *chosen_of(const struct shf_layout *l,
                                             const struct shf_index *index,
                                             const struct shf_lt_tensor *t, size_t n)
{
	const char *file = index ? file_in(index, t->name) : NULL;

	for (size_t i = 0; file && i < n; i++)
		if (strcmp(l->files[t[i].file].name, file) == 0)
			return &t[i];
	return NULL;
}

/* Of several tensors of one name, keeps that which the index chooses. The tensors are sorted, so
 * equal names are neighbours. The same name in two files is an error if the index chooses none. */
static int drop_copies(struct sheaf_checkpoint *step, const struct shf_index *index)
{
	struct shf_layout *l = &step->layout;
	struct shf_lt_tensor *t = l->tensors;
	size_t kept = 0, same;

	for (size_t i = 0; i < l->tensors_n; i += same) {
		const struct shf_lt_tensor *chosen = &t[i];

		for (same = 1; i + same < l->tensors_n && tensor_order(&t[i], &t[i + same]) == 0;)
			same++;
		if (same > 1)
			chosen = chosen_of(l, index, &t[i], same);
		if (!chosen)
			return shf_fail(&step->cat_err,
			                step->sound ? SHEAF_ECORRUPT : SHEAF_EFORMAT,
			                "%s: tensor %s is in %s and in %s", step->path, t[i].name,
			                l->files[t[i].file].name, l->files[t[i + 1].file].name);
		t[kept++] = *chosen;
	}
	l->tensors_n = kept;
	return 0;
}

/* Lists all tensors of all files, sorted by family and name. */
static int collect_tensors(struct sheaf_checkpoint *step, const struct parsed *files,
                           const struct shf_index *index)
{
	struct shf_layout *l = &step->layout;
	size_t max = 0;

	for (size_t f = 0; f < l->files_n; f++)
		max += files[f].st.n;
	l->tensors = shf_arena_alloc(&l->arena, max + 1, sizeof(*l->tensors));
	if (!l->tensors)
		return shf_fail(&step->cat_err, SHEAF_ENOMEM, "no memory for %zu tensors", max);
	for (uint32_t f = 0; f < l->files_n; f++)
		for (size_t i = 0; i < files[f].st.n; i++) {
			int rc = shf_catalog_tensor(step, &files[f].st.tensors[i], f,
			                            &l->tensors[l->tensors_n]);

			if (rc < 0)
				return rc;
			l->tensors_n++;
		}
	/* Files with only large tensors are in this order already, which makes sorting cheap. */
	shf_records_sort(l->tensors, l->tensors_n, sizeof(*l->tensors), tensor_order);
	return drop_copies(step, index);
}

/* Sets the first tensor, the number of tensors and the bytes of each family. Tensors are sorted by
 * family, so each family is a range of them. */
static void span_families(struct shf_layout *l)
{
	for (size_t i = 0; i < l->families_n; i++) {
		l->families[i].tensors_n = 0;
		l->families[i].bytes = 0;
	}
	for (size_t i = 0; i < l->tensors_n; i++) {
		struct shf_lt_family *fam = &l->families[l->tensors[i].family];

		if (fam->tensors_n++ == 0)
			fam->first_tensor = (uint32_t)i;
		fam->bytes += l->tensors[i].bytes;
	}
}

/* Sets step->index_flaw to a text that says how the index differs from the headers, if it does.
 * All entries were found, so the other tensors are those that it does not list. */
static int describe_index(struct sheaf_checkpoint *step, const struct shf_index *sorted,
                          struct shf_index_wrong moved)
{
	const struct shf_layout *l = &step->layout;
	struct shf_index_wrong unlisted = { l->tensors_n - sorted->n, NULL };
	struct shf_buf text = SHF_BUF_INIT;

	if (!moved.n && !unlisted.n)
		return 0;
	for (size_t i = 0; unlisted.n && !unlisted.name; i++)
		if (!file_in(sorted, l->tensors[i].name))
			unlisted.name = l->tensors[i].name;
	shf_index_describe(&text, step->index_name, moved, unlisted);
	if (!text.oom)
		step->index_flaw = shf_arena_strdup(&step->arena, (const char *)text.data,
		                                    text.len);
	shf_buf_release(&text);
	return step->index_flaw ? 0 : shf_fail(&step->cat_err, SHEAF_ENOMEM,
	                                       "no memory for the index");
}

/* Compares the index of a foreign directory with the headers, which are right if they differ. An
 * index that lists a tensor which no file has is refused, because a file may be missing. What else
 * is wrong with the index becomes step->index_flaw. */
static int match_foreign_index(struct sheaf_checkpoint *step, const struct shf_index *sorted)
{
	const struct shf_layout *l = &step->layout;
	struct shf_index_wrong moved = { 0, NULL };

	for (size_t i = 0; i < sorted->n; i++) {
		const struct shf_index_entry *e = &sorted->entries[i];
		int64_t t = shf_layout_find(l, "model", e->name);

		if (t < 0) {
			step->cat_index = true;
			return shf_fail(&step->cat_err, SHEAF_EFORMAT, "%s: the index says that "
			                "tensor %s is in %s, but neither that file nor another "
			                "one of the index has it", step->path, e->name, e->file);
		}
		if (strcmp(l->files[l->tensors[t].file].name, e->file) == 0)
			continue;
		moved.name = moved.n++ ? moved.name : e->name;
	}
	return describe_index(step, sorted, moved);
}

/* Checks that headers and table of sums describe the same tensors in the same places, then takes
 * the digests from the table. The sums of blocks prove only that the bytes are those that were
 * written; this proves that headers and table belong to the same save. */
static int match_table(struct sheaf_checkpoint *step)
{
	struct shf_layout *l = &step->layout;
	const struct shf_sums *s = &step->sums;

	if (s->head.tensors_n != l->tensors_n || s->head.blocks_n != l->blocks_n)
		return shf_fail(&step->cat_err, SHEAF_ECORRUPT, "%s: the files have %zu tensors, "
		                "sheaf.sums lists %" PRIu64, step->path, l->tensors_n,
		                s->head.tensors_n);
	for (size_t i = 0; i < l->tensors_n; i++) {
		struct shf_lt_tensor *t = &l->tensors[l->by_place[i]];
		struct shf_sums_tensor r = shf_sums_tensor(s, i);

		if (r.file != t->file || r.off != t->off || r.bytes != t->bytes ||
		    r.dtype != (uint32_t)t->dtype || r.ndim != t->items.ndim ||
		    strcmp(shf_sums_name(s, &r), t->name) ||
		    strcmp(shf_sums_family(s, &r), l->families[t->family].name))
			return shf_fail(&step->cat_err, SHEAF_ECORRUPT,
					"%s/%s: tensor %s is not as sheaf.sums describes it",
					step->path, l->files[t->file].name, t->name);
		t->digest = r.digest;
	}
	return 0;
}

/* Makes a copy of the index that is sorted by name, for bsearch(). */
static int index_sorted(const struct shf_index *in, struct shf_index *out, struct shf_arena *arena)
{
	*out = *in;
	out->entries = shf_arena_alloc(arena, in->n + 1, sizeof(*in->entries));
	if (!out->entries)
		return SHEAF_ENOMEM;
	if (in->n)
		memcpy(out->entries, in->entries, in->n * sizeof(*in->entries));
	if (in->n)
		qsort(out->entries, in->n, sizeof(*in->entries), entry_order);
	return 0;
}

/* Checks the ties in the manifest: a tied name is not itself stored, and its target is. */
static int check_ties(struct sheaf_checkpoint *step)
{
	const struct shf_layout *l = &step->layout;

	for (size_t i = 0; i < l->tied_n; i++) {
		const char *family = l->families[l->tied[i].family].name, *name = l->tied[i].name;

		if (shf_layout_find(l, family, name) >= 0)
			return shf_fail(&step->cat_err, SHEAF_ECORRUPT,
					"%s: %s/%s is stored, but the manifest says that it is "
					"tied", step->path, family, name);
		if (shf_layout_find(l, family, l->tied[i].to) < 0)
			return shf_fail(&step->cat_err, SHEAF_ECORRUPT,
					"%s: %s/%s is tied to %s, which "
					"is not stored",
					step->path, family, name, l->tied[i].to);
	}
	return 0;
}

/* Builds the layout from the headers of all ranks. Returns cat_rc, with the message in cat_err. The
 * table of sums is compared last, because that needs the finished layout. Under
 * SHEAF_RUN_UNVERIFIED a table that cannot be read is ignored. */
static int build_catalog(struct sheaf_checkpoint *step, const struct shf_buf *all,
                         const struct shf_index *index)
{
	struct shf_layout *l = &step->layout;
	struct parsed *files = shf_zalloc(l->files_n, sizeof(*files));
	struct shf_index sorted;
	int rc = files ? 0 : shf_fail(&step->cat_err, SHEAF_ENOMEM, "no memory for headers");

	if (rc == 0 && index && index_sorted(index, &sorted, &l->arena) < 0)
		rc = shf_fail(&step->cat_err, SHEAF_ENOMEM, "no memory for the index");
	if (rc == 0)
		rc = parse_headers(step, all, files, &l->arena);
	if (rc == 0)
		rc = collect_tensors(step, files, index ? &sorted : NULL);
	if (rc == 0) {
		span_families(l);
		rc = index ? match_foreign_index(step, &sorted) : 0;
	}
	if (rc == 0)
		rc = shf_layout_number(l, &step->cat_err);
	if (rc == 0)
		rc = check_ties(step);
	if (rc == 0 && step->sound && step->sums_rc == 0) {
		rc = match_table(step);
	} else if (rc == 0 && step->sound && !(step->run->opts.flags & SHEAF_RUN_UNVERIFIED)) {
		rc = step->sums_rc;
		step->cat_err = step->sums_err;
	}
	shf_free(files);
	return rc;
}

/* All ranks parse the same bytes, so they find the same damage and need not agree on it. A single
 * rank may run out of memory, so the ranks agree on that. [collective] */
int shf_catalog_read(struct sheaf_checkpoint *step, const struct shf_index *index,
                     struct sheaf_error *err)
{
	struct shf_team *team = &step->run->team;
	struct shf_buf mine = SHF_BUF_INIT, all = SHF_BUF_INIT;
	int rc;

	read_mine(step, &mine);
	rc = shf_agree(team, mine.oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for headers") : 0,
	               err);
	if (rc == 0)
		rc = shf_allgatherv(team, 0, &mine, &all, NULL, err);
	if (rc == 0) {
		step->cat_rc = build_catalog(step, &all, index);
		rc = shf_agree(team, step->cat_rc == SHEAF_ENOMEM
		               ? shf_fail(err, SHEAF_ENOMEM, "%s", step->cat_err.msg) : 0, err);
	}
	shf_buf_release(&mine);
	shf_buf_release(&all);
	return rc;
}
