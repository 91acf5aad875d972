"""Files and folders on the disk: written whole or not at all, with checksums and format numbers.

Nothing here knows what the bytes mean: models, checkpoints, records, figures and pages are written through it.
"""

from clearhead.storage.atomic import TEMPORARY_MARK as TEMPORARY_MARK
from clearhead.storage.atomic import atomic_file as atomic_file
from clearhead.storage.atomic import atomic_folder as atomic_folder
from clearhead.storage.atomic import check_free as check_free
from clearhead.storage.atomic import commit_files as commit_files
from clearhead.storage.atomic import flush_to_disk as flush_to_disk
from clearhead.storage.atomic import flush_tree as flush_tree
from clearhead.storage.atomic import hold_lock as hold_lock
from clearhead.storage.atomic import lock_folder as lock_folder
from clearhead.storage.atomic import move_into_place as move_into_place
from clearhead.storage.atomic import replace_folder as replace_folder
from clearhead.storage.atomic import restore_replaced as restore_replaced
from clearhead.storage.atomic import temporary_folder as temporary_folder
from clearhead.storage.atomic import temporary_path as temporary_path
from clearhead.storage.json_files import CHECKSUMS as CHECKSUMS
from clearhead.storage.json_files import check_format as check_format
from clearhead.storage.json_files import file_checksum as file_checksum
from clearhead.storage.json_files import read_json as read_json
from clearhead.storage.json_files import verify_checksums as verify_checksums
from clearhead.storage.json_files import write_json as write_json
