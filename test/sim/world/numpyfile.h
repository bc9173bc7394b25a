/* SPDX-License-Identifier: Apache-2.0 */
/* Makes files as numpy.save and numpy.savez write them, with values of hands.h. Shares no code with
 * lib/foreign. */
#ifndef NUMPYFILE_H
#define NUMPYFILE_H
#include "torchfile.h"

/* Returns a file .npy with this header, and these bytes of items. */
struct torch_bytes npy_of(const char *header, struct torch_bytes items);
/* Returns one with the values of a tensor. fortran: its first dimension is the one that lies in a
 * row; t->stride is not looked at. */
struct torch_bytes npy_file(const struct torch_tensor *t, bool fortran);
/* Returns an archive .npz of these tensors, each second one in the order of Fortran. deflated: they
 * are compressed. */
struct torch_bytes npz_file(const struct torch_tensor *t, int n, bool deflated);
#endif
