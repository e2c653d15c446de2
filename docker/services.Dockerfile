# The images of the gateway, of the registry and of the command `smcp` (targets gateway, registry, smcp).
#
# `make images` builds them: docker/images.sh lays all that goes in into build/images first, so nothing here needs a network.
# BASE is any Debian-like image with Python 3.11 or newer and CA certificates.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS services-packages
RUN --mount=type=bind,source=build/images/wheels,target=/wheels --mount=type=bind,source=build/images/services.txt,target=/list.txt \
    --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh packages /opt/smcp
RUN --mount=type=bind,source=build/images/own,target=/own --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh own /opt/smcp smcp_proto smcp_bus smcp_service smcp_auth smcp_gateway smcp_registry

FROM ${BASE} AS smcp-packages
RUN --mount=type=bind,source=build/images/wheels,target=/wheels --mount=type=bind,source=build/images/smcp.txt,target=/list.txt \
    --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh packages /opt/smcp
RUN --mount=type=bind,source=build/images/own,target=/own --mount=type=bind,source=docker/install.sh,target=/install.sh \
    sh /install.sh own /opt/smcp smcp_proto smcp_bus smcp_service smcp_auth smcp_agent smcp_gateway smcp_registry \
        smcp_computer smcp_mcp smcp_standalone

FROM ${BASE} AS runtime
# Not by useradd, which a minimal base does not have. The number is what Kubernetes and volumes go by.
RUN echo 'smcp:x:10001:10001:A2C-SMCP:/var/lib/smcp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'smcp:x:10001:' >> /etc/group \
    && mkdir -p /var/lib/smcp && chown 10001:10001 /var/lib/smcp
COPY docker/healthcheck.py /usr/local/lib/smcp/healthcheck.py
ENV HOME=/var/lib/smcp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/smcp
LABEL org.opencontainers.image.licenses=Apache-2.0

# Both services have the same packages, so they share this layer.
FROM runtime AS services
COPY --from=services-packages /opt/smcp /opt/smcp

FROM services AS gateway
ENV PATH=/opt/smcp/bin:/usr/local/bin:/usr/bin:/bin SMCP_GATEWAY_HOST=0.0.0.0 SMCP_GATEWAY_PORT=8000 \
    SMCP_HEALTH_HOST=0.0.0.0 SMCP_HEALTH_PORT=8080
EXPOSE 8000 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["/opt/smcp/bin/python", "-I", "-S", "/usr/local/lib/smcp/healthcheck.py", "SMCP_GATEWAY_PORT"]
ENTRYPOINT ["smcp-gateway"]

FROM services AS registry
ENV PATH=/opt/smcp/bin:/usr/local/bin:/usr/bin:/bin SMCP_HEALTH_HOST=0.0.0.0 SMCP_HEALTH_PORT=8080
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["/opt/smcp/bin/python", "-I", "-S", "/usr/local/lib/smcp/healthcheck.py", "SMCP_HEALTH_PORT"]
ENTRYPOINT ["smcp-registry"]

# What operators run once (`smcp nats-config`), `smcp-agent`, and the whole system in one container (`smcp up`).
FROM runtime AS smcp
COPY --from=smcp-packages /opt/smcp /opt/smcp
ENV PATH=/opt/smcp/bin:/usr/local/bin:/usr/bin:/bin
ENTRYPOINT ["smcp"]
