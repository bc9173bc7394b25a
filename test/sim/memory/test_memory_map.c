/* SPDX-License-Identifier: Apache-2.0 */
/* Which node reads which block of a step that lies in the memory of several nodes
 * (lib/memory/memory_map.h), however it is cut: each byte is read once, a block in two pieces is
 * completed where most of it is, and bytes that no node has come from disk or are reported. An
 * allocation that fails can be repeated. */
#include <stdlib.h>
#include "memory_map.h"
#include "simdisk.h"
#include "simgroup.h"
#include "starve.h"
#include "t.h"
#include "memory_dir_in.h"
#include "match.h"

enum { RANKS = 4, FILES = 2, CUTS = 300 };
#define MIB (UINT64_C(1) << 20)
static const int32_t two_nodes[RANKS] = { 0, 0, 1, 1 };

struct part {                   /* bytes of a file that a node has */
	int32_t node;
	uint32_t file;
	uint64_t lo, hi;
};
struct world {
	uint64_t bytes[FILES];
	uint64_t head;                  /* what the first file says of its header's length */
	struct part parts[CUTS];
	int parts_n;
	const char *on_disk;
	bool other;                     /* the second node's manifest has the first file longer */
	bool unknown;                   /* no node has a manifest */
	int hungry;                     /* the rank whose n-th allocation fails */
	long nth;
	struct simdisk *disk;
	uint8_t *content[FILES];        /* owned */
	char why[300];
	uint8_t *read[FILES];           /* owned; by block of 4096 bytes: how many can read it */
	uint64_t moved;                 /* bytes that went to other nodes */
};

static uint8_t item(const struct world *w, uint32_t file, uint64_t off)
{
	uint64_t at = off % MIB;

	return (uint8_t)(file == 0 && off < 8 ? w->head >> 8 * off : at * 31 + at / 4093 + file);
}

static void add(struct world *w, int32_t node, uint32_t file, uint64_t lo, uint64_t hi)
{
	w->parts[w->parts_n++] = (struct part){ node, file, lo, hi };
}

/* Nothing is had yet. */
static struct world *world_of(uint64_t first, uint64_t second)
{
	struct world *w = calloc(1, sizeof(*w));

	w->bytes[0] = first;
	w->bytes[1] = second;
	w->head = 100;
	return w;
}

static void fill(struct world *w)
{
	w->disk = simdisk_new(1, SIMDISK_STRICT);
	CHECK_INT(simdisk_put(w->disk, "checkpoint-1/sheaf.json", "", 0), 0);
	for (uint32_t f = 0; f < FILES; f++) {
		w->content[f] = malloc((size_t)w->bytes[f] + 1);
		w->read[f] = calloc(1, (size_t)(w->bytes[f] / 4096) + 1);
		for (uint64_t i = 0; i < w->bytes[f] && i < 2 * MIB; i++)
			w->content[f][i] = item(w, f, i);
		for (uint64_t i = 2 * MIB; i < w->bytes[f]; i += MIB)
			memcpy(w->content[f] + i, w->content[f] + MIB,
			       (size_t)(w->bytes[f] - i < MIB ? w->bytes[f] - i : MIB));
	}
}

static void drop(struct world *w)
{
	for (uint32_t f = 0; f < FILES; f++) {
		free(w->content[f]);
		free(w->read[f]);
	}
	simdisk_free(w->disk);
	free(w);
}

static struct shf_buf text_of(const struct world *w, int32_t node)
{
	struct shf_mf_file files[FILES] = {
		{ "model-00001-of-00002.safetensors", w->bytes[0] + (w->other && node ? MIB : 0),
		  1 },
		{ "model-00002-of-00002.safetensors", w->bytes[1], 1 } };
	struct shf_mf_family model = { "model", ".", FILES, 1, 1 };
	struct shf_manifest m = { .step = 1, .session = "00112233445566778899aabbccddeeff",
		.run = "ffeeddccbbaa99887766554433221100", .created = "2026-01-31T12:00:00Z",
		.version = "0.1.0", .commit = "abcdef", .compiler = "gcc 12", .ranks = RANKS,
		.file_bytes_max = 1, .families = &model, .families_n = 1, .files = files,
		.files_n = FILES, .sums = { "sheaf.sums", 12345, 5 } };
	struct shf_buf text = SHF_BUF_INIT;
	struct sheaf_error err;

