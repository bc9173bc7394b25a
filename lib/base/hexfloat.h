/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as C hex floats: text that keeps every bit, with a point that no locale changes. */
#ifndef SHF_HEXFLOAT_H
#define SHF_HEXFLOAT_H
#include <stdbool.h>

#define SHF_HEXFLOAT 32         /* bytes, with the NUL */
/* Writes a finite number: "0x1.ffcb923a29c78p-1", "-0x1p+3", "0x0p+0". */
void shf_hexfloat_put(char text[SHF_HEXFLOAT], double v);
/* Reads a text that shf_hexfloat_put() writes for some number; false: any other text. */
bool shf_hexfloat_get(double *v, const char *text);
#endif
