#!/bin/sh
# Fetches GPT-2's vocabulary as data/gpt2.tiktoken (0.8 MB): it lies in the source package openai-whisper==20250625 of
# Python's package index. The package is unpacked, never installed or run. Needs python3 with pip.
#   scripts/get_gpt2_vocab.sh [FILE]
set -u
. "$(dirname "$0")/usage.sh"
take_words 0 1 "$@"
cd "$(dirname "$0")/.." || exit 1
target=${1:-data/gpt2.tiktoken}
sha256=306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930

checksum_of() { python3 -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1"; }

command -v python3 >/dev/null 2>&1 || refuse "python3 is missing; install it with pip (Debian: apt-get install python3 python3-pip)"
python3 -c 'import pip' 2>/dev/null || refuse "Python's pip is missing; install it (Debian: apt-get install python3-pip)"
if [ -f "$target" ] && [ "$(checksum_of "$target")" = "$sha256" ]; then
    echo "$target is there already"
    exit 0
fi

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work" "$target.tmp"' EXIT
trap 'exit 1' INT TERM

# pip downloads a source package only after running its build script. So pip is asked merely which index it uses, and
# the package is fetched from there by name.
python3 - "$work/package.tar.gz" >"$work/log" 2>&1 <<'PYTHON'
import html.parser
import os
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request

from pip._internal.models.index import PyPI

FILE = "openai_whisper-20250625.tar.gz"


def setting(name):
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    for section in ("install", "download", "global"):
        command = [sys.executable, "-m", "pip", "config", "get", f"{section}.{name}"]
        value = value or subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return value


class Links(html.parser.HTMLParser):
    found = None

    def handle_starttag(self, tag, attributes):
        address = dict(attributes).get("href") or ""
        if tag == "a" and urllib.parse.urlparse(address).path.endswith("/" + FILE):
            self.found = address


index = (setting("index-url") or PyPI.simple_url).rstrip("/") + "/openai-whisper/"
context = ssl.create_default_context(cafile=setting("cert") or None)
links = Links()
links.feed(urllib.request.urlopen(index, timeout=60, context=context).read().decode())
if not links.found:
    sys.exit(f"the package index does not list {FILE}")
package = urllib.request.urlopen(urllib.parse.urljoin(index, links.found), timeout=60, context=context).read()
open(sys.argv[1], "wb").write(package)
PYTHON
if [ ! -s "$work/package.tar.gz" ]; then
    # Another index, a proxy or a certificate that only pip knows: let pip try.
    python3 -m pip download -q --no-deps --no-binary :all: -d "$work/pip" "openai-whisper==20250625" >>"$work/log" 2>&1
    for package in "$work"/pip/*.tar.gz; do
        [ -f "$package" ] && mv "$package" "$work/package.tar.gz"
    done
fi
[ -s "$work/package.tar.gz" ] ||
    refuse "the download failed: $(tail -n 1 "$work/log"); check the network and pip's settings, then run it again"

python3 - "$work/package.tar.gz" "$work/gpt2.tiktoken" >"$work/log" 2>&1 <<'PYTHON' ||
import sys
import tarfile

package = tarfile.open(sys.argv[1])
name = next(n for n in package.getnames() if n.endswith("/whisper/assets/gpt2.tiktoken"))
open(sys.argv[2], "wb").write(package.extractfile(name).read())
PYTHON
    refuse "the package could not be unpacked: $(tail -n 1 "$work/log"); run it again"
found=$(checksum_of "$work/gpt2.tiktoken")
[ "$found" = "$sha256" ] || refuse "the vocabulary's sha256 is $found, expected $sha256; nothing was written"

mkdir -p "$(dirname "$target")" && cp "$work/gpt2.tiktoken" "$target.tmp" && mv "$target.tmp" "$target" ||
    refuse "$target cannot be written"
echo "$target: GPT-2's 50256 ranks"
