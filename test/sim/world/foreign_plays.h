/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that tests of foreign checkpoints share. Include after t.h. */
#ifndef FOREIGN_PLAYS_H
#define FOREIGN_PLAYS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "foreign.h"
#include "t.h"
#include "torchfile.h"

/* Returns a disk with a file of these bytes, which are freed. */
static inline struct simdisk *disk_with(const char *path, struct torch_bytes file)
{
	struct simdisk *disk = disk_new();

	CHECK_INT(simdisk_put(disk, path, file.p, file.n), 0);
	free(file.p);
	return disk;
}

/* Returns a play that loads all tensors of the checkpoint at the path. */
static inline struct play foreign_play(struct simdisk *disk, const char *path, int ranks,
                                       void (*hold)(struct hand *h))
{
	struct play p = hands_play(disk, ranks, hold);

	p.path = path;
	p.opts.flags = 0;
	p.flags = SHEAF_LOAD_STRICT;
	return p;
}

/* Loads it on 1 to `most` ranks, and frees the disk. tensors: the number of tensors expected. */
static inline void foreign_loads(struct simdisk *disk, const char *path, int most,
                                 void (*hold)(struct hand *h), int variant, uint64_t tensors)
{
	for (int ranks = 1; ranks <= most; ranks++) {
		struct play p = foreign_play(disk, path, ranks, hold);

		p.variant = variant;
		LOADED(p);
		CHECK_INT(p.report.loaded, tensors);
	}
	simdisk_free(disk);
}

/* Opens the checkpoint at the path, and returns the code. If that is 0, *note is the note with this
 * key, or "". */
static inline int foreign_opens(struct simdisk *disk, const char *path, const char *key,
                                char note[400], struct sheaf_error *err)
{
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct shf_foreign *f = NULL;
	int rc;

	memset(err, 0, sizeof(*err));
	note[0] = '\0';
	rc = shf_foreign_is_here(sys, path, err);
	CHECK(rc != 0);
	rc = rc < 0 ? rc : shf_foreign_open(&f, sys, path, err);
	if (rc == 0) {
		const struct shf_foreign_note *a = (const void *)f->notes.data;

		for (size_t i = 0; i < f->notes.len / sizeof(*a); i++)
			if (strcmp(a[i].key, key) == 0)
				snprintf(note, 400, "%s", a[i].text);
	}
	shf_foreign_free(f);
	CHECK_INT(simdisk_open_n(sys), 0);
	return rc;
}

/* Fails the test unless opening fails with this text in the message. Frees the disk. */
static inline void foreign_refused(struct simdisk *disk, const char *path, const char *why)
{
	struct sheaf_error err;
	char note[400];
	int rc = foreign_opens(disk, path, "", note, &err);

	if (rc != SHEAF_EFORMAT || !strstr(err.msg, why))
		fail_msg("want '%s', got %d: %s", why, rc, err.msg);
	CHECK(strncmp(err.msg, path, strlen(path)) == 0);
	simdisk_free(disk);
}
#endif
