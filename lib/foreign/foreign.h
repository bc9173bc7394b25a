/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that other software wrote, in one form: named tensors, each made of pieces of files.
 *
 * Each format fills in a struct shf_foreign_format, listed in foreign.c. All other code works on
 * struct shf_foreign: foreign_dir.c presents it as a directory of safetensors files, which lib/step
 * opens like any other, and foreign_read.c gathers the bytes of a tensor. A format compares
 * checksums in its verify function. The room sees base, plan, format and sys. */
#ifndef SHF_FOREIGN_H
#define SHF_FOREIGN_H
#include <pthread.h>
#include <stdatomic.h>
#include "mem.h"
#include "region.h"
#include "sheaf.h"
#include "sys.h"
#include "unpack.h"

#define SHF_FOREIGN_DIR "foreign:"
#define SHF_FOREIGN_OPEN_MAX 64 /* files of a directory that stay open without being read */
#define SHF_FOREIGN_MARK (UINT64_C(64) << 10)   /* see struct shf_foreign_text */
#define SHF_FOREIGN_DIMS_MAX 65 /* torch has 64, and complex numbers are shown with one more */
/* Bytes that are stored as a text in UTF-8, each as the character of its number: as Latin-1. */
struct shf_foreign_text {
	uint64_t at, bytes;             /* of the text in the file */
	uint64_t decoded;               /* bytes that it stands for */
	uint64_t *marks;                /* guarded by lock; NULL: not made yet. Where in the text
	                                 * each SHF_FOREIGN_MARK-th byte is */
};
/* A box of a tensor, and where its items are: item i of the box (counted from its start) is at
 * byte `at` + sum of i[d] * stride[d] of the file. */
struct shf_foreign_piece {
	const int64_t *start, *count;   /* the box, in items; NULL: the whole tensor */
	const int64_t *stride;          /* in bytes, >= 0; NULL: row-major without gaps */
	uint32_t file;                  /* number of the file */
	uint8_t flip_every, flip_at;    /* as those of a tensor, for the bytes of this piece */
	uint8_t item_codec;             /* enum shf_codec; see item_bytes */
	uint64_t at;
	/* Not 0: the piece is in an item of the file that has a header of its own, which has not
	 * been read. Then this is the length of the item, `at` is where it begins, item_codec says
	 * how it is compressed as a whole, the flips are unknown, and `stride` is for the format.
	 * The first read of the piece finds out all but item_codec, and `packed` if it is
	 * compressed, and sets this to 0. They are guarded by lock. */
	uint64_t item_bytes;
	/* NULL: `at` is a place in the file. Else it is one in the bytes that the text stands
	 * for. */
	struct shf_foreign_text *text;
	/* NULL: `at` is a place in the file, or in that text. Else it is one in what this part of
	 * the file stands for. In the arena. */
	const struct shf_packed *packed;
};
/* A part of a tensor that is contiguous in a file: items [lo, hi) of a box, in row-major order. It
 * begins at byte `at`. */
