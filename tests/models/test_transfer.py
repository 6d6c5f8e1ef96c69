"""Downloads that break off, go on, or turn out to be another file, from a server on this machine."""

import errno
import hashlib
import os
import threading
from random import Random

import pytest

from paceline.errors import DownloadFailed
from paceline.models.fetch import transfer
from paceline.models.fetch.transfer import Remote, fetch_file, read_url

from .hub_server import COMMIT, Hub, serving

CONTENT = Random(1).randbytes(3 << 20)
OTHER = Random(2).randbytes(3 << 20)


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(transfer, "_WAITS", (0.0, 0.0, 0.0, 0.0))
    with serving(Hub({"file": CONTENT})) as hub:
        yield hub


@pytest.fixture
def target(tmp_path):
    return tmp_path / "folder" / "file"


def remote(hub, checked=True, content=CONTENT, **headers):
    digest = hashlib.sha256(content).hexdigest() if checked else None
    return Remote(f"{hub.url}/o/m/resolve/{COMMIT}/file", len(content), digest, headers)


def one_bit_wrong(content):
    return bytes([content[0] ^ 1]) + content[1:]


def ranges(hub):
    return [asked[1] for asked in hub.asked]


def interrupted(hub, target, at, checked=True):
    """A download that its user ends after `at` bytes."""

    def stop(done, total):
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_file(remote(hub, checked), target, stop)
    assert not target.exists()
    return target.with_name("file.part").stat().st_size


@pytest.mark.parametrize("checked", [True, False])
def test_a_whole_file_in_one_go(hub, target, checked):
    seen = []
    fetch_file(remote(hub, checked), target, lambda *told: seen.append(told))
    assert target.read_bytes() == CONTENT and ranges(hub) == [None]
    assert seen[0] == (0, len(CONTENT)) and seen[-1] == (len(CONTENT), len(CONTENT)) and seen == sorted(seen)
    assert not list(target.parent.glob("*.part*"))
    fetch_file(remote(hub, checked), target)
    assert len(hub.asked) == 1


@pytest.mark.parametrize("checked", [True, False])
def test_what_was_interrupted_goes_on_where_it_stopped(hub, target, checked):
    have, seen = interrupted(hub, target, 1 << 20, checked), []
    assert have >= 1 << 20
    fetch_file(remote(hub, checked), target, lambda *told: seen.append(told))
    assert target.read_bytes() == CONTENT
    assert ranges(hub) == [None, f"bytes={have}-"] and seen[0] == (have, len(CONTENT))


def test_a_network_that_goes_away_is_no_full_disk(hub, target, monkeypatch):
    """A host without a route is no ConnectionError: it is tried again, as a broken connection is."""
    read, troubles = transfer._piece, [OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))] * 2

    class Answer:
        def __init__(self, answer):
            self._answer = answer

        def read1(self, size):
            if troubles:
                raise troubles.pop()
            return self._answer.read1(size)

    monkeypatch.setattr(transfer, "_piece", lambda answer, size: read(Answer(answer), size))
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT and not troubles


@pytest.mark.parametrize("etags", [True, False])
def test_connections_that_break_are_taken_up_again(hub, target, etags):
    hub.breaks, hub.etags = [1000, 70_000, 0, 5], etags
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT
    assert ranges(hub) == [None, "bytes=1000-", "bytes=71000-", "bytes=71000-", "bytes=71005-"]


def test_without_an_etag_or_a_checksum_it_begins_anew(hub, target):
    hub.breaks, hub.etags = [1000], False
    fetch_file(remote(hub, checked=False), target)
    assert target.read_bytes() == CONTENT and ranges(hub) == [None, None]


def test_a_server_that_knows_no_ranges_sends_everything_again(hub, target):
    hub.ranges, hub.breaks = "ignored", [1000, 2000]
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT and len(hub.asked) == 3


@pytest.mark.parametrize("ranges_are", ["honoured", "ignored", "careless"])
def test_a_file_that_changed_meanwhile_is_not_mixed_with_the_old_one(hub, target, ranges_are):
    hub.ranges = ranges_are
    interrupted(hub, target, 1 << 20, checked=False)
    hub.files["file"] = OTHER
    fetch_file(remote(hub, checked=False), target)
    assert target.read_bytes() == OTHER


