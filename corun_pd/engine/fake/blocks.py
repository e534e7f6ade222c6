"""The pool of KV blocks: ids out, ids in."""

__all__ = ["BlockPool"]


class BlockPool:
    """Block ids from 0. What is allocated comes back by `free`, once for each of its holders."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._more_holders: dict[int, int] = {}

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

    def share(self, blocks: tuple[int, ...], holders: int) -> None:
        """Gives allocated blocks that many more holders."""
        for block in blocks if holders else ():
            self._more_holders[block] = self._more_holders.get(block, 0) + holders

    def free(self, blocks: tuple[int, ...]) -> None:
        """One holder of these blocks needs them no more; with the last one they are free."""
        if not self._more_holders:
            self._free.extend(blocks)
            return
        for block in blocks:
            holders = self._more_holders.pop(block, 0)
            if not holders:
                self._free.append(block)
            elif holders > 1:
                self._more_holders[block] = holders - 1
