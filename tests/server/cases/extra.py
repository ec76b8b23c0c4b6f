# SPDX-License-Identifier: Apache-2.0
"""The `extra` input: a JSON object of arguments that have no input of their own."""

from __future__ import annotations

from tests.server.cases.case import Case


def _case(name: str, text: str | bytes, *words: str) -> Case:
    return Case(f"extra-{name}", "pictures", {"prompt": "a fox", "extra": text}, ("extra", *words))


CASES = (
    _case("malformed", '{"clip_skip": ', "malformed JSON", "JSON object"),
    _case("empty-text", "", "malformed JSON", "JSON object"),
    _case("single-quotes", "{'a': 1}", "malformed JSON", "JSON object"),
    _case("comma", '{"cross_attention_kwargs": {},}', "malformed JSON"),
    _case("two-objects", "{}{}", "malformed JSON"),
    _case("list", "[1, 2]", "JSON object"),
    _case("number", "3", "JSON object"),
    _case("null", "null", "JSON object"),
    _case("text", '"a fox"', "JSON object"),
    _case("nan", '{"cross_attention_kwargs": {"scale": NaN}}', "NaN"),
    _case("infinity", '{"cross_attention_kwargs": {"scale": -Infinity}}', "Infinity"),
    _case("overflow", '{"cross_attention_kwargs": {"scale": 1e999}}', "finite"),
    _case("deep", '{"cross_attention_kwargs": ' + "[" * 900 + "]" * 900 + "}", "nested"),
    _case("too-long", '{"cross_attention_kwargs": "' + "9" * 5000 + '"}', "max_prompt_chars"),
    _case("many-digits", '{"cross_attention_kwargs": {"scale": ' + "9" * 1900 + "}}", "too large"),
    _case("twice", '{"cross_attention_kwargs": {}, "cross_attention_kwargs": {}}', "twice"),
    _case("not-utf8", b"\xff{}", "UTF-8"),
    _case("unknown", '{"cross_attention_kwarg": {}}', "Did you mean 'cross_attention_kwargs'"),
    _case("own-input", '{"height": 16}', "height", "input of its own"),
    _case("seed", '{"seed": 7}', "seed", "input of its own"),
    _case("output-format", '{"output_format": "png"}', "input of its own"),
    _case("generator", '{"generator": 7}', "reserved", "seed"),
    _case("callback", '{"callback_on_step_end": null}', "reserved"),
    _case("load-time", '{"dtype": "float16"}', "load-time"),
    _case("latents", '{"latents": [[0.0]]}', "latents", "JSON carries none"),
    _case("half-a-surrogate-pair", '{"\\ud800": 1}', "\\ud800", "not known"),
    _case("itself", '{"extra": {}}', "extra"),
)
