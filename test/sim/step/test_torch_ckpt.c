/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of torch_checkpointing: what ranks have of a tensor is joined by metadata.pkl, loaded
 * in any layout, and refused with a sentence where the metadata and the files do not fit. Without
 * metadata.pkl the files of one rank are read. */
#include <stdlib.h>
#include "foreign.h"
#include "t.h"
#include "foreign_plays.h"
#include "foreign_starved.h"

#define ROWS 11
#define COLUMNS 7
#define DIR "c"

enum flaw {
	SOUND, BARE /* no DTensor */, BOXES /* default_tensor_v1 */, STRIDED, NO_FILE, OTHER_SHAPE,
	PLACEMENT, DIMENSION, MESH, RANK, LAYOUT, FORMAT, OLD, OVERLAP, LEAVES, NO_TENSOR, MORE,
	OUTSIDE, TWO_PLACES /* BOXES, of which two are of rank 0 */, TWO_TENSORS,
	NO_PAIR /* its last dimension of size 1 is no part of a complex number */
};
struct box { int64_t start[2], count[2]; };

static void put(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

static void put_list(struct torch_bytes *b, const int64_t *v, int n)
{
	put(b, "](");
	for (int i = 0; i < n; i++)
		torch_int(b, v[i]);
	put(b, "e");
}

/* Part i of n of `rows` rows, as torch cuts them. */
static void part(int64_t rows, int n, int i, int64_t *start, int64_t *count)
{
	int64_t size = (rows + n - 1) / n;

	*start = size * i < rows ? size * i : rows;
	*count = rows - *start < size ? rows - *start : size;
}

/* What rank r of 4 has: rows by r / 2, and columns by r % 2. STRIDED: rows by r % 2 first, and then
 * by r / 2. */
static struct box box_of(int r, enum flaw flaw)
{
	struct box b = { { 0, 0 }, { ROWS, COLUMNS } };
	int64_t start;

	if (flaw == STRIDED) {
		part(ROWS, 2, r % 2, &b.start[0], &b.count[0]);
		start = b.start[0];
		part(b.count[0], 2, r / 2, &b.start[0], &b.count[0]);
		b.start[0] += start;
		return b;
	}
	part(ROWS, 2, r / 2, &b.start[0], &b.count[0]);
	part(COLUMNS, 2, r % 2, &b.start[1], &b.count[1]);
	return b;
}

/* Puts the file of a rank: a dictionary with its part of w, which is a DTensor, stored column by
 * column on some ranks. */
static void put_rank(struct simdisk *disk, const char *path, int r, enum flaw flaw)
{
	struct box box = box_of(r, flaw);
	bool turned = r % 3 == 1, slots = r % 2;        /* slots: the other form of a DTensor */
	struct torch_tensor t = { .name = "w", .dtype = SHEAF_F32, .ndim = 2,
		.shape = { box.count[0] + (flaw == OTHER_SHAPE && r == 2), box.count[1] } };
	struct torch_bytes b = { 0 }, data = { 0 }, file;

	if (flaw == NO_PAIR) {
		t.ndim = 3;
		t.shape[2] = t.stride[2] = 1;
	}
	t.stride[0] = turned ? 1 : t.shape[1];
	t.stride[1] = turned ? t.shape[0] : 1;
	for (int64_t k = 0; k < t.shape[0] * t.shape[1]; k++) {
		int64_t i = turned ? k % t.shape[0] : k / t.shape[1];
		int64_t j = turned ? k / t.shape[0] : k % t.shape[1];
		uint64_t v = hand_value("model", "m.w", SHEAF_F32,
		                        (box.start[0] + i) * COLUMNS + box.start[1] + j);

		torch_add(&data, &v, 4);
	}
	torch_add(&b, "\x80\x02}", 3);
	torch_text(&b, flaw == NO_TENSOR && r == 1 ? "v" : "w");
	if (flaw != BARE)
		put(&b, "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n"
		        "_rebuild_wrapper_subclass\nctorch.distributed.tensor\nDTensor\n)");
	if (flaw != BARE)
		put(&b, slots ? "N}" : "}");
	if (flaw != BARE)
		torch_text(&b, "_local_tensor");
	torch_put(&b, &t, 1, 0);
	put(&b, flaw == BARE ? "s" : slots ? "s\x86tRs" : "stRs");
	if (flaw == MORE || flaw == TWO_TENSORS) {
		torch_text(&b, flaw == MORE ? "more" : "w");
		torch_put(&b, &t, 1, 0);
		put(&b, "s");
	}
	put(&b, ".");
	file = torch_archive_with("archive", &b, &data, 1);
	CHECK_INT(simdisk_put(disk, path, file.p, file.n), 0);
	free(file.p);
	free(data.p);
	free(b.p);
}

static void put_placement(struct torch_bytes *b, const char *type, int dim)
{
	put(b, "}(");
	torch_text(b, "type");
	torch_text(b, type);
	torch_text(b, "dim");
	torch_int(b, dim);
	torch_text(b, "split_factor");
	torch_int(b, 2);
	put(b, "u");
}

static void put_mesh(struct torch_bytes *b, enum flaw flaw)
{
	const int64_t shape[] = { 2, flaw == MESH ? 3 : 2 };
	const int64_t ranks[] = { 0, flaw == OVERLAP ? 0 : 1, 2, flaw == RANK ? 9 : 3 };

	torch_text(b, "mesh_spec");
	put(b, "}(");
	torch_text(b, "mesh_shape");
	put_list(b, shape, 2);
	torch_text(b, "mesh_data");
	put_list(b, ranks, 4);
	put(b, "u");
	torch_text(b, "placements");
	put(b, "](");
	put_placement(b, flaw == STRIDED ? "StridedShard" : flaw == PLACEMENT ? "Partial" : "Shard",
	              flaw == DIMENSION ? 2 : 0);
	put_placement(b, "Shard", flaw != STRIDED);
	put(b, "e");
}

/* Puts the boxes that one rank says it has. */
static void put_boxes(struct torch_bytes *b, int r, enum flaw flaw)
{
	struct box box = box_of(r, flaw);
	const int64_t zero[2] = { 0, 0 };

	torch_text(b, "global_offsets");
	put(b, "](");
	put_list(b, box.start, 2);
	put(b, "e");
	torch_text(b, "local_offsets");
	put(b, "](");
	put_list(b, zero, 2);
	put(b, "e");
	torch_text(b, "local_sizes");
	put(b, "](");
	box.count[0] += flaw == LEAVES && r == 3;
	put_list(b, box.count, 2);
	put(b, "e");
}

static bool has_boxes(enum flaw flaw)
{
	return flaw == BOXES || flaw == LEAVES || flaw == TWO_PLACES;
}

static void put_group(struct torch_bytes *b, int r, enum flaw flaw)
{
	const int64_t shape[] = { ROWS, COLUMNS }, ranks[] = { 0, 1, 2, 3 };
	bool said = has_boxes(flaw);

	put(b, "}(");
	torch_text(b, "sharding_metadata");
	put(b, "}(");
	torch_text(b, "type");
	torch_text(b, said ? "default_tensor_v1" : "DTensorShardingMetadata");
	torch_text(b, "data");
	put(b, "}(");
	torch_text(b, "global_shape");
	put_list(b, shape, 2);
	if (said)
		put_boxes(b, r, flaw);
	else
		put_mesh(b, flaw);
	put(b, "uu");
	torch_text(b, "ranks");
	put_list(b, ranks + (flaw == TWO_PLACES && r == 1 ? 0 : r), said ? 1 : 4);
	put(b, "u");
}

static void put_metadata(struct simdisk *disk, enum flaw flaw)
{
	struct torch_bytes b = { 0 };

	torch_add(&b, "\x80\x02}(", 4);
	torch_text(&b, "metadata");
	put(&b, "}(");
	torch_text(&b, "m");
	put(&b, "}(");
	torch_text(&b, "nested_path_to_metadata");
	put(&b, "}(");
	torch_text(&b, "[\"w\"]");
	put(&b, "](");
	for (int r = 0; r < (has_boxes(flaw) ? 4 : 1); r++)
		put_group(&b, r, flaw);
	put(&b, "eu");
	torch_text(&b, "rank_to_layout_info");
	put(&b, "}(");
	for (int r = 0; r < 4 - (flaw == LAYOUT); r++) {
		torch_int(&b, r);
		if (r != 1) {
			put(&b, "N");
			continue;
		}
		put(&b, "}(");
		torch_text(&b, "file_path");
		torch_text(&b, flaw == OUTSIDE ? "../m" : "sub/one");
		torch_text(&b, "serialization_format");
		put(&b, "}");
		torch_text(&b, "type");
		torch_text(&b, flaw == FORMAT ? "ArrowSerialization" : "TorchSerialization");
		put(&b, "su");
	}
	put(&b, "uuu");
	torch_text(&b, "world_size");
	torch_int(&b, 4);
	torch_text(&b, "version");
	torch_text(&b, flaw == OLD ? "1.0" : "2.0");
	put(&b, "u.");
	CHECK_INT(simdisk_put(disk, DIR "/metadata.pkl", b.p, b.n), 0);
	free(b.p);
}

static struct simdisk *saved(enum flaw flaw)
{
	struct simdisk *disk = disk_new();
	char path[40];

	for (int r = 0; r < 4; r++) {
		snprintf(path, sizeof(path), r == 1 ? DIR "/sub/one" : DIR "/m_%d.pt", r);
		if (flaw != NO_FILE || r != 3)
			put_rank(disk, path, r, flaw);
	}
	put_metadata(disk, flaw);
	return disk;
}

static void held(struct hand *h)
{
	hand_cut(hand_add(h, "model", "m.w", SHEAF_F32, 2, ROWS, COLUMNS), h->play->variant,
	         h->rank, h->ranks);
}

TEST(what_ranks_have_loads_in_any_layout)
{
	static const enum flaw kinds[] = { SOUND, BARE, BOXES, STRIDED, MORE };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		for (int cut = 0; cut < 2; cut++)
			foreign_loads(saved(kinds[i]), DIR, 3, held, cut, 1);
}

TEST(a_tensor_that_is_not_described_is_noted)
{
	struct simdisk *disk = saved(MORE);
	struct sheaf_error err;
	char note[400];

	CHECK_RC(foreign_opens(disk, DIR, "m.more", note, &err), 0, &err);
	CHECK(strstr(note, "that metadata.pkl does not describe") != NULL);
	CHECK_RC(foreign_opens(disk, DIR, SHF_UNREAD_NOTE, note, &err), 0, &err);
	CHECK_STR(note, "1");
	simdisk_free(disk);
}

TEST(metadata_that_do_not_fit_are_refused_by_what_is_wrong)
{
	static const struct { enum flaw flaw; const char *why; } flaws[] = {
		{ NO_FILE, "c/m_3.pt: " },
		{ OTHER_SHAPE, "tensor m.w: the file of rank 2 does not have it, or has another" },
		{ NO_TENSOR, "tensor m.w: the file of rank 1 does not have it" },
		{ PLACEMENT, "tensor m.w: has a mesh or a placement of unknown structure" },
		{ DIMENSION, "has a mesh or a placement of unknown structure" },
		{ MESH, "has a mesh or a placement of unknown structure" },
		{ RANK, "the file of rank 9 does not have it" },
		{ LAYOUT, "an item does not say the files of all ranks" },
		{ FORMAT, "item m is stored by ArrowSerialization, which is not known" },
		{ OLD, "c/metadata.pkl: is of version 1.0; 2.0 is read" },
		{ OVERLAP, "tensor m.w: the file of rank 0 does not have it, or has another sha" },
		{ LEAVES, "tensor m.w: has a box that leaves it" },
		{ NO_PAIR, "tensor m.w: the file of rank 0 does not have it, or has another" },
		{ TWO_PLACES, "tensor m.w: rank 0 has two places in it" },
		{ TWO_TENSORS, "c: two tensors have the name m.w" },
		{ OUTSIDE, "names the file ../m, which is not a file" },
	};

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++)
		foreign_refused(saved(flaws[i].flaw), DIR, flaws[i].why);
}

