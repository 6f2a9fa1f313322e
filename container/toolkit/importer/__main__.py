"""Run an importer (see ``server.py``). In a process that the importer has forked for a rank, run the rank's script.

In the process of a rank, this program's frame would be the outermost frame of the script's tracebacks. The frame is
removed from the tracebacks.
"""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

    from container.system import scripts
    from container.toolkit.importer import server

    _script, _names = server.main()
    try:
        with open(_script, "rb") as _file:
            _source = _file.read()
        exec(compile(_source, _script, "exec", dont_inherit=True), _names)
    except BaseException:
        scripts.hide_first_frame()
        raise
