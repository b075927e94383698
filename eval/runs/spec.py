"""Specification of what is judged and how: the options of a command, and the part of a manifest that is compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from court.events import Procedure
from eval.datasets.items import Protocol
from eval.session.spec import Option


class JudgingSpec(BaseModel):
    """Specification of a run, or of all arms of a study. It is compared before anything is loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Annotated[str, Option("Data set or card; `memecourt-eval datasets` lists them.", metavar="ID|FILE.toml")]
    split: Annotated[
        str,
        Option(
            "Split; template is the first test split without any precedent that shares a template with a judged meme. "
            "[default: the first test split]"
        ),
    ]
    procedure: Annotated[Procedure, Option("Procedure of the trials. [default: summary]")]
    # Of the option, a text that names several, separated by commas.
    protocols: Annotated[
        tuple[Protocol, ...], Option("Protocols to score under, separated by commas. [default: all]", "--protocol")
    ]
    limit: Annotated[int | None, Field(ge=1), Option("Use a sample of this size, stratified by label.")] = None
    seed: Annotated[
        int, Field(ge=0), Option("Seed of samples, of random draws, of replies and of the bootstrap. [default: 0]")
    ] = 0
    drop_precedents: Annotated[
        bool,
        Option(
            "With --protocol extreme: use memes that it drops neither as precedents nor for judging, as in the court's "
            "paper."
        ),
    ] = False
    templates_apart: bool = False
    """True for no precedent whose picture is nearly that of a judged meme, whatever the text (``--split template``)."""
    text_only: Annotated[bool, Option("Judge texts only, without pictures.")] = False
    language: Annotated[
        str,
        Option(
            "Language of the memes' texts (BCP 47); detect, to detect it in each text; or card, to take it from the "
            "data set's card. `--set language_shown=true` shows it to advocates and Judge.",
            metavar="TAG|detect|card",
        ),
    ] = ""
    server: Annotated[
        str,
        Option(
            "Name of the model servers in the call store, so that a server keeps its stored calls when its address "
            "changes.",
            "--server-name",
            metavar="NAME",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Circumstances of a run, which may be others when it is resumed."""

    data: Annotated[Path, Option("Folder of the unpacked data set, or a table: CSV, JSON lines, Parquet.")]
    out: Annotated[Path, Option("Folder to write to.")]
    name: Annotated[str, Option("Name in reports. [default: the folder's name]")] = ""
    concurrency: Annotated[
        int, Field(ge=1, le=1000), Option("Maximum concurrent memes. [default: 4 without a model, else 16]")
    ] = 8
    calls: Annotated[Path | None, Option("Store of model calls, shared by runs.")] = None
    library: Annotated[Path | None, Option("Library of precedents that another run prepared (its library/).")] = None
    ray: Annotated[str, Option("Address of a Ray cluster's head, to judge on its workers.", metavar="HOST:PORT")] = ""
    ray_workers: Annotated[int, Field(ge=1), Option("Number of workers. [default: one per node]")] = 0
    allow_missing: Annotated[bool, Option("Count memes without a picture as failed and go on.")] = False
