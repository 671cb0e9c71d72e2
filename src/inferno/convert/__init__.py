"""`inferno convert` and `inferno package`: write a checkpoint in another format or scheme, or as a
Python package.

A writer (`contracts.Writer`) says what is written, from headers; the room reads, dequantizes,
calibrates and writes it piece by piece into a folder beside the result, which takes its name at the
end.
"""

from inferno.convert.convert import Conversion, convert
from inferno.convert.package import PackageOptions, package
from inferno.convert.place import MANIFEST
from inferno.convert.writing import Progress

__all__ = ["MANIFEST", "Conversion", "PackageOptions", "Progress", "convert", "package"]