struct shf_foreign_range {
	const int64_t *start, *count;   /* the box; NULL: the whole tensor */
	uint64_t lo, hi, at;
	uint32_t file;
	struct shf_foreign_text *text;  /* as that of a piece */
};
struct shf_foreign_tensor {
	const char *name;               /* UTF-8 of any length, NUL-ended, as safetensors has it */
	const char *family;             /* NULL: "model" */
	int32_t dtype, ndim;
	const int64_t *dims;
	uint64_t bytes;
	uint64_t off;                   /* in the payload of the file that shows it */
	size_t first, n;                /* its pieces; n 0 and `first` for the format, if that makes
	                                 * them */
	/* In each group of flip_every bytes the highest bit of byte flip_at is inverted: the sign
	 * of a number, or of one part of it. flip_every 0: nothing is inverted. */
	uint8_t flip_every, flip_at;
	/* NULL, or the bytes of an item (in the arena), which all items that are in no piece
	 * have. */
	const uint8_t *fill;
	const char *refused;            /* NULL, or why its values cannot be read, for sentences:
	                                 * "is ..." */
};
struct shf_foreign_file {
	const char *name;               /* relative to f->dir; of a single file its name */
	const char *shown;              /* the same for reports: relative to what was opened */
	const char *where;              /* its path, for sentences */
	int fd;                         /* guarded by lock; -1: it is not open */
	bool kept;                      /* guarded by lock; it stays open when no thread reads it */
	uint32_t users;                 /* guarded by lock; regions that have not been ended */
	uint32_t next;                  /* number + 1 of the next file with this hash; 0: none */
	uint64_t bytes;
	struct shf_stat seen;           /* its state when it was added */
};
/* A part of a file that has checksums of its own. */
struct shf_foreign_item {
	uint32_t file;
	bool tensor;                    /* it holds values of a tensor */
	uint8_t codec;                  /* enum shf_codec; how it is compressed as a whole */
	uint64_t at, bytes;
	const char *name;               /* of the value, for sentences; NULL: it is a tensor */
};
struct shf_foreign_note { const char *key, *text; };
struct shf_foreign_format;
struct shf_foreign {
	const struct shf_sys *in;       /* borrowed; the system layer with the real files */
	const struct shf_foreign_format *format;
	const char *why;                /* what it was recognised by */
	bool may_have_index;            /* it is a directory whose files may have an index */
	const char *index;              /* of a directory whose files have an index that is missing
	                                 * or not right: its name; else NULL */
	struct shf_buf unread;          /* of struct shf_index_entry (index.h): weights that are in
	                                 * its files, and are not read; only if may_have_index */
	const char *path;
	const char *entered;            /* the folder that shf_foreign_enter entered; NULL: none */
	struct shf_arena arena;         /* of all texts and arrays */
	int dir;                        /* descriptor of the directory; -1: it is a file */
	struct shf_buf files, tensors, pieces, items, notes;    /* of the structs above. items:
	                                 * guarded by lock; without those that a piece with
	                                 * item_bytes describes */
	struct shf_buf hashes;          /* table of uint32_t, by hash of a name: number + 1 of a
	                                 * file; 0: none */
	uint32_t open[SHF_FOREIGN_OPEN_MAX];    /* guarded by lock; files that are kept open */
	uint32_t open_n;                /* guarded by lock; how many */
	uint32_t open_next;             /* guarded by lock; where the search for a file that may be
	                                 * closed goes on */
	void *own;                      /* of the format */
	uint64_t unread_n;              /* tensors that are not read, which notes name; see
	                                 * SHF_UNREAD_NOTE */
	uint64_t notes_left;            /* notes that were not kept, because there are too many */
	bool reads_once;                /* the page cache need not keep long contiguous parts */
	/* private to foreign_dir.c */
	struct shf_sys sys;
	struct shf_foreign_view *views; /* in the arena; the files that are shown */
	size_t views_n;
	pthread_mutex_t lock;
	struct shf_arena resolved;      /* guarded by lock */
	struct sheaf_error failed;      /* guarded by lock; the last failure of a read that was no
	                                 * error of the machine; code 0: none */
	struct shf_unpacking *unpacking;        /* guarded by lock; of foreign_packed.c */
};
struct shf_foreign_findings {   /* receives what a verification finds */
	void (*found)(void *arg, bool is_sum, const char *file, int64_t offset,
	              const struct sheaf_error *e);
	void *arg;
	uint64_t bytes;                 /* bytes that were read and compared */
	bool unproved;                  /* some bytes have no checksum */
	const char *item;               /* the first item that has none; NULL: the whole has none */
};
/* A kind of checkpoint. */
struct shf_foreign_format {
	const char *name;               /* in reports, such as "torch.save" */
	/* Returns 1 if the file (its region) or the directory is of this format, by what is in it,
	 * and sets *why; 0 if not; a negative code if it cannot be read. Either may be NULL. */
	int (*is_file)(const struct shf_region *r, const char **why, struct sheaf_error *err);
	int (*is_dir)(const struct shf_sys *sys, int dir, const char *path, const char **why,
	              struct sheaf_error *err);
	/* Fills in tensors, pieces and notes; of a directory its files, too. A file is the file 0
	 * already. */
	int (*open)(struct shf_foreign *f, struct sheaf_error *err);
	/* Finds out where the items of a piece with item_bytes are. Sets piece->at to where the
	 * first one begins, piece->packed if it has an item_codec, piece->flip_every and flip_at,
	 * and the strides in bytes. NULL: the format has no such pieces. [any thread] */
	int (*resolve)(struct shf_foreign *f, const struct shf_foreign_tensor *t,
	               struct shf_foreign_piece *piece,
	               int64_t stride[SHF_FOREIGN_DIMS_MAX], struct sheaf_error *err);
	/* Makes the pieces of a tensor while it is read: appends them to `pieces`, without
	 * item_bytes, and puts their numbers in the arena. Pieces are not kept, so a checkpoint
	 * with millions of them needs memory for what they are made of only. NULL: they are in
	 * f->pieces. [any thread] */
	int (*make_pieces)(struct shf_foreign *f, const struct shf_foreign_tensor *t,
	                   struct shf_arena *arena, struct shf_buf *pieces,
	                   struct sheaf_error *err);
	/* Returns a digest of what they are made of. */
	uint64_t (*digest)(const struct shf_foreign *f);
	/* Compares everything that has a checksum. NULL: nothing has. */
	int (*verify)(struct shf_foreign *f, struct shf_foreign_findings *to,
	              struct sheaf_error *err);
	/* Reads items [lo, hi) of a tensor, in row-major order. NULL: they are gathered from its
	 * pieces. [any thread] */
	int (*items)(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
	             uint64_t lo, uint64_t hi, struct sheaf_error *err);
	/* Does what shf_foreign_check_unchanged says. NULL: the files are compared. */
	int (*check_unchanged)(struct shf_foreign *f, struct sheaf_error *err);
	void (*close)(struct shf_foreign *f);   /* frees f->own; NULL: nothing */
};
/* The formats, one file each. */
extern const struct shf_foreign_format shf_torch_save, shf_torch_legacy, shf_torch_dcp,
	shf_torch_hf, shf_paddle_save, shf_paddle_unified, shf_paddle_flex, shf_paddle_sharding,
	shf_deepspeed, shf_npy, shf_npz, shf_orbax, shf_zarr, shf_gguf, shf_torch_folder,
	shf_megatron, shf_megatron_ranks, shf_hf_trainer, shf_lightning, shf_torch_ckpt,
	shf_torch_ckpt_bare;

