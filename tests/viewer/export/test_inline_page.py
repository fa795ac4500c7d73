"""The page as one file: modules in order, nothing from outside, errors for what can't be inlined."""

from __future__ import annotations

import base64
import gzip
import re

import orjson
import pytest

from palimpsest.viewer.export.inline_page import bundled, page_files, single_page

HOSTILE = "</script><script>alert(1)</script><!-- \"' \u2028 & {{x}}"


def answers_in(page: bytes) -> dict[str, object]:
    match = re.search(rb'id="answers">([^<]*)</script>', page)
    assert match is not None
    result: dict[str, object] = orjson.loads(gzip.decompress(base64.b64decode(match[1])))
    return result


def test_the_page_contains_the_answers_and_loads_nothing() -> None:
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


def test_every_module_of_the_page_is_bundled_into_one_script() -> None:
    modules = {name: data.decode() for name, data in page_files().items() if name.endswith(".js")}
    script = bundled(modules)
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
    assert {name for name in modules if f'modules["{name}"] = ' in script} == set(modules)


def test_styles_have_the_order_of_the_page() -> None:
    pages = page_files()
    named = re.findall(r'href="([\w.]+\.css)"', pages["index.html"].decode())
    assert set(named) == {name for name in pages if name.endswith(".css")}
    text = single_page(pages, {}, "x").data.decode()
    places = [text.index(pages[name].decode()) for name in named]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("modules", "error"),
    [
        ({"main.js": 'import { a } from "./b.js";', "b.js": 'import { c } from "./main.js";'}, "import cycle"),
        ({"main.js": 'import { a } from "./b.js";'}, r"imports b\.js"),
        ({"main.js": 'import all from "./main.js";'}, "unsupported import or export"),
        ({"main.js": "export default 3;"}, "unsupported import or export"),
        ({"main.js": 'const text = "</script>";'}, "would end its script"),
    ],
)
def test_a_page_that_cannot_be_inlined_is_an_error(modules: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        bundled(modules)


MODULES = {name: content.decode() for name, content in page_files().items() if name.endswith(".js")}
BANNED = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc",
    r"createContextualFragment|setHTML|importScripts|\bimport\(",
    r"https?://(?!www\.w3\.org/2000/svg)",
    r"setAttribute\(\s*[\"'](style|on)",
    r"\.cssText",
)


@pytest.mark.parametrize("name", MODULES)
def test_modules_put_texts_into_the_page_as_text_alone(name: str) -> None:
    for pattern in BANNED:
        assert not re.search(pattern, MODULES[name]), pattern


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_and_export_in_the_forms_that_can_be_bundled(name: str) -> None:
    lines = MODULES[name].splitlines()
    imports = [line for line in lines if re.match(r"\s*import\b", line)]
    assert all(re.fullmatch(r'import \{ [\w, ]+ \} from "\.{1,2}/[\w./-]+\.js";', line) for line in imports)
    exports = [line for line in lines if line.startswith("export")]
    assert all(re.match(r"export (function|async function|const) \w+", line) for line in exports)


def test_modules_use_their_imports_and_others_import_their_exports() -> None:
    imported = set[str]()
    for name, text in MODULES.items():
        for names in re.findall(r"^import \{ ([^}]+) \}", text, re.MULTILINE):
            for item in names.split(", "):
                of, _, alias = item.partition(" as ")
                imported.add(of)
                assert len(re.findall(rf"(?<![\w.]){alias or of}\b", text)) > 1, f"{name}: {item}"
    exported = {
        item for text in MODULES.values() for item in re.findall(r"^export .*?(?:function|const) (\w+)", text, re.M)
    }
    assert exported == imported


def test_the_page_has_nothing_inline_and_nothing_from_outside() -> None:
    page = page_files()["index.html"].decode()
    assert not re.search(r"\son\w+=|<style|style=|https?:|<script(?![^>]*src=)", page)
