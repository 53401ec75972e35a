"""From a Responses request to a prompt."""

from collections.abc import Iterator, Mapping

import msgspec

from tollkeeper.api.responses.input import ENCRYPTED_REASONING, Conversation
from tollkeeper.api.responses.tools import Tools, choose_tools
from tollkeeper.api.wire import chat as chat_wire
from tollkeeper.api.wire import responses as wire
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import OptionUnsupported
from tollkeeper.domain.prompt import (
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

LOGPROBS = "message.output_text.logprobs"
# Input is never part of a result here, so there is nothing that this could add.
_IMAGE_ADDRESSES = "message.input_image.image_url"
# Values that leave the choice to the backend: they ask for nothing, unless the model says how
# they are asked for.
_ORDINARY_REASONING = {
    "summary": "auto",
    "generate_summary": "auto",
    "context": "auto",
    "mode": "standard",
}


def read_prompt(
    body: wire.ResponsesRequest,
    model: Model,
    conversation: Conversation,
    tools: Tools,
    caching: CachingWish,
) -> Prompt:
    """`model` decides what of earlier reasoning goes back, and which options it maps."""
    if body.instructions is not None:
        conversation.instruct(body.instructions)
    if isinstance(body.input, str):
        conversation.say(body.input)
    else:
        for at, item in enumerate(body.input):
            conversation.add(item, f"input[{at}]")
    offered = choose_tools(tools, body)
    included: dict[str, str] = {
        name: f"include[{at}]" for at, name in enumerate(body.include or ())
    }
    _refuse_foreign_includes(included)
    return Prompt(
        turns=conversation.turns(),
        tools=offered.functions,
        tool_choice=offered.choice,
        parallel_tool_calls=body.parallel_tool_calls if offered.functions else None,
        web_search=offered.web_search,
        output_format=_output_format(body.text),
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
        ),
        # `top_logprobs` alone asks for nothing: published clients send it with every request.
        logprobs=Logprobs(included[LOGPROBS], body.top_logprobs) if LOGPROBS in included else None,
        reasoning=_reasoning(body.reasoning, included),
        caching=caching,
        identity=Identity(body.user, body.safety_identifier, body.metadata),
        options=tuple(_options(body, model, included)),
    )


def _refuse_foreign_includes(included: Mapping[str, str]) -> None:
    for name, place in included.items():
        if name not in (LOGPROBS, ENCRYPTED_REASONING, _IMAGE_ADDRESSES):
            raise OptionUnsupported(f"{name} needs a tool that is not offered here.", param=place)


def _output_format(text: wire.ResponsesText | None) -> OutputFormat | None:
    match None if text is None else text.format:
        case chat_wire.JsonObjectFormat():
            return JsonOutput("text.format")
        case wire.ResponsesJsonSchemaFormat() as wanted:
            return SchemaOutput(
                name=wanted.name,
                schema=wanted.schema,
                param="text.format",
                schema_place="text.format.schema",
                description=wanted.description,
                strict=wanted.strict,
            )
    return None


def _reasoning(
    reasoning: wire.ResponsesReasoning | None, included: Mapping[str, str]
) -> ReasoningWish | None:
    asked = {} if reasoning is None else msgspec.structs.asdict(reasoning)
    params = [f"reasoning.{name}" for name, value in asked.items() if value is not None]
    if ENCRYPTED_REASONING in included:
        params.append(included[ENCRYPTED_REASONING])
    return ReasoningWish(tuple(params), asked.get("effort")) if params else None


def _options(
    body: wire.ResponsesRequest, model: Model, included: Mapping[str, str]
) -> Iterator[Option]:
    """Options without a published meaning, and those whose ordinary value asks for nothing."""
    if body.text is not None and body.text.verbosity is not None:
        yield Option("verbosity", body.text.verbosity, "text.verbosity")
    for name, ordinary in _ORDINARY_REASONING.items():
        value = None if body.reasoning is None else getattr(body.reasoning, name)
        option = f"reasoning.{name}"
        if value is not None and (value != ordinary or option in model.options):
            yield Option(option, value, option)
    if ENCRYPTED_REASONING in included and ENCRYPTED_REASONING in model.options:
        yield Option(ENCRYPTED_REASONING, True, included[ENCRYPTED_REASONING])
    if body.service_tier not in (None, "auto", "default"):
        yield Option("service_tier", body.service_tier, "service_tier")
    if body.prompt_cache_retention == "24h":
        yield Option("prompt_cache_retention", "24h", "prompt_cache_retention")
    if body.max_tool_calls is not None:
        yield Option("max_tool_calls", body.max_tool_calls, "max_tool_calls")
