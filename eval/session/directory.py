"""The folder of a session: its lock, manifest, lines of results and usage.

A session is work that is started once and can be resumed: a run, an arena, a probe. Its manifest is written before its
first result, so a folder with results always says what they are of.
"""

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from court.errors import BadRequest
from serving.version import SOFTWARE

T = TypeVar("T")


def replace_file(path: Path, content: str) -> None:
    """Replaces a file atomically: a reader sees either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A pipe or device is written to directly: as root, a rename would replace /dev/null for all programs.
    if path.exists() and not path.is_file():
        path.write_text(content, encoding="utf-8")
        return
    # In the same folder: a rename is atomic only within one file system.
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        # Synced before the rename, or a power cut could leave an empty file under the name.
        os.fsync(file.fileno())
    new.replace(path)


def json_line(item: BaseModel) -> str:
    """Serialises an item as one line."""
    # ASCII only, so that no character in a text ends a line for readers that split at more than line feeds. By alias,
    # because libraries recognise excluded rows only by the alias of the marker field.
    return json.dumps(item.model_dump(mode="json", by_alias=True), ensure_ascii=True) + "\n"


def replace_lines(path: Path, items: Iterable[BaseModel]) -> None:
    """Replaces the lines of a file atomically."""
    replace_file(path, "".join(map(json_line, items)))


def stored_lines(
    path: Path, parse: Callable[[bytes], T], *, torn: bool = True, reason: str = "RUN_UNREADABLE"
) -> tuple[T, ...]:
    """Reads the lines of a file.

    Args:
        torn: True for a file that is appended to: a last line cut off by a crash is skipped. In a file that is replaced
            atomically it is an error.

    Raises:
        FileNotFoundError: There is no such file.
        BadRequest: A line can't be read.
    """
    # After the last line feed there is nothing, or a line cut off by a crash.
    *lines, last = path.read_bytes().split(b"\n")
    if last and not torn:
        lines.append(last)
    read = []
    # One by one, since the error names the line.
    for number, line in enumerate(lines, 1):
        try:
            read.append(parse(line))
        except ValidationError:
            raise BadRequest(
                f"{path}, line {number}, can't be read. It was changed by hand, or the disk is at fault.", reason=reason
            ) from None
    return tuple(read)


LOCK, MANIFEST, CALLS, USAGE = ".lock", "manifest.json", "calls.sqlite", "usage.json"
STARTING = ".starting"
"""Marks a folder until its manifest exists: its content may be overwritten."""
# The store of calls may be opened, and an interrupted start may have left files, before the manifest is written.
_OURS = frozenset({LOCK, STARTING, CALLS, f"{CALLS}-wal", f"{CALLS}-shm"})
RUN_DIFFERS = "RUN_DIFFERS"
"""Reason of an error: the current inputs differ from those at the start."""


class SessionManifest(BaseModel):
    """Description of a session: all that must be the same to repeat it, and the circumstances of its start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 2
    created: AwareDatetime
    finished: AwareDatetime | None = None
    interruptions: int = 0
    """Number of times that it was resumed before it was finished."""
    software: str
    commit: str = ""
    """Commit of the source tree, with ``+`` if modified; empty outside of a source tree."""
    python: str = ""
    machine: str = ""
    """Operating system, processor type and number of cores."""
    command: str = ""
    """Command line of the session."""

    def differences(self, now: Self, free: Collection[str] = ()) -> list[str]:
        """Names the fields that differ from those of the same session as it would be started now, in order.

        Args:
            free: Fields that may differ, besides the circumstances. Listing these instead of those that may not means
                that a new field is compared by default.
        """
        return differing(self, now, {*SessionManifest.model_fields, *free})


def differing(before: BaseModel, now: BaseModel, free: Collection[str] = ()) -> list[str]:
    """Names the fields that differ between two models of one type, in order, with short values."""
    found = []
    for name in type(before).model_fields:
        # Compared by value instead of as JSON: differences in notation do not count.
        old, new = getattr(before, name), getattr(now, name)
        if name in free or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
            pairs = [(f"{name} {key}", old.get(key), new.get(key)) for key in keys]
        else:
            pairs = [(name, old, new)]
        found += [_difference(*pair) for pair in pairs]
    # Entries of a mapping that have no short values are one difference.
    return list(dict.fromkeys(found))


