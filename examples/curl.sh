#!/bin/sh
# Draw a picture with curl alone: submit, poll, fetch.   examples/curl.sh [SERVER] [OUT.png]
set -eu
server=${1:-http://127.0.0.1:8188}
out=${2:-picture.png}
here=$(dirname "$0")

field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | head -n 1; } # of one line of JSON

id=$(curl -sSf "$server/prompt" -H 'Content-Type: application/json' -d "@$here/text_to_image.json" | field prompt_id)
while entry=$(curl -sSf "$server/history/$id") && [ "$entry" = "{}" ]; do sleep 0.5; done
case $entry in *'"status_str":"success"'* | *'"status_str": "success"'*) ;; *) echo "$entry" >&2; exit 1 ;; esac
file=$(printf %s "$entry" | sed 's/.*"outputs"//' | field filename)
curl -sSf -G "$server/view" --data-urlencode "filename=$file" -d type=output -o "$out"
echo "$out"
