/* SPDX-License-Identifier: Apache-2.0 */
/* The calls sheaf_save_attach, sheaf_save_note and sheaf_save_rank_bytes. Each call checks what it
 * is given. Whether the entries of several ranks fit together is checked in the commit
 * (save_attach_gather.c, save_record.c). */
#include "save_attach.h"
#include <inttypes.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "json.h"
#include "mf_check.h"
#include "rank_files.h"
#include "run_env.h"
#include "save.h"
#include "save_status.h"
#include "save_record.h"
#include "valid.h"

/* The longest possible line of an attached file in the manifest, without its name. */
#define FILE_NUMBERS ", bytes: 9223372036854775807, crc: 0123456789abcdef"

/* Ends a call that gives a note, an attached file or a stream, and returns rc. EINVAL refuses only
 * this entry, and the save goes on. The message goes to the log as well, because few callers look
 * at the result; but not if the save is over, because then the run may be closed. Any other failure
 * (no memory) fails the save, because its step would lack what was given. */
static int given(struct sheaf_save *save, int rc, const struct sheaf_error *err)
{
	if (rc == SHEAF_EINVAL && save->at.end != SHF_OVER)
		shf_log(save->run, 1, "%s: step %" PRId64 " is saved without this: %s",
		        save->run->store.path,
		        save->id.step, err->msg);
	else if (rc < 0 && rc != SHEAF_EINVAL)
		shf_save_stick(save, rc, err);
	return rc;
}

/* EINVAL if the save takes no more notes and files. */
static int takes_more(const struct sheaf_save *save, struct sheaf_error *err)
{
	if (save->at.end == SHF_OVER)
		return shf_fail(err, SHEAF_EINVAL, "the save has ended; it takes no more files and "
		                "notes");
	if (save->behind.submitted)
		return shf_fail(err, SHEAF_EINVAL, "the save was submitted; it takes no more files "
		                "and notes");
	/* The step in memory has the notes and files that were gathered, and the step on disk must
	 * have the same. */
	return save->at.sums < SHF_SUMS_GATHERED ? 0
	     : shf_fail(err, SHEAF_EINVAL, "too late: sheaf_save_commit has already collected the "
	                "files and notes of all ranks");
}

/* Checks an attached file. *line: how many bytes it takes in the manifest. */
static int attach_check(const struct sheaf_save *save, const char *file, const void *bytes,
                        size_t n, size_t *line, struct sheaf_error *err)
{
	int rc = takes_more(save, err);

	if (rc < 0)
		return rc;
	if (!file || !shf_attached_is_valid(file))
		return shf_fail(err, SHEAF_EINVAL, "attached file '%.140s': its name must match "
		                "[A-Za-z0-9._-]{1,128}, and not sheaf.* or *.safetensors*",
		                file ? file : "");
	if (shf_rank_file_is(file))
		return shf_fail(err, SHEAF_EINVAL, "attached file '%s': names that begin with "
		                "'rank-bytes.' are reserved for sheaf_save_rank_bytes; choose "
		                "another", file);
	if (shf_layout_family(&save->plan->layout, file) >= 0 && strcmp(file, "model") != 0)
		return shf_fail(err, SHEAF_EINVAL, "attached file '%s': a family has this name; "
		                "choose another", file);
	if (n > UINT64_C(64) << 20 || (!bytes && n))
		return shf_fail(err, SHEAF_EINVAL, "attached file %s: %zu bytes%s", file, n,
		                bytes ? ", at most 64 MiB" : " at NULL");
	for (size_t i = 0; i < save->given.attached_n; i++)
		if (strcmp(save->given.attached[i].name, file) == 0)
			return shf_fail(err, SHEAF_EINVAL, "attached file %s: given twice", file);
	return shf_save_record_takes(save, 1, file, FILE_NUMBERS, line, err);
}

/* Stores copies of the name and the bytes. */
static int attach(struct sheaf_save *save, const char *file, const void *bytes, size_t n,
                  struct sheaf_error *err)
{
	struct shf_attached *more = shf_realloc(save->given.attached, save->given.attached_n + 1,
	                                        sizeof(*more)), *a = NULL;