	(void)shf_manifest_encode(&text, &m, &err);
	return text;
}

/* What a node has, as its cards would have filled it. */
static struct shf_view *view_of(const struct world *w, const struct shf_sys *sys, int32_t node)
{
	struct shf_view *v = shf_view_new(sys);
	struct shf_card_small_file *small = shf_arena_alloc(&v->arena, 1, sizeof(*small));
	struct shf_buf text = text_of(w, node);
	uint8_t *bytes = shf_arena_alloc(&v->arena, text.len, 1);

	memcpy(bytes, text.data, text.len);
	*small = (struct shf_card_small_file){ "sheaf.json", bytes, text.len };
	shf_buf_release(&text);
	v->smalls = small;
	v->smalls_n = !w->unknown && (node == 0 || w->other);
	v->stretches = shf_alloc(CUTS, sizeof(*v->stretches));
	v->stretches_cap = CUTS;
	for (int i = 0; i < w->parts_n; i++)
		if (w->parts[i].node == node)
			v->stretches[v->stretches_n++] = (struct shf_view_range){ w->parts[i].file,
				w->parts[i].lo, w->parts[i].hi,
				w->content[w->parts[i].file] + w->parts[i].lo };
	return v;
}

/* Is what this rank may have to read here, and right? How many can is counted. */
static void look(struct world *w, const struct shf_view *v, int32_t node, int rank)
{
	const struct shf_block_access_map *hads = shf_view_access(v);

	for (uint32_t f = 0; hads && f < FILES; f++)
		for (size_t i = hads->first[f]; i < hads->first[f + 1]; i++) {
			const struct shf_block_access *h = &hads->a[i];

			for (uint64_t at = h->lo; rank == 0 && at < h->hi; at += 4096)
				w->read[f][at / 4096]++;
			if (h->node != node || (h->rank >= 0 && h->rank != rank))
				continue;
			for (uint64_t at = h->lo, n; at < h->hi; at += n) {
				const uint8_t *p;

				n = h->hi - at;
				p = shf_view_at(v, f, at, &n);
				if (!p && w->on_disk)
					break;
				if (!p || memcmp(p, w->content[f] + at, (size_t)n)) {
					snprintf(w->why, sizeof(w->why), "rank %d: file %u at %llu",
					         rank, f, (unsigned long long)at);
					return;
				}
			}
		}
}

static int act(void *arg, int rank, struct sheaf_group *group)
{
	struct world *w = arg;
	int32_t nodes[RANKS];
	const struct shf_sys *sys = simdisk_process(w->disk, (uint64_t)rank + 1, two_nodes[rank]);
	struct sheaf_run run = { .sys = sys,
		.team = { group, rank, RANKS, 10000, sys->host.ops->mono_ns,
		          sys->host.arg },
		.place = { nodes, 2, two_nodes[rank], 2, two_nodes[rank] * 2 } };
	struct shf_view *v = view_of(w, sys, two_nodes[rank]);
	struct sheaf_error err = { 0 };
	int rc;

	memcpy(nodes, two_nodes, sizeof(nodes));
	run.store.dir = SHF_CWD;
	starve_left = rank == w->hungry ? w->nth : 0;
	rc = shf_memory_map_finish(&run, v, w->on_disk, &err);
	starve_left = 0;
	if (rc < 0)
		snprintf(w->why, sizeof(w->why), "%.290s", err.msg);
	else
		look(w, v, two_nodes[rank], rank);
	shf_view_free(v);
	simdisk_kill(w->disk, sys);
	return rc;
}

static int spread(struct world *w)
{
	uint64_t moved[RANKS * RANKS] = { 0 };
	struct simgroup_opts o = { .seed = 7, .ranks = RANKS, .nodes = two_nodes,
		.pair_bytes = moved };
	int results[RANKS];

	w->why[0] = '\0';
	for (uint32_t f = 0; f < FILES; f++)
		memset(w->read[f], 0, (size_t)(w->bytes[f] / 4096) + 1);
	starved = false;
	CHECK_INT(simgroup_run(&o, act, w, results), 0);
	w->moved = 0;
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(results[r], results[0]);
		for (int to = 0; to < RANKS; to++)
			w->moved += two_nodes[r] != two_nodes[to] ? moved[r * RANKS + to] : 0;
	}
	return results[0];
}

