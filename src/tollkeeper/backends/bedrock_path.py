"""Returns the path at which Amazon Bedrock counts tokens, for each of its protocols."""

import re
from urllib.parse import quote

from tollkeeper.domain.catalog import Model

# The prefix of a cross-region inference profile's id: only the model itself is counted.
_GEOGRAPHY = re.compile(r"^(?:us|us-gov|eu|apac|jp|au|ca|global)\.")


def count_tokens_path(model: Model) -> str:
    return f"model/{quote(_GEOGRAPHY.sub('', model.upstream_model), safe='')}/count-tokens"
