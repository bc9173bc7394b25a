/* SPDX-License-Identifier: Apache-2.0 */
/* The table of formats, and opening what one of them recognises. */
#include "foreign.h"
#include <string.h>
#include "err.h"
#include "foreign_dir.h"
#include "foreign_packed.h"

static const struct shf_foreign_format *const formats[] = { &shf_torch_save,
	&shf_torch_legacy, &shf_deepspeed, &shf_paddle_flex, &shf_megatron, &shf_megatron_ranks,
	&shf_torch_dcp, &shf_torch_hf, &shf_torch_ckpt, &shf_paddle_save, &shf_paddle_sharding,
	&shf_paddle_unified, &shf_npy, &shf_npz, &shf_orbax, &shf_zarr, &shf_gguf, &shf_hf_trainer,
	&shf_torch_folder, &shf_torch_ckpt_bare };

/* Finds the format of what is open as fd. *format NULL: none. */
static int recognise(const struct shf_sys *sys, const char *path, int fd,
                     const struct shf_stat *st, const struct shf_foreign_format **format,
                     const char **why, struct sheaf_error *err)
{
	struct shf_region r = { sys, fd, 0, st->bytes, path, NULL, false };
	int rc = 0;

	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]) && rc == 0; i++) {
		*format = formats[i];
		if (st->type == SHF_T_FILE && formats[i]->is_file)
			rc = formats[i]->is_file(&r, why, err);
		else if (st->type == SHF_T_DIR && formats[i]->is_dir)
			rc = formats[i]->is_dir(sys, fd, path, why, err);
	}
	if (rc != 1)
		*format = NULL;
	return rc;
}

/* Opens what lies at path and finds its format. *fd: to be closed by the caller, or -1. */
static int recognise_path(const struct shf_sys *sys, const char *path, int *fd,
                          const struct shf_foreign_format **format, const char **why,
                          struct sheaf_error *err)
{
	struct shf_stat st;
	int rc;

	*format = NULL;
	*fd = -1;
	rc = shf_sys_stat(sys, SHF_CWD, path, true, &st);
	if (rc >= 0 && st.type != SHF_T_FILE && st.type != SHF_T_DIR)
		return 0;
	*fd = rc < 0 ? rc : shf_sys_open(sys, SHF_CWD, path, st.type == SHF_T_DIR ? SHF_O_DIR : 0,
	                                 0);
	rc = *fd < 0 ? *fd : shf_sys_fstat(sys, *fd, &st);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s", path);
	if (st.type == SHF_T_DIR) {
		struct shf_stat own;

		if (shf_sys_stat(sys, *fd, "sheaf.json", true, &own) >= 0)
			return 0;
	}
	return recognise(sys, path, *fd, &st, format, why, err);
}

int shf_foreign_is_here(const struct shf_sys *sys, const char *path, struct sheaf_error *err)
{
	const struct shf_foreign_format *format;
	const char *why;
	int fd, rc = recognise_path(sys, path, &fd, &format, &why, err);

	if (fd >= 0)
		shf_sys_close(sys, fd);
	return rc;
}

int shf_foreign_new(struct shf_foreign **out, const struct shf_sys *in, const char *path,
                    struct sheaf_error *err)
{
	struct shf_foreign *f = shf_zalloc(1, sizeof(*f));

	if (!f)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to open it", path);
	pthread_mutex_init(&f->lock, NULL);
	f->in = in;
	f->dir = -1;
	f->path = shf_arena_strdup(&f->arena, path, strlen(path));
	if (!f->path) {
		shf_foreign_free(f);
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to open it", path);
	}
	*out = f;
	return 0;
}

int shf_foreign_open(struct shf_foreign **out, const struct shf_sys *in, const char *path,
                     struct sheaf_error *err)
{
	struct shf_foreign *f;
	int fd = -1, rc = shf_foreign_new(&f, in, path, err);

	if (rc < 0)
		return rc;
	rc = recognise_path(in, path, &fd, &f->format, &f->why, err);
	if (rc == 0)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
			      path);
	if (rc > 0 && f->format->is_dir)
		f->dir = fd;
	else if (rc > 0)
		rc = shf_foreign_add_self(f, fd, err);
	else if (fd >= 0)
		shf_sys_close(in, fd);
	if (rc >= 0)
		rc = f->format->open(f, err);
	if (rc == 0)
		rc = shf_foreign_notes_end(f, err);
	if (rc == 0)
		rc = shf_foreign_dir_make(f, err);
	if (rc == 0)
		*out = f;
	else
		shf_foreign_free(f);
	return rc;
}

void shf_foreign_free(struct shf_foreign *f)
{
	if (!f)
		return;
	if (f->format && f->format->close)
		f->format->close(f);
	for (uint32_t i = 0; i < shf_foreign_files(f); i++)
		if (shf_foreign_file(f, i)->fd >= 0)
			shf_sys_close(f->in, shf_foreign_file(f, i)->fd);
	if (f->dir >= 0)
		shf_sys_close(f->in, f->dir);
	shf_foreign_dir_release(f);
	shf_foreign_packed_release(f);
	shf_buf_release(&f->files);
	shf_buf_release(&f->hashes);
	shf_buf_release(&f->tensors);
	shf_buf_release(&f->pieces);
	shf_buf_release(&f->items);
	shf_buf_release(&f->notes);
	shf_buf_release(&f->unread);
	shf_arena_release(&f->arena);
	shf_arena_release(&f->resolved);
	pthread_mutex_destroy(&f->lock);
	shf_free(f);
}
