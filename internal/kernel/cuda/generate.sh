#!/bin/sh
# Compiles the kernels to PTX, which is committed. Needs clang 19 and nothing of
# CUDA's: apt-get install clang-19. With --check it compares instead, and fails
# if a file would change.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-19}
out=.
text=$(mktemp)
trap 'rm -f "$text"' EXIT
if [ "${1:-}" = --check ]; then
	out=$(mktemp -d)
	trap 'rm -rf "$text" "$out"' EXIT
fi
compile() { # file, capability, name of the result
	"$clang" -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_$2 --cuda-feature=+ptx70 \
		-std=c++20 -O3 -Wall -Werror -Wno-unknown-cuda-version -Wno-pass-failed -S -o "$text" "$1"
	sed '/^\/\/ /d; s/[[:space:]]*\/\/.*//; /^$/d' "$text" >"$out/$3.ptx"
	if [ "$out" != . ]; then cmp "$out/$3.ptx" "$3.ptx"; fi
}
for source in *.cu; do
	name=${source%.cu}
	# GPUs run the PTX of older ones. Newer ones gain by tensor cores, and where
	# rounding to bfloat16 takes most of a kernel's time.
	case $name in
	*_half) compile "$source" 80 "$name" ;;
	channels | elementwise | rows)
		compile "$source" 70 "$name"
		compile "$source" 80 "${name}_80"
		;;
	*) compile "$source" 70 "$name" ;;
	esac
done
