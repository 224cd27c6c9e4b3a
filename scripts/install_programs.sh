#!/bin/sh
# Install what the tests use of the system, where it is missing: Chromium, PgBouncer, Redis and a
# PostgreSQL beside the embedded one. Root does it with apt; anybody else is told what is skipped.
# No service is started and no cluster made: the tests start programs of their own.
set -u

policy=/usr/sbin/policy-rc.d
clusters=/etc/postgresql-common/createcluster.d/holdfast-tests.conf
made=""
trap 'for each in $made; do rm -f "$each"; done' EXIT
trap 'exit 1' HUP INT TERM

found() {
    case $1 in
    chromium-headless-shell) command -v chromium-headless-shell ;;
    chromium) command -v chromium || command -v chromium-browser ;;
    pgbouncer) PATH=$PATH:/usr/sbin:/usr/local/sbin command -v pgbouncer ;;
    redis-tools) command -v redis-server || command -v redis-check-rdb ;;
    postgresql) [ -n "${HOLDFAST_TEST_DATABASE_URL:-}" ] || ls /usr/lib/postgresql/*/bin/initdb ;;
    esac >/dev/null 2>&1
}

keep_still() {  # packages start no service, and make no cluster
    if [ ! -e $policy ]; then
        made="$made $policy"
        printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
    fi
    if [ ! -e $clusters ]; then
        made="$made $clusters"
        mkdir -p "$(dirname $clusters)" && echo 'create_main_cluster = false' >$clusters
    fi
}

install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    [ -n "$made" ] || { keep_still; apt-get -qq update; } || return 1
    said=$(DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$1" 2>&1) ||
        { echo "$said" >&2; return 1; }
    if [ "$1" = pgbouncer ] && [ -d /run/systemd/system ]; then
        systemctl --quiet disable pgbouncer # it would start with the machine
    fi
    found "$1"
}

needs() {
    found "$1" || install "$1" || echo "no $1: $2" >&2
}

# The shell does the same for half of the processor time, but not every system has it.
found chromium-headless-shell || install chromium-headless-shell 2>/dev/null ||
    needs chromium "tests of pages in a browser are skipped"
needs pgbouncer "tests of a pooler are skipped"
needs redis-tools "tests of hints run with Valkey only"
needs postgresql "tests of stores run on the embedded server only"
