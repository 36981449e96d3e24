"""Lines that have broken other tools, for the tests of this folder."""

AWKWARD = [
    "",
    " ",
    "   two leading, two trailing  ",
    "a\u2028b\u2029c\u0085d",
    "vertical\x0btab form\x0cfeed file\x1cgroup\x1drecord\x1eseparators",
    "a carriage\rreturn inside",
    "NUL \x00 inside",
    "<s> literal </s> <pad> <unk> <|endoftext|>",
    "▁lower▁one▁eighth▁ @@ joi@@ ner ￨ feature",
    "\ufeffBOM first, and \ufeff inside",
    "e\u0301 decomposed, é composed, \u1e9b\u0323",
    "日本語とカタカナ、और हिन्दी، العربية 👩‍👩‍👧‍👦🏳️‍🌈",
    "tab\there, no-break\u00a0space, zero\u200bwidth",
    "x" * 5000,
    "don't we'll I'M 1234567890 ...!?",
]
