/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy files: loaded in any layout, and refused with a sentence where they are damaged or
 * lie. */
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "foreign_read.h"
#include "npy_head.h"
#include "t.h"
#include "foreign_plays.h"
#include "numpyfile.h"
#include "packedfile.h"
#include "foreign_starved.h"

static const struct torch_tensor two[] = {
	{ .name = "a.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
	{ .name = "norm", .dtype = SHEAF_F16, .ndim = 1, .shape = { 41 } },
	{ .name = "b", .dtype = SHEAF_F64, .ndim = 3, .shape = { 5, 3, 7 } },
	{ .name = "big", .dtype = SHEAF_F64, .ndim = 2, .shape = { 301, 213 } },
};
#define TWO ((int)(sizeof(two) / sizeof(two[0])))

static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "a.w", SHEAF_F32, 2, 37, 29);

	hand_cut(s, h->play->variant % 2, h->rank, h->ranks);
	s = hand_add(h, "model", "norm", SHEAF_F16, 1, 41);
	hand_cut(s, 0, h->rank, h->ranks);
	hand_add(h, "model", "b", SHEAF_F64, 3, 5, 3, 7);
	s = hand_add(h, "model", "big", SHEAF_F64, 2, 301, 213);
	hand_cut(s, (h->play->variant + 1) % 2, h->rank, h->ranks);
}

TEST(an_archive_loads_in_any_layout)
{
	for (int deflated = 0; deflated < 2; deflated++) {
		struct simdisk *disk = disk_with("a.npz", npz_file(two, TWO, deflated));

		for (int variant = 0; variant < 2; variant++) {
			struct play p = foreign_play(disk, "a.npz", 3, held);

			p.variant = variant;
			p.takes = variant ? 4 : 0;
			LOADED(p);
			CHECK_INT(p.report.loaded, TWO);
		}
		simdisk_free(disk);
	}
}

/* Opens a file, reads its first tensor, and verifies it; returns the first code that is not 0. */
static int opens(const uint8_t *bytes, size_t n, struct sheaf_error *err)
{
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_checkpoint *step = NULL;
	int rc;

	memset(err, 0, sizeof(*err));
	CHECK_INT(simdisk_put(disk, "f", bytes, n), 0);
	rc = shf_step_open_path(&step, "f", NULL, NULL, sys, err);
	if (rc == 0 && step->cat_rc < 0) {
		rc = step->cat_rc;
		*err = step->cat_err;
	}
	if (rc == 0 && step->foreign) {
		const struct shf_foreign_tensor *t;
		uint8_t some[64];
		size_t of;

		t = shf_foreign_tensors(step->foreign, &of);
		if (of && t->bytes)
			rc = shf_foreign_gather(step->foreign, t, some,
			                        t->bytes < 64 ? t->bytes : 64, 0, err);
	}
	if (rc == 0)
		rc = shf_step_verify(step, NULL, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
	return rc;
}

TEST(a_file_that_is_cut_anywhere_is_refused)
{
	struct torch_bytes files[] = { npy_file(&two[0], true), npz_file(two, 2, false),
	                               npz_file(two, 2, true) };
	struct sheaf_error err;

	for (int i = 0; i < 3; i++) {
		for (size_t n = 8; n < files[i].n; n += n < 200 ? 1 : (size_t)T_STRIDE) {
			CHECK_INT(opens(files[i].p, n, &err), SHEAF_EFORMAT);
			CHECK(strstr(err.msg, "without checksums") == NULL);
		}
		free(files[i].p);
	}
}

TEST(a_flipped_bit_of_a_compressed_archive_is_found)
{
	struct torch_bytes file = npz_file(two, 2, true);
	struct sheaf_error err;
	size_t missed = 0;

	CHECK_RC(opens(file.p, file.n, &err), 0, &err);
	for (size_t i = 64; i < 8 * file.n; i += (size_t)T_STRIDE) {
		file.p[i / 8] ^= (uint8_t)(1 << i % 8);
		missed += opens(file.p, file.n, &err) == 0;
		file.p[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	/* What no reader looks at: local headers but for names, data descriptors, times. */
	CHECK(missed < 8 * file.n / (size_t)T_STRIDE / 4);
	free(file.p);
}

TEST(headers_that_lie_are_refused_by_what_is_wrong)
{
	static const struct { const char *header, *why; } flaws[] = {
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", NULL },
		{ "{\"shape\":(2,3L),'descr':'=f4','fortran_order':True}", NULL },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", "has 24 bytes of "
		  "items, but its shape needs 32" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 0), }", "needs 0" },
		{ "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", "f: is a "
		  "big-endian array, which sheaf does not read" },
		{ "{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }", "is an array of "
		  "Python objects, which are pickled, which sheaf does not read" },
		{ "{'descr': [('x', '<f4'), ('y', '<i2', (2,))], 'fortran_order': False, 'shape': "
		  "(3,), }", "is a structured array, which sheaf does not read" },
		{ "{'descr': '<V2', 'fortran_order': False, 'shape': (12,), }", "of a type that "
		  "its file does not name" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (6), }", "has no shape" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }", "has no shape" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 3), }",
		  "a size beyond 63 bits" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,), }",
		  "has no shape" },
		{ "{'descr': '<f4', 'fortran_order': False}", "of three entries" },
		{ "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}",
		  "of three entries" },
		{ "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}", "of three entries" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1}",
		  "of three entries" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} + 1",
		  "of three entries" },
		{ "__import__('os').system('true')", "is not a dictionary" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", "does not end" },
	};
	uint8_t zeros[24] = { 0 };
	struct torch_bytes items = { zeros, 24, 24 };

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		struct torch_bytes file = npy_of(flaws[i].header, items);
		struct sheaf_error err;
		int rc = opens(file.p, file.n, &err);

		if (rc != SHEAF_EFORMAT ||
		    !strstr(err.msg, flaws[i].why ? flaws[i].why : "without checksums"))
			fail_msg("%s: got %d: %s", flaws[i].header, rc, err.msg);
		free(file.p);
	}
}

