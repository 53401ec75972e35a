"""Builds the path of Amazon Bedrock's token count request, which is the same for all of its
protocols."""

import re
from urllib.parse import quote

# The prefix that a cross-region inference profile adds to the id of a model. The token count request
# accepts only the id of the model itself.
_GEOGRAPHY = re.compile(r"^(?:us|us-gov|eu|apac|jp|au|ca|global)\.")


def count_tokens_path(upstream_model: str) -> str:
    return f"model/{quote(_GEOGRAPHY.sub('', upstream_model), safe='')}/count-tokens"
