"""The pool of KV blocks: ids out, ids in."""

__all__ = ["BlockPool"]


class BlockPool:
    """Block ids from 0. What is allocated comes back exactly once, by `free`."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))

    def __len__(self) -> int:
        """Blocks in nobody's hands."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """`count` block ids, or None when there is no room for all of them."""
        if count > len(self._free):
            return None
        split = len(self._free) - count
        taken = tuple(self._free[split:])
        del self._free[split:]
        return taken

    def free(self, blocks: tuple[int, ...]) -> None:
        """Takes back what `allocate` gave."""
        self._free.extend(blocks)
