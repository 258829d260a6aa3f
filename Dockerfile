# The image of both services; the compose file chooses the one that runs.
#
# One stage installs everything in an environment of its own, and the next stage copies that. So the
# image has no compiler, no sources and no pip, and only the versions of constraints.txt.
#
# The digest fixes the base image for every architecture; the tag before it is for people. To try a
# newer one, `docker buildx imagetools inspect python:3.12-slim` prints its digest, and
# `--build-arg PYTHON=python:3.12-slim@sha256:…` builds with it.
ARG PYTHON=python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM ${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY lockclient/ lockclient/
COPY unlocker/ unlocker/
COPY mutexdash/ mutexdash/
RUN python -m venv --without-pip /opt/clustermutex \
    && pip --python /opt/clustermutex/bin/python install --no-cache-dir \
        -c constraints.txt '.[services,notify]'

FROM ${PYTHON}
# The base image's own pip, and the one that its ensurepip would install.
RUN pip uninstall --yes --quiet --root-user-action=ignore pip \
    && rm -r "$(python -c 'import ensurepip; print(*ensurepip.__path__)')" \
    && useradd --uid 65532 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin mutex
COPY --from=build /opt/clustermutex /opt/clustermutex
ENV PATH=/opt/clustermutex/bin:$PATH
# A number, so that an orchestrator need not read the image to see that it is not root.
USER 65532:65532
EXPOSE 8722 9722
# Checks that the service is alive, on its usual port (for another port give --health-cmd). Not that it
# is ready: while etcd is unreachable none is, and a restart would not help.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import http.client, socket, sys; port = next(p for p in (9722, 8722) if not socket.socket().connect_ex(('127.0.0.1', p))); c = http.client.HTTPConnection('127.0.0.1', port, timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
CMD ["clustermutex", "--help"]
