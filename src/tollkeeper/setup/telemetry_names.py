"""The names of OpenTelemetry's conventions for generative AI that we use. They're in development: if one
changes, only this file does."""

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - the name of an attribute
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
ERROR_TYPE: Final = "error.type"
HTTP_STATUS: Final = "http.response.status_code"

TOKEN_USAGE_METRIC: Final = "gen_ai.client.token.usage"  # noqa: S105 - the name of a metric
DURATION_METRIC: Final = "gen_ai.client.operation.duration"
FIRST_TOKEN_METRIC: Final = "gen_ai.server.time_to_first_token"  # noqa: S105 - the name of a metric

OPERATIONS: Final = {"chat_create": "chat", "response_create": "chat", "message_create": "chat"}

# Not in the conventions: only this gateway has them.
SETTLEMENT: Final = "tollkeeper.settlement"
COST: Final = "tollkeeper.cost_usd"
OVERHEAD: Final = "tollkeeper.overhead_ms"
ORGANIZATION: Final = "tollkeeper.organization_id"
# The attributes that are incomplete.
CONTENT_CUT: Final = "tollkeeper.content.cut"
