/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of Zarr in directories and in databases OCDBT, and checkpoints of Orbax: loaded in any
 * layout, and refused with a sentence where they are damaged or lie. */
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "foreign_dir.h"
#include "foreign_read.h"
#include "t.h"
#include "foreign_plays.h"
#include "packedfile.h"
#include "foreign_starved.h"
#include "zarrfile.h"

static const struct torch_tensor all[] = {
	{ .name = "a.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
	{ .name = "b", .dtype = SHEAF_F64, .ndim = 3, .shape = { 5, 3, 7 } },
	{ .name = "h", .dtype = SHEAF_BF16, .ndim = 1, .shape = { 41 } },
	{ .name = "n", .dtype = SHEAF_F32, .ndim = 0 },
};
#define EACH (T_STRIDE * T_FEWER)       /* of the bits and lengths of a file, one in so many */
#define ALL ((int)(sizeof(all) / sizeof(all[0])))

static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "a.w", SHEAF_F32, 2, 37, 29);

	if (h->play->variant % 3 == 2) {
		s->flags = SHEAF_SLICE_FLAT;
		s->flat_start = 1073 * h->rank / h->ranks;
		s->flat_count = 1073 * (h->rank + 1) / h->ranks - s->flat_start;
	} else {
		hand_cut(s, h->play->variant % 3, h->rank, h->ranks);
	}
	s = hand_add(h, "model", "b", SHEAF_F64, 3, 5, 3, 7);
	hand_cut(s, h->play->variant % 3, h->rank, h->ranks);
	s = hand_add(h, "model", "h", SHEAF_BF16, 1, 41);
	hand_cut(s, 0, h->rank, h->ranks);
	hand_add(h, "model", "n", SHEAF_F32, 0);
}

/* Ways to store arrays. No chunk divides its array. */
static const struct zarr_how hows[] = {
	{ .version = 2 },
	{ .version = 2, .codec = ZARR_ZSTD, .fortran = true },
	{ .version = 2, .codec = ZARR_BLOSC, .slash = true },
	{ .version = 3, .slash = true },
	{ .version = 3, .slash = true, .codec = ZARR_GZIP, .fortran = true },
	{ .version = 3, .codec = ZARR_ZSTD, .crc = true },
	{ .version = 3, .slash = true, .codec = ZARR_ZSTD, .crc = true, .crc_inside = true },
	{ .version = 3, .slash = true, .crc = true },
	{ .version = 3, .slash = true, .inner = { 4, 3, 2 } },
	{ .version = 3, .slash = true, .inner = { 2, 1, 1 }, .codec = ZARR_ZSTD, .crc = true,
	  .index_first = true },
};
#define HOWS ((int)(sizeof(hows) / sizeof(hows[0])))

/* Adds all tensors in that way. */
static void add_all(struct zarr_store *s, int how)
{
	static const int64_t chunks[ALL][3] = { { 8, 6 }, { 4, 3, 4 }, { 12 }, { 0 } };

	for (int i = 0; i < ALL; i++) {
		struct zarr_how h = hows[how];

		memcpy(h.chunk, chunks[i], sizeof(chunks[i]));
		if (i == 1 && h.inner[1] == 3)
			h.inner[2] = 2;
		if (i == ALL - 1)
			h.inner[0] = 0;
		zarr_add(s, &all[i], &h);
	}
}

static struct simdisk *stored(int how, const struct ocdbt_how *db)
{
	struct zarr_store *s = calloc(1, sizeof(*s));
	struct simdisk *disk = disk_new();

	add_all(s, how);
	if (db)
		zarr_ocdbt(disk, "z", s, db);
	else
		zarr_dir(disk, "z", s);
	zarr_free(s);
	free(s);
	return disk;
}

static void loads(struct simdisk *disk, int variant)
{
	for (int ranks = 1; ranks < 4; ranks += 2) {
		struct play p = foreign_play(disk, "z", ranks, held);

		p.variant = variant;
		p.takes = variant % 2 ? 4 : 0;
		LOADED(p);
		CHECK_INT(p.report.loaded, ALL);
	}
	simdisk_free(disk);
}

