/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that a pickle may not have. This list is not complete and need not be, because no call
 * is ever made. It decides only which files are reported as attacks. */
#include "pickle_calls.h"
#include <string.h>

/* Whether the first n bytes of s are one of the words. */
static bool is_one_of(const char *s, size_t n, const char *const *words, size_t words_n)
{
	for (size_t i = 0; i < words_n; i++)
		if (strlen(words[i]) == n && memcmp(s, words[i], n) == 0)
			return true;
	return false;
}

/* Whether a dotted part of `path` is one of the words. first: only the first part counts. */
static bool has_part(const char *path, size_t n, bool first, const char *const *words,
                     size_t words_n)
{
	const char *end = path + n;

	for (const char *p = path; p < end;) {
		const char *dot = memchr(p, '.', (size_t)(end - p));
		size_t part = (size_t)((dot ? dot : end) - p);

		if (is_one_of(p, part, words, words_n))
			return true;
		if (first || !dot)
			return false;
		p = dot + 1;
	}
	return false;
}

/* Some versions of Python 3.11, such as the 3.11.2 of Debian 12, write a member of an enum like
 * this: getattr(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT"). A getattr is taken for data
 * only if it names a member of these enums of torch, Megatron and DeepSpeed. */
static bool is_enum_member(const struct shf_pk *args)
{
	static const char *const enums[] = {
		"torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
		"torch.distributed.checkpoint.planner.WriteItemType",
		"deepspeed.runtime.zero.config.ZeroStageEnum",
		/* Arguments of Megatron-LM, and the state of its machine for reruns. */
		"megatron.core.enums.ModelType", "megatron.core.transformer.enums.ModelType",
		"megatron.core.enums.Fp8Recipe", "megatron.core.enums.Fp4Recipe",
		"megatron.core.transformer.enums.AttnBackend",
		"megatron.core.transformer.enums.AttnMaskType",
		"megatron.core.transformer.enums.CudaGraphScope",
		"megatron.core.rerun_state_machine.RerunDiagnostic",
		"megatron.core.rerun_state_machine.RerunMode",
		"megatron.core.rerun_state_machine.RerunState",
		"megatron.core.rerun_state_machine.RerunValidationStatus" };
	const struct shf_pk *of = shf_pk_at(args, 0), *name = shf_pk_at(args, 1);

	for (size_t i = 0; i < sizeof(enums) / sizeof(enums[0]); i++)
		if (args->n == 2 && shf_pk_is_global(of, enums[i]) && name->kind == SHF_PK_STR &&
		    name->n && name->u.s[0] != '_')
			return true;
	return false;
}

/* paddle.save writes a DenseTensor of a static graph as eval("data", {"data": array}), whose value
 * is the array. It is the one eval that is data. */
static bool is_static_tensor(const struct shf_pk *args)
{
	const struct shf_pk *text = shf_pk_at(args, 0), *names = shf_pk_at(args, 1);

	return args->n == 2 && shf_pk_text_is(text, "data") && names->kind == SHF_PK_DICT &&
	       names->n == 1 && shf_pk_get(names, "data");
}

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* A module is judged by its first part, so that the types of a package which happens to have a
 * module "os" are not refused. A name with dots, which STACK_GLOBAL may have, leads from the
 * module to what that has imported: torch and "os.system". */
bool shf_pickle_is_refused(const struct shf_pk *func, const struct shf_pk *args)
{
	static const char *const modules[] = { "os", "posix", "nt", "subprocess", "sys", "pty",
		"socket", "shutil", "runpy", "importlib", "ctypes", "_ctypes", "codeop", "popen2",
		"webbrowser", "pdb", "bdb", "cProfile", "pickle", "_pickle", "marshal",
		"operator", "_operator", "asyncio", "_posixsubprocess", "urllib", "urllib2",
		"requests", "smtplib", "ftplib", "zipimport", "pkgutil", "pip", "setuptools" };
	/* These are single modules, and their names are those of many a package, too. */
	static const char *const single[] = { "code", "commands", "doctest", "imp", "profile",
		"timeit" };
	static const char *const builtins[] = { "builtins", "__builtin__", "__builtins__" };
	static const char *const functions[] = { "eval", "exec", "execfile", "compile", "open",
		"input", "getattr", "setattr", "delattr", "__import__", "apply", "globals",
		"locals", "vars", "breakpoint", "map", "filter", "type", "super" };
	static const char *const others[] = { "types.CodeType", "types.FunctionType",
		"torch.hub.load", "torch.load", "torch.serialization.load", "torch.jit.load",
		"numpy.load", "joblib.load", "dill.loads", "cloudpickle.loads" };
	const char *name = func->u.s + func->n + 1, *last = strrchr(name, '.');
	size_t n = strlen(name);

	if (is_one_of(func->u.s, func->n, single, COUNT(single)) ||
	    (last && has_part(name, (size_t)(last - name), false, single, COUNT(single))) ||
	    has_part(func->u.s, func->n, true, modules, COUNT(modules)) ||
	    (last && has_part(name, n, false, modules, COUNT(modules))) ||
	    is_one_of(func->u.s, strlen(func->u.s), others, COUNT(others)))
		return true;
	if (!has_part(func->u.s, func->n, true, builtins, COUNT(builtins)) &&
	    !has_part(name, n, true, builtins, COUNT(builtins)))
		return false;
	return has_part(name, n, false, functions, COUNT(functions)) &&
	       !(strcmp(name, "getattr") == 0 && is_enum_member(args)) &&
	       !(strcmp(name, "eval") == 0 && is_static_tensor(args));
}
