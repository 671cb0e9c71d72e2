"""The models behind one app, by the names that clients use."""

from __future__ import annotations

from inferno.errors import ModelNotFoundError
from inferno.server.model import ServedModel


class Models:
    """Finds the model of a request. (Not an attrs class: Litestar would inspect it.)"""

    def __init__(self, *served: ServedModel) -> None:
        self.served = served
        """The first one answers requests that name none."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for model in self.served for name in model.names)

    async def find(self, name: str | None) -> ServedModel:
        """Return the model of that name, ready to serve. Raises ModelNotFoundError."""
        return self.named(name)

    def named(self, name: str | None) -> ServedModel:
        """Return the model of that name as it is. Raises ModelNotFoundError."""
        if name is None:
            return self.served[0]
        found = next((model for model in self.served if name in model.names), None)
        if found is None:
            raise ModelNotFoundError(
                f"the model {name[:200]!r} does not exist", f"Use one of: {', '.join(self.names)}"
            )
        return found
