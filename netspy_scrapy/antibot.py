"""Challenge pages: answers with a good status that are not the page, but a test for robots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy.http import Response

#: Bytes above which a page is no challenge: those are small, and a real page may speak of one.
MAX_SIZE = 100_000

#: Headers that say so themselves: name, what its value contains, whose it is.
_HEADERS = (
    (b"Cf-Mitigated", b"challenge", "Cloudflare"),
    (b"X-Amzn-Waf-Action", b"challenge", "AWS WAF"),
    (b"X-Amzn-Waf-Action", b"captcha", "AWS WAF"),
)

#: Texts of which all are on the page, and whose it is. Each names something that only the
#: challenge loads; a word such as "captcha" alone is on many login forms.
_BODIES = (
    ((b"/cdn-cgi/challenge-platform/", b"Just a moment..."), "Cloudflare"),
    ((b"cf-browser-verification", b"/cdn-cgi/"), "Cloudflare"),
    ((b"captcha-delivery.com", b"var dd="), "DataDome"),
    ((b"_Incapsula_Resource", b"incident_id"), "Imperva"),
    ((b"px-captcha", b"_pxAppId"), "HUMAN"),
    ((b"sucuri_cloudproxy_js",), "Sucuri"),
    ((b"/_____tmd_____/punish",), "Alibaba"),
    ((b"acw_sc__v2", b"arg1="), "Alibaba"),
    ((b"awsWafCookieDomainList", b"challenge.js"), "AWS WAF"),
)


def challenge_of(response: Response) -> str | None:
    """Return whose challenge page *response* is, or None: it is none, as far as is known.

    Only 2xx answers are looked at: others are no pages anyhow. The rules are few and certain; a
    page that speaks of challenges is not one.
    """
    if not 200 <= response.status < 300:  # noqa: PLR2004
        return None
    headers = response.headers
    for name, text, owner in _HEADERS:
        # Past their own get(), which brings the name into this form, for each page anew.
        if any(text in value.lower() for value in dict.get(headers, name, ())):
            return owner
    body = response.body
    if len(body) > MAX_SIZE or b"<" not in body[:2000]:
        return None
    for texts, owner in _BODIES:
        if texts[0] in body and all(text in body for text in texts):
            return owner
    return None
