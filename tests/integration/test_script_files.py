"""Script files: nothing outside a root is ever read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from noetl.adapters.objects.scripts import RootedScripts, read_script
from noetl.core.errors import ScriptUnavailable
from noetl.core.limits import SCRIPT_BYTES_MAX
from tests.support.aio import asynchronous

SECRET = b"not for playbooks"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A root with something in it, and something beside it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "lib").mkdir(parents=True)
    outside.mkdir()
    (root / "a.py").write_bytes(b"a")
    (root / "lib" / "b.py").write_bytes(b"b")
    (outside / "secret.txt").write_bytes(SECRET)
    return root, outside


@pytest.mark.parametrize("uri", ["a.py", "./a.py", "lib/../a.py", " a.py ", "file://a.py"])
def test_a_file_below_a_root_is_read(places: tuple[Path, Path], uri: str) -> None:
    assert read_script(uri, [places[0]]) == b"a"


def test_an_absolute_path_must_be_below_a_root(places: tuple[Path, Path]) -> None:
    root, outside = places
    assert read_script(str(root / "lib" / "b.py"), [root]) == b"b"
    assert read_script(f"file://{root / 'a.py'}", [root]) == b"a"
    with pytest.raises(ScriptUnavailable, match="outside of every root"):
        read_script(str(outside / "secret.txt"), [root])


@pytest.mark.parametrize(
    "uri",
    [
        "../outside/secret.txt",
        "lib/../../outside/secret.txt",
        "./../outside/secret.txt",
        "lib/../../root/../outside/secret.txt",
        "..",
        "/",
        ".",
        "",
        "lib/..",
        "file://../outside/secret.txt",
        "file:///etc/hostname",
        "/etc/hostname",
        "/proc/self/environ",
        "a.py\0.txt",
        "//etc/hostname",
        "../root-beside/x",
    ],
)
def test_no_path_leads_out(places: tuple[Path, Path], uri: str) -> None:
    (places[0].parent / "root-beside").mkdir()
    (places[0].parent / "root-beside" / "x").write_bytes(SECRET)
    with pytest.raises(ScriptUnavailable):
        read_script(uri, [places[0]])


def test_what_lies_outside_is_not_told_from_what_does_not_exist(places: tuple[Path, Path]) -> None:
    said = set()
    for name in ("secret.txt", "absent.txt"):
        for uri in (f"../outside/{name}", str(places[1] / name)):
            with pytest.raises(ScriptUnavailable) as caught:
                read_script(uri, [places[0]])
            said.add(str(caught.value))
    assert said == {"it leads outside of every root"}


def test_links_lead_within_a_root_and_never_out_of_it(places: tuple[Path, Path]) -> None:
    root, outside = places
    # As configuration is mounted: the visible name is a link to a link of a folder.
    (root / "..data_1").mkdir()
    (root / "..data_1" / "job.py").write_bytes(b"mounted")
    (root / "..data").symlink_to("..data_1")
    (root / "job.py").symlink_to("..data/job.py")
    assert read_script("job.py", [root]) == b"mounted"
    (root / "file.py").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "round").symlink_to("round")
    (root / "up").symlink_to("..")
    for uri in ("file.py", "folder/secret.txt", "round", "up/outside/secret.txt", "folder/../outside/secret.txt"):
        with pytest.raises(ScriptUnavailable):
            read_script(uri, [root])


def test_a_root_that_is_a_link_is_a_root(places: tuple[Path, Path], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(places[0])
    assert read_script("lib/b.py", [link]) == b"b"
    assert read_script(str(link / "a.py"), [link]) == b"a"


def test_a_link_that_is_put_there_while_it_is_read_leads_nowhere(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = places
    real_open = os.open

    def swapping(path: str, *args: int, **options: int) -> int:
        if path == "b.py":
            (root / "lib" / "b.py").unlink()
            (root / "lib" / "b.py").symlink_to(outside / "secret.txt")
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "open", swapping)
    with pytest.raises(ScriptUnavailable):
        read_script("lib/b.py", [root])


def test_only_plain_files_of_a_bounded_size_are_read(places: tuple[Path, Path]) -> None:
    root = places[0]
    os.mkfifo(root / "pipe")
    (root / "large.py").write_bytes(b"x" * (SCRIPT_BYTES_MAX + 1))
    (root / "exact.py").write_bytes(b"x" * SCRIPT_BYTES_MAX)
    for uri, message in (("lib", "no file"), ("pipe", "no file"), ("large.py", "more than 1,000,000 bytes")):
        with pytest.raises(ScriptUnavailable, match=message) as caught:
            read_script(uri, [root])
        assert not caught.value.is_absent
    assert len(read_script("exact.py", [root])) == SCRIPT_BYTES_MAX


@asynchronous
async def test_roots_are_asked_in_their_order_and_may_be_missing(places: tuple[Path, Path], tmp_path: Path) -> None:
    root = places[0]
    first = tmp_path / "first"
    first.mkdir()
    (first / "a.py").write_bytes(b"first")
    scripts = RootedScripts([tmp_path / "absent", first, root])
    assert await scripts.read("a.py") == b"first"
    assert await scripts.read("lib/b.py") == b"b"
    assert scripts.roots == (str(tmp_path / "absent"), str(first), str(root))
    with pytest.raises(ScriptUnavailable, match="there is no such file") as caught:
        await scripts.read("lib/c.py")
    assert caught.value.is_absent
    with pytest.raises(ScriptUnavailable, match="there is no such file"):
        await RootedScripts([]).read("a.py")
