/* SPDX-License-Identifier: Apache-2.0 */
/* Parses meshes on the command line: dp=2,tp=2,pp=1. Axes not named are 1; the last one named
 * varies fastest with the rank. */
#include "workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const axis_names[WL_AXES] = { "dp", "tp", "pp", "ep" };

#define MESH_RANKS_MAX (INT64_C(1) << 24)

static int axis_of(const char *s, size_t n)
{
	for (int a = 0; a < WL_AXES; a++)
		if (n == 2 && memcmp(s, axis_names[a], 2) == 0)
			return a;
	return -1;
}

/* Parses one "axis=size" of n bytes. */
static int axis_parse(struct wl_mesh *mesh, const char *s, size_t n, const char *text,
		      struct sheaf_error *err)
{
	const char *eq = memchr(s, '=', n);
	int64_t v = 0;
	int axis;

	if (!eq)
		return wl_fail(err, SHEAF_EINVAL, "mesh '%.100s': '%.*s' is not axis=size", text,
			       n < 60 ? (int)n : 60, s);
	axis = axis_of(s, (size_t)(eq - s));
	if (axis < 0)
		return wl_fail(err, SHEAF_EINVAL,
			       "mesh '%.100s': no axis '%.*s', there are dp, tp, pp, ep", text,
			       eq - s < 60 ? (int)(eq - s) : 60, s);
	for (int k = 0; k < mesh->n; k++)
		if (mesh->order[k] == axis)
			return wl_fail(err, SHEAF_EINVAL, "mesh '%.100s': axis %s is named twice",
				       text, axis_names[axis]);
	for (const char *p = eq + 1; p < s + n; p++) {
		if (*p < '0' || *p > '9' || v > MESH_RANKS_MAX)
			return wl_fail(err, SHEAF_EINVAL, "mesh '%.100s': the size of %s is not a "
				       "number", text, axis_names[axis]);
		v = v * 10 + (*p - '0');
	}
	if (v < 1 || v > MESH_RANKS_MAX)
		return wl_fail(err, SHEAF_EINVAL, "mesh '%.100s': the size of %s is not 1 to %lld",
			       text, axis_names[axis], (long long)MESH_RANKS_MAX);
	mesh->size[axis] = v;
	mesh->order[mesh->n++] = axis;
	return 0;
}

int wl_mesh_parse(struct wl_mesh *mesh, const char *text, struct sheaf_error *err)
{
	struct wl_mesh made = { .size = { 1, 1, 1, 1 } };
	int64_t ranks = 1;

	for (const char *s = text;;) {
		size_t n = strcspn(s, ",");
		int rc = axis_parse(&made, s, n, text, err);

		if (rc < 0)
			return rc;
		if (!s[n])
			break;
		s += n + 1;
	}
	for (int a = 0; a < WL_AXES; a++) {
		ranks *= made.size[a]; /* each is at most 2^24, checked after each */
		if (ranks > MESH_RANKS_MAX)
			return wl_fail(err, SHEAF_EINVAL, "mesh '%.100s': more than %lld ranks",
				       text, (long long)MESH_RANKS_MAX);
	}
	*mesh = made;
	return 0;
}

int64_t wl_mesh_ranks(const struct wl_mesh *mesh)
{
	int64_t ranks = 1;

	for (int a = 0; a < WL_AXES; a++)
		ranks *= mesh->size[a];
	return ranks;
}

void wl_mesh_at(const struct wl_mesh *mesh, int64_t rank, int64_t at[WL_AXES])
{
	for (int a = 0; a < WL_AXES; a++)
		at[a] = 0;
	for (int k = mesh->n; k-- > 0;) {
		at[mesh->order[k]] = rank % mesh->size[mesh->order[k]];
		rank /= mesh->size[mesh->order[k]];
	}
}

int wl_layout_parse(struct wl_layout *l, const char *mesh, const char *expert, int zero,
		    struct sheaf_error *err)
{
	struct wl_layout made = { .mesh = { .size = { 1, 1, 1, 1 } }, .zero = zero };
	int rc = mesh ? wl_mesh_parse(&made.mesh, mesh, err) : 0;

	if (rc < 0)
		return rc;
	made.expert = made.mesh;
	if (expert) {
		rc = wl_mesh_parse(&made.expert, expert, err);
		if (rc < 0)
			return rc;
		made.own_expert = true;
		if (wl_mesh_ranks(&made.expert) != wl_mesh_ranks(&made.mesh))
			return wl_fail(err, SHEAF_EINVAL,
				       "expert mesh '%.100s' has %lld ranks, mesh '%.100s' "
				       "has %lld", expert, (long long)wl_mesh_ranks(&made.expert),
				       mesh ? mesh : "", (long long)wl_mesh_ranks(&made.mesh));
	}
	*l = made;
	return 0;
}
