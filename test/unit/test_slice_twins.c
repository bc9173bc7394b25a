/* SPDX-License-Identifier: Apache-2.0 */
/* The same items of a tensor in two places of one rank's memory: refused, unless it is said that
 * both are the same. */
#include <string.h>
#include "slice_twins.h"
#include "state.h"
#include "t.h"

static float memory[3][4096];

static struct sheaf_slice slice(void *data)
{
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .family = "optimizer",
		.name = "w/moment1_0", .dtype = SHEAF_F32, .ndim = 2, .shape = { 20, 20 },
		.start = { 2, 3 }, .count = { 4, 5 }, .data = data };
}

static struct sheaf_slice flat(void *data, int64_t from, int64_t n)
{
	struct sheaf_slice s = slice(data);

	s.flags = SHEAF_SLICE_FLAT;
	s.flat_start = from;
	s.flat_count = n;
	return s;
}

/* Adds the slices to a state, and returns what a save or load of it would be told first. */
static int told(const struct sheaf_slice *s, size_t n, struct sheaf_error *err)
{
	struct sheaf_state *st = shf_state_new();
	int rc;

	for (size_t i = 0; i < n; i++)
		CHECK_RC(shf_state_add(st, &s[i], err), (int)i, err);
	rc = shf_state_ready(st, true, err);
	shf_state_put(st);
	return rc;
}

static int pair(struct sheaf_slice a, struct sheaf_slice b)
{
	const struct sheaf_slice both[2] = { a, b }, turned[2] = { b, a };
	struct sheaf_error err = { 0 };
	int rc = told(both, 2, &err);

	CHECK_INT(told(turned, 2, NULL), rc);
	return rc;
}

TEST(one_name_for_two_buffers_is_refused)
{
	struct sheaf_slice s[3] = { slice(memory[0]), slice(memory[0]), slice(memory[1]) };
	struct sheaf_error err = { 0 };

	s[1].name = "w/moment2_0";
	CHECK_RC(told(s, 3, &err), SHEAF_EINVAL, &err);
	CHECK_STR(err.msg, "slices 0 and 2 are both [2:6, 3:8] of optimizer/w/moment1_0, in "
	          "different memory, so one of them would be lost; give one another name, or set "
	          "SHEAF_SLICE_COPY if both always have the same values");
	s[2].flags = SHEAF_SLICE_COPY;
	CHECK_RC(told(s, 3, &err), 0, &err);
}

TEST(the_same_memory_twice_is_no_twin)
{
	struct sheaf_slice a = slice(memory[0]), b = slice(memory[0]);

	CHECK_INT(pair(a, b), 0);
	b.stride[0] = 5;                        /* the same, spelt out */
	b.stride[1] = 1;
	CHECK_INT(pair(a, b), 0);
	b.origin = 3;                           /* and again, from another address */
	b.data = memory[0];
	CHECK_INT(pair(a, b), SHEAF_EINVAL);
	a.data = memory[0] + 3;
	CHECK_INT(pair(a, b), 0);
	b.stride[0] = 9;                        /* other rows of the same buffer */
	CHECK_INT(pair(a, b), SHEAF_EINVAL);
	a.count[0] = b.count[0] = 1;            /* where there is only one */
	CHECK_INT(pair(a, b), 0);
}

TEST(flat_ranges_are_twins_where_they_meet)
{
	struct sheaf_slice a = flat(memory[0], 0, 10), b = flat(memory[1], 10, 10);

	CHECK_INT(pair(a, b), 0);
	b.flat_start = 9;
	CHECK_INT(pair(a, b), SHEAF_EINVAL);
	b.data = memory[0] + 9;
	CHECK_INT(pair(a, b), 0);
	CHECK_INT(pair(a, slice(memory[1])), SHEAF_EINVAL);
	CHECK_INT(pair(a, slice(memory[0])), 0);
}

