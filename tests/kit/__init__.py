"""The promises of a store, one family per file. `conformance` has the class with all of them."""

import pkgutil

import pytest

# so that a failed `assert` shows its values, as in a test file
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
