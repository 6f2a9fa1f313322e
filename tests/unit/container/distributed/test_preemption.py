"""What a script hears of SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from container.distributed.core.notice import Notice
from container.distributed.tensorflow import preemption as notices
from container.distributed.tensorflow.preemption import SaveInTime


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """SIGTERM and the hook are as they were."""
    before, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    yield
    signal.signal(signal.SIGTERM, before)
    sys.excepthook = hook


def test_it_comes_once_somebody_listens_and_the_scripts_own_handler_is_called() -> None:
    own: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: own.append(number))
    notice, told = Notice(), []
    assert notice.listen(lambda: told.append(1)) and notice.listen()
    assert not notice.came
    os.kill(os.getpid(), signal.SIGTERM)
    assert notice.came and told == [1] and own == [signal.SIGTERM]


def test_the_signal_does_what_it_did_when_nobody_listens_any_more() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    notice = Notice()

    def first() -> None: ...
    def second() -> None: ...

    notice.listen(first)
    notice.listen(second)
    notice.forget(first)
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    notice.forget(second)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_only_the_main_thread_can_listen() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(Notice().listen()))
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize("chief", [True, False])
def test_rank_0_saves_and_ends_and_the_others_go_on_until_then(
    chief: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "notice", Notice())
    asked: list[int] = []
    cluster: Any = types.SimpleNamespace(is_chief=chief)
    callback = SaveInTime(cluster, lambda: asked.append(1))
    callback.on_train_begin()
    callback.on_train_batch_begin(3)
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked == [1]
    if chief:
        with pytest.raises(SystemExit) as ended:
            callback.on_train_batch_begin(4)
        assert ended.value.code == 143
    else:
        callback.on_train_batch_begin(4)
        sys.excepthook(ValueError, ValueError("the socket is closed"), None)
        assert capsys.readouterr().err == "stopping after SIGTERM: rank 0 has ended (ValueError)\n"
