"""Objects in JSON files, with errors that name the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arch_registry.errors import InvalidConfigError


def read_object(file: Path, read: Callable[[Path], str]) -> dict[str, Any]:
    """The object in a file.

    Args:
        file: Where it is.
        read: Gives the file's text, or raises InvalidConfigError where the file is none to read.

    Raises:
        InvalidConfigError: The file is unreadable, not JSON, or not an object; the message names it.
    """
    try:
        data = json.loads(read(file))
    except OSError as error:
        raise InvalidConfigError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise InvalidConfigError(f"{file}: expected a JSON object, got {type(data).__name__}")
    return data
