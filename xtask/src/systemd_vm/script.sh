# Boots the virtual machine in which `cargo xtask systemd-vm` tests the Debian package. The init
# process of the machine, xtask/src/guest/init.sh, runs this script. The script mounts the root
# folder of the host and a disk for pierhead's data, and starts systemd. An empty folder over
# /etc/systemd/system hides the units that the administrator of the host enabled: systemd starts
# only the units of packages (/usr/lib/systemd/system) and the unit of the test.
host_root
# The addresses of the guest and the router in QEMU's network.
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up &&
  ip route add default via 10.0.2.2 || die "no network"
mkdir -p /root/var/lib/pierhead
mount -t ext4 /root/dev/vda /root/var/lib/pierhead || die "mount /dev/vda"

units=/root/etc/systemd/system
mount -t tmpfs -o mode=755 units "$units" || die "mount $units"
# Masks units that take seconds on an emulated CPU or search the host's folders.
for unit in systemd-binfmt systemd-hwdb-update systemd-journal-flush systemd-tmpfiles-setup \
  systemd-udev-trigger systemd-udevd systemd-update-utmp systemd-timesyncd systemd-modules-load \
  systemd-sysusers ldconfig; do
  ln -s /dev/null "$units/$unit.service"
done
cp /job/guest.service /job/guest.target "$units"
mkdir -p /root/run/guest /root/run/systemd/journald.conf.d
cp /job/shell /job/settings /root/run/guest
printf '[Journal]\nStorage=volatile\n' >/root/run/systemd/journald.conf.d/guest.conf
# Disables dpkg's trigger for manual pages, which would read all manual pages of the host.
ln -sf /bin/true /root/usr/bin/mandb
echo force-unsafe-io >/root/etc/dpkg/dpkg.cfg.d/guest
# If the host is a container, removes the marks of a container, because systemd would believe that
# it runs in one.
rm -f /root/.dockerenv
unset container
exec switch_root /root /usr/lib/systemd/systemd
