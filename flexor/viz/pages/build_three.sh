#!/bin/sh
# Bundles three.js into three.min.js, which pages carry. It needs node and npm, and packages of npm: three and esbuild.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund three@0.187.0 esbuild@0.28.2
cp "$here/three_entry.js" entry.js
npx esbuild entry.js --bundle --minify --format=iife --global-name=flexorThree --legal-comments=inline \
  --outfile="$here/three.min.js"
cp node_modules/three/LICENSE "$here/three.LICENSE"
