"""What several protocols' requests share, and rejections of features without a field in the
protocol."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import (
    AllowedFunctions,
    File,
    FreeObject,
    FunctionTool,
    Image,
    JsonOutput,
    NamedFunction,
    Option,
    Prompt,
    SchemaOutput,
    ToolMode,
    WebSearch,
)

NO_PARAMETERS: FreeObject = {"type": "object", "properties": {}}
# Of images. Not sent: the protocol has no field, because the provider chooses the resolution.
_ACCEPTED_DETAILS = (None, "auto", "high")
_DEFAULT_SEARCH_SIZE = "medium"
# Copied from earlier answers, or cache marks, which only some providers need.
_WITHOUT_EFFECT = frozenset({"index", "provider_specific_fields", "cache_control"})
_NO_EFFORT = "none"
_SWITCHES = ("thinking", "reasoning.enabled")
_SUMMARIES = ("reasoning.summary", "reasoning.generate_summary")
_BUDGET = "reasoning.max_tokens"
# Asks for reasoning that only the provider can read.
ENCRYPTED_REASONING = "reasoning.encrypted_content"
REASONING_OPTIONS = (*_SWITCHES, _BUDGET, *_SUMMARIES, ENCRYPTED_REASONING)
_Choice = TypeVar("_Choice")
encoded = msgspec.json.Encoder().encode


def present(fields: Mapping[str, Any]) -> FreeObject:
    return {name: value for name, value in fields.items() if value is not None}


def add_options(body: FreeObject, model: Model, options: Iterable[Option]) -> None:
    """Those that are only passed on. The model's settings name the field, perhaps a path such as
    `chat_template_kwargs.enable_thinking`. Several may be in the same object."""
    for option in options:
        *parents, name = model.options[option.name].split(".")
        target = body
        for parent in parents:
            existing = target.get(parent)
            target[parent] = target = dict(existing) if isinstance(existing, dict) else {}
        target[name] = option.value


def add_other_options(body: FreeObject, call: Call, reasoning: Mapping[str, str]) -> None:
    """Except those for reasoning, which the wire converts."""
    others = (option for option in call.prompt.options if not _is_for(option.name, call, reasoning))
    add_options(body, call.model, others)


def _is_for(name: str, call: Call, reasoning: Mapping[str, str]) -> bool:
    """If the settings map an option to another field than the wire does, it's only passed on."""
    return name in reasoning and call.model.options.get(name) == reasoning[name]


class AskedReasoning(NamedTuple):
    effort: str | None
    off: str | None
    # The tokens that the model may use. Other types are ignored.
    budget: object
    # By a switch or a summary.
    is_switched_on: bool
    wants_summary: bool
    options: FreeObject


def asked_reasoning(call: Call, fields: Mapping[str, str]) -> AskedReasoning:
    """`fields` maps the options that the wire converts to its protocol's fields."""
    prompt = call.prompt
    options = {
        option.name: option.value for option in prompt.options if _is_for(option.name, call, fields)
    }
    wish = prompt.reasoning
    off = next((name for name in _SWITCHES if options.get(name) is False), None)
    if wish is not None and wish.effort == _NO_EFFORT:
        off = wish.params[0]
    wants_summary = any(name in options for name in _SUMMARIES)
    return AskedReasoning(
        effort=None if wish is None else wish.effort,
        off=off,
        budget=options.get(_BUDGET),
        is_switched_on=wants_summary or any(options.get(name) is True for name in _SWITCHES),
        wants_summary=wants_summary,
        options={option.name: option.param for option in prompt.options if option.name in options},
    )


