"""Trial settings: all parameters of the procedure, stored with their digest in each record."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from court.digests import digest
from court.values import Value


class TrialSettings(Value):
    """Settings of a trial."""

    input: Literal["memes", "texts", "texts of memes"] = "memes"
    """What is judged: memes; texts alone, with pictures refused; or the texts of memes, sent or read off the picture,
    which no model sees. Without memes, models that take no pictures serve every role."""
    exhibits: int = Field(default=3, ge=1, le=25)
    """Precedents that are shown (the paper's k)."""
    tally: int = Field(default=25, ge=1, le=100)
    """Precedents that are counted."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Weight of the text's similarity against the picture's; None for what the library was calibrated with."""
    review_risk: float = Field(default=0.1, gt=0, lt=1)
    """Share of memes whose label may be wrong without a person looking, in the summary procedure."""
    review_rate: float | None = Field(default=None, ge=0, le=1)
    """Share of memes to send to a person for their risk, in place of ``review_risk``; 0 sends none."""
    harm_cost: float = Field(default=1.0, ge=0.01, le=100)
    """How many false alarms a missed harmful meme is worth, in the summary procedure."""

    rounds_min: int = Field(default=2, ge=1, le=50)
    """Rounds before an examination may stop (R_min)."""
    rounds_max: int = Field(default=10, ge=1, le=50)
    """Rounds after which an examination stops (R_max)."""
    epsilon: float = Field(default=0.02, ge=0, le=10)
    """Change of a summary's entropy, in bits, below which an examination stops."""
    advocates: bool = True
    """Off: there are no advocates, and the Judge sees no arguments (ablation)."""
    captioner: bool = True
    """Off: the advocates argue from the description alone and ask nothing (ablation)."""
    precedents: bool = True
    """Off: the Judge is shown no precedents (ablation). The summary procedure has nothing else to go by."""
    dull_judge: bool = False
    """One call of the Judge with the meme alone (ablation)."""
    stance_at: Literal["start", "summary", "switch"] = "start"
    """When an advocate is given its side: from its first question on, only when it sums up (ablation), or after the
    first half of ``rounds_min``, until when it asks for the other side. Then a side that argues for the other makes no
    mistrial."""
    advocates_see: Literal["none", "own", "all"] = "none"
    """Precedents that an advocate is shown, as text and label: none, those with its own side's label, or all. Never a
    picture."""
    swap_sides: bool = False
    """The Judge is shown each side's justification under the other side's name (a control of the benchmark's)."""
    judge_order: Literal["accuser first", "defender first"] = "accuser first"
    """Order of the two justifications before the Judge."""
    exhibits_shown: bool = True
    """Off: the Judge is shown no precedents, only their tally if that is on (ablation)."""
    tally_shown: bool = True
    """Off: the Judge is not shown the vote of the wider set of precedents; a person is still called where it
    contradicts the Judge (the paper's Judge, and an ablation)."""
    similarity_shown: bool = True
    """Off: the Judge is not shown how similar each precedent is to the meme (the paper's Judge)."""
    exhibit_labels: Literal["binary", "original"] = "binary"
    """Labels of precedents before the Judge: harmful or not, or the data set's own words, such as "very harmful"."""
    language_shown: bool = False
    """On: advocates and Judge are told the language of the meme's text, where it is known. The Proposer, who never sees
    the text, is not."""
    query: Literal["text", "summaries", "text and summaries"] = "text"
    """What is embedded to find precedents: the meme's text (Algorithm 2), the summaries (section 3.4), or both."""
    prompts: str = Field(default="1", min_length=1, max_length=4096, coerce_numbers_to_str=True)
    """Prompts of the models: a packaged version, or a custom folder (``memecourt prompts``). A record has only the
    folder's name; ``versions.prompts`` identifies the content."""
    score: bool = True
    """Whether the Judge's probability is asked for, with two one-token calls."""
    mistrials: bool = True
    """Whether a failed check of a full trial is repaired once, and an essential one makes a mistrial, which a person
    must look at. Off: checks are recorded alone (the paper's court)."""
    probes: bool = False
    """Whether the Judge's model is asked for further single tokens, beside the other calls: for its odds before it
    hears the sides, and for the side that each argument supports. They can only make a verdict less certain."""
    audition: bool = True
    """Whether a full verdict decides alone only where the calibrated vote of the precedents agrees, since no model was
    auditioned on labelled memes. Off: every model may decide alone (the paper's court)."""
    judges: int = Field(default=1, ge=1, le=9)
    """Rulings that are drawn of each model that judges (``llm.judges`` names more than one). Of several, the label
    follows from the median of their strengths. More than one needs a temperature above 0."""
    vote_weight: float = Field(default=0.0, ge=0, le=1)
    """Weight of the precedents' vote in score and risk of a full trial that a cascade went on to, against the Judge's
    probability, both as log-odds. The label is the Judge's in any case."""
    least_label_mass: float = Field(default=0.05, ge=0, le=1)
    """Minimum probability that the Judge's model must give the two labels together for a score: if it is about to write
    something else, such as a thought, their ratio is noise."""
    overlap: bool = True
    """Whether a side asks its next question while its summary is still being written."""
    reply_chars: int = Field(default=1200, ge=40, le=1900)
    """Longest description, summary, justification and rationale that is asked for, in characters."""
    expert: Literal["off", "asked", "always"] = "off"
    """Expert witness for claims of fact (docs/expert.md): never called, called where a side's case rests on a claim and
    the policy has a clause with ``facts = true``, or called in every trial. It needs a source of evidence."""
    expert_queries: int = Field(default=4, ge=1, le=20)
    """Searches for evidence about one claim, at most."""
    expert_results: int = Field(default=2, ge=1, le=10)
    """Documents of one search that are read, at most."""
    expert_claims: int = Field(default=3, ge=1, le=10)
    """Claims of one meme that are checked, at most."""
    expert_s: float = Field(default=60.0, gt=0, le=3600)
    """Seconds from the beginning of the witness's work in which it has to be done."""
    expert_steps: Literal["merged", "apart"] = "merged"
    """Questions about a document: all in one call, or each in a call of its own, as published."""
    expert_waits: bool = False
    """Whether the Judge waits for the witness, up to ``expert_s``. Off: a claim that is not settled by then gets the
    label of the evidence so far, and trials take no longer."""
    call_s: float = Field(default=120.0, gt=0, le=3600)
    """Seconds that one call of a model may take, retries included."""
    find_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds that the search for precedents may take, and the same again for reading their pictures."""
    read_s: float = Field(default=120.0, gt=0, le=3600)
    """Seconds that reading the text off the picture may take, waiting for a free reader included."""
    vote_disagreement: float = Field(default=0.3, ge=0, le=0.5)
    """A person must look where the Judge contradicts a vote that is farther than this from its threshold."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.rounds_min > self.rounds_max:
            raise ValueError("rounds_min is more than rounds_max")
        if self.expert == "asked" and not self.advocates:
            raise ValueError('expert = "asked" needs advocates: it is they who ask; set it to "always"')
        if self.advocates_see != "none" and self.query != "text":
            raise ValueError("advocates_see needs query = text: precedents by summaries are found after the advocates")
        return self

    @property
    def pictures_shown(self) -> bool:
        """True if models are shown pictures."""
        return self.input == "memes"

    @property
    def digest(self) -> str:
        """SHA-256 of all values."""
        return digest(self.model_dump(mode="json"))