/* Returns whether what lies at `path` is of a format in this room: 1, 0, or a negative code. A
 * directory that has a sheaf.json is never. */
int shf_foreign_is_here(const struct shf_sys *sys, const char *path, struct sheaf_error *err);
/* Opens it. in: must outlive the result. */
int shf_foreign_open(struct shf_foreign **out, const struct shf_sys *in, const char *path,
                     struct sheaf_error *err);
/* Makes one that has neither files nor tensors yet, for code that shows something else as a foreign
 * checkpoint: path is its name in sentences. Fill in its tensors, then call
 * shf_foreign_dir_make. */
int shf_foreign_new(struct shf_foreign **out, const struct shf_sys *in, const char *path,
                    struct sheaf_error *err);
void shf_foreign_free(struct shf_foreign *f);   /* NULL is fine */
size_t shf_foreign_files(const struct shf_foreign *f);  /* how many real files it has */
static inline struct shf_foreign_file *shf_foreign_file(const struct shf_foreign *f, uint32_t i)
{
	struct shf_foreign_file *all = (struct shf_foreign_file *)(void *)f->files.data;

	return all ? all + i : NULL;    /* NULL: there are none yet */
}
/* Compares all files with their state when they were added. EAGAIN: one has been changed or
 * replaced. EIO. [any thread] */
int shf_foreign_check_unchanged(struct shf_foreign *f, struct sheaf_error *err);
const struct shf_foreign_tensor *shf_foreign_tensors(const struct shf_foreign *f, size_t *n);

/* Adds f->path, which is a file that is open as fd, as file 0. f owns fd from now on, after a
 * failure, too. */
int shf_foreign_add_self(struct shf_foreign *f, int fd, struct sheaf_error *err);

