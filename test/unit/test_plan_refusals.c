/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that no plan can be made of are refused one by one; empty inputs and unusual shapes have
 * a plain answer. */
#include <stddef.h>
#include <stdlib.h>
#include "box.h"
#include "mem.h"
#include "parts.h"
#include "sheaf.h"
#include "t.h"

TEST(boxes_of_other_shapes_are_never_equal_and_contain_nothing)
{
	struct shf_box a = { .ndim = 1, .start = { 2 }, .count = { 3 } };
	struct shf_box b = { .ndim = 2, .start = { 2, 0 }, .count = { 3, 1 } };
	struct shf_box none = { .ndim = 1, .start = { 90 }, .count = { 0 } };

	CHECK(!shf_box_equal(&a, &b) && !shf_box_contains(&a, &b) && !shf_box_contains(&b, &a));
	CHECK(shf_box_equal(&a, &a) && shf_box_contains(&a, &a));
	CHECK(shf_box_contains(&a, &none) && !shf_box_contains(&none, &a));
}

TEST(an_empty_box_spans_nothing_and_prints_into_what_room_there_is)
{
	struct shf_shape shape = { .ndim = 2, .dim = { 4, 5 } };
	struct shf_box b = { .ndim = 2, .start = { 1, 2 }, .count = { 0, 3 } };
	char text[8] = "before";
	uint64_t lo = 7, hi = 7;

	shf_box_span(&shape, &b, &lo, &hi);
	CHECK(lo == 0 && hi == 0);
	b.count[0] = 2;
	b.count[1] = 0;
	shf_box_span(&shape, &b, &lo, &hi);
	CHECK(lo == 0 && hi == 0);
	CHECK_STR(shf_box_print(&b, text, 0), "before");
	CHECK_STR(shf_box_print(&b, text, sizeof(text)), "[1:3, 2");
}

static int called(void *arg, const struct shf_box *box)
{
	(void)box;
	++*(int *)arg;
	return 0;
}

TEST(memory_without_an_item_of_the_box_has_no_boxes)
{
	struct shf_mem m = { .box = { .ndim = 1, .count = { 4 } }, .hi = 4 };
	int n = 0;

	m.stride[0] = 1;
	CHECK_INT(shf_mem_boxes(&m, called, &n), 0);
	CHECK_INT(n, 1);
	m.hi = 0;
	CHECK_INT(shf_mem_boxes(&m, called, &n), 0);
	m.hi = 4;
	m.box.count[0] = 0;
	CHECK_INT(shf_mem_boxes(&m, called, &n), 0);
	CHECK_INT(n, 1);
}

TEST(a_slice_is_not_cut_where_its_numbers_would_wrap)
{
	struct sheaf_slice all = { .size = sizeof(all), .ndim = 2, .shape = { 8, 8 },
		.count = { 8, 8 } }, s = all;

	CHECK_INT(sheaf_slice_shard(NULL, 0, 0, 1, NULL), SHEAF_EINVAL);
	s.ndim = SHEAF_DIMS_MAX + 1;
	CHECK_INT(sheaf_slice_shard(&s, 0, 0, 1, NULL), SHEAF_EINVAL);
	s = all;
	CHECK_INT(sheaf_slice_shard(&s, -1, 0, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_slice_shard(&s, 2, 0, 1, NULL), SHEAF_EINVAL);
	s.stride[0] = INT64_MAX;
	s.stride[1] = 1;
	CHECK_INT(sheaf_slice_shard(&s, 0, 1, 2, NULL), SHEAF_EINVAL);
	s.stride[0] = 1;
	s.origin = INT64_MAX;
	CHECK_INT(sheaf_slice_shard(&s, 0, 1, 2, NULL), SHEAF_EINVAL);
	s = all;
	s.start[0] = INT64_MAX;
	CHECK_INT(sheaf_slice_shard(&s, 0, 1, 2, NULL), SHEAF_EINVAL);
	s.start[0] = 0;
	CHECK_INT(sheaf_slice_shard(&s, 0, 1, 2, NULL), 0);
	CHECK(s.start[0] == 4 && s.count[0] == 4);
}

/* ---- stripes ---- */

struct stripe {
	struct shf_stripe s;
	struct shf_deal_tensor t[2];
	struct shf_piece p[2];
	size_t pieces_n;
	uint32_t ranks;
};

/* Two tensors of 2048 items of 4 bytes behind a page of header; each of two ranks has one. */
static struct stripe sound(void)
{
	struct stripe x = { .s = { .lo = 0, .hi = 5 * SHF_PAGE, .payload = SHF_PAGE,
		.tensors_n = 2 }, .pieces_n = 2, .ranks = 2 };

	for (uint32_t i = 0; i < 2; i++) {
		x.t[i] = (struct shf_deal_tensor){ .shape = { .ndim = 2, .dim = { 2, 1024 } },
			.unit = 4, .off = SHF_PAGE + 2 * i * SHF_PAGE };
		x.p[i] = (struct shf_piece){ .box = { .ndim = 2, .count = { 2, 1024 } },
			.tensor = i, .rank = i };
	}
	return x;
}

static int take(struct stripe *x)
{
	struct shf_parts p;
	int rc;

	x->s.tensors = x->t;
	rc = shf_parts_init(&p, &x->s, x->p, x->pieces_n, NULL, x->ranks);
	shf_parts_release(&p);
	return rc;
}

TEST(each_number_of_a_stripe_that_cannot_be_is_refused)
{
#define AT(field, number) { offsetof(struct stripe, field), sizeof(((struct stripe *)0)->field), \
		(int64_t)(number), #field " = " #number }
	static const struct {
		size_t at, bytes;
		int64_t value;
		const char *what;
	} wrong[] = {
		AT(s.lo, 6 * SHF_PAGE), AT(s.lo, 8), AT(ranks, 0), AT(pieces_n, INT64_MAX),
		AT(t[0].shape.ndim, -1), AT(t[0].shape.ndim, SHEAF_DIMS_MAX + 1), AT(t[0].unit, 0),
		AT(t[0].unit, 3), AT(t[0].off, SHF_PAGE + 2), AT(t[1].off, SHF_PAGE),
		AT(t[0].shape.dim[0], -1), AT(t[0].shape.dim[0], INT64_MAX),
		AT(t[0].shape.dim[0], INT64_MAX / 1024), AT(t[1].off, UINT64_MAX - 3),
		AT(s.hi, 5 * SHF_PAGE - 2), AT(p[0].rank, 2), AT(p[0].tensor, 2),
		AT(p[0].box.ndim, 1), AT(p[0].box.start[0], -1), AT(p[0].box.start[1], 1),
		AT(p[0].box.count[0], 0), AT(p[0].box.count[0], 3),
	};
	struct stripe x = sound();
	size_t n = sizeof(wrong) / sizeof(wrong[0]);

	CHECK_INT(take(&x), 0);
	for (size_t i = 0; i < n; i++) {
		int rc;

		x = sound();
		memcpy((char *)&x + wrong[i].at, &wrong[i].value, wrong[i].bytes);
		rc = take(&x);
		if (rc != SHEAF_EINVAL)
			print_error("%s: %d\n", wrong[i].what, rc);
		CHECK_INT(rc, SHEAF_EINVAL);
	}
	print_message("# %zu numbers refused\n", n);
}
