/* SPDX-License-Identifier: Apache-2.0 */
/* The small texts of .sheaf: who holds the lock, which run it is, marks, tries, the journal of a
 * rewind; as they are and, where they end in a sum, with a sum that is right. And the names of
 * directories that mean something. */
#include "aside.h"
#include "fuzz.h"
#include "list.h"
#include "lock.h"
#include "marks_read.h"
#include "ramdisk.h"
#include "run_files.h"
#include "valid.h"

#define ID "0123456789abcdef0123456789abcdef"

static struct ramdisk disk;

/* What is taken, is written as it was and taken again. */
static void check_owner(const uint8_t *text, size_t n)
{
	struct shf_owner o, back;
	struct shf_buf b = SHF_BUF_INIT;
	char session[33], again[33];

	if (!shf_owner_get(text, n, &o, session))
		return;
	MUST(shf_id_is_valid(session, 32));
	shf_owner_put(&b, &o, session);
	MUST(!b.oom && shf_owner_get(b.data, b.len, &back, again));
	MUST(!strcmp(o.host, back.host) && !strcmp(o.boot, back.boot) && o.pid == back.pid);
	MUST(o.pid_ns == back.pid_ns && o.start == back.start && o.time_ns == back.time_ns);
	MUST(!strcmp(session, again));
	shf_buf_release(&b);
}

static void check_name(const char *name)
{
	static const struct shf_store runs[] = { { .prefix = "checkpoint-" }, { .prefix = "" },
		{ .prefix = "step-" } };
	char session[33], out[80];
	int64_t step;

	for (size_t i = 0; i < 3; i++) {
		if (!shf_step_of_name(&runs[i], name, &step))
			continue;
		MUST(step >= 0);
		shf_name_of_step(&runs[i], out, step);
		MUST(!strcmp(out, name));
	}
	if (shf_step_split(name, &step, session)) {
		MUST(step >= 0);
		snprintf(out, sizeof(out), "%lld-%s", (long long)step, session);
		MUST(!strcmp(out, name));
	}
}

/* The text as file `name` of a run, which is then opened and asked. Takes text. */
static void in_run(uint8_t *text, size_t n, const char *folder, const char *name)
{
	struct shf_store s;
	struct sheaf_error err = { .msg = "" };
	struct ram_node *dot;
	struct shf_list list;
	char pattern[SHF_PATTERN], mark;
	int rc;

	ramdisk_init(&disk);
	dot = ram_put(&disk, ram_put(&disk, NULL, "run", SHF_T_DIR, NULL, 0), ".sheaf", SHF_T_DIR,
	              NULL, 0);
	if (folder)
		dot = ram_put(&disk, dot, folder, SHF_T_DIR, NULL, 0);
	ram_put(&disk, dot, name, SHF_T_FILE, text, n);
	rc = shf_store_open(&s, &disk.sys, "run", &err);
	MUST(rc == 0 || rc == SHEAF_EFORMAT || rc == SHEAF_ECORRUPT || rc == SHEAF_EIO);
	MUST(rc == 0 || err.msg[0]);
	if (rc == 0) {
		MUST(s.run[0] == '\0' || shf_id_is_valid(s.run, 32));
		shf_folder_pattern(&s, pattern);
		MUST(shf_folder_check(pattern, NULL) == 0);
		mark = shf_mark_read(&s, 7, NULL);
		MUST(mark == 'k' || mark == 'b' || mark == 0 || mark == '?');
		MUST(shf_store_list(&s, &list, &err) == 0 && list.n == 0);
		shf_list_release(&list);
		/* Nothing can be written: a journal that is one ends there. */
		rc = shf_rewind_finish(&s, &err);
		MUST(rc == 0 || rc == SHEAF_ECORRUPT || (rc == SHEAF_EIO && err.sys));
		shf_store_close(&s);
	}
	MUST(disk.open_n == 0);
	ramdisk_release(&disk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = { "run", "rewind", "lock", "7" };
	struct shf_buf text = SHF_BUF_INIT, sealed = SHF_BUF_INIT;

	if (size < 1)
		return 0;
	shf_buf_add(&text, data + 1, size - 1);
	shf_buf_add(&sealed, data + 1, size - 1);
	MUST(shf_buf_reserve(&sealed, 32) == 0); /* an empty one has no address */
	shf_line_sum(&sealed, 0);
	shf_buf_u8(&text, 0);
	shf_buf_u8(&sealed, 0);
	MUST(!text.oom && !sealed.oom);
	text.len--;
	sealed.len--;
	check_owner(text.data, text.len);
	check_owner(sealed.data, sealed.len);
	check_name((const char *)text.data);
	if (data[0] % 4 == 1) {
		in_run(sealed.data, sealed.len, NULL, "rewind");
		sealed = (struct shf_buf)SHF_BUF_INIT;
	}
	in_run(text.data, text.len, data[0] % 4 == 3 ? "marks" : NULL, names[data[0] % 4]);
	shf_buf_release(&sealed);
	return 0;
}
