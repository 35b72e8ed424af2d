# Shell function `host_root` for virtual machines without a system of their own: mounts the host's
# root read-only below a memory overlay at /root, and moves /dev, /proc and /sys there. The guest
# can run every program of the host and changes no file of the host.
plan9=trans=virtio,version=9p2000.L,msize=524288
host_root() {
  mkdir -p /host /over /root
  mount -t 9p -o "ro,cache=loose,$plan9" host /host || die "mount the host's root"
  mount -t tmpfs -o size=60% over /over && mkdir /over/upper /over/work
  mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work root /root ||
    die "mount the overlay"
  for folder in dev proc sys; do
    mkdir -p "/root/$folder" && mount --move "/$folder" "/root/$folder" || die "move /$folder"
  done
  # init.sh reads TOP: the folder that now contains /dev and /proc.
  TOP=/root
  mkdir -p /root/run /root/dev/shm
  mount -t tmpfs -o mode=755 run /root/run && mkdir -m 1777 /root/run/tmp
  mount -t tmpfs shm /root/dev/shm
}
