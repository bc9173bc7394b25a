/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-inspect.h - what a checkpoint contains: tensors, notes, averages and attached files;
 * reading a single tensor; verifying. The rules at the head of sheaf.h apply to these calls,
 * too. */
#ifndef SHEAF_INSPECT_H
#define SHEAF_INSPECT_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Opens anything that sheaf can read, by its path: a checkpoint, a Hugging Face directory, one
 * safetensors file, a torch.save, paddle.save, NumPy or GGUF file, a directory of
 * torch.distributed.checkpoint, or a checkpoint of DeepSpeed, Megatron or Orbax, or of a trainer
 * with Hugging Face, Lightning or Paddle (doc/formats.md). Nothing in them is executed. Checkpoints
 * of other programs have no digests, and reports say so.
 * checkpoint  receives the checkpoint. Close it with sheaf_checkpoint_close.
 * path        the directory or file.
 * group       the ranks; NULL: this process alone.
 * opts        as for sheaf_run_open; NULL: defaults.
 * ENOENT: there is nothing at that path.
 * EFORMAT: sheaf cannot read what is there.
 * [collective] */
int  sheaf_checkpoint_open_path(struct sheaf_checkpoint **checkpoint, const char *path,
                                struct sheaf_group *group,
                                const struct sheaf_opts *opts, struct sheaf_error *err);
/* How sheaf_checkpoint_map shows a checkpoint. 0 in a field is its default. */
struct sheaf_map {
	uint32_t size;
	const char *file;               /* path of the map, a text in the language of
	                                 * doc/mapping.md */
	const char *to;                 /* the side of the map to produce; NULL: the right one. The
	                                 * checkpoint has the other side */
	const char *const *set;         /* texts NAME=NUMBER, ended by NULL: arguments of the map,
	                                 * and values that replace those of config.json; NULL:
	                                 * none */
	const char *config;             /* path of a config.json; NULL: the one that is attached to
	                                 * the checkpoint or lies beside it. If the checkpoint has
	                                 * none, an export or import of the result copies it */
	const char *family;             /* only tensors of this family are mapped; NULL: all */
	const char *prefix;             /* only tensors whose names begin with this are mapped, and
	                                 * it is removed before the map is applied; NULL: all */
	uint64_t memory_bytes;          /* memory limit for parts of tensors whose items are
	                                 * reordered; 0: 128 MiB. With less than 16 MiB they are
	                                 * read in smaller parts, which takes longer */
};
/* Shows a checkpoint under the names and in the shapes of another program, as a map says. Call it
 * to read, compare, load, export or import a checkpoint as if that program had written it. The map
 * is checked to be bijective, and a rule must match every tensor of the checkpoint. Nothing is
 * copied: reads of the result read what they need of the checkpoint, and compare its checksums if
 * it has any. State of the optimizer is mapped like the weights that it belongs to. If the map
 * leaves out padding, the note map.padding_left_out says how many items.
 * mapped      receives the result, which has no checksums of its own. Close it with
 *             sheaf_checkpoint_close.
 * checkpoint  the checkpoint, opened by this process alone. It may be closed before the result.
 * how         the map and its arguments.
 * EINVAL: the map is not right, or does not fit config.json; the message names its line. Or
 *         several ranks opened the checkpoint together. Or the map moves state of how.family to
 *         another family, other than state that lies in family model.
 * ENOENT: there is no such file.
 * EFORMAT: config.json is not JSON.
 * ELAYOUT: the map does not fit the checkpoint: a tensor is missing or has another shape, or no
 *         rule matches it.
 * ECORRUPT: the checkpoint is damaged.
 * [local] */
int  sheaf_checkpoint_map(struct sheaf_checkpoint **mapped, struct sheaf_checkpoint *checkpoint,
                          const struct sheaf_map *how, struct sheaf_error *err);
/* General information about a checkpoint. Strings are valid until it is closed; "" means
 * unknown. */
