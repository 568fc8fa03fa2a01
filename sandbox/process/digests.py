"""SHA-256 without OpenSSL.

`hashlib` loads OpenSSL's library, whose exit handler then runs in programs that do not use it. Which module of CPython has
the plain implementation depends on the version; an interpreter with neither has `hashlib`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # Python 3.12 and later
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256

__all__ = ["sha256"]