TEST(chunks_of_every_kind_load_in_any_layout)
{
	for (int how = 0; how < HOWS; how++)
		loads(stored(how, NULL), how);
}

TEST(databases_of_every_height_load_in_any_layout)
{
	static const struct ocdbt_how dbs[] = {
		{ .per_node = 400 }, { .per_node = 400, .inlined = 1000, .zstd = true },
		{ .per_node = 3, .inlined = 40 }, { .per_node = 2, .zstd = true, .versions = 4 },
		{ .per_node = 7, .merged = true, .inlined = 20 },
		{ .per_node = 7, .numbered = true },
		{ .per_node = 3, .numbered = true, .zstd = true, .versions = 20 },
	};

	for (int i = 0; i < (int)(sizeof(dbs) / sizeof(dbs[0])); i++) {
		loads(stored(i, &dbs[i]), i);
		loads(stored(HOWS - 1 - i, &dbs[i]), i + 1);
	}
}

/* Opens what is at z, reads all of it, and verifies it. Returns the first code that is not 0;
 * without checksums, that is not one. *values: of a.w. */
static int opens(struct simdisk *disk, float *values, struct sheaf_error *err)
{
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct shf_foreign *f = NULL;
	uint8_t *some = malloc(1 << 16);
	int rc;

	memset(err, 0, sizeof(*err));
	rc = shf_foreign_is_here(sys, "z", err);
	if (rc == 1)
		rc = shf_foreign_open(&f, sys, "z", err);
	else if (rc == 0)
		rc = SHEAF_ENOENT;
	if (rc == 0) {
		size_t n;
		const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n);

		for (size_t i = 0; i < n && rc == 0; i++) {
			rc = shf_foreign_gather(f, &t[i], some, t[i].bytes < 1 << 16 ? t[i].bytes
			                        : 1 << 16, 0, err);
			if (values && rc == 0 && strcmp(t[i].name, "a.w") == 0)
				memcpy(values, some, t[i].bytes);
		}
	}
	shf_foreign_free(f);
	CHECK_INT(simdisk_open_n(sys), 0);
	free(some);
	return rc;
}

static bool has_values(const float *values)
{
	for (int i = 0; i < 37 * 29; i++) {
		uint64_t want = hand_value("model", "a.w", SHEAF_F32, i);

		if (memcmp(&values[i], &want, sizeof(*values)))
			return false;
	}
	return true;
}

static void refused(struct simdisk *disk, const char *why)
{
	struct sheaf_error err;
	int rc = opens(disk, NULL, &err);

	if (rc != SHEAF_EFORMAT || !strstr(err.msg, why))
		fail_msg("want '%s', got %d: %s", why, rc, err.msg);
	CHECK(err.msg[0] == 'z');
	simdisk_free(disk);
}

