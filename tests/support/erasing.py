"""Helpers of tests of erasing."""

import asyncio
import hashlib

from court import events as happened
from court.verdict import Label
from serving.docket.store.requests import RequestName
from tests.support.dockets import NOON, append_all, events_of, review_trial
from tests.support.fakes import a_picture


class Marked:
    """A trial of a meme whose every field is unique, so that traces of it can be found anywhere."""

    def __init__(self, number, chance):
        self.trial_id = f"t{number}"
        self.precedent = f"from t{number}"
        kinds = ("text", "post", "request", "saying", "look", "key", "reply", "objection")
        words = [f"{word}{chance.getrandbits(48):012x}" for word in kinds]
        self.text, self.post, self.request, self.saying, self.look, self.key, self.reply, self.objection = words
        self.pixels = hashlib.sha256(self.text.encode()).hexdigest()
        self.bytes = hashlib.sha256(self.pixels.encode()).hexdigest()
        self.png = f"pixels of {self.text}".encode()
        self.padding = "".join(chance.choices("abcdefgh ", k=chance.choice([0, 300, 5000, 30_000])))

    def traces(self):
        """Returns every byte sequence of the meme that a file might still contain."""
        strings = [self.text, self.post, self.request, self.saying, self.reply, self.objection]
        occurrences = [*strings, self.look, self.key, self.pixels, self.bytes]
        return [*(one.encode() for one in occurrences), bytes.fromhex(self.pixels), bytes.fromhex(self.bytes)]

    def events(self):
        whole = events_of(self.trial_id)
        opened = whole[0]
        meme = opened.meme.model_copy(
            update={"pixels_sha256": self.pixels, "bytes_sha256": self.bytes, "content_id": self.post}
        )
        whole[0] = opened.model_copy(update={"meme": meme, "request_id": self.request})
        for place, event in enumerate(whole):
            if isinstance(event, happened.TextRead):
                whole[place] = event.model_copy(update={"text": f"{self.text}{self.padding}{self.text}"})
            if isinstance(event, happened.VerdictGiven):
                verdict = event.verdict.model_copy(update={"rationale": f"{self.saying}{self.padding}"})
                whole[place] = event.model_copy(update={"verdict": verdict, "call": self.call()})
        # What would have flipped it, with a reply of its own.
        gone = happened.TriedWithout(
            without=(happened.Piece(kind=happened.PieceKind.TEXT),), label=Label.NOT_HARMFUL, call=self.call()
        )
        flips = happened.Flips(basis=happened.FlipBasis.RULING, label=Label.HARMFUL, tried=(gone,))
        last = whole[-1]
        return [*whole, happened.FlipsSought(trial_id=self.trial_id, seq=last.seq + 1, at=last.at, flips=flips)]

    def call(self):
        """Returns a call whose reply is recorded as it came."""
        # Twice, since a database may split a string over two of its pages.
        reply = happened.RawReply(text=f"{self.reply}{self.padding}{self.reply}")
        figures = {"tokens_in": 1, "tokens_out": 1, "latency_s": 0.1}
        return happened.ModelCall(
            role=happened.Role.JUDGE,
            model="m",
            prompt_id="judge/1/judge",
            prompt_digest="d",
            replies=(reply,),
            **figures,
        )

    def picture(self):
        picture = a_picture(self.pixels)
        frame = picture.frames[0]
        return type(picture)(
            picture.format, self.bytes, self.pixels, 1, 1, 1, (type(frame)(self.png, frame.width, frame.height, 0),)
        )

    async def keep(self, docket):
        await docket.writer.keep_picture(self.picture())
        await docket.leases.claim(RequestName("n", self.request), payload=self.bytes, trial_id=self.trial_id, owner="A")
        await append_all(docket, self.events())
        await asyncio.gather(
            docket.verdict_keys.put(self.key, self.trial_id),
            docket.fingerprints.put_fingerprint(self.trial_id, self.look.encode()),
        )
        await review_trial(docket, self.trial_id, happened.ReviewOutcome.UPHELD, Label.HARMFUL, reviewer=self.saying)
        # By the link of a notice; the review queue keeps its words.
        await docket.reviews.open_appeal(
            self.trial_id, by="a link", statement=self.objection, reference="notice 1", at=NOON, by_link=True
        )

    async def quoted(self, docket, by):
        """Appends a later trial that is shown this meme as a precedent."""
        whole = events_of(by)
        for place, event in enumerate(whole):
            if isinstance(event, happened.PrecedentsCited):
                shown, *more = event.findings.exhibits
                shown = shown.model_copy(update={"id": self.precedent, "text": self.text})
                findings = event.findings.model_copy(update={"exhibits": (shown, *more)})
                whole[place] = event.model_copy(update={"findings": findings})
        await append_all(docket, whole)


def contents_of(folder):
    """Returns all files below a folder, each as its name and its bytes."""
    return {
        path: str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def occurrences(folder, traces):
    files = contents_of(folder)
    return {trace: [path.name for path, data in files.items() if trace in data] for trace in traces}
