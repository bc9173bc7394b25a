/* SPDX-License-Identifier: Apache-2.0 */
/* The publish: turns a complete stage into checkpoint-<step>. publish.c has the protocol. */
#ifndef SHF_PUBLISH_H
#define SHF_PUBLISH_H
#include "manifest.h"
#include "stage.h"

/* C5 to C9:
 *   C5      removes alive-*, checks that S holds exactly the named files with the named sizes, and
 *           fsyncs S and its folders
 *   C6      writes the manifest, fsyncs it, renames it into place, fsyncs S again
 *   C7      checks that the lock still names this session, else ELOST
 *   C8, C9  renames, and fsyncs both parents
 * The caller fills in created, session and run of the manifest. Returns 0, or EINDOUBT if T may
 * exist; with any other code T never appears. */
int shf_stage_publish(struct shf_store *s, struct shf_stage *g, const struct shf_manifest *m,
                      struct sheaf_error *err);
/* Like shf_stage_publish, but publishes the text of an existing manifest, byte for byte. there: S
 * already has the manifest, complete and fsynced, so C6 is skipped; C5 makes its name durable
 * again. */
int shf_stage_publish_as(struct shf_store *s, struct shf_stage *g, const struct shf_buf *text,
                         bool there, struct sheaf_error *err);
#endif