struct sheaf_checkpoint_info {
	uint32_t size;
	int32_t ranks;                  /* number of ranks that saved it; 0: unknown */
	int64_t step;                   /* its number; -1: unknown */
	int64_t parent;                 /* number of the checkpoint that the training had loaded or
	                                 * saved before it; -1: unknown or none */
	const char *format;             /* "sheaf", "hf" (Hugging Face), "safetensors", or of other
	                                 * programs: "torch.save", "torch.save (legacy)",
	                                 * "torch.save (hf)", "torch.dcp",
	                                 * "torch.dcp (safetensors)", "torch.checkpointing",
	                                 * "paddle.save",
	                                 * "paddle.unified", "paddle.sharding_io", "paddle.flex",
	                                 * "deepspeed", "megatron.torch_dist", "megatron.torch",
	                                 * "hf.trainer", "lightning", "orbax", "zarr", "npy", "npz",
	                                 * "gguf";
	                                 * "map": a result of sheaf_checkpoint_map */
	const char *path;               /* its directory or file */
	const char *session;            /* session of its save */
	const char *run;                /* id of the run that it was saved to */
	const char *created;            /* when it was saved, as 2026-01-31T12:00:00Z */
	const char *writer;             /* version of the sheaf that wrote it */
	const char *commit;             /* source revision of that sheaf */
	const char *compiler;           /* compiler of that sheaf */
	uint64_t bytes;                 /* total size of its tensors, each counted once */
	uint64_t tensors;               /* number of tensors */
	uint64_t files;                 /* number of tensor files */
	const char *evidence;           /* what the format was recognised by */
};
/* Fills *info with general information about a checkpoint. [local] */
int  sheaf_checkpoint_get_info(struct sheaf_checkpoint *checkpoint,
                               struct sheaf_checkpoint_info *info, struct sheaf_error *err);
/* A tensor of a checkpoint. Strings are valid until the checkpoint is closed. */
struct sheaf_tensor {
	uint32_t size;
	int32_t dtype;                  /* enum sheaf_dtype */
	int32_t ndim;                   /* number of dimensions */
	int32_t verified;               /* 1: there are a digest and block checksums for it */
	const char *family;             /* its family */
	const char *name;               /* its name */
	const char *file;               /* path of its file, relative to the checkpoint */
	const char *tied_to;            /* NULL, or the tensor under whose name its bytes are */
	int64_t shape[SHEAF_DIMS_MAX];  /* its shape */
	uint64_t offset;                /* where its bytes begin in the file; UINT64_MAX: they are
	                                 * not contiguous there */
	uint64_t bytes;                 /* its size */
	uint64_t digest;                /* checksum of all its bytes */
	/* NULL, except for a tensor of another program with more than SHEAF_DIMS_MAX dimensions.
	 * Then shape is 0, and dims has all ndim sizes, or is NULL if there are more than 64.
	 * sheaf_checkpoint_read reads such a tensor as bytes: U8 with one dimension. */
	const int64_t *dims;
};
/* Fills *tensor with tensor i of a checkpoint, counted from 0. Tensors are sorted by family, then
 * by name in natural order. EEND if there is no tensor i. [local] */
int  sheaf_checkpoint_tensor(struct sheaf_checkpoint *checkpoint, size_t i,
                             struct sheaf_tensor *tensor, struct sheaf_error *err);
/* Fills *tensor with the tensor of that name. family NULL: "model". ELAYOUT if it is absent.
 * [local] */
int  sheaf_checkpoint_find(struct sheaf_checkpoint *checkpoint, const char *family,
                           const char *name, struct sheaf_tensor *tensor, struct sheaf_error *err);
/* Sets *key and *value to those of note i, counted from 0 in order of keys. They are valid until
 * the checkpoint is closed. EEND if there is no note i. [local] */
int  sheaf_checkpoint_note_at(struct sheaf_checkpoint *checkpoint, size_t i, const char **key,
                              const char **value, struct sheaf_error *err);
