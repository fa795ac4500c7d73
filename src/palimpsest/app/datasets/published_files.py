"""Files of published data sets, downloaded from the Hugging Face hub or from the publisher's page.

A name here is one file; `OWNER/NAME/FILE` is any file of a data set on the hub.

Guaranteed: a file appears only complete; a failed download leaves nothing. For files of the hub, huggingface_hub
resumes after a broken connection, uses a login (`hf auth login`), and downloads from the mirror in `HF_ENDPOINT`.
Not covered: resuming in a later call; resuming a file outside the hub.
"""

from __future__ import annotations

import re
import shutil
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from palimpsest import files
from palimpsest.errors import DataError, nearest
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.runs.folder_guard import free_file

_OF_THE_HUB = re.compile(r"([\w.-]+/[\w.-]+)/((?:[\w.-]+/)*[\w.-]+)")
_TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True, slots=True)
class Published:
    """A published file."""

    path: str
    """OWNER/NAME/FILE of the hub, or a URL."""
    licence: str = "not known here: ask its page"

    @property
    def file(self) -> str:
        """File name."""
        return self.path.rpartition("/")[2]


_MEMAGENT, _HOTPOT = "BytedTsinghua-SIA/hotpotqa", "CC BY-SA 4.0 (HotpotQA, Yang et al. 2018)"
_EVALS = (50, 100, 200, 400, 800, 1600, 3200, 6400)
PUBLISHED: dict[str, Published] = {
    "memagent-train": Published(f"{_MEMAGENT}/hotpotqa_train_32k.parquet", _HOTPOT),
    "memagent-dev": Published(f"{_MEMAGENT}/hotpotqa_dev.parquet", _HOTPOT),
    **{f"memagent-eval-{n}": Published(f"{_MEMAGENT}/eval_{n}.json", _HOTPOT) for n in _EVALS},
    "hotpotqa-train": Published("https://curtis.ml.cmu.edu/datasets/hotpot/hotpot_train_v1.1.json", _HOTPOT),
    "hotpotqa-dev": Published("https://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json", _HOTPOT),
    "squad-dev": Published(
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
        "CC BY-SA 4.0 (SQuAD, Rajpurkar et al. 2018)",
    ),
}


def find(name: str) -> Published:
    """The file called `name`. Raises DataError.

    >>> find("owner/set/data/test.parquet").file
    'test.parquet'
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    if _OF_THE_HUB.fullmatch(name) is None or ".." in name.split("/"):
        raise DataError(
            f"{name}: no such data set{nearest(name, PUBLISHED)}; choose from {', '.join(PUBLISHED)}, or "
            "OWNER/NAME/FILE of the hub"
        )
    return Published(name)


def download(published: Published, folder: Path, *, force: bool = False, progress: Progress | None = None) -> Path:
    """Download a file into `folder`. Raises DataError; RunError if it exists."""
    progress, out = progress or Silent(), folder / published.file
    if not force:
        free_file(out, force=False, progress=progress)
    partial = files.hidden_name(out)
    partial.mkdir(parents=True, exist_ok=True)
    match = _OF_THE_HUB.fullmatch(published.path)
    try:
        fetched = _of_the_hub(match[1], match[2], partial) if match else _of_a_page(published.path, partial / out.name)
        free_file(out, force=force, progress=progress)
        files.sync(fetched)
        files.rename(fetched, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _of_the_hub(name: str, file: str, folder: Path) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, file, repo_type="dataset", local_dir=folder))
    except Exception as error:  # noqa: BLE001  the client's exceptions differ between versions
        why = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name}/{file}: download from the hub failed ({why:.300})") from None


def _of_a_page(url: str, out: Path) -> Path:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, out.open("wb") as file:
            shutil.copyfileobj(answer, file)
            if answer.length:
                raise ValueError(f"interrupted, {answer.length:,} bytes are missing")
    except (OSError, ValueError, HTTPException) as error:
        raise DataError(f"{url}: download failed ({error}); download it elsewhere, or use a local file") from None
    return out
