#!/usr/bin/env python3
"""Fetches NVIDIA's headers from the Python packages that carry them: fetch_headers.py DIRECTORY

pip says where the packages are; of each (some are half a gigabyte) only the headers are read, by asking the server for
those parts of the file. Nothing is installed."""
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

# One CUDA release, the one that the runtime is tested with.
PACKAGES = ['nvidia-cuda-runtime==13.0.96', 'nvidia-cuda-crt==13.0.88', 'nvidia-cuda-cccl==13.0.85',
            'nvidia-cublas==13.1.0.3', 'nvidia-nvtx==13.0.85', 'nvidia-nccl-cu13==2.28.9', 'nvidia-cudnn-cu13==9.19.0.56']
NEEDED = ['cuda_runtime.h', 'cuda_bf16.h', 'crt/host_defines.h', 'cublas_v2.h', 'cublasLt.h', 'nvtx3/nvToolsExt.h', 'nccl.h',
          'cudnn_graph.h']


class RemoteFile(io.RawIOBase):
    """A file on a web server, read piece by piece."""

    def __init__(self, url):
        super().__init__()
        self.url, self.position = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method='HEAD'), timeout=60) as answer:
            self.size = int(answer.headers['Content-Length'])

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=io.SEEK_SET):
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def readinto(self, buffer):
        last = min(self.position + len(buffer), self.size) - 1
        if last < self.position:
            return 0
        request = urllib.request.Request(self.url, headers={'Range': f'bytes={self.position}-{last}'})
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.status != 206:
                raise OSError('the server sends files only whole')
            data = answer.read()
        buffer[:len(data)] = data
        self.position += len(data)
        return len(data)


def package_urls():
    command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--dry-run', '--no-deps', '--ignore-installed',
               '--disable-pip-version-check', '--only-binary=:all:', '--report', '-'] + PACKAGES
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or ['pip failed']
        raise OSError(lines[-1])
    report = json.loads(answer.stdout[answer.stdout.index('{'):])
    return [item['download_info']['url'] for item in report['install']]


def header_path(member):
    """Where a file of a package belongs below the include directory, or None for other files."""
    before, separator, path = member.partition('/include/')
    return path if separator and before.startswith('nvidia') and path and not path.endswith('/') and '..' not in path else None


def extract_headers(url, directory):
    with zipfile.ZipFile(io.BufferedReader(RemoteFile(url), 1 << 20)) as package:
        for member in sorted(package.infolist(), key=lambda item: item.header_offset):
            path = header_path(member.filename)
            if path is None or (path.startswith('cccl/') and not path.startswith('cccl/nv/')):
                continue
            target = os.path.join(directory, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, 'wb') as file:
                file.write(package.read(member))


def main():
    if len(sys.argv) != 2:
        sys.exit('usage: fetch_headers.py DIRECTORY')
    target = sys.argv[1]
    parent = os.path.dirname(os.path.abspath(target))
    os.makedirs(parent, exist_ok=True)
    fresh = tempfile.mkdtemp(dir=parent)
    try:
        for url in package_urls():
            extract_headers(url, fresh)
        missing = [name for name in NEEDED if not os.path.exists(os.path.join(fresh, name))]
        if missing:
            raise OSError('the packages hold no ' + ', '.join(missing))
        os.chmod(fresh, 0o755)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(fresh, target)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        sys.exit(f'headers.sh: CUDA headers could not be fetched: {error}')
    print(f'CUDA headers are in {target}')


if __name__ == '__main__':
    main()
