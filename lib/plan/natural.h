/* SPDX-License-Identifier: Apache-2.0 */
/* Natural order of names: layer 9 before layer 10. */
#ifndef SHF_NATURAL_H
#define SHF_NATURAL_H

/* Natural order of names: maximal runs of ASCII digits and of other bytes; a digit run sorts
 * before a non-digit run; digit runs by value (any length); other runs by bytes; then fewer
 * leading zeros, then bytes. A total order: 0 only for equal strings. */
int shf_natural(const char *a, const char *b);
#endif
