/* SPDX-License-Identifier: Apache-2.0 */
/* The database OCDBT. The first byte, modulo 3, says what the rest of the input is:
 * 0: the body of the manifest, which gets its header and its checksum;
 * 1: the body of the root, in the file with the values;
 * 2: the body of a leaf below a sound root.
 * The keys of a database that is accepted ascend, and its values lie within their files. */
#include "ocdbt_file.h"

static struct ramdisk disk;

static void check_keys(const struct shf_foreign *f, const struct shf_buf *keys)
{
	const struct shf_kv *kv = (const void *)keys->data;

	for (size_t i = 0; i < keys->len / sizeof(*kv); i++) {
		const struct shf_foreign_file *file = shf_foreign_file(f, kv[i].file);

		MUST(i == 0 || strcmp(kv[i - 1].key, kv[i].key) < 0);
		MUST(kv[i].file < shf_foreign_files(f));
		MUST(kv[i].here || (kv[i].at <= file->bytes &&
		                    kv[i].bytes <= file->bytes - kv[i].at));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shf_buf manifest = SHF_BUF_INIT, values = SHF_BUF_INIT, keys = SHF_BUF_INIT;
	struct sheaf_error err = { .msg = "" };
	struct shf_arena arena = { 0 };
	struct shf_listing names = { .arena = &arena };
	struct shf_foreign *f = NULL;
	int rc;

	if (size < 2)
		return 0;
	put_database(&manifest, &values, (enum ocdbt_part)(data[0] % 3), data + 1, size - 1);
	ramdisk_init(&disk);
	ram_put(&disk, NULL, "manifest.ocdbt", SHF_T_FILE, manifest.data, manifest.len);
	ram_put(&disk, NULL, "v", SHF_T_FILE, values.data, values.len);
	rc = shf_foreign_new(&f, &disk.sys, "d", &err);
	MUST(rc == 0);
	f->dir = shf_sys_open(&disk.sys, SHF_CWD, ".", SHF_O_DIR, 0);
	rc = shf_listing_read(&names, &arena, &disk.sys, f->dir, "d", &err);
	MUST(rc == 0);
	rc = shf_ocdbt_read(f, NULL, &names, &arena, &keys, &err);
	MUST(rc == 0 || (rc == SHEAF_EFORMAT && err.msg[0]));
	if (rc == 0)
		check_keys(f, &keys);
	shf_buf_release(&keys);
	shf_buf_release(&names.a);
	shf_foreign_free(f);
	shf_arena_release(&arena);
	MUST(disk.open_n == 0);
	ramdisk_release(&disk);
	return 0;
}
