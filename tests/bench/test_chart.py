"""Tests that the chart of the gateways has a bar for each gateway that was measured."""

from xml.etree import ElementTree

from bench.chart import gateways_svg


def test_each_measured_gateway_has_a_bar() -> None:
    figures = {
        f"{name}.{figure}": value
        for name, value in (("tollkeeper", 250.0), ("envoy", 40.0), ("litellm", 9300.0))
        for figure in ("cpu_us_per_request", "cpu_us_per_piece")
    }
    image = ElementTree.fromstring(gateways_svg(figures))
    texts = [one.text for one in image.iter() if one.text]
    for name in ("tollkeeper", "Envoy", "LiteLLM", "250", "40", "9,300"):
        assert texts.count(name) == 2
