"""Rejects request features that a backend's protocol has no field for."""

from collections.abc import Iterable

from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    AllowedFunctions,
    FreeObject,
    FunctionTool,
    Image,
    JsonOutput,
    NamedFunction,
    Prompt,
    ToolMode,
    WebSearch,
)

# The provider chooses the resolution of an image. These values have no effect.
_DETAILS = (None, "auto", "high")
_DEFAULT_SEARCH_SIZE = "medium"
# Fields that clients keep in returned messages, and cache markers, which only some providers need.
# They do not affect the answer.
_WITHOUT_EFFECT = frozenset({"index", "provider_specific_fields", "cache_control"})


def refuse_unsupported(
    prompt: Prompt,
    *,
    sampling: Iterable[str],
    output_modalities: Iterable[str],
    json_output: bool = False,
) -> None:
    """Checks whether a protocol without log-probabilities and cache salts can carry a prompt.
    `sampling` are the protocol's parameters. Raises OptionUnsupported with the first unsupported field."""
    requested = [name for name in prompt.sampling.given() if name not in sampling]
    requested += [
        modality.param
        for modality in prompt.output_modalities
        if modality.name not in output_modalities
    ]
    if prompt.logprobs is not None:
        requested.append(prompt.logprobs.param)
    if prompt.caching.salt is not None:
        requested.append("cache_salt")
    if isinstance(prompt.output_format, JsonOutput) and not json_output:
        requested.append(prompt.output_format.param)
    for name in requested:
        raise OptionUnsupported(f"The backend's protocol does not support {name}.", param=name)


def offered_functions(prompt: Prompt) -> list[FunctionTool]:
    """Returns the functions that the model may call, for protocols that cannot restrict the offered
    functions: the others are left out. Raises OptionUnsupported for tools of other types."""
    functions = []
    for tool in prompt.tools:
        if not isinstance(tool, FunctionTool):
            place = "functions" if tool.legacy else tool.place
            raise OptionUnsupported("This model supports only tools of type function.", param=place)
        functions.append(tool)
    choice = None if prompt.tool_choice is None else prompt.tool_choice.choice
    if isinstance(choice, AllowedFunctions):
        return [tool for tool in functions if tool.name in choice.names]
    return functions


def chosen_tool(prompt: Prompt) -> ToolMode | NamedFunction | None:
    """Returns how the model may use its tools; None if the request does not say. Raises
    OptionUnsupported for a choice of anything but functions."""
    if prompt.tool_choice is None:
        return None
    match prompt.tool_choice.choice:
        case ToolMode() | NamedFunction() as choice:
            return choice
        case AllowedFunctions(mode=mode):
            return mode
    raise OptionUnsupported("This model can choose only functions.", param=prompt.tool_choice.param)


def check_search(search: WebSearch) -> None:
    """Rejects search options that the provider does not have."""
    if search.extra:
        raise InvalidRequest(
            f"{search.param} has fields that are not supported.", param=search.param
        )
    if search.context_size not in (None, _DEFAULT_SEARCH_SIZE):
        raise OptionUnsupported(
            "The backend has no choice of how much a search finds.",
            param=f"{search.param}.search_context_size",
        )


def check_detail(image: Image) -> None:
    if image.detail not in _DETAILS:
        raise OptionUnsupported(
            "The backend has no choice of an image's resolution.", param=f"{image.place}.detail"
        )


def check_extra(extra: FreeObject | None, place: str) -> None:
    """Rejects a property that the protocol does not have, because it would be lost."""
    for name in extra or ():
        if name not in _WITHOUT_EFFECT:
            raise OptionUnsupported(
                f"The backend's protocol has no field for {name[:100]}.",
                param=f"{place}.{name[:100]}",
            )
