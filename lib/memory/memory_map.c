/* SPDX-License-Identifier: Apache-2.0 */
/* A step in the memory of several nodes. Each node sends rank 0 a list of the bytes that it has.
 * Rank 0 decides which node reads which blocks (struct shf_block_access), and which bytes must be
 * sent to another node for that (struct piece), and broadcasts the decision.
 *
 * A block is read and checked by one rank. Most blocks lie wholly on one node. Other blocks are
 * read on the node that has most of their bytes: one of its ranks receives the rest before the load
 * begins. All blocks of a header count as one block, because one rank reads the header. */
#include "memory_map.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "memory_dir_fill.h"
#include "node_rank.h"
#include "safetensors.h"

#define AT_ONCE (UINT64_C(64) << 20)    /* bytes sent in an exchange, by all ranks together */

struct span {                   /* bytes [lo, hi) of a tensor file that a node has */
	uint32_t file;
	int32_t node;
	uint64_t lo, hi;
	uint64_t head;                  /* if lo is 0: length of the file's header, as its first 8
	                                 * bytes say, not verified yet; else 0 */
};
struct piece {                  /* bytes [lo, hi) that one rank sends to another */
	uint32_t file;
	int32_t from, to;               /* ranks */
	uint64_t lo, hi;
};
struct map {                    /* the decision, made on rank 0 and broadcast */
	struct shf_buf had, files, pieces; /* had: struct shf_block_access; files: the file of each
	                                         * of these, uint32_t; pieces: struct piece */
	uint64_t missing;               /* number of bytes that no node has; only on rank 0 */
};

/* ---- which node has what ---- */

/* The argument of list_span(). */
struct telling {
	const struct shf_view *view;
	struct shf_buf *out;
	int32_t node;
};

/* Lists one span. Rank 0 needs the length of each header, which is in the first 8 bytes of the file
 * and which its own node may not have. */
static int list_span(void *arg, uint32_t file, uint64_t lo, uint64_t hi)
{
	struct telling *t = arg;
	struct span s = { .file = file, .node = t->node, .lo = lo, .hi = hi };
	uint64_t n = 8;
	const uint8_t *p = lo == 0 ? shf_view_at(t->view, file, 0, &n) : NULL;

	if (p && n == 8)
		s.head = shf_get64(p);
	shf_buf_add(t->out, &s, sizeof(s));
	return 0;
}

/* Gathers the lists of all nodes on rank 0; one rank of each node sends. [collective] */
static int gather_spans(struct sheaf_run *run, const struct shf_view *view, struct shf_buf *all,
                        struct sheaf_error *err)
{
	struct shf_buf mine = SHF_BUF_INIT;
	struct telling t = { .view = view, .out = &mine, .node = run->place.node };
	int rc;

	if (run->place.node_first == run->team.rank)
		(void)shf_view_each_range(view, list_span, &t);
	rc = shf_gatherv(&run->team, 0, &mine, all, err);
	shf_buf_release(&mine);
	return rc;
}

/* ---- which node reads what [rank 0] ---- */

/* The state of rank 0 while it decides. */
struct mapping {
	const struct sheaf_run *run;
	const struct span *spans;       /* sorted by span_order() */
	size_t n, at;                   /* n: number of spans; at: all spans before this one end
	                                 * before the current position */
	uint32_t file;                  /* the current file */
	bool disk;                      /* the same step is on disk, so no byte is missing */
	uint64_t *weight;               /* owned; by node: how many bytes of a block it has */
	struct map *map;
};

/* Orders spans by file and offset; of spans that begin at the same offset the longest is first. */
static int span_order(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	if (x->lo != y->lo)
		return x->lo < y->lo ? -1 : 1;
	return x->hi > y->hi ? -1 : x->hi < y->hi;
}

/* Decides that bytes [lo, hi) of the file are read on that node, by that rank or (-1) by any rank
 * of the node. node -1: any rank can read them, from disk. */
