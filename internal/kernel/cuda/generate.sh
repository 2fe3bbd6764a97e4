#!/bin/sh
# Compiles the kernels to PTX, which is committed. Needs clang 19 and nothing of
# CUDA's: apt-get install clang-19. With --check it compares instead, and fails
# if a file would change.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-19}
out=.
if [ "${1:-}" = --check ]; then
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
fi
for source in *.cu; do
	name=${source%.cu}
	for arch in 70; do # GPUs run the PTX of older ones; newer ones gain nothing in float32
		"$clang" -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_$arch --cuda-feature=+ptx70 \
			-std=c++20 -O3 -Wall -Werror -Wno-unknown-cuda-version -S -o - "$source" | sed '/^\/\/ /d; s/[[:space:]]*\/\/.*//; /^$/d' >"$out/${name}_sm$arch.ptx"
		if [ "$out" != . ]; then cmp "$out/${name}_sm$arch.ptx" "${name}_sm$arch.ptx"; fi
	done
done
