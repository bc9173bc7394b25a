/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong in a load on one rank alone is the result on all ranks (load_fill.c,
 * load_stream.c, load_rounds.c): none returns as if it had everything. */
#include <errno.h>
#include "hands.h"
#include "simover.h"
#include "t.h"

/* ---- a tensor at an odd offset, which each rank reads for itself ---- */

static const struct hand_tensor odd[] = { { "c", SHEAF_F32, 2, { 64, 300 } },
	{ "a", SHEAF_U8, 1, { 3 } }, { "b", SHEAF_F32, 2, { 64, 90 } } };
#define BEFORE_B ((uint64_t)64 * 300 * 4)       /* bytes of c; b lies behind them */

static void hold_odd(struct hand *h)
{
	hand_cut(hand_add(h, "model", "c", SHEAF_F32, 2, 64, 300), 1, h->rank, h->ranks);
	hand_add(h, "model", "a", SHEAF_U8, 1, 3);
	hand_cut(hand_add(h, "model", "b", SHEAF_F32, 2, 64, 90), 0, h->rank, h->ranks);
}

static int reads_of_b;

static int64_t pread_not_b(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	if (off < BEFORE_B)
		return simover_real()->file.pread(arg, fd, buf, n, off);
	reads_of_b++;
	return -EIO;
}

static void cannot_read_b(struct hand *h)
{
	if (h->rank == h->play->variant)
		simover(&h->used)->file.pread = pread_not_b;
}

TEST(a_tensor_at_an_odd_offset_that_one_rank_cannot_read_fails_the_load_on_all)
{
	struct simdisk *disk = disk_new();

	hands_file(disk, "hf/model.safetensors", odd, 3, 0);
	simdisk_set_resident(disk, 0);
	for (int ranks = 2; ranks < 4; ranks++) {
		for (int bad = 0; bad < ranks; bad++) {
			struct play p = hands_play(disk, ranks, hold_odd);

			p.path = "hf";
			p.tamper = cannot_read_b;
			p.variant = bad;
			reads_of_b = 0;
			CHECK_RC(hands_load(&p), SHEAF_EIO, &p.err);
			CHECK(reads_of_b > 0);
		}
		struct play p = hands_play(disk, ranks, hold_odd);

		p.path = "hf";
		LOADED(p);
	}
	simdisk_free(disk);
}
