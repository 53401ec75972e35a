"""How many requests begin in one turn of the event loop.

Whoever sends requests over hundreds of connections makes every turn long, even by requests that are
refused, and a call takes more than a dozen turns. So only a few begin in one turn, and of one owner
fewer while others have calls in progress.
"""

from tollkeeper.fair_turns import FairTurns
from tollkeeper.services.calls.inference import Inference

PER_TURN = 16
PER_TURN_BESIDE_OTHERS = 4


def fair_arrivals(inference: Inference) -> FairTurns:
    """Owners take turns for what begins in a turn of the loop."""
    return FairTurns(PER_TURN, PER_TURN_BESIDE_OTHERS, inference.serves_others)