static void add_block_access(struct mapping *m, uint64_t lo, uint64_t hi, int32_t node,
                             int64_t rank)
{
	struct shf_block_access h = { .lo = lo, .hi = hi, .node = node, .rank = rank };

	shf_buf_add(&m->map->had, &h, sizeof(h));
	shf_buf_add(&m->map->files, &m->file, sizeof(m->file));
}

/* Returns a rank of the node, and a different one for the next turn, so that the ranks of a node
 * share the work. */
static int32_t reader_on_node(const struct sheaf_run *run, int32_t node, uint64_t turn)
{
	return (int32_t)shf_node_rank(run->place.nodes, (uint32_t)run->team.ranks, node, turn);
}

/* Returns the first span of the file that ends after byte `at`: the one that has that byte, or else
 * the next one. Returns NULL if the file has no such span. Moves m->at forward past earlier spans,
 * which are not needed again, because files are mapped from front to back. */
static const struct span *span_at(struct mapping *m, uint64_t at)
{
	while (m->at < m->n && (m->spans[m->at].file < m->file ||
	                        (m->spans[m->at].file == m->file && m->spans[m->at].hi <= at)))
		m->at++;
	return m->at < m->n && m->spans[m->at].file == m->file ? &m->spans[m->at] : NULL;
}

/* Decides about bytes [lo, hi), one block or the blocks of a header, if no node has all of them.
 * The first pass over the spans finds the node that has most of these bytes; the second lists the
 * pieces that this node lacks. */
static void map_block(struct mapping *m, uint64_t lo, uint64_t hi)
{
	int32_t best = -1, to;
	size_t first = m->at;
	const struct span *s;
	uint64_t at = lo;

	memset(m->weight, 0, (size_t)m->run->place.nodes_n * sizeof(*m->weight));
	while (at < hi && (s = span_at(m, at)) && s->lo < hi) {
		uint64_t from = s->lo > at ? s->lo : at, end = s->hi < hi ? s->hi : hi;

		m->map->missing += m->disk ? 0 : from - at;
		m->weight[s->node] += end - from;
		if (best < 0 || m->weight[s->node] > m->weight[best])
			best = s->node;
		at = end;
	}
	m->map->missing += m->disk ? 0 : hi - at;
	if (!always(best >= 0)) /* the callers have seen that a node has a byte of it */
		return;
	to = reader_on_node(m->run, best, m->file + lo / SHF_BLOCK);
	add_block_access(m, lo, hi, best, to);
	m->at = first;          /* the second pass goes through the same spans again */
	for (at = lo; at < hi && (s = span_at(m, at)) && s->lo < hi;) {
		struct piece p = { .file = m->file, .to = to, .lo = s->lo > at ? s->lo : at,
			.hi = s->hi < hi ? s->hi : hi };

		if (s->node != best) {
			p.from = reader_on_node(m->run, s->node, 0);
			shf_buf_add(&m->map->pieces, &p, sizeof(p));
		}
		at = p.hi;
	}
}

/* Returns the length of the blocks in which the file's header lies, or 0 if one node has them all
 * or the length is unknown. The header is not verified yet, so its length is only used within the
 * limit of the format. */
static uint64_t head_of(struct mapping *m, uint64_t bytes)
{
	const struct span *s = span_at(m, 0);
	uint64_t n = s && s->lo == 0 && s->head <= SHF_ST_HEADER_MAX ? s->head + 8 : 0;

	n = (n + SHF_BLOCK - 1) / SHF_BLOCK * SHF_BLOCK;
	n = n < bytes ? n : bytes;
	return n && s->hi < n ? n : 0;
}

/* Decides about a file of `bytes` bytes, from front to back. At each position there are whole
 * blocks that one node has, blocks that no node has, or a single block that lies on several
 * nodes. */
