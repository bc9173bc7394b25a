/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that is only read: struct shf_sys over a tree of nodes that a target builds and bends. It
 * has neither log nor lock, so that a whole directory is made, read and gone in tens of
 * microseconds. Links, things that are neither file nor directory, refusals, holes and files that
 * change while they are read are part of it; everything that would write is -EROFS.
 */
#ifndef RAMDISK_H
#define RAMDISK_H
#include <stdbool.h>
#include "sys.h"

enum { RAM_NODES = 320, RAM_TEXT = 1 << 16, RAM_FDS = 256 };
struct ram_node {
	struct ram_node *parent, *first, *next;
	const char *name, *target;      /* in the disk's text */
	uint8_t *bytes;                 /* owned */
	size_t have;                    /* bytes that are there; up to size all else is zeros */
	uint64_t size;
	int type;                       /* SHF_T_... */
	int refuse;                     /* errno of opening it; 0 */
	int broken;                     /* errno of reading it; 0 */
	int reads;                      /* after so many it is cut to a half; 0: never */
};
struct ramdisk {
	struct shf_sys sys;
	struct ram_node nodes[RAM_NODES];
	size_t nodes_n, text_n;
	char text[RAM_TEXT];
	struct ram_node *fds[RAM_FDS];
	size_t open_n;
	bool resident;                  /* in the page cache */
	bool full;                      /* a node or a text found no room */
	int64_t clock;
	uint64_t draws;
};

void ramdisk_init(struct ramdisk *d);
void ramdisk_release(struct ramdisk *d);
/* A node under dir (NULL: the root), in place of one of that name. Takes bytes, which shf_free
 * frees. NULL: no room. */
struct ram_node *ram_put(struct ramdisk *d, struct ram_node *dir, const char *name, int type,
                         uint8_t *bytes, size_t n);
/* Makes a file with a copy of the bytes. */
void ram_file(struct ramdisk *d, struct ram_node *dir, const char *name, const void *bytes,
              size_t n);
struct ram_node *ram_link(struct ramdisk *d, struct ram_node *dir, const char *name,
                          const char *target);
void ram_drop(struct ram_node *node);
struct ram_node *ram_find(struct ramdisk *d, struct ram_node *dir, const char *path);
void ram_name(struct ramdisk *d, struct ram_node *node, const char *name);
#endif
