# syntax=docker/dockerfile:1
# The gateway without the embedded Postgres: a container is given a database, it does not carry one.

FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/twophp
WORKDIR /src
COPY pyproject.toml README.md ./
COPY gateway ./gateway
RUN /opt/twophp/bin/pip install .

FROM python:3.11-slim
# The same number everywhere, so that runAsNonRoot and file ownership can be checked from outside.
RUN groupadd --gid 10001 twophp && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin twophp
COPY --from=build /opt/twophp /opt/twophp
ENV PATH=/opt/twophp/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TWOPHP_HEALTH_URL=http://127.0.0.1:9080/healthz
USER 10001:10001
EXPOSE 8080 9080
STOPSIGNAL SIGTERM
# Never through a proxy that the environment names: the question is about this container.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(os.environ['TWOPHP_HEALTH_URL'], timeout=2)"]
ENTRYPOINT ["twophp"]
CMD ["serve", "-c", "/etc/twophp/gateway.yaml"]
