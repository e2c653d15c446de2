# Sourced by .ci/run: a docker engine for the images and the tests in containers.
#
#   engine_packages    prints what has to be installed for it
#   engine_start       starts dockerd where none answers
#   engine_stop        ends the one that was started here, and nothing else

engine_directory=""
engine_pid=""
engine_root=()
if [[ "$(id -u)" != 0 ]]; then
    engine_root=(sudo)
fi

engine_packages() {
    if ! engine_answers; then
        command -v dockerd > /dev/null || echo docker.io
        command -v iptables > /dev/null || echo iptables
    fi
    command -v mmdebstrap > /dev/null || echo mmdebstrap
}

engine_answers() {
    local docker
    docker="$(docker/client.sh 2> /dev/null)" && "$docker" version --format '{{.Server.Version}}' > /dev/null 2>&1
}

engine_start() {
    if engine_answers; then
        return
    fi
    local waited=0
    engine_directory="$(mktemp -d)"
    # Its own data and socket: what another engine left on this machine does not concern this run. Addresses of its own for its bridge:
    # the network of a container whose engine was killed stays on it, and answers in place of a new container with the same address. The
    # root as parent of the containers' groups: below /docker all of them together get as much of the processors as one process outside,
    # and start minutes late.
    export DOCKER_HOST="unix://$engine_directory/docker.sock"
    "${engine_root[@]}" dockerd --host "$DOCKER_HOST" --data-root "$engine_directory/data" --exec-root "$engine_directory/exec" \
        --bip "10.199.$((RANDOM % 256)).1/24" --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent / --group "$(id -gn)" \
        --pidfile "$engine_directory/dockerd.pid" > "$engine_directory/dockerd.log" 2>&1 &
    engine_pid=$!
    until engine_answers; do
        if ((++waited > 300)) || ! kill -0 "$engine_pid" 2> /dev/null; then
            echo "dockerd does not start:" >&2
            tail -20 "$engine_directory/dockerd.log" >&2
            return 1
        fi
        sleep 0.1
    done
}

engine_stop() {
    if [[ -z "$engine_pid" ]]; then
        return
    fi
    local docker containers=()
    if docker="$(docker/client.sh 2> /dev/null)"; then
        mapfile -t containers < <("$docker" ps --quiet 2> /dev/null)
        if ((${#containers[@]})); then
            "$docker" kill "${containers[@]}" > /dev/null 2>&1 || true
        fi
        # Their bridges would outlive the engine, and hold addresses that the next one's networks are given.
        "$docker" container prune --force > /dev/null 2>&1 || true
        "$docker" network prune --force > /dev/null 2>&1 || true
    fi
    "${engine_root[@]}" kill "$engine_pid" 2> /dev/null || true
    wait "$engine_pid" 2> /dev/null || true
    "${engine_root[@]}" rm -rf "$engine_directory"
    engine_pid=""
}