TEST(databases_that_lie_are_refused_by_what_is_wrong)
{
	static const struct { enum ocdbt_flaw flaw; const char *why; } flaws[] = {
		{ OCDBT_MAGIC, "does not begin with the magic number" },
		{ OCDBT_LENGTH, "has another length than its header says" },
		{ OCDBT_SUM, "its CRC-32C is " }, { OCDBT_VERSION, "is of an unknown version" },
		{ OCDBT_COMPRESSION, "has an unknown compression" },
		{ OCDBT_TWICE_NUMBERED, "z/manifest.0000000000000003: OCDBT, byte 0: is named as "
		                        "a manifest with versions, and has none" },
		{ OCDBT_NO_NUMBER, "in numbered manifests (manifest.<16 digits>), and there are" },
		{ OCDBT_OTHER_NUMBER, "has another version than the one in its name" },
		{ OCDBT_OTHER_UUID, "is of another database than manifest.ocdbt" },
		{ OCDBT_CONFIG, "goes on after its configuration" },
		{ OCDBT_NO_VERSION, "has no versions" }, { OCDBT_OLD_LAST, "versions do not asce" },
		{ OCDBT_HEIGHT, "at another level of the tree" },
		{ OCDBT_DEEP, "more levels than are read" }, { OCDBT_NO_KEYS, "has no keys" },
		{ OCDBT_ORDER, "its keys do not ascend" }, { OCDBT_TWICE, "its keys do not asce" },
		{ OCDBT_PREFIX, "has a key that is longer" },
		{ OCDBT_SUFFIX, "has a key that is longer" },
		{ OCDBT_SUBTREE, "has a key that is longer" },
		{ OCDBT_KIND, "of unknown kind" },
		{ OCDBT_FILE_ID, "a data file that its table does not have" },
		{ OCDBT_BEYOND, "beyond the end of its" }, { OCDBT_INLINE, "ends inside its valu" },
		{ OCDBT_TAIL, "does not end where its values do" },
		{ OCDBT_PATH, "names the file ../d, which is not a file" },
		{ OCDBT_LONG_PATH, "has a path that is too long" },
		{ OCDBT_LOOP, "its keys do not ascend" },
		{ OCDBT_CONTROL, "has a key with a control character" },
	};
	struct sheaf_error err;
	struct simdisk *disk;

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		struct ocdbt_how how = { .per_node = 20, .flaw = flaws[i].flaw,
			.inlined = flaws[i].flaw == OCDBT_INLINE ? 1000 : 40, .zstd = i % 2,
			.versions = flaws[i].flaw == OCDBT_OLD_LAST };

		how.numbered = how.flaw >= OCDBT_TWICE_NUMBERED && how.flaw <= OCDBT_CONFIG;
		if (how.numbered)
			how.versions = 2;

		refused(stored(0, &how), flaws[i].why);
	}
	disk = stored(0, &(struct ocdbt_how){ .per_node = 20, .flaw = OCDBT_EMPTY });
	CHECK_RC(opens(disk, NULL, &err), 0, &err);
	simdisk_free(disk);
}

/* Puts the first n bytes of a file in place of it. */
static void cut(struct simdisk *disk, const char *path, const struct torch_bytes *whole, size_t n)
{
	CHECK_INT(simdisk_put(disk, path, whole->p, n), 0);
}

static struct torch_bytes file_of(struct simdisk *disk, const char *path)
{
	struct torch_bytes b = { NULL, 0, 0 };

	b.p = simdisk_get(disk, path, &b.n);
	CHECK(b.p != NULL);
	return b;
}

TEST(a_database_that_is_cut_anywhere_is_refused)
{
	static const char *const paths[] = { "z/manifest.ocdbt", "z/d/0", "z/d/1" };
	struct ocdbt_how how = { .per_node = 5, .inlined = 30 };

	for (int zstd = 0; zstd < 2; zstd++) {
		struct simdisk *disk;

		how.zstd = zstd;
		disk = stored(9, &how);
		for (int i = 0; i < 3; i++) {
			struct torch_bytes whole = file_of(disk, paths[i]);
			struct sheaf_error err;

			for (size_t n = (size_t)t_from(EACH); n < whole.n;
			     n += (size_t)EACH) {
				cut(disk, paths[i], &whole, n);
				CHECK(opens(disk, NULL, &err) < 0);
				CHECK(err.code == SHEAF_EFORMAT || n < 4);
			}
			cut(disk, paths[i], &whole, whole.n);
			free(whole.p);
		}
		simdisk_free(disk);
	}
}

TEST(a_numbered_manifest_that_is_cut_anywhere_is_refused)
{
	struct simdisk *disk = stored(0, &(struct ocdbt_how){ .per_node = 20, .numbered = true });
	struct torch_bytes whole = file_of(disk, "z/manifest.0000000000000001");
	struct sheaf_error err;

	for (size_t n = 0; n < whole.n; n++) {
		cut(disk, "z/manifest.0000000000000001", &whole, n);
		CHECK_INT(opens(disk, NULL, &err), SHEAF_EFORMAT);
	}
	free(whole.p);
	simdisk_free(disk);
}

