/* SPDX-License-Identifier: Apache-2.0 */
/* Makes files as paddle.save writes them, with values of hands.h, and invalid ones. Shares no code
 * with lib/foreign. */
#ifndef PADDLEFILE_H
#define PADDLEFILE_H
#include "torchfile.h"

enum paddle_flaw {              /* how the file is written, and its errors */
	PADDLE_SOUND,                   /* protocol 4, a dictionary of arrays */
	PADDLE_TUPLES,                  /* with tuples of a name and an array instead */
	PADDLE_TEXT,                    /* protocol 2, which writes bytes as text */
	PADDLE_FORTRAN,                 /* items along the first dimension are contiguous */
	PADDLE_STATIC,                  /* eval("data", {"data": array}) instead of an array */
	/* from here on: errors in each array */
	PADDLE_SHORT, PADDLE_LONG, PADDLE_NEGATIVE, PADDLE_HUGE, PADDLE_BIG_ENDIAN,
	PADDLE_OBJECTS, PADDLE_NO_STATE, PADDLE_MATRIX, PADDLE_STRUCTURED, PADDLE_BAD_TEXT,
	PADDLE_WIDE_TEXT, PADDLE_LIST_SHAPE,
	PADDLE_EVAL                     /* eval("os", {"data": array}) */
};
/* Appends the pickle of an array with the values of items [from, to) of a tensor. The array has the
 * shape of the tensor, or one dimension if these are not all of its items. */
void paddle_array(struct torch_bytes *b, const char *family, const struct torch_tensor *t,
                  int64_t from, int64_t to, enum paddle_flaw flaw);
/* Returns a file with a dictionary of these tensors. Their strides and places are not used. */
struct torch_bytes paddle_file(const struct torch_tensor *t, int n, enum paddle_flaw flaw);
#endif
