#!/bin/sh
# Runs before everything else, as root without a network: writes NATS's configuration and the credentials, and gives each
# kind of process a volume with its own, and no other's. A second run keeps the secrets.
set -eu
umask 077

smcp nats-config /etc/smcp/offices.yaml --out /run/smcp/all
# The gateways know keys by their hashes; the key itself is for Agents alone.
key() {
    to="/run/smcp/all/$1"
    shift
    smcp keys add --file /run/smcp/all/keys.json --office 'demo office' --role agent "$@" > "$to.new"
    mv "$to.new" "$to"
}
if [ ! -e /run/smcp/all/token ]; then
    rm -f /run/smcp/all/keys.json /run/smcp/all/mcp-token
    key token --name '*' --subject demo
fi
# That of smcp-mcp, for the gateways. It counts each of its users: one could use up a quota of all.
if [ ! -e /run/smcp/all/mcp-token ]; then
    key mcp-token --name smcp-mcp --subject smcp-mcp --delegates
fi

give() {
    to="/run/smcp/$1"
    shift
    for file in "$@"; do
        cp "/run/smcp/all/$file" "$to/"
    done
    chown -R 10001:10001 "$to"
}
give nats nats-server.conf
give registries creds/registry-1.json creds/registry-2.json
give gateways creds/gateway-1.json creds/gateway-2.json keys.json
give mcp keys.json mcp-token
give agents token
give operators creds/operator.json
give computer creds/computer.json
chown 10001:10001 /data