TEST(a_chunk_or_metadata_that_is_cut_anywhere_is_refused)
{
	static const struct { int how; const char *path; } files[] = {
		{ 0, "z/a.w/.zarray" }, { 0, "z/a.w/1.1" }, { 1, "z/a.w/1.1" }, { 2, "z/a.w/1/1" },
		{ 3, "z/a.w/zarr.json" }, { 4, "z/a.w/c/1/1" }, { 5, "z/a.w/1.1" },
		{ 7, "z/a.w/c/1/1" }, { 8, "z/a.w/c/1/1" }, { 9, "z/a.w/c/1/1" },
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct simdisk *disk = stored(files[i].how, NULL);
		struct torch_bytes whole = file_of(disk, files[i].path);
		struct sheaf_error err;

		for (size_t n = 0; n < whole.n; n += n < 20 ? 1 : (size_t)EACH) {
			cut(disk, files[i].path, &whole, n);
			if (opens(disk, NULL, &err) != SHEAF_EFORMAT || err.msg[0] != 'z')
				fail_msg("%s cut at %zu: %d: %s", files[i].path, n, err.code,
				         err.msg);
		}
		free(whole.p);
		simdisk_free(disk);
	}
}

TEST(a_flipped_bit_of_a_node_is_found_or_changes_no_value)
{
	struct simdisk *disk = stored(6, &(struct ocdbt_how){ .per_node = 5, .inlined = 30 });
	struct torch_bytes whole = file_of(disk, "z/d/1");
	struct sheaf_error err;
	float values[37 * 29];
	int missed = 0;

	for (size_t i = (size_t)t_from(EACH); i < 8 * whole.n;
	     i += 7 * (size_t)EACH) {
		whole.p[i / 8] ^= (uint8_t)(1 << i % 8);
		cut(disk, "z/d/1", &whole, whole.n);
		missed += opens(disk, values, &err) == 0 && !has_values(values);
		whole.p[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	/* What is in no node is a value, which the codec of the array has a checksum for: it is
	 * compared by a verification alone. */
	CHECK(missed < (int)(8 * whole.n / 7 / (size_t)EACH));
	free(whole.p);
	simdisk_free(disk);
}

static int verified(struct simdisk *disk, struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "z", NULL, NULL, simdisk_process(disk, 77, 0), err);

	if (rc == 0)
		rc = shf_step_verify(step, NULL, err);
	shf_step_put(step);
	return rc;
}

TEST(a_flipped_bit_of_a_chunk_with_a_checksum_is_found_by_a_verification)
{
	static const int with[] = { 5, 6, 7 };
	struct sheaf_error err;

	for (int k = 0; k < 3; k++) {
		const char *path = with[k] == 5 ? "z/a.w/4.4" : "z/a.w/c/4/4";
		struct simdisk *disk = stored(with[k], NULL);
		struct torch_bytes whole = file_of(disk, path);

		CHECK_RC(verified(disk, &err), 0, &err);
		for (size_t i = (size_t)t_from(EACH); i < 8 * whole.n;
		     i += (size_t)EACH) {
			whole.p[i / 8] ^= (uint8_t)(1 << i % 8);
			cut(disk, path, &whole, whole.n);
			/* zstd ignores a bit of its header that no version uses. */
			if (verified(disk, &err) == 0 && (with[k] != 6 || i / 8 > 5))
				fail_msg("bit %zu of %s is not found", i, path);
			whole.p[i / 8] ^= (uint8_t)(1 << i % 8);
		}
		free(whole.p);
		simdisk_free(disk);
	}
}

/* ---- metadata ---- */

/* Stores a.w of version 3, with `from` in its metadata replaced. */
static struct simdisk *with_metadata(int version, const char *from, const char *to)
{
	struct zarr_store *s = calloc(1, sizeof(*s));
	struct zarr_how how = { .version = version, .slash = true, .chunk = { 40, 30 } };
	struct simdisk *disk = disk_new();
	struct torch_bytes *meta, made = { NULL, 0, 0 };
	const char *at;

	zarr_add(s, &all[0], &how);
	meta = zarr_value(s, version == 2 ? "a.w/.zarray" : "a.w/zarr.json");
	torch_add(meta, "", 1);
	at = strstr((const char *)meta->p, from);
	if (!at)
		fail_msg("%s is not in %s", from, (const char *)meta->p);
	torch_add(&made, meta->p, (size_t)(at - (const char *)meta->p));
	torch_add(&made, to, strlen(to));
	torch_add(&made, at + strlen(from), strlen(at + strlen(from)));
	free(meta->p);
	*meta = made;
	zarr_dir(disk, "z", s);
	zarr_free(s);
	free(s);
	return disk;
}

TEST(metadata_that_lie_are_refused_by_what_is_wrong)
{
	static const struct { int version; const char *from, *to, *why; } flaws[] = {
		{ 2, "\"zarr_format\":2", "\"zarr_format\":4", "are not metadata of Zarr 2" },
		{ 2, "[37,29]", "[37,-29]", "have no shape" },
		{ 2, "[37,29]", "[37]", "whose number of dimensions differs" },
		{ 2, "[40,30]", "[40,0]", "have a chunk without items" },
		{ 2, "[40,30]", "[40,31]", "has 4800 bytes, but a chunk of its array has 4960" },
		{ 2, "[40,30]", "[4611686018427387904,4]", "a size beyond 60 bits" },
		{ 2, "\"<f4\"", "\"<f8\"", "has 4800 bytes, but a chunk of its array has 9600" },
		{ 2, "\"compressor\":null", "\"compressor\":{}", "a compressor without a name" },
		{ 2, "\"shape\":", "\"shape\":[1],\"shape\":", "are not metadata of Zarr 2" },
		{ 2, "\"order\":\"C\"", "\"order\":\"C\",\"x\":", "are not metadata" },
		{ 3, "\"zarr_format\":3", "\"zarr_format\":2", "are not metadata of Zarr 3" },
		{ 3, "[37,29]", "\"37\"", "have no shape" },
		{ 3, "[40,30]", "[40]", "have no shape of chunks" },
		{ 3, "\"chunk_grid\"", "\"grid\"", "have no grid of chunks" },
		{ 3, "{\"name\":\"bytes\",", "{\"nam\":\"bytes\",", "a codec without a name" },
		{ 3, "[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}]", "[]",
		  "have no list of codecs" },
		{ 3, "[{\"name\":\"bytes\"", "[{\"name\":\"transpose\",\"configuration\":"
		  "{\"order\":[0,0]}},{\"name\":\"bytes\"", "that is not a permutation" },
	};
	static const struct { int version; const char *from, *to, *why; } unread[] = {
		{ 2, "\"<f4\"", "\">f4\"", "a big-endian array of type >f4, which sheaf "
		  "does not read" },
		{ 2, "\"<f4\"", "\"<M8[ns]\"", "an array of type <M8[ns], which sheaf does "
		  "not read" },
		{ 2, "\"<f4\"", "[[\"x\",\"<f4\"]]", "a structured array, which sheaf does not "
		  "read" },
		{ 2, "\"filters\":null", "\"filters\":[{\"id\":\"delta\"}]", "an array with filt" },
		{ 2, "\"compressor\":null", "\"compressor\":{\"id\":\"bz2\"}",
		  "compressed by bz2" },
		{ 3, "\"little\"", "\"big\"", "a big-endian array, which sheaf does not read" },
		{ 3, "\"float32\"", "\"int4\"", "an array of type int4, which sheaf does not "
		  "read" },
		{ 3, "\"regular\"", "\"rectilinear\"", "a grid of chunks that is rectilinear" },
		{ 3, "{\"name\":\"bytes\"", "{\"name\":\"fancy\"},{\"name\":\"bytes\"", "by the "
		  "codec fancy" },
		{ 3, "[37,29]", "[1,1,1,1,1,1,1,1,37]", "an array of more than 8 dimensions" },
		{ 3, "\"default\"", "\"other\"", "an encoding of keys that is other" },
	};
	struct sheaf_error err;
	char note[400];

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++)
		refused(with_metadata(flaws[i].version, flaws[i].from, flaws[i].to), flaws[i].why);
	for (size_t i = 0; i < sizeof(unread) / sizeof(unread[0]); i++) {
		struct simdisk *disk = with_metadata(unread[i].version, unread[i].from,
		                                     unread[i].to);

		CHECK_RC(foreign_opens(disk, "z", "a.w", note, &err), 0, &err);
		if (!strstr(note, unread[i].why))
			fail_msg("want '%s', got: %s", unread[i].why, note);
		simdisk_free(disk);
	}
}

