/* SPDX-License-Identifier: Apache-2.0 */
#include "export_beside.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "export_config.h"
#include "foreign.h"
#include "json_walk.h"
#include "rank_files.h"
#include "run_files.h"
#include "valid.h"

#define PIECE (UINT64_C(1) << 20)       /* of a file, copied at once */
#define ATTACHED_MAX (UINT64_C(64) << 20)       /* the longest file that a step can have */

/* ---- one file ---- */

/* Copies the file that is open as `in` to the new file `out`, and sums it. Returns 0, or a negative
 * errno, and sets *reading if it comes from reading `in`. */
static int copy_pieces(const struct shf_sys *sys, int in, int out, struct shf_mf_file *m,
                       bool *reading)
{
	uint8_t *piece = shf_alloc(PIECE, 1);
	int64_t got = piece ? 1 : -ENOMEM, put = 0;

	while (got > 0 && put >= 0) {
		got = shf_sys_pread(sys, in, piece, PIECE, m->bytes);
		if (got <= 0)
			break;
		put = shf_sys_pwrite(sys, out, piece, (size_t)got, m->bytes);
		m->crc = shf_crc64_more(m->crc, piece, (size_t)got);
		m->bytes += (uint64_t)got;
	}
	shf_free(piece);
	*reading = got < 0;
	if (got < 0)
		return (int)got;
	return put < 0 ? (int)put : shf_sys_fsync(sys, out);
}

/* Copies a config.json of `bytes` bytes as shf_config_clean() changes it. source: receives the
 * length and the CRC of what was read. Fails as copy_pieces() does. */
static int copy_config(const struct shf_sys *sys, int in, int out, uint64_t bytes,
                       struct shf_mf_file *m, struct shf_mf_file *source, bool *reading)
{
	uint8_t *was = shf_alloc((size_t)bytes + 1, 1);
	int64_t got = was ? shf_sys_pread(sys, in, was, (size_t)bytes, 0) : -ENOMEM, put = 0;
	struct shf_buf is = SHF_BUF_INIT;

	*reading = got < 0;
	if (got >= 0) {
		source->bytes = (uint64_t)got;
		source->crc = shf_crc64_more(0, was, (size_t)got);
		shf_config_clean(&is, was, (size_t)got);
		put = is.oom ? -ENOMEM : 0;
	}
	if (got >= 0 && put == 0 && is.len) {
		put = shf_sys_pwrite(sys, out, is.data, is.len, 0);
		m->bytes = is.len;
		m->crc = shf_crc64_more(0, is.data, is.len);
	}
	shf_buf_release(&is);
	shf_free(was);
	if (got < 0)
		return (int)got;
	return put < 0 ? (int)put : shf_sys_fsync(sys, out);
}

static bool is_planned(const struct shf_export_plan *plan, const char *name)
{
	for (size_t f = 0; f < plan->out.files_n; f++)
		if (strcmp(plan->files[f].name, name) == 0)
			return true;
	return false;
}

/* Returns whether a file of this name cannot be copied, because the export writes a file or folder
 * of this name itself. Its folders, small files and indexes are there already; its files of tensors
 * are not, and begin under another name. A .distcp file in any format would be taken for one of
 * torch.distributed.checkpoint. */
static bool is_replaced(const struct shf_export_beside *b, const char *name)
{
	static const char part[] = SHF_EXPORT_PART, distcp[] = ".distcp";
	size_t n = strlen(name), m = sizeof(distcp) - 1;
	struct shf_stat st;

	if (!b->plan)
		return false;
	return (n >= m && strcmp(name + n - m, distcp) == 0) || is_planned(b->plan, name) ||
	       (strncmp(name, part, sizeof(part) - 1) == 0 &&
	        is_planned(b->plan, name + sizeof(part) - 1)) ||
	       shf_sys_stat(b->sys, b->dir, name, false, &st) >= 0;
}

/* Returns whether the step that is written can have this file as an attached file. */
static bool is_attachable(const struct shf_export_beside *b, const char *name, uint64_t bytes)
{
	if (!b->step)
		return true;
	return shf_attached_is_valid(name) && (bytes <= ATTACHED_MAX || shf_rank_file_is(name)) &&
	       (strcmp(name, "model") == 0 || shf_layout_family(b->step, name) < 0);
}

/* Copies the file that is open as `in`, and is `from` in the directory `path`, to a new file of
 * this name. */
