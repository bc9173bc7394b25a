/* SPDX-License-Identifier: Apache-2.0 */
/* Which planted bug is awake. In builds with -Dmutants=true alone: each planted source begins by
 * including this. Written to once, before main. */
#ifndef MUTANT_H
#define MUTANT_H
#include "mutant_names.h" /* made by plant */

extern int shf_mutant;
#define MUTANT(name) ((_Bool)__builtin_expect(shf_mutant == MUTANT_##name, 0))
#endif
