#!/bin/sh
# In a build stage: makes an environment from wheels that were fetched before (docker/images.sh), without any network.
#
#   install.sh packages DIRECTORY    of /wheels what /list.txt names, with versions and hashes
#   install.sh own DIRECTORY NAME... then wheels of ours, of /own; each NAME is a wheel's, by its file's first part
#
# These are two layers: a change of ours leaves the first as it is.
set -eu

what=$1 directory=$2
shift 2

# uv is a wheel of requirements.lock, too. Unlike pip it needs nothing of the base but Python.
test -d /tmp/uv || python3 -m zipfile -e /wheels/uv-*.whl /tmp/uv
uv=$(echo /tmp/uv/uv-*.data/scripts/uv)
chmod +x "$uv"

export UV_NO_CACHE=1 UV_OFFLINE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1
pip() {
    command=$1
    shift
    "$uv" pip "$command" --quiet --python "$directory/bin/python" "$@"
}
case "$what" in
    packages)
        "$uv" venv --quiet --python "$(command -v python3)" "$directory"
        pip install --no-index --find-links /wheels --no-deps --require-hashes -r /list.txt
        ;;
    own)
        for name in "$@"; do
            set -- "$@" "/own/$name"-*.whl
            shift
        done
        pip install --no-index --no-deps "$@"
        ;;
esac
# What is needed and not in the list would be missed at run time only.
pip check
