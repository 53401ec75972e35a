"""Use cases of policies: their life, which of them apply, how they are judged and tried."""
