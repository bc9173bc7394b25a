/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the description of a state from an existing checkpoint. */
#include "sheaf-inspect.h"
#include "workload.h"

#include <string.h>

int wl_step_check(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct sheaf_error why = { .msg = "" };
	struct sheaf_tensor t = { .size = sizeof(t) };
	struct sheaf_state *none;
	int rc = sheaf_checkpoint_tensor(step, 0, &t, NULL);

	if (rc == 0 || rc == SHEAF_EEND)
		return 0;
	/* A dry load of an empty state returns the message. */
	none = sheaf_state_new();
	sheaf_checkpoint_load(step, none, SHEAF_LOAD_DRY, NULL, &why);
	sheaf_state_free(none);
	rc = wl_fail(err, rc, "%s", why.msg[0] ? why.msg : sheaf_strerror(rc));
	if (err)
		err->sys = why.sys;
	return rc;
}

int wl_model_like(struct wl_model *m, struct sheaf_checkpoint *step, bool all,
                  struct sheaf_error *err)
{
	struct sheaf_tensor s = { .size = sizeof(s) };
	int rc = wl_step_check(step, err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; (rc = sheaf_checkpoint_tensor(step, i, &s, NULL)) == 0; i++) {
		struct wl_tensor t = { .family = (char *)(uintptr_t)s.family,
				       .name = (char *)(uintptr_t)s.name,
				       .tied_to = (char *)(uintptr_t)s.tied_to,
				       .dtype = s.dtype, .ndim = s.ndim, .tp_axis = -1, .stage = -1,
				       .expert = -1, .experts = -1, .stored = true };

		if (!all && strcmp(s.family, "model") != 0)
			continue;
		memcpy(t.shape, s.shape, sizeof(t.shape));
		rc = wl_model_add(m, &t, err);
		if (rc < 0)
			return rc;
		s.size = sizeof(s);
	}
	if (rc != SHEAF_EEND)
		return wl_fail(err, rc, "the tensors cannot be listed: %s", sheaf_strerror(rc));
	rc = wl_model_seal(m, err);
	if (rc == 0)
		rc = wl_model_guess(m, err);
	return rc;
}

static bool ends(const char *s, const char *tail)
{
	size_t n = strlen(s), k = strlen(tail);

	return n >= k && strcmp(s + n - k, tail) == 0;
}

bool wl_attachable(const char *file, uint64_t bytes)
{
	static const char *const weights[] = {
		".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf",
		".ot", ".npz", ".npy", ".pdparams", ".index.json", ".tflite", NULL,
	};
	size_t n = strlen(file);

	if (bytes > UINT64_C(64) << 20 || n < 1 || n > 128 || file[0] == '.')
		return false;
	if (strspn(file, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != n)
		return false;
	if (strncmp(file, "sheaf.", 6) == 0)
		return false;
	for (size_t i = 0; weights[i]; i++)
		if (ends(file, weights[i]))
			return false;
	return true;
}
