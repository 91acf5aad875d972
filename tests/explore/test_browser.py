"""The browser of the tests: where it comes from, and that it can write Chinese."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "timeout", "tail", "true", "make", "echo")


@pytest.fixture
def machine(tmp_path) -> Path:
    """A folder of programs with nothing but what every Debian has; its mirror fails."""
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(shutil.which(tool))
    (tmp_path / "sleep").symlink_to(shutil.which("true"))
    program(tmp_path / "id", 'if [ "$1" = -u ]; then echo 0; else echo root; fi')
    program(tmp_path / "apt-get", 'echo "$@" >> apt.log; echo "E: The mirror is away" >&2; exit 100')
    return tmp_path


def program(path: Path, script: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(f"#!{shutil.which('sh')}\ncd {path.parent}\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def make(machine: Path, **variables: str) -> tuple[int, str]:
    run = subprocess.run(
        [machine / "make", "-s", "browser"],
        cwd=ROOT,
        env={"PATH": str(machine), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.returncode, run.stdout


def test_chromium_is_installed_though_the_mirror_fails_at_first(machine):
    program(
        machine / "apt-get",
        'echo "$@" >> apt.log; case "$(tries)" in 3) exit 0;; esac; echo "E: The mirror is away" >&2; exit 100',
    )
    program(machine / "tries", "n=0; while read -r line; do n=$((n + 1)); done < apt.log; echo $((n / 2 + n % 2))")
    assert make(machine, CI_RUN="1") == (0, "")
    asked = (machine / "apt.log").read_text(encoding="utf-8").splitlines()
    assert [line.split()[-1] for line in asked] == ["update", "chromium"] * 3


def test_without_chromium_the_tests_are_skipped_with_a_word_but_not_under_ci(machine):
    code, said = make(machine)
    assert (code, said.count("\n")) == (0, 1)
    assert "(E: The mirror is away)" in said
    assert "apt-get install chromium" in said
    code, said = make(machine, CI_RUN="1")
    assert code != 0
    assert said == "no Chromium here (E: The mirror is away), and the tests of the page need it\n"


def test_who_may_not_install_is_told_what_to_install(machine):
    program(machine / "id", 'if [ "$1" = -u ]; then echo 1000; else echo someone; fi')
    code, said = make(machine)
    assert code == 0
    assert said.startswith("no Chromium here (someone may not install it)")
    assert not (machine / "apt.log").exists()


def test_the_checks_of_every_change_demand_a_browser():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "export CI_RUN=1" in script
    assert script.index("export CI_RUN=1") < script.index("make check test")


def test_chinese_is_written_in_letters_and_not_in_boxes(watched):
    """Boxes would all look alike."""
    watched.page.goto("about:blank")
    drawn = watched.page.evaluate(
        """() => ["人", "世", "界", "改"].map((letter) => {
          const canvas = Object.assign(document.createElement("canvas"), { width: 40, height: 40 });
          const context = canvas.getContext("2d");
          context.font = "30px sans-serif";
          context.fillText(letter, 2, 32);
          return canvas.toDataURL();
        })"""
    )
    assert len(set(drawn)) == 4