/* ---- chunks that are not stored ---- */

static struct simdisk *holes_of(const struct torch_tensor *of, int version, const char *fill,
                                const char *tree)
{
	struct zarr_store *s = calloc(1, sizeof(*s));
	struct zarr_how how = { .version = version, .chunk = { 8, 6 }, .skip = 3, .fill = fill };
	struct simdisk *disk = disk_new();

	zarr_add(s, of, &how);
	zarr_dir(disk, "z", s);
	if (tree)
		CHECK_INT(simdisk_put(disk, "z/_METADATA", tree, strlen(tree)), 0);
	zarr_free(s);
	free(s);
	return disk;
}

static struct simdisk *with_holes(int version, const char *fill, const char *tree)
{
	return holes_of(&all[0], version, fill, tree);
}

TEST(chunks_that_are_not_stored_have_the_fill_value)
{
	static const struct { const char *fill; float want; } fills[] = {
		{ NULL, 0 }, { "2.5", 2.5f }, { "-7", -7 }, { "\"Infinity\"", __builtin_inff() },
	};
	struct sheaf_error err;
	float values[37 * 29];

	for (size_t i = 0; i < sizeof(fills) / sizeof(fills[0]); i++)
		for (int version = 2; version < 4; version++) {
			struct simdisk *disk = with_holes(version, fills[i].fill, NULL);

			CHECK_RC(opens(disk, values, &err), 0, &err);
			for (int k = 0; k < 37 * 29; k++) {
				uint64_t want = hand_value("model", "a.w", SHEAF_F32, k);

				if (k / 29 < 8 && k % 29 < 18)
					CHECK(values[k] == fills[i].want);
				else
					CHECK(memcmp(&values[k], &want, 4) == 0);
			}
			simdisk_free(disk);
		}
	refused(with_holes(2, "\"0x12\"", NULL), "a fill value for them that is not read");
}

