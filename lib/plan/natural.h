/* SPDX-License-Identifier: Apache-2.0 */
/* Natural order of names: layer 9 before layer 10. */
#ifndef SHF_NATURAL_H
#define SHF_NATURAL_H

/* Compares two names in natural order. Names are split into maximal runs of ASCII digits and of
 * other bytes. A run of digits comes before any other run. Runs of digits compare by value, of any
 * length; other runs by bytes. Names that are equal by these rules compare by the number of leading
 * zeros, fewer first, then by bytes. The order is total: 0 only for equal strings. */
int shf_natural(const char *a, const char *b);
#endif
