/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of JSON in a checkpoint, whose values are no tensors. */
#ifndef SHF_FOREIGN_JSON_H
#define SHF_FOREIGN_JSON_H
#include "foreign.h"

/* Notes the numbers and texts at the top of a JSON object, as <prefix>.<key>. A file of another
 * form is noted, and not refused: no tensor depends on it. folder: as for shf_foreign_slurp. */
int shf_foreign_json_notes(struct shf_foreign *f, const char *folder, const char *file,
                           const char *prefix, struct sheaf_error *err);
#endif
