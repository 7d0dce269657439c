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


def interrupted(step: str, *args: str) -> tuple[int, str, str]:
    """Send SIGINT in the middle of a step."""
    command = [sys.executable, "-m", "whence.cli", *USUAL, *args]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(WHENCE_SLOW=step),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job's children ignore it
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
    assert "interrupted: during quality; finished sections are in out/audit.html." in err
    assert json.loads(Path("out/audit.json").read_text())["run"]["interrupted"] == "quality"
    assert "out/audit.json" in out


def test_ctrl_c_before_the_fit_is_done_leaves_nothing(whence_process) -> None:
    code, out, err = interrupted("fit", "--json")
    assert code == 130 and "Traceback" not in err and out == "" and not Path("out").exists()
    assert err.splitlines()[-1] == "interrupted: the posterior was not finished; nothing was written."


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
