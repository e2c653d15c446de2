#!/usr/bin/env bash
# Prints the docker client to use: $DOCKER, or the first one found that can build with BuildKit.
#
# Clients before 23 have BuildKit built in; later ones need the plugin buildx, which is not always there.
set -euo pipefail

can_build() {
    local version
    version="$("$1" version --format '{{.Client.Version}}' 2> /dev/null)" || [[ -n "$version" ]] || return 1
    (("${version%%.*}" < 23)) || "$1" buildx version > /dev/null 2>&1
}

for client in "${DOCKER:-}" docker /usr/bin/docker; do
    if [[ -n "$client" ]] && command -v "$client" > /dev/null && can_build "$client"; then
        command -v "$client"
        exit
    fi
done
echo "no docker client that can build with BuildKit was found (Debian: docker.io; else docker with buildx)" >&2
exit 1
