"""Defines names and values that the interface does not specify.

Q numbers refer to rows in docs/open-questions.md. Some of the values are defaults that settings can
change.
"""

# Q2: the `source` of an effective policy. The interface shows no other value.
EFFECTIVE_POLICY_SOURCE = "organization"

# Q18/Q27: the output limit in tokens if the client sends none. The gateway sends this limit to the
# backend.
DEFAULT_OUTPUT_TOKENS = 1024

# Q18: all published names of the Responses web search tool.
WEB_SEARCH_TOOLS = frozenset(
    {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)

# The search tools that OpenAI, OpenRouter, xAI, Moonshot and Anthropic run for chat requests. A
# model with the feature `web_search` accepts them. Every other tool that a provider runs needs a
# declared price.
PROVIDER_SEARCH_TOOLS = WEB_SEARCH_TOOLS | {
    *("openrouter:web_search", "live_search", "$web_search"),
    *("web_search_20250305", "web_search_20260209", "web_search_20260318"),
}

# Q18: published tool types that the gateway does not support. A request with one of them is
# answered with 501, and a request with an unknown type with 400.
PUBLISHED_TOOLS = frozenset(
    {
        *("apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview"),
        *("custom", "file_search", "image_generation", "local_shell", "mcp", "namespace"),
        *("programmatic_tool_calling", "shell", "tool_search"),
    }
)

# The response header with the request's id, by which an operator can find a call.
REQUEST_ID_HEADER = "X-Request-ID"

# Q19: the header names of Anthropic's token counting, and the published beta flags that do not
# change a token count. Every model accepts these flags; a model's settings declare further flags.
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
# The response header that tells whether a token count is an estimate.
TOKEN_COUNT_ESTIMATED_HEADER = "x-token-count-estimated"  # noqa: S105 - the name of a header

# Q20: the web tools run by Anthropic that token counting accepts: the tool types that the interface
# lists, and the types that Anthropic has published.
MESSAGES_WEB_TOOLS = frozenset(
    {
        *("web_search_2025_03_05", "web_fetch_2025_03_05"),
        *("web_search_20250305", "web_search_20260209", "web_search_20260318"),
        *("web_fetch_20250910", "web_fetch_20260209", "web_fetch_20260309", "web_fetch_20260318"),
    }
)

# Q20: the families of published tools for which token counting answers with 501. The type of a tool
# is its family, usually followed by the date of its version.
MESSAGES_TOOL_FAMILIES = frozenset(
    {
        *("bash", "browser_toolset", "code_execution", "computer", "computer_toolset"),
        *("mcp_toolset", "memory", "text_editor", "tool_search_tool_bm25"),
        *("tool_search_tool_regex", "web_fetch", "web_search"),
    }
)

# Q22: the maximum length of a project key's name.
PROJECT_KEY_NAME_LENGTH_MAX = 256

# Q23: the page sizes of the admin key list, as in OpenAI's Admin API.
ADMIN_KEY_PAGE_DEFAULT = 20
ADMIN_KEY_PAGE_MAX = 100

# Q24: the page sizes of the cost report, in days, as in OpenAI's Admin API.
COST_PAGE_DEFAULT = 7
COST_PAGE_MAX = 180

# Q25: the header in which Anthropic's clients send their key. A client may send a project key in
# this header instead of in `Authorization`.
CUSTOMER_KEY_HEADER = "x-api-key"

# Q26: the permissions of a new project key.
PROJECT_KEY_DEFAULT_PERMISSIONS = ("inference:write", "models:read")

# The match threshold of a policy that does not set one.
DEFAULT_THRESHOLD_BASIS_POINTS = 5000

# The default names of the session header and its alias, as in the interface. Settings can change
# them.
SESSION_HEADERS = ("X-Service-Session-ID", "X-Alt-Session-ID")

# The response header with the number of unsettled requests (with unknown cost) in the time range of
# a cost report.
UNSETTLED_HEADER = "x-unsettled-requests"

# The time in seconds for which a repeated request to create a project key (with the same
# Idempotency-Key) returns the key's value again.
SECRET_REPLAY_S = 24 * 3600
