/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles with NumPy arrays, as paddle.save writes them. The bytes of an array lie in the pickle,
 * at a multiple of 8. */
#ifndef SHF_PADDLE_WRITE_H
#define SHF_PADDLE_WRITE_H
#include "layout.h"
#include "pickle_write.h"

struct shf_paddle_out {
	struct shf_pkw pickle;          /* all bytes of the file but those of tensors */
	uint64_t tensors;               /* bytes of the tensors that are placed */
};
const char *shf_paddle_name(int32_t dtype);     /* as Paddle has it; NULL: it has no such type */
bool shf_paddle_has_type(int32_t dtype);
/* EINVAL: a tensor has one of the names that paddle.load does not take for the name of a tensor. */
int shf_paddle_check_names(const struct shf_layout *l, struct sheaf_error *err);
void shf_paddle_begin(struct shf_paddle_out *p);
/* Puts the array of a tensor, and sets the offset of its bytes, which are not in the pickle. */
void shf_paddle_put_tensor(struct shf_paddle_out *p, struct shf_lt_tensor *t);
/* Puts an array that has one number. */
void shf_paddle_put_float(struct shf_paddle_out *p, float x);
/* Ends the pickle, and gives its bytes to *out. Returns how many bytes the file has. */
uint64_t shf_paddle_end(struct shf_paddle_out *p, struct shf_buf *out);
#endif
