"""A story about encoded vectors must be what training does: the same result, the same memories, the same bytes."""

import io
import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline.codecs import CODECS, build_codec
from paceline.codecs.context import Layout
from paceline.codecs.exchanges import AllGather, Sum, exchange_all, run_programs
from paceline.codecs.reduction import reduce
from paceline.codecs.state import CodecState
from paceline.collectives import SCHEDULES
from paceline.errors import UsageError
from paceline.records.files import to_document
from paceline.reports.explain.document import Encoded, numbers_in
from paceline.reports.explain.explanation import explain
from paceline.reports.explain.render import print_explanation
from paceline.reports.explain.request import DRAWN, ExplainRequest

SPECS = (
    *(name for name in CODECS if name != "identity"),
    "half:format=fp16,memory=error",
    "int8:bits=3,block=3,memory=error",
    "sign:memory=none",
    "top-k:ratio=0.5",
    "top-k:ratio=0.5,memory=none",
    "dgc:momentum=0,ratio=0.3",
    "dgc:clip=1,warmup=8",
    "threshold:bound=0",
    "powersgd:rank=1,memory=none",
    "top-k:ratio=0.3+half",
    "powersgd+half",
)


def told(spec: str, schedule: str = "ring", **more):
    return explain(ExplainRequest(schedule=schedule, codec=spec, **more), DRAWN)


def printed(story) -> str:
    out = io.StringIO()
    print_explanation(story, Console(file=out, width=120, highlight=False))
    return out.getvalue()


def trained(story, values):
    """Two steps of the same values by the codec's program alone; the bytes that a rank hands to others are counted."""
    codec, workers, length = build_codec(story.codec), len(values), len(values[0])
    share = 1 / workers if story.op == "mean" else 1.0
    rows = re.search(r"matrix of (\d+) x (\d+)", story.opening)
    layout = Layout(("values",), (tuple(map(int, rows.groups())) if rows else (length,),))
    states = [CodecState(codec, layout, {}, rank=rank, workers=workers, seed=1) for rank in range(workers)]
    handed = []

    def count(asked):
        match asked[0]:
            case Sum(tensor):
                handed[-1] += 2 * (workers - 1) * tensor.nbytes
            case AllGather(vector):
                handed[-1] += workers * (workers - 1) * vector.nbytes
            case _:
                handed[-1] += workers * (workers - 1) * asked[0].vectors[0].nbytes
        return exchange_all(asked)

    for step in range(2):
        handed.append(0)
        vectors = [torch.tensor(row) * share for row in values]
        contexts = [state.context(0, length, step, share) for state in states]
        run_programs([reduce(codec, *both) for both in zip(vectors, contexts, strict=True)], count)
    return vectors, [context.memory for context in contexts], handed[-1]


@pytest.mark.parametrize(("workers", "op"), [(2, "mean"), (4, "sum")])
@pytest.mark.parametrize("spec", SPECS)
def test_the_story_ends_as_training_does(spec, workers, op):
    story = told(spec, workers=workers, op=op)
    vectors, memories, handed = trained(story, story.stages[0].start.values)
    rounding = {"rtol": 2e-2, "atol": 0.3} if "half" in spec else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(torch.tensor(story.result), vectors[0], **rounding)
    if memories[0] is not None:
        kept = torch.tensor(story.stages[-1].states[-1].values)
        torch.testing.assert_close(kept, torch.stack(memories), **rounding)
    assert sum(story.totals["bytes_sent"]) == handed


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=10)
@given(data=st.data())
def test_what_goes_in_comes_out_or_is_kept(spec, data):
    workers, length = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 12))
    row = st.lists(st.integers(-99, 99), min_size=length, max_size=length)
    rows = data.draw(st.lists(row, min_size=workers, max_size=workers))
    op = data.draw(st.sampled_from(["sum", "mean"]))
    story = told(spec, op=op, values=";".join(" ".join(map(str, row)) for row in rows))
    found = {name: torch.tensor(values) for name, values in story.balance.items()}
    went_in = found.get("prepared", found.get("values")) + found.get("memories before", 0)
    came_out = found["result"] + found.get("memories after", found.get("lost"))
    rounding = 1e-2 if "half" in spec else 1e-4
    torch.testing.assert_close(went_in, came_out, rtol=rounding, atol=100 * rounding)
    assert story.stages[-1 - ("memories after" in found)].states[-1].values == (story.result,) * workers


