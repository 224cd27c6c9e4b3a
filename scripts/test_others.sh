#!/bin/sh
# Run what may differ between versions of Python on the other versions that this machine has. Each
# has an environment of its own in .venv/VERSION; a version that is not there is named.
set -u

find_python() {
    for python in "$(command -v "python$1")" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        "$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" \
            2>/dev/null && echo "$python" && return
    done
    return 1
}

failed=0
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for version in 3.11 3.12 3.13 3.14; do
    [ "$version" != "$own" ] || continue
    python=$(find_python "$version") || { echo "no Python $version: not tested on it" >&2; continue; }
    place=.venv/$version
    if [ ! -e "$place/ready" ] || [ pyproject.toml -nt "$place/ready" ]; then
        "$python" -m venv "$place" &&
            "$place/bin/pip" install --quiet --upgrade 'pip>=25.1' &&
            "$place/bin/pip" install --quiet --editable . --group test &&
            touch "$place/ready" ||
            { echo "Python $version: the packages cannot be installed: not tested on it" >&2; continue; }
    fi
    echo "Python $version:"
    "$place/bin/python" -m pytest -q -n 3 --dist worksteal -p no:cacheprovider "$@" || failed=1
done
exit $failed