	if (more) {
		save->given.attached = more;
		a = &more[save->given.attached_n];
		*a = (struct shf_attached){ shf_strdup(file), shf_alloc(n, 1), n };
	}
	if (!a || !a->name || !a->bytes) {
		/* attached_n does not count the entry, so no one reads half of it. */
		shf_free(a ? a->name : NULL);
		shf_free(a ? a->bytes : NULL);
		return shf_fail(err, SHEAF_ENOMEM, "attached file %s: no memory", file);
	}
	if (n)
		memcpy(a->bytes, bytes, n);
	save->given.attached_n++;
	return 0;
}

int shf_save_attach(struct sheaf_save *save, const char *file, const void *bytes, size_t n,
                    struct sheaf_error *err)
{
	struct sheaf_error own;
	size_t line;
	int rc;

	err = shf_err_or(err, &own);
	rc = attach_check(save, file, bytes, n, &line, err);
	if (rc == 0)
		rc = attach(save, file, bytes, n, err);
	if (rc == 0)
		save->given.given_bytes += line;
	return given(save, rc, err);
}

/* Checks a note. *line: how many bytes it takes in the manifest. */
static int note_check(const struct sheaf_save *save, const char *key, const char *value,
                      size_t *line, struct sheaf_error *err)
{
	size_t n = value ? strlen(value) : 0;
	int rc = takes_more(save, err);

	if (rc < 0)
		return rc;
	if (!key || !shf_note_key_is_valid(key) || !value || !shf_utf8_is_valid(value, n))
		return shf_fail(err, SHEAF_EINVAL, "note '%.70s': its key must match "
		                "[A-Za-z0-9._/-]{1,64}, and its value must be UTF-8",
		                key ? key : "");
	if (strncmp(key, "ranks.", 6) == 0)
		return shf_fail(err, SHEAF_EINVAL, "note %s: keys that begin with 'ranks.' are "
		                "reserved for sheaf_state_rank_bytes; choose another", key);
	if (n > SHF_NOTE_MAX || save->given.notes_bytes + strlen(key) + n > SHF_NOTES_MAX)
		return shf_fail(err, SHEAF_EINVAL, "note %s: a value must be at most 64 KiB, all "
		                "notes together at most 512 KiB", key);
	for (size_t i = 0; i < save->given.notes_n; i++)
		if (strcmp(save->given.notes[i].key, key) == 0)
			return shf_fail(err, SHEAF_EINVAL, "note %s: given twice", key);
	return shf_save_record_takes(save, 1, key, value, line, err);
}

/* Stores copies of the key and the value. */
static int note(struct sheaf_save *save, const char *key, const char *value,
                struct sheaf_error *err)
{
	struct shf_note *more = shf_realloc(save->given.notes, save->given.notes_n + 1,
	                                    sizeof(*more)), *a = NULL;

	if (more) {
		save->given.notes = more;
		a = &more[save->given.notes_n];
		*a = (struct shf_note){ shf_strdup(key), shf_strdup(value) };
	}
	if (!a || !a->key || !a->value) {
		shf_free(a ? a->key : NULL);
		shf_free(a ? a->value : NULL);
		return shf_fail(err, SHEAF_ENOMEM, "note %s: no memory", key);
	}
	save->given.notes_bytes += strlen(key) + strlen(value);
	save->given.notes_n++;
	return 0;
}

int shf_save_note(struct sheaf_save *save, const char *key, const char *value,
                  struct sheaf_error *err)
{
	struct sheaf_error own;
	size_t line;
	int rc;

	err = shf_err_or(err, &own);
	rc = note_check(save, key, value, &line, err);
	if (rc == 0)
		rc = note(save, key, value, err);
	if (rc == 0)
		save->given.given_bytes += line;
	return given(save, rc, err);
}

/* Returns whether any rank stores the stream as tensors of family ranks (sheaf_state_rank_bytes).
 * The plan has the tensors of all ranks. */
