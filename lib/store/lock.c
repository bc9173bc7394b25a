/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's lock: an open-file-description lock on .sheaf/lock, and in the file a text that
 * says who holds it. The lock is a courtesy: the second job in a run gets an error that names the
 * first. Without it both jobs would fail later and less clearly, but no step would be harmed.
 * Safety rests on sessions (I5), on never replacing (I6) and on the text, which is read again just
 * before anything is published (C7).
 *
 * Forked children share a description, so a lock can outlive the process that took it: a data
 * loader that the trainer forked holds it until it exits. The owner therefore unlocks before it
 * closes. If the owner was killed, its text names a process that is proven dead, and the next job
 * replaces the locked file by a new one.
 *
 *   D1  A process that wants the lock first locks .sheaf/door, and keeps it locked until it has
 *       written its text. So nobody sees the lock of a living process with the text of a dead
 *       one, and no two jobs replace the file at once.
 *   D2  A process that holds the lock for long without owning the run (a salvage) adds its own text
 *       behind that of the last owner. The last text in the file names the holder.
 *
 * The door is not replaced as the lock is, because nothing would keep apart two jobs that do so at
 * once. So if a job is killed while it holds the door, a child that another of its threads forked
 * at that moment keeps all others out until it exits.
 *
 * On a file system without locks neither lock has an effect, and C7 alone keeps two jobs apart. */
#include "lock.h"
#include "err.h"
#include "run_files.h"
#include "valid.h"

#include <errno.h>
#include <string.h>

#define LOCK_MAX 1024

/* The text ends with a checksum of itself. A file that is overwritten in place, and read at the
 * same time by another client, would otherwise be taken for a mixture of two owners. */
void shf_owner_put(struct shf_buf *out, const struct shf_owner *owner, const char *session)
{
	size_t start = out->len;

	shf_buf_addf(out, "sheaf-owner 1\nhost %s\nboot %s\n", owner->host, owner->boot);
	shf_buf_addf(out, "pid_ns %llu\npid %llu\nstart %llu\n",
	             (unsigned long long)owner->pid_ns, (unsigned long long)owner->pid,
	             (unsigned long long)owner->start);
	if (owner->time_ns)
		shf_buf_addf(out, "time_ns %llu\n", (unsigned long long)owner->time_ns);
	if (owner->dev)
		shf_buf_addf(out, "dev %llu\n", (unsigned long long)owner->dev);
	shf_buf_addf(out, "session %s\n", session);
	shf_line_sum(out, start);
}

/* Reads the text at *at and moves *at past it. Returns false if no complete text with a right sum
 * begins there. */
static bool owner_next(const char **at, const char *end, struct shf_owner *owner, char session[33])
{
	const char *start = *at, *p = start;
	struct shf_owner o = { .pid = 0 };
	char text[40];

	if (!shf_line_get(&p, end, "sheaf-owner 1", text, 1) ||
	    !shf_line_get(&p, end, "host ", o.host, sizeof(o.host)) ||
	    !shf_line_get(&p, end, "boot ", o.boot, sizeof(o.boot)) ||
	    !shf_line_number(&p, end, "pid_ns ", &o.pid_ns) ||
	    !shf_line_number(&p, end, "pid ", &o.pid) ||
	    !shf_line_number(&p, end, "start ", &o.start))
		return false;
	(void)shf_line_number(&p, end, "time_ns ", &o.time_ns);
	(void)shf_line_number(&p, end, "dev ", &o.dev);
	if (!shf_line_get(&p, end, "session ", text, sizeof(text)) || !shf_id_is_valid(text, 32))
		return false;
	/* A text that was torn by a crash or partly overwritten names nobody. */
	if (!shf_line_sum_is_right(start, p, end))
		return false;
	*owner = o;
	memcpy(session, text, 33);
	(void)shf_line_get(&p, end, "sum ", text, sizeof(text));
	*at = p;
	return true;
}

