#!/bin/sh
# Builds the emulated CUDA driver, libcuda.so.1, in a folder. Needs clang 19.
#
#	internal/kernel/cuda/emulate/build.sh /tmp/emulated
#	LD_LIBRARY_PATH=/tmp/emulated go test ./internal/kernel -args -device cuda:0,1GiB
set -eu
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "$0")"
compile="${CLANG:-clang-19} -x c++ -std=c++20 -O1 -march=native -ffp-contract=fast -fPIC -DEMULATED \
	-fsanitize=alignment -fsanitize-trap=alignment -Wall -Werror -Wno-unknown-pragmas -Wno-pass-failed -Wno-parentheses"
ls ../*.cu *.cpp | xargs -P "$(nproc)" -I{} sh -c "$compile -c {} -o $out/\$(basename {}).o"
"${CLANG:-clang-19}" -shared -Wl,-Bsymbolic -o "$out/libcuda.so.1" "$out"/*.o -lstdc++ -ldl -lpthread
