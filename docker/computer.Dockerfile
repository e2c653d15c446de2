# The image of a Computer, with Node and uv, so that `npx` and `uvx` run MCP servers (target computer); and the same with
# mcp-server-git and mcp-server-time in it, as an example of a Computer whose servers are pinned (target demo). Target
# testing has the MCP servers of the tests.
#
# `make images` builds them: docker/images.sh lays all that goes in into build/images first, so nothing here needs a network.
# BASE is any Debian-like image with Python 3.11 or newer, CA certificates and libstdc++; NODE one with Node in /usr/local.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG NODE=node:22-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c

FROM ${NODE} AS node

FROM ${BASE} AS packages
RUN --mount=type=bind,source=build/images/wheels,target=/wheels --mount=type=bind,source=build/images/computer.txt,target=/list.txt \
    --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh packages /opt/smcp
RUN --mount=type=bind,source=build/images/own,target=/own --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh own /opt/smcp smcp_proto smcp_bus smcp_service smcp_agent smcp_computer \
    && mkdir /opt/uv && cp /tmp/uv/uv-*.data/scripts/uv /tmp/uv/uv-*.data/scripts/uvx /opt/uv && chmod 755 /opt/uv/*

FROM ${BASE} AS demo-packages
RUN --mount=type=bind,source=build/images/wheels,target=/wheels --mount=type=bind,source=docker/compose/servers.lock,target=/list.txt \
    --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh packages /opt/mcp-servers

FROM ${BASE} AS testing-packages
RUN --mount=type=bind,source=build/images/wheels,target=/wheels --mount=type=bind,source=build/images/testing.txt,target=/list.txt \
    --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh packages /opt/testing
RUN --mount=type=bind,source=build/images/own,target=/own --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh own /opt/testing smcp_proto smcp_bus smcp_service smcp_auth smcp_agent smcp_gateway smcp_registry \
        smcp_computer smcp_mcp smcp_standalone smcp_testing

FROM ${BASE} AS computer
RUN echo 'smcp:x:10001:10001:A2C-SMCP:/var/lib/smcp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'smcp:x:10001:' >> /etc/group \
    && mkdir -p /var/lib/smcp /etc/smcp /etc/uv && chown 10001:10001 /var/lib/smcp \
    # uvx runs with the Python that is here: it would fetch another one otherwise, where the server asks for it.
    && echo 'python-downloads = "never"' > /etc/uv/uv.toml
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
COPY --from=packages /opt/uv /usr/local/bin
COPY --from=packages /opt/smcp /opt/smcp
COPY docker/healthcheck.py /usr/local/lib/smcp/healthcheck.py
# The Computer's own environment stays out of the PATH, which MCP servers are given.
RUN ln -s /opt/smcp/bin/smcp-computer /usr/local/bin/smcp-computer \
    && ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx \
    && node --version > /dev/null && npx --version > /dev/null && uvx --version > /dev/null
ENV HOME=/var/lib/smcp PATH=/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    SMCP_CONFIG=/etc/smcp/computer.json SMCP_HEALTH_HOST=0.0.0.0 SMCP_HEALTH_PORT=8080
USER 10001:10001
WORKDIR /var/lib/smcp
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["/opt/smcp/bin/python", "-I", "-S", "/usr/local/lib/smcp/healthcheck.py", "SMCP_HEALTH_PORT"]
ENTRYPOINT ["smcp-computer"]
CMD ["run"]
LABEL org.opencontainers.image.licenses=Apache-2.0

FROM computer AS testing
COPY --from=testing-packages /opt/testing /opt/testing

FROM computer AS demo
USER root
# mcp-server-git calls it; only this step may need a network, and only where the base has none.
RUN command -v git > /dev/null || { apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends git && rm -rf /var/lib/apt/lists/*; }
COPY --from=demo-packages /opt/mcp-servers /opt/mcp-servers
RUN ln -s /opt/mcp-servers/bin/mcp-server-git /opt/mcp-servers/bin/mcp-server-time /usr/local/bin/ \
    # The repository that is shown belongs to somebody else, and is mounted to be read only.
    && printf '[safe]\n\tdirectory = *\n' > /etc/gitconfig
USER 10001:10001
