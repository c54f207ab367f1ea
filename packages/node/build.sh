#!/bin/sh
# Builds the addon for this machine: packages/node/standfast.node.
set -eu
cd "$(dirname "$0")/native"
cargo build --release -p standfast-node "$@"
target=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
cp "$target/release/libstandfast_node.so" ../standfast.node.new
mv ../standfast.node.new ../standfast.node