/* Reads only the first text, that of the last owner of the run (D2). */
bool shf_owner_get(const uint8_t *bytes, size_t n, struct shf_owner *owner, char session[33])
{
	const char *p = (const char *)bytes;

	return n > 0 && owner_next(&p, p + n, owner, session);
}

/* Goes through all texts in the file, because a salvage adds its own after that of the owner (D2).
 * If any text is torn, nobody is named: the torn one may be the holder's. */
int shf_lock_holder(struct shf_store *s, struct shf_owner *owner, char session[33])
{
	struct shf_buf text = SHF_BUF_INIT;
	int rc = shf_text_read(s->sys, s->dot, "lock", &text, LOCK_MAX);
	bool said = rc == 0 && text.len > 0;

	if (said) {
		const char *p = (const char *)text.data, *end = p + text.len;

		do
			said = owner_next(&p, end, owner, session);
		while (said && p < end);
	}
	shf_buf_release(&text);
	if (!said)
		session[0] = '\0';
	return rc == -EFBIG ? 0 : rc;
}

/* Returns whether the process that the lock file names is proven dead. */
static bool holder_is_dead(struct shf_store *s)
{
	struct shf_owner owner;
	char session[33];

	return shf_lock_holder(s, &owner, session) == 0 && session[0] &&
	       shf_sys_owner_is_dead(s->sys, &owner);
}

/* Tries a shared lock, which is refused only while another process has the exclusive one. */
bool shf_lock_is_held(struct shf_store *s)
{
	const struct shf_sys *sys = s->sys;
	int fd = shf_sys_open(sys, s->dot, "lock", SHF_O_NOFOLLOW, 0), rc;

	/* A file that cannot be opened counts as not locked. */
	rc = fd < 0 ? 0 : shf_sys_lock(sys, fd, false);
	shf_lock_close(sys, &fd);
	return rc == -EAGAIN && !holder_is_dead(s);
}

void shf_lock_close(const struct shf_sys *sys, int *fd)
{
	if (*fd >= 0)
		(void)shf_sys_unlock(sys, *fd);
	shf_fd_close(sys, fd);
}

bool shf_lock_is_absent(int rc)
{
	return rc == -ENOLCK || rc == -ENOSYS || rc == -ENOTSUP || rc == -EINVAL;
}

/* Locks the file that has the name `lock` now. Somebody may remove or replace the file between our
 * open and our lock; then our lock excludes nobody, so the inodes are compared afterwards. -EAGAIN:
 * another process has the lock, or the file was replaced. */
static int try_lock(struct shf_store *s)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat a, b;
	int fd, rc;

	fd = shf_sys_open(sys, s->dot, "lock", SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	if (fd < 0)
		return fd;
	rc = shf_sys_lock(sys, fd, true);
	if (rc < 0 && !shf_lock_is_absent(rc))
		goto out;
	rc = shf_sys_fstat(sys, fd, &a);
	if (rc < 0)
		goto out;
	rc = shf_sys_stat(sys, s->dot, "lock", false, &b);
	if (rc == -ENOENT || (rc >= 0 && (a.ino != b.ino || a.dev != b.dev)))
		rc = -EAGAIN;
out:
	if (rc < 0) {
		shf_lock_close(sys, &fd);
		return rc;
	}
	s->lock = fd;
	return 0;
}

/* Replaces a lock file that only a forked child of a dead owner still has locked. The new file
 * keeps the text, which may be all that proves the owner dead. It is locked before it gets the
 * name, so that no process finds it unlocked. The door (D1) keeps other jobs from doing the same at
 * once. */
