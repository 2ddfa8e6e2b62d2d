#!/bin/sh
# Writes the lock files beside it: lock.sh PATH-TO-UV. Every version is pinned with its hashes,
# for every platform and every Python from 3.11 on; no index, host or path of this machine is named.
set -eu
uv=$1
here=$(dirname "$0")

compile() { # NAME ARGUMENTS…
    name=$1
    shift
    "$uv" pip compile pyproject.toml --quiet --system-certs --universal --generate-hashes --python-version 3.11 \
        --upgrade --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        "$@" --output-file "$here/$name.txt"
}

compile dev --extra web --group dev
# The rest follows dev, so that what is tested is what runs.
compile run --extra web --constraints "$here/dev.txt"
compile local --extra local --no-deps --constraints "$here/dev.txt"
"$uv" pip compile --quiet --system-certs --universal --generate-hashes --python-version 3.11 --upgrade \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
    --group pyproject.toml:bootstrap --output-file "$here/bootstrap.txt"