def _difference(name: str, old: object, new: object) -> str:
    plain = (str, int, float, type(None), BaseModel)
    if not (isinstance(old, plain) and isinstance(new, plain)):
        return name.partition(" ")[0]
    return f"{name} (was {_short(old)}, is {_short(new)})"


def _short(value: object) -> str:
    text = "nothing" if value in ("", None) else str(value)
    return text if len(text) <= 40 else f"{text[:36]} …"


def circumstances(command: str) -> dict[str, Any]:
    """Returns the fields of a new manifest that describe its start: time, software and machine."""
    return {
        "created": datetime.now(UTC),
        "software": SOFTWARE,
        "commit": commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count() or 1} cores",
        "command": command,
    }


def commit() -> str:
    """Returns the commit of this package's source tree, with ``+`` if modified; empty outside of a source tree."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=here.parent, capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):  # not installed, too slow, or no repository
            return ""
        return done.stdout.strip()

    # An installed package may lie in another project's repository, whose commit is irrelevant. Only tracked files count
    # as modified: results and notes beside the sources do not affect the session.
    ours = git("ls-files", "--error-unmatch", here.name)
    return ours and git(*["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"])


M = TypeVar("M", bound=SessionManifest)
B = TypeVar("B", bound=BaseModel)


class Spent(BaseModel):
    """Usage of one model over all sessions; a killed session counts up to its last finished item."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    repaired: int = 0
    unusable: int = 0
    failed: int = 0
    usd: float = 0.0
    """Cost by the prices in the file of models."""


