"""Challenge pages are told from pages."""

from __future__ import annotations

import pytest
from scrapy.http import HtmlResponse, Response

from netspy_scrapy.antibot import MAX_SIZE, challenge_of

PAGE = b"<html><head><title>%s</title></head><body>%s</body></html>"


def html(title: bytes = b"", body: bytes = b"", status: int = 200, **headers: str) -> HtmlResponse:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return HtmlResponse(
        "http://a.example/", status=status, headers=names, body=PAGE % (title, body)
    )


@pytest.mark.parametrize(
    ("response", "owner"),
    [
        (html(cf_mitigated="challenge"), "Cloudflare"),
        (html(b"Just a moment...", b"<script src=/cdn-cgi/challenge-platform/h/b/orchestrate>"),
         "Cloudflare"),
        (html(x_amzn_waf_action="challenge"), "AWS WAF"),
        (html(b"", b"<script>var dd={}</script><script src=https://ct.captcha-delivery.com/c.js>"),
         "DataDome"),
        (html(b"", b"<iframe src=/_Incapsula_Resource?incident_id=7>"), "Imperva"),
        (html(b"", b"<div id=px-captcha></div><script>window._pxAppId='x'"), "HUMAN"),
        (html(b"", b"<script>var arg1='ABC';</script><script>acw_sc__v2"), "Alibaba"),
    ],
)  # fmt: skip
def test_challenges(response: HtmlResponse, owner: str) -> None:
    """What only a challenge has tells whose it is."""
    assert challenge_of(response) == owner


@pytest.mark.parametrize(
    "response",
    [
        html(b"Shop", b"<p>page</p>"),
        html(b"Log in", b"<form>captcha <div class=g-recaptcha></div></form>"),
        html(b"Just a moment...", b"<p>A song</p>"),
        html(b"News", b"<script src=/cdn-cgi/challenge-platform/scripts/jsd/main.js>"),
        html(cf_mitigated="challenge", status=403),
        html(b"", b"x" * MAX_SIZE + b"/_____tmd_____/punish"),
        Response("http://a.example/", body=b'{"text": "/_____tmd_____/punish"}'),
        Response("http://a.example/", body=b""),
    ],
)
def test_pages_are_left_alone(response: Response) -> None:
    """A page that speaks of challenges, is large, or no HTML, is a page."""
    assert challenge_of(response) is None
