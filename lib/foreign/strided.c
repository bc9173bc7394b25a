/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in any order, transposed or with gaps, would cost a system call for each item. So a
 * read takes a window in which enough of the bytes are wanted, and copies the items from there.
 * Long runs are read into the caller's memory directly. */
#include "strided.h"
#include <string.h>

#define LONG_RUN (UINT64_C(32) << 10)   /* runs of at least so many bytes are read directly into the
                                         * caller's memory */
#define SPARSE 4                        /* a window has at most so many bytes for each wanted one,
                                         * unless it, or its steps, have a page or less */
#define SMALL 4096

/* ---- copying out of a window ---- */

#define COPY_ITEMS(type)                                                                 \
	do {                                                                             \
		for (uint64_t k = 0; k < n; k++) {                                       \
			type x;                                                          \
			memcpy(&x, from + k * a->src, sizeof(x));                        \
			memcpy(to + k * a->dst, &x, sizeof(x));                          \
		}                                                                        \
	} while (0)

/* Copies n items along one axis. */
static void copy_axis(const struct shf_axis *a, uint64_t n, uint64_t item, const uint8_t *from,
                      uint8_t *to)
{
	if (a->src == item && a->dst == item)
		memcpy(to, from, n * item);
	else if (item == 2)
		COPY_ITEMS(uint16_t);
	else if (item == 4)
		COPY_ITEMS(uint32_t);
	else if (item == 8)
		COPY_ITEMS(uint64_t);
	else
		for (uint64_t k = 0; k < n; k++)
			memcpy(to + k * a->dst, from + k * a->src, item);
}

/* Copies the items along axes 0 to i, which ascend by dst, so that memory is written in order. */
static void copy_axes(const struct shf_axis *a, int i, uint64_t item, const uint8_t *from,
                      uint8_t *to)
{
	if (i < 0)
		memcpy(to, from, item);
	else if (i == 0)
		copy_axis(a, a->n, item, from, to);
	else
		for (uint64_t k = 0; k < a[i].n; k++)
			copy_axes(a, i - 1, item, from + k * a[i].src, to + k * a[i].dst);
}

/* Copies all items of a window: along the inner axes, and along one more of n parts, which lie one
 * after the other in the window and `dst` bytes apart in memory. */
static void copy_window(const struct shf_strided *s, uint64_t n, uint64_t dst, uint8_t *to)
{
	struct shf_axis a[SHF_AXES_MAX + 2];
	int m = 0;

	for (int i = 0; i <= s->inner; i++) {
		struct shf_axis x = i < s->inner ? s->axis[i]
		                  : (struct shf_axis){ n, s->window_bytes, dst };
		int at = m;

		if (x.n == 1)
			continue;
		for (; at > 0 && a[at - 1].dst > x.dst; at--)
			a[at] = a[at - 1];
		a[at] = x;
		m++;
	}
	copy_axes(a, m - 1, s->item, s->window, to);
}

/* ---- reading windows ---- */

/* Reads all windows along the axes from i down to the inner ones. Where windows are small, those
 * along the next axis are read one after the other, and copied together: short runs that lie far
 * apart in memory would touch each of its lines again and again. */
static int read_axes(const struct shf_strided *s, int i, uint64_t src, uint8_t *to,
                     struct sheaf_error *err)
{
	const struct shf_axis *a;
	uint64_t at = 0, most = s->direct ? 1 : SHF_WINDOW / s->window_bytes, n;
	int rc = 0;

	if (s->direct && i < s->inner)
		return s->read(s->arg, to, s->axis[0].n * s->item, src, err);
	a = i < 0 ? NULL : &s->axis[i];        /* -1: one item, or one window of all */
	if (i > s->inner || (s->direct && i >= s->inner)) {
		for (uint64_t k = 0; k < a->n && rc == 0; k++)
			rc = read_axes(s, i - 1, src + k * a->src, to + k * a->dst, err);
		return rc;
	}
	for (uint64_t all = i == s->inner ? a->n : 1; at < all && rc == 0; at += n) {
		n = all - at < most ? all - at : most;
		for (uint64_t k = 0; k < n && rc == 0; k++)
			rc = s->read(s->arg, s->window + k * s->window_bytes, s->window_bytes,
			             i == s->inner ? src + (at + k) * a->src : src, err);
		if (rc == 0 && i == s->inner)
			copy_window(s, n, a->dst, to + at * a->dst);
		else if (rc == 0)
			copy_window(s, 1, 0, to);
	}
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
		/* Too many unwanted bytes, or too little of the axis: it stays outside. With steps
		 * of a page or less each page is read anyway. */
		if (fit < 2 || (window + (fit - 1) * a->src > SPARSE * wanted * fit &&
		                window + (fit - 1) * a->src > SMALL && a->src > SMALL))
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