TEST(a_fill_value_that_its_type_does_not_have_is_not_read)
{
	static const struct torch_tensor small = { .name = "a.w", .dtype = SHEAF_I8, .ndim = 2,
		.shape = { 37, 29 } };
	static const char *const none[] = { "128", "-129", "300", "0.5", "35e6304", "-1e999",
		"9007199254740993000" };
	static const char *const fine[] = { "127", "-128", "0", "1e2" };
	char note[600];
	struct sheaf_error err;

	for (int version = 2; version < 4; version++) {
		for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
			refused(holes_of(&small, version, none[i], NULL),
			        "a fill value for them that is not read");
		for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++) {
			struct simdisk *disk = holes_of(&small, version, fine[i], NULL);

			CHECK_RC(foreign_opens(disk, "z", "a.w", note, &err), 0, &err);
			simdisk_free(disk);
		}
	}
}

#define LEAF(name, type) "\"('" name "',)\":{\"key_metadata\":[{\"key\":\"a\",\"key_type\":2}," \
	"{\"key\":\"" name "\",\"key_type\":2}],\"value_metadata\":{\"value_type\":\"" type "\"}}"

TEST(what_the_tree_of_an_item_lists_must_be_there)
{
	struct sheaf_error err;
	struct simdisk *disk = with_holes(2, NULL, "{\"tree_metadata\":{" LEAF("w", "jax.Array")
	                                  "," LEAF("gone", "None") "}}");

	CHECK_RC(opens(disk, NULL, &err), 0, &err);
	simdisk_free(disk);
	refused(with_holes(2, NULL, "{\"tree_metadata\":{" LEAF("w", "jax.Array") ","
	                   LEAF("lost", "jax.Array") "}}"), "array a.lost is missing, but");
	refused(with_holes(2, NULL, "{\"tree_metadata\":{},"
	                   "\"store_array_data_equal_to_fill_value\":true}"),
	        "array a.w has 22 of 25 chunks; the others are missing");
	refused(with_holes(2, NULL, "{\"tree_metadata\":[]}"), "has an unknown structure");
	refused(with_holes(2, NULL,
	                   "{\"tree_metadata\":{\"a\":{\"key_metadata\":[{\"key\":[]}]}}}"),
	        "has an unknown structure");
	refused(with_holes(2, NULL, "{\"tree_metadata\":{"), "has an unknown structure");
}