TEST(metadata_that_are_cut_anywhere_are_refused)
{
	struct simdisk *disk = saved(SOUND);
	struct torch_bytes whole = { NULL, 0, 0 };
	struct sheaf_error err;
	char note[400];

	whole.p = simdisk_get(disk, DIR "/metadata.pkl", &whole.n);
	/* Before that it is no directory of this kind. */
	for (size_t n = 80; n < whole.n; n += (size_t)T_STRIDE) {
		CHECK_INT(simdisk_put(disk, DIR "/metadata.pkl", whole.p, n), 0);
		CHECK_INT(foreign_opens(disk, DIR, "", note, &err), SHEAF_EFORMAT);
		CHECK(strstr(err.msg, "metadata.pkl") != NULL);
	}
	free(whole.p);
	simdisk_free(disk);
}

/* Puts the file of an item and a rank, whose only tensor is "w". */
static void put_bare(struct simdisk *disk, const char *item, int rank)
{
	struct torch_tensor t = { .name = "w", .dtype = SHEAF_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS } };
	struct torch_bytes b = torch_archive(&t, 1, TORCH_SOUND);
	char path[40];

	snprintf(path, sizeof(path), DIR "/%s_%d.pt", item, rank);
	CHECK_INT(simdisk_put(disk, path, b.p, b.n), 0);
	free(b.p);
}

