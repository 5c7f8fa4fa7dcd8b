#!/usr/bin/env bash
# docs.sh [setup]: .venv-docs from requirements/docs.txt (kept until that changes), then the site, into site/.
# Strict: a dead link or anchor, or a page that no menu reaches, is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONHOME VIRTUAL_ENV
key=$({ pwd; cat requirements/docs.txt; } | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv-docs/made 2>/dev/null)" != "$key" ]; then
    python=.venv/bin/python
    [ -x "$python" ] || python=${PYTHON:-python3}
    echo "Making .venv-docs from requirements/docs.txt"
    rm -rf .venv-docs
    "$python" -m venv .venv-docs
    .venv-docs/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/docs.txt
    echo "$key" > .venv-docs/made
fi
[ "${1:-}" = setup ] || NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict  # --quiet would lose the warnings
