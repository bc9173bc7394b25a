/* SPDX-License-Identifier: Apache-2.0 */
/* Makes files as numpy.save and numpy.savez write them, with values of hands.h. Shares no code with
 * lib/foreign. */
#ifndef NUMPYFILE_H
#define NUMPYFILE_H
#include "torchfile.h"

/* Returns a .npy file with this header and these item bytes. */
struct torch_bytes npy_of(const char *header, struct torch_bytes items);
/* Returns a .npy file with the values of a tensor. fortran: items along its first dimension are
 * contiguous. t->stride is not used. */
struct torch_bytes npy_file(const struct torch_tensor *t, bool fortran);
/* Returns a .npz archive of these tensors, every second one in Fortran order. deflated: they are
 * compressed. */
struct torch_bytes npz_file(const struct torch_tensor *t, int n, bool deflated);
#endif