/* Of less than the directory says, and of more. */
TEST(a_compressed_record_that_is_not_what_the_directory_says_is_refused)
{
	struct torch_bytes one = npy_file(&two[0], false), other = one;
	struct torch_record r = { .name = "w.npy", .data = one };
	struct sheaf_error err;

	for (int more = 0; more < 2; more++) {
		struct torch_bytes file;

		if (more) {
			other = (struct torch_bytes){ NULL, 0, 0 };
			torch_add(&other, one.p, one.n);
			torch_add(&other, "more", 4);
		} else {
			other.n -= 4;
		}
		r.packed = packed_deflate(other);
		file = torch_zip(&r, 1);
		CHECK_INT(opens(file.p, file.n, &err), more ? SHEAF_EFORMAT : SHEAF_ECORRUPT);
		free(file.p);
		free(r.packed.p);
	}
	free(other.p);
	free(one.p);
}

/* The record is noted only. */
TEST(a_record_that_overlaps_another_one_is_refused_even_if_it_is_not_read)
{
	struct torch_bytes one = npy_file(&two[0], false), file;
	struct torch_record r[] = { { .name = "notes", .data = one }, { .name = "w.npy",
		.data = one } };
	struct sheaf_error err;
	uint8_t *entry;

	file = torch_zip(r, 2);
	CHECK_RC(opens(file.p, file.n, &err), 0, &err);
	entry = memmem(file.p, file.n, "PK\1\2", 4);
	CHECK(entry != NULL);
	entry[21]++;            /* 256 bytes more, packed and not */
	entry[25]++;
	CHECK_INT(opens(file.p, file.n, &err), SHEAF_EFORMAT);
	CHECK(strstr(err.msg, "record notes of") && strstr(err.msg, "overlaps what follows it"));
	free(file.p);
	free(one.p);
}

/* Each kind of a read of a part: forward, backward, and beyond what the buffer has. */
TEST(compressed_parts_are_read_from_any_byte_in_bounded_memory)
{
	enum { N = 3 << 20, ROOM = 1 << 20 };
	struct torch_bytes plain = { malloc(N), N, N }, packed;
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct shf_packed of = { .at = 5, .decoded = N };
	struct shf_region r = { sys, -1, 0, 0, "f", NULL, false };
	struct sheaf_error err;
	struct shf_unpacker u;
	uint8_t *got = malloc(N);
	uint64_t x = 1;

	for (int i = 0; i < N; i++)
		plain.p[i] = (uint8_t)((x = x * 6364136223846793005 + 1442695040888963407) >> 56);
	for (int k = 0; k < 3; k++) {
		of.codec = k == 0 ? SHF_CODEC_DEFLATE : k == 1 ? SHF_CODEC_ZSTD : SHF_CODEC_GZIP;
		packed = k == 0 ? packed_deflate(plain) : k == 1 ? packed_zstd(plain)
		       : packed_gzip(plain);
		of.bytes = packed.n;
		r.bytes = packed.n + 5;
		CHECK_INT(simdisk_put(disk, "f", "12345", 5), 0);
		packed.p = realloc(packed.p, packed.n + 5);
		memmove(packed.p + 5, packed.p, packed.n);
		CHECK_INT(simdisk_put(disk, "f", packed.p, packed.n + 5), 0);
		r.fd = shf_sys_open(sys, SHF_CWD, "f", 0, 0);
		shf_unpacker_init(&u, &of, ROOM);
		for (int i = 0; i < 20; i++) {
			uint64_t at = (x = x * 6364136223846793005 + 1) % N, n = x >> 40;

			n = n % (N - at) + 1;
			CHECK_RC(shf_unpacker_read(&u, &r, got, n, at, &err), 0, &err);
			CHECK(memcmp(got, plain.p + at, n) == 0);
		}
		CHECK(shf_unpacker_bytes(&u) < 2 * ROOM + 1);
		shf_unpacker_release(&u);
		shf_sys_close(sys, r.fd);
		free(packed.p);
	}
	simdisk_free(disk);
	free(plain.p);
	free(got);
}

TEST(each_allocation_may_fail)
{
	struct simdisk *disk = disk_with("a.npz", npz_file(two, 2, true));

	foreign_survives(disk, "a.npz", 1, 0);
	simdisk_free(disk);
}
