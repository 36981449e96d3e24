"""Sources to ids, each behind its tags: those that all lines have, or those that a line says of itself."""

from collections.abc import Callable, Sequence

from nmt.data.vocabulary.subwords import Codec
from nmt.decoding.constraints.request import Request
from nmt.errors import RecipeError

# What a line says of itself, (trg_lang, tags) of a request -> the tags to put before it. Raises RecipeError.
TagsOf = Callable[[str | None, tuple[str, ...] | None], tuple[str, ...]]


class Sources:
    """Encodes the sources of requests.

    codec: puts the tags before every line where no tags_of is given; then lines may say nothing of themselves.
    """

    def __init__(self, codec: Codec, tags_of: TagsOf | None = None) -> None:
        self._codec, self._tags_of = codec, tags_of
        self._tagged: dict[tuple[str | None, tuple[str, ...] | None], Codec] = {}

    def codec_of(self, request: Request) -> Codec:
        """What encodes this source. Raises RecipeError for tags that the model has not learnt."""
        own = request.trg_lang, request.tags
        if own not in self._tagged:
            if self._tags_of is None and request.is_tagged:
                raise RecipeError("trg_lang and tags of a line: this model is told none (leave them out).")
            tagged = self._codec if self._tags_of is None else self._codec.tagged(self._tags_of(*own))
            self._tagged[own] = tagged
        return self._tagged[own]

    def encode(self, requests: Sequence[Request]) -> list[list[int]]:
        """Ids of the source of each request, without EOS."""
        alike: dict[Codec, list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(self.codec_of(request), []).append(number)
        found: list[list[int]] = [[]] * len(requests)
        for codec, numbers in alike.items():
            for number, ids in zip(numbers, codec.encode([requests[n].source for n in numbers]), strict=True):
                found[number] = ids
        return found
