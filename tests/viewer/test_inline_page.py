"""The page becomes one file: modules in order, nothing that could break out, and refusals of what it can't hold."""

from __future__ import annotations

import base64
import gzip
import re

import orjson
import pytest

from palimpsest.viewer.export.inline_page import bundled, page_files, single_page

HOSTILE = "</script><script>alert(1)</script><!-- \"' \u2028 & {{x}}"


def answers_in(page: bytes) -> dict[str, object]:
    packed = re.search(rb'id="answers">([^<]*)</script>', page)
    assert packed is not None
    found: dict[str, object] = orjson.loads(gzip.decompress(base64.b64decode(packed[1])))
    return found


def test_the_page_holds_the_answers_and_nothing_that_is_asked_of_anywhere() -> None:
    page = single_page(page_files(), {"/api/runs": {"runs": [HOSTILE]}}, HOSTILE).data
    text = page.decode("utf-8")
    assert answers_in(page) == {"/api/runs": {"runs": [HOSTILE]}}
    assert text.count("<script") == text.count("</script>") == 2
    assert not re.search(r'(?:src|href)="(?!data:,|#)', text)
    assert "alert(1)</script>" not in text
    assert re.search(r"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';", text)
    assert page == single_page(page_files(), {"/api/runs": {"runs": [HOSTILE]}}, HOSTILE).data


def test_the_policy_names_the_hashes_of_the_script_and_the_style() -> None:
    import hashlib

    text = single_page(page_files(), {}, "x").data.decode("utf-8")
    for name in ("script", "style"):
        inner = re.search(rf"<{name}>(.*)</{name}>", text, re.DOTALL)
        assert inner is not None
        digest = base64.b64encode(hashlib.sha256(inner[1].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in text


def test_a_page_without_answers_may_ask_its_server_and_says_whether_it_follows() -> None:
    page = single_page(page_files())
    assert "connect-src 'self'" in page.policy
    assert page.policy in page.data.decode()
    assert b'id="answers"' not in page.data
    assert [b"data-follow" in single_page(page_files(), follow=follow).data for follow in (False, True)] == [
        False,
        True,
    ]
    assert "connect-src" not in single_page(page_files(), {}).policy


def test_every_module_of_the_page_can_be_put_into_one_script() -> None:
    modules = {name: data.decode() for name, data in page_files().items() if name.endswith(".js")}
    script = bundled(modules)
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
    assert {name for name in modules if f'modules["{name}"] = ' in script} == set(modules)


def test_styles_stand_in_the_order_of_the_page_so_that_the_same_rule_wins() -> None:
    pages = page_files()
    named = re.findall(r'href="([\w.]+\.css)"', pages["index.html"].decode())
    assert set(named) == {name for name in pages if name.endswith(".css")}
    text = single_page(pages, {}, "x").data.decode()
    places = [text.index(pages[name].decode()) for name in named]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ({"main.js": 'import { a } from "./b.js";', "b.js": 'import { c } from "./main.js";'}, "import cycle"),
        ({"main.js": 'import { a } from "./b.js";'}, r"imports b\.js"),
        ({"main.js": 'import all from "./main.js";'}, "unsupported import or export"),
        ({"main.js": "export default 3;"}, "unsupported import or export"),
        ({"main.js": 'const text = "</script>";'}, "would end its script"),
    ],
)
def test_what_cannot_be_inlined_is_refused(modules: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        bundled(modules)
