/* SPDX-License-Identifier: Apache-2.0 */
/* The order of samples, without a state: position p of a run is item p mod n of epoch p / n. */
#ifndef SAMPLEORDER_H
#define SAMPLEORDER_H
#include <stdint.h>

/* Returns the number of the sample at a position of the run, if there are n samples. Each epoch has
 * a permutation of its own, or the order of the file if shuffle is 0. */
int64_t tr_sample_at(uint64_t seed, int shuffle, int64_t n, int64_t position);
/* Returns how many positions so many epochs of n samples have, but at most INT64_MAX. */
int64_t tr_epochs_positions(int64_t epochs, int64_t n);
#endif
