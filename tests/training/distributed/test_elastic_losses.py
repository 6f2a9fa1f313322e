"""A lost rank must reach Horovod's elastic loop as such, whatever the operation was called that noticed it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.horovod]

#: What the ranks that are left are told in the middle of a step: the node's name is the optimizer's.
SHUT_DOWN = (
    "{{node fleetfit.gradient.3}} Horovod has been shut down. This was caused by an exception on one of the ranks"
)
READ_ERROR = "[third_party/gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:20383: Connection reset by peer"


@pytest.mark.parametrize("message", [SHUT_DOWN, READ_ERROR])
def test_a_lost_rank_is_told_as_one(message: str) -> None:
    hvd = pytest.importorskip("horovod.tensorflow")
    from horovod.common.exceptions import HorovodInternalError
    from tensorflow import errors

    from container.distributed.tensorflow.elastic import telling_losses

    with pytest.raises(HorovodInternalError), telling_losses():
        raise errors.UnknownError(None, None, message)
    # For scripts written to Horovod's own elastic API our build of it does the same.
    with pytest.raises(HorovodInternalError), hvd.elastic._telling_losses():
        raise errors.UnknownError(None, None, message)


def test_another_error_of_tensorflow_is_not_taken_for_the_end() -> None:
    hvd = pytest.importorskip("horovod.tensorflow")
    from tensorflow import errors

    from container.distributed.tensorflow.elastic import telling_losses

    with pytest.raises(RuntimeError, match="CUDNN"), telling_losses():
        raise errors.UnknownError(None, None, "CUDNN_STATUS_EXECUTION_FAILED")
    with pytest.raises(errors.UnknownError, match="CUDNN"), hvd.elastic._telling_losses():
        raise errors.UnknownError(None, None, "CUDNN_STATUS_EXECUTION_FAILED")
    with telling_losses():
        pass
