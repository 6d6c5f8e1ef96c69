"""A chat template that a user gives in place of the model's own: the name of a file, or the template itself.

Templates that are given run in the same sandbox as those of models. Not for rendering (`chat_template.py`).
"""

import re
from os import PathLike
from pathlib import Path

from paceline.errors import InvalidParameter
from paceline.models.text.tokenizer import Tokenizer

FIELD = "chat_template"
_REMEDY = "name a file with a Jinja template, or give the template itself on one line"
_TRIED = "Hello"
_ESCAPE = re.compile(r"\\[ntr\\'\"]")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}


def read_template(given: str | PathLike[str]) -> str:
    r"""The source of a template: what the file called `given` holds, or else `given` itself.

    As in vLLM, escapes such as ``\n`` count in a template that is given on one line.

    Raises:
        InvalidParameter: there is no such file, or it cannot be read.
    """
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidParameter(FIELD, f"{given} is no UTF-8 text", _REMEDY) from None
    except (OSError, ValueError, RuntimeError) as error:  # also a name that no file can have, or an unknown home
        text = str(given)
        if "{" not in text and "\n" not in text:
            reason = getattr(error, "strerror", None) or error
            raise InvalidParameter(FIELD, f"{text!r} cannot be read ({reason})", _REMEDY) from None
    if "\n" in text:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[0], found[0][1:]), text)


def with_given_template(tokenizer: Tokenizer, source: str) -> Tokenizer:
    """The tokenizer with the template `source`, after trying it on a message.

    Raises:
        InvalidParameter: it does not compile, fails, or leaves out what the message says.
    """
    changed = tokenizer.with_chat_template(source)
    try:
        text = changed.apply_chat_template([{"role": "user", "content": _TRIED}])
    except InvalidParameter as error:
        problem = f"cannot be used: with a user's message {_TRIED!r} {error.problem}"
        raise InvalidParameter(FIELD, problem, "correct it, or give another") from None
    if _TRIED not in text:
        raise InvalidParameter(FIELD, "leaves out the text of a user's message", _REMEDY)
    return changed