static bool is_stream_of_state(const struct sheaf_save *save, const char *stream)
{
	const struct shf_layout *l = &save->plan->layout;
	int64_t f = shf_layout_family(l, "ranks");
	size_t n = strlen(stream);

	for (uint32_t i = 0; f >= 0 && i < l->families[f].tensors_n; i++) {
		const char *name = l->tensors[l->families[f].first_tensor + i].name;

		if (strncmp(name, stream, n) == 0 && name[n] == '/')
			return true;
	}
	return false;
}

/* Checks the opaque bytes of a stream. *line: how many bytes they take in the manifest. The ranks
 * cut what they give into files together, so the room for the lines of files that are full is taken
 * with the first stream. */
static int rank_bytes_check(const struct sheaf_save *save, const char *stream, const void *bytes,
                            size_t n, size_t *line, struct sheaf_error *err)
{
	const size_t full = 2 * SHF_RANK_BYTES_ALL / SHF_RANK_FILE_BYTES;
	char file[SHF_RANK_FILE_NAME];
	int rc = takes_more(save, err);

	if (rc < 0)
		return rc;
	if (!shf_stream_is_valid(stream))
		return shf_fail(err, SHEAF_EINVAL, "stream '%.60s': its name must match "
		                "[a-z0-9._-]{1,57}", stream ? stream : "");
	if (n > SHF_RANK_BYTES_MAX || (!bytes && n))
		return shf_fail(err, SHEAF_EINVAL, "stream %s: %zu bytes%s", stream, n,
		                bytes ? ", at most 64 MiB" : " at NULL");
	if (save->given.ranks_bytes + n > SHF_RANK_BYTES_ALL)
		return shf_fail(err, SHEAF_EINVAL, "stream %s: with it the streams of this rank "
		                "would have %" PRIu64 " bytes, at most 512 MiB", stream,
		                save->given.ranks_bytes + n);
	if (is_stream_of_state(save, stream))
		return shf_fail(err, SHEAF_EINVAL, "stream %s: the state has it already, by "
		                "sheaf_state_rank_bytes; choose another name", stream);
	for (size_t i = 0; i < save->given.ranks_n; i++)
		if (strcmp(save->given.ranks[i].stream, stream) == 0)
			return shf_fail(err, SHEAF_EINVAL, "stream %s: given twice", stream);
	shf_rank_file_name(file, stream, UINT32_MAX);
	if (!shf_attached_is_valid(file))
		return shf_fail(err, SHEAF_EINVAL, "stream %s: its name is a part of a file name, "
		                "which must not contain .safetensors; choose another name",
		                stream);
	return shf_save_record_takes(save, save->given.ranks_n ? 1 : 1 + full, file, FILE_NUMBERS,
	                             line, err);
}

/* Stores copies of the name and the bytes. */
static int rank_bytes(struct sheaf_save *save, const char *stream, const void *bytes, size_t n,
                      struct sheaf_error *err)
{
	struct shf_rank_given *more = shf_realloc(save->given.ranks, save->given.ranks_n + 1,
	                                          sizeof(*more)), *a = NULL;

	if (more) {
		save->given.ranks = more;
		a = &more[save->given.ranks_n];
		*a = (struct shf_rank_given){ .stream = shf_strdup(stream),
			.bytes = shf_alloc(n, 1), .n = n };
	}
	if (!a || !a->stream || !a->bytes) {
		shf_free(a ? a->stream : NULL);
		shf_free(a ? a->bytes : NULL);
		return shf_fail(err, SHEAF_ENOMEM, "stream %s: no memory", stream);
	}
	if (n)
		memcpy(a->bytes, bytes, n);
	a->crc = shf_crc64(a->bytes, n);
	save->given.ranks_bytes += n;
	save->given.ranks_n++;
	return 0;
}

int shf_save_rank_bytes(struct sheaf_save *save, const char *stream, const void *bytes, size_t n,
                        struct sheaf_error *err)
{
	struct sheaf_error own;
	size_t line;
	int rc;

	err = shf_err_or(err, &own);
	rc = rank_bytes_check(save, stream, bytes, n, &line, err);
	if (rc == 0)
		rc = rank_bytes(save, stream, bytes, n, err);
	if (rc == 0)
		save->given.given_bytes += line;
	return given(save, rc, err);
}