static void map_file(struct mapping *m, uint64_t bytes)
{
	uint64_t at = head_of(m, bytes), end, next;

	if (at)
		map_block(m, 0, at);
	for (; at < bytes; at = end) {
		const struct span *s = span_at(m, at);

		/* The end of what one node has from here on, or of a gap that no node has. */
		next = !s || s->lo > bytes ? bytes : s->lo;
		end = s && s->lo <= at ? s->hi : next;
		/* Only whole blocks, because a part of a block cannot be verified. */
		if (end < bytes)
			end = end / SHF_BLOCK * SHF_BLOCK;
		if (end > at && s && s->lo <= at) {
			add_block_access(m, at, end, s->node, -1);
			continue;
		}
		if (end > at) {
			m->map->missing += m->disk ? 0 : end - at;
			add_block_access(m, at, end, -1, -1);
			continue;
		}
		end = at + SHF_BLOCK < bytes ? at + SHF_BLOCK : bytes;
		map_block(m, at, end);
	}
}

/* Decides about all files. Bytes that no node has are an error, unless the same step lies on disk.
 * [rank 0] */
static int map_make(const struct sheaf_run *run, const struct shf_manifest *manifest,
                    struct shf_buf *told, bool disk, struct map *map, struct sheaf_error *err)
{
	size_t n = told->len / sizeof(struct span);
	struct span *spans = shf_alloc(n, sizeof(*spans));
	struct mapping m = { .run = run, .spans = spans, .n = n, .disk = disk, .map = map,
		.weight = shf_zalloc((size_t)run->place.nodes_n, sizeof(*m.weight)) };
	int rc = 0;

	if (spans && m.weight) {
		if (n) {
			memcpy(spans, told->data, n * sizeof(*spans));
			qsort(spans, n, sizeof(*spans), span_order);
		}
		for (m.file = 0; m.file < manifest->files_n; m.file++)
			map_file(&m, manifest->files[m.file].bytes);
	}
	if (!spans || !m.weight || map->had.oom || map->files.oom || map->pieces.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what nodes have");
	else if (map->missing)
		rc = shf_fail(err, SHEAF_EFORMAT, "%" PRIu64 " bytes of the checkpoint in memory "
		              "are on no node: a node or its agent was lost; "
		              "set opts.memory_tier.copies to 2 to survive the loss of one",
		              map->missing);
	shf_free(spans);
	shf_free(m.weight);
	return rc;
}

/* ---- pieces ---- */

/* Exchanges pieces [first, end). Sender and receiver go through the same list in the same order, so
 * a message has the bytes of the pieces only. [collective] */
static int send_some(struct sheaf_run *run, struct shf_view *view, const struct piece *p,
                     size_t first, size_t end, struct sheaf_error *err)
{
	struct shf_team *team = &run->team;
	struct shf_buf *out = shf_zalloc((size_t)team->ranks, sizeof(*out)), in = SHF_BUF_INIT;
	size_t *bytes = shf_zalloc((size_t)team->ranks, sizeof(*bytes));
	size_t *at = shf_zalloc((size_t)team->ranks, sizeof(*at)), sum = 0;
	int rc = out && bytes && at ? 0 : SHEAF_ENOMEM;

	for (size_t i = first; i < end && rc == 0; i++)
		if (p[i].from == team->rank)
			rc = shf_view_get_bytes(view, p[i].file, p[i].lo, p[i].hi, &out[p[i].to]);
	if (rc < 0)
		shf_fail(err, rc, "reading bytes for another node: %s", shf_strerror(rc));
	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = shf_exchange(team, 0, out, &in, bytes, err);
	if (rc == 0) {
		for (int r = 0; r < team->ranks; sum += bytes[r++])
			at[r] = sum;
		for (size_t i = first; i < end && rc == 0; i++) {
			size_t n = (size_t)(p[i].hi - p[i].lo);

			if (p[i].to != team->rank)
				continue;
			rc = at[p[i].from] + n > in.len ? SHEAF_ECORRUPT
			   : shf_view_add_bytes(view, p[i].file, p[i].lo, p[i].hi,
			                        in.data + at[p[i].from]);
			at[p[i].from] += n;
		}
		if (rc < 0)
			shf_fail(err, rc, "storing bytes of another node: %s",
			         shf_strerror(rc));
		rc = shf_agree(team, rc, err);
	}
	shf_bufs_free(out, team->ranks);
	shf_free(bytes);
	shf_free(at);
	shf_buf_release(&in);
	return rc;
}

/* Exchanges all pieces, in batches of AT_ONCE bytes (or one larger piece) to bound the buffers. The
 * batches are computed from the list, so they are the same on all ranks. [collective] */
static int send_pieces(struct sheaf_run *run, struct shf_view *view, const struct shf_buf *pieces,
                       struct sheaf_error *err)
{
	size_t n = pieces->len / sizeof(struct piece);
	struct piece *p = shf_alloc(n, sizeof(*p));
	int rc = shf_agree(&run->team, p ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for blocks "
	                                                "of several nodes"), err);

