#!/bin/busybox sh
# The first process of a guest: what each machine needs, then /job/script, which is the machine's own. What it
# prints is the console that a failure shows.
/bin/busybox mkdir -p /bin /dev /proc /sys
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys

. /job/settings
# Where /dev and /proc are, once a script has moved them.
TOP=
# The host reads these lines: "ready SECONDS" when the job begins, "exit STATUS" when it ended.
tell() { echo "$@" >"$TOP/dev/hvc1"; }
ready() { tell "ready $(cut -d' ' -f1 "$TOP/proc/uptime")"; }
die() { echo "init: $*"; sync; poweroff -f; }
# The host's clock ends the machine; if the host's process is killed, this one does.
(sleep "$LIMIT"; die "still running after $LIMIT s") &

while read -r module; do
  insmod "/modules/$module.ko" || die "insmod $module"
done </modules/order

. /job/root
. /job/script
