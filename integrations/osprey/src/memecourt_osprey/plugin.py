"""Registers the functions with Osprey, by its entry point ``osprey_plugin``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osprey.engine.executor.execution_context import ExecutionContext, ExpectedUdfException
from osprey.engine.udf.arguments import ArgumentsBase
from osprey.engine.udf.base import UDFBase
from osprey.worker.adaptor.plugin_manager import hookimpl_osprey

from memecourt_osprey.client import NoVerdictError, harm_score, judge


class MemeArguments(ArgumentsBase):
    """Arguments that a rule gives."""

    image_url: str = ""
    text: str = ""
    namespace: str = ""
    content_id: str = ""


class _MemeFunction:
    """Asks for the verdict; Osprey waits for it beside other functions."""

    execute_async = True

    def _verdict(self, arguments: MemeArguments) -> dict[str, Any]:
        try:
            return judge(
                image_url=arguments.image_url,
                text=arguments.text,
                namespace=arguments.namespace,
                content_id=arguments.content_id,
            )
        except NoVerdictError as error:
            # Rules read a value that is missing as null, which equals no decision.
            raise ExpectedUdfException(f"MemeCourt gave no verdict: {error}") from None


class MemeDecision(_MemeFunction, UDFBase[MemeArguments, str]):
    """Decision of a MemeCourt on a meme: "allow", "block", or "review" where a person should look."""

    def execute(self, execution_context: ExecutionContext, arguments: MemeArguments) -> str:
        """Asks the court."""
        return str(self._verdict(arguments)["decision"])


class MemeHarmScore(_MemeFunction, UDFBase[MemeArguments, float]):
    """Probability from 0 to 1 that a meme is harmful; 1 where nobody can say that it is harmless."""

    def execute(self, execution_context: ExecutionContext, arguments: MemeArguments) -> float:
        """Asks the court."""
        return harm_score(self._verdict(arguments))


@hookimpl_osprey
def register_udfs() -> Sequence[type[UDFBase[Any, Any]]]:
    """Returns the functions that rules may call."""
    return [MemeDecision, MemeHarmScore]
