/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of Megatron-Core in its format torch_dist: a directory of torch.distributed.
 * checkpoint, and beside it common.pt, a torch.save file with all values that ranks have in
 * common, and metadata.json, which is written last.
 *
 * All layers are one tensor, of which the first dimension is the layer. The optimizer's state of a
 * parameter has the name optimizer.state.<kind>.<parameter>.
 *
 * Source: core/dist_checkpointing and core/optimizer of Megatron-Core 0.12.1 and 0.16.1, and
 * directories that both wrote. */
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "json.h"
#include "megatron_dir.h"
#include "torch_dcp.h"
#include "torch_dcp_item.h"
#include "torch_zip.h"
#include "zip_verify.h"

#define SMALL_MAX (UINT64_C(1) << 20)
#define STATE "optimizer.state."

static int is_megatron(const struct shf_sys *sys, int dir, const char *path, const char **why,
                       struct sheaf_error *err)
{
	struct shf_megatron_dir d;
	int rc = shf_megatron_find(&d, sys, dir, path, err);

	*why = "a directory of torch.distributed.checkpoint with metadata.json or common.pt of "
	       "Megatron-Core";
	return rc > 0 ? !d.ranks : rc;
}

/* ---- metadata.json ---- */

/* What metadata.json says; backend "": nothing. */
struct megatron_config { char backend[40]; int64_t version; };

/* Reads it. Returns false if it is not a JSON object. */
static bool megatron_config_read(struct megatron_config *c, const struct shf_buf *bytes)
{
	enum shf_json_kind kind = SHF_JSON_ERROR;
	struct shf_json j;

	*c = (struct megatron_config){ .version = -1 };
	shf_json_init(&j, bytes->data, bytes->len);
	if (shf_json_next(&j) == SHF_JSON_OBJECT)
		kind = shf_json_next(&j);
	for (; kind == SHF_JSON_KEY; kind = shf_json_next(&j)) {
		const char *key = shf_json_text(&j, NULL);
		bool backend = strcmp(key, "sharded_backend") == 0;
		bool version = strcmp(key, "sharded_backend_version") == 0;
		size_t n;

		kind = shf_json_next(&j);
		if (backend && kind == SHF_JSON_STRING) {
			const char *text = shf_json_text(&j, &n);

			n = n < sizeof(c->backend) - 1 ? n : sizeof(c->backend) - 1;
			memcpy(c->backend, text, n);
			c->backend[n] = '\0';
		} else if (version && kind == SHF_JSON_NUMBER) {
			(void)shf_json_i64(&j, &c->version);
		}
		if (!shf_json_skip(&j, kind))
			break;
	}
	shf_json_release(&j);
	return kind == SHF_JSON_OBJECT_END;
}

/* Refuses what is not a finished save in this format. l: the names in the directory. */
static int check_config(struct shf_foreign *f, const struct shf_listing *l,
                        struct sheaf_error *err)
{
	struct shf_buf bytes = SHF_BUF_INIT;
	struct megatron_config c;
	int rc;

	if (!shf_listing_has(l, "metadata.json"))
		return shf_fail(err, SHEAF_EFORMAT, "%s: has no metadata.json, which Megatron-Core "
		                "writes last, so its save has not finished", f->path);
	rc = shf_foreign_slurp(f, NULL, "metadata.json", SMALL_MAX, &bytes, err);
	if (rc == 0 && (!megatron_config_read(&c, &bytes) || !c.backend[0]))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s/metadata.json: does not say which "
		              "sharded_backend wrote it", f->path);
	if (rc == 0 && (strcmp(c.backend, "torch_dist") || c.version != 1))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: is in the format %s, version %" PRId64
		              ", of Megatron-Core, which sheaf does not read; torch_dist, version "
		              "1, is",
		              f->path, shf_name_escape(&f->arena, c.backend, strlen(c.backend)),
		              c.version);
	shf_buf_release(&bytes);
	if (rc == 0 && !shf_listing_has(l, ".metadata"))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: .metadata is missing, which says where the "
		              "tensors are", f->path);
	if (rc == 0 && !shf_listing_has(l, "common.pt"))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: common.pt is missing, which has the "
		              "iteration, the arguments and the groups of the optimizer; it was "
		              "not copied, or deleted", f->path);
	return rc;
}

/* ---- names ---- */

/* Whether a state of the optimizer is the fp32 weights: its name is one of two, by the sharding of
 * the distributed optimizer. */
static bool is_master(const char *state, size_t n)
{
	return (n == 10 && memcmp(state, "fp32_param", n) == 0) ||
	       (n == 5 && memcmp(state, "param", n) == 0);
}

/* Shows the state of the optimizer under the names that Sheaf gives it. Several optimizers of a
 * chain have names of their own, but no parameter in common. State in buckets, of which only the
 * model says what they have, keeps its name. */
static void show_megatron(void *arg, const char *name, size_t n, const char **family,
                          struct shf_buf *shown)
{
	const char *at = name, *end = name + n, *dot;
	char kind[SHF_TORCH_STATE_MAX];

