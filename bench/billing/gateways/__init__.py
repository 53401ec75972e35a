"""Sets up and calls each benchmarked gateway, and reads its booked costs."""

from bench.billing.gateways.base import Gateway
from bench.billing.gateways.litellm import LiteLLM
from bench.billing.gateways.ours import Ours
from bench.billing.gateways.portkey import Portkey
from bench.billing.gateways.tensorzero import TensorZero

GATEWAYS: dict[str, Gateway] = {
    "tollkeeper": Ours(),
    "tensorzero": TensorZero(),
    "litellm": LiteLLM(),
    "portkey": Portkey(),
}