/* Moving averages that a checkpoint has. Strings are valid until it is closed. */
struct sheaf_ema_info {
	uint32_t size;
	uint32_t reserved;
	const char *name;               /* family of the averages */
	const char *of;                 /* family that is averaged; NULL: as in sheaf_state_ema */
	double coef;                    /* decay, as in sheaf_ema */
	int64_t interval;               /* as in sheaf_ema */
	int64_t updates;                /* number of updates so far */
};
/* Fills *info with the i-th averages of a checkpoint, counted from 0. EEND if there are none.
 * [local] */
int  sheaf_checkpoint_ema_at(struct sheaf_checkpoint *checkpoint, size_t i,
                             struct sheaf_ema_info *info, struct sheaf_error *err);
/* Sets *file and *bytes to the name and the size of attached file i, counted from 0. In a directory
 * of another program these are the plain files beside the weights. EEND past the last file.
 * [local] */
int  sheaf_checkpoint_file_at(struct sheaf_checkpoint *checkpoint, size_t i, const char **file,
                              uint64_t *bytes, struct sheaf_error *err);
/* Reads an attached file and compares it with its checksum. *bytes and *n receive its contents and
 * size, valid until the checkpoint is closed. [local] */
int  sheaf_checkpoint_file(struct sheaf_checkpoint *checkpoint, const char *file,
                           const void **bytes, size_t *n, struct sheaf_error *err);
/* What is wrong with a checkpoint, see sheaf_finding. */
enum sheaf_finding_kind {
	SHEAF_FINDING_CHECKSUM = 1,     /* a block does not match its checksum */
	SHEAF_FINDING_DIGEST = 2,       /* a tensor does not match its digest */
	SHEAF_FINDING_TRUNCATED = 3,    /* a file is shorter than the manifest says */
	SHEAF_FINDING_EXTENDED = 4,     /* a file is longer than the manifest says */
	SHEAF_FINDING_MISSING = 5,      /* a file of the manifest is not there */
	SHEAF_FINDING_EXTRA = 6,        /* the manifest does not name this file */
	SHEAF_FINDING_MANIFEST = 7,     /* sheaf.json or sheaf.sums is damaged */
	SHEAF_FINDING_HEADER = 8,       /* the header of a safetensors file is damaged */
	SHEAF_FINDING_INDEX = 9,        /* <family>.safetensors.index.json is damaged */
	SHEAF_FINDING_UNVERIFIED = 10   /* there are no checksums to compare with */
};
/* Returns the name of a kind, such as "checksum", or NULL if there is no such kind. Static.
 * [any thread] */
const char *sheaf_finding_kind_name(int32_t kind);
/* Something wrong that sheaf_checkpoint_verify found. Strings are valid during the callback only;
 * "" means that it does not apply. */
struct sheaf_finding {
	uint32_t size;
	int32_t kind;                   /* enum sheaf_finding_kind */
	const char *file;               /* the file, relative to the checkpoint */
	const char *family;             /* family of the tensor */
	const char *name;               /* name of the tensor */
	const char *msg;                /* human-readable explanation, one line */
	int64_t block;                  /* index of the 1-MiB block in the file; -1: none */
	int64_t offset;                 /* byte offset in the file; -1: none */
};
/* Reads one slice from a checkpoint into slice->data, by this process alone, and checks the blocks
 * that it needs. slice->shape must be that of the tensor. If the tensor has another type, the
 * values are converted. ELAYOUT if the tensor is absent or has another shape. [local] */
int  sheaf_checkpoint_read(struct sheaf_checkpoint *checkpoint, const struct sheaf_slice *slice,
                           struct sheaf_error *err);
/* Verifies a checkpoint: compares every byte with its checksum, every tensor with its digest, and
 * every file with the manifest.
 * report  receives the findings; may be NULL.
 * 0: Everything is right.
 * ECORRUPT: there is damage; report->findings is not 0.
 * EFORMAT: nothing is wrong, but there are no checksums, so the values cannot be proved.
 * [collective] */
int  sheaf_checkpoint_verify(struct sheaf_checkpoint *checkpoint, struct sheaf_report *report,
                             struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
