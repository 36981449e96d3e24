import random
import time

import pytest

from nmt.data.sentences import pieces, sentences, writes_no_space

ALPHABETS = [
    "abcXYZ éß.,;:!?\"'()[]", "наш Дом, где? г. т.е.! ", "他说。「好」，你好吗？！、（是）", "यह है। वह, ॥ ",
    "هل أنت بخير؟ نعم، ؛۔", "กขคงจ ่้ะ.", "「」『』（）“”()[]。と说。", "Πα; ՀԲ: አበ፡ ཀ།་ ", "<br> 😀 ა. A. 5",
    "a\u0301e\u0308 \u00a0\u2009\u3000\t\x0b\r\u2028\u2029\x85\u200b\u200d🙂👩\u200d👩",
]  # fmt: skip


def random_text(rng: random.Random) -> str:
    letters = "".join(rng.sample(ALPHABETS, k=rng.randint(1, 3)))
    return "".join(rng.choices(letters, k=rng.randint(0, 120)))


@pytest.mark.parametrize(
    "parts",
    [
        ["Ein Hund läuft. ", "Er ist z.B. schnell! ", "Wirklich? ", "Ja … ", "Gut."],
        ["Dr. Meyer kam am 3. Mai 1994. ", "Dann ging J. R. Smith, vgl. Abb. 3, fort."],
        ["Ludwig XIV. König. ", "»Komm.« ", "„Nein.“ ", "(Doch!) ", "“Yes.” ", "Er fragt: Wer?"],
        ["Yahoo! is a firm. ", "We saw TV. ", "It was red. ", "It ended... ", "Then it began... and went on."],
        ["It cost 3.5 or 1,000. ", "See www.a.com?b=c! ", "End"],
        ["他说。", "「好」她问：「你好吗？」", "是的！！", "就这样"],
        ["यह है।", "वह है। ", "हाँ"],
        ["هل أنت بخير؟ ", "نعم، أنا بخير. ", "ثم"],
        ["Я пришёл в 1999 г. Иван. ", "Всё."],
        ["ሰላም። ", "እንዴት ነህ፧ ", "ደህና"],
        ["Բարև։ ", "Լավ"],
        ["See No. 5 and Sec. 12 of the Act. ", "Eq. 3 shows it. ", "Gen. Lee met Sen. Warren."],
        ["I said no. ", "No. ", "It is art. ", "Han gik ud. ", "He saw me. ", "Jak się masz, sen. ", "End"],
        ["MR. SMITH MET DR. JONES. ", "THEY TALKED."],
        ["Siehe Art. 5 der Verordnung. ", "Danach gilt No. 12 der Liste."],
        ["Según el Ud. Sr. García, vive en la Av. Juárez núm. 500. ", "Gracias."],
        ["डॉ. राजेश ने कहा कि यह ठीक है। ", "प्रो. शर्मा सहमत थे।"],
        ["「こんにちは。元気？」と彼は言った。", "そして帰った。"],
        ["彼女は「はい！」と答えた。"],
        ["“你好。”他说。", "然后他走了。"],
        ["He said (it was late. He left.) and went. ", "“Stop. Now!” was all."],
        ["ეს ჩემი სახლია. ", "მე აქ ვცხოვრობ. ", "როგორ ხარ? ", "კარგად! ", "მადლობა."],
        ["Πού μένεις; ", "Εδώ μένω. ", "Τι κάνεις\u037e ", "Καλά."],
        ["འདི་ངའི་ཁང་པ་ཡིན། ", "ང་འདིར་སྡོད་ཀྱི་ཡོད། །", "ཁྱེད་རང་བདེ་མོ་ཡིན་ནམ།"],
        ["እዚ ገዛይ እዩ፡፡ ", "ኣብዚ እነብር፡፡"],
        ["Սա իմ տունն է: ", "Ես այստեղ եմ: ", "Ինչպե՞ս ես:"],
        ["Das ist gut 😀 ", "Das ist schlecht 😢 ", "Ende!"],
        ["Eins<br>", "zwei<br /> ", "drei; Nummer 4: vier"],
        ["ดร. สมชาย มาแล้ว"],
        ["ကျွန်တော် လာပြီ။ ", "သူ သွားပြီ။"],
        ["ខ្ញុំមក។ ", "គាត់ទៅ។"],
        ["one\u2028", "two \x0b ", "three"],
        ["  no end "],
        [""],
    ],
)
def test_text_is_split_at_the_ends_of_sentences(parts):
    assert sentences("".join(parts)) == parts


def test_parts_of_any_text_join_to_the_text_and_fit_the_limit():
    rng = random.Random(1)
    for _ in range(600):
        text, limit = random_text(rng), rng.randint(1, 30)
        assert "".join(sentences(text)) == text
        assert "".join(sentences(text, rng.choice(["de", "ja", "x-made-up"]))) == text
        parts = pieces(text, lambda piece, limit=limit: len(piece) <= limit)
        assert "".join(parts) == text
        assert all(len(piece.strip()) <= limit for piece in parts)
        assert all(parts) or parts == [""]


@pytest.mark.parametrize(
    ("language", "parts"),
    [
        ("is", ["T.d. Akureyri. ", "Reykjavík er stór."]),
        ("de", ["Er kam lt. Polizei. ", "Vitamin C\u00a0. Der Hund bellt."]),
        ("zho_Hans", ["他说。", "你好。"]),
        ("x-made-up", ["Da ba. ", "Ba da."]),
    ],
)
def test_abbreviations_of_a_language_do_not_end_sentences(language, parts):
    assert sentences("".join(parts), language) == parts


@pytest.mark.parametrize(
    ("limit", "parts"),
    [
        (30, ["Ja, gut; sehr gut. ", "Und du, wie geht es? ", "Auch gut"]),
        (25, ["one two three, ", "four five six seven."]),
        (25, ["one, two three ", "four five six seven."]),
        (25, ["one two three four ", "five six, seven"]),
        (10, ["a ", "x" * 10, "x" * 10 + " ", "b"]),
    ],
)
def test_long_sentences_are_split_at_clauses_then_spaces_then_anywhere(limit, parts):
    assert pieces("".join(parts), lambda piece: len(piece) <= limit) == parts


def test_a_very_long_text_with_brackets_is_split_in_linear_time():
    parts, start = ["Der Hund (er schläft. Oft.) träumt. "] * 20_000, time.process_time()
    assert sentences("".join(parts)) == parts
    assert time.process_time() - start < 10


def test_combining_characters_and_joined_emoji_are_never_split():
    for text in ("e\u0301" * 7, "👩\u200d👩\u200d👧" * 5):
        for piece in pieces(text, lambda piece: len(piece) <= 5):
            assert piece[0] not in "\u0301\u200d" and piece[-1] != "\u200d"


def test_scripts_without_spaces_are_known():
    assert [letter for letter in "漢かカ。，กລမខaéдअب한ᄒ. " if writes_no_space(letter)] == [*"漢かカ。，กລမខ"]