/* Each parameter of a flat buffer has an origin of its own. */
TEST(flat_ranges_are_counted_from_the_first_item_of_the_box)
{
	struct sheaf_slice a = flat(memory[0], 0, 20), b = flat(memory[1], 100, 20);

	b.origin = 100;
	CHECK_INT(pair(a, b), SHEAF_EINVAL);
	b.flat_start = 110;                     /* items 10 to 20 of the box */
	CHECK_INT(pair(a, b), SHEAF_EINVAL);
	a.flat_count = 10;
	CHECK_INT(pair(a, b), 0);
	a.flat_count = 20;
	b.data = memory[0] + 10;
	CHECK_INT(pair(a, b), 0);
}

/* The two that are twins are not beside each other in the order of their names and ranges. */
TEST(a_slice_between_them_hides_no_twins)
{
	struct sheaf_slice s[3] = { slice(memory[0]), slice(memory[1]), slice(memory[2]) };
	struct sheaf_error err = { 0 };

	s[1].flags = SHEAF_SLICE_COPY;
	CHECK_RC(told(s, 3, &err), SHEAF_EINVAL, &err);
	CHECK(strstr(err.msg, "slices 0 and 2 are") != NULL);
	s[2].flags = SHEAF_SLICE_COPY;
	CHECK_RC(told(s, 3, &err), 0, &err);
	s[0] = flat(memory[0], 0, 20);
	s[1] = flat(memory[0], 0, 4);
	s[2] = flat(memory[1], 4, 4);
	CHECK_RC(told(s, 3, &err), SHEAF_EINVAL, &err);
	s[2].data = memory[0] + 4;
	CHECK_RC(told(s, 3, &err), 0, &err);
}

TEST(memory_that_moves_apart_is_compared_again)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice a = slice(memory[0]), b = slice(NULL);
	void *apart[2] = { memory[0], memory[1] }, *together[2] = { memory[1], memory[1] };

	CHECK_INT(shf_state_add(st, &a, NULL), 0);
	CHECK_INT(shf_state_add(st, &b, NULL), 1);
	CHECK_INT(shf_state_ready(st, false, NULL), 0);
	CHECK_INT(shf_state_move(st, 1, memory[0], NULL), 0);
	CHECK_INT(shf_state_ready(st, true, NULL), 0);
	CHECK_INT(shf_state_move_all(st, apart, 2, NULL), 0);
	CHECK_INT(shf_state_ready(st, true, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_move_all(st, together, 2, NULL), 0);
	CHECK_INT(shf_state_ready(st, true, NULL), 0);
	shf_state_put(st);
}

/* What a reader of the code would take for the mistake, and is none. */
TEST(what_is_not_the_same_is_left_alone)
{
	struct sheaf_slice a = slice(memory[0]), b = slice(memory[1]);

	b.start[1] = 4;                         /* boxes that overlap: windows of a tensor */
	CHECK_INT(pair(a, b), 0);
	b = slice(memory[1]);
	b.family = "model";
	CHECK_INT(pair(a, b), 0);
	b = slice(memory[1]);
	b.name = "head";
	b.tied_to = "w/moment1_0";              /* the caller has said so */
	CHECK_INT(pair(a, b), 0);
	b = slice(memory[1]);
	a.count[0] = b.count[0] = 0;
	CHECK_INT(pair(a, b), 0);
}

TEST(slices_that_are_added_later_are_compared)
{
	struct sheaf_state *st = shf_state_new();
	struct sheaf_slice a = slice(memory[0]), b = slice(memory[1]);

	CHECK_INT(shf_twins_check(st, NULL), 0);
	CHECK_INT(shf_state_add(st, &a, NULL), 0);
	CHECK_INT(shf_state_ready(st, true, NULL), 0);
	CHECK_INT(shf_state_add(st, &b, NULL), 1);
	CHECK_INT(shf_state_ready(st, false, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_state_ready(st, true, NULL), SHEAF_EINVAL);
	shf_state_put(st);
}