	if (rc == 0 && n)
		memcpy(p, pieces->data, n * sizeof(*p));
	for (size_t i = 0, end; i < n && rc == 0; i = end) {
		uint64_t bytes = 0;

		for (end = i; end < n && (end == i || bytes + p[end].hi - p[end].lo <= AT_ONCE);)
			bytes += p[end].hi - p[end].lo, end++;
		rc = send_some(run, view, p, i, end, err);
	}
	shf_free(p);
	if (rc < 0 || n == 0)
		return rc;
	rc = shf_view_finish_bytes(view);
	if (rc < 0)
		rc = shf_fail(err, rc, "blocks that lie on several nodes: %s", shf_strerror(rc));
	return shf_agree(&run->team, rc, err);
}

/* ---- all steps together ---- */

/* Sends the small files of the step from rank `root` to rank 0, which broadcasts them.
 * [collective] */
static int share_view(struct shf_team *team, int root, const struct shf_view *view,
                      struct shf_buf *told, struct sheaf_error *err)
{
	struct shf_buf mine = SHF_BUF_INIT;
	int rc;

	if (team->rank == root)
		shf_view_pack_small_files(view, &mine);
	rc = shf_gatherv(team, 0, &mine, told, err);
	if (rc == 0)
		rc = shf_bcast_buf(team, 0, told, err);
	shf_buf_release(&mine);
	return rc;
}

/* A node without any part of the step still needs its manifest and its other small files to take
 * part in a load. The lowest rank that has them sends them. [collective] */
static int share_knowledge(struct sheaf_run *run, struct shf_view *view, struct sheaf_error *err)
{
	struct shf_team *team = &run->team;
	struct shf_buf told = SHF_BUF_INIT;
	/* x[0]: some rank lacks the small files. x[1]: ranks - r for the lowest rank r that has
	 * them, since a maximum must find the lowest; 0: no rank has them. */
	uint64_t x[2] = { !shf_view_has_small_files(view),
		shf_view_has_small_files(view) ? (uint64_t)(team->ranks - team->rank) : 0 };
	int rc = shf_allreduce(team, x, 2, SHEAF_MAX, err);

	if (rc < 0 || !x[0])
		return rc;
	if (!x[1])
		return shf_fail(err, SHEAF_EFORMAT, "the manifest of the checkpoint in memory is "
		                "on no node: rank 0's node or its agent was lost");
	rc = share_view(team, team->ranks - (int)x[1], view, &told, err);
	if (rc == 0)
		rc = shf_agree(team, shf_view_has_small_files(view)
		               ? 0 : shf_view_unpack_small_files(view, &told, err), err);
	shf_buf_release(&told);
	return rc;
}

/* Broadcasts rank 0's decision. [collective] */
static int map_share(struct sheaf_run *run, struct map *map, struct sheaf_error *err)
{
	int rc = shf_bcast_buf(&run->team, 0, &map->had, err);

	if (rc == 0)
		rc = shf_bcast_buf(&run->team, 0, &map->files, err);
	return rc == 0 ? shf_bcast_buf(&run->team, 0, &map->pieces, err) : rc;
}

