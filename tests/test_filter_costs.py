"""The table of what filters cost."""

from filter_costs import main


def test_each_filter_is_counted_by_itself_and_its_pairs_are_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NMT_DATA", str(tmp_path))
    src = ["ein Hund", "ein\x00Hund", "собаки громко лают", "", "ein Hund!", "nie gelesen"]
    trg = ["a dog", "a dog", "dogs bark", "empty", "a dog", "never read"]
    (tmp_path / "t.de").write_text("\n".join(src), encoding="utf-8")
    (tmp_path / "t.tlh").write_text("\n".join(trg), encoding="utf-8")
    assert main(["t.de", "t.tlh", "--lines", "5"]) == 0
    told = capsys.readouterr().out
    rows = dict(line.strip("| ").split(" | ") for line in told.split("\n") if line.startswith("| "))
    assert rows["filter"] == "t de-tlh" and rows["pairs"] == "5"
    counted = {name: n for name, n in rows.items() if n != "0" and name not in ("filter", "pairs")}
    assert counted == {
        "always: empty or too long": "1",
        "drop_control": "1",
        "min_script: 0.2": "1",
        "all of these: the defaults": "3",
        "max_other_language: 0.9 (off)": "–",
        "drop_near_duplicates (off)": "2",
    }
    assert "drop_control, t de-tlh:2: ein\\x00Hund ||| a dog" in told


def test_a_file_without_its_other_side_or_none_at_all_is_told(tmp_path, capsys):
    assert main([str(tmp_path / "none.de"), str(tmp_path / "none.en")]) == 2
    assert "no such file" in capsys.readouterr().err
