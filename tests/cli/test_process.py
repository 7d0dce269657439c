"""The command in a process of its own: exit codes, streams, signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import environment

USUAL = ["audit", "slow.py:model", "--train", "slow.py:pair", "-l", "classification", "--out", "out"]


def test_stdout_holds_one_json_object(whence_process) -> None:
    done = whence_process(*USUAL, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["json"] == "out/audit.json"
    assert "a print from user code" in done.stderr and "[1/3] fitting the posterior" in done.stderr


def test_errors_have_a_traceback_only_with_debug(whence_process) -> None:
    done = whence_process(*USUAL, WHENCE_FAIL="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr and "ZeroDivisionError: it broke" in done.stderr
    assert not Path("out").exists(), "the folder that was made for it is gone again"
    done = whence_process(*USUAL, "--debug", "--device", "nothing")
    assert done.returncode == 2 and "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("error: ")


def interrupted(step: str, *args: str) -> tuple[int, str, str]:
    """Send SIGINT in the middle of a step."""
    command = [sys.executable, "-m", "whence.cli", *USUAL, *args]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(WHENCE_SLOW=step)
    )
    assert process.stderr is not None
    heard = ""
    while f"note in {step}" not in heard:
        line = process.stderr.readline()
        assert line, heard
        heard += line
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    return process.returncode, out, heard + err


def test_ctrl_c_keeps_what_is_finished(whence_process) -> None:
    code, out, err = interrupted("quality")
    assert code == 130 and "Traceback" not in err
    assert "interrupted: during quality; what was finished is in out/audit.html." in err
    assert json.loads(Path("out/audit.json").read_text())["run"]["interrupted"] == "quality"
    assert "out/audit.json" in out


def test_ctrl_c_before_the_fit_is_done_leaves_nothing(whence_process) -> None:
    code, out, err = interrupted("fit", "--json")
    assert code == 130 and "Traceback" not in err and out == "" and not Path("out").exists()
    assert err.splitlines()[-1] == "interrupted: the posterior was not ready yet; nothing was written."


def test_without_typer_a_friendly_line(shop: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; from whence.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.strip() == "whence: the command needs typer: pip install 'whence[cli]'"


def test_import_whence_brings_neither_typer_nor_rich() -> None:
    code = "import sys, whence; print([m for m in ('typer', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_bar_with_time_left_on_a_terminal(whence_process) -> None:
    master, slave = pty.openpty()
    environ = environment(WHENCE_PAUSE="0.4", TERM="xterm-256color")
    with subprocess.Popen(
        [sys.executable, "-m", "whence.cli", *USUAL], stdout=subprocess.PIPE, stderr=slave, env=environ
    ) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        assert process.wait() == 0
    os.close(master)
    text = seen.decode()
    assert "left" in text and "2/3" in text and "note in quality" in text