/* Everything can be read, by one place. */
static void is_spread(struct world *w)
{
	int rc = spread(w);

	if (rc || w->why[0])
		print_error("%d: %s\n", rc, w->why);
	CHECK_INT(rc, 0);
	CHECK_STR(w->why, "");
	for (uint32_t f = 0; f < FILES; f++)
		for (uint64_t at = 0; at < w->bytes[f]; at += 4096)
			CHECK_INT(w->read[f][at / 4096], 1);
}

static void is_refused(struct world *w, int code, const char *words)
{
	int rc = spread(w);

	if (rc != code || !strstr(w->why, words))
		print_error("%d: %s\n", rc, w->why);
	CHECK_INT(rc, code);
	CHECK(strstr(w->why, words) != NULL);
}

/* Cut within blocks, and within the eight bytes that say how long the header is. */
static struct world *cut(void)
{
	struct world *w = world_of(3 * MIB + 1000, MIB / 2);

	add(w, 0, 0, 0, 5);
	add(w, 1, 0, 5, MIB / 4);
	add(w, 0, 0, MIB / 4, 2 * MIB + 77);
	add(w, 1, 0, 2 * MIB + 77, 3 * MIB + 1000);
	add(w, 1, 1, 0, MIB / 2);
	fill(w);
	return w;
}

TEST(blocks_that_are_cut_are_read_where_most_of_them_is)
{
	struct world *w = cut();

	is_spread(w);
	CHECK(w->moved > MIB / 4 && w->moved < MIB / 2);
	drop(w);
}

/* What a node has of the block before is nothing to this one. */
TEST(each_block_is_weighed_alone)
{
	struct world *w = world_of(2 * MIB, 0);

	add(w, 0, 0, 0, MIB / 16 * 15);
	add(w, 1, 0, MIB / 16 * 15, MIB / 8 * 13);
	add(w, 0, 0, MIB / 8 * 13, 2 * MIB);
	fill(w);
	is_spread(w);
	CHECK(w->moved > MIB / 16 * 7 && w->moved < MIB / 2);
	drop(w);
}

/* A header of several blocks is read by one rank, with what it lacks of them. */
TEST(a_header_of_several_nodes_is_brought_together)
{
	struct world *w = world_of(4 * MIB, 0);

	w->head = 2 * MIB + 100;
	add(w, 0, 0, 0, 2 * MIB);
	add(w, 1, 0, 2 * MIB, 4 * MIB);
	fill(w);
	is_spread(w);
	CHECK(w->moved > MIB && w->moved < MIB + MIB / 2);
	drop(w);
}

/* Without a proof nobody believes how long it is. */
TEST(a_header_that_says_it_is_longer_than_one_can_be_is_none)
{
	struct world *w = world_of(4 * MIB, 0);

	w->head = UINT64_MAX - 4;
	add(w, 0, 0, 0, 2 * MIB);
	add(w, 1, 0, 2 * MIB, 4 * MIB);
	fill(w);
	is_spread(w);
	CHECK(w->moved < MIB / 4);
	drop(w);
}

/* Two nodes have the same bytes, as of one agent; one of them reads them. */
TEST(what_two_nodes_have_is_read_on_one)
{
	struct world *w = world_of(2 * MIB, MIB);

	add(w, 0, 0, 0, 2 * MIB);
	add(w, 1, 0, 0, 2 * MIB);
	add(w, 0, 1, 0, MIB);
	add(w, 1, 1, 0, MIB / 2);
	fill(w);
	is_spread(w);
	CHECK(w->moved < MIB / 4);
	drop(w);
}

