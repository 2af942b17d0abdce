"""A review whose commit is awaited."""

from __future__ import annotations

from ...layers.review import Review

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from typing import Any, Self, Unpack

    from ...layers.review import ApprovalOptions, Committed


class AsyncReview(Review):
    """The same as `Review`, for an AsyncSandbox."""

    @classmethod
    def of(cls, found: Review, commit: Callable[..., Coroutine[Any, Any, Committed]]) -> Self:
        """The same review, committed by `commit`."""
        made = cls(**{name: getattr(found, name) for name in cls._fields})
        made._set("_commit", commit)
        return made

    async def commit(  # type: ignore[override]
        self, paths: Collection[str] | None = None, **options: Unpack[ApprovalOptions]
    ) -> Committed:
        """Write exactly what was reviewed, or what of it is at and below `paths`; see `Review.commit`."""
        commit: Callable[..., Coroutine[Any, Any, Committed]] = self.__dict__["_commit"]
        return await commit(paths, review=self, **options)
