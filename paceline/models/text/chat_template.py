"""Chat templates turn a list of messages into the prompt format that a chat model was trained on.

Templates come with the model, or from the user, and are programs, so they run in a sandbox (`template_sandbox.py`). Not
for tokenising the result.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from paceline.errors import InvalidParameter
from paceline.models.text.messages import plain_messages

_LONGEST_DATE = 1000
_ABSENT = {"tools": None, "documents": None}
"""Names that transformers always passes, so that templates may ask whether they are none without asking whether they
are defined."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the template, in Jinja's language.
        variables: names available to the template besides the messages, e.g. ``bos_token``.

    Raises:
        InvalidParameter: the template does not compile.
    """

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        from paceline.models.text.template_sandbox import BoundedEnvironment

        environment = BoundedEnvironment()
        environment.add_filter("tojson", _to_json)
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _now}
        try:
            self._template = environment.compiled(source)
        except Exception as error:  # bad syntax, or nesting beyond what Jinja or Python can compile
            problem = f"{type(error).__name__}: {str(error)[:200]}"
            raise InvalidParameter(
                "chat_template", f"does not compile ({problem})", "give another, or the prompt as plain text"
            ) from None
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`, each with a ``role`` and a ``content`` (`messages.plain_messages`).

        `add_generation_prompt` appends the opening of the assistant's turn. `variables` are further names for this
        prompt, e.g. ``tools``; they cannot replace the messages or the template's own variables.

        Raises:
            InvalidParameter: the messages are malformed, or the template rejects them (e.g. an unknown role) or fails.
        """
        from jinja2 import TemplateError

        from paceline.models.text.template_meter import TemplateTooLarge, shortened
        from paceline.models.text.template_sandbox import render_bounded

        known = {"messages": plain_messages(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return render_bounded(self._template, {**_ABSENT, **(variables or {}), **known, **self._variables})
        except (TemplateError, TypeError) as error:
            refused = not isinstance(error, TemplateTooLarge)
            remedy = "use the roles it knows" if refused else "give the prompt as plain text"
            problem = f"the chat template {'refuses them' if refused else 'cannot be used'} ({shortened(error)})"
            raise InvalidParameter("messages", problem, remedy) from None
        except Exception as error:  # a template is a program: it may divide by zero or recurse endlessly
            problem = f"the chat template fails ({type(error).__name__}: {str(error)[:200]})"
            raise InvalidParameter("messages", problem, "give the prompt as plain text") from None


def asks_for(source: str, name: str) -> bool:
    """Whether a template reads the variable `name`, rather than only a field of that name, say of a message."""
    from jinja2 import meta

    from paceline.models.text.template_sandbox import BoundedEnvironment

    if name not in source:
        return False
    try:
        return name in meta.find_undeclared_variables(BoundedEnvironment().parse(source))
    except Exception:  # it does not compile, which is told when it is used
        return True


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(form: str) -> str:
    if len(form) > _LONGEST_DATE:
        _raise_exception("it asks for a date without end")
    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | str | None = None,
             separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:  # fmt: skip
    """The filter ``tojson`` with transformers' arguments; Jinja's own filter escapes the JSON for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
