"""Says in plain words what each property and parameter of the API means, for the OpenAPI document.

A word such as 501 is the status of a request with this value. Properties whose meaning is obvious from
their name have no row; `tests/contract/test_openapi.py` lists them.
"""

# The parameters in paths and queries, by name.
PARAMETERS = {
    "model": "The exact id of the model. A slash in it can be sent as it is or as `%2F`.",
    "policy_id": "The id of the policy.",
    "project_id": "The id of the project.",
    "api_key_id": "The id of the admin key.",
    "beta": "Has no effect. Anthropic's SDKs send it with their beta methods.",
    "after": "The `last_id` of the previous page: the list continues after this key.",
    "limit": "The maximum number of keys or of days on the page.",
    "order": "The order of creation: oldest first (`asc`) or newest first (`desc`).",
    "start_time": "The beginning of the report in Unix seconds, inclusive. The report covers whole UTC days, "
    "so it begins with the day that contains this time.",
    "end_time": "The end of the report in Unix seconds, exclusive. If you omit it, the report ends now.",
    "bucket_width": "The length of a bucket: one UTC day.",
    "project_ids": "Only costs of these projects. An id of another organization is 404.",
    "api_key_ids": "Only costs of these project keys. An id of another organization is 404.",
    "group_by": "Splits each day's cost by these dimensions. Without it, a day has one sum.",
    "page": "The `next_page` of the previous page. Send the same other parameters as for that page; only "
    "`limit` may change.",
}

# The properties with one meaning in all schemas, by name.
PROPERTIES = {
    "object": "The type of this object.",
    "created_at": "The time of creation, in Unix seconds.",
    "model": "The id of the model, as `GET /v1/models/{model}` shows it.",
    "policy_ids": "Ids of published policies that apply to this call, in addition to those that apply to the "
    "project anyway. An id that isn't a published policy of the organization is 404.",
    "temperature": "How random the answer is. Low values make it more predictable.",
    "top_p": "Nucleus sampling: only tokens within this share of the probability are considered.",
    "frequency_penalty": "Above 0, tokens that occurred often become less likely.",
    "presence_penalty": "Above 0, tokens that occurred at all become less likely.",
    "tool_choice": "Whether the model may, must or must not call a tool, or which tool it has to call.",
    "parallel_tool_calls": "Whether one answer may contain several tool calls.",
    "verbosity": "How detailed the answer should be. 501 if the backend has no such option.",
    "prompt_cache_key": "Requests of the project with the same key go to the same replica of a backend if "
    "possible, whose cache may hold the beginning of the prompt. Other projects don't share the cache.",
    "prompt_cache_retention": "How long the provider should keep the prompt in its cache. 501 if the backend "
    "has no such option.",
    "safety_identifier": "An id of your user, for the provider's abuse detection. Don't send names or "
    "addresses.",
    "user": "An id of your user, for the provider. It doesn't change the answer or the costs report.",
    "top_logprobs": "How many of the likeliest tokens to return for each position.",
    "disable_parallel_tool_use": "With `true`, the answer contains at most one tool call.",
    "display": "Whether the answer shows the reasoning or a summary of it. Every value other than "
    "`summarized` is dropped.",
    "schema": "The JSON Schema that the answer must match.",
    "ttl": "How long the provider should keep the prompt in its cache.",
    "direction": "Which texts the policy judges: requests, answers (`response`) or both.",
    "mode": "What happens on a match: `monitoring` only records it, `enforcing` denies the call with 403.",
    "scope": "Which calls the policy applies to: those of every project, those of the projects in "
    "`project_ids`, or (`unattached`) only requests that name it in `policy_ids`.",
    "rule": "The question that the judge answers with yes (a match) or no. It ends with a question mark.",
    "revision": "The number of the policy's last edit. An edit or pause must send it; if someone else was "
    "faster, the request is 409.",
    "has_more": "Whether there is another page.",
    "permissions": "The operations that the key allows, for example `inference:write`.",
    "redacted_value": "The beginning of the key, to recognise it. It can't be used as a key.",
    "last_used_at": "The time of the last request with the key, in Unix seconds; null if there was none.",
    "expires_at": "The time from which the key no longer works, in Unix seconds; null if it never expires.",
    "owner": "What the key belongs to.",
    "request_id": "The gateway's id of the request, the same as the header `X-Request-ID`. Quote it if you "
    "ask the operator about the request.",
    "encrypted_content": "The reasoning, encrypted for your project. Send it back in a later request, so that "
    "the model can continue it.",
    "start_index": "The position of the first character that the citation supports.",
    "end_index": "The position after the last character that the citation supports.",
    "bytes": "The token's UTF-8 bytes. A character can consist of several tokens.",
    "logprob": "The natural logarithm of the token's probability.",
    "strict": "Whether the answer must match the schema exactly.",
    "annotations": "The pages that the answer cites.",
    "system": "Instructions for the whole conversation.",
    "output_config": "How much the model thinks, and in which format it answers.",
    "speed": "`fast` is 501, unless the model's backend has such an option; `standard` is the default.",
    "cache_control": "Asks the provider to cache the prompt up to this place. Backends without cache marks "
    "ignore it.",
    "thinking": "Whether the model reasons before it answers, and how much.",
    "total_tokens": "The sum of both counts.",
}

