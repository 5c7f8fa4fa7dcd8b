#!/usr/bin/env bash
# setup.sh run|test: .venv with the locked packages, this package, and Horovod built for its TensorFlow.
# Does nothing that is done already: .venv/setup-run and setup-test hold the hash of what each was made from.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV
wanted=${1:-run}

device=${DEVICE:-}
if [ -z "$device" ]; then device=cpu; nvidia-smi -L >/dev/null 2>&1 && device=gpu; fi
case "$device" in cpu|gpu) ;; *) echo "DEVICE is '$device'; it can be cpu or gpu" >&2; exit 2 ;; esac

# Two `make` at once in one clone: the second waits for the first.
exec 9>.venv.lock
if command -v flock >/dev/null && ! flock -n 9; then
    echo "Another set-up runs in this folder; waiting for it (up to an hour) ..."
    flock -w 3600 9 || { echo "It did not end within an hour: end it, then try again" >&2; exit 1; }
fi

# mpicxx and TensorFlow's compile flags break at a space in the path of the environment: .venv is then a link.
place=$PWD/.venv
if [[ $PWD = *[[:space:]]* ]]; then
    place=${HVD_MNIST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hvd_mnist}/venvs/$(pwd | sha256sum | cut -c1-12)
fi

key() { { pwd; echo "$device"; cat setup.py "$@"; } | sha256sum | cut -d' ' -f1; }
made() { [ "$(cat ".venv/setup-$1" 2>/dev/null)" = "$2" ]; }
pip() { "$place/bin/python" -m pip --disable-pip-version-check "$@"; }

run_key=$(key "requirements/$device.txt")
if ! made run "$run_key"; then
    python=$(scripts/preflight.sh)
    # A venv of another folder or another device is made anew: moved scripts do not run, and tensorflow
    # and tensorflow-cpu overwrite each other.
    if [ -e .venv ] && [ ! -e .venv/setup-place ]; then
        echo "$PWD/.venv was not made by make setup, and would be replaced: move it away or remove it first" >&2
        exit 3
    fi
    if [ "$(cat .venv/setup-place 2>/dev/null)" != "$PWD $device" ] || ! pip --version >/dev/null 2>&1; then
        echo "Making .venv with $("$python" --version) ($python)"
        rm -rf .venv "$place"
        mkdir -p "$place"
        [ -e .venv ] || ln -s "$place" .venv
        echo "$PWD $device" > .venv/setup-place
        "$python" -m venv "$place"
    fi
    echo "Installing the packages of requirements/$device.txt (each checked by its hash)"
    pip install --require-hashes -r "requirements/$device.txt" | sed -u '/^Ignoring \|^Requirement already\|^Looking in /d'
    pip install --quiet --no-deps --no-build-isolation -e .
    echo "$run_key" > .venv/setup-run
fi
if [ "$wanted" = test ] && test_key=$(key "requirements/$device.txt" requirements/test.txt) && ! made test "$test_key"; then
    echo "Installing what the tests need (requirements/test.txt)"
    pip install --quiet --require-hashes -r requirements/test.txt
    echo "$test_key" > .venv/setup-test
fi
[ "$wanted" != test ] || scripts/docs.sh setup

gpu=(); [ "$device" = gpu ] && gpu=(--gpu)
"$place/bin/python" -m hvd_mnist build-horovod "${gpu[@]}"
