"""Files and folders on the disk: written whole or not at all, with checksums and format numbers.

Nothing here knows what the bytes mean: models, checkpoints, records, figures and pages are written through it.
"""

from clearhead.storage.atomic import (
    TEMPORARY_MARK,
    atomic_file,
    atomic_folder,
    commit_files,
    flush_tree,
    move_into_place,
    replace_folder,
    restore_replaced,
    temporary_folder,
    temporary_path,
)
from clearhead.storage.checksums import CHECKSUMS, file_checksum, verify_checksums, write_checksums
from clearhead.storage.disk import check_free, flush_to_disk, free_bytes, is_disk_full
from clearhead.storage.json_files import check_format, read_json, write_json
from clearhead.storage.locks import hold_lock, lock_folder

__all__ = [
    "CHECKSUMS",
    "TEMPORARY_MARK",
    "atomic_file",
    "atomic_folder",
    "check_format",
    "check_free",
    "commit_files",
    "file_checksum",
    "flush_to_disk",
    "flush_tree",
    "free_bytes",
    "hold_lock",
    "is_disk_full",
    "lock_folder",
    "move_into_place",
    "read_json",
    "replace_folder",
    "restore_replaced",
    "temporary_folder",
    "temporary_path",
    "verify_checksums",
    "write_checksums",
    "write_json",
]
