/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the files that a model of Hugging Face is divided into: <stem>-<k>-of-<n><tail>, with k
 * from 1 to n, such as model-00002-of-00005.safetensors. Lists of names are sorted by strcmp. */
#ifndef SHF_SHARDS_H
#define SHF_SHARDS_H
#include "index.h"

struct shf_shard { int stem; unsigned k, n; };  /* stem: its length */
/* Splits a name of this form into *s. Returns false for any other name. */
bool shf_shard_of(struct shf_shard *s, const char *name, const char *tail);
/* `name` is a shard of a model. Returns whether another shard of that model is missing from the
 * list, and copies the name of a missing one to `want`. Only the neighbours of `name` in the list
 * are looked at, so the caller must ask for each shard in the list. */
bool shf_shard_is_missing(char *const *names, size_t n, const char *name, const char *tail,
                          char want[300]);
/* Returns whether a directory has the file `whole`, a model in one file, and the index names other
 * files but not `whole`. One of the two is then from an earlier save. Hugging Face's transformers
 * reads `whole`, so the caller must ignore the index. */
bool shf_shards_are_beside(const struct shf_index *index, const char *whole, char *const *names,
                           size_t n);
/* Lists the files of a model by its index, each once: those that it names, and other shards of the
 * same model, which it may have left out. out: gets const char *, which are of `names`. Returns 0,
 * or -ENOMEM; *missing: a file that the index names and `names` lacks, or NULL. */
int shf_shards_of_index(struct shf_buf *out, const struct shf_index *index, char *const *names,
                        size_t n, const char *tail, const char **missing);
#endif
