"""Rejects requests with features for which the backend's protocol has no field."""

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

# The accepted values of an image's `detail`. They are not sent: the protocol has no field for them,
# because the provider itself chooses the resolution of an image.
_ACCEPTED_DETAILS = (None, "auto", "high")
_DEFAULT_SEARCH_SIZE = "medium"
# Properties that do not affect the answer: fields that clients copy from earlier answers, and cache
# marks, which only some providers need.
_WITHOUT_EFFECT = frozenset({"index", "provider_specific_fields", "cache_control"})


def refuse_unsupported(
    prompt: Prompt,
    *,
    sampling: Iterable[str],
    output_modalities: Iterable[str],
    json_output: bool = False,
) -> None:
    """Raises OptionUnsupported if the prompt uses a feature that the backend's protocol does not
    have. `sampling` and `output_modalities` are the names that the protocol supports, and
    `json_output` tells whether it supports JSON output without a schema. Log probabilities and cache
    salts are always rejected."""
    unsupported = [name for name in prompt.sampling.set_fields() if name not in sampling]
    unsupported += [
        modality.param
        for modality in prompt.output_modalities
        if modality.name not in output_modalities
    ]
    if prompt.logprobs is not None:
        unsupported.append(prompt.logprobs.param)
    if prompt.caching.salt is not None:
        unsupported.append("cache_salt")
    if isinstance(prompt.output_format, JsonOutput) and not json_output:
        unsupported.append(prompt.output_format.param)
    for name in unsupported:
        raise OptionUnsupported(f"The backend's protocol does not support {name}.", param=name)


def offered_functions(prompt: Prompt) -> list[FunctionTool]:
    """Returns the functions to send to the backend: those that the client allows the model to call.
    This is for protocols in which a model may call every function of the request. Raises
    OptionUnsupported for tools of other types."""
    for tool in prompt.tools:
        if not isinstance(tool, FunctionTool):
            place = "functions" if tool.legacy else tool.place
            raise OptionUnsupported("This model supports only tools of type function.", param=place)
    return prompt.allowed_functions


def chosen_tool(prompt: Prompt) -> ToolMode | NamedFunction | None:
    """Returns the client's choice of how the model uses its tools. For a choice of allowed functions,
    returns only its mode (see `offered_functions`). Returns None if the request has no `tool_choice`.
    Raises OptionUnsupported if the choice names a tool that is not a function."""
    if prompt.tool_choice is None:
        return None
    match prompt.tool_choice.choice:
        case ToolMode() | NamedFunction() as choice:
            return choice
        case AllowedFunctions(mode=mode):
            return mode
    raise OptionUnsupported("This model can choose only functions.", param=prompt.tool_choice.param)


def refuse_forced_search(prompt: Prompt) -> None:
    """Raises OptionUnsupported if the model must call a tool and its only tool is the web search. This is
    for protocols that cannot force a search."""
    choice = prompt.tool_choice
    if (
        choice is not None
        and choice.choice is ToolMode.REQUIRED
        and not prompt.tools
        and not choice.may_be_dropped
    ):
        raise OptionUnsupported(
            "The backend's protocol cannot force a web search.", param=choice.param
        )


def check_search(search: WebSearch) -> None:
    """Rejects web search options that the provider does not have."""
    if search.extra:
        raise InvalidRequest(
            f"{search.param} has fields that are not supported.", param=search.param
        )
    if search.context_size not in (None, _DEFAULT_SEARCH_SIZE):
        raise OptionUnsupported(
            "The backend supports only the search context size medium.",
            param=f"{search.param}.search_context_size",
        )


def check_detail(image: Image) -> None:
    if image.detail not in _ACCEPTED_DETAILS:
        raise OptionUnsupported(
            "The backend does not support this image detail.", param=f"{image.place}.detail"
        )


def refuse_server_tools(prompt: Prompt) -> None:
    """Rejects a token count request with tools that the provider runs (`server_tools`), because the
    protocol has no such tools, and without them the count would be too low."""
    if prompt.server_tools:
        raise OptionUnsupported(
            "The backend cannot count the tokens of server-side tools.", param="tools"
        )


def check_extra(extra: FreeObject | None, place: str) -> None:
    """Rejects additional properties of a part or tool, because the protocol has no field for them and
    they would be lost. Ignores properties that do not affect the answer."""
    for name in extra or ():
        if name not in _WITHOUT_EFFECT:
            raise OptionUnsupported(
                f"The backend's protocol has no field for {name[:100]!r}.",
                param=f"{place}.{name[:100]}",
            )