static void held_bare(struct hand *h)
{
	static const char *const names[] = { "m.w", "b_2.w" };

	for (int i = 0; i < 2; i++) {
		hand_cut(hand_add(h, "model", names[i], SHEAF_F32, 2, ROWS, COLUMNS),
		         h->play->variant, h->rank, h->ranks);
		hand_as(h, "model", "w");
	}
}

TEST(files_of_one_rank_are_whole_without_metadata)
{
	struct simdisk *disk = disk_new();

	put_bare(disk, "m", 0);
	put_bare(disk, "b_2", 0);
	CHECK_INT(simdisk_put(disk, DIR "/notes_7.txt", "x", 1), 0);
	foreign_loads(disk, DIR, 2, held_bare, 1, 2);
}

TEST(files_of_several_ranks_need_the_metadata)
{
	struct simdisk *disk = disk_new();

	for (int r = 0; r < 12; r++) {
		put_bare(disk, "m", r);
		put_bare(disk, "mm", r);
	}
	foreign_refused(disk, DIR, "has the files of 12 ranks, such as m_0.pt, and no "
	                "metadata.pkl");
}

/* Such as those of several epochs. */
TEST(other_files_are_no_files_of_ranks)
{
	static const char *const more[] = { "m_2.pt", "last.pt", "m_01.pt", "_1.pt", "m_.pt" };

	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		struct simdisk *disk = disk_new();
		struct sheaf_error err;
		char path[40];

		put_bare(disk, "m", 0);
		snprintf(path, sizeof(path), DIR "/%s", more[i]);
		CHECK_INT(simdisk_put(disk, path, "PK", 2), 0);
		CHECK_INT(shf_foreign_is_here(simdisk_process(disk, 77, 0), DIR, &err), 0);
		simdisk_free(disk);
	}
}

TEST(each_allocation_may_fail)
{
	struct simdisk *disk = saved(SOUND);

	foreign_survives(disk, DIR, 1, 8);
	simdisk_free(disk);
	disk = disk_new();
	put_bare(disk, "m", 0);
	put_bare(disk, "b_2", 0);
	foreign_survives(disk, DIR, 1, 2);
	simdisk_free(disk);
}