static int replace(struct shf_store *s)
{
	const struct shf_sys *sys = s->sys;
	struct shf_buf text = SHF_BUF_INIT;
	int64_t put;
	int fd, rc = shf_text_read(sys, s->dot, "lock", &text, LOCK_MAX);

	if (rc < 0) {
		shf_buf_release(&text);
		return rc;
	}
	/* A job that died in this function may have left the file. */
	(void)shf_sys_unlink(sys, s->dot, "lock.next", false);
	fd = shf_sys_open(sys, s->dot, "lock.next",
			  SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
	rc = fd < 0 ? fd : shf_sys_lock(sys, fd, true);
	if (rc >= 0) {
		put = shf_sys_pwrite(sys, fd, text.data, text.len, 0);
		rc = put < 0 ? (int)put
		             : shf_sys_rename(sys, s->dot, "lock.next", s->dot, "lock", false);
	}
	if (rc >= 0)
		s->lock = fd;
	else
		shf_lock_close(sys, &fd);
	shf_buf_release(&text);
	return rc < 0 ? rc : 0;
}

/* Locks .sheaf/door (D1), without waiting. -EAGAIN: another process has locked it. */
static int door_open(struct shf_store *s)
{
	const struct shf_sys *sys = s->sys;
	int rc;

	s->door = shf_sys_open(sys, s->dot, "door",
			       SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	if (s->door < 0)
		return s->door;
	rc = shf_sys_lock(sys, s->door, true);
	return rc < 0 && !shf_lock_is_absent(rc) ? rc : 0;
}

/* Tries once to lock both .sheaf/door and .sheaf/lock. On success the door stays locked until the
 * text is written (D1). */
static int try_door(struct shf_store *s)
{
	int rc = door_open(s);

	if (rc == 0) {
		rc = try_lock(s);
		if (rc == -EAGAIN && holder_is_dead(s))
			rc = replace(s);
	}
	if (rc < 0)
		shf_lock_close(s->sys, &s->door);
	return rc;
}

/* Returns whether the owner is this process, because a second open in one process gets an error
 * message of its own. */
static bool is_self(const struct shf_store *s, const struct shf_owner *o)
{
	struct shf_owner self;

	return shf_sys_owner(s->sys, &self) >= 0 && self.pid == o->pid &&
	       self.pid_ns == o->pid_ns && self.start == o->start &&
	       strcmp(self.boot, o->boot) == 0;
}

/* Makes the error EBUSY, which names the holder of the lock. */
static int fail_busy(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_owner o;
	char session[33];

	if (shf_lock_holder(s, &o, session) < 0 || !session[0])
		shf_fail(err, SHEAF_EBUSY, "%s: another job has the run open for writing, and its "
		         "lock does not say which; wait for it, or open with SHEAF_RUN_READONLY",
		         s->path);
	else if (!is_self(s, &o))
		shf_fail(err, SHEAF_EBUSY, "%s: another job has the run open for writing: pid %llu "
		         "on %s, session %s; wait for it, or open with SHEAF_RUN_READONLY", s->path,
		         (unsigned long long)o.pid, o.host, session);
	else
		shf_fail(err, SHEAF_EBUSY, "%s: this process (pid %llu) has the run open for "
		         "writing already; close that first, or open with SHEAF_RUN_READONLY",
		         s->path, (unsigned long long)o.pid);
	return SHEAF_EBUSY;
}

/* Polls, because an open-file-description lock cannot be waited for with a limit. The time spent
 * asleep counts as elapsed even if the clock stands still, so that the loop ends in any case. The
 * intervals grow from 1 ms to 100 ms. */
int shf_lock_take(struct shf_store *s, int wait_ms, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	int64_t start = shf_sys_mono_ns(sys);
	int64_t slept = 0, gone;
	int ms = 1, rc;

	for (;;) {
		rc = try_door(s);
		if (rc != -EAGAIN)
			break;
		gone = (shf_sys_mono_ns(sys) - start) / 1000000;
		gone = gone > slept ? gone : slept;
		if (gone >= wait_ms)
			return fail_busy(s, err);
		if (ms > wait_ms - gone)
			ms = (int)(wait_ms - gone);
		shf_sys_sleep_ms(sys, ms);
		slept += ms;
		ms = ms < 50 ? ms * 2 : 100;
	}
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf/lock", s->path);
	return 0;
}

int shf_lock_read(struct shf_store *s, struct shf_owner *owner, char session[33])
{
	struct shf_buf text = SHF_BUF_INIT;
	int rc;

	session[0] = '\0';
	rc = shf_text_read(s->sys, s->dot, "lock", &text, LOCK_MAX);
	if (rc < 0 || !shf_owner_get(text.data, text.len, owner, session))
		session[0] = '\0';
	shf_buf_release(&text);
	return rc == -EFBIG ? 0 : rc;
}

/* Writes our text over the former one, in the very file that is locked: a new file would not carry
 * the lock. Syncs the file, so that other clients of a network file system, which read it for C7,
 * see our text. Then unlocks .sheaf/door (D1), also after a failure. */
int shf_lock_write(struct shf_store *s, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	struct shf_owner self = s->self;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_stat st;
	int64_t put;
	int rc = shf_sys_fstat(sys, s->lock, &st);

	if (rc < 0)
		goto out;
	/* The device shows another process whether we locked the file through the same mount
	 * (kernel_let_go). */
	self.dev = st.dev;
	shf_owner_put(&text, &self, s->session);
	if (text.oom) {
		rc = -ENOMEM;
		goto out;
	}
	put = shf_sys_pwrite(sys, s->lock, text.data, text.len, 0);
	/* Cuts off the rest of a longer former text. */
	rc = put < 0 ? (int)put : shf_sys_resize(sys, s->lock, text.len);
	if (rc >= 0)
		rc = shf_sys_fsync(sys, s->lock);
out:
	shf_buf_release(&text);
	shf_lock_close(sys, &s->door);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/lock", s->path) : 0;
}

/* For a salvage. Appends our text to that of the last owner, which stays (D2): until the salvage
 * has checked every byte of the last owner's stage, that text may be the only proof that the owner
 * is dead. Before it returns, also after a failure, unlocks .sheaf/door (D1). */
int shf_lock_visit(struct shf_store *s, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	struct shf_buf text = SHF_BUF_INIT;
	size_t at;
	int64_t put = 0;
	int rc;

	/* The former text is encoded again only to learn its length; it is not written. */
	if (s->prev_session[0])
		shf_owner_put(&text, &s->prev, s->prev_session);
	at = text.len;
	shf_owner_put(&text, &s->self, s->session);
	rc = text.oom ? -ENOMEM : 0;
	if (rc == 0)
		put = shf_sys_pwrite(sys, s->lock, text.data + at, text.len - at, at);
	if (rc == 0)
		rc = put < 0 ? (int)put : shf_sys_resize(sys, s->lock, text.len);
	shf_buf_release(&text);
	shf_lock_close(sys, &s->door);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/lock", s->path) : 0;
}

/* Reads the file again by its name, not through our descriptor: if another job replaced the file,
 * our descriptor would still show our own text. */
int shf_lock_check(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_owner o;
	char session[33] = "";
	int rc;

	rc = shf_text_read(s->sys, s->dot, "lock", &text, LOCK_MAX);
	if (rc < 0 && rc != -ENOENT && rc != -EFBIG) {
		rc = shf_fail_io(err, -rc, "%s/.sheaf/lock", s->path);
		goto out;
	}
	if (rc < 0 || !shf_owner_get(text.data, text.len, &o, session))
		rc = shf_fail(err, SHEAF_ELOST, "%s: the lock file no longer names this job: it "
		              "was overwritten or deleted; end this job, and see which other one "
		              "writes",
		              s->path);
	else if (strcmp(session, s->session) != 0)
		rc = shf_fail(err, SHEAF_ELOST, "%s: the lock was taken by pid %llu on %s, session "
		              "%s; end one of the two jobs", s->path, (unsigned long long)o.pid,
		              o.host, session);
	else
		rc = 0;
out:
	shf_buf_release(&text);
	return rc;
}
