"""Origins of texts: counted for cards, and compared with the options of a later command."""

from paceline.training.heads.origins import ANSWERED, GIVEN, NOT_KEPT, OWN, Origin, counted, unheeded


def test_texts_are_counted_most_first():
    assert counted([Origin(OWN), Origin(GIVEN), Origin(GIVEN)]) == (
        "2 given, 1 written by the target from its chat template"
    )
    assert counted([]) == "none"


def test_wishes_that_no_written_text_was_made_by_are_named():
    written = [Origin(GIVEN, 0, 64), Origin(GIVEN, 1, 64)]
    assert unheeded(written, 1, 64) == {}
    assert unheeded(written, 2, 384) == {"max_tokens": 384, "seed": 2}


def test_text_that_was_not_written_on_purpose_heeds_no_seed():
    assert unheeded([Origin(ANSWERED), NOT_KEPT], 5, 64) == {}
