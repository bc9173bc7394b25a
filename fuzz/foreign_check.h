/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of any checkpoint of other software that is accepted: it can be listed and read to
 * its end, and the header that is shown for it is accepted by the reader of safetensors. */
#ifndef FOREIGN_CHECK_H
#define FOREIGN_CHECK_H
#include "ramdisk.h"

/* Opens what lies at the path, checks it, and frees the disk. */
void check_foreign(struct ramdisk *disk, const char *path);
#endif
