#!/usr/bin/env bash
# image.sh OFFICIAL LOCAL: prints the image to use, the official one, or where it is not there and cannot be pulled, the
# local one that docker/base.sh makes under that name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docker="$(docker/client.sh)"
if "$docker" image inspect "$1" > /dev/null 2>&1 || "$docker" pull --quiet "$1" > /dev/null 2>&1; then
    echo "$1"
else
    DOCKER="$docker" docker/base.sh "$2"
fi
