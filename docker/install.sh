#!/bin/sh
# In a build stage: makes an environment from wheels that were fetched before (docker/images.sh), without any network.
#
#   install.sh DIRECTORY LIST [DISTRIBUTION...]
#
# LIST names what to install, with versions and hashes; each DISTRIBUTION is a wheel of ours, by its file's first part.
# /images is the directory build/images.
set -eu

directory=$1 list=$2
shift 2

# uv is a wheel of requirements.lock, too. Unlike pip it needs nothing of the base but Python.
test -d /tmp/uv || python3 -m zipfile -e /images/wheels/uv-*.whl /tmp/uv
set -- /tmp/uv/uv-*.data/scripts/uv "$@"
uv=$1
shift
chmod +x "$uv"

export UV_NO_CACHE=1 UV_OFFLINE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1
"$uv" venv --quiet --python "$(command -v python3)" "$directory"
pip() {
    command=$1
    shift
    "$uv" pip "$command" --quiet --python "$directory/bin/python" "$@"
}
pip install --no-index --find-links /images/wheels --no-deps --require-hashes -r "$list"
for distribution in "$@"; do
    pip install --no-index --no-deps "/images/own/$distribution"-*.whl
done
# What a package of ours needs and the list lacks would be missed at run time only.
pip check
