/* SPDX-License-Identifier: Apache-2.0 */
/* Source: training/checkpointing.py of Megatron-LM, and core/dist_checkpointing of Megatron-Core
 * 0.16.1. */
#include "megatron_dir.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "torch_dcp.h"
#include "valid.h"

#define LATEST "latest_checkpointed_iteration.txt"

int shf_megatron_rank_of(const char *name, int number[3])
{
	int n = 0;

	if (strncmp(name, "mp_rank", 7))
		return 0;
	for (name += 7; n < 3 && *name == '_'; n++) {
		int digits = 0;

		name++;
		for (number[n] = 0; *name >= '0' && *name <= '9' && digits < 6; digits++)
			number[n] = 10 * number[n] + (*name++ - '0');
		if (digits < 2)
			return 0;
	}
	return *name ? 0 : n;
}

/* first, last: folders of ranks, by name; "": there is none. */
struct megatron_seen { bool metadata, common, iterations; char first[32], last[32]; };

static int see_megatron(void *arg, const char *name)
{
	struct megatron_seen *s = arg;
	int number[3];

	s->metadata |= strcmp(name, "metadata.json") == 0;
	s->common |= strcmp(name, "common.pt") == 0;
	s->iterations |= strncmp(name, "iter_", 5) == 0;
	if (!shf_megatron_rank_of(name, number) || strlen(name) >= sizeof(s->first))
		return 0;
	if (!s->first[0] || strcmp(name, s->first) < 0)
		memcpy(s->first, name, strlen(name) + 1);
	if (strcmp(name, s->last) > 0)
		memcpy(s->last, name, strlen(name) + 1);
	return 0;
}

/* Whether a folder of a rank has a file that Megatron writes. */
static bool is_rank_folder(const struct shf_sys *sys, int dir, const char *folder)
{
	static const char *const files[] = { "model_optim_rng.pt", "model_rng.pt" };
	int fd = shf_sys_open(sys, dir, folder, SHF_O_DIR, 0);
	struct shf_stat st;
	bool is = false;

	for (size_t i = 0; fd >= 0 && i < 2; i++)
		is |= shf_sys_stat(sys, fd, files[i], true, &st) >= 0 && st.type == SHF_T_FILE;
	if (fd >= 0)
		shf_sys_close(sys, fd);
	return is;
}

/* Returns 1 if a directory has a save, and fills in d->ranks. A save of Megatron-Core without
 * metadata.json has not finished; its reader says so. */
static int megatron_look_at(struct shf_megatron_dir *d, const struct shf_sys *sys, int dir,
                            const char *path, struct megatron_seen *s,
                            struct sheaf_error *err)
{
	static const char *const key[] = { "\"sharded_backend\"" };
	int rc;

	*s = (struct megatron_seen){ .first = "" };
	rc = shf_sys_list(sys, dir, see_megatron, s);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s", path);
	d->ranks = s->first[0] && (is_rank_folder(sys, dir, s->first) ||
	                           is_rank_folder(sys, dir, s->last));
	if (d->ranks)
		return 1;
	if (s->metadata)
		rc = shf_begins_with_any(sys, dir, "metadata.json", key, 1, err);
	return rc ? rc : s->common && shf_dcp_has_metadata(sys, dir);
}

/* Reads the name of the folder that LATEST names: "release", or the iteration. Returns false if it
 * has none. */
static bool read_latest(const struct shf_sys *sys, int dir, char folder[32])
{
	int fd = shf_sys_open(sys, dir, LATEST, 0, 0);
	char text[32] = "";
	int64_t n = fd < 0 ? -1 : shf_sys_pread(sys, fd, text, sizeof(text) - 1, 0);
	unsigned long long iteration = 0;

	if (fd >= 0)
		shf_sys_close(sys, fd);
	while (n > 0 && strchr(" \r\n", text[n - 1]))
		n--;
	if (n <= 0 || n > 18)
		return false;
	text[n] = '\0';
	if (strcmp(text, "release") == 0) {
		memcpy(folder, "release", 8);
		return true;
	}
	for (int64_t i = 0; i < n; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		iteration = 10 * iteration + (unsigned)(text[i] - '0');
	}
	snprintf(folder, 32, "iter_%07llu", iteration);
	return true;
}

/* Other programs write a file of that name, too, beside folders of other names. */
int shf_megatron_find(struct shf_megatron_dir *d, const struct shf_sys *sys, int dir,
                      const char *path, struct sheaf_error *err)
{
	struct megatron_seen s, in;
	char folder[32];
	int fd, rc;

	*d = (struct shf_megatron_dir){ .folder = "" };
	rc = megatron_look_at(d, sys, dir, path, &s, err);
	if (rc || !read_latest(sys, dir, folder))
		return rc;
	fd = shf_sys_open(sys, dir, folder, SHF_O_DIR, 0);
	if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR)
		return shf_fail_sys(err, -fd, "%s/%s", path, folder);
	if (fd >= 0) {
		rc = megatron_look_at(d, sys, fd, path, &in, err);
		shf_sys_close(sys, fd);
	}
	if (rc > 0)
		memcpy(d->folder, folder, sizeof(folder));
	if (rc == 0 && s.iterations)
		return shf_fail(err, SHEAF_EFORMAT, "%s: " LATEST " names the folder %s, which is "
		                "not there or has no checkpoint of Megatron; open the folder of "
		                "one iteration", path, folder);
	return rc;
}
