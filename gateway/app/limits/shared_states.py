"""The state of limits that Redis holds, for operators: the same for every replica and worker."""

from __future__ import annotations

from typing import Any

from gateway.app.limits.states import amount_of, applying, binding, bucket_view, limit_named, no_bucket, parts_of, place, rest_of, written
from gateway.core.specs import LimitSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.types import Principal
from gateway.limits.bucket import Shape
from gateway.limits.redis.book import BucketBook
from gateway.limits.redis.view import BucketSeen
from gateway.pipeline.plane import DataPlane


class SharedLimitStates:
    """Implements admin.ports.LimitControl. Raises Overloaded from everything while Redis is away."""

    def __init__(self, plane: DataPlane, redis: RedisSpec) -> None:
        self._plane, self._book = plane, BucketBook(redis)

    async def state(self, limit: str, most: int, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        found: list[dict[str, Any]] = []
        for number, part, begin in rest_of(limit_named(self._plane, limit), after):
            shape, wanted = Shape(part), most - len(found)
            buckets, last, more = await self._book.page(shape, wanted, begin)
            found += [_view(shape, scope, bucket) for scope, bucket in buckets]
            if more:
                return found, place(number, last)
        return found, None

    async def applying(self, principal: Principal, model: str, operation: str) -> list[dict[str, Any]]:
        wanted = [(Shape(spec), key) for spec, key in await applying(self._plane, principal, model, operation)]
        found = await self._book.look(wanted)
        return binding([_view(shape, written(key), bucket) for (shape, key), bucket in zip(wanted, found, strict=True)])

    async def reset(self, limit: str, scope: str | None, *, dry_run: bool = False) -> int:
        names: list[bytes] = []
        for part in parts_of(limit_named(self._plane, limit)):
            shape = Shape(part)
            names += await (self._book.names_of(shape) if scope is None else self._book.meant(shape, scope))
        if scope is not None and not names:
            raise no_bucket(limit, scope)
        return len(names) if dry_run else await self._book.reset(names)


def _view(shape: Shape, scope: str, bucket: BucketSeen) -> dict[str, Any]:
    spec: LimitSpec = shape.spec
    amounts = [amount_of(meter, one.left, one.resets, one.ahead) for meter, one in zip(shape.meters, bucket.amounts, strict=True)]
    return bucket_view(spec, scope, amounts, bucket.in_use)