/* ---- saves ---- */

static void put_item(struct simdisk *disk, const char *dir, int how)
{
	struct zarr_store *s = calloc(1, sizeof(*s));

	add_all(s, how);
	zarr_ocdbt(disk, dir, s, &(struct ocdbt_how){ .per_node = 9, .inlined = 30 });
	zarr_free(s);
	free(s);
}

static void put_text(struct simdisk *disk, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

#define SAVE "{\"item_handlers\":{},\"init_timestamp_nsecs\":17}"

TEST(the_newest_save_of_a_run_is_opened_and_none_that_has_not_finished)
{
	struct simdisk *disk = disk_new();
	struct sheaf_error err;
	char note[400];

	put_item(disk, "z/5/default", 0);
	put_text(disk, "z/5/_CHECKPOINT_METADATA", SAVE);
	CHECK_RC(foreign_opens(disk, "z", "step", note, &err), 0, &err);
	CHECK(strcmp(note, "5") == 0);
	put_item(disk, "z/10/default", 5);
	put_text(disk, "z/10/_CHECKPOINT_METADATA", SAVE);
	put_text(disk, "z/10/metrics/metrics", "{\"loss\":0.5}");
	put_text(disk, "z/20.orbax-checkpoint-tmp-30/_CHECKPOINT_METADATA", SAVE);
	CHECK_RC(foreign_opens(disk, "z", "step", note, &err), 0, &err);
	CHECK(strcmp(note, "10") == 0);
	CHECK_RC(foreign_opens(disk, "z", "metrics.loss", note, &err), 0, &err);
	CHECK(strcmp(note, "0.5") == 0);
	CHECK_RC(foreign_opens(disk, "z/5", "step", note, &err), 0, &err);
	CHECK(strcmp(note, "5") == 0);
	CHECK_INT(foreign_opens(disk, "z/20.orbax-checkpoint-tmp-30", "", note, &err),
	          SHEAF_EFORMAT);
	CHECK(strstr(err.msg, "is the folder of a save of Orbax that has not finished") != NULL);
	loads(disk, 1);
}

TEST(items_of_a_save_are_told_apart_and_each_must_have_finished)
{
	struct simdisk *disk = disk_new();
	struct sheaf_error err;
	char note[400];
	size_t n;
	struct shf_foreign *f = NULL;
	const struct shf_foreign_tensor *t;

	put_item(disk, "z/state", 0);
	put_item(disk, "z/ema", 0);
	put_text(disk, "z/_CHECKPOINT_METADATA", SAVE);
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), "z", &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	CHECK_INT(n, 2 * ALL);
	CHECK(strcmp(t[0].name, "ema.a.w") == 0 || strcmp(t[0].name, "state.a.w") == 0);
	shf_foreign_free(f);
	put_text(disk, "z/more.orbax-checkpoint-tmp/x", "");
	CHECK_INT(foreign_opens(disk, "z", "", note, &err), SHEAF_EFORMAT);
	CHECK(strstr(err.msg, "has the item more.orbax-checkpoint-tmp, whose save has") != NULL);
	simdisk_free(disk);

	disk = disk_new();
	put_item(disk, "z/ocdbt.process_0", 0);
	refused(disk, "no manifest.ocdbt that joins them: its save has not finished");
	disk = disk_new();
	put_text(disk, "z/_CHECKPOINT_METADATA", SAVE);
	put_text(disk, "z/notes/metadata", "{\"a\":1}");
	refused(disk, "is a save of Orbax without arrays");
}