TEST(what_is_on_no_node_is_counted_and_refused_or_comes_from_disk)
{
	struct world *w = world_of(3 * MIB, 2 * MIB);

	add(w, 0, 0, 0, MIB + 10);
	add(w, 1, 0, MIB + 20, MIB + 30);
	fill(w);
	is_refused(w, SHEAF_EFORMAT, "4194284 bytes of the checkpoint in memory are on no node: a "
	           "node or its agent was lost; set opts.memory_tier.copies to 2 to "
	           "survive the loss of one");
	w->on_disk = "checkpoint-1";
	is_spread(w);
	w->on_disk = "checkpoint-2";
	is_refused(w, SHEAF_ENOENT, "checkpoint-2");
	drop(w);
}

TEST(a_step_that_nobody_knows_is_refused)
{
	struct world *w = cut();

	w->unknown = true;
	is_refused(w, SHEAF_EFORMAT, "the manifest of the checkpoint in memory is on no node: rank "
	           "0's node or its agent was lost");
	drop(w);
}

/* What rank 0 hears of lies behind the end of its file. */
TEST(bytes_that_a_file_does_not_have_are_not_read)
{
	struct world *w = world_of(2 * MIB, 4096);

	w->other = true;
	add(w, 0, 0, 0, MIB);
	add(w, 1, 0, 3 * MIB - 10, 3 * MIB);
	add(w, 0, 1, 0, 4096);
	fill(w);
	is_refused(w, SHEAF_EFORMAT, "1048576 bytes of the checkpoint in memory are on no node: a "
	           "node or its agent was lost; set opts.memory_tier.copies to 2 to "
	           "survive the loss of one");
	drop(w);
}

TEST(files_without_a_byte_are_nobodys)
{
	struct world *w = world_of(0, 0);

	fill(w);
	CHECK_INT(spread(w), 0);
	CHECK(w->moved < 4096);
	drop(w);
}

/* More than travels at once. */
TEST(many_blocks_that_are_cut_come_in_turns)
{
	struct world *w = world_of(132 * MIB, 0);

	w->head = 8;
	for (uint64_t at = 0, half = MIB / 2; at < w->bytes[0]; at += half)
		add(w, at / half % 2 ? 1 : 0, 0, at, at + half);
	fill(w);
	is_spread(w);
	CHECK(w->moved > 66 * MIB);
	drop(w);
}

/* Of a block both have the same part: nobody takes it as it comes. */
TEST(bytes_that_come_where_they_are_already_are_refused)
{
	struct world *w = world_of(MIB, MIB);

	add(w, 0, 0, 0, MIB / 2 - 10);
	add(w, 1, 0, MIB / 4, MIB);
	add(w, 0, 1, 0, MIB);
	fill(w);
	is_refused(w, SHEAF_ECORRUPT, "blocks that lie on several nodes");
	drop(w);
}

static bool mute;               /* who gives a piece gives nothing */

int __real_shf_view_get_bytes(const struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                              struct shf_buf *out);
int __wrap_shf_view_get_bytes(const struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                              struct shf_buf *out);
int __wrap_shf_view_get_bytes(const struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                              struct shf_buf *out)
{
	return mute ? 0 : __real_shf_view_get_bytes(v, file, lo, hi, out);
}

TEST(a_piece_that_comes_short_is_refused)
{
	struct world *w = cut();

	mute = true;
	is_refused(w, SHEAF_ECORRUPT, "storing bytes of another node");
	mute = false;
	is_spread(w);
	drop(w);
}

TEST(each_allocation_may_fail_and_the_next_try_finds_all)
{
	struct world *w = cut();
	long n = 0;

	for (w->hungry = 0; w->hungry < RANKS; w->hungry += 2)
		for (w->nth = 1 + t_from(T_STRIDE);; w->nth += (w->hungry ? 11 : 1) * T_STRIDE) {
			int rc = spread(w);

			if (!starved)
				break;
			n++;
			if (rc != SHEAF_ENOMEM)
				print_error("rank %d, allocation %ld: %d %s\n", w->hungry, w->nth,
				            rc, w->why);
			CHECK_INT(rc, SHEAF_ENOMEM);
			CHECK(w->why[0]);
		}
	w->nth = 0;
	is_spread(w);
	printf("# %ld allocations\n", n);
	CHECK(n > 100 / T_STRIDE);
	drop(w);
}
