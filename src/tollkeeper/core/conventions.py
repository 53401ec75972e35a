"""Names and values that the interface doesn't specify. Q numbers are rows of docs/open-questions.md; settings
can change some of the values."""

# Q2: the interface shows no other value.
EFFECTIVE_POLICY_SOURCE = "organization"

# Q18/Q27: what the gateway sends if the client sends no limit.
DEFAULT_OUTPUT_TOKENS = 1024

# Q18: all published names.
WEB_SEARCH_TOOLS = frozenset(
    {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)

# OpenAI, OpenRouter, xAI, Moonshot and Anthropic run these for chat requests. A model with `web_search`
# accepts them; every other tool that a provider runs needs a declared price.
PROVIDER_SEARCH_TOOLS = WEB_SEARCH_TOOLS | {
    *("openrouter:web_search", "live_search", "$web_search"),
    *("web_search_20250305", "web_search_20260209", "web_search_20260318"),
}

# Q18: published but not supported, so 501. An unknown type gets 400.
PUBLISHED_TOOLS = frozenset(
    {
        *("apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview"),
        *("custom", "file_search", "image_generation", "local_shell", "mcp", "namespace"),
        *("programmatic_tool_calling", "shell", "tool_search"),
    }
)

# Operators find a call by it.
REQUEST_ID_HEADER = "X-Request-ID"

# Q19: headers of Anthropic's token counting, and the published beta flags that don't change a count. Every
# model accepts these; its settings declare others.
MESSAGES_VERSION_HEADER = "anthropic-version"
MESSAGES_BETA_HEADER = "anthropic-beta"
COUNT_NEUTRAL_BETA_FLAGS = frozenset(
    {
        "claude-code-20250219",
        "context-1m-2025-08-07",
        "context-management-2025-06-27",
        "extended-cache-ttl-2025-04-11",
        "fine-grained-tool-streaming-2025-05-14",
        "interleaved-thinking-2025-05-14",
        "output-128k-2025-02-19",
        "prompt-caching-2024-07-31",
        "token-counting-2024-11-01",
    }
)
MESSAGES_REQUEST_ID_HEADER = "request-id"
TOKEN_COUNT_ESTIMATED_HEADER = "x-token-count-estimated"  # noqa: S105 - the name of a header

# Q20: those that the interface lists, and those that Anthropic has published.
MESSAGES_WEB_TOOLS = frozenset(
    {
        *("web_search_2025_03_05", "web_fetch_2025_03_05"),
        *("web_search_20250305", "web_search_20260209", "web_search_20260318"),
        *("web_fetch_20250910", "web_fetch_20260209", "web_fetch_20260309", "web_fetch_20260318"),
    }
)

# Q20: token counting answers 501. A type is its family, usually with the date of its version.
MESSAGES_TOOL_FAMILIES = frozenset(
    {
        *("bash", "browser_toolset", "code_execution", "computer", "computer_toolset"),
        *("mcp_toolset", "memory", "text_editor", "tool_search_tool_bm25"),
        *("tool_search_tool_regex", "web_fetch", "web_search"),
    }
)

# Q22.
PROJECT_KEY_NAME_LENGTH_MAX = 256

# Q23: as in OpenAI's Admin API.
ADMIN_KEY_PAGE_DEFAULT = 20
ADMIN_KEY_PAGE_MAX = 100

# Q24: in days, as in OpenAI's Admin API.
COST_PAGE_DEFAULT = 7
COST_PAGE_MAX = 180

# Q25: Anthropic's clients send their key here; a project key may come this way too.
CUSTOMER_KEY_HEADER = "x-api-key"

# Q26.
PROJECT_KEY_DEFAULT_PERMISSIONS = ("inference:write", "models:read")

# Of a policy that sets none.
DEFAULT_THRESHOLD_BASIS_POINTS = 5000

# As in the interface.
SESSION_HEADERS = ("X-Service-Session-ID", "X-Alt-Session-ID")

# How many requests in the range of a cost report are unsettled.
UNSETTLED_HEADER = "x-unsettled-requests"

# For this long, a repeated creation of a project key (same Idempotency-Key) returns its value again.
SECRET_REPLAY_S = 24 * 3600
