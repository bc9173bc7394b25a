/* SPDX-License-Identifier: Apache-2.0 */
/* A run, a step or a Hugging Face directory as an input of a fuzzer describes it: one of a few
 * small sound ones, and bends. A bend of 8 bytes says what it is done to, with which of what, and
 * how:
 *
 *   u8 what, u8 which, u8 part, u8 how, u32 value
 *
 * They act from the inside out: tensors, headers, tables, manifest, files, directory; and after
 * each layer everything around it is made to agree with it again (sums, sizes, self), unless a
 * bend says not to. So what a reader meets is mostly damage that no checksum tells.
 */
#ifndef WORLD_H
#define WORLD_H
#include "mem.h"
#include "ramdisk.h"
#include "sheaf.h"

enum world_bend {
	BEND_DTYPE, BEND_DIM, BEND_NDIM, BEND_NAME, BEND_OFFSET, BEND_BYTES, BEND_FILE_OF,
	BEND_HEADER_BYTE, BEND_HEADER_TEXT, BEND_HEADER_CUT, BEND_HEADER_N, BEND_DATA,
	BEND_SUMS_HEAD, BEND_SUMS_FILE, BEND_SUMS_TENSOR, BEND_SUMS_BYTE, BEND_SUMS_LOOSE,
	BEND_FAMILY, BEND_MF_FILE, BEND_MF_NAME, BEND_TIE, BEND_STEP,
	BEND_MF_BYTE, BEND_MF_TEXT, BEND_MF_CUT, BEND_MF_LOOSE,
	BEND_INDEX_BYTE, BEND_INDEX_TEXT, BEND_INDEX_CUT,
	BEND_GONE, BEND_DIRECTORY, BEND_LINK, BEND_OTHER, BEND_REFUSED, BEND_BROKEN, BEND_CHANGES,
	BEND_SIZE, BEND_RENAMED, BEND_EXTRA, BEND_FILE_BYTE,
	BEND_DOT_BYTE, BEND_DOT_TEXT, BEND_SUMS_LONG, BEND_KINDS
};
enum { WORLD_BENDS = 48, WORLD_TENSORS = 12, WORLD_FILES = 5, WORLD_DIMS = 10 };
struct bend {
	uint8_t what, which, part, how;
	uint32_t value;
};
struct world_tensor {
	const char *name;
	int file, dtype, ndim;
	uint64_t dim[WORLD_DIMS];
	uint64_t off, bytes, digest;    /* off: from the start of the file's data */
};
struct world_file {
	char name[80];                  /* with the folder */
	int family;
	struct shf_buf bytes;           /* header, then data; what is not there is zeros */
	uint64_t header, size;
};
struct world {
	struct ramdisk disk;
	bool hf, dot, sound;            /* sound: nothing was bent */
	bool changes;                   /* a file is not what it was a moment ago */
	uint8_t use;                    /* of the input: how it is to be loaded */
	struct bend bends[WORLD_BENDS];
	int bends_n;
	struct world_tensor tensors[WORLD_TENSORS];
	int tensors_n;
	struct world_file files[WORLD_FILES];
	int files_n, families_n;
	struct shf_buf sums, index[3];          /* index: by family */
	uint64_t sums_crc, sums_size;
	uint64_t input;                 /* bytes of all files, as long as they say, up to a bound */
};

/* false: the input describes nothing. */
bool world_make(struct world *w, const uint8_t *data, size_t size);
void world_release(struct world *w);
#endif
