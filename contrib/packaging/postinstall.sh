#!/bin/sh
# The user that the units run as, and a place for their configuration. No unit is
# enabled or started.
set -e
if ! getent passwd weir >/dev/null; then
	getent group weir >/dev/null || groupadd --system weir
	useradd --system --gid weir --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin weir
fi
[ -d /etc/weir ] || install -d -m 0750 -o root -g weir /etc/weir
# An upgrade may have changed units.
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
