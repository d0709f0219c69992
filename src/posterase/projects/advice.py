"""The library's advice is written for Python. Here it becomes what a user of files and commands can do.

allow a refit: policy=pe.Policy(refit=True).
allow a refit: --policy refit=true.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_MODEL = re.compile(r"Give the model as well, through its bridge: .*")
_POLICY = re.compile(r"policy=pe\.Policy\((\w+)=([\w.]+)\)")
_PREPROCESSING = re.compile(r"preprocessing='([^']*)'")
_ROWS = re.compile(r"pass a dict: rows=\{'([^']+)': (\w+)\}")
_BUILT = "a function that returns (model, draws), as bridges do: pe.from_numpyro(model, *data, draws=file)."


def as_options(text: str) -> str:
    """Arguments of Python functions as options of the command line."""
    text = _MODEL.sub(f"Give the model as well: --model module:function, {_BUILT}", text)
    text = _POLICY.sub(_entry("--policy {}={}"), text)
    text = _PREPROCESSING.sub(r"--preprocessing '\1'", text)
    text = text.replace("pass overwrite=True.", "pass --force.")
    return _ROWS.sub(r"pass --by '\1' --rows \2", text)


def as_settings(text: str) -> str:
    """Arguments of Python functions as settings of a project's file."""
    text = _MODEL.sub(f'Give the model as well: model = "module:function", {_BUILT}', text)
    text = _POLICY.sub(_entry("{} = {} under [policy]"), text)
    return _PREPROCESSING.sub(r'preprocessing = "\1"', text)


def _entry(form: str) -> Callable[[re.Match[str]], str]:
    """An entry of a policy; TOML and the command line write true and false."""
    return lambda found: form.format(found[1], found[2].lower())
