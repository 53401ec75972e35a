"""Finds valid settings that are probably mistakes. Only `doctor` looks for them."""

from collections.abc import Iterator

from tollkeeper.domain.catalog import Feature
from tollkeeper.domain.prompt import Sampling
from tollkeeper.settings.places import Place
from tollkeeper.settings.schema import Settings
from tollkeeper.settings.wording import nearest


def settings_warnings(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Yields each doubtful setting with an explanation."""
    for model in settings.models:
        names: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
            ("supported_features", "feature", tuple(Feature), model.supported_features),
            (
                "supported_sampling_parameters",
                "sampling parameter",
                Sampling.__struct_fields__,
                model.supported_sampling_parameters,
            ),
        )
        for setting, kind, known, declared in names:
            for name in declared:
                if name not in known:
                    words = f"{name!r} is not a {kind}{nearest(name, known)}; there are: {', '.join(known)}"
                    yield ("models", model.id, setting), words
        if model.max_output_length > model.context_length:
            words = (
                f"{model.max_output_length} tokens of output do not fit into context_length = "
                f"{model.context_length}; lower it, or correct context_length"
            )
            yield ("models", model.id, "max_output_length"), words
