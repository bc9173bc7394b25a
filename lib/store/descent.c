/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps track of ancestors whose descendants outlive the steps between. A manifest names the parent
 * of its step. Once the parent is pruned, no manifest shows that older steps are on the same
 * branch, and a step that was kept for a while (the best so far, or one whose mark was removed)
 * could never be pruned (I9).
 *
 * The same holds for steps that were set aside, because one of them comes back only if the newest
 * step is its ancestor (aside_restore.c).
 *
 * So before steps are pruned, .sheaf/descent is written: for each step whose parent is gone or
 * about to go, its next ancestor that stays. A line was proven when it was written and stays true.
 * A file that is lost or torn counts as empty; then older steps stay for ever. A file that cannot
 * be read at the moment is an error, because rewriting it would lose its lines. */

#include "descent.h"
#include "list.h"
#include "step_look.h"
#include "run_files.h"
#include <errno.h>
#include <string.h>

#define DESCENT_MAX ((size_t)16 << 20)

struct kin {                    /* a line: `step` descends from `of` */
	int64_t step, of;
	char session[33], of_session[33];
};

/* Returns the entry in the run directory of this step and session, or NULL if there is none. */
static struct shf_entry *list_find_saved(const struct shf_list *list, int64_t step,
                                         const char *session)
{
	for (size_t i = 0; i < list->n; i++) {
		struct shf_entry *e = &list->entries[i];

		if (e->step == step && e->state <= SHF_DAMAGED && strcmp(e->session, session) == 0)
			return e;
	}
	return NULL;
}

/* Like list_find_saved, but also finds a save that was set aside, as that may be brought back. */
static struct shf_entry *list_find_child(const struct shf_list *list, int64_t step,
                                         const char *session)
{
	struct shf_entry *e = list_find_saved(list, step, session);

	for (size_t i = 0; !e && i < list->n; i++)
		if (list->entries[i].step == step && list->entries[i].state == SHF_ASIDE &&
		    strcmp(list->entries[i].session, session) == 0)
			e = &list->entries[i];
	return e;
}

/* Returns the parent, or NULL if it is not in the list. A parent's number is smaller, so following
 * parents always ends. */
static struct shf_entry *parent_of(const struct shf_list *list, const struct shf_entry *e)
{
	if (e->parent < 0 || e->parent >= e->step)
		return NULL;
	return list_find_saved(list, e->parent, e->parent_session);
}

/* Reads one line. Returns false at the end, or at a line that is not well formed. */
static bool next_kin(const char **p, const char *end, struct kin *k)
{
	char line[128], *gap;

	if (!shf_line_get(p, end, "kin ", line, sizeof(line)))
		return false;
	gap = strchr(line, ' ');
	if (!gap)
		return false;
	*gap = '\0';
	return shf_step_split(line, &k->step, k->session) &&
	       shf_step_split(gap + 1, &k->of, k->of_session) && k->of < k->step;
}

/* Checks the text, returns its first line, and sets *end to the end of its last line; NULL: the
 * text is empty or torn. With a torn text, some steps stay longer than they would have to. */
static const char *lines(const struct shf_buf *text, const char **end)
{
	const char *start = (const char *)text->data, *p = start, *first;
	char line[128];

	if (text->len == 0)
		return NULL;
	*end = start + text->len;
	if (!shf_line_get(&p, *end, "sheaf-descent 1", line, 1))
		return NULL;
	first = p;
	while (shf_line_get(&p, *end, "kin ", line, sizeof(line)))
		;
	if (!shf_line_sum_is_right(start, p, *end))
		return NULL;
	*end = p;
	return first;
}

int shf_descent_read(struct shf_store *s, struct shf_list *list, struct shf_buf *text,
                     struct sheaf_error *err)
{
	const char *p, *end;
	struct kin k;
	int rc = s->dot < 0 ? -ENOENT
	                    : shf_text_read(s->sys, s->dot, "descent", text, DESCENT_MAX);

	if (rc == -ENOENT || rc == -EFBIG || rc == -ELOOP || rc == -EISDIR)
		return 0;
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf/descent", s->path);
	p = lines(text, &end);
	/* Lines about steps that are gone, or whose parent is still in the list, say nothing
	 * new. */
	while (p && next_kin(&p, end, &k)) {
		struct shf_entry *e = list_find_child(list, k.step, k.session);

		if (!e || parent_of(list, e))
			continue;
		e->parent = k.of;
		memcpy(e->parent_session, k.of_session, sizeof(e->parent_session));
		e->adopted = true;
	}
	return 0;
}

/* Whether the step is there, but its manifest could not be read now, so that it is unknown whether
 * a line is about it. */
static bool is_unread(const struct shf_list *list, int64_t step)
{
	for (size_t i = 0; i < list->n; i++)
		if (list->entries[i].step == step && list->entries[i].state <= SHF_DAMAGED &&
		    list->entries[i].session[0] == '\0')
			return true;
	return false;
}

/* Finds the next ancestor of the step that is not going to be deleted: *k says which. Returns false
 * if none is known, or if the manifest names it. */
static bool next_ancestor(const struct shf_list *list, const struct shf_entry *e, struct kin *k)
{
	const struct shf_entry *from = e, *of;
	bool said = !e->adopted;        /* the manifest of e names the parent of `from` */

	while ((of = parent_of(list, from)) && of->goes) {
		from = of;
		said = false;
	}
	if (said || !from->parent_session[0] || (!of && !is_unread(list, from->parent)))
		return false;
	k->of = from->parent;
	memcpy(k->of_session, from->parent_session, sizeof(k->of_session));
	return true;
}

/* Keeps the lines about steps that could not be read, this once or for ever: without them the steps
 * beyond would never be pruned again. */
static void keep_unread(const struct shf_list *list, const struct shf_buf *before,
                        struct shf_buf *text)
{
	const char *end, *p = lines(before, &end);
	struct kin k;

	while (p && next_kin(&p, end, &k))
		if (is_unread(list, k.step))
			shf_buf_addf(text, "kin %lld-%s %lld-%s\n", (long long)k.step, k.session,
			             (long long)k.of, k.of_session);
}

/* Writes a line for each step whose parent is deleted now or was deleted before. Nothing is written
 * if the content stays the same. */
int shf_descent_write(struct shf_store *s, const struct shf_list *list,
                      struct shf_buf *before, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	bool any = before->len > 0;
	struct kin k;
	int rc = 0;

	shf_buf_addf(&text, "sheaf-descent 1\n");
	for (size_t i = 0; i < list->n; i++) {
		const struct shf_entry *e = &list->entries[i];

		if ((e->state > SHF_DAMAGED && e->state != SHF_ASIDE) || e->session[0] == '\0')
			continue;
		if (!next_ancestor(list, e, &k))
			continue;
		shf_buf_addf(&text, "kin %lld-%s %lld-%s\n", (long long)e->step, e->session,
		             (long long)k.of, k.of_session);
		any = true;
	}
	keep_unread(list, before, &text);
	shf_line_sum(&text, 0);
	if (text.oom)
		rc = -ENOMEM;
	else if (any && (before->len != text.len ||
	                 memcmp(before->data, text.data, text.len) != 0))
		rc = shf_text_write(s, s->dot, "descent", text.data, text.len, false);
	else
		any = false;
	if (rc == 0 && any)
		rc = shf_dir_sync(s, s->dot);
	if (rc == 0 && any) {
		struct shf_buf old = *before;

		*before = text;
		text = old;
	}
	shf_buf_release(&text);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/descent", s->path) : 0;
}
