"""What wires have in common where they refuse what their protocol has no field for."""

from collections.abc import Iterable

from tollkeeper.domain.errors import OptionUnsupported
from tollkeeper.domain.prompt import AllowedFunctions, FunctionTool, JsonOutput, Prompt


def refuse_unsupported(
    prompt: Prompt,
    *,
    sampling: Iterable[str],
    output_modalities: Iterable[str],
    json_output: bool = False,
) -> None:
    """For protocols without log-probabilities and salts of caches. `sampling` are the parameters that
    the protocol has. Raises OptionUnsupported with the first that it lacks."""
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
    """The functions that the model may call, for protocols without a list of allowed ones: only
    those are offered. Raises OptionUnsupported for tools of other types."""
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
