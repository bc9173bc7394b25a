/* SPDX-License-Identifier: Apache-2.0 */
#include "dspd_dir.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "valid.h"

#define TAG_MAX 255
#define LOOKED_AT 8             /* files of a folder that are looked into, until one is known */
#define NAMED 3                 /* folders that a sentence names */

static bool after(const char **s, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(*s, word, n))
		return false;
	*s += n;
	return true;
}

static bool rank_number(const char **s, int *value)
{
	int n = 0;

	for (*value = 0; **s >= '0' && **s <= '9' && n < 7; n++)
		*value = 10 * *value + (*(*s)++ - '0');
	return n > 0 && n < 7;
}

bool shf_dspd_name_of(struct shf_dspd_name *x, const char *name)
{
	*x = (struct shf_dspd_name){ .dp = -1 };
	if (!after(&name, "bf16_"))
		after(&name, "fp16_");
	if (after(&name, "zero_pp_rank_") && (!rank_number(&name, &x->dp) || !after(&name, "_")))
		return false;
	if (!after(&name, "mp_rank_") || !rank_number(&name, &x->mp))
		return false;
	/* Old versions have no underscore before optim_states. */
	x->optimizer = strcmp(name, "_optim_states.pt") == 0 ||
	               strcmp(name, "optim_states.pt") == 0;
	return x->optimizer ? x->dp >= 0 : strcmp(name, "_model_states.pt") == 0;
}

bool shf_dspd_layer_of(struct shf_dspd_layer *x, const char *name)
{
	int number;

	*x = (struct shf_dspd_layer){ .layer = -1 };
	if (!after(&name, "layer_") || !rank_number(&name, &x->layer))
		return false;
	x->expert = after(&name, "_expert_");
	if (x->expert)
		return rank_number(&name, &number) && after(&name, "_mp_rank_") &&
		       rank_number(&name, &x->tp) && strcmp(name, "_model_states.pt") == 0;
	if (strcmp(name, "-model_states.pt") && after(&name, "-model_") &&
	    !rank_number(&name, &x->tp))
		return false;
	return strcmp(name, "-model_states.pt") == 0;
}

/* ---- looking into directories ---- */

struct looked {
	char files[LOOKED_AT][TAG_MAX + 1];     /* names of files of DeepSpeed */
	int files_n;
	char steps[NAMED][TAG_MAX + 1];         /* folders global_step<N> */
	uint64_t steps_n;
	bool latest, universal, zero, script;   /* entries: latest, latest_universal, zero,
	                                         * zero_to_fp32.py */
};

static int see_entry(void *arg, const char *name)
{
	struct shf_dspd_name x;
	struct looked *l = arg;

	if (!shf_plain_is_valid(name))
		return 0;
	l->latest |= strcmp(name, "latest") == 0;
	l->universal |= strcmp(name, "latest_universal") == 0;
	l->zero |= strcmp(name, "zero") == 0;
	l->script |= strcmp(name, "zero_to_fp32.py") == 0;
	if (l->files_n < LOOKED_AT && shf_dspd_name_of(&x, name))
		memcpy(l->files[l->files_n++], name, strlen(name) + 1);
	if (strncmp(name, "global_step", 11) == 0 && l->steps_n++ < NAMED)
		memcpy(l->steps[l->steps_n - 1], name, strlen(name) + 1);
	return 0;
}

/* Returns 1 if a folder has files of DeepSpeed: archives of torch.save with the keys that it writes
 * first. folder NULL: the directory itself. *l gets what it has. */
static int look_into(const struct shf_sys *sys, int dir, const char *folder, const char *path,
                     struct looked *l, struct sheaf_error *err)
{
	static const char *const keys[] = { "optimizer_state_dict", "module", "param_shapes" };
	int fd = folder ? shf_sys_open(sys, dir, folder, SHF_O_DIR, 0) : dir, rc;

	*l = (struct looked){ .files_n = 0 };
	if (fd == -ENOENT || fd == -ENOTDIR)
		return 0;
	if (fd < 0)
		return shf_fail_sys(err, -fd, "%s/%s", path, folder);
	rc = shf_sys_list(sys, fd, see_entry, l);
	if (rc < 0)
		rc = shf_fail_sys(err, -rc, "%s", path);
	for (int i = 0; i < l->files_n && rc == 0; i++)
		rc = shf_begins_with_any(sys, fd, l->files[i], keys, 3, err);
	if (folder)
		shf_sys_close(sys, fd);
	return rc;
}

