"""Templates offer only what the person may do: each form that changes something is left out for people
who may not send it, and so is each link to a page that they may not see."""

import re

from jinja2.ext import Extension

_FORM = re.compile(r'<form\b[^>]*?\bmethod="post"[^>]*?\baction="([^"]*)".*?</form>', re.DOTALL)
_LINK = re.compile(r'(<a\b([^>]*?)\bhref="(/[^"]*)"[^>]*>)(.*?)</a>', re.DOTALL)
_VALUE = re.compile(r"\{\{(.*?)\}\}")


class Offered(Extension):
    """Wraps forms and links of a template in a question: `may(method, address)`."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        source = _FORM.sub(
            lambda found: f"{{% if may('POST', {_address(found[1])}) %}}{found[0]}{{% endif %}}",
            source,
        )
        return _LINK.sub(_link, source)


def _link(found: re.Match[str]) -> str:
    """A button disappears; of any other link the text stays."""
    question = f"{{% if may('GET', {_address(found[3])}) %}}"
    if "button" in found[2] or "offer" in found[2]:
        return f"{question}{found[0]}{{% endif %}}"
    return f"{question}{found[1]}{{% endif %}}{found[4]}{question}</a>{{% endif %}}"


def _address(text: str) -> str:
    """An expression of the template. Values in an address are ids, which stand for any other one."""
    whole = _VALUE.fullmatch(text)
    return whole[1].strip() if whole else repr(_VALUE.sub("x", text))