/* What the formats call to describe a checkpoint. */
/* Adds a file of the directory, unless it was added before. It is opened at its first use. *file
 * gets its number. EFORMAT: it is missing, or the name leads out of the directory. */
int shf_foreign_add_file(struct shf_foreign *f, const char *name, size_t n, uint32_t *file,
                         struct sheaf_error *err);
/* Does the same for a file of a folder in the directory. folder: a path of plain names; NULL:
 * none. */
int shf_foreign_add_file_in(struct shf_foreign *f, const char *folder, const char *name, size_t n,
                            uint32_t *file, struct sheaf_error *err);
/* Opens a folder by its path in the directory. Returns a descriptor, which the caller closes, or a
 * negative errno. */
int shf_foreign_folder(const struct shf_foreign *f, const char *path);
/* Makes a folder of the directory the directory itself, before any file is added: f->dir and
 * f->path. */
int shf_foreign_enter(struct shf_foreign *f, const char *folder, struct sheaf_error *err);
/* Sets *r to the whole of a file, and opens the file if it is not open. The file stays open until
 * shf_foreign_region_end, which need not be called for f->path itself. [any thread] */
int shf_foreign_region(struct shf_foreign *f, uint32_t file, struct shf_region *r,
                       struct sheaf_error *err);
void shf_foreign_region_end(struct shf_foreign *f, uint32_t file);      /* [any thread] */
/* Adds a tensor whose pieces are the last t->n of f->pieces. Computes its size, and copies its
 * dims. name: n bytes. If safetensors cannot have this name, a note says that the tensor is not
 * read. EFORMAT: the size is beyond 63 bits. */
int shf_foreign_add_tensor(struct shf_foreign *f, const struct shf_foreign_tensor *t,
                           const char *name, size_t n, struct sheaf_error *err);
/* Adds the pieces of a range of the tensor x. Returns how many, or a negative code. EFORMAT: x has
 * more than 8 dimensions. */
int shf_foreign_add_range(struct shf_foreign *f, const struct shf_foreign_tensor *x,
                          const struct shf_foreign_range *r, struct sheaf_error *err);
/* Does the same for a format that makes pieces: they and their numbers come into a buffer and an
 * arena of the caller. path: of the checkpoint, for sentences. */
int shf_foreign_make_range(struct shf_buf *pieces, struct shf_arena *arena, const char *path,
                           const struct shf_foreign_tensor *x, const struct shf_foreign_range *r,
                           struct sheaf_error *err);
/* Returns 0 if the last n pieces tile the tensor x, so that every item is in exactly one of them.
 * Returns 1 if they do not, and `why` says what is wrong. ENOMEM. Each piece has start and
 * count. */
int shf_foreign_cover(const struct shf_foreign *f, const struct shf_foreign_tensor *x, size_t n,
                      char why[300]);
/* Does the same for n pieces from p on, which are not in f->pieces. */
int shf_foreign_tiles(const struct shf_foreign_piece *p, size_t n,
                      const struct shf_foreign_tensor *x, char why[300]);
/* Returns how many items a box has, or UINT64_MAX if they are more than 64 bits can count. */
uint64_t shf_foreign_box_items(const int64_t *count, int32_t ndim);
/* EFORMAT: two tensors of one family have the same name. */
int shf_foreign_check_names(const struct shf_foreign *f, struct sheaf_error *err);
/* Adds a note; fmt is that of printf. Notes beyond the first 4096 are only counted. The first 256
 * bytes of the key are kept, and the first 1024 of the text. */
int shf_foreign_note(struct shf_foreign *f, struct sheaf_error *err, const char *key, size_t key_n,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define SHF_UNREAD_NOTE "tensors_not_read"
/* If tensors are not read, adds a note with this key that says how many, so that a program that
 * writes the checkpoint anew can say what is missing there. If notes were left out, adds a last
 * one, with the key "...", that says how many. */
int shf_foreign_notes_end(struct shf_foreign *f, struct sheaf_error *err);
int64_t *shf_foreign_numbers(struct shf_foreign *f, size_t n);  /* zeroed, in the arena */
#endif
