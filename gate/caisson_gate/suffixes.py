"""Public suffixes: names below which strangers can register theirs, so a wildcard below one means anybody.

The public suffix list itself is megabytes and changes weekly. What a policy must refuse is smaller: top-level names,
the generic second levels of country names, and the platforms that hand out names by the minute.
"""

from __future__ import annotations

_SECOND_LEVELS = frozenset(
    """
    ac asn biz co com edu go gob gouv gov gv id ind info lg ltd me mil mod ne net nhs nic nom or org plc police sch web
    """.split()  # noqa: SIM905
)
_PLATFORMS = frozenset(
    tuple(name.split("."))
    for name in """
    amazonaws.com awsapprunner.com azureedge.net azurestaticapps.net azurewebsites.net appspot.com blob.core.windows.net
    blogspot.com cloudapp.net cloudfront.net codeberg.page deno.dev duckdns.org firebaseapp.com fly.dev framer.app
    github.io githubusercontent.com gitlab.io glitch.me herokuapp.com hf.space loca.lt lovable.app netlify.app
    ngrok.app ngrok.io ngrok-free.app nip.io on.aws onrender.com pages.dev r2.dev railway.app readthedocs.io repl.co
    replit.app replit.dev run.app s3.amazonaws.com serveo.net sslip.io storage.googleapis.com streamlit.app surge.sh
    trycloudflare.com vercel.app web.app workers.dev wordpress.com xip.io
    """.split()  # noqa: SIM905  (one name after the other, as in any list of names)
)


def is_public_suffix(labels: tuple[str, ...]) -> bool:
    """Whether anybody can have a name right below this one, as far as is known here."""
    if len(labels) == 1:
        return True
    if len(labels) == 2 and len(labels[1]) == 2 and labels[0] in _SECOND_LEVELS:
        return True
    return labels in _PLATFORMS
