"""Opens a docket, which is a set of small stores over one database."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from platformdirs import user_data_path

from court.errors import CourtError
from court.in_force import DEFAULT_RULES, FindingRules
from retrieval.library.postgres.address import Address
from serving.access.private_files import tighten
from serving.docket.audit.audit import Auditor
from serving.docket.ports import TrialReader, TrialWriter
from serving.docket.review.projection import USUAL, Rules
from serving.docket.review.queue import ReviewQueue
from serving.docket.store import sqlite
from serving.docket.store.erasure import Eraser, remove_erased_pictures
from serving.docket.store.hooks import DeliveryStore, HookStore
from serving.docket.store.listing import FindingStore, TrialIndex
from serving.docket.store.log_append import KeyFile, Signer
from serving.docket.store.log_queries import LogKeys, TransparencyLog
from serving.docket.store.pictures import ObjectPictures
from serving.docket.store.postgres import PostgresDatabase
from serving.docket.store.requests import FingerprintStore, HeartbeatStore, LeaseStore, VerdictKeys
from serving.docket.store.reviews import ReviewStore
from serving.docket.store.tables import Database
from serving.docket.store.transactions import Transactions
from serving.docket.store.trials import SqlTrialReader, SqlTrialWriter
from serving.settings import Settings


@dataclass(frozen=True, slots=True)
class Docket:
    """The stores of one docket; code that needs one of them should take only that one.

    Once a method of a store has returned, its writes survive a crash of the process and a power failure. Several
    servers may share a docket. If it is locked, full, missing or closed, every method raises Unavailable
    (``DOCKET_UNAVAILABLE``, ``DOCKET_CLOSED``). The data is then almost never stored; only if a connection broke during
    the commit and can't be restored is this unknown. A retry is safe: for an event it may report that it already
    exists.
    """

    writer: TrialWriter
    trials: TrialReader
    index: TrialIndex
    leases: LeaseStore
    heartbeats: HeartbeatStore
    verdict_keys: VerdictKeys
    fingerprints: FingerprintStore
    log: TransparencyLog
    log_keys: LogKeys
    signer: Signer
    reviews: ReviewStore
    findings: FindingStore
    eraser: Eraser
    hooks: HookStore
    deliveries: DeliveryStore
    auditor: Auditor
    transactions: Transactions
    pictures: ObjectPictures | None
    rules: FindingRules

    @classmethod
    def open(
        cls,
        address: Path | Address,
        *,
        create: bool = True,
        read_only: bool = False,
        patience: float = 10.0,
        key: Path | None = None,
        pictures: Path | str | None = None,
        rules: FindingRules = DEFAULT_RULES,
    ) -> Self:
        """Opens a docket, migrating earlier formats. Blocks on disk or network I/O.

        If ``create`` is False and the user may only read the file, it is opened read-only: methods that write raise
        Unavailable.

        Args:
            patience: Seconds to wait for another process that is writing.
            key: File of the private key that signs checkpoints, created with the first signature. If not given,
                ``docket.key`` next to a file ``docket.sqlite``, or in MemeCourt's user folder for a database.
            pictures: Picture storage: a directory, or an address such as ``s3://BUCKET/FOLDER``. If not given, the
                directory ``docket.sqlite-pictures`` next to a file, or a table in a database.

        Raises:
            BadRequest: The picture storage can't be used.
            DocketError: The docket is missing and must not be created, is damaged, is not a docket, or has a later
                format.
            Unavailable: The database or the picture storage can't be reached.
            NotLoaded: The database's driver is not installed.
        """
        database: Database
        if isinstance(address, Address):
            database = PostgresDatabase.open(address, create=create, patience=patience)
            # Never in the database: anybody who can write to it could then sign another log.
            key = key or user_data_path("memecourt") / "docket.key"
        else:
            database = sqlite.open_sqlite(address, create=create, patience=patience, read_only=read_only)
            key = key or address.with_suffix(".key")
            pictures = pictures or address.with_name(f"{address.name}-pictures")
            files = (address.with_name(address.name + suffix) for suffix in ("", "-wal", "-shm"))
            if not database.read_only:
                # Another umask may have left files that others can read (BO-5).
                tighten([*files, key, *([pictures] if isinstance(pictures, Path) else [])])
            elif isinstance(pictures, Path) and not pictures.is_dir():
                pictures = None  # it can't be created, and holds nothing
        try:
            objects = None if pictures is None else ObjectPictures.open(pictures)
            if objects is not None and not database.read_only:
                # Left over from a crash during an erasure.
                remove_erased_pictures(database, objects)
        # On any error, close the database: its file would otherwise stay locked.
        except Exception as error:
            database.close()
            if isinstance(error, CourtError):
                raise
            raise database.translated(error) from None
        signer = KeyFile(key)
        transactions = Transactions(database, signer)
        trials, log = SqlTrialReader(transactions, objects, rules), TransparencyLog(transactions)
        keys = LogKeys(transactions)
        return cls(
            writer=SqlTrialWriter(transactions, objects),
            trials=trials,
            index=TrialIndex(transactions, rules),
            leases=LeaseStore(transactions),
            heartbeats=HeartbeatStore(transactions),
            verdict_keys=VerdictKeys(transactions),
            fingerprints=FingerprintStore(transactions),
            log=log,
            log_keys=keys,
            signer=signer,
            reviews=ReviewStore(transactions),
            findings=FindingStore(transactions),
            eraser=Eraser(transactions, objects),
            hooks=HookStore(transactions),
            deliveries=DeliveryStore(transactions, rules),
            auditor=Auditor(transactions, trials, log=log, keys=keys, signer=signer),
            transactions=transactions,
            pictures=objects,
            rules=rules,
        )

    def review_queue(self, rules: Rules = USUAL) -> ReviewQueue:
        """Returns the queue of verdicts that need human review, in the same database."""
        return ReviewQueue(self.transactions, self.trials, self.log, rules)

    async def close(self) -> None:
        """Waits until pending writes are stored, and closes the docket."""
        # Before the pictures, since pending writes may store some.
        await self.transactions.close()
        if self.pictures is not None:
            await asyncio.to_thread(self.pictures.close)


def open_docket(settings: Settings, *, create: bool = True) -> Docket:
    """Opens the docket that the settings name, with its key and its pictures; as :meth:`Docket.open`."""
    key, pictures = settings.docket_key_place, settings.pictures_place
    # Without tokens anybody who reaches the server can sign a finding under any name.
    known = settings.tokens is not None or settings.tls_client_ca is not None
    rules = FindingRules(
        contested=settings.findings.contested,
        acquit_by=settings.findings.acquit_by,
        older_policy=settings.findings.older_policy,
        authority="named" if known else "none" if "auth" in settings.insecure else "local",
    )
    return Docket.open(settings.docket_place, create=create, key=key, pictures=pictures, rules=rules)
