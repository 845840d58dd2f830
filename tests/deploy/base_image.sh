#!/bin/sh
# A stand-in for the image python:3.11-slim-bookworm, made from Debian's own packages: for machines
# that have a container engine and Debian's archive, but no image registry.
#
#   tests/deploy/base_image.sh TAG            (as root; debootstrap and docker)
#   docker build --build-arg BASE=TAG .
#
# The certificates that this machine trusts come along, so that pip works behind the same proxy.
set -eu
tag=${1:?which tag?}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >&2
ln -s /usr/bin/python3 "$root/usr/local/bin/python"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' > "$root/etc/pip.conf"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | docker import - "$tag"
