#!/usr/bin/env bash
# Builds the package for Linux on ARM64 and runs the tests of the fused kernel under qemu: `make arm`.
# Python for arm64 comes from Debian and its packages from the package index, into build/arm; nothing
# is installed on this machine. Slow: no speed can be learnt from it.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly ROOT=$PWD/build/arm
readonly TORCH=${TORCH:-2.10.0} # the newest whose aarch64 wheel needs no CUDA
readonly CROSS=aarch64-linux-gnu-g++
readonly PACKAGES="numpy scipy msgspec click rich safetensors markdown-it-py mdurl pygments
  filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec
  pytest pluggy iniconfig packaging hypothesis sortedcontainers attrs
  hatchling pathspec trove-classifiers"
# what of tests/kernels/fused looks at the compiled code; the rest is the same Python as elsewhere.
# Random calls with all gradients take half an hour: tools/arm.sh tests/kernels/fused/test_kernel.py
readonly TESTS="test_cpu.py test_library.py test_kernel_few.py test_kernel_numbers.py
  test_kernel_dropout.py test_kernel.py"
readonly RANDOM_CALLS=TestAgainstReference

need() {
  local missing=()
  for command in "$CROSS" qemu-aarch64 apt-get dpkg-deb; do
    command -v "$command" >/dev/null || missing+=("$command")
  done
  [ ${#missing[@]} -eq 0 ] && return
  echo "make arm: missing ${missing[*]}; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
  exit 1
}

# apt with lists, cache and state of its own, so that the system stays as it is.
apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o Dir::State::lists="$ROOT/lists" -o Dir::Cache="$ROOT/cache" -o Dir::State::status=/dev/null "$@"
}

python_for_arm() {
  [ -x "$ROOT/system/usr/bin/python3.11" ] && return
  mkdir -p "$ROOT/lists/partial" "$ROOT/cache/archives/partial" "$ROOT/system"
  apt update
  apt install -y --download-only --no-install-recommends python3.11 libgomp1 libstdc++6
  for package in "$ROOT"/cache/archives/*.deb; do dpkg-deb -x "$package" "$ROOT/system"; done
}

# Dependencies are listed: pip would read their markers as those of this machine, and bring CUDA.
packages_for_arm() {
  [ -d "$ROOT/site-$TORCH/torch" ] && return
  # shellcheck disable=SC2086
  ${PYTHON:-python3} -m pip install -q --no-deps --only-binary=:all: --target "$ROOT/site-$TORCH" \
    --python-version 311 --implementation cp --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    "torch==$TORCH" $PACKAGES
}

arm() {
  env OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 ATTENTROPY_EXAMPLES="${ATTENTROPY_EXAMPLES:-8}" \
    ATTENTROPY_EMULATED=1 PYTHONPATH="$PWD/src:$PWD:$ROOT/site-$TORCH" CXX="$CROSS" ATTENTROPY_LIBRARIES="$ROOT/lib" \
    QEMU_LD_PREFIX="$ROOT/system" \
    qemu-aarch64 -cpu max "$ROOT/system/usr/bin/python3.11" "$@"
}

need
python_for_arm
packages_for_arm
arm -m attentropy.kernels.fused.build --if-changed
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- -k "not $RANDOM_CALLS" $(printf 'tests/kernels/fused/%s ' $TESTS)
echo "make arm: $* with torch $TORCH, ${ATTENTROPY_EXAMPLES:-8} examples of each property (ATTENTROPY_EXAMPLES)"
arm -m pytest -q -p no:cacheprovider "$@"
