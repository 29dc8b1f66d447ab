"""`python -m engines.llamacpp`: the llama.cpp sidecar; see engines.sidecar for how it is started."""

import sys

from engines.llamacpp.app import main

if __name__ == "__main__":
    sys.exit(main())
