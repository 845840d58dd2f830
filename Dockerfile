# The service. CPU by default; `--build-arg EXTRAS=service,torch` adds torch with CUDA for
# TWINSCOPE_ENGINE=cuda; `--build-arg BASE=IMAGE` takes Python 3.11 from your own registry.
# Build:  docker build -t twinscope:0.1.0 .
ARG BASE=python:3.11.13-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=service
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY probes/twinscope probes/twinscope
COPY service/twinscope_service service/twinscope_service
COPY fpga_backend/twinscope_fpga fpga_backend/twinscope_fpga
COPY dashboards/twinscope_dashboards dashboards/twinscope_dashboards
COPY docs/causes docs/causes
COPY docs/runbooks docs/runbooks
RUN python -m venv /opt/twinscope \
 && /opt/twinscope/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"

FROM ${BASE}
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin twinscope \
 && install -d -o twinscope -g twinscope /data
COPY --from=build /opt/twinscope /opt/twinscope
# What must be written is on the volume: the root file system may be read-only.
ENV PATH=/opt/twinscope/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/data/compiled \
    TWINSCOPE_HOST=0.0.0.0 \
    TWINSCOPE_PORT=8321 \
    TWINSCOPE_DATA_DIR=/data/runs
USER 10001
VOLUME /data
EXPOSE 8321
# The first start on a volume compiles the kernels: 20 seconds of one core, minutes of a busy one.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8321/readyz', timeout=4)"]
ENTRYPOINT ["twinscope"]
CMD ["serve"]
