#!/usr/bin/env bash
# What the set-up needs of this machine. Prints the Python to use; or names everything that is missing, with
# the commands that install it, and ends with status 3. PYTHON=... names one Python instead of looking.
set -uo pipefail
missing=()
need() { missing+=("  $1
      Debian/Ubuntu: $2
      Fedora:        $3"); }

fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }
python=
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if fits "$candidate"; then python=$(command -v "$candidate"); break; fi
done
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>&1 | head -1)
    need "Python 3.10 to 3.13 (${PYTHON:-python3}: ${found:-none})" \
        "apt-get install python3 python3-venv" "dnf install python3.13   (then: make PYTHON=python3.13 ...)"
elif ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    need "venv with pip for $python" "apt-get install python$version-venv" "dnf install python3-pip"
fi

if ! echo '#include <string>
int main() { return std::string("x").size() - 1; }' | ${CXX:-c++} -x c++ -o /dev/null - >/dev/null 2>&1; then
    need "a C++ compiler that works (${CXX:-c++})" "apt-get install g++" "dnf install gcc-c++"
elif ! echo 'int main(void) { return 0; }' | ${CC:-cc} -x c -o /dev/null - >/dev/null 2>&1; then
    need "a C compiler that works (${CC:-cc})" "apt-get install gcc" "dnf install gcc"
fi
command -v make >/dev/null || need "make" "apt-get install make" "dnf install make"

if [ "${#missing[@]}" -gt 0 ]; then
    { echo "This machine cannot build Horovod yet. Missing:"; printf '%s\n' "${missing[@]}"; } >&2
    exit 3
fi
free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
[ "${free:-9}" -ge 4 ] || echo "Note: $free GB free here; .venv takes 2 GB (with a GPU 7 GB) and the build 1 GB." >&2
echo "$python"
