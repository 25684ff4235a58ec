#!/usr/bin/env bash
# Rebuild src/attentropy/report/vendor/echarts.min.js from npm, at exactly these versions.
# Needs node and npm; nobody needs to run it to use or to package attentropy.
set -euo pipefail
ECHARTS=6.1.0
ZRENDER=6.1.0
ESBUILD=0.28.2

here=$(cd "$(dirname "$0")" && pwd)
vendor="$here/../src/attentropy/report/vendor"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
npm init -y >/dev/null
npm install --no-audit --no-fund --save-exact \
  "echarts@$ECHARTS" "zrender@$ZRENDER" "esbuild@$ESBUILD"
cp "$here/echarts_entry.js" entry.js
npx esbuild entry.js --bundle --minify --format=iife --global-name=echarts --target=es2020 \
  --charset=ascii --legal-comments=none --define:process.env.NODE_ENV='"production"' \
  --banner:js="/*! Apache ECharts $ECHARTS (Apache-2.0), zrender $ZRENDER (BSD-3-Clause), d3 parts (BSD-3-Clause): see the licence files beside this one */" \
  --outfile="$vendor/echarts.min.js"
cp node_modules/echarts/LICENSE "$vendor/LICENSE-echarts"
cp node_modules/echarts/NOTICE "$vendor/NOTICE-echarts"
cp node_modules/echarts/licenses/LICENSE-d3 "$vendor/LICENSE-d3"
cp node_modules/zrender/LICENSE "$vendor/LICENSE-zrender"
cp node_modules/tslib/LICENSE.txt "$vendor/LICENSE-tslib"
