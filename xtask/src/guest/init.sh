#!/bin/busybox sh
# The init process of the virtual machines in which xtask tests pierhead: mounts file systems, loads
# kernel modules, and runs /job/script, the script of one machine. The output of this script is the
# console that xtask shows on a failure.
/bin/busybox mkdir -p /bin /dev /proc /sys
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys

. /job/settings
# The folder that contains /dev and /proc, after a script has moved them.
TOP=
# The host reads these lines: "ready SECONDS" when the job begins, "exit STATUS" when it has ended.
tell() { echo "$@" >"$TOP/dev/hvc1"; }
ready() { tell "ready $(cut -d' ' -f1 "$TOP/proc/uptime")"; }
die() { echo "init: $*"; sync; poweroff -f; }
# The host ends the machine after its time limit. The timer ends the machine if the host process is
# killed.
(sleep "$LIMIT"; die "still running after $LIMIT s") &

while read -r module; do
  insmod "/modules/$module.ko" || die "insmod $module"
done </modules/order

. /job/root
. /job/script
