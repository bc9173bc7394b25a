/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's lock: an open-file-description lock on .sheaf/lock, which goes with the
 * descriptor, and in the file a text that says who holds it. The lock is a courtesy: it turns
 * two jobs in one run into one sentence. Safety rests on sessions (I5), on never replacing (I6)
 * and on the text, which is read again just before anything is published (C7). */
#include "err.h"
#include "tree.h"

#include <errno.h>
#include <string.h>

#define TEXT_MAX 512

void shf_owner_put(struct shf_buf *out, const struct shf_owner *owner, const char *session)
{
	size_t start = out->len;

	shf_buf_addf(out, "sheaf-owner 1\nhost %s\nboot %s\n", owner->host, owner->boot);
	shf_buf_addf(out, "pid_ns %llu\npid %llu\nstart %llu\n",
	             (unsigned long long)owner->pid_ns, (unsigned long long)owner->pid,
	             (unsigned long long)owner->start);
	if (owner->dev)
		shf_buf_addf(out, "dev %llu\n", (unsigned long long)owner->dev);
	shf_buf_addf(out, "session %s\n", session);
	shf_line_sum(out, start);
}

bool shf_owner_get(const uint8_t *bytes, size_t n, struct shf_owner *owner, char session[33])
{
	const char *start = (const char *)bytes, *p = start, *end;
	struct shf_owner o = { .pid = 0 };
	char text[40];

	if (n == 0)
		return false;
	end = start + n;
	if (!shf_line_get(&p, end, "sheaf-owner 1", text, 1) ||
	    !shf_line_get(&p, end, "host ", o.host, sizeof(o.host)) ||
	    !shf_line_get(&p, end, "boot ", o.boot, sizeof(o.boot)) ||
	    !shf_line_number(&p, end, "pid_ns ", &o.pid_ns) ||
	    !shf_line_number(&p, end, "pid ", &o.pid) ||
	    !shf_line_number(&p, end, "start ", &o.start))
		return false;
	(void)shf_line_number(&p, end, "dev ", &o.dev);
	if (!shf_line_get(&p, end, "session ", text, sizeof(text)) || !shf_id_is_valid(text, 32))
		return false;
	/* A text torn by a crash, or half of an old one, names nobody. */
	if (!shf_line_sum_is_right(start, p, end))
		return false;
	*owner = o;
	memcpy(session, text, 33);
	return true;
}

bool shf_lock_is_absent(int rc)
{
	return rc == -ENOLCK || rc == -ENOSYS || rc == -ENOTSUP || rc == -EINVAL;
}

/* The lock on the file that the name stands for now: it may have been removed by hand between
 * our open and our lock. -EAGAIN: held. */
static int try_lock(struct shf_store *s)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat a, b;
	int fd, rc;

	fd = sys->ops->open(sys->arg, s->dot, "lock", SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW,
	                    0666);
	if (fd < 0)
		return fd;
	rc = sys->ops->lock(sys->arg, fd, true);
	if (rc < 0 && !shf_lock_is_absent(rc))
		goto out;
	rc = sys->ops->fstat(sys->arg, fd, &a);
	if (rc < 0)
		goto out;
	rc = sys->ops->stat(sys->arg, s->dot, "lock", false, &b);
	if (rc == -ENOENT || (rc >= 0 && (a.ino != b.ino || a.dev != b.dev)))
		rc = -EAGAIN;
out:
	if (rc < 0) {
		sys->ops->close(sys->arg, fd);
		return rc;
	}
	s->lock = fd;
	return 0;
}

static int fail_busy(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_owner o;
	char session[33];

	if (shf_text_read(s->sys, s->dot, "lock", &text, TEXT_MAX) == 0 &&
	    shf_owner_get(text.data, text.len, &o, session))
		shf_fail(err, SHEAF_EBUSY, "%s: another job writes here: pid %llu on %s, "
		         "session %s", s->path, (unsigned long long)o.pid, o.host, session);
	else
		shf_fail(err, SHEAF_EBUSY, "%s: another job writes here, its lock does not say who",
		         s->path);
	shf_buf_release(&text);
	return SHEAF_EBUSY;
}

int shf_lock_take(struct shf_store *s, int wait_ms, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	int64_t start = sys->ops->mono_ns(sys->arg);
	int64_t slept = 0, gone;
	int ms = 1, rc;

	for (;;) {
		rc = try_lock(s);
		if (rc != -EAGAIN)
			break;
		gone = (sys->ops->mono_ns(sys->arg) - start) / 1000000;
		gone = gone > slept ? gone : slept;
		if (gone >= wait_ms)
			return fail_busy(s, err);
		if (ms > wait_ms - gone)
			ms = (int)(wait_ms - gone);
		sys->ops->sleep_ms(sys->arg, ms);
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
	rc = shf_text_read(s->sys, s->dot, "lock", &text, TEXT_MAX);
	if (rc < 0 || !shf_owner_get(text.data, text.len, owner, session))
		session[0] = '\0';
	shf_buf_release(&text);
	return rc == -EFBIG ? 0 : rc;
}

int shf_lock_write(struct shf_store *s, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	struct shf_owner self = s->self;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_stat st;
	int64_t put;
	int rc = sys->ops->fstat(sys->arg, s->lock, &st);

	if (rc < 0)
		goto out;
	self.dev = st.dev;
	shf_owner_put(&text, &self, s->session);
	if (text.oom) {
		rc = -ENOMEM;
		goto out;
	}
	/* In place: the lock is on this very file. Synced for other clients of a network file
	 * system, which read it in C7. */
	put = sys->ops->pwrite(sys->arg, s->lock, text.data, text.len, 0);
	rc = put < 0 ? (int)put : sys->ops->resize(sys->arg, s->lock, text.len);
	if (rc >= 0)
		rc = sys->ops->fsync(sys->arg, s->lock);
out:
	shf_buf_release(&text);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/lock", s->path) : 0;
}

int shf_lock_check(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_owner o;
	char session[33] = "";
	int rc;

	rc = shf_text_read(s->sys, s->dot, "lock", &text, TEXT_MAX);
	if (rc < 0 && rc != -ENOENT && rc != -EFBIG) {
		rc = shf_fail_io(err, -rc, "%s/.sheaf/lock", s->path);
		goto out;
	}
	if (rc < 0 || !shf_owner_get(text.data, text.len, &o, session))
		rc = shf_fail(err, SHEAF_ELOST, "%s: the lock file no longer names this job",
		              s->path);
	else if (strcmp(session, s->session) != 0)
		rc = shf_fail(err, SHEAF_ELOST, "%s: the lock was taken by pid %llu on %s, "
		              "session %s", s->path, (unsigned long long)o.pid, o.host, session);
	else
		rc = 0;
out:
	shf_buf_release(&text);
	return rc;
}