/* Keeps the decision in the view. */
static int map_keep(struct shf_view *view, const struct map *map, struct sheaf_error *err)
{
	size_t n = map->had.len / sizeof(struct shf_block_access);
	struct shf_block_access *had = shf_alloc(n, sizeof(*had));
	uint32_t *files = shf_alloc(n, sizeof(*files));
	int rc = had && files && n == map->files.len / sizeof(*files) ? 0 : SHEAF_ENOMEM;

	if (rc == 0 && n) {
		memcpy(had, map->had.data, n * sizeof(*had));
		memcpy(files, map->files.data, n * sizeof(*files));
		rc = shf_view_set_access(view, had, files, n);
	}
	shf_free(had);
	shf_free(files);
	return rc < 0 ? shf_fail(err, rc, "the list of what each node has in memory: %s",
	                         shf_strerror(rc)) : 0;
}

/* Returns whether this rank has in its view all blocks that it may have to read. It may lack some
 * if it asked the agent at a different time from the rank that listed what the node has, or if it
 * could not ask the agent. */
static bool has_all(const struct sheaf_run *run, const struct shf_view *view, const struct map *map)
{
	size_t n = map->had.len / sizeof(struct shf_block_access);

	for (size_t i = 0; i < n; i++) {
		struct shf_block_access h;
		uint32_t file;

		memcpy(&h, map->had.data + i * sizeof(h), sizeof(h));
		memcpy(&file, map->files.data + i * sizeof(file), sizeof(file));
		if (h.node != run->place.node || (h.rank >= 0 && h.rank != run->team.rank))
			continue;
		for (uint64_t at = h.lo, some; at < h.hi; at += some) {
			some = h.hi - at;
			if (!shf_view_at(view, file, at, &some))
				return shf_view_has_disk(view);
		}
	}
	return true;
}

/* Without this check the load would fail in the middle, when memory of the caller has been
 * overwritten already. */
static int check_rank_view(const struct sheaf_run *run, const struct shf_view *view,
                           const struct map *map, struct sheaf_error *err)
{
	return has_all(run, view, map) ? 0
	       : shf_fail(err, SHEAF_EFORMAT, "a rank cannot map the staging buffers that its node "
	                  "has");
}

/* If all ranks are on one node and the step is not on disk, the view must be complete by itself,
 * and nothing is exchanged but the small files. [collective] */
int shf_memory_map_finish(struct sheaf_run *run, struct shf_view *view, const char *on_disk,
                          struct sheaf_error *err)
{
	struct shf_team *team = &run->team;
	bool alone = run->place.nodes_n == 1 && !on_disk;
	struct shf_buf told = SHF_BUF_INIT;
	struct map map = { SHF_BUF_INIT, SHF_BUF_INIT, SHF_BUF_INIT, 0 };
	int rc = share_knowledge(run, view, err);

	if (rc == 0)
		rc = shf_agree(team, shf_view_finish(view, alone, err), err);
	if (rc < 0 || alone)
		return rc;
	if (on_disk)
		rc = shf_view_open_disk(view, run->store.dir, on_disk, err);
	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = gather_spans(run, view, &told, err);
	if (rc == 0)
		rc = shf_agree(team, team->rank ? 0 : map_make(run, shf_view_manifest(view), &told,
		                                               on_disk, &map, err), err);
	if (rc == 0)
		rc = map_share(run, &map, err);
	if (rc == 0)
		rc = shf_agree(team, map_keep(view, &map, err), err);
	if (rc == 0)
		rc = send_pieces(run, view, &map.pieces, err);
	if (rc == 0)
		rc = shf_agree(team, check_rank_view(run, view, &map, err), err);
	shf_buf_release(&told);
	shf_buf_release(&map.had);
	shf_buf_release(&map.files);
	shf_buf_release(&map.pieces);
	return rc;
}
