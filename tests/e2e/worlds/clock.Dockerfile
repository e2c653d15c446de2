# An image of this tree in which the clock can be wrong: libfaketime is there, for LD_PRELOAD.
ARG FAKETIME
ARG IMAGE
FROM ${FAKETIME} AS faketime
FROM ${IMAGE}
COPY --from=faketime /libfaketime.so.1 /usr/lib/faketime/libfaketime.so.1
