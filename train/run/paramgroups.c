/* SPDX-License-Identifier: Apache-2.0 */
#include "paramgroups.h"

#include <stdio.h>
#include <stdlib.h>

#include "registry.h"

/* The groups, in the order of the file. Muon updates matrices of layers only, which have decay. */
enum { BY_MUON, DECAYED, NOT_DECAYED, GROUPS };

static int group_of(const struct tr_param *p, int muon)
{
	if (muon && p->matrix)
		return BY_MUON;
	return p->decay ? DECAYED : NOT_DECAYED;
}

/* Puts a number in the shortest form that is read as the same double. */
static void put_number(FILE *to, const char *key, double x)
{
	char text[32];

	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, x);
		if (strtod(text, NULL) == x)
			break;
	}
	fprintf(to, "%s%s", key, text);
}

/* Puts a group, unless no parameter is in it. Returns whether it did. */
static int put_group(FILE *to, const struct tr_registry *reg, const struct tr_opts *o, int group,
		     double lr, int first)
{
	int n = 0;

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];

		if (p->tied_to >= 0 || group_of(p, o->optimizer == TR_MUON) != group)
			continue;
		fprintf(to, "%s\"%s\"", n++ ? ", " : first ? "{\"params\": [" : ", {\"params\": [",
			p->name);
	}
	if (!n)
		return 0;
	put_number(to, "], \"lr\": ", lr);
	if (group == BY_MUON) {
		put_number(to, ", \"momentum\": ", o->beta1);
	} else {
		put_number(to, ", \"betas\": [", o->beta1);
		put_number(to, ", ", o->beta2);
		put_number(to, "], \"eps\": ", o->eps);
	}
	put_number(to, ", \"weight_decay\": ", group == NOT_DECAYED ? 0 : o->weight_decay);
	fputs("}", to);
	return 1;
}

static void put_groups(FILE *to, const struct tr_registry *reg, const struct tr_opts *o, double lr)
{
	int n = 0, muon;

	fputs("{\"param_groups\": [", to);
	muon = put_group(to, reg, o, BY_MUON, lr, 1);
	n = muon;
	for (int g = DECAYED; g < GROUPS; g++)
		n += put_group(to, reg, o, g, lr, n == 0);
	fputs("], \"optimizers\": [", to);
	if (muon)
		fputs("{\"type\": \"Muon\", \"groups\": 1}, ", to);
	fprintf(to, "{\"type\": \"AdamW\", \"groups\": %d}]}\n", n - muon);
}

int tr_param_groups(char **text, const struct tr_setup *s, double lr, struct tr_error *err)
{
	static const struct tr_pieces all = { 1, 0, 1 };
	const struct tr_part part = { 0, s->config.layers, 1 };
	const struct tr_parts whole = { .n = 1, .part = &part };
	struct tr_registry reg;
	size_t n;
	FILE *to;
	int rc = tr_registry_make(&reg, &s->config, &whole, &all, &all, err);

	*text = NULL;
	to = rc == 0 ? open_memstream(text, &n) : NULL;
	if (to) {
		int bad;

		put_groups(to, &reg, s->o, lr);
		bad = ferror(to);
		if (fclose(to) != 0 || bad) {
			free(*text);
			*text = NULL;
		}
	}
	tr_registry_release(&reg);
	if (rc == 0 && !*text)
		rc = tr_fail(err, TR_ENOMEM, "no memory for the list of parameters in a save");
	return rc;
}