static int copy_open(struct shf_export_beside *b, int in, const char *path, const char *from,
                     const char *name, struct shf_mf_file *m, struct sheaf_error *err)
{
	struct shf_stat was, is;
	bool reading = true;
	int out, closed, rc = shf_sys_fstat(b->sys, in, &was);

	if (rc >= 0 && was.type != SHF_T_FILE)
		return 0;
	if (rc >= 0 && !is_attachable(b, name, was.bytes)) {
		b->left_out++;
		return 0;
	}
	if (rc >= 0) {
		reading = false;
		rc = out = shf_sys_open(b->sys, b->dir, name, SHF_O_WRITE | SHF_O_CREATE |
		                        SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
		if (out >= 0) {
			if (strcmp(name, "config.json") == 0 && was.bytes <= SHF_CONFIG_MAX) {
				rc = copy_config(b->sys, in, out, was.bytes, m, &b->source,
				                 &reading);
			} else {
				rc = copy_pieces(b->sys, in, out, m, &reading);
				b->source = *m;
			}
			closed = shf_sys_close(b->sys, out);
			rc = rc < 0 ? rc : closed;
		}
	}
	if (rc >= 0) {
		reading = true;
		rc = shf_sys_fstat(b->sys, in, &is);
	}
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/%s", reading ? path : b->path,
		                   reading ? from : name);
	if (!shf_stat_is_same(&was, &is))
		return shf_fail(err, SHEAF_EAGAIN, "%s/%s: was changed while it was being read; "
		                "open it again when it is complete", path, from);
	m->name = shf_arena_strdup(&b->arena, name, strlen(name));
	if (m->name)
		shf_buf_add(&b->copied, m, sizeof(*m));
	return m->name && !b->copied.oom ? 0
	     : shf_fail(err, SHEAF_ENOMEM, "%s/%s: no memory to copy it", path, name);
}

/* Copies a file of the directory `from` in pieces, and fills in *m. The file may be a symbolic
 * link, as in the cache of the Hugging Face hub. If there is no file of that name, or the export
 * writes one itself, nothing is done, and a file that the new step cannot have is only counted:
 * then m->name is NULL. */
static int copy_beside(struct shf_export_beside *b, int from, const char *path, const char *name,
                       struct shf_mf_file *m, struct sheaf_error *err)
{
	int in, rc;

	*m = (struct shf_mf_file){ 0 };
	if (is_replaced(b, name))
		return 0;
	in = shf_sys_open(b->sys, from, name, 0, 0);
	if (in == -ENOENT)
		return 0;
	if (in < 0)
		return shf_fail_io(err, -in, "%s/%s", path, name);
	rc = copy_open(b, in, path, name, name, m, err);
	shf_sys_close(b->sys, in);
	return rc;
}

/* ---- which files ---- */

/* Returns whether a file has a name such as trainer.json, or trainer-3.json of rank 3. */
static bool is_document(const char *name, const char *stem)
{
	size_t n = strlen(stem);

	if (strncmp(name, stem, n))
		return false;
	if (name[n] == '-')
		for (n++; name[n] >= '0' && name[n] <= '9';)
			n++;
	return strcmp(name + n, ".json") == 0;
}

static int note_extra_state(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err)
{
	static const char at[] = "tree.dict.extra_state.dict.";

	(void)err;
	*(bool *)arg |= strncmp(x->path, at, sizeof(at) - 1) == 0;
	return 0;
}

/* Returns whether trainer.json has no extra state of modules, which belongs to their weights. */
static bool lacks_extra_state(const struct shf_export_beside *b, int dir, const char *name)
{
	struct shf_buf text = SHF_BUF_INIT;
	bool has = false;
	int rc = shf_text_read(b->sys, dir, name, &text, SHF_CONFIG_MAX);

	if (rc >= 0)
		rc = shf_json_walk(text.data, text.len, name, note_extra_state, &has, NULL);
	shf_buf_release(&text);
	return rc >= 0 && !has;
}

/* Returns whether a file is only what a trainer continues from: options and schedules, of
 * sheaf.Checkpointer or sheaf-train. Weights that are written alone are the start of another
 * training, which must not take these up. */
static bool is_of_training(const struct shf_export_beside *b, int dir, const char *name)
{
	if (!b->weights_alone)
		return false;
	return is_document(name, "param_groups") || strcmp(name, "train.yaml") == 0 ||
	       (is_document(name, "trainer") && lacks_extra_state(b, dir, name));
}

/* Returns whether a file names tensors of a training, and would name others than there are. */
static bool is_renamed(struct shf_export_beside *b, const char *name)
{
	bool is = b->renamed && (is_document(name, "param_groups") || is_document(name, "trainer"));

	b->left_out += is;
	return is;
}

/* Copies the attached files of a step of Sheaf, and compares their checksums. */
static int put_attached(struct shf_export_beside *b, struct sheaf_checkpoint *step,
                        struct sheaf_error *err)
{
	bool checks = !(step->run->opts.flags & SHEAF_RUN_UNVERIFIED);
	int rc = 0;

	for (size_t i = 0; i < step->plain_n && rc == 0; i++) {
		const struct shf_mf_file *want = &step->plain[i];
		uint64_t left_out = b->left_out;
		struct shf_mf_file m;

		if (!shf_attached_is_valid(want->name) || strcmp(want->name, SHF_EXPORT_MARK) == 0
		    || is_replaced(b, want->name) || is_of_training(b, step->dir, want->name)
		    || is_renamed(b, want->name)
		    || (shf_rank_file_is(want->name) && !b->rank_files))
			continue;
		rc = copy_beside(b, step->dir, step->path, want->name, &m, err);
		if (b->left_out > left_out)
			continue;
		if (rc == 0 && !m.name)
			rc = shf_fail(err, SHEAF_ECORRUPT, "%s/%s: missing, or not a file",
			              step->path, want->name);
		if (rc == 0 && checks &&
		    (b->source.bytes != want->bytes || b->source.crc != want->crc))
			rc = shf_fail(err, SHEAF_ECORRUPT, "%s/%s: %" PRIu64 " bytes with checksum "
			              "%016" PRIx64 ", want %" PRIu64 " and %016" PRIx64,
			              step->path, want->name, b->source.bytes, b->source.crc,
			              want->bytes, want->crc);
	}
	return rc;
}

