"""Fields, words and lengths of a statement of reasons in the EU's DSA Transparency Database.

Source: the database's API documentation, https://transparency.dsa.ec.europa.eu/page/api-documentation, as it stands
since the categories and keywords were changed on 1 July 2025. What the words mean is explained at
https://transparency.dsa.ec.europa.eu/page/additional-explanation-for-statement-attributes. The duty is that of Articles
17 and 24(5) of Regulation (EU) 2022/2065.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

SOURCE = "https://transparency.dsa.ec.europa.eu/page/api-documentation"
AS_OF = "2025-07-01"

WORDS: Mapping[str, frozenset[str]] = {
    "decision_visibility": frozenset(
        f"DECISION_VISIBILITY_{word}"
        for word in (
            *("CONTENT_REMOVED", "CONTENT_DISABLED", "CONTENT_DEMOTED", "CONTENT_AGE_RESTRICTED"),
            *("CONTENT_INTERACTION_RESTRICTED", "CONTENT_LABELLED", "OTHER"),
        )
    ),
    "decision_monetary": frozenset(f"DECISION_MONETARY_{word}" for word in ("SUSPENSION", "TERMINATION", "OTHER")),
    "decision_provision": frozenset(
        f"DECISION_PROVISION_{how}_{what}" for how in ("PARTIAL", "TOTAL") for what in ("SUSPENSION", "TERMINATION")
    ),
    "decision_account": frozenset({"DECISION_ACCOUNT_SUSPENDED", "DECISION_ACCOUNT_TERMINATED"}),
    "account_type": frozenset({"ACCOUNT_TYPE_BUSINESS", "ACCOUNT_TYPE_PRIVATE"}),
    "decision_ground": frozenset({"DECISION_GROUND_ILLEGAL_CONTENT", "DECISION_GROUND_INCOMPATIBLE_CONTENT"}),
    "incompatible_content_illegal": frozenset({"Yes", "No"}),
    "content_type": frozenset(
        f"CONTENT_TYPE_{word}"
        for word in ("APP", "AUDIO", "IMAGE", "PRODUCT", "SYNTHETIC_MEDIA", "TEXT", "VIDEO", "OTHER")
    ),
    "category": frozenset(
        f"STATEMENT_CATEGORY_{word}"
        for word in (
            *("ANIMAL_WELFARE", "CONSUMER_INFORMATION", "CYBER_VIOLENCE", "CYBER_VIOLENCE_AGAINST_WOMEN"),
            *("DATA_PROTECTION_AND_PRIVACY_VIOLATIONS", "ILLEGAL_OR_HARMFUL_SPEECH"),
            *("INTELLECTUAL_PROPERTY_INFRINGEMENTS", "NEGATIVE_EFFECTS_ON_CIVIC_DISCOURSE_OR_ELECTIONS"),
            *("NOT_SPECIFIED_NOTICE", "OTHER_VIOLATION_TC", "PROTECTION_OF_MINORS", "RISK_FOR_PUBLIC_SECURITY"),
            *("SCAMS_AND_FRAUD", "SELF_HARM", "UNSAFE_AND_PROHIBITED_PRODUCTS", "VIOLENCE"),
        )
    ),
    "category_specification": frozenset(
        f"KEYWORD_{word}"
        for word in (
            *("ADULT_SEXUAL_MATERIAL", "AGE_SPECIFIC_RESTRICTIONS", "AGE_SPECIFIC_RESTRICTIONS_MINORS", "ANIMAL_HARM"),
            *("BIOMETRIC_DATA_BREACH", "BULLYING_AGAINST_GIRLS", "CHILD_SEXUAL_ABUSE_MATERIAL"),
            *("CHILD_SEXUAL_ABUSE_MATERIAL_DEEPFAKE", "CONTENT_PROMOTING_EATING_DISORDERS", "COORDINATED_HARM"),
            *("COPYRIGHT_INFRINGEMENT", "CYBER_BULLYING_INTIMIDATION", "CYBER_HARASSMENT"),
            *("CYBER_HARASSMENT_AGAINST_WOMEN", "CYBER_INCITEMENT", "CYBER_STALKING", "CYBER_STALKING_AGAINST_WOMEN"),
            *("DATA_FALSIFICATION", "DESIGN_INFRINGEMENT", "FEMALE_GENDERED_DISINFORMATION"),
            *("GEOGRAPHICAL_REQUIREMENTS", "GEOGRAPHIC_INDICATIONS_INFRINGEMENT", "GOODS_SERVICES_NOT_PERMITTED"),
            *("GROOMING_SEXUAL_ENTICEMENT_MINORS", "HIDDEN_ADVERTISEMENT", "HUMAN_EXPLOITATION", "HUMAN_TRAFFICKING"),
            *("ILLEGAL_ORGANIZATIONS", "IMPERSONATION_ACCOUNT_HIJACKING", "INAUTHENTIC_ACCOUNTS"),
            *("INAUTHENTIC_LISTINGS", "INAUTHENTIC_USER_REVIEWS", "INCITEMENT_AGAINST_WOMEN"),
            *("INSUFFICIENT_INFORMATION_ON_TRADERS", "LANGUAGE_REQUIREMENTS", "MISLEADING_INFO_CONSUMER_RIGHTS"),
            *("MISLEADING_INFO_GOODS_SERVICES", "MISSING_PROCESSING_GROUND", "NONCOMPLIANCE_PRICING"),
            *("NON_CONSENSUAL_IMAGE_SHARING", "NON_CONSENSUAL_IMAGE_SHARING_AGAINST_WOMEN"),
            *("NON_CONSENSUAL_MATERIAL_DEEPFAKE", "NON_CONSENSUAL_MATERIAL_DEEPFAKE_AGAINST_WOMEN", "NUDITY", "OTHER"),
            *("PATENT_INFRINGEMENT", "PHISHING", "PROHIBITED_PRODUCTS", "PYRAMID_SCHEMES", "RIGHT_TO_BE_FORGOTTEN"),
            *("RISK_ENVIRONMENTAL_DAMAGE", "RISK_PUBLIC_HEALTH", "SELF_MUTILATION", "STALKING", "SUICIDE"),
            *("TERRORIST_CONTENT", "TRADEMARK_INFRINGEMENT", "TRADE_SECRET_INFRINGEMENT", "TRAFFICKING_WOMEN_GIRLS"),
            *("UNLAWFUL_SALE_ANIMALS", "UNSAFE_CHALLENGES", "UNSAFE_PRODUCTS", "VIOLATION_EU_LAW"),
            *("VIOLATION_NATIONAL_LAW", "DEFAMATION", "DISCRIMINATION", "HATE_SPEECH", "INCITEMENT_VIOLENCE_HATRED"),
            "MISINFORMATION_DISINFORMATION",
        )
    ),
    # The countries of the European Economic Area, by ISO 3166-1.
    "territorial_scope": frozenset(
        (
            *("AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IS", "IT"),
            *("LI", "LT", "LU", "LV", "MT", "NL", "NO", "PL", "PT", "RO", "SE", "SI", "SK"),
        )
    ),
    "source_type": frozenset(
        {"SOURCE_ARTICLE_16", "SOURCE_TRUSTED_FLAGGER", "SOURCE_TYPE_OTHER_NOTIFICATION", "SOURCE_VOLUNTARY"}
    ),
    "automated_detection": frozenset({"Yes", "No"}),
    "automated_decision": frozenset(
        {"AUTOMATED_DECISION_FULLY", "AUTOMATED_DECISION_PARTIALLY", "AUTOMATED_DECISION_NOT_AUTOMATED"}
    ),
}
"""Fields that take certain words, and those."""
WORDS = {**WORDS, "category_addition": WORDS["category"]}

LISTS = frozenset(
    {"decision_visibility", "content_type", "category_addition", "category_specification", "territorial_scope"}
)
"""Fields that take several, in a list."""

LENGTHS: Mapping[str, int] = {
    "decision_facts": 5000,
    "illegal_content_explanation": 2000,
    "incompatible_content_explanation": 2000,
    **dict.fromkeys(
        (
            *("decision_visibility_other", "decision_monetary_other", "illegal_content_legal_ground"),
            *("incompatible_content_ground", "content_type_other", "category_specification_other", "source_identity"),
            *("puid", "decision_ground_reference_url"),
        ),
        500,
    ),
}
"""Most characters of the fields that take text."""

DATES: Mapping[str, date] = {
    "content_date": date(2000, 1, 1),
    "application_date": date(2020, 1, 1),
    "end_date_visibility_restriction": date(2020, 1, 1),
    "end_date_monetary_restriction": date(2020, 1, 1),
    "end_date_service_restriction": date(2020, 1, 1),
    "end_date_account_restriction": date(2020, 1, 1),
}
"""Fields that take a day, and the earliest that is taken."""

REQUIRED = (
    *("decision_ground", "content_type", "category", "territorial_scope", "content_date", "application_date"),
    *("decision_facts", "source_type", "automated_detection", "automated_decision", "puid"),
)
"""Fields without which no statement is taken."""
RESTRICTIONS = ("decision_visibility", "decision_monetary", "decision_provision", "decision_account")
"""Of these, at least one."""

_GROUNDS = {
    "DECISION_GROUND_ILLEGAL_CONTENT": ("illegal_content_legal_ground", "illegal_content_explanation"),
    "DECISION_GROUND_INCOMPATIBLE_CONTENT": ("incompatible_content_ground", "incompatible_content_explanation"),
}
# \Z and not $, which would let a line break at the end pass.
_PUID = re.compile(r"[A-Za-z0-9_-]{1,500}\Z")
_LANGUAGE = re.compile(r"[A-Z]{2}\Z")


def faults(statement: Mapping[str, Any]) -> Sequence[str]:
    """Lists the reasons for which the database would refuse a statement, one sentence each; empty if there are none."""
    return [*_wrong(statement), *(f"{name}: missing" for name in missing(statement))]


def missing(statement: Mapping[str, Any]) -> Sequence[str]:
    """Fields that are required and not there. Of those restrictions of which one is, the first stands for all."""
    absent = [name for name in REQUIRED if not statement.get(name)]
    if not any(statement.get(name) for name in RESTRICTIONS):
        absent.insert(0, RESTRICTIONS[0])
    absent += [name for name in _GROUNDS.get(str(statement.get("decision_ground")), ()) if not statement.get(name)]
    for name in ("decision_visibility", "decision_monetary", "content_type"):
        value = statement.get(name)
        chosen = value if isinstance(value, list) else [value]
        # The database takes OTHER only together with words that say what is meant.
        if any(str(one).endswith("_OTHER") for one in chosen) and not statement.get(f"{name}_other"):
            absent.append(f"{name}_other")
    return absent


def _wrong(statement: Mapping[str, Any]) -> Iterator[str]:
    known = {*WORDS, *LENGTHS, *DATES, "content_language", "content_id"}
    for name, value in statement.items():
        if name not in known:
            yield f"{name}: there is no such field"
        # A field without a value is as good as absent; whether it may be is for missing().
        elif value is None:
            continue
        elif name in WORDS:
            yield from _words(name, value)
        elif name in DATES:
            yield from _day(name, value)
        elif name in LENGTHS and (not isinstance(value, str) or len(value) > LENGTHS[name]):
            yield f"{name}: at most {LENGTHS[name]} characters"
    if statement.get("puid") is not None and not _PUID.match(str(statement["puid"])):
        yield "puid: letters a-z and A-Z, digits, - and _ only"
    if statement.get("content_language") is not None and not _LANGUAGE.match(str(statement["content_language"])):
        yield "content_language: two capital letters of ISO 639-1"


def _words(name: str, value: Any) -> Iterator[str]:
    if name in LISTS and not (isinstance(value, list) and value):
        yield f"{name}: a list of at least one"
        return
    chosen = value if name in LISTS else [value]
    if wrong := [str(one) for one in chosen if one not in WORDS[name]]:
        yield f"{name}: {', '.join(wrong)} is none of its words"


def _day(name: str, value: Any) -> Iterator[str]:
    try:
        # fromisoformat() also reads 20250701 and week dates, which the database refuses.
        day = date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(value)) else None
    except ValueError:
        day = None
    if day is None or day < DATES[name]:
        yield f"{name}: a day as YYYY-MM-DD, not before {DATES[name]}"