# The properties with a meaning of their own, by schema and name. They come before `PROPERTIES`.
OWN_PROPERTIES: dict[str, dict[str, str]] = {
    "ErrorBody": {
        "code": "The kind of the error, for programs; more exact than `type`.",
        "type": "The group of the error. `policy_error` means that a policy denied the request.",
        "message": "What was wrong, for people. The text may change.",
        "param": "The position of the wrong value in the request, for example `messages[0].content`, or the "
        "name of a header or parameter; null if there is none.",
        "doc_url": "Always null.",
    },
    "ErrorEnvelope": {"error": "The error."},
    "MessagesErrorEnvelope": {"error": "The error."},
    "MessagesErrorEnvelopeWithId": {"error": "The error."},
    "ChatRequest": {
        "messages": "The conversation so far, oldest first.",
        "stream": "With `true`, the answer arrives as server-sent events, while the model writes it.",
        "max_tokens": "The maximum number of tokens of one completion. Send this field or "
        "`max_completion_tokens`, not both. Without either, it's 1,024 or the model's maximum, if that is "
        "less.",
        "max_completion_tokens": "The same as `max_tokens`, under OpenAI's newer name.",
        "logit_bias": "Makes tokens (keys, the ids of tokens) likelier or less likely.",
        "n": "How many completions to generate. Each of them is paid, and the credit must cover all of them.",
        "seed": "The same seed and request give the same answer, as far as the backend supports it. With "
        "`n`, the completions get different seeds.",
        "stop": "Texts at which the model stops. They aren't part of the answer.",
        "stream_options": "Options of a stream; only together with `stream`.",
        "thinking": "Turns the model's reasoning on or off. On a model without reasoning, `true` is 501.",
        "reasoning": "Options of the model's reasoning. A model without reasoning accepts only values that ask "
        "for none.",
        "reasoning_effort": "How much the model reasons. If `reasoning.effort` is sent too, both must be "
        "equal.",
        "include_reasoning": "With `false`, the answer doesn't show the reasoning. It's still paid.",
        "structuredOutputs": "Asks for an answer that matches the schema in `response_format` exactly.",
        "tools": "The functions that the model may call. It only asks for a call: your program runs it.",
        "functions": "The older form of `tools`.",
        "function_call": "The older form of `tool_choice`.",
        "response_format": "The format of the answer: text, any JSON object, or JSON that matches a schema.",
        "modalities": "The kinds of output, for example `text` and `image`. Audio and video are 501.",
        "audio": "Options of a spoken answer: 501, because an answer has no field for it.",
        "prediction": "A text that much of the answer will repeat. 501 if the backend has no such option.",
        "metadata": "Labels for the provider. They don't change the answer.",
        "store": "Must be `false`, because the gateway stores no completions.",
        "service_tier": "The provider's class of service, which may change the price. 501 if the model doesn't "
        "declare it.",
        "logprobs": "Whether to return the probabilities of the answer's tokens.",
        "top_logprobs": "How many of the likeliest tokens to return for each position; only with `logprobs`.",
        "prompt_logprobs": "Like `top_logprobs`, but for the tokens of the prompt; not in a stream.",
        "web_search_options": "Lets the model search the web. 501 if the model can't.",
        "cache_salt": "Requests with different salts share no cached prompt.",
    },
    "ChatMessage": {
        "role": "Who wrote the message. `tool` and `function` carry the result of a call.",
        "content": "The text, or a list of texts, images and other media.",
        "reasoning": "The reasoning of an earlier answer, as the answer contained it.",
        "reasoning_content": "The same as `reasoning`, under the name that some servers use.",
        "name": "The name of the author, to tell apart several with one role; for `function`, the function's "
        "name.",
        "tool_call_id": "The id of the tool call whose result this message is.",
        "tool_calls": "The tool calls of an earlier answer, as the answer contained them.",
        "function_call": "The older form of `tool_calls`.",
        "model_id": "The model that wrote the message. It's dropped.",
    },
    "ReplayedMessage": {
        "provider_specific_fields": "Fields that LiteLLM copies from answers. They're dropped."
    },
    "ContentPart": {
        "type": "What the part is, for example `text`, `image_url`, `input_audio` or `file`. Without it, the "
        "gateway goes by the property that is there.",
        "text": "The text of a part of type `text`.",
        "image_url": "The image: an object whose `url` is an address or a `data:` URL.",
    },
    "StreamOptions": {
        "include_usage": "With `true`, the last record before `[DONE]` has the usage of the call."
    },
    "Reasoning": {
        "enabled": "Turns reasoning on or off.",
        "effort": "How much the model reasons. Not together with `max_tokens`.",
        "max_tokens": "The maximum number of tokens for reasoning. It's part of the output limit.",
        "exclude": "With `true`, the answer doesn't show the reasoning. It's still paid.",
    },
    "JsonSchemaFormat": {"json_schema": "The schema and its name."},
    "JsonSchema": {
        "name": "A name for the format, which some models read.",
        "description": "What the format is for, which some models read.",
    },
    "ChatCompletion": {
        "created": "The time of the answer, in Unix seconds.",
        "model": "The id of the model that was requested.",
        "choices": "The completions, `n` of them.",
        "usage": "The tokens that the call used.",
        "system_fingerprint": "The provider's name for the configuration that answered.",
        "service_tier": "The class of service that the provider used.",
        "prompt_logprobs": "The probabilities of the prompt's tokens, if they were requested.",
    },
    "ChatChoice": {
        "index": "The number of the completion, from 0.",
        "message": "The message that the model wrote.",
        "logprobs": "The probabilities of the answer's tokens, if they were requested.",
        "finish_reason": "Why the model stopped: `stop`, `length` (the output limit), `tool_calls`, "
        "`function_call`, `content_filter` (the provider withheld the rest), or null if the backend "
        "doesn't say.",
    },
    "AnswerMessage": {
        "role": "Always `assistant` in answers of today's backends.",
        "content": "The text, or a list of texts and images if the model created images.",
        "refusal": "The model's explanation if it refused to answer.",
        "reasoning": "What the model thought before it answered.",
        "reasoning_content": "The same as `reasoning`, under the name that some servers and clients use.",
        "name": "The author's name, if the backend gives one.",
        "tool_call_id": "The id of a tool call, if the message belongs to one.",
        "tool_calls": "The calls that the model asks for. Run them, and send each result back in a message "
        "with the role `tool`.",
        "function_call": "The call that the model asks for, if the request had `functions`.",
    },
    "Annotation": {"url_citation": "The cited page."},
    "ChatUsage": {
        "prompt_tokens": "The tokens of the prompt, including those that came from a cache.",
        "completion_tokens": "The tokens of all completions, including reasoning.",
        "prompt_tokens_details": "Parts of `prompt_tokens`, for example `cached_tokens`.",
        "completion_tokens_details": "Parts of `completion_tokens`, for example `reasoning_tokens`.",
    },
    "ResponsesRequest": {
        "input": "The user's text, or the conversation so far as a list of items, oldest first. The gateway "
        "stores nothing, so each request sends the whole conversation.",
        "instructions": "Instructions for the model, before the conversation.",
        "stream": "With `true`, the answer arrives as typed server-sent events, while the model writes it.",
        "stream_options": "Options of a stream; only together with `stream`.",
        "max_output_tokens": "The maximum number of tokens of the answer, including reasoning. Without it, "
        "it's 1,024 or the model's maximum, if that is less.",
        "tools": "The functions that the model may call, and web search. It only asks for a call of a "
        "function: your program runs it.",
        "max_tool_calls": "How many calls of the provider's own tools an answer may make. 501 if the backend "
        "has no such option.",
        "include": "Further contents of the answer. Log-probabilities and encrypted reasoning are supported.",
        "reasoning": "Options of the model's reasoning. A model without reasoning accepts only values that ask "
        "for none.",
        "text": "The format and the length of the answer's text.",
        "truncation": "With `auto`, the oldest turns are left out if the conversation doesn't fit into the "
        "model's context. With `disabled`, such a request fails.",
        "top_logprobs": "How many of the likeliest tokens to return for each position, if `include` asks for "
        "log-probabilities.",
        "metadata": "Labels of your own, which the result repeats.",
        "service_tier": "The provider's class of service, which may change the price. 501 if the model doesn't "
        "declare it.",
        "store": "Must be `false`, because the gateway stores no responses.",
        "background": "Must be `false`, because the gateway doesn't work in the background.",
        "previous_response_id": "Must be null: send the conversation in `input`.",
        "conversation": "Must be null: send the conversation in `input`.",
        "prompt": "Must be null: send the prompt's text in `instructions` and `input`.",
        "context_management": "Must be empty, otherwise 501: the model gets the conversation as it was sent.",
        "moderation": "Must be null, otherwise 501. Policies do this.",
        "prompt_cache_options": "Options of the provider's cache. Values other than the defaults are 501 "
        "if the backend has no such option.",
        "access_programs": "Must be empty, otherwise 501.",
        "image": "Options for the images of the request.",
        "client_metadata": "Data of the client itself. It's dropped.",
    },
    "ResponsesReasoning": {
        "effort": "How much the model reasons.",
        "summary": "How detailed the summary of the reasoning should be.",
        "generate_summary": "The older name of `summary`. If both are sent, they must be equal.",
        "context": "Which earlier reasoning the model sees. Values other than `auto` are 501 if the "
        "backend has no such option.",
        "mode": "How the model reasons. Values other than `standard` are 501 if the backend has no such "
        "option.",
    },
    "ResponsesJsonSchemaFormat": {
        "name": "A name for the format, which some models read.",
        "description": "What the format is for, which some models read.",
    },
    "ResponsesText": {
        "format": "The format of the answer: text, any JSON object, or JSON that matches a schema."
    },
    "ResponsesStreamOptions": {
        "include_obfuscation": "With `true`, the events of a stream get padding, so that nobody on the network "
        "can guess the text by the lengths of its pieces."
    },
    "PromptCacheOptions": {
        "mode": "Whether the provider caches prompts by itself or only where the request says so.",
        "prewarm": "Whether only to fill the cache.",
        "comparison_response_id": "The id of a response to compare with.",
    },
    "ImageOptions": {
        "context_compression": "`enabled` is 501, because no backend compresses images."
    },
    "Response": {
        "completed_at": "The time of the end, in Unix seconds; null if the answer isn't complete.",
        "status": "`completed`; `incomplete` (`incomplete_details` says why); `failed` (`error` says why); or "
        "`in_progress`, only in events of a stream.",
        "error": "Why the response failed.",
        "incomplete_details": "Why the response is incomplete.",
        "model": "The id of the model that was requested.",
        "output": "What the model wrote: messages, function calls, reasoning and images, in their order.",
        "usage": "The tokens that the call used; null until the end.",
        "instructions": "The request's `instructions`.",
        "max_output_tokens": "The output limit that applied to the call.",
        "max_tool_calls": "The request's `max_tool_calls`.",
        "metadata": "The request's `metadata`.",
        "reasoning": "The request's `reasoning`.",
        "text": "The request's `text`.",
        "tools": "The tools that the model got.",
        "truncation": "The request's `truncation`.",
        "service_tier": "The class of service that was requested; `default` if none was.",
        "previous_response_id": "Always null.",
        "conversation": "Always null.",
        "prompt": "Always null.",
        "background": "Always false.",
        "store": "Always false.",
    },
    "ResponseError": {
        "code": "The kind of the error. Responses clients know only few codes; `type` is more exact.",
        "type": "The group of the error, as in other errors of this API.",
        "message": "What was wrong, for people. The text may change.",
        "param": "The position of the wrong value in the request; null if there is none.",
    },
    "IncompleteDetails": {
        "reason": "The output limit was reached, or the provider withheld the rest."
    },
    "OutputMessage": {
        "status": "`incomplete` if the text was cut.",
        "content": "The texts and refusals of the message.",
    },
    "OutputText": {
        "logprobs": "The probabilities of the text's tokens, if `include` asked for them.",
    },
    "TokenLogprob": {"top_logprobs": "The likeliest tokens at this position."},
    "OutputRefusal": {"refusal": "The model's explanation why it didn't answer."},
    "OutputFunctionCall": {
        "status": "`incomplete` if the arguments were cut: don't run such a call.",
        "call_id": "The id to send back with the result, in an item of type `function_call_output`.",
        "name": "The name of the function.",
        "arguments": "The arguments as a JSON text. The model wrote it, so check it before you use it.",
        "namespace": "The namespace tool that the function belongs to. Other functions don't have it.",
    },
    "OutputReasoning": {
        "status": "`incomplete` if the reasoning was cut.",
        "summary": "A summary of the reasoning.",
        "content": "The reasoning itself, if the backend shows it.",
    },
    "OutputImage": {
        "status": "`incomplete` if the image isn't complete.",
        "result": "The image in base64.",
        "output_format": "The image's format, for example `png`.",
    },
    "ResponseUsage": {
        "input_tokens": "The tokens of the prompt, including those that came from a cache.",
        "output_tokens": "The tokens of the answer, including reasoning.",
        "input_tokens_details": "Parts of `input_tokens`.",
        "output_tokens_details": "Parts of `output_tokens`.",
    },
    "InputTokensDetails": {
        "cached_tokens": "The tokens that came from the provider's cache.",
        "cache_write_tokens": "The tokens that were written to the provider's cache.",
    },
    "OutputTokensDetails": {"reasoning_tokens": "The tokens of the reasoning."},
    "ReasoningShown": {
        "effort": "The request's `reasoning.effort`.",
        "summary": "The request's `reasoning.summary`.",
    },
    "TokenCount": {"input_tokens": "How many tokens the prompt has."},
    "TokenCountRequest": {
        "messages": "The conversation so far, oldest first.",
        "tools": "The functions and web tools that the model may use.",
    },
    "MessagesRequest": {
        "messages": "The conversation so far, oldest first.",
        "tools": "The functions and web tools that the model may use. It only asks for a call of a function: "
        "your program runs it.",
        "max_tokens": "The maximum number of tokens of the answer, including reasoning.",
        "stream": "With `true`, the answer arrives as typed server-sent events, while the model writes it.",
        "stop_sequences": "Texts at which the model stops. They aren't part of the answer.",
        "top_k": "Only this many of the likeliest tokens are considered. 501 if the backend has no such "
        "option.",
        "metadata": "Data about the request, for the provider.",
        "service_tier": "The provider's class of service. It's dropped if the model doesn't declare it.",
        "context_management": "It's dropped: the model gets the conversation as it was sent.",
        "mcp_servers": "Must be empty, otherwise 501.",
        "container": "Must be null, otherwise 501.",
        "inference_geo": "Must be null, otherwise 501.",
    },
    "MessagesMessage": {
        "role": "Who wrote the message.",
        "content": "The text, or a list of blocks: texts, images, documents, tool calls and their results.",
    },
    "ToolChoice": {"name": "The name of the tool that the model has to call."},
    "ThinkingEnabled": {
        "budget_tokens": "The maximum number of tokens for reasoning. It's part of `max_tokens`."
    },
    "OutputConfig": {
        "effort": "How much the model thinks and writes.",
        "format": "The schema that the answer must match.",
    },
    "Metadata": {"user_id": "An id of your user. Don't send names or addresses."},
    "Message": {
        "model": "The id of the model that was requested.",
        "content": "What the model wrote: blocks of text, reasoning and tool calls, in their order.",
        "stop_reason": "Why the model stopped, for example `end_turn`, `max_tokens` or `tool_use`.",
        "stop_sequence": "The text of `stop_sequences` at which the model stopped; otherwise null.",
        "usage": "The tokens that the call used.",
    },
    "PolicyCreate": {
        "name": "A name for people. Error messages of denied requests contain it.",
        "description": "Notes for people. The judge doesn't read them.",
        "project_ids": "The projects that the scope `projects` means.",
        "match_threshold_basis_points": "From which probability of yes on the rule matches, in basis points "
        "(9000 is 90 %). Null: the operator's default.",
    },
    "PolicyEdit": {
        "name": "A name for people. Error messages of denied requests contain it.",
        "description": "Notes for people. The judge doesn't read them.",
        "project_ids": "The projects that the scope `projects` means. The list replaces the old one.",
        "match_threshold_basis_points": "From which probability of yes on the rule matches, in basis points. "
        "Null restores the operator's default; an omitted field changes nothing.",
    },
    "Policy": {
        "name": "The name for people.",
        "description": "Notes for people.",
        "state": "`draft` until the first publication, then what the published version does: `monitoring`, "
        "`enforcing` or, while it doesn't apply, `paused`.",
        "has_unpublished_changes": "Whether the draft differs from the published version.",
        "updated_at": "The time of the last change, in Unix seconds.",
        "draft": "The form that can be edited. It has no effect until an operator publishes it.",
        "current_version": "The number of the published version; null before the first publication.",
        "published": "The version that applies to calls; null before the first publication.",
    },
    "PolicyDraft": {
        "project_ids": "The projects that the scope `projects` means.",
        "match_threshold_basis_points": "From which probability of yes on the rule matches, in basis points; "
        "null means the operator's default.",
        "base_version": "The published version that the draft was made from; 0 if there is none.",
    },
    "PublishedPolicy": {
        "version": "The number of the version, from 1.",
        "project_ids": "The projects that the scope `projects` means.",
        "published_at": "The time of publication, in Unix seconds.",
        "current": "Whether this version applies to calls, unless the policy is paused.",
        "match_threshold_basis_points": "From which probability of yes on the rule matches, in basis points.",
    },
    "EffectivePolicy": {
        "version": "The number of the published version.",
        "source": "Where the policy comes from: always the organization.",
    },
    "EffectivePolicyList": {"data": "The policies that apply to every call of the project."},
    "ProjectKeyCreate": {"name": "A name for people, to tell keys apart."},
    "ProjectKey": {
        "name": "The name for people.",
        "status": "Only an `active` key works. `suspended` can be undone by an operator, `revoked` can't.",
        "value": "The whole key. Save it: only the answer to the creation has it, and an identical repetition "
        "with the same `Idempotency-Key` within 24 hours.",
    },
    "ProjectKeyOwner": {
        "id": "The id of the project.",
        "type": "Keys of this kind belong to a project.",
        "name": "The name of the project.",
    },
    "ProjectDeleted": {
        "deleted": "Always true: the project is archived, and its keys no longer work."
    },
    "AdminKeyList": {
        "data": "The keys of the page.",
        "first_id": "The id of the page's first key; null if the page is empty.",
        "last_id": "The id of the page's last key, for the parameter `after`; null if the page is empty.",
    },
    "AdminKey": {"name": "The name for people."},
    "AdminKeyOwner": {
        "id": "The id of the organization.",
        "type": "Keys of this kind belong to an organization.",
    },
    "AdminKeyDeleted": {"deleted": "Always true: the key no longer works."},
    "CostPage": {
        "data": "The days of the page, oldest first, also those without costs.",
        "next_page": "The value for the parameter `page` of the next request; null on the last page.",
    },
    "CostBucket": {
        "start_time": "The beginning of the UTC day, in Unix seconds.",
        "end_time": "The end of the UTC day, in Unix seconds, exclusive.",
        "results": "The costs of the day. A call whose cost isn't known yet isn't in them: the header "
        "`x-unsettled-requests` counts such calls.",
    },
    "CostResult": {
        "amount": "The cost.",
        "line_item": "The model and the kind of price, for example `example/chat-small, completion`; null "
        "if the report isn't grouped by it.",
        "project_id": "The project; null if the report isn't grouped by it.",
        "api_key_id": "The project key; null if the report isn't grouped by it.",
    },
    "CostAmount": {"value": "The exact amount as a decimal number with up to 12 decimal places."},
    "Model": {
        "id": "The id to send as `model`.",
        "owned_by": "Who made the model.",
        "display_name": "The name for people.",
        "access": "Whether your organization may use the model.",
        "created": "When the model came out, in Unix seconds.",
        "input_modalities": "What a prompt can contain.",
        "output_modalities": "What an answer can contain.",
        "pricing": "The prices that apply now, in USD, as decimal numbers.",
        "supported_sampling_parameters": "The sampling fields that the model accepts. Others are 501.",
        "sampling_limits": "Limits of the sampling fields, as the operator declares them.",
        "sampling_limits_revision": "The revision of `sampling_limits`, as the operator declares it.",
        "supported_features": "What the model can do, for example `tools`. A request for anything else is 501.",
        "is_ready": "Whether the model takes calls at present. If not, they are 503.",
        "quantization": "The format of the model's weights, for example `bf16`.",
        "context_length": "How many tokens prompt and answer may have together.",
        "max_output_length": "The highest output limit that a request may have.",
        "root": "The same as `id`.",
        "parent": "Always null.",
    },
    "ModelAccess": {
        "required_checks": "The approvals that an organization needs for the model.",
        "available": "Whether your key can use the model.",
        "locked": "Whether your organization lacks a required approval.",
        "missing_requirements": "The approvals that your organization lacks.",
    },
    "ModelPricing": {
        "prompt": "The price of one token of the prompt.",
        "completion": "The price of one token of the answer.",
        "image": "The price of one image in the prompt.",
        "request": "The price of one request.",
        "input_cache_read": "The price of one token of the prompt that came from the provider's cache.",
    },
    "ModelList": {"data": "The models that your key can use."},
    "KeyUsage": {
        "api_key_id": "The id of the key.",
        "project_id": "The project of the key.",
        "today": "The settled costs of this UTC day.",
        "this_month": "The settled costs of this UTC month.",
        "caps": "The caps of the key itself; omitted if it has none. Caps of its project and its organization "
        "apply too, but aren't shown.",
    },
    "KeyCap": {
        "period": "The time to which the cap applies: a day, a week or a month.",
        "amount": "The most that may be spent in the period.",
        "held": "What is reserved for calls in flight.",
        "spent": "What was spent in the period.",
        "remaining": "What is left. It's negative if more was spent than the cap allows.",
        "resets_at": "When the period ends, in Unix seconds.",
    },
}


# Schemas that extend another one.
_EXTENDED = {"ReplayingChatRequest": "ChatRequest", "ReplayedMessage": "ChatMessage"}


def property_description(schema: str, name: str) -> str | None:
    for owner in (schema, _EXTENDED.get(schema, schema)):
        if name in OWN_PROPERTIES.get(owner, {}):
            return OWN_PROPERTIES[owner][name]
    return PROPERTIES.get(name)
