/* SPDX-License-Identifier: Apache-2.0 */
/* A torch.save file, or a directory of DCP. The first byte, modulo 6, says what the rest of the
 * input is:
 * 0: the file;
 * 1: the pickle of a sound archive with storages "0" and "1";
 * 2: a legacy file without its magic number;
 * 3: the metadata of a directory of DCP with one file;
 * 4: the header of a safetensors file, beside which lies one with rows 2 and 3 of "w";
 * 5: metadata.pkl of a directory of torch_checkpointing with files m_0.pt and m_1.pt.
 * An input that is accepted can be listed and read to its end, and the header that is shown for it
 * is accepted by the reader of safetensors. */
#include "foreign_check.h"
#include "fuzz.h"
#include "pickle.h"

#define FILE_PATH "f.pt"
#define DIR_PATH "d"

static struct ramdisk disk;

/* A tensor of 2 x 3 F32 in storage "0". */
#define TENSOR "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storage" \
	"ctorch\nFloatStorage\nX\1\0\0\0" "0X\3\0\0\0cpuK\6tQK\0K\2K\3\x86K\3K\1\x86\x89NtR"

/* The file has three items: a tensor of 2 x 3 F32, a number, and the tensor again, in a frame of
 * zstd. */
static void open_dcp_dir(const uint8_t *metadata, size_t n, const uint8_t *data0)
{
	static const uint8_t tensor[] = "\x80\x02" TENSOR ".";
	static const uint8_t frame[] = { 0x28, 0xb5, 0x2f, 0xfd, 0, 0x50, 0x91, 0x0a, 0 };
	static const uint8_t number[] = "\x80\x02K\7.";
	struct ram_record r[] = { { "a/data.pkl", tensor, sizeof(tensor) - 1, 0 },
		{ "a/data/0", data0, 24, 0 } };
	struct ram_record s[] = { { "a/data.pkl", number, sizeof(number) - 1, 0 } };
	struct shf_buf file = SHF_BUF_INIT, second = SHF_BUF_INIT, meta = SHF_BUF_INIT;
	struct ram_node *dir;

	put_archive(&file, r, 2);
	put_archive(&second, s, 1);
	MUST(file.len == 338 && second.len == 123);    /* as seeds.py has it */
	shf_buf_add(&file, second.data, second.len);
	shf_buf_add(&file, frame, sizeof(frame));       /* one raw block of 338 bytes */
	put_archive(&file, r, 2);
	shf_buf_release(&second);
	shf_buf_add(&meta, metadata, n);
	MUST(!file.oom && !meta.oom);
	ramdisk_init(&disk);
	dir = ram_put(&disk, NULL, DIR_PATH, SHF_T_DIR, NULL, 0);
	ram_put(&disk, dir, ".metadata", SHF_T_FILE, meta.data, meta.len);
	ram_put(&disk, dir, "__0_0.distcp", SHF_T_FILE, file.data, file.len);
	check_foreign(&disk, DIR_PATH);
}

static void put_safetensors(struct ram_node *dir, const char *name, const void *header, size_t n,
                            const uint8_t *payload, size_t payload_n)
{
	struct shf_buf file = SHF_BUF_INIT;

	shf_buf_u64(&file, n);
	shf_buf_add(&file, header, n);
	shf_buf_add(&file, payload, payload_n);
	MUST(!file.oom);
	ram_put(&disk, dir, name, SHF_T_FILE, file.data, file.len);
}

static void open_hf_dir(const uint8_t *header, size_t n, const uint8_t *data0)
{
	static const char second[] = "{\"__metadata__\":{\"DCP_SHARDING_INFO\":"
		"\"{\\\"w\\\":{\\\"saved_offsets\\\":[2,0]}}\"},\"w\":{\"dtype\":\"F32\","
		"\"shape\":[2,3],\"data_offsets\":[0,24]}}";
	struct ram_node *dir;

	ramdisk_init(&disk);
	dir = ram_put(&disk, NULL, DIR_PATH, SHF_T_DIR, NULL, 0);
	put_safetensors(dir, "a.safetensors", header, n, data0, 24);
	put_safetensors(dir, "b.safetensors", second, sizeof(second) - 1, data0, 24);
	check_foreign(&disk, DIR_PATH);
}

/* Both files have a tensor "w". */
static void open_ckpt_dir(const uint8_t *metadata, size_t n, const uint8_t *data0)
{
	static const uint8_t values[] = "\x80\x02}X\1\0\0\0w" TENSOR "s.";
	struct ram_record r[] = { { "a/data.pkl", values, sizeof(values) - 1, 0 },
		{ "a/data/0", data0, 24, 0 } };
	struct shf_buf meta = SHF_BUF_INIT;
	struct ram_node *dir;

	ramdisk_init(&disk);
	dir = ram_put(&disk, NULL, DIR_PATH, SHF_T_DIR, NULL, 0);
	shf_buf_add(&meta, metadata, n);
	MUST(!meta.oom);
	ram_put(&disk, dir, "metadata.pkl", SHF_T_FILE, meta.data, meta.len);
	for (int i = 0; i < 2; i++) {
		struct shf_buf file = SHF_BUF_INIT;

		put_archive(&file, r, 2);
		MUST(!file.oom);
		ram_put(&disk, dir, i ? "m_1.pt" : "m_0.pt", SHF_T_FILE, file.data, file.len);
	}
	check_foreign(&disk, DIR_PATH);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t magic[] = "\x80\x02\x8a\nl\xfc\x9c" "F\xf9 "
								 "j\xa8P\x19.\x80\x02M\xe9\x03.";
	struct shf_buf b = SHF_BUF_INIT;
	uint8_t data0[256];

	if (size < 2)
		return 0;
	memset(data0, 7, sizeof(data0));
	if (data[0] % 6 == 5) {
		open_ckpt_dir(data + 1, size - 1, data0);
		return 0;
	}
	if (data[0] % 6 == 4) {
		open_hf_dir(data + 1, size - 1, data0);
		return 0;
	}
	if (data[0] % 6 == 3) {
		open_dcp_dir(data + 1, size - 1, data0);
		return 0;
	}
	if (data[0] % 6 == 1) {
		struct ram_record r[] = { { "a/data.pkl", data + 1, size - 1, 0 },
			{ "a/data/0", data0, 64, 0 }, { "a/data/1", data0, 256, 0 },
			{ "a/byteorder", (const uint8_t *)"little", 6, 0 } };

		put_archive(&b, r, sizeof(r) / sizeof(r[0]));
	} else {
		if (data[0] % 6 == 2)
			shf_buf_add(&b, magic, sizeof(magic) - 1);
		shf_buf_add(&b, data + 1, size - 1);
	}
	MUST(!b.oom);
	ramdisk_init(&disk);
	ram_put(&disk, NULL, FILE_PATH, SHF_T_FILE, b.data, b.len);
	check_foreign(&disk, FILE_PATH);
	return 0;
}
