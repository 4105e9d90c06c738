"""pip's settings, handed to uv, which does not read them: the package index, proxy and certificates of an organisation.

pip is asked for its settings (files and PIP_* variables, in pip's own order of precedence) and each is put into the words
of uv.  What is set for uv itself, by its own variables, always wins.  Standard library only.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Settings of pip that do not change where packages come from: nobody needs to hear of them.  (Versions are a matter of
# the project itself: a constraint of pip is for what pip installs.)
_QUIET = frozenset(
    "break-system-packages cache-dir disable-pip-version-check format log log-file no-cache-dir no-color no-input"
    " no-python-version-warning no-user no-warn-conflicts no-warn-script-location progress-bar quiet require-virtualenv"
    " require-venv root-user-action use-feature use-deprecated user verbose compile no-compile"
    " build-constraint constraint prefer-binary upgrade-strategy".split()
)
_FALSE = ("", "0", "f", "false", "n", "no", "off")
_SECTIONS = ("global", "install", ":env:")  # a later one wins
# The variables that a setting becomes, and those (of uv) whose presence means that uv has been told already.
_VARIABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "index-url": (("UV_DEFAULT_INDEX",), ("UV_DEFAULT_INDEX", "UV_INDEX_URL")),
    "extra-index-url": (("UV_INDEX",), ("UV_INDEX", "UV_EXTRA_INDEX_URL")),
    "trusted-host": (("UV_INSECURE_HOST",), ("UV_INSECURE_HOST",)),
    "cert": (("SSL_CERT_FILE",), ("SSL_CERT_FILE", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS")),
    "client-cert": (("SSL_CLIENT_CERT",), ("SSL_CLIENT_CERT",)),
    "proxy": (("HTTP_PROXY", "HTTPS_PROXY"), ("HTTPS_PROXY", "ALL_PROXY")),
    "timeout": (("UV_HTTP_TIMEOUT",), ("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT")),
    "retries": (("UV_HTTP_RETRIES",), ("UV_HTTP_RETRIES",)),
    "keyring-provider": (("UV_KEYRING_PROVIDER",), ("UV_KEYRING_PROVIDER",)),
}
_OTHER_NAMES = {"default-timeout": "timeout", "pypi-url": "index-url"}


@dataclass(slots=True)
class ForUv:
    """What uv is started with: further arguments, environment variables, and the settings that it has no word for."""

    arguments: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def parse(listing: str) -> dict[str, str]:
    """The settings that hold for `pip install`, from what `pip config list` printed: name -> text."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        match = re.fullmatch(r"(global|install|:env:)\.([\w-]+)=(.*)", line)
        if match:
            section, name, value = match.groups()
            name = name.lower().replace("_", "-")
            try:
                found[section][_OTHER_NAMES.get(name, name)] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError):
                continue  # no line of pip's
    return {name: value for section in _SECTIONS for name, value in found[section].items()}


def for_uv(settings: Mapping[str, str], environment: Mapping[str, str]) -> ForUv:
    """Put pip's settings into the words of uv.

    Parameters
    ----------
    settings : name -> text, as `parse` gives them.
    environment : the variables that are set already.
    """
    out = ForUv()
    present = {name.upper() for name, value in environment.items() if value}
    for name, text in settings.items():
        values = text.split()
        if name in _VARIABLES:
            variables, own = _VARIABLES[name]
            if values and not present.intersection(own):
                out.variables |= dict.fromkeys(variables, " ".join(_translated(name, values)))
        elif name == "find-links":
            if "UV_FIND_LINKS" not in present:
                out.arguments += [f"--find-links={os.path.expanduser(value)}" for value in values]
        elif name == "use-feature" and "truststore" in values:
            out.variables["UV_SYSTEM_CERTS"] = "true"
        elif name == "no-index":
            out.arguments += ["--no-index"] if text.strip().lower() not in _FALSE else []
        elif name not in _QUIET and text.strip().lower() not in _FALSE:
            out.left_out.append(name)
    if "UV_INDEX" in out.variables and "UV_INDEX_STRATEGY" not in present:
        # As pip: the best version of all indexes.  uv would look no further than the first that knows the name.
        out.arguments.append("--index-strategy=unsafe-best-match")
    if not present.intersection(_VARIABLES["cert"][1]) and "SSL_CERT_FILE" not in out.variables:
        # pip's own library looks at these two as well.
        bundle = next((environment[name] for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") if name in present), "")
        if os.path.isfile(bundle):
            out.variables["SSL_CERT_FILE"] = bundle
    return out


def _translated(name: str, values: list[str]) -> Iterable[str]:
    """The values of one setting, where uv spells them otherwise."""
    if name == "proxy":
        return [value if "://" in value else f"http://{value}" for value in values]
    if name == "timeout":
        return [str(max(1, round(float(value)))) for value in values if re.fullmatch(r"\d+(\.\d*)?", value)]
    if name == "keyring-provider":  # pip's ways of calling it are one to uv
        return ["disabled" if value == "disabled" else "subprocess" for value in values]
    if name in ("cert", "client-cert"):
        return [os.path.expanduser(" ".join(values))]  # one path, which may hold spaces
    return values
