# Script of the systemd machine, which guest/init.sh runs: mounts the host's root and a disk for
# pierhead's data, and starts systemd. Only units that are enabled by default on every system run,
# none that the host's administrator enabled.
host_root
# What QEMU's network calls its guest and its router.
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.2.2 || die "no network"
mkdir -p /root/var/lib/pierhead
mount -t ext4 /root/dev/vda /root/var/lib/pierhead || die "mount /dev/vda"

units=/root/etc/systemd/system
mount -t tmpfs -o mode=755 units "$units" || die "mount $units"
# What takes seconds of an emulated processor, or would look through the host's folders.
for unit in systemd-binfmt systemd-hwdb-update systemd-journal-flush systemd-tmpfiles-setup systemd-udev-trigger \
  systemd-udevd systemd-update-utmp systemd-timesyncd systemd-modules-load systemd-sysusers ldconfig; do
  ln -s /dev/null "$units/$unit.service"
done
cp /job/guest.service /job/guest.target "$units"
mkdir -p /root/run/guest /root/run/systemd/journald.conf.d
cp /job/shell /job/settings /root/run/guest
printf '[Journal]\nStorage=volatile\n' >/root/run/systemd/journald.conf.d/guest.conf
# dpkg's trigger for manual pages would read every one of the host.
ln -sf /bin/true /root/usr/bin/mandb
echo force-unsafe-io >/root/etc/dpkg/dpkg.cfg.d/guest
# Where the host is a container, systemd would believe that it is in one.
rm -f /root/.dockerenv
unset container
exec switch_root /root /usr/lib/systemd/systemd
