"""pip's settings reach uv: what each becomes, and which of uv's own variables keep it away."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from course import installer
from course.pip_settings import ForUv, for_uv, parse


def test_sections_of_pip_are_merged_as_pip_does():
    listing = (
        "global.index-url='https://one/simple'\nglobal.cert='/a b/ca.pem'\ninstall.index-url='https://two/simple'\n"
        ":env:.index-url='https://three/simple'\nglobal.extra-index-url='\\nhttps://x/simple\\nhttps://y/simple'\n"
        "freeze.timeout='1'\nno such line\nglobal.broken=unquoted\n:env:.default-timeout='180'\n"
    )
    assert parse(listing) == {
        "index-url": "https://three/simple",
        "cert": "/a b/ca.pem",
        "extra-index-url": "\nhttps://x/simple\nhttps://y/simple",
        "timeout": "180",
    }


@pytest.mark.parametrize(
    ("name", "text", "variables", "arguments"),
    [
        ("index-url", "https://me:secret@pypi/simple", {"UV_DEFAULT_INDEX": "https://me:secret@pypi/simple"}, []),
        ("extra-index-url", "\nhttps://x\n https://y", {"UV_INDEX": "https://x https://y"},
         ["--index-strategy=unsafe-best-match"]),
        ("trusted-host", "pypi.local other:8080", {"UV_INSECURE_HOST": "pypi.local other:8080"}, []),
        ("cert", "/a b/ca.pem", {"SSL_CERT_FILE": "/a b/ca.pem"}, []),
        ("client-cert", "/me.pem", {"SSL_CLIENT_CERT": "/me.pem"}, []),
        ("proxy", "me@proxy:3128", {"HTTP_PROXY": "http://me@proxy:3128", "HTTPS_PROXY": "http://me@proxy:3128"}, []),
        ("proxy", "socks5://proxy:1", {"HTTP_PROXY": "socks5://proxy:1", "HTTPS_PROXY": "socks5://proxy:1"}, []),
        ("find-links", "/opt/wheels https://w/", {}, ["--find-links=/opt/wheels", "--find-links=https://w/"]),
        ("find-links", "~/wheels", {}, ["--find-links=" + os.path.expanduser("~/wheels")]),
        ("no-index", "true", {}, ["--no-index"]),
        ("no-index", "0", {}, []),
        ("timeout", "2.6", {"UV_HTTP_TIMEOUT": "3"}, []),
        ("retries", "7", {"UV_HTTP_RETRIES": "7"}, []),
        ("keyring-provider", "import", {"UV_KEYRING_PROVIDER": "subprocess"}, []),
        ("use-feature", "truststore", {"UV_SYSTEM_CERTS": "true"}, []),
    ],
)  # fmt: skip
def test_each_setting_in_the_words_of_uv(name, text, variables, arguments):
    assert for_uv({name: text}, {}) == ForUv(arguments, variables, [])


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("index-url", "UV_DEFAULT_INDEX"),
        ("index-url", "UV_INDEX_URL"),
        ("extra-index-url", "UV_INDEX"),
        ("extra-index-url", "UV_EXTRA_INDEX_URL"),
        ("trusted-host", "UV_INSECURE_HOST"),
        ("cert", "SSL_CERT_FILE"),
        ("cert", "UV_SYSTEM_CERTS"),
        ("client-cert", "SSL_CLIENT_CERT"),
        ("proxy", "https_proxy"),
        ("proxy", "ALL_PROXY"),
        ("find-links", "UV_FIND_LINKS"),
        ("timeout", "UV_HTTP_TIMEOUT"),
    ],
)
def test_what_uv_was_told_itself_wins(name, own):
    assert for_uv({name: "1"}, {own: "theirs"}) == ForUv()
    assert for_uv({name: "1"}, {own: ""}) != ForUv()


def test_a_strategy_of_ones_own_stays():
    assert for_uv({"extra-index-url": "https://x"}, {"UV_INDEX_STRATEGY": "first-index"}).arguments == []


def test_certificates_of_pips_own_library_count(tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("", encoding="ascii")
    assert for_uv({}, {"REQUESTS_CA_BUNDLE": str(bundle)}).variables == {"SSL_CERT_FILE": str(bundle)}
    assert for_uv({}, {"CURL_CA_BUNDLE": str(tmp_path / "none")}).variables == {}
    assert for_uv({"cert": "/x"}, {"REQUESTS_CA_BUNDLE": str(bundle)}).variables == {"SSL_CERT_FILE": "/x"}


def test_what_has_no_counterpart_is_named_and_what_does_not_matter_is_not():
    out = for_uv({"constraint": "/c.txt", "no-input": "1", "quiet": "2", "pre": "no", "only-binary": ":all:"}, {})
    assert out == ForUv(left_out=["only-binary"])


def test_pip_and_uv_of_this_environment_know_these_words(tmp_path):
    """pip reads its files and variables; every option and variable that we use is in uv's own help."""
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url =\n    https://b/simple\n    https://c/simple\n"
        "[install]\nfind-links = /w\n",
        encoding="ascii",
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env={**plain, "PIP_CONFIG_FILE": str(config), "PIP_TRUSTED_HOST": "b c", "PIP_NO_INDEX": "1"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    settings = parse(answer.stdout)
    assert settings["extra-index-url"].split() == ["https://b/simple", "https://c/simple"]
    out = for_uv(settings, {})
    assert out.variables["UV_DEFAULT_INDEX"] == "https://a/simple" and out.variables["UV_INSECURE_HOST"] == "b c"
    assert {"--find-links=/w", "--no-index"} <= set(out.arguments)
    pytest.importorskip("uv")
    shown = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--help"], capture_output=True, encoding="utf-8", check=True
    ).stdout
    ours = {argument.partition("=")[0] for argument in out.arguments} | {"--compile-bytecode", "--index-strategy"}
    ours |= {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INSECURE_HOST", "UV_SYSTEM_CERTS", "UV_KEYRING_PROVIDER"}
    assert {word for word in ours if not re.search(rf"{word}\b", shown)} == set()


def test_an_install_hands_them_over(tmp_path, monkeypatch, capsys):
    """The whole step, with a program in the place of uv that shows what it was given."""
    seen = []
    settings = ForUv(["--no-index"], {"UV_INDEX": "https://x"}, ["only-binary"])
    monkeypatch.setattr(installer, "settings_of_pip", lambda: settings)
    monkeypatch.setattr(installer, "step", lambda *given: seen.append(given))
    monkeypatch.setattr(installer, "_write_settings", lambda: None)
    monkeypatch.setattr(installer, "compile_own", lambda: None)
    installer.install(("course",))
    _, command, _, variables = seen[0]
    assert {"--no-index", "--compile-bytecode", "--group=course"} <= set(command)
    assert variables["UV_INDEX"] == "https://x"
    assert "left aside: only-binary" in capsys.readouterr().out


def test_bytecode_is_written_where_python_would_not(tmp_path, monkeypatch):
    for name in ("fucina", "course"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text("value = 1\n", encoding="ascii")
    (tmp_path / "fucina" / "broken.py").write_text("def\n", encoding="ascii")
    monkeypatch.setattr(installer, "ROOT", tmp_path)
    monkeypatch.setattr(installer, "venv_python", lambda: sys.executable)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    installer.compile_own()
    written = sorted(path.parent.parent.name for path in tmp_path.rglob("module.*.pyc"))
    assert written == ["course", "fucina"]
