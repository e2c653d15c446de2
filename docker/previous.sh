#!/usr/bin/env bash
# Builds images of another commit of this repository, as docker/images.sh of that commit does, with the tag `previous` (IMAGE_TAG):
#
#   previous.sh COMMIT [IMAGE...]
#
# It works in a clone of its own (build/previous) and leaves this tree as it is. `make setup` comes first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if (($# == 0)); then
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
commit="$(git rev-parse --verify --quiet "$1^{commit}")" || { echo "there is no commit $1 here" >&2; exit 1; }
shift

tree="$PWD/build/previous"
rm -rf "$tree"
git clone --quiet --shared --no-checkout "$PWD" "$tree" 2> /dev/null || git clone --quiet --no-checkout "file://$PWD" "$tree"
git -C "$tree" -c advice.detachedHead=false checkout --quiet --detach "$commit"

# Its lock is cut by what its distributions need. Where they need the same as those of this tree, so do ours.
if git diff --quiet "$commit" -- requirements.lock pyproject.toml '*/pyproject.toml'; then
    ln -s "$PWD/.venv" "$tree/.venv"
else
    make --silent --directory "$tree" setup > /dev/null
fi
# What has been fetched is not fetched twice; the hashes are looked at all the same.
mkdir -p "$tree/build/images"
if [[ -d build/images/wheels ]]; then
    cp --archive --link build/images/wheels build/images/fetched-* "$tree/build/images/"
fi
IMAGE_TAG="${IMAGE_TAG:-previous}" exec "$tree/docker/images.sh" "$@"
