/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of NumPy, GGUF, Zarr and Orbax. The first byte, modulo 11, says what the rest of the input
 * is:
 * 0: a file .npy;
 * 1: a file .npz;
 * 2: a GGUF file;
 * 3: the body of the manifest of a database OCDBT, which gets its header and its checksum;
 * 4: the body of its root, in a file with values;
 * 5: the body of a leaf below a sound root;
 * 6: a whole manifest;
 * 7: metadata of Zarr 2, beside chunks;
 * 8: metadata of Zarr 3, beside chunks;
 * 9: a chunk: its first byte, modulo 5, says how it is coded; of a shard the index gets its
 *    checksum;
 * 10: the tree of an item, beside an array.
 * An input that is accepted can be listed and read to its end. */
#include "crc32.h"
#include "foreign_check.h"
#include "fuzz.h"
#include "mem.h"
#include "ocdbt_file.h"

#define DIR_PATH "d"

static struct ramdisk disk;

static struct ram_node *new_dir(void)
{
	ramdisk_init(&disk);
	return ram_put(&disk, NULL, DIR_PATH, SHF_T_DIR, NULL, 0);
}

static void put(struct ram_node *dir, const char *name, const void *bytes, size_t n)
{
	ram_file(&disk, dir, name, bytes, n);
}

static void open_file(const uint8_t *data, size_t n)
{
	ramdisk_init(&disk);
	put(NULL, "f", data, n);
	check_foreign(&disk, "f");
}

static uint32_t crc32c(const uint8_t *p, size_t n)
{
	struct shf_crc32 crc;

	shf_crc32c_init(&crc);
	return shf_crc32_more(&crc, 0, p, n);
}

static void open_database(const struct shf_buf *manifest, const struct shf_buf *values)
{
	struct ram_node *dir = new_dir();

	put(dir, "manifest.ocdbt", manifest->data, manifest->len);
	put(dir, "v", values->data, values->len);
	check_foreign(&disk, DIR_PATH);
}

static void database(enum ocdbt_part part, const uint8_t *data, size_t n)
{
	struct shf_buf values = SHF_BUF_INIT, manifest = SHF_BUF_INIT;

	put_database(&manifest, &values, part, data, n);
	open_database(&manifest, &values);
	shf_buf_release(&manifest);
	shf_buf_release(&values);
}

/* An array whose chunks are all kinds of files. */
static void metadata(const char *name, const uint8_t *data, size_t n)
{
	struct ram_node *dir = new_dir(), *sub;
	uint8_t chunk[16] = { 1, 2, 3, 4 };

	put(dir, name, data, n);
	put(dir, "0", chunk, 8);
	put(dir, "1", chunk, 8);
	put(dir, "0.0", chunk, 16);
	put(dir, "0.1", chunk, 16);
	put(dir, "c", chunk, 4);
	sub = ram_put(&disk, dir, "e", SHF_T_DIR, NULL, 0);
	put(sub, name, data, n);
	put(sub, "1.0", chunk, 16);
	check_foreign(&disk, DIR_PATH);
}

#define META_3(codecs) "{\"chunk_grid\":{\"name\":\"regular\",\"configuration\":" \
	"{\"chunk_shape\":[4,2]}},\"chunk_key_encoding\":{\"name\":\"v2\"},\"codecs\":[" codecs \
	"],\"data_type\":\"uint16\",\"fill_value\":0,\"node_type\":\"array\"," \
	"\"shape\":[7,2],\"zarr_format\":3}"

static void chunk(const uint8_t *data, size_t n)
{
	static const char *const metas[] = { META_3("\"bytes\",\"zstd\""),
		META_3("\"bytes\",\"gzip\""), META_3("\"bytes\",\"blosc\",\"crc32c\""),
		META_3("\"bytes\",\"crc32c\",\"zstd\""),
		META_3("{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[2,2],"
		       "\"codecs\":[\"bytes\",\"zstd\"],\"index_codecs\":[\"bytes\","
		       "\"crc32c\"]}}") };
	struct ram_node *dir = new_dir();
	struct shf_buf b = SHF_BUF_INIT;

	put(dir, "zarr.json", metas[data[0] % 5], strlen(metas[data[0] % 5]));
	shf_buf_add(&b, data + 1, n - 1);
	if (data[0] % 5 == 4 && n > 32)
		shf_buf_u32(&b, crc32c(b.data + b.len - 32, 32));
	MUST(!b.oom);
	ram_put(&disk, dir, "0.0", SHF_T_FILE, b.data, b.len);
	check_foreign(&disk, DIR_PATH);
}

static void tree(const uint8_t *data, size_t n)
{
	static const char meta[] = META_3("\"bytes\"");
	struct ram_node *dir = new_dir(), *sub;

	put(dir, "_METADATA", data, n);
	sub = ram_put(&disk, dir, "a.b", SHF_T_DIR, NULL, 0);
	put(sub, "zarr.json", meta, sizeof(meta) - 1);
	put(sub, "1.0", "0123456789abcdef", 16);
	check_foreign(&disk, DIR_PATH);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int kind;

	if (size < 3)
		return 0;
	kind = data[0] % 11;
	data++;
	size--;
	if (kind < 3) {
		open_file(data, size);
	} else if (kind < 6) {
		database((enum ocdbt_part)(kind - 3), data, size);
	} else if (kind == 6) {
		struct shf_buf manifest = SHF_BUF_INIT, none = SHF_BUF_INIT;

		shf_buf_add(&manifest, data, size);
		MUST(!manifest.oom);
		open_database(&manifest, &none);
		shf_buf_release(&manifest);
	} else if (kind < 9) {
		metadata(kind == 7 ? ".zarray" : "zarr.json", data, size);
	} else if (kind == 9) {
		chunk(data, size);
	} else {
		tree(data, size);
	}
	return 0;
}
