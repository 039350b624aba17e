"""A wrong unit here would make every prediction wrong by a factor of eight or a thousand."""

import pytest

from paceline.errors import UsageError
from paceline.units import Size, parse_bytes, parse_rate, parse_seconds, show_bytes, show_rate, show_seconds


@pytest.mark.parametrize(
    ("text", "bytes_a_second"),
    [
        ("10 Gbit/s", 1.25e9),
        ("10gbit", 1.25e9),
        ("100 Mbit/s", 1.25e7),
        ("1 GB/s", 1e9),
        ("2 GiB/s", 2 * 2.0**30),
        ("8 bit/s", 1.0),
    ],
)
def test_rates_are_bytes_a_second(text, bytes_a_second):
    assert parse_rate(text) == bytes_a_second


@pytest.mark.parametrize(
    ("text", "seconds"), [("50 us", 5e-5), ("1.5ms", 1.5e-3), ("2 min", 120), ("0 s", 0)]
)
def test_times_are_seconds(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


def test_decimal_and_binary_sizes_differ():
    assert parse_bytes("1.5 GB") == 1.5e9
    assert parse_bytes("25 MiB") == 25 * 2**20


@pytest.mark.parametrize("text", ["10", "10 parsec", "-1 s", "s", "", "1e400 s", "nan s"])
def test_what_is_no_time_is_refused_by_name(text):
    with pytest.raises(UsageError, match="is not a time") as mistake:
        parse_seconds(text)
    assert repr(text) in str(mistake.value)


@pytest.mark.parametrize("text", ["0 Gbit/s", "-1 Gbit/s", "10 Gbyte", "fast"])
def test_what_is_no_bandwidth_is_refused_by_name(text):
    with pytest.raises(UsageError, match="is not a bandwidth") as mistake:
        parse_rate(text)
    assert repr(text) in str(mistake.value)


def test_sizes_survive_being_shown_and_read():
    for size in (Size(2**20), Size(25 * 2**20), Size(12345)):
        assert Size.parse(str(size)) == size


def test_shown_with_the_unit_that_fits():
    assert show_seconds(0.00215) == "2.15 ms"
    assert show_seconds(11.24) == "11.2 s"
    assert show_seconds(3 * 3600) == "3.0 h"
    assert show_bytes(82_100) == "82.1 kB"
    assert show_rate(1.25e9) == "10 Gbit/s"
