"""Disguised text: each disguise is named, and none is found in ordinary scripts."""

import unicodedata

import pytest

from court.injection.disguise import disguises_in
from court.verdict import ReviewReason
from tests.support.fakes import N, findings
from tests.support.summary import judged, text_read

LOOKALIKES, INVISIBLE, SPACED_OUT = (
    "letters of another alphabet that look like Latin ones",
    "characters that are not seen",
    "letters set apart from each other",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("реорlе frоm Bluеlаnd", [LOOKALIKES]),
        ("pe\u3164ople", [INVISIBLE]),
        ("peo\u200bple from Blue\u00adland", [INVISIBLE]),
        ("p e o p l e from Blueland", [SPACED_OUT]),
        ("p.e.o.p.l.e and рeople", [LOOKALIKES, SPACED_OUT]),
        ("people from Blueland", []),
        ("люди из Синей страны и the USA", []),
        ("a b c of tea", []),
        ("👩\u200d👩\u200d👧 family", []),
        ("کتاب\u200cها", []),
        ("", []),
    ],
)
def test_disguises_are_named_and_ordinary_scripts_have_none(text, expected):
    assert list(disguises_in(text)) == expected


SENTENCES = {
    "Arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق",
    "Armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար",
    "Bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে",
    "Burmese": "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် မွေးဖွားလာသူများ ဖြစ်သည်",
    "Cherokee": "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ᎠᎴ ᎤᏂᏠᏱ ᎤᎾᏕᎿ",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。",
    "Cyrillic": "Все люди рождаются свободными и равными",
    "Devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है",
    "Ethiopic": "የሰው፡ልጅ፡ሁሉ፡ሲወለድ፡ነጻና፡በክብርና፡በመብትም፡እኩልነት፡ያለው፡ነው",
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι",
    "Gujarati": "પ્રતિષ્ઠા અને અધિકારોની દૃષ્ટિએ સર્વ માનવો જન્મથી સ્વતંત્ર હોય છે",
    "Gurmukhi": "ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ ਦੇ ਪੱਖੋਂ ਜਨਮ ਤੋਂ ਹੀ ਆਜ਼ਾਦ ਹੈ",
    "Hangul": "모든 인간은 태어날 때부터 자유로우며 존엄하고 평등하다",
    "Hebrew": "כָּל בְּנֵי הָאָדָם נוֹלְדוּ בְּנֵי חוֹרִין וְשָׁוִים",
    "Japanese": "すべての人間は、生まれながらにして自由であり平等である。",
    "Javanese": "ꦱꦧꦼꦤ꧀ꦲꦸꦮꦺꦴꦁꦏꦭꦲꦶꦫꦏꦺꦏꦤ꧀ꦛꦶꦩꦂꦢꦶꦏ",
    "Kannada": "ಎಲ್ಲಾ ಮಾನವರೂ ಸ್ವತಂತ್ರರಾಗಿಯೇ ಜನಿಸಿದ್ದಾರೆ",
    "Khmer": "មនុស្ស​ទាំងអស់​កើតមក​មាន​សេរីភាព និង សមភាព",
    "Lao": "ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ ສິດທິ ເສລີພາບ",
    "Malayalam": "മനുഷ്യരെല്ലാവരും തുല്യാവകാശങ്ങളോടും സ്വാതന്ത്ര്യത്തോടുംകൂടി ജനിച്ചവരാണ്",
    "Mongolian": "ᠬᠦᠮᠦᠨ ᠪᠦᠷ ᠲᠥᠷᠥᠵᠦ ᠮᠡᠨᠳᠡᠯᠡᠬᠦ ᠡᠷᠬᠡ ᠴᠢᠯᠥᠭᠡ ᠲᠡᠢ",
    "N'Ko": "ߡߐ߱ ߓߍ߯ ߦߋ߫ ߛߏߡߊ߫ ߤߐߙߐ߫ ߢߍ߫",
    "Odia": "ସମସ୍ତ ମନୁଷ୍ୟ ଜନ୍ମକାଳରୁ ସ୍ୱାଧୀନ ଏବଂ ମର୍ଯ୍ୟାଦା ଓ ଅଧିକାରରେ ସମାନ",
    "Sinhala": "සියලු මනුෂ්‍යයෝ නිදහස්ව උපත ලබා ඇත",
    "Syriac": "ܟܠ ܒܪܢܫܐ ܒܪܝܠܗ ܚܐܪܐ ܘܒܪܒܪ ܓܘ ܐܝܩܪܐ ܘܙܕܩܐ",
    "Tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்",
    "Telugu": "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులు",
    "Thaana": "ހުރިހާ އިންސާނުން ވެސް އުފަންވަނީ މިނިވަންކަމުގައެވެ",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์",
    "Tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་ཡོད",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng",
}


@pytest.mark.parametrize("script", SENTENCES)
def test_a_sentence_of_any_script_is_no_disguise(script):
    """Composed as usual, and with marks apart from their letters."""
    sentence = SENTENCES[script]
    assert not disguises_in(sentence)
    assert not disguises_in(unicodedata.normalize("NFD", sentence))


@pytest.mark.parametrize("text", ["k\u0336 i\u0336 l\u0336 l\u0336 a\u0336", "d\u0307.i\u0307.r\u0307.t\u0307.y\u0307"])
def test_letters_set_apart_are_found_under_decoration(text):
    assert disguises_in(text) == (SPACED_OUT,)


def test_review_of_an_unreadable_text_mentions_its_disguise():
    found = findings([N] * 5).model_copy(update={"text_not_understood": True})
    (reason,) = (
        one
        for one in judged(found, text=text_read().model_copy(update={"text": "реорlе frоm Bluеlаnd"})).review
        if one.reason is ReviewReason.TEXT_NOT_UNDERSTOOD
    )
    assert reason.detail.endswith(f"The text looks disguised: {LOOKALIKES}.")
