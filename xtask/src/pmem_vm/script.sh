# Runs one command in the virtual machine of `cargo xtask pmem-vm`, which has emulated persistent
# memory. The init process of the machine, xtask/src/guest/init.sh, runs this script. The script
# mounts the root folder of the host, the shared folder and the NVDIMM, runs /job/command, and
# powers the machine off.
host_root
mkdir -p /root/mnt/pmem /root/mnt/disk "/root$SHARE"
mount -t 9p -o "rw,cache=mmap,$plan9" share "/root$SHARE" || die "mount $SHARE"
ip link set lo up

# A new NVDIMM has one raw namespace without DAX. The following writes to sysfs do what `ndctl
# create-namespace -m fsdax` does, without the ten packages that ndctl needs. The kernel stores the
# result in the first blocks of the namespace and finds it at the next boot.
nd=/root/sys/bus/nd
[ -e $nd/devices/namespace0.0 ] || die "the machine has no NVDIMM"
if [ "$(cat $nd/devices/namespace0.0/mode)" = raw ]; then
  echo namespace0.0 >$nd/drivers/nd_pmem/unbind
  cat /root/proc/sys/kernel/random/uuid >$nd/devices/pfn0.0/uuid
  echo pmem >$nd/devices/pfn0.0/mode
  echo 2097152 >$nd/devices/pfn0.0/align
  echo namespace0.0 >$nd/devices/pfn0.0/namespace
  echo pfn0.0 >$nd/drivers/nd_pmem/bind || die "make the fsdax namespace"
fi
[ -b /root/dev/pmem0 ] || die "no /dev/pmem0"

path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
in_root() { chroot /root /usr/bin/env -i PATH=$path "$@"; }
# DAX needs file system blocks of the size of a memory page. An existing file system is from an
# earlier boot, and stays.
if ! in_root blkid -s TYPE -o value /dev/pmem0 >/dev/null; then
  in_root mkfs.ext4 -q -F -b 4096 /dev/pmem0 || die "mkfs.ext4 /dev/pmem0"
fi
in_root mount -t ext4 -o dax=always /dev/pmem0 /mnt/pmem || die "mount /dev/pmem0 with dax=always"
# For comparison: a file system of the same kind on a disk without DAX. An existing file system
# stays.
if ! in_root blkid -s TYPE -o value /dev/vda >/dev/null; then
  in_root mkfs.ext4 -q -F /dev/vda || die "mkfs.ext4 /dev/vda"
fi
in_root mount -t ext4 /dev/vda /mnt/disk || die "mount /dev/vda"

cp -r /job /root/run/job
# Keeps the terminal open: a closed terminal forgets its settings, and would end lines with CR LF.
exec 3<>/root/dev/hvc0
stty raw -echo <&3
ready
in_root HOME=/root TMPDIR=/run/tmp PIERHEAD_PMEM_DIR=/mnt/pmem \
  sh /run/job/command </dev/null >&3 2>&1
status=$?
in_root umount /mnt/pmem /mnt/disk
tell "exit $status"
sync
poweroff -f