def refuse_unsupported(
    prompt: Prompt,
    *,
    sampling: Iterable[str],
    output_modalities: Iterable[str],
    json_output: bool = False,
    web_search: bool = True,
    logprobs: bool = False,
    salts: bool = False,
) -> None:
    """Raises OptionUnsupported. `json_output`: the protocol has JSON output without a schema."""
    unsupported = [name for name in prompt.sampling.set_fields() if name not in sampling]
    unsupported += [
        modality.param
        for modality in prompt.output_modalities
        if modality.name not in output_modalities
    ]
    if prompt.logprobs is not None and not logprobs:
        unsupported.append(prompt.logprobs.param)
    if prompt.caching.salt is not None and not salts:
        unsupported.append("cache_salt")
    if isinstance(prompt.output_format, JsonOutput) and not json_output:
        unsupported.append(prompt.output_format.param)
    if prompt.web_search is not None and not web_search:
        unsupported.append(prompt.web_search.param)
    for name in unsupported:
        raise OptionUnsupported(f"The backend's protocol does not support {name}.", param=name)


def checked_temperature(prompt: Prompt) -> float | None:
    """For providers whose temperatures end at 1, while OpenAI's end at 2."""
    temperature = prompt.sampling.temperature
    if temperature is not None and not 0 <= temperature <= 1:
        raise InvalidRequest(
            "The backend accepts only temperatures from 0 to 1.", param="temperature"
        )
    return temperature


def stop_list(prompt: Prompt) -> list[str] | None:
    stop = prompt.sampling.stop
    return [stop] if isinstance(stop, str) else stop or None


def described_schema(output: SchemaOutput) -> FreeObject:
    """For protocols without a field for the description of a schema."""
    if output.description is None or "description" in output.schema:
        return output.schema
    return {**output.schema, "description": output.description}


def offered_functions(prompt: Prompt) -> list[FunctionTool]:
    """For protocols whose models may call any sent function: only those that the client allows.
    Raises OptionUnsupported for other tools."""
    for tool in prompt.tools:
        if not isinstance(tool, FunctionTool):
            place = "functions" if tool.legacy else tool.place
            raise OptionUnsupported("This model supports only tools of type function.", param=place)
    return prompt.allowed_functions


def tool_choice(
    prompt: Prompt, modes: Mapping[ToolMode, _Choice], named: Callable[[str], _Choice]
) -> _Choice | None:
    """For allowed functions, only the mode (see `offered_functions`)."""
    if prompt.tool_choice is None:
        return None
    match prompt.tool_choice.choice:
        case ToolMode() as mode:
            return modes[mode]
        case NamedFunction(name=name):
            return named(name)
        case AllowedFunctions(mode=mode):
            return modes[mode]
    raise OptionUnsupported("This model can choose only functions.", param=prompt.tool_choice.param)


def refuse_forced_search(prompt: Prompt) -> None:
    """Raises OptionUnsupported if a tool must be called and it's only the web search, for protocols
    that can't force one."""
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
    """Options that the provider doesn't have."""
    refuse_search_fields(search)
    if search.context_size not in (None, _DEFAULT_SEARCH_SIZE):
        raise OptionUnsupported(
            "The backend supports only the search context size medium.",
            param=f"{search.param}.search_context_size",
        )


def refuse_search_fields(search: WebSearch) -> None:
    if search.extra:
        raise InvalidRequest(
            f"{search.param} has fields that are not supported.", param=search.param
        )


def refuse_server_tools(prompt: Prompt) -> None:
    """In a token count request: the protocol has none, and without them the count would be too
    low."""
    if prompt.server_tools:
        raise OptionUnsupported(
            "The backend cannot count the tokens of server-side tools.", param="tools"
        )


def check_detail(image: Image) -> None:
    if image.detail not in _ACCEPTED_DETAILS:
        raise OptionUnsupported(
            "The backend does not support this image detail.", param=f"{image.place}.detail"
        )


def check_extra(extra: FreeObject | None, place: str) -> None:
    """Rejects those that would be lost although they affect the answer."""
    for name in extra or ():
        if name not in _WITHOUT_EFFECT:
            raise OptionUnsupported(
                f"The backend's protocol has no field for {name[:100]!r}.",
                param=f"{place}.{name[:100]}",
            )


def unsupported_content(place: str) -> OptionUnsupported:
    return OptionUnsupported("The backend's protocol has no field for this content.", param=place)


def sent_filename(file: File) -> str | None:
    """Even if the client sent none: OpenAI requires one for content."""
    return file.filename or ("document" if file.data else None)
