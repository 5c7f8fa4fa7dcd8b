#!/usr/bin/env bash
# Write requirements/{cpu,gpu,test,docs}.txt anew from the .in files beside them: every package, with hashes, for
# Python 3.10 to 3.13 at once. Needs uv (`python3 -m pip install uv`). One package only: scripts/lock.sh -P NAME
set -euo pipefail
cd "$(dirname "$0")/../requirements"
lock() { uv pip compile --universal --python-version 3.10 --generate-hashes --quiet \
    --custom-compile-command "scripts/lock.sh" "$@"; }
lock cpu.in -o cpu.txt "$@"
lock gpu.in -o gpu.txt -c cpu.txt "$@"    # -c: the versions that both share stay the same
lock test.in -o test.txt -c cpu.txt "$@"
lock docs.in -o docs.txt -c cpu.txt -c test.txt "$@"
