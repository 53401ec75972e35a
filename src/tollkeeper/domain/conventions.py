"""Names and values that the interface leaves open, in one place.

Each constant answers rows of docs/open-questions.md; an operator can change those that are
settings, and the defaults of these settings are taken from here.
"""

# Q14: other values of an effective policy's source are not shown.
EFFECTIVE_POLICY_SOURCE = "organization"

# Q18/Q27: the output bound that an omitted one means, sent upstream explicitly.
DEFAULT_OUTPUT_TOKENS = 1024

# Q18: the web search tools of Responses, by all their published names.
WEB_SEARCH_TOOLS = frozenset(
    {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)

# Q18: tools that the published protocol has and this service does not: 501, where a type that no
# protocol knows is 400.
PUBLISHED_TOOLS = frozenset(
    {
        *("apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview"),
        *("custom", "file_search", "image_generation", "local_shell", "mcp", "namespace"),
        *("programmatic_tool_calling", "shell", "tool_search"),
    }
)

# On every answer; the only name that an operator needs to find a call.
REQUEST_ID_HEADER = "X-Request-ID"

# Q19: header names of token counting (Anthropic) and the beta flags known everywhere.
MESSAGES_VERSION_HEADER = "anthropic-version"
MESSAGES_BETA_HEADER = "anthropic-beta"
KNOWN_BETA_FLAGS = frozenset({"token-counting-2024-11-01"})
MESSAGES_REQUEST_ID_HEADER = "request-id"
# How token counting says whether its number is an estimate.
TOKEN_COUNT_ESTIMATED_HEADER = "x-token-count-estimated"  # noqa: S105 - the name of a header

# Q20: the server tools of token counting in the interface's spelling, and the published spellings
# of the same tools, which are a setting.
MESSAGES_WEB_TOOLS = frozenset({"web_search_2025_03_05", "web_fetch_2025_03_05"})
MESSAGES_WEB_TOOL_ALIASES = (
    "web_search_20250305",
    "web_search_20260209",
    "web_search_20260318",
    "web_fetch_20250910",
    "web_fetch_20260209",
    "web_fetch_20260309",
    "web_fetch_20260318",
)

# Q20: the families of published tools that token counting does not take; a type is a family with
# the date of its version.
MESSAGES_TOOL_FAMILIES = frozenset(
    {
        *("bash", "browser_toolset", "code_execution", "computer", "computer_toolset"),
        *("mcp_toolset", "memory", "text_editor", "tool_search_tool_bm25"),
        *("tool_search_tool_regex", "web_fetch", "web_search"),
    }
)

# Q22: bounds of a project key's name.
PROJECT_KEY_NAME_LENGTH_MAX = 256

# Q23: the admin key list (OpenAI Admin).
ADMIN_KEY_PAGE_DEFAULT = 20
ADMIN_KEY_PAGE_MAX = 100

# Q24: the cost report (OpenAI Admin).
COST_PAGE_DEFAULT = 7
COST_PAGE_MAX = 180

# Q25: the second customer scheme (Anthropic).
CUSTOMER_KEY_HEADER = "x-api-key"

# Q26: what a created project key may do.
PROJECT_KEY_DEFAULT_PERMISSIONS = ("inference:write", "models:read")

# What a policy without a threshold of its own is judged with.
DEFAULT_THRESHOLD_BASIS_POINTS = 5000

# The interface names the session header and its alias; both are settings.
SESSION_HEADERS = ("X-Service-Session-ID", "X-Alt-Session-ID")

# How a page of costs says that some usage in its range is not settled yet.
UNSETTLED_HEADER = "x-unsettled-requests"

# A project key's value can be replayed this long.
SECRET_REPLAY_S = 24 * 3600
