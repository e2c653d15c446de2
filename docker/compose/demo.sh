#!/usr/bin/env bash
# `make compose-demo`: brings profile `core` up under a name of its own, lets an Agent call two tools, and removes it all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# So that a system that runs here already stays as it is.
export COMPOSE_PROJECT_NAME="${COMPOSE_PROJECT_NAME:-smcp-demo}" SMCP_PORT="${SMCP_PORT:-0}"
directory="$(mktemp -d)"

# Docker gives a network any addresses that it is told to, also those of another one's bridge, and nothing arrives then.
if [[ -z "${GATEWAYS_SUBNET:-}" ]]; then
    number=77
    while grep -qF "10.231.$number.0" /proc/net/fib_trie; do
        ((++number))
    done
    export GATEWAYS_SUBNET="10.231.$number.0/28"
fi

remove() {
    local status=$?
    rm -rf "$directory"
    if ((status)); then
        docker/compose.sh --profile core logs --tail 20 || true
    fi
    docker/compose.sh --profile core --profile demo down --volumes --timeout 20 > /dev/null 2>&1
    exit "$status"
}
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A copy of the last commits: a work tree of `git worktree` has its repository elsewhere, out of the container's sight.
if [[ -z "${REPOSITORY:-}" ]]; then
    export REPOSITORY="$directory/repository"
    git clone --quiet --depth 5 "file://$PWD" "$REPOSITORY"
    chmod 755 "$directory"
fi
docker/compose.sh --profile core up --detach --wait --wait-timeout 120 --quiet-pull
docker/compose.sh run --rm demo
