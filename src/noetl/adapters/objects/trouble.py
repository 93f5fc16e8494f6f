"""What the errors of file systems and object stores mean to us.

Messages say which store, what happened and what to do.  They quote neither addresses nor headers: a request may carry
its signature in them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from noetl.core.errors import NoetlError, StorageFull, StoreRefused, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,200})"|(TimedOut)')
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_NO_ROOM = ("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "AccountIsFull")
_METADATA = ("169.254.169.254", "metadata.google.internal")


@contextmanager
def file_trouble(where: object) -> Iterator[None]:
    """A file that is not there stays what it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise file_error(error, where) from error


def file_error(error: OSError, where: object) -> NoetlError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(f"no room for payloads in {where}: {reason}; free some, and what waits goes on")
    if error.errno in _DENIED:
        return StoreRefused(f"payloads cannot be kept in {where}: {reason}; give this process the right to write there")
    return StoreUnavailable(f"the file system of {where} has trouble: {reason}")


def is_absent(error: Exception) -> bool:
    """Whether an object is not there, although its bucket is."""
    return isinstance(error, FileNotFoundError) and _code(str(error)) not in _NO_BUCKET


def is_behind_end(error: Exception) -> bool:
    """Whether a range begins where there is nothing any more."""
    text = str(error)
    return "status code: 416" in text or "Wanted range starting at" in text


def object_error(error: Exception, where: str) -> NoetlError:
    """What an error of the object store means, `where` being kind and bucket."""
    text = str(error)
    code, status = _code(text), _STATUS.search(text)
    said = " ".join(part for part in (status[1] if status else None, code) if part)
    if code in _NO_BUCKET:
        return StoreRefused(f"{where} does not exist ({said}): create it, or correct NOETL_STORAGE_BUCKET")
    if code in _NO_ROOM or (status and status[1] == "507"):
        return StorageFull(f"{where} has no room left ({said})")
    if any(host in text for host in _METADATA):
        return StoreUnavailable(
            f"{where} has no credentials yet: none are set in the environment, and the cloud's metadata service does "
            "not answer"
        )
    if status is None:
        cause = _CAUSE.search(text)
        reason = next((group for group in cause.groups() if group), None) if cause else None
        return StoreUnavailable(f"{where} does not answer: {reason or 'no connection'}")
    if status[1] in ("408", "409", "425", "429") or status[1] >= "500":
        return StoreUnavailable(f"{where} has trouble ({said})")
    if status[1] in ("401", "403"):
        return StoreRefused(f"{where} refuses this process ({said}): check its credentials, bucket and rights")
    return StoreRefused(f"{where} refuses the request ({said}): check NOETL_STORAGE_ENDPOINT and NOETL_STORAGE_REGION")


def _code(text: str) -> str | None:
    found = _CODE.search(text)
    return found[1] if found else None
