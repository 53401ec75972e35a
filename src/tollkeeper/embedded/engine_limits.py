"""Defines measured limits of requests to the embedded engine."""

from tollkeeper.domain.schema_size import SchemaBounds

# While the engine searches for a token that a schema allows, no other call makes progress. The
# longest search on one busy core of a Neoverse N1, by number of values in one enum: 250 took 0.6 s,
# 400 1.0 s, 500 1.4 s, 1,000 4 s, 2,000 12 s, 4,000 41 s. Branches and patterns cost the same.
# Length and depth are cheap: 2,000 required properties (74 kB) took 0.04 s, and so did 60 nested
# objects.
ENGINE_SCHEMA_BOUNDS = SchemaBounds(choices_max=400, bytes_max=64 * 1024)