static const char *const known[] = { "config.json", "generation_config.json", "tokenizer.json",
	"tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
	"chat_template.jinja", "chat_template.json", "preprocessor_config.json",
	"processor_config.json", "modules.json", "adapter_config.json" };
#define KNOWN_N (sizeof(known) / sizeof(known[0]))

static bool is_known(const char *name)
{
	for (size_t i = 0; i < KNOWN_N; i++)
		if (strcmp(known[i], name) == 0)
			return true;
	return false;
}

/* Copies the files that belong to a model of Hugging Face, whatever their size, if they lie in the
 * directory `from`, whose path is `path`. Files of any kind may lie beside a torch.save file, so
 * only known names are copied. */
static int put_known(struct shf_export_beside *b, int from, const char *path,
                     struct sheaf_error *err)
{
	struct shf_mf_file m;
	int rc = 0;

	for (size_t i = 0; i < KNOWN_N && rc == 0; i++)
		rc = copy_beside(b, from, path, known[i], &m, err);
	return rc;
}

/* Copies the known files of a Hugging Face directory, and its other plain files. */
static int put_plain(struct shf_export_beside *b, const struct sheaf_checkpoint *step,
                     struct sheaf_error *err)
{
	int rc = put_known(b, step->dir, step->path, err);
	struct shf_mf_file m;

	for (size_t i = 0; i < step->plain_n && rc == 0; i++) {
		const char *name = step->plain[i].name;

		if (!is_known(name) && !shf_rank_file_is(name) &&
		    !is_of_training(b, step->dir, name))
			rc = copy_beside(b, step->dir, step->path, name, &m, err);
	}
	return rc;
}

/* Copies the known files that lie in the directory of a foreign checkpoint, or beside it if it is a
 * file. */
static int put_beside(struct shf_export_beside *b, const struct sheaf_checkpoint *step,
                      struct sheaf_error *err)
{
	const struct shf_foreign *f = step->foreign;
	char *path, *slash;
	const char *in;
	int from, rc;

	if (f->dir >= 0)
		return put_known(b, f->dir, f->path, err);
	path = shf_strdup(f->path);
	if (!path)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", f->path);
	slash = strrchr(path, '/');
	if (slash)
		slash[slash == path] = '\0';    /* the root keeps its slash */
	in = slash ? path : ".";
	from = shf_sys_open(b->sys, SHF_CWD, in, SHF_O_DIR, 0);
	rc = from < 0 ? shf_fail_io(err, -from, "%s: the directory that it lies in", f->path)
	              : put_known(b, from, in, err);
	shf_fd_close(b->sys, &from);
	shf_free(path);
	return rc;
}

static bool was_copied(const struct shf_export_beside *b, const char *name)
{
	const struct shf_mf_file *m = (const void *)b->copied.data;

	for (size_t i = 0; i < b->copied.len / sizeof(*m); i++)
		if (strcmp(m[i].name, name) == 0)
			return true;
	return false;
}

/* Copies the config.json that a map was given, unless the source has one. */
static int put_config(struct shf_export_beside *b, const struct sheaf_checkpoint *step,
                      struct sheaf_error *err)
{
	static const char name[] = "config.json";
	struct shf_mf_file m = { 0 };
	const char *slash;
	char *path;
	int in, rc;

	while (!step->config && step->source)
		step = step->source;
	if (!step->config || was_copied(b, name) || is_replaced(b, name))
		return 0;
	in = shf_sys_open(b->sys, SHF_CWD, step->config, 0, 0);
	if (in < 0)
		return shf_fail_io(err, -in, "%s", step->config);
	slash = strrchr(step->config, '/');
	path = shf_strdup(slash ? step->config : ".");
	if (path && slash)
		path[slash - step->config] = '\0';
	rc = !path ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", step->config)
	           : copy_open(b, in, path, slash ? slash + 1 : step->config, name, &m, err);
	shf_free(path);
	shf_sys_close(b->sys, in);
	return rc;
}

int shf_export_beside_copy(struct shf_export_beside *b, struct sheaf_checkpoint *step,
                           struct sheaf_error *err)
{
	struct sheaf_checkpoint *source = shf_step_behind_maps(step);
	int rc = source->foreign ? put_beside(b, source, err)
	       : source->sound   ? put_attached(b, source, err)
	                         : put_plain(b, source, err);

	return rc < 0 ? rc : put_config(b, step, err);
}

void shf_export_beside_release(struct shf_export_beside *b)
{
	shf_buf_release(&b->copied);
	shf_arena_release(&b->arena);
}