/* Reads the name of a folder from a file. Returns 1, or 0 if it has none. */
static int read_tag(const struct shf_sys *sys, int dir, const char *path, const char *name,
                    char tag[TAG_MAX + 2], struct sheaf_error *err)
{
	int fd = shf_sys_open(sys, dir, name, 0, 0);
	int64_t n = fd < 0 ? fd : shf_sys_pread(sys, fd, tag, TAG_MAX + 1, 0);

	if (fd >= 0)
		shf_sys_close(sys, fd);
	if (n < 0 && n != -EISDIR)
		return shf_fail_sys(err, (int)-n, "%s/%s", path, name);
	if (n < 0 || n > TAG_MAX)
		return 0;
	while (n > 0 && (tag[n - 1] == '\n' || tag[n - 1] == '\r' || tag[n - 1] == ' '))
		n--;
	tag[n] = '\0';
	return strlen(tag) == (size_t)n && shf_plain_is_valid(tag);
}

/* Says which folders there are instead of the one that is meant. */
static int which_folder(const struct looked *l, const char *path, const char *why,
                        struct sheaf_error *err)
{
	struct shf_buf list = SHF_BUF_INIT;
	int rc;

	for (uint64_t i = 0; i < l->steps_n && i < NAMED; i++)
		shf_buf_addf(&list, "%s%s", i ? ", " : "", l->steps[i]);
	shf_buf_addf(&list, "%s", l->steps_n > NAMED ? ", ..." : "");
	shf_buf_u8(&list, 0);
	rc = list.oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of files", path)
	   : shf_fail(err, SHEAF_EFORMAT, "%s: %s; open the folder of one save: %s", path, why,
	              l->steps_n ? (const char *)list.data : "there is none");
	shf_buf_release(&list);
	return rc;
}

static int found_in(struct shf_dspd_dir *d, struct shf_arena *arena, const char *folder,
                    const struct looked *l, const char *path, struct sheaf_error *err)
{
	d->universal = l->zero;
	d->why = l->zero ? "a folder zero beside archives of DeepSpeed, as ds_to_universal writes "
	                   "it" : "archives of torch.save with the keys of DeepSpeed";
	d->folder = folder ? shf_arena_strdup(arena, folder, strlen(folder)) : NULL;
	if (folder && !d->folder)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of files", path);
	return 1;
}

int shf_dspd_find(struct shf_dspd_dir *d, struct shf_arena *arena, const struct shf_sys *sys,
                  int dir, const char *path, struct sheaf_error *err)
{
	char tag[TAG_MAX + 2], why[2 * TAG_MAX];
	const char *file;
	struct looked l, in;
	int rc = look_into(sys, dir, NULL, path, &l, err);

	*d = (struct shf_dspd_dir){ .folder = NULL };
	if (rc)
		return rc < 0 ? rc : found_in(d, arena, NULL, &l, path, err);
	file = l.latest ? "latest" : l.universal ? "latest_universal" : NULL;
	rc = file ? read_tag(sys, dir, path, file, tag, err) : 0;
	if (rc < 0)
		return rc;
	if (rc) {
		rc = look_into(sys, dir, tag, path, &in, err);
		if (rc)
			return rc < 0 ? rc : found_in(d, arena, tag, &in, path, err);
		snprintf(why, sizeof(why), "%s names the folder %s, which is not there or has no "
		         "files of DeepSpeed", file, tag);
	} else {
		snprintf(why, sizeof(why), "%s", file ? "latest is not the name of a folder"
		         : "has no file latest, which would name a folder");
	}
	/* Other programs write such files, too. */
	for (uint64_t i = 0; i < l.steps_n && i < NAMED && rc == 0; i++)
		rc = look_into(sys, dir, l.steps[i], path, &in, err);
	if (rc < 0 || (rc == 0 && !(file && l.script)))
		return rc;
	return which_folder(&l, path, why, err);
}
