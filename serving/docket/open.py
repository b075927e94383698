"""Opens the docket that the settings name."""

from __future__ import annotations

from serving.docket.store.sql import SqlDocket
from serving.settings import Settings


def docket_of(settings: Settings, *, create: bool = True) -> SqlDocket:
    """Opens the docket that the settings name, with its key and its pictures; as :meth:`SqlDocket.open`."""
    key, pictures = settings.docket_key_place, settings.pictures_place
    return SqlDocket.open(settings.docket_place, create=create, key=key, pictures=pictures)
