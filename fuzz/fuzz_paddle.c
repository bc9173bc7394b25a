/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of Paddle. The first byte, modulo 6, says what the rest of the input is:
 * 0: a paddle.save file;
 * 1: the metadata of a flex checkpoint with one file;
 * 2: the file of a flex checkpoint whose metadata are sound;
 * 3: the index of the states of a unified checkpoint;
 * 4: model_meta.json, beside a sound file of states;
 * 5: the header of a file of states that one rank wrote.
 * An input that is accepted can be listed and read to its end. */
#include "foreign_check.h"
#include "fuzz.h"
#include "mem.h"

#define FILE_PATH "f.pdparams"
#define DIR_PATH "d"

static struct ramdisk disk;

/* An array of F32 with these dimensions: pairs of opcode and number. */
#define ARRAY(dims, close, bytes, n) "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" \
	"K\0\x85" "C\1btR(K\1" dims close "cnumpy\ndtype\n(X\2\0\0\0f4\x89\x88tR(K\3X\1\0\0\0<NNN" \
	"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89" "C" n bytes "tb"
#define BYTES_24 "012345678901234567890123"

static struct ram_node *new_dir(void)
{
	ramdisk_init(&disk);
	return ram_put(&disk, NULL, DIR_PATH, SHF_T_DIR, NULL, 0);
}

/* dir NULL: the root. */
static void put(struct ram_node *dir, const char *name, const void *bytes, size_t n)
{
	ram_file(&disk, dir, name, bytes, n);
}

static void put_st(struct ram_node *dir, const char *name, const void *header, size_t n,
                   size_t payload)
{
	struct shf_buf file = SHF_BUF_INIT;

	shf_buf_u64(&file, n);
	shf_buf_add(&file, header, n);
	shf_buf_extend(&file, payload);
	MUST(!file.oom);
	ram_put(&disk, dir, name, SHF_T_FILE, file.data, file.len);
}

/* The file has "a" of 2 x 3 items, and "b" of 6. */
static void flex(const uint8_t *data, size_t n, bool metadata)
{
	static const char file[] = "\x80\4}(X\1\0\0\0a" ARRAY("K\2K\3\x86", "", BYTES_24, "\x18")
		"X\1\0\0\0b" ARRAY("K\6\x85", "", BYTES_24, "\x18") "u.";
	static const char meta[] = "\x80\4" "cpaddle.distributed.flex_checkpoint.dcp.metadata\n"
		"Metadata\n)\x81}(X\x13\0\0\0state_dict_metadata}X\1\0\0\0a](cpaddle.distributed."
		"flex_checkpoint.dcp.metadata\nLocalTensorMetadata\n)\x81}(X\x0d\0\0\0"
		"global_offsetK\0K\0\x86X\x0b\0\0\0local_shapeK\2K\3\x86X\5\0\0\0dtypeX\7\0\0\0"
		"float32ubesX\x10\0\0\0storage_metadata}(cpaddle.distributed.flex_checkpoint.dcp."
		"metadata\nLocalTensorIndex\n)\x81}(X\x0a\0\0\0tensor_keyX\1\0\0\0aX\x0d\0\0\0"
		"global_offsetK\0K\0\x86ubX\x0a\0\0\0" "0_0.distcpuub.";
	struct ram_node *dir = new_dir();

	put(dir, "0.metadata", metadata ? data : (const void *)meta,
	    metadata ? n : sizeof(meta) - 1);
	put(dir, "0_0.distcp", metadata ? (const void *)file : data,
	    metadata ? sizeof(file) - 1 : n);
	check_foreign(&disk, DIR_PATH);
}

static void unified(const uint8_t *data, size_t n, bool index)
{
	static const char model[] = "{\"__metadata__\":{\"format\":\"np\"},\"w\":{\"dtype\":"
		"\"U16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}";
	static const char state[] = "{\"w/moment1_0\":{\"dtype\":\"F32\",\"shape\":[2,3],"
		"\"data_offsets\":[0,24]}}";
	static const char done[] = "{\"world_size\":1}";
	struct ram_node *dir = new_dir();

	put_st(dir, "model-00001-of-00001.safetensors", model, sizeof(model) - 1, 12);
	if (index) {
		put(dir, "optimizer.safetensors.index.json", data, n);
		put_st(dir, "optimizer-00001-of-00001.safetensors", state, sizeof(state) - 1, 24);
		put(dir, "async_save_info.json", done, sizeof(done) - 1);
	} else {
		put_st(dir, "optimizer.shard00.safetensors", data, n, 24);
	}
	check_foreign(&disk, DIR_PATH);
}

static void sharding(const uint8_t *data, size_t n)
{
	static const char file[] = "\x80\4}(X\x11\0\0\0linear_0_moment1_0" ARRAY("K\6\x85", "",
		BYTES_24, "\x18") "X\x0e\0\0\0master_weights}X\x08\0\0\0linear_0" ARRAY("K\6\x85",
		"", BYTES_24, "\x18") "su.";
	struct ram_node *dir = new_dir();

	put(dir, "model_meta.json", data, n);
	put(dir, "optimizer.shard00.pdopt", file, sizeof(file) - 1);
	check_foreign(&disk, DIR_PATH);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t kind = size ? data[0] % 6 : 0;

	if (size < 2)
		return 0;
	data++;
	size--;
	if (kind == 0) {
		ramdisk_init(&disk);
		put(NULL, FILE_PATH, data, size);
		check_foreign(&disk, FILE_PATH);
	} else if (kind < 3) {
		flex(data, size, kind == 1);
	} else if (kind == 4) {
		sharding(data, size);
	} else {
		unified(data, size, kind == 3);
	}
	return 0;
}
