/* SPDX-License-Identifier: Apache-2.0 */
#include "rawstep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "layouts.h"
#include "plaincrc.h"

enum { FILES_MAX = 16, NAME_MAX_ = 96 };

struct record {                 /* the members of a manifest that are used here */
	struct raw_step id;
	size_t files_n;
	struct { char name[NAME_MAX_]; uint64_t bytes, crc; } files[FILES_MAX];
};

static const char *after(const char *text, const char *key)
{
	const char *p = text ? strstr(text, key) : NULL;

	return p ? p + strlen(key) : NULL;
}

static bool read_files(const char *p, struct record *r)
{
	while (p && (p = after(p, "{\"name\": \"")) != NULL) {
		const char *quote = strchr(p, '"');

		if (r->files_n == FILES_MAX || !quote || quote - p >= NAME_MAX_)
			return false;
		memcpy(r->files[r->files_n].name, p, (size_t)(quote - p));
		p = after(quote, "\"bytes\": ");
		r->files[r->files_n].bytes = p ? strtoull(p, NULL, 10) : 0;
		p = after(p, "\"crc\": \"");
		r->files[r->files_n++].crc = p ? strtoull(p, NULL, 16) : 0;
	}
	return r->files_n >= 2;
}

/* Returns false if the text is not a manifest with a valid checksum of its own. */
static bool read_manifest(const char *text, size_t n, struct record *r)
{
	static const char tail[] = ",\n \"self\": \"0123456789abcdef\"}\n";
	const size_t tail_n = sizeof(tail) - 1;
	const char *p;

	memset(r, 0, sizeof(*r));
	if (n < tail_n || memcmp(text + n - tail_n, tail, 12) != 0 ||
	    memcmp(text + n - 3, "\"}\n", 3) != 0 ||
	    strtoull(text + n - 19, NULL, 16) != plain_crc(text, n - tail_n))
		return false;
	p = after(text, "\"step\": ");
	r->id.step = p ? strtoll(p, NULL, 10) : -1;
	p = after(after(text, "\"notes\": {"), "\"salt\": \"");
	r->id.salt = p ? strtoull(p, NULL, 10) : 0;
	p = after(text, "\"session\": \"");
	snprintf(r->id.session, sizeof(r->id.session), "%.32s", p ? p : "");
	return r->id.step >= 0 && read_files(after(text, "\"files\": ["), r);
}

static char *text_of(struct simdisk *disk, const char *path, size_t *n)
{
	char *text = simdisk_get(disk, path, n);

	if (!text)
		return NULL;
	text = realloc(text, *n + 1);
	if (!text)
		abort();
	text[*n] = '\0';
	return text;
}

/* Compares each item of a tensor. Returns 1; 0 if this file does not have it; -1 if values
 * differ. */
static int look_at_tensor(const char *bytes, size_t n, const struct lay_tensor *t, uint64_t seed)
{
	size_t size = (size_t)lay_bytes(t->dtype), items = 1;
	unsigned long long from, to;
	const char *at, *p;
	uint64_t head = 0;
	char key[80];

	for (int i = 7; i >= 0; i--)
		head = head << 8 | (uint8_t)bytes[i];
	snprintf(key, sizeof(key), "\"%s\":{", t->name);
	at = after(bytes + 8, key);
	if (!at || at >= bytes + 8 + head)
		return 0;
	p = after(at, "\"data_offsets\":[");
	if (!p || sscanf(p, "%llu,%llu", &from, &to) != 2)
		return -1;
	for (int d = 0; d < t->ndim; d++)
		items *= (size_t)t->shape[d];
	if (to - from != items * size || 8 + head + to > n)
		return -1;
	for (size_t i = 0; i < items; i++) {
		uint64_t v = lay_value(t, (int64_t)i, seed);

		if (memcmp(bytes + 8 + head + from + i * size, &v, size) != 0)
			return -1;
	}
	return 1;
}

static int wrong(char why[300], const char *path, const char *what, const char *name)
{
	snprintf(why, 300, "%.100s/%.100s %s", path, name, what);
	return -1;
}

/* Checks a file that the manifest names, and sets found[] for its tensors. */
static int look_at_file(struct simdisk *disk, const char *path, const struct record *r, size_t i,
                        const struct job_state *state, bool *found, char why[300])
{
	bool is_data = strstr(r->files[i].name, ".safetensors") &&
	               !strstr(r->files[i].name, ".json");
	bool model = !strchr(r->files[i].name, '/');
	char full[300], *bytes;
	size_t n = 0;
	int rc = 0;

	snprintf(full, sizeof(full), "%.190s/%s", path, r->files[i].name);
	bytes = text_of(disk, full, &n);
	if (!bytes)
		return wrong(why, path, "is gone", r->files[i].name);
	if (n != r->files[i].bytes)
		rc = wrong(why, path, "has another size", r->files[i].name);
	/* The checksum of sheaf.sums is computed in another way. A verify checks it. */
	else if (strcmp(r->files[i].name, "sheaf.sums") != 0 &&
	         plain_crc(bytes, n) != r->files[i].crc)
		rc = wrong(why, path, "has other bytes", r->files[i].name);
	for (int k = 0; rc == 0 && is_data && n > 8 && k < job_tensors_n(state); k++) {
		struct lay_tensor t = job_tensor(k, state);
		int is;

		if (model != (strcmp(t.family, "model") == 0))
			continue;
		is = look_at_tensor(bytes, n, &t, job_seed(r->id.step, r->id.salt));
		if (is < 0)
			rc = wrong(why, path, "holds wrong values", t.name);
		else if (is)
			found[k] = true;
	}
	free(bytes);
	return rc;
}

int raw_step_read(struct simdisk *disk, const char *path, const struct job_state *state,
                  struct raw_step *out, char why[300])
{
	bool found[32] = { false };
	struct record r;
	char full[300], *text;
	size_t n = 0;
	int rc = 0;

	snprintf(full, sizeof(full), "%.250s/sheaf.json", path);
	text = text_of(disk, full, &n);
	if (!text)
		return 0;
	rc = read_manifest(text, n, &r) ? 0 : wrong(why, path, "is broken", "sheaf.json");
	free(text);
	if (rc < 0)
		return rc;
	*out = r.id;
	for (size_t i = 0; rc == 0 && i < r.files_n; i++)
		rc = look_at_file(disk, path, &r, i, state, found, why);
	for (int k = 0; rc == 0 && k < job_tensors_n(state); k++)
		if (!found[k])
			rc = wrong(why, path, "is in no file", job_tensor(k, state).name);
	return rc < 0 ? rc : 1;
}

struct lister {
	void (*item)(void *arg, const char *name);
	void *arg;
};

static int item_of(void *arg, const char *name)
{
	struct lister *l = arg;

	l->item(l->arg, name);
	return 0;
}

bool raw_list(struct simdisk *disk, const char *path, void (*item)(void *arg, const char *name),
              void *arg)
{
	const struct shf_sys *sys = simdisk_process(disk, 60000, 99);
	struct lister l = { item, arg };
	int fd = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0);

	if (fd >= 0) {
		shf_sys_list(sys, fd, item_of, &l);
		shf_sys_close(sys, fd);
	}
	simdisk_kill(disk, sys);
	return fd >= 0;
}
