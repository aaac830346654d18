"""Folders of models that are made to do harm: to open one runs no code, reads nothing beside it and asks nobody.

They are opened by a process of its own, each in a fork of it, with wires that tell of whatever is run, read or asked. Whether a
harmful setting is refused or left out is the same to many of these tests: but where such a folder opens, it gives the vectors
of the harmless one that it was made from.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from harmful_folders import EITHER, FROM_HUB, GOOD, LINKS, REFUSED, SIZES, Made
from hostile_ground import Ground, did_no_harm, harmless, is_of_a_link, opens, refused_without_harm
from wires import TRIPS

pytestmark = pytest.mark.timeout(900)  # each opening has a limit of its own


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground").resolve())


@pytest.fixture(scope="module")
def done(ground) -> dict:
    """Every folder is opened once, for all the tests below."""
    for title in TRIPS:
        ground.trip(title)
    kinds = {"refused": REFUSED, "links": LINKS, "either": EITHER, "sizes": SIZES, "good": GOOD}
    for kind, folders in kinds.items():
        for title, made in folders.items():
            ground.ask(kind, title, made)
    ground.ask(
        "links", "a link out of the hub's cache", LINKS["a link in place of model.safetensors of plain"], "evil/link"
    )
    for number, title in enumerate(FROM_HUB):
        kind, made = ("refused", REFUSED[title]) if title in REFUSED else ("either", EITHER[title])
        ground.ask(f"{kind} of the hub", title, replace(made, calls=("open",)), f"evil/model{number}")
    for base in ("plain", "sentences", "words"):
        ground.ask("good of the hub", base, Made(base), f"good/{base}")
        ground.ask("good of the hub", f"{base} by its path", Made(base), f"good/{base}-by-path", by_name=False)
    return ground.outcomes()


@pytest.mark.parametrize("title", TRIPS)
def test_the_wires_tell(done, title):
    ((_, result),) = done["trip", title]
    assert any(what.startswith(TRIPS[title][1]) for what in result["told"]), result


@pytest.mark.parametrize("title", REFUSED)
def test_a_harmful_folder_is_refused_and_does_nothing(done, title):
    refused_without_harm(done["refused", title])


@pytest.mark.parametrize("title", [*LINKS, "a link out of the hub's cache"])
def test_a_link_to_a_file_is_that_file_and_does_nothing_else(done, title):
    for job, result in done["links", title]:
        did_no_harm(job, result | {"told": [event for event in result["told"] if not is_of_a_link(event)]})


@pytest.mark.parametrize("title", SIZES)
def test_a_folder_that_wants_too_much_is_refused_before_it_takes_it(done, title):
    refused_without_harm(done["sizes", title])


@pytest.mark.parametrize("title", EITHER)
def test_a_harmful_setting_is_refused_or_left_out(ground, done, title):
    harmless(done["either", title], ground.expected.get(EITHER[title].base))


@pytest.mark.parametrize("title", FROM_HUB)
def test_a_harmful_folder_of_the_hub_does_nothing_either(ground, done, title):
    if title in REFUSED:
        refused_without_harm(done["refused of the hub", title])
    else:
        harmless(done["either of the hub", title], ground.expected.get(EITHER[title].base))


@pytest.mark.parametrize("title", GOOD)
def test_a_good_folder_opens_and_gives_what_it_gave_before(ground, done, title):
    opens(done["good", title], ground.expected[GOOD[title].base])


@pytest.mark.parametrize("base", ["plain", "sentences", "words"])
@pytest.mark.parametrize("way", ["{}", "{} by its path"])
def test_a_good_folder_of_the_hub_opens(ground, done, base, way):
    opens(done["good of the hub", way.format(base)], ground.expected[base])
