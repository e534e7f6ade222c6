"""The decode role, and the colocated one, which shares its columns: tokens out at the fixed shape."""
