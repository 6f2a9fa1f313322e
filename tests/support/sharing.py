"""What a job that is over leaves of its code, wherever its hosts were on this machine."""

from __future__ import annotations

import clusters


def check_code_is_kept_once(make: clusters.Make) -> None:
    """Its hosts' copies become its record's, and each host's own again in an attempt that follows."""
    script = """
    import json, os, sys
    import aid
    open("written", "w").close()
    with open("edited.txt", "a") as file:
        file.write(os.environ["FLEETFIT_ATTEMPT"])
    with open("data.txt", "a") as file:
        if os.environ["FLEETFIT_ATTEMPT"] == "0":
            aid.mark(f"edited-{aid.HOST}")
            for host in json.loads(os.environ["SM_HOSTS"]):
                aid.wait_for(f"edited-{host}")
            sys.exit(3)
        file.write("more")
    """
    job = make(script, hosts=2, files={"data.txt": "data" * 1000, "edited.txt": "", "below/empty": ""}).fit(wait=False)
    clusters.await_terminal(job)
    assert job.status == "Failed"
    source = job.record.source_dir
    codes = [job.record.tree(host).code for host in ("algo-1", "algo-2")]
    for name in ("data.txt", "below/empty"):
        clusters.until(lambda name=name: all((code / name).samefile(source / name) for code in codes))
    assert not any((code / "edited.txt").samefile(source / "edited.txt") for code in codes)
    job.resume(logs=False)
    assert job.status == "Completed"
    assert (source / "data.txt").read_text() == "data" * 1000
    for code in codes:
        assert (code / "data.txt").read_text() == "data" * 1000 + "more"
        assert (code / "edited.txt").read_text() == "01"
        assert (code / "written").exists()
