"""What every declaration is tested among."""

from __future__ import annotations

import pytest

from inferno.catalog import Catalog, load_catalog


class Installed:
    """Tests that take the catalog of everything that is installed here."""

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog()
