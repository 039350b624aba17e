import pytest
import torch

from paceline.errors import UsageError
from paceline.jobs.datasets import FILES, Digits


def test_the_split_is_1437_and_360_with_every_digit_in_proportion() -> None:
    images = Digits().load(None)
    assert (len(images.train), len(images.test)) == (1437, 360)
    assert images.shape == (1, 8, 8)
    share = images.test.targets.bincount() / (
        images.train.targets.bincount() + images.test.targets.bincount()
    )
    assert (share - 0.2).abs().max() < 0.006, "some digit is over- or under-represented in the test part"


def test_no_test_image_is_a_training_image() -> None:
    images = Digits().load(None)
    train, test = (
        {tuple(row) for row in part.inputs.flatten(1).tolist()} for part in (images.train, images.test)
    )
    assert not train & test


def test_images_are_normalised_floats_and_alike_every_time() -> None:
    one, two = Digits().load(None), Digits().load(None)
    assert one.train.inputs.dtype == torch.float32
    assert one.train.targets.dtype == torch.int64
    assert abs(one.train.inputs.mean()) < 0.01
    assert abs(one.train.inputs.std() - 1) < 0.01
    assert torch.equal(one.train.inputs, two.train.inputs)
    assert torch.equal(one.test.targets, two.test.targets)


def test_a_folder_for_digits_is_not_ignored() -> None:
    with pytest.raises(UsageError, match=r"digits reads no files.*/tmp.*leave"):
        Digits().load("/tmp")


def test_the_attribution_travels_with_the_data() -> None:
    text = (FILES / "ATTRIBUTION.txt").read_text()
    assert all(word in text for word in ("Alpaydin", "Kaynak", "1998", "10.24432/C50P49", "CC BY 4.0"))
