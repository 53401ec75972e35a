"""Makes templates omit the forms and links that the user may not use."""

import re

from jinja2.ext import Extension

_FORM = re.compile(r'<form\b[^>]*?\bmethod="post"[^>]*?\baction="([^"]*)".*?</form>', re.DOTALL)
_LINK = re.compile(r'(<a\b([^>]*?)\bhref="(/[^"]*)"[^>]*>)(.*?)</a>', re.DOTALL)
_VALUE = re.compile(r"\{\{(.*?)\}\}")


class Offered(Extension):
    """Wraps each POST form and each link of a template in the condition `may(method, address)`."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        source = _FORM.sub(
            lambda found: f"{{% if may('POST', {_address(found[1])}) %}}{found[0]}{{% endif %}}",
            source,
        )
        return _LINK.sub(_link, source)


def _link(found: re.Match[str]) -> str:
    """Wraps a link in a condition. A forbidden link with the class `button` or `offer` is omitted.
    Any other forbidden link becomes plain text."""
    question = f"{{% if may('GET', {_address(found[3])}) %}}"
    if "button" in found[2] or "offer" in found[2]:
        return f"{question}{found[0]}{{% endif %}}"
    return f"{question}{found[1]}{{% endif %}}{found[4]}{question}</a>{{% endif %}}"


def _address(text: str) -> str:
    """Converts an address in a template to a template expression. An address like `{{ action }}`
    becomes the expression itself. In any other address, such as `/keys/{{ id }}`, every expression
    becomes `x`, because permissions do not depend on ids or queries."""
    whole = _VALUE.fullmatch(text)
    return whole[1].strip() if whole else repr(_VALUE.sub("x", text))
