#!/usr/bin/env bash
# Installs the gateways that the relay benchmark compares with, each pinned and in an environment of its own under the cache
# directory (never in .venv), and prints one line per peer: NAME DIRECTORY.
#
#   loadtests/relay/peers.sh                          vllm-router and sglang-router
#   loadtests/relay/peers.sh vllm-router litellm      these
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

declare -A PINS=(
    [vllm-router]="vllm-router==0.1.17"
    [sglang-router]="sglang-router==0.3.2"
    [litellm]="litellm[proxy]==1.108.7"
)

[ $# -gt 0 ] || set -- vllm-router sglang-router
python="$(find_python)"
for name in "$@"; do
    pin="${PINS[$name]:-}"
    [ -n "$pin" ] || die "no such peer: $name (known: ${!PINS[*]})"
    directory="$CACHE/peers/${pin//[^a-z0-9.]/-}"
    if [ ! -e "$directory/.complete" ]; then
        say "installing $pin"
        rm -rf -- "$directory"
        "$python" -m venv "$directory"
        "$directory/bin/python" -m pip install -qq --disable-pip-version-check --only-binary :all: "$pin"
        touch "$directory/.complete"
    fi
    echo "$name $directory"
done
