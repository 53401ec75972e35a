"""A custom callback of LiteLLM, as its documentation shows one: writes each call's record to a file.

LiteLLM loads this file itself, in its own environment.
"""

import json
import os
from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger


class _Log(CustomLogger):  # type: ignore[misc]
    async def async_log_success_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        _write(kwargs)

    async def async_log_failure_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        _write(kwargs)


def _write(kwargs: dict[str, Any]) -> None:
    record = dict(kwargs.get("standard_logging_object") or {})
    wanted = (
        *("id", "call_type", "status", "model_group", "model", "response_cost", "stream"),
        *("prompt_tokens", "completion_tokens", "cost_breakdown", "error_str"),
        "response_cost_failure_debug_info",
    )
    record = {name: record.get(name) for name in wanted}
    with Path(os.environ["BILLING_LOG"]).open("a") as file:
        file.write(json.dumps(record, default=str) + "\n")


log = _Log()