	(void)arg;
	if (n > 8 && memcmp(at, "chained_", 8) == 0) {
		at += 8;
		while (at < end && *at >= '0' && *at <= '9')
			at++;
		at = at < end && *at == '.' ? at + 1 : name;
	}
	if ((size_t)(end - at) > 10 && memcmp(at, "optimizer.", 10) == 0)
		*family = "optimizer";
	else
		at = name;
	dot = NULL;
	if ((size_t)(end - at) > strlen(STATE) && memcmp(at, STATE, strlen(STATE)) == 0) {
		at += strlen(STATE);
		dot = memchr(at, '.', (size_t)(end - at));
	}
	if (dot && is_master(at, (size_t)(dot - at))) {
		*family = "master_weights";
		shf_buf_add(shown, dot + 1, (size_t)(end - dot - 1));
	} else if (dot && dot + 1 < end && shf_torch_state_name(kind, at, (size_t)(dot - at))) {
		shf_buf_add(shown, dot + 1, (size_t)(end - dot - 1));
		shf_buf_addf(shown, "/%s", kind);
	} else {
		shf_buf_add(shown, name, n);
	}
}

/* ---- reading it ---- */

/* Reads the step of the groups of parameters of one optimizer, whose state is v: *step, -1: none
 * has said it yet. Returns false if they do not all say the same. */
static bool groups_step(const struct shf_pk *v, int64_t *step)
{
	const struct shf_pk *inner = shf_pk_get(v, "optimizer");
	const struct shf_pk *groups = shf_pk_get(inner ? inner : v, "param_groups");
	int64_t is;

	if (!groups || groups->kind != SHF_PK_LIST || !groups->n)
		return false;
	for (uint32_t i = 0; i < groups->n; i++) {
		if (!shf_pk_int(shf_pk_get(groups->u.a[i], "step"), &is) || is < 0 ||
		    (*step >= 0 && *step != is))
			return false;
		*step = is;
	}
	return true;
}

/* Notes how many steps the optimizer has made, if it is one number. A chain of optimizers is a
 * dictionary of them by number. */
static int note_adam_step(struct shf_foreign *f, const struct shf_pk *root, struct sheaf_error *err)
{
	const struct shf_pk *v = shf_pk_get(root, "optimizer");
	int64_t step = -1;
	bool same = v && v->kind == SHF_PK_DICT && v->n;

	for (uint32_t i = 0; same && i < v->n && v->u.a[2 * i]->kind == SHF_PK_INT; i++)
		same = groups_step(v->u.a[2 * i + 1], &step);
	if (same && step < 0)
		same = groups_step(v, &step);
	return same && step >= 0 ? shf_foreign_note(f, err, "adam.step", 9, "%" PRId64, step) : 0;
}

/* Adds notes of the values in common.pt. */
static int read_common(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_torch_zip zip = { 0 };
	struct shf_region r;
	uint32_t file;
	int rc = shf_foreign_add_file(f, "common.pt", 9, &file, err);

	if (rc == 0)
		rc = shf_foreign_region(f, file, &r, err);
	if (rc < 0)
		return rc;
	rc = shf_torch_zip_open(&zip, &r, err);
	if (rc == 0)
		rc = shf_torch_walk_notes(f, &zip.pickle, zip.pickle.root, NULL, err);
	if (rc == 0)
		rc = note_adam_step(f, zip.pickle.root, err);
	shf_torch_zip_release(&zip);
	shf_foreign_region_end(f, file);
	return rc;
}

static int open_megatron(struct shf_foreign *f, struct sheaf_error *err)
{
	const struct shf_torch_show show = { .show = show_megatron };
	struct shf_listing l = { .arena = NULL };
	struct shf_megatron_dir d;
	int rc = shf_megatron_find(&d, f->in, f->dir, f->path, err);

	if (rc == 0 || (rc > 0 && d.ranks))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
		              f->path);
	if (rc > 0)
		rc = d.folder[0] ? shf_foreign_enter(f, d.folder, err) : 0;
	if (rc == 0)
		rc = shf_listing_read(&l, &f->arena, f->in, f->dir, f->path, err);
	if (rc == 0)
		rc = check_config(f, &l, err);
	if (rc == 0)
		rc = read_common(f, err);
	if (rc == 0)
		rc = shf_dcp_open(f, &show, true, err);
	shf_buf_release(&l.a);
	return rc;
}

/* Verifies the items, and common.pt. */
static int verify_megatron(struct shf_foreign *f, struct shf_foreign_findings *to,
                           struct sheaf_error *err)
{
	int rc = shf_dcp_verify(f, to, err);
	bool unproved = to->unproved;

	for (uint32_t i = 0; i < shf_foreign_files(f) && rc == 0; i++)
		if (strcmp(shf_foreign_file(f, i)->name, "common.pt") == 0) {
			to->unproved = false;
			rc = shf_zip_verify_file(f, i, to, err);
			unproved |= to->unproved;
		}
	to->unproved = unproved;
	return rc;
}

const struct shf_foreign_format shf_megatron = {
	.name = "megatron.torch_dist",
	.is_dir = is_megatron,
	.open = open_megatron,
	.resolve = shf_dcp_resolve,
	.verify = verify_megatron,
};
