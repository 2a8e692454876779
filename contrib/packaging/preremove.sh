#!/bin/sh
# A package that is removed takes its services along; one that is upgraded leaves them
# running as they are. dpkg says remove or upgrade, rpm how many versions will be left.
set -e
# dpkg also says remove where weir and weir-slim take each other's place: then the units stay.
case "$1 ${2-}" in
"remove in-favour") ;;
"remove "* | "0 "*)
	if [ -d /run/systemd/system ]; then
		systemctl --quiet disable --now weir-proxy.socket weir-proxy.service weir-outbox.service weir-kv.service weir-wal.service || true
	fi
	;;
esac
