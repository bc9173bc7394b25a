/* SPDX-License-Identifier: Apache-2.0 */
/* The vtable of the real machine. It keeps no state, so one constant serves every run. */
#include "real.h"

static const struct shf_sys_ops real_ops = {
	.open = shf_real_open,
	.close = shf_real_close,
	.mkdir = shf_real_mkdir,
	.rename = shf_real_rename,
	.unlink = shf_real_unlink,
	.fsync = shf_real_fsync,
	.resize = shf_real_resize,
	.pread = shf_real_pread,
	.pwrite = shf_real_pwrite,
	.stat = shf_real_stat,
	.fstat = shf_real_fstat,
	.list = shf_real_list,
	.readlink = shf_real_readlink,
	.lock = shf_real_lock,
	.unlock = shf_real_unlock,
	.free_bytes = shf_real_free_bytes,
	.fs_id = shf_real_fs_id,
	.random = shf_real_random,
	.mono_ns = shf_real_mono_ns,
	.wall_s = shf_real_wall_s,
	.sleep_ms = shf_real_sleep_ms,
	.owner = shf_real_owner,
	.owner_is_dead = shf_real_owner_is_dead,
	.pid = shf_real_pid,
	.queue_new = shf_real_queue_new,
	.queue_free = shf_real_queue_free,
	.submit = shf_real_submit,
	.complete = shf_real_complete,
	.queue_pin = shf_real_queue_pin,
	.queue_stat = shf_real_queue_stat,
	.resident = shf_real_resident,
	.touched = shf_real_touched,
	.touch = shf_real_touch,
	.forget = shf_real_forget,
	.cpus = shf_real_cpus,
	.task_new = shf_real_task_new,
	.task_over = shf_real_task_over,
	.task_again = shf_real_task_again,
	.task_free = shf_real_task_free,
	.shm_new = shf_real_shm_new,
	.shm_free = shf_real_shm_free,
	.rooms = shf_real_rooms,
	.shm_offer = shf_real_shm_offer,
	.shm_connect = shf_real_shm_connect,
	.shm_serve = shf_real_shm_serve,
	.shm_take = shf_real_shm_take,
	.shm_drop = shf_real_shm_drop,
	.keep_open = shf_real_keep_open,
	.keep_put = shf_real_keep_put,
	.keep_get = shf_real_keep_get,
	.keep_drop = shf_real_keep_drop,
	.keep_tell = shf_real_keep_tell,
	.keep_at = shf_real_keep_at,
	.keep_list = shf_real_keep_list,
	.keep_lives = shf_real_keep_lives,
	.keep_close = shf_real_keep_close,
};

static const struct shf_sys real = { &real_ops, NULL };

const struct shf_sys *shf_sys_real(void)
{
	return &real;
}