def test_bytes_of_an_earlier_call_that_were_wrong_are_fetched_again(hub, target):
    interrupted(hub, target, 1 << 20)
    part = target.with_name("file.part")
    part.write_bytes(one_bit_wrong(part.read_bytes()))
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT and ranges(hub)[-1] is None


def test_more_bytes_than_the_file_has_are_thrown_away(hub, target):
    target.parent.mkdir()
    target.with_name("file.part").write_bytes(CONTENT + b"more")
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT


def test_other_content_than_was_published_is_refused(hub, target):
    hub.files["file"] = OTHER
    with pytest.raises(DownloadFailed, match=r"not what its owner published \(size or sha256"):
        fetch_file(remote(hub), target)
    assert [path.name for path in target.parent.iterdir()] == ["file.lock"]


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("size", [1 << 20, (3 << 20) + 1])
def test_a_file_of_another_size_is_refused_before_it_is_here(hub, target, size, checked):
    hub.files["file"] = Random(3).randbytes(size)
    with pytest.raises(
        DownloadFailed, match=rf"not what its owner published \(it has {size} bytes there, not {3 << 20}"
    ):
        fetch_file(remote(hub, checked), target)
    assert not target.exists() and len(hub.asked) == 1


def test_a_file_that_became_shorter_than_what_is_here_is_refused(hub, target):
    interrupted(hub, target, 2 << 20)
    hub.files["file"], hub.ranges = CONTENT[: 1 << 20], "careless"
    with pytest.raises(DownloadFailed, match=rf"it has {1 << 20} bytes there"):
        fetch_file(remote(hub), target)
    assert not target.exists() and len(hub.asked) == 2


def test_a_busy_server_is_asked_again_and_a_firm_one_is_not(hub, target):
    hub.refusals = [503, 429, 500]
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT and len(hub.asked) == 4
    target.unlink()
    hub.refusals = [403]
    with pytest.raises(DownloadFailed, match="HTTP 403"):
        fetch_file(remote(hub), target)


def test_it_gives_up_and_says_what_is_here(hub, target):
    hub.breaks = [1000, *[0] * 9]
    with pytest.raises(DownloadFailed, match=rf"1000 of {len(CONTENT)} bytes are here, the same command goes on"):
        fetch_file(remote(hub), target)
    hub.breaks = []
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT and ranges(hub)[-1] == "bytes=1000-"


def test_a_server_out_of_reach(hub, target, tmp_path):
    nobody = Remote("http://127.0.0.1:1/file", 10, None)
    with pytest.raises(DownloadFailed, match=r"refused; 0 of 10 bytes"):
        fetch_file(nobody, target)
    with pytest.raises(DownloadFailed, match="out of reach"):
        read_url(nobody.url)


def test_only_http_is_spoken(target):
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/file"):
        with pytest.raises(DownloadFailed, match="not an address of http"):
            fetch_file(Remote(url, 10, None), target)


def test_credentials_stay_with_the_first_host(hub, target):
    with serving(Hub({"file": CONTENT})) as elsewhere:
        hub.redirect = elsewhere.url.replace("127.0.0.1", "localhost")
        fetch_file(remote(hub, Authorization="Bearer secret"), target)
    assert target.read_bytes() == CONTENT
    assert hub.asked[0][3] == "Bearer secret" and elsewhere.asked[0][3] is None


def test_a_file_that_was_damaged_later_is_replaced(hub, target):
    fetch_file(remote(hub), target)
    target.write_bytes(one_bit_wrong(CONTENT))
    fetch_file(remote(hub), target)
    assert target.read_bytes() == CONTENT and len(hub.asked) == 2


def test_two_at_once_fetch_it_once(hub, target):
    threads = [threading.Thread(target=fetch_file, args=(remote(hub), target)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == CONTENT and len(hub.asked) == 1


def test_a_full_disk_keeps_what_is_here(hub, target, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fetch_file(remote(hub), target)
    assert not target.exists() and target.with_name("file.part").exists()
