"""The oracle of the synthetic benchmark as a chat model."""

from court.backends.chat.scripted import ScriptedModel
from court.meme import Frame
from eval.synthetic.oracle import Ability, Oracle


def plain(parts):
    """Parts of a request as the oracle takes them: texts, and pictures as bytes."""
    return [part.png if isinstance(part, Frame) else part for part in parts]


def oracle(ability=Ability()):  # noqa: B008
    """A chat model that replies as the oracle; it also counts its calls."""
    speaker = Oracle(ability)

    def reply_to(request):
        reply = speaker.reply(request.system, plain(request.parts), (request.reply_schema or {}).get("properties", {}))
        if reply is None:
            raise ValueError("the oracle knows full trials alone")
        return reply

    def odds(request, options):
        masses = speaker.masses(plain(request.parts))
        return [masses[option] for option in options]

    return ScriptedModel(reply_to, odds=odds, name="oracle")
