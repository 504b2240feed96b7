#!/bin/sh
# Builds the watchdog of both architectures: `./build.sh` in Debian 12 with the packages gcc and gcc-aarch64-linux-gnu.
# `./build.sh DIRECTORY amd64` puts the one of one architecture elsewhere. What lies beside this script was built by
# gcc 12.2.0-14 and binutils 2.40-2; SHA256SUMS names it.
set -eu
source=$(cd "$(dirname "$0")" && pwd)
to=${1:-$source}

build() { # architecture, compiler, largest page of its kernels
  "$2" -Os -std=c11 -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-pie -no-pie -fno-stack-protector \
    -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-ident -fno-tree-loop-distribute-patterns \
    -Wl,--build-id=none,-z,noexecstack,-z,noseparate-code,-z,max-page-size="$3",--strip-all \
    -o "$to/watchdog-$1" "$source/watchdog.c"
  chmod 755 "$to/watchdog-$1"
}

case ${2:-both} in amd64 | both) build amd64 x86_64-linux-gnu-gcc 4096 ;; esac
case ${2:-both} in arm64 | both) build arm64 aarch64-linux-gnu-gcc 65536 ;; esac
if [ "$to" = "$source" ]; then (cd "$source" && sha256sum watchdog-amd64 watchdog-arm64 >SHA256SUMS); fi
