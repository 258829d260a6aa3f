# The image of both services; the compose file says which one runs.
#
# Wheels are made in one stage and installed in the next, so that the image holds no compiler, no
# pip cache and no sources, and the versions of constraints.txt and no others.
FROM python:3.12-slim AS wheels
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY lockclient/ lockclient/
COPY unlocker/ unlocker/
COPY mutexdash/ mutexdash/
RUN pip wheel --no-cache-dir --wheel-dir /wheels -c constraints.txt '.[services]'

FROM python:3.12-slim
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'clustermutex[services]'
RUN useradd --uid 65532 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin mutex
# By its number, so that an orchestrator sees without a look into the image that it is not root.
USER 65532:65532
CMD ["clustermutex", "--help"]
