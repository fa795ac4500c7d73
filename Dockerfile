# docker build -t palimpsest .                          CPU
# docker build -t palimpsest --build-arg TORCH=cuda .   CUDA, several gigabytes
FROM python:3.11-slim
ARG TORCH=cpu
ARG EXTRAS=lora,ray,pdf
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY scripts/install_torch.py scripts/
RUN python scripts/install_torch.py --build "$TORCH"
COPY src src
RUN pip install ".[$EXTRAS]" && useradd --create-home palimpsest && install -d -o palimpsest /work
USER palimpsest
WORKDIR /work
ENTRYPOINT ["palimpsest"]
CMD ["--help"]
