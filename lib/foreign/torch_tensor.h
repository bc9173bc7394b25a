/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a pickle that torch makes tensors of, read as descriptions of tensors. */
#ifndef SHF_TORCH_TENSOR_H
#define SHF_TORCH_TENSOR_H
#include "pickle_walk.h"

struct shf_torch_tensor {
	const struct shf_pk *key;       /* key of its storage, a STR */
	uint64_t storage_bytes;         /* what the pickle says of the storage */
	uint32_t storage_item;          /* bytes of an item of its class; 1: it has no type */
	int64_t view_at;                /* legacy files: where in the storage of that key its own
	                                 * storage begins, in bytes */
	int32_t dtype;                  /* enum sheaf_dtype; of one part of a complex number that
	                                 * is stored as two */
	bool pair;                      /* complex numbers that have no type in safetensors: the
	                                 * tensor has one more dimension, of 2 */
	bool conj, neg;                 /* the values are the conjugates, or the negatives, of what
	                                 * is stored */
	int64_t at;                     /* first item, counted from the start of the storage */
	int32_t ndim;                   /* without the dimension of `pair` */
	const struct shf_pk *dims, *strides;    /* TUPLEs of ndim INTs >= 0 */
};
/* Returns whether v is a tensor, and describes it in *t. SHF_TENSOR_UNREAD: it is one that is not
 * read, and *why says why. Nothing is said yet of whether it lies within its storage. */
enum shf_tensor_kind shf_torch_tensor_of(struct shf_torch_tensor *t, const struct shf_pk *v,
                                        const char **why);
/* If v is a DTensor, a tensor on a mesh of ranks, returns the tensor with the part of the rank that
 * wrote it. Otherwise returns v. */
const struct shf_pk *shf_torch_local_of(const struct shf_pk *v);
/* Returns whether v is a PERSID of a storage; *key is its key, *item the bytes of an item of it. */
bool shf_torch_storage(const struct shf_pk *v, const struct shf_pk **key, uint32_t *item);
/* Returns the number of bytes of an item of the storage: for a complex one of both parts. */
uint32_t shf_torch_item_bytes(const struct shf_torch_tensor *t);
/* Sets dtype and pair by the record of a torch dtype. Returns false if that is not a dtype, or has
 * no type here. */
bool shf_torch_dtype(const struct shf_pk *v, int32_t *dtype, bool *pair);
/* Returns the name of a type in module torch, or NULL if torch has no such type; and sets *storage
 * to that of its class of storages, or NULL if it has none. Both are static. */
const char *shf_torch_type_name(int32_t dtype, const char **storage);
/* Returns the items of a torch.Size, a TUPLE, or NULL. */
const struct shf_pk *shf_torch_size(const struct shf_pk *v);
#endif
