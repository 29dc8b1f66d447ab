"""`python -m engines.llamacpp`: the llama.cpp sidecar; see engines.sidecar.shell for how it is started."""

import os
import sys

# OpenMP threads that wait for each other spin by default. Beside other busy processes (a gateway, a second sidecar) that costs a
# time slice at each of the hundreds of barriers of a step: measured, a tenth of the speed. It must be said before the library is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

from engines.llamacpp.app import main

if __name__ == "__main__":
    sys.exit(main())
