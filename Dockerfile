# From a clean clone: docker build --tag purser .
FROM node:24-bookworm-slim AS build
WORKDIR /src
# What the builder's image has already (one for machines without a network) is not fetched again.
RUN command -v strip || { apt-get update && apt-get install --yes --no-install-recommends binutils; }
COPY package.json package-lock.json ./
RUN test -d node_modules || npm ci
COPY . .
RUN node_modules/.bin/node build.mjs
# All that the executable needs beside itself: the C and C++ libraries. No shell, no package manager, no interpreter.
RUN mkdir /image \
  && cp dist/purser /image/ \
  && for library in $(ldd dist/purser | grep -o '/[^ ]*'); do cp --parents --dereference "$library" /image; done \
  && install -d -m 700 /volume/data

FROM scratch
COPY --from=build /image /
COPY --from=build --chown=65532:65532 /volume /
USER 65532:65532
VOLUME /data
ENV PURSER_DATA=/data PURSER_LISTEN=0.0.0.0:7420
EXPOSE 7420 7422
# Asks the running server over its socket; a server that hangs does not answer. Whether it can serve money: GET /readyz.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["/purser", "ledger", "head"]
# Docker kills what has not stopped within 10 seconds, and a model may answer for longer. Wait longer than the longest
# timeout_seconds of an upstream (300 unless configured): docker stop --time 330, or stop_grace_period: 330s in Compose.
ENTRYPOINT ["/purser"]
CMD ["serve"]
