#!/bin/sh
# Builds the addon for this machine: packages/node/standfast.node. PROFILE=dist builds it as it is published.
set -eu
cd "$(dirname "$0")/native"
profile=${PROFILE:-release}
cargo build --profile "$profile" -p standfast-node "$@"
target=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
cp "$target/$profile/libstandfast_node.so" ../standfast.node.new
mv ../standfast.node.new ../standfast.node