class SessionFolder(Generic[M]):
    """A directory that holds, or will hold, a session."""

    what: ClassVar[str]
    """Name of its content, such as ``arena``, for errors."""
    manifest_type: ClassVar[type[Any]]
    manifest_file: ClassVar[str] = MANIFEST
    missing: ClassVar[str] = "RUN_MISSING"
    unreadable: ClassVar[str] = "RUN_UNREADABLE"
    changes: ClassVar[Collection[str]] = ()
    """Fields of the manifest that may differ when it is resumed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.root.name

    @property
    def begun(self) -> bool:
        """True if the folder holds a session."""
        return (self.root / self.manifest_file).exists()

    @property
    def finished(self) -> bool:
        """True if the folder holds a session that is complete."""
        return self.begun and self.manifest().finished is not None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other processes, creating it if missing.

        Raises BadRequest: Another process holds the lock, or the folder holds something else.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / LOCK).open("a") as lock:
            try:
                # The kernel releases the lock however the process ends: a crash leaves a file, but no stale lock.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadRequest(
                    f"Another process is at the {self.what} in {self.root} now. Wait until it is done.",
                    reason="RUN_IN_USE",
                ) from None
            # Under the lock, so that if two processes start in the same empty folder, the second finds it in use.
            self.require_own()
            yield

    def require_own(self) -> None:
        """Raises BadRequest if the folder contains files of something else."""
        # Leftovers of an interrupted start are ours and may be overwritten.
        if self.begun or (self.root / STARTING).exists():
            return
        refuse_others(self.root, self.what, _OURS)

    def manifest(self) -> M:
        """Reads the manifest. Raises BadRequest if it is missing or of another format."""
        path = self.root / self.manifest_file
        kind: type[M] = self.manifest_type
        current = kind.model_fields["format"].default
        # Two errors: the remedy for a wrong folder is to name another, which does not help with a wrong manifest.
        try:
            found = kind.model_validate_json(path.read_bytes())
        # NotADirectoryError: the folder is a file.
        except (FileNotFoundError, NotADirectoryError):
            raise BadRequest(
                f"{self.root} holds no {self.what}: there is no {path.name}.", reason=self.missing
            ) from None
        except OSError as error:
            raise BadRequest(f"{path} can't be read: {error.strerror}.", reason=self.unreadable) from None
        except ValidationError as error:
            why = f"{error.error_count()} fields are wrong"
        else:
            if found.format == current:
                return found
            why = f"it is of format {found.format}"
        raise BadRequest(
            f"{path} can't be read as a manifest of format {current} ({self.what}): {why}. It is of something else, "
            "was written by another version, or was changed by hand.",
            reason=self.unreadable,
        )

    def write_manifest(self, manifest: M) -> None:
        """Writes the manifest atomically: a reader sees the old one or the new one."""
        replace_file(self.root / self.manifest_file, manifest.model_dump_json(indent=2) + "\n")

    def start(self, now: M) -> M:
        """Writes the manifest of a new session, or compares it with that of the session to be resumed.

        Returns the manifest on disk, with the time and the command of the first start. Raises BadRequest: The session
        was started with other inputs (reason RUN_DIFFERS; the message names them).
        """
        if not self.begun:
            self.write_manifest(now)
            return now
        before = self.manifest()
        # Running a finished session once more is not an interruption.
        interruptions = before.interruptions + (before.finished is None)
        resumed = self.merged(before, now).model_copy(update={"interruptions": interruptions})
        self.write_manifest(resumed)
        return resumed

    def merged(self, before: M, now: M) -> M:
        """Returns the manifest to resume a session with. Raises BadRequest if it was started with other inputs."""
        self.refuse_different(before.differences(now, self.changes))
        return before

    def finish(self, manifest: M) -> M:
        """Records the time at which the session was finished; the first such time stays."""
        done = manifest.model_copy(update={"finished": manifest.finished or datetime.now(UTC)})
        self.write_manifest(done)
        return done

    def refuse_different(self, differ: Collection[str]) -> None:
        """Raises BadRequest with the names of the differences, if there are any."""
        if differ:
            raise BadRequest(
                f"The {self.what} was begun with something else than is there now: {'; '.join(differ)}. Half of it "
                "would be one thing and half another. Set it up as it was, or begin another in another folder.",
                reason=RUN_DIFFERS,
            )

    def read(self, name: str, kind: type[B], *, torn: bool = True) -> tuple[B, ...]:
        """Reads the lines of a file; none if it does not exist. Raises BadRequest if a line can't be read."""
        return self.lines(name, kind.model_validate_json, torn=torn)

    def lines(self, name: str, parse: Callable[[bytes], T], *, torn: bool = True) -> tuple[T, ...]:
        """Reads the lines of a file with a parser; otherwise like :meth:`read`."""
        path = self.root / name
        return stored_lines(path, parse, torn=torn, reason=self.unreadable) if path.exists() else ()

    def write(self, name: str, items: Iterable[BaseModel]) -> None:
        """Replaces the lines of a file atomically."""
        replace_lines(self.root / name, items)

    def append(self, name: str, items: Iterable[BaseModel]) -> None:
        """Adds lines to a file, before anything acts on them."""
        # Not synced to disk: lines lost in a power cut are made anew with replies from the call cache or the docket.
        with (self.root / name).open("a", encoding="ascii") as file:
            file.write("".join(map(json_line, items)))

    def drop_cut_line(self, name: str) -> None:
        """Drops a last line that a crash truncated: the next line would be appended to it."""
        path = self.root / name
        if path.exists():
            with path.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def spent(self) -> dict[str, Spent]:
        """Reads the usage of each model in all sessions; empty if none was stored."""
        path = self.root / USAGE
        stored = json.loads(path.read_bytes()) if path.exists() else {}
        return {name: Spent.model_validate(one) for name, one in stored.items()}

    def write_usage(self, usage: Mapping[str, Spent]) -> None:
        """Replaces the usage of each model atomically."""
        content = {name: one.model_dump(mode="json") for name, one in usage.items()}
        replace_file(self.root / USAGE, json.dumps(content, indent=2) + "\n")


def refuse_others(out: Path, what: str, ours: Collection[str] = _OURS) -> None:
    """Raises BadRequest if a folder, in which nothing was started yet, contains other files."""
    if out.exists() and any(path.name not in ours for path in out.iterdir()):
        raise BadRequest(
            f"{out} is not empty and holds no {what}. Name a folder that is not there yet.", reason="OUT_NOT_EMPTY"
        )