@pytest.mark.parametrize("spec", ["top-k", "top-k:ratio=0.5", "int8", "sign", "threshold"])
def test_every_round_follows_from_the_one_before(spec):
    """What arrives is what was held by its sender, and what was decoded is what the messages stand for."""
    for stage in told(spec).stages:
        for before, step in zip(stage.states, stage.steps, strict=False):
            for message in step.messages:
                columns = slice(message.start, message.stop)
                assert message.cells == before.cells[message.source][columns]
                had, has = (state.cells[message.target][columns] for state in (before, step))
                if message.on_receive == "replace":
                    assert has == message.cells
                else:
                    both = zip(numbers_in(had), numbers_in(message.cells), strict=True)
                    assert numbers_in(has) == pytest.approx([one + other for one, other in both])


def test_the_indices_of_top_k_travel_with_their_values():
    story = told("top-k")
    (gather,) = [stage for stage in story.stages if "gather" in stage.title]
    sent = [row[rank] for rank, row in enumerate(gather.start.cells)]
    assert all(isinstance(one, Encoded) and list(one.contents) == ["indices", "values"] for one in sent)
    assert list(gather.states[-1].cells) == [tuple(sent)] * 4
    text = printed(story)
    assert "p2 encodes 0: 52 (8 B)" in text
    assert "p3 sends message 3 -> p0,  receives message 2 from p2: 0: 52" in text
    assert "from the messages: 0: 52 + 46 = 98, 1: -48, 6: 42" in text, "equal indices are added up"
    assert text.endswith("each process sends 24 B; with identity, 48 B\n")


def test_entries_are_merged_where_messages_would_be_longer_than_vectors():
    text = printed(told("top-k:ratio=0.5"))
    unions = re.findall(r"entries have come to (.*)", text)
    sizes = [len(re.findall(r"\d+", re.sub(r"p\d", "", one))) for one in unions]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1], "the union grows"
    assert "gather the sums: all-gather" in text


def test_int8_is_summed_in_chunks_and_encoded_again():
    story = told("int8:memory=error")
    titles = [stage.title or stage.steps[0].title for stage in story.stages]
    assert titles == [
        "add the error memory",
        "sum chunk r at process r",
        "encode the sums",
        "gather the sums, encoded",
        "decode",
        "error memory",
    ]
    again = story.stages[2].steps[0].cells
    for sums, message, rest in again:
        assert numbers_in([message, ()]) == pytest.approx(
            [one - left for one, left in zip(sums, rest, strict=True)], abs=1e-4
        )
    assert "step" in printed(story)


def test_powersgd_sums_p_and_then_q():
    story = told("powersgd")
    assert story.codec == "powersgd:rank=1"
    assert "on so few values its usual rank would show nothing" in story.opening
    assert [stage.title.partition(" ")[0] for stage in story.stages[1:3]] == ["P", "Q"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_messages_that_sum_go_by_every_schedule(schedule):
    story = told("half", schedule, workers=5)
    expected = torch.tensor(story.balance["identity"])
    torch.testing.assert_close(torch.tensor(story.result), expected, rtol=2e-2, atol=0.3)


@pytest.mark.parametrize("spec", ["top-k", "int8", "sign", "dgc"])
def test_messages_that_do_not_sum_go_round_a_ring(spec):
    with pytest.raises(
        UsageError, match=r"schedule 'tree' cannot be used .* choose ring or pairwise, or .*half"
    ):
        told(spec, "tree")
    with pytest.raises(UsageError, match="segments 2 cannot be used with codec"):
        told(spec, segments=2)


def test_one_process_does_not_encode():
    story = told("top-k", workers=1)
    assert story.steps == ()
    assert story.result == story.stages[0].start.values[0]
    assert "one process sends nothing, so the codec is not used" in printed(story)


def test_lines_are_short_plain_and_without_trailing_blanks():
    for spec in SPECS:
        text = printed(told(spec))
        assert text.isascii()
        assert not re.search(r" $", text, re.M)
        assert not re.search(r"[1-9]\d*\.\d{5}|0\.0*[1-9]\d{4}", text), "a number of too many digits"


def test_the_document_holds_messages_as_data():
    document = json.loads(json.dumps(to_document(told("top-k"))))
    assert (document["schema"], document["codec"]) == (3, "top-k")
    message = document["stages"][1]["steps"][0]["messages"][0]
    assert message["bytes"] == 8
    assert set(message["cells"][0]) == {"contents", "stands_for"}
    assert document["totals"]["identity_bytes_sent"] == [48] * 4


OWN = '''
from dataclasses import dataclass
import torch
from paceline import Codec


@dataclass(frozen=True, kw_only=True)
class Mean(Codec):
    """Send the mean of all elements."""

    def encode(self, vector, context):
        return (vector.mean().view(1),)

    def decode(self, message, context):
        return message[0].expand(context.layout.elements).clone()
'''


def test_a_codec_of_ones_own_is_explained_by_import_path(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    story = told(f"{tmp_path}/mine.py:Mean", values="1 2 3; 3 4 5")
    assert story.about == "Send the mean of all elements."
    assert story.result == (6, 6, 6)
