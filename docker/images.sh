#!/usr/bin/env bash
# Builds the images of this tree: smcp-gateway, smcp-registry, smcp, smcp-computer, smcp-computer-demo, and for the tests
# smcp-computer-testing; of those that are named as arguments these alone.
#
# All that goes in is fetched first (with pip's settings, and checked against the hashes of requirements.lock); the
# builds run without a network. Variables:
#   BASE, NODE    the images to build on; without them the official ones, or local ones where these cannot be pulled
#   IMAGE_TAG     the tag of all (dev)
#   DOCKER        the docker client
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docker="$(docker/client.sh)"
export DOCKER="$docker" DOCKER_BUILDKIT=1
tag="${IMAGE_TAG:-dev}"
images=build/images
names=(smcp-gateway smcp-registry smcp smcp-computer smcp-computer-testing smcp-computer-demo)
if (($#)); then
    names=("$@")
fi

# What the images are made of, as a digest: where all of them carry it already, there is nothing to do.
inputs="$({
    git ls-files -z --cached --others --exclude-standard libs services tests/support docker requirements.lock pyproject.toml |
        xargs -0 sha256sum 2> /dev/null || true
    echo "${BASE:-} ${NODE:-}"
} | sha256sum | cut -c1-32)"
built=0
for name in "${names[@]}"; do
    label="$("$docker" image inspect --format '{{index .Config.Labels "smcp.inputs"}}' "$name:$tag" 2> /dev/null || true)"
    [[ "$label" != "$inputs" ]] || built=$((built + 1))
done
if ((built == ${#names[@]})) && git rev-parse HEAD > /dev/null 2>&1; then
    echo "the images are those of these sources"
    exit
fi

wanted() {
    [[ " ${names[*]} " == *" $1 "* ]]
}

base="${BASE:-$(docker/image.sh python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b debian)}"
node="${NODE:-$(docker/image.sh node:22-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c node)}"
read -r python machine libc < <("$docker" run --rm --network none --entrypoint python3 "$base" -c \
    'import platform; print(platform.python_version(), platform.machine(), platform.libc_ver()[1] or "none")')
[[ "$libc" == 2.* ]] || { echo "$base has no glibc: the wheels are for glibc" >&2; exit 1; }

mkdir -p "$images"
rm -rf "$images/own"
.venv/bin/uv build --quiet --all-packages --wheel --out-dir "$images/own"

locked() {
    .venv/bin/python docker/locked.py --python "$python" --machine "$machine" "$@"
}
locked smcp-gateway smcp-registry > "$images/services.txt"
locked smcp-standalone > "$images/smcp.txt"
locked smcp-computer > "$images/computer.txt"
locked smcp-testing > "$images/testing.txt"
locked --also uv smcp-standalone smcp-testing > "$images/fetched.txt"

platforms=(--platform "linux_$machine" --platform "manylinux2014_$machine")
for ((minor = ${libc#2.}; minor >= 17; minor--)); do
    platforms+=(--platform "manylinux_2_${minor}_$machine")
done
fetch() {
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --implementation cp --python-version "$python" "${platforms[@]}" --dest "$images/wheels" -r "$1"
}
# What was fetched for these lists is there: pip would ask the index for each package again.
lists=("$images/fetched.txt" docker/compose/servers.lock)
fetched="$images/fetched-$(cat "${lists[@]}" | sha256sum | cut -c1-32)-$python-$machine-$libc"
if [[ ! -e "$fetched" || ! -d "$images/wheels" ]]; then
    rm -rf "$images/wheels" "$images"/fetched-*
    for list in "${lists[@]}"; do
        fetch "$list"
    done
    touch "$fetched"
fi

build() {
    local name="$1" file="$2" target="$3"
    shift 3
    wanted "$name" || return 0
    "$docker" build --quiet --network none --file "docker/$file.Dockerfile" --target "$target" \
        --label "org.opencontainers.image.title=$name" \
        --label "smcp.inputs=$inputs" --label "org.opencontainers.image.revision=$(git rev-parse HEAD 2> /dev/null || echo unknown)" \
        --tag "$name:$tag" "$@" . > /dev/null
    "$docker" image ls --format '{{.Repository}}:{{.Tag}}  {{.Size}}' "$name:$tag"
}
build smcp-gateway services gateway --build-arg BASE="$base"
build smcp-registry services registry --build-arg BASE="$base"
build smcp services smcp --build-arg BASE="$base"
build smcp-computer computer computer --build-arg BASE="$base" --build-arg NODE="$node"
build smcp-computer-testing computer testing --build-arg BASE="$base" --build-arg NODE="$node"
# A local base has git; onto another one it is fetched.
network=default
[[ "$base" != smcp-local/* ]] || network=none
build smcp-computer-demo computer demo --build-arg BASE="$base" --build-arg NODE="$node" --network "$network"
