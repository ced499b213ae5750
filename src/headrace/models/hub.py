"""Downloads a file from the Hugging Face hub: `python -m headrace.models.hub REPOSITORY FILE FOLDER SHA256`.

A program of its own, so that whoever wants the file can watch it arrive and stop it at any moment. Exits with
one line on standard error where the file cannot be had: within seconds where the hub cannot be reached, and
before the download where the hub's checksum shows that its file is another one.
"""

from __future__ import annotations

import sys
from threading import Thread

_REACH_SECONDS = 4.0


def main(repository: str, file: str, folder: str, sha256: str) -> None:
    from huggingface_hub import HfFileMetadata, get_hf_file_metadata, hf_hub_download, hf_hub_url

    found: list[HfFileMetadata | Exception] = []

    def look() -> None:
        try:
            found.append(get_hf_file_metadata(hf_hub_url(repository, file), timeout=_REACH_SECONDS))
        except Exception as error:
            found.append(error)

    # In a thread, for the time-out covers neither the look-up of the name nor redirects.
    thread = Thread(target=look, daemon=True)
    thread.start()
    thread.join(_REACH_SECONDS)
    if not found:
        sys.exit(f"no answer within {_REACH_SECONDS:.0f} seconds")
    if isinstance(found[0], Exception):
        sys.exit(f"the file cannot be looked up ({_line(found[0])})")
    etag = found[0].etag or ""
    if len(etag) == len(sha256) and etag != sha256:  # the tag of a large file is its SHA-256
        sys.exit(f"the file there is another one (SHA-256 {etag}, expected {sha256})")
    try:
        hf_hub_download(repository, file, revision=found[0].commit_hash, local_dir=folder)
    except Exception as error:
        sys.exit(_line(error))


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
