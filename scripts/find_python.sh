#!/bin/sh
# Print the Python that make installs into .venv: the first of 3.11 or newer in PATH. If that was
# compiled without optimization, as pyenv does by default, then the system's of the same version,
# which runs the tests in nine tenths of the time, if it is there and makes environments.
set -u
folder=${1:-/usr/bin}

new='import sys; sys.exit(sys.version_info < (3, 11))'
plain='import sys, sysconfig
if "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
    print("python%d.%d" % sys.version_info[:2])'

for python in python3 python3.14 python3.13 python3.12 python3.11; do
    "$python" -c "$new" 2>/dev/null || continue
    other=$("$python" -c "$plain")
    [ -n "$other" ] && "$folder/$other" -c 'import ensurepip, venv' 2>/dev/null &&
        python=$folder/$other
    echo "$python"
    break
done