/* As the handlers of random generators of Orbax write them. */
TEST(an_item_may_have_items_in_it)
{
	struct simdisk *disk = disk_new();
	const struct shf_foreign_tensor *t;
	struct shf_foreign *f = NULL;
	struct sheaf_error err;
	char note[400];
	size_t n;

	put_item(disk, "z/state", 0);
	put_item(disk, "z/key/jax_random_key", 0);
	put_text(disk, "z/key/jax_random_key_metadata/metadata", "{\"typed\":true}");
	put_text(disk, "z/_CHECKPOINT_METADATA", SAVE);
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), "z", &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	CHECK_INT(n, 2 * ALL);
	CHECK_STR(t[0].name, "key.jax_random_key.a.w");
	shf_foreign_free(f);
	CHECK_RC(foreign_opens(disk, "z", "key.jax_random_key_metadata.typed", note, &err), 0,
	         &err);
	CHECK_STR(note, "true");
	put_text(disk, "z/key/more.orbax-checkpoint-tmp/x", "");
	refused(disk, "has the item more.orbax-checkpoint-tmp, whose save has");
}

TEST(a_model_with_a_folder_of_arrays_beside_it_is_no_store)
{
	struct simdisk *disk = disk_new();
	struct sheaf_error err;

	put_text(disk, "z/data/.zarray", "{\"zarr_format\":2}");
	CHECK_INT(shf_foreign_is_here(simdisk_process(disk, 77, 0), "z", &err), 1);
	put_text(disk, "z/model.safetensors", "");
	CHECK_INT(shf_foreign_is_here(simdisk_process(disk, 77, 0), "z", &err), 0);
	simdisk_free(disk);
}

/* ---- failures of the machine ---- */

TEST(each_allocation_may_fail)
{
	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = stored(i ? 9 : 1, i ? &(struct ocdbt_how){ .per_node = 4,
		                              .zstd = true, .inlined = 30 } : NULL);

		foreign_survives(disk, "z", T_STRIDE, 8);
		simdisk_free(disk);
	}
}

/* A directory whose files cannot be read may not be recognised. It is never opened with other
 * values. */
TEST(each_call_may_fail)
{
	static const struct ocdbt_how db = { .per_node = 4, .inlined = 30 };

	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = stored(i ? 9 : 0, i ? &db : NULL);
		bool fired = true;
		uint64_t want, digest;
		int failed = 0;

		CHECK_INT(foreign_starved(disk, "z", 0, &want), 0);
		simdisk_free(disk);
		for (int nth = 1; fired; nth++) {
			int rc;

			disk = stored(i ? 9 : 0, i ? &db : NULL);
			simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EACCES });
			rc = foreign_starved(disk, "z", 0, &digest);
			fired = simdisk_fired(disk) > 0;
			if (rc < 0 ? rc != SHEAF_EIO && rc != SHEAF_EFORMAT : digest != want)
				fail_msg("call %d: %d", nth, rc);
			failed += rc < 0;
			simdisk_free(disk);
		}
		CHECK(failed > 10);
	}
}

TEST(links_to_folders_are_noted_or_refused_and_those_to_nothing_are_missing_files)
{
	struct simdisk *disk = stored(0, NULL);
	struct sheaf_error err;
	char note[400];

	CHECK_INT(simdisk_symlink(disk, "a.w", "z/other"), 0);
	CHECK_RC(foreign_opens(disk, "z", "other", note, &err), 0, &err);
	CHECK(strcmp(note, "a link to a folder, which is not followed") == 0);
	CHECK_INT(simdisk_symlink(disk, "nowhere", "z/a.w/9.9"), 0);
	refused(disk, "z/a.w/9.9: missing");

	disk = stored(0, NULL);
	CHECK_INT(simdisk_symlink(disk, "../a.w", "z/a.w/loop"), 0);
	refused(disk, "z/a.w/loop: is a link to a folder in an array, which is not followed");
}
