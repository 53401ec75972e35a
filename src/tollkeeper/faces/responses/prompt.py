"""Turns a Responses request into a prompt."""

from collections.abc import Iterator, Mapping

import msgspec

from tollkeeper.calls.reasoning_seal import ENCRYPTED_REASONING
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.errors import OptionUnsupported
from tollkeeper.core.prompt import (
    CachingWish,
    Identity,
    JsonOutput,
    Logprobs,
    Option,
    OutputFormat,
    Prompt,
    ReasoningWish,
    Sampling,
    SchemaOutput,
)
from tollkeeper.faces.responses.input import Conversation
from tollkeeper.faces.responses.tools import Tools, choose_tools
from tollkeeper.faces.wire import chat as chat_wire
from tollkeeper.faces.wire import responses as wire

# In `include`: asks for log-probabilities.
LOGPROBS = "message.output_text.logprobs"
# In `include`, without effect: a result never has the input's images.
_IMAGE_ADDRESSES = "message.input_image.image_url"
# They leave the choice to the backend, which only gets them if the model declares the option.
_DEFAULT_REASONING = {
    "summary": "auto",
    "generate_summary": "auto",
    "context": "auto",
    "mode": "standard",
}
# Without effect if the model can't reason.
_NO_REASONING = {"effort": "none", **_DEFAULT_REASONING}
_DEFAULT_CACHING = {"mode": "implicit", "ttl": "30m", "prewarm": False}


def read_prompt(
    body: wire.ResponsesRequest,
    model: Model,
    conversation: Conversation,
    tools: Tools,
    caching: CachingWish,
) -> Prompt:
    """Omits values that have no effect on `model`."""
    if body.instructions is not None:
        conversation.instruct(body.instructions)
    if isinstance(body.input, str):
        conversation.say(body.input)
    else:
        for at, item in enumerate(body.input):
            conversation.add(item, f"input[{at}]")
    chosen_tools = choose_tools(tools, body)
    included: dict[str, str] = {
        name: f"include[{at}]" for at, name in enumerate(body.include or ())
    }
    _refuse_unsupported_includes(included)
    return Prompt(
        turns=conversation.turns(),
        tools=chosen_tools.functions,
        tool_choice=chosen_tools.choice,
        parallel_tool_calls=body.parallel_tool_calls if chosen_tools.functions else None,
        web_search=chosen_tools.web_search,
        output_format=_output_format(body.text),
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
        ),
        # Only has an effect with `include`, because some clients send it with every request.
        logprobs=Logprobs(included[LOGPROBS], body.top_logprobs) if LOGPROBS in included else None,
        reasoning=_reasoning(body.reasoning, model, included),
        caching=caching,
        identity=Identity(body.user, body.safety_identifier, body.metadata),
        options=tuple(_options(body, model, included)),
    )


def _refuse_unsupported_includes(included: Mapping[str, str]) -> None:
    for name, place in included.items():
        if name not in (LOGPROBS, ENCRYPTED_REASONING, _IMAGE_ADDRESSES):
            raise OptionUnsupported(f"{name} needs a tool that is not supported.", param=place)


def _output_format(text: wire.ResponsesText | None) -> OutputFormat | None:
    match None if text is None else text.format:
        case chat_wire.JsonObjectFormat():
            return JsonOutput("text.format")
        case wire.ResponsesJsonSchemaFormat() as json_schema:
            return SchemaOutput(
                name=json_schema.name,
                schema=json_schema.schema,
                param="text.format",
                schema_place="text.format.schema",
                description=json_schema.description,
                strict=json_schema.strict,
            )
    return None


def _reasoning(
    reasoning: wire.ResponsesReasoning | None, model: Model, included: Mapping[str, str]
) -> ReasoningWish | None:
    """If the model can't reason, values without effect are omitted, because some clients send them
    to every model. So is the wish for encrypted reasoning, because the answer will have none."""
    model_reasons = Feature.REASONING in model.supported_features
    fields = {} if reasoning is None else msgspec.structs.asdict(reasoning)
    params = [
        f"reasoning.{name}"
        for name, value in fields.items()
        if value is not None and (model_reasons or value != _NO_REASONING.get(name))
    ]
    if ENCRYPTED_REASONING in included and model_reasons:
        params.append(included[ENCRYPTED_REASONING])
    return ReasoningWish(tuple(params), fields.get("effort")) if params else None


def _options(
    body: wire.ResponsesRequest, model: Model, included: Mapping[str, str]
) -> Iterator[Option]:
    """What the model's `options` must name. Defaults are omitted, but not `verbosity`, nor
    reasoning options in `model.options`."""
    if body.text is not None and body.text.verbosity is not None:
        yield Option("verbosity", body.text.verbosity, "text.verbosity")
    for name, default in _DEFAULT_REASONING.items():
        value = None if body.reasoning is None else getattr(body.reasoning, name)
        option = f"reasoning.{name}"
        if value is not None and (value != default or option in model.options):
            yield Option(option, value, option)
    if ENCRYPTED_REASONING in included and ENCRYPTED_REASONING in model.options:
        yield Option(ENCRYPTED_REASONING, True, included[ENCRYPTED_REASONING])
    if body.service_tier not in (None, "auto", "default"):
        yield Option("service_tier", body.service_tier, "service_tier")
    if body.prompt_cache_retention == "24h":
        yield Option("prompt_cache_retention", "24h", "prompt_cache_retention")
    if body.prompt_cache_options is not None:
        for name, value in msgspec.structs.asdict(body.prompt_cache_options).items():
            if value is not None and value != _DEFAULT_CACHING.get(name):
                option = f"prompt_cache_options.{name}"
                yield Option(option, value, option)
    if body.max_tool_calls is not None:
        yield Option("max_tool_calls", body.max_tool_calls, "max_tool_calls")
