/* SPDX-License-Identifier: Apache-2.0 */
/* One archive of torch.save: a zip archive with a pickle, and a record for each storage. */
#ifndef SHF_TORCH_ZIP_H
#define SHF_TORCH_ZIP_H
#include "foreign.h"
#include "torch_tensor.h"
#include "zip.h"

struct shf_torch_zip {
	struct shf_region region;
	struct shf_zip zip;
	struct shf_buf prefix;          /* owned; of the names of all records, with the slash */
	struct shf_buf bytes;           /* owned; of the pickle */
	struct shf_pickle pickle;
	struct shf_arena arena;
};
/* Returns the record with the pickle: <prefix>/data.pkl. NULL: it is no archive of torch.save. */
const struct shf_zip_record *shf_torch_zip_pickle(const struct shf_zip *zip);
/* Opens the archive that fills the region, and reads its pickle. The caller releases *z after a
 * failure, too. */
int shf_torch_zip_open(struct shf_torch_zip *z, const struct shf_region *r,
                       struct sheaf_error *err);
void shf_torch_zip_release(struct shf_torch_zip *z);
/* Finds out where the items of a tensor are: *at, in the region; strides in bytes for the ndim
 * dimensions of *t, and one more if it is a pair. EFORMAT: they are not all in its storage. name:
 * of the tensor, for sentences. */
int shf_torch_zip_place(const struct shf_torch_zip *z, const struct shf_torch_tensor *t,
                        const char *name, uint64_t *at, int64_t *stride, struct sheaf_error *err);
#endif
