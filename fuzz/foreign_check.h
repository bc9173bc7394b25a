/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of any checkpoint of other software that is accepted: it can be listed and read to
 * its end, and the header that is shown for it is accepted by the reader of safetensors. */
#ifndef FOREIGN_CHECK_H
#define FOREIGN_CHECK_H
#include "mem.h"
#include "ramdisk.h"

struct ram_record { const char *name; const uint8_t *bytes; size_t n, at; };
/* Appends an archive of these records as torch.save writes it, without sums: they are checked by a
 * verification alone. */
void put_archive(struct shf_buf *b, struct ram_record *r, size_t n);
/* Opens what lies at the path, checks it, and frees the disk. */
void check_foreign(struct ramdisk *disk, const char *path);
#endif
