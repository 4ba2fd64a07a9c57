"""x"""

from __future__ import annotations

from stages.tracking.store import Store


def refresh_view(store: Store) -> None:
    """x"""
