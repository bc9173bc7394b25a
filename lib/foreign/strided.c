/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in any order, transposed or with gaps, would cost a system call for each item. So a
 * read takes a window in which enough of the bytes are wanted, and copies the items from there.
 * Long runs are read into the caller's memory directly. */
#include "strided.h"
#include <string.h>

#define LONG_RUN (UINT64_C(32) << 10)   /* runs of at least so many bytes are read directly into the
                                         * caller's memory */
#define SPARSE 4                        /* a window has at most so many bytes for each wanted one,
                                         * unless it is a page or less */
#define SMALL 4096

/* Copies the items of a window. */
static void strided_scatter(const struct shf_strided *s, int i, const uint8_t *from, uint8_t *to)
{
	const struct shf_axis *a;

	if (i < 0) {
		memcpy(to, from, s->item);
		return;
	}
	a = &s->axis[i];
	if (i == 0 && a->src == s->item && a->dst == s->item) {
		memcpy(to, from, a->n * s->item);
		return;
	}
	for (uint64_t k = 0; k < a->n; k++)
		strided_scatter(s, i - 1, from + k * a->src, to + k * a->dst);
}

/* Reads all windows along the axes from i down to the inner ones. */
static int read_axes(const struct shf_strided *s, int i, uint64_t src, uint8_t *to,
                     struct sheaf_error *err)
{
	int rc = 0;

	if (i >= s->inner) {
		for (uint64_t k = 0; k < s->axis[i].n && rc == 0; k++)
			rc = read_axes(s, i - 1, src + k * s->axis[i].src, to + k * s->axis[i].dst,
			               err);
		return rc;
	}
	if (s->direct)
		return s->read(s->arg, to, s->axis[0].n * s->item, src, err);
	rc = s->read(s->arg, s->window, s->window_bytes, src, err);
	if (rc == 0)
		strided_scatter(s, s->inner - 1, s->window, to);
	return rc;
}

static void axis_remove(struct shf_strided *s, int i)
{
	memmove(&s->axis[i], &s->axis[i + 1], (size_t)(--s->axes - i) * sizeof(s->axis[0]));
}

/* Merges axes that are one in the file and in memory, drops those of one item, and sorts. The axes
 * come with the last dimension last. */
static void axes_settle(struct shf_strided *s)
{
	for (int i = s->axes - 1; i >= 0; i--)
		if (s->axis[i].n == 1)
			axis_remove(s, i);
	for (int i = s->axes - 2; i >= 0; i--) {
		struct shf_axis *a = &s->axis[i], *b = &s->axis[i + 1];

		if (a->src == b->n * b->src && a->dst == b->n * b->dst) {
			b->n *= a->n;
			axis_remove(s, i);
		}
	}
	for (int i = 1; i < s->axes; i++)
		for (int k = i; k > 0 && s->axis[k].src < s->axis[k - 1].src; k--) {
			struct shf_axis a = s->axis[k];

			s->axis[k] = s->axis[k - 1];
			s->axis[k - 1] = a;
		}
}

/* Decides which axes a window has. An axis that is too long for it is cut in two axes: one of as
 * many items as fit, and one of such parts. What is left of it is read by a second call: *rest. */
static void axes_window(struct shf_strided *s, uint64_t *rest, int *rest_axis)
{
	uint64_t wanted = s->item, window = s->item;

	*rest = 0;
	*rest_axis = 0;
	s->inner = 0;
	s->direct = s->axes && s->axis[0].src == s->item && s->axis[0].dst == s->item &&
	            s->axis[0].n * s->item >= LONG_RUN;
	if (s->direct) {
		s->inner = 1;
		return;
	}
	for (int i = 0; i < s->axes; i++) {
		struct shf_axis *a = &s->axis[i];
		uint64_t fit = a->src ? (SHF_WINDOW - window) / a->src + 1 : a->n;
		uint64_t whole = a->n;

		fit = fit < whole ? fit : whole;
		/* Too many unwanted bytes, or too little of the axis: it stays outside. */
		if (fit < 2 || (window + (fit - 1) * a->src > SPARSE * wanted * fit &&
		                window + (fit - 1) * a->src > SMALL))
			break;
		if (fit < whole) {
			*rest = a->n - a->n / fit * fit;
			*rest_axis = i;
			memmove(a + 1, a, (size_t)(s->axes - i) * sizeof(*a));
			s->axes++;
			a[1] = (struct shf_axis){ a->n / fit, a->src * fit, a->dst * fit };
			a->n = fit;
		}
		window += (a->n - 1) * a->src;
		wanted *= a->n;
		s->inner = i + 1;
		if (fit < whole)
			break;
	}
	s->window_bytes = window;
}

/* Reads items along the axes, which start at byte src of the file. */
static int gather_axes(struct shf_strided *s, uint64_t src, uint8_t *to, struct sheaf_error *err)
{
	struct shf_strided part = *s;
	uint64_t rest;
	int rest_axis, rc;

	axes_window(&part, &rest, &rest_axis);
	rc = read_axes(&part, part.axes - 1, src, to, err);
	if (rc == 0 && rest) {
		struct shf_axis *a = &s->axis[rest_axis];
		uint64_t done = a->n - rest;

		src += done * a->src;
		to += done * a->dst;
		a->n = rest;
		rc = gather_axes(s, src, to, err);
	}
	return rc;
}


int shf_strided_read(struct shf_strided *s, uint64_t src, uint8_t *to, struct sheaf_error *err)
{
	axes_settle(s);
	return gather_axes(s, src, to, err);
}
