"""The measure of docs/quality.md, against values computed by hand."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lowbit_tensor.integrations.perplexity import encode, perplexity, topics

VOCABULARY = 4


class Bigram:
    """Logits of the next token are a table's row of the last one; keeps what it was called with."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.table = torch.randn(VOCABULARY, VOCABULARY).to(dtype)
        self.calls: list[Tensor] = []

    def __call__(self, ids: Tensor) -> Any:
        assert ids.dim() == 2 and ids.shape[0] == 1 and not torch.is_grad_enabled()
        self.calls.append(ids)
        return SimpleNamespace(logits=self.table[ids])

    def cost(self, last: int, following: int) -> float:
        """Negative log-likelihood in nats, by hand."""
        row = self.table[last].double().tolist()
        return math.log(sum(math.exp(v) for v in row)) - row[following]


def constant(value: float, target: int = 0) -> Any:
    """A model that gives token `target` a logit of `value` and all others 0."""

    def model(ids: Tensor) -> Any:
        logits = torch.zeros(1, ids.shape[1], VOCABULARY)
        logits[..., target] = value
        return SimpleNamespace(logits=logits)

    return model


def by_hand(model: Bigram, windows: list[list[int]]) -> float:
    costs = [model.cost(a, b) for window in windows for a, b in itertools.pairwise(window)]
    return math.exp(sum(costs) / len(costs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_one_window_by_hand(dtype):
    model, ids = Bigram(dtype), [0, 1, 3, 2, 2, 0]
    got = perplexity(model, torch.tensor(ids), window=6)
    assert got.value == pytest.approx(by_hand(model, [ids]), rel=1e-5)
    assert (got.windows, got.tokens, len(got.seconds)) == (1, 5, 1)


def test_windows_do_not_overlap_and_their_first_tokens_are_not_scored():
    model, ids = Bigram(), [0, 1, 3, 2, 2, 0, 1, 1]
    got = perplexity(model, torch.tensor(ids), window=4)
    assert [call[0].tolist() for call in model.calls] == [ids[:4], ids[4:]]
    assert got.value == pytest.approx(by_hand(model, [ids[:4], ids[4:]]), rel=1e-5)
    assert (got.windows, got.tokens, len(got.seconds)) == (2, 6, 2)


@pytest.mark.parametrize(("tokens", "windows"), [(3, 1), (5, 1), (6, 2), (8, 2), (9, 3)])
def test_a_rest_shorter_than_a_window_is_left_out(tokens, windows):
    model, ids = Bigram(), torch.randint(0, VOCABULARY, (tokens,))
    got = perplexity(model, ids, window=3)
    parts = [ids[3 * i : 3 * i + 3].tolist() for i in range(windows)]
    assert (got.windows, got.tokens) == (windows, 2 * windows)
    assert got.value == pytest.approx(by_hand(model, parts), rel=1e-5)


@pytest.mark.parametrize("tokens", [2, 5, 511])
def test_a_text_shorter_than_a_window_is_the_window(tokens):
    model, ids = Bigram(), torch.randint(0, VOCABULARY, (tokens,))
    got = perplexity(model, ids)
    assert (got.windows, got.tokens) == (1, tokens - 1)
    assert got.value == pytest.approx(by_hand(model, [ids.tolist()]), rel=1e-5)


def test_the_default_window_is_512():
    model = Bigram()
    perplexity(model, torch.randint(0, VOCABULARY, (1030,)))
    assert [call.shape[1] for call in model.calls] == [512, 512]


@pytest.mark.parametrize(("value", "expected"), [(0.0, VOCABULARY), (math.log(3), 2.0), (1e4, 1.0)], ids=["uniform", "a_half", "certain"])
def test_values_that_are_known(value, expected):
    assert perplexity(constant(value), torch.zeros(10, dtype=torch.int64)).value == pytest.approx(expected)


def test_a_value_beyond_a_float_is_infinite():
    assert perplexity(constant(1e4, target=1), torch.zeros(10, dtype=torch.int64)).value == math.inf


def test_a_model_that_gives_nan_has_no_good_value():
    assert not math.isfinite(perplexity(constant(math.nan), torch.zeros(10, dtype=torch.int64)).value)


def test_progress_is_called_before_each_window():
    model, calls = Bigram(), []
    perplexity(model, torch.zeros(9, dtype=torch.int64), window=3, progress=lambda *call: calls.append((*call, len(model.calls))))
    assert calls == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]


@pytest.mark.parametrize(("tokens", "window"), [(0, 512), (1, 512), (10, 1), (10, 0), (10, -3)])
def test_fewer_than_two_tokens_are_refused(tokens, window):
    model = Bigram()
    with pytest.raises(ValueError, match=f"at least 2 tokens, got {min(tokens, window)}"):
        perplexity(model, torch.zeros(tokens, dtype=torch.int64), window=window)
    assert model.calls == []


class Letters:
    """A tokenizer with an id a letter; keeps what it was called with."""

    def __call__(self, text: str, **options: Any) -> Any:
        self.text, self.options = text, options
        return SimpleNamespace(input_ids=torch.tensor([[ord(c) for c in text]]))


@pytest.mark.parametrize("tokens", [1, 3, 5, 100], ids=str)
def test_encode_gives_the_first_ids(tokens):
    tokenizer = Letters()
    ids = encode(tokenizer, "hello", tokens)
    assert ids.tolist() == [ord(c) for c in "hello"[:tokens]] and ids.dim() == 1
    assert tokenizer.options["add_special_tokens"] is False


def test_encode_reads_no_more_text_than_it_may_need():
    tokenizer = Letters()
    assert encode(tokenizer, "x" * 1_000_000, 100).shape == (100,)
    assert 1600 <= len(tokenizer.text) < 2000


def test_topics_are_prose_and_the_same_each_time():
    text = topics()
    assert len(text) > 100_000 and text == topics() and "assignment" in text
