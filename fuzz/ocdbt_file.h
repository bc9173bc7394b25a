/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a small database OCDBT, a part of which is an input. */
#ifndef OCDBT_FILE_H
#define OCDBT_FILE_H
#include "fuzz.h"
#include "ocdbt.h"
#include "ramdisk.h"

enum ocdbt_part { OCDBT_MANIFEST, OCDBT_ROOT, OCDBT_LEAF };
/* Fills in the manifest and the data file "v". The n bytes are the body of that part; the other
 * parts are sound. The leaf that is sound has the metadata of an array "a" of Zarr, and its
 * chunk. */
void put_database(struct shf_buf *manifest, struct shf_buf *values, enum ocdbt_part part,
                  const uint8_t *data, size_t n);
#endif
