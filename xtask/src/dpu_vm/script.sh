# Starts pierhead in the virtual machine of `cargo xtask dpu-vm`, a simulated DPU. The init process
# of the machine, xtask/src/guest/init.sh, runs this script. The script sets up network and disk,
# starts pierhead, and runs the commands that the host writes to /dev/hvc0.
mkdir -p /data /run /tmp /root
date -s "@$NOW" >/dev/null
export HOME=/root
ip link set lo up
# The addresses of QEMU's user network: guest, router and name server.
ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up &&
  ip route add default via 10.0.2.2 || die "no network"
echo nameserver 10.0.2.3 >/etc/resolv.conf
mount -t ext4 /dev/vda /data || die "mount /dev/vda"
mkdir -p /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup

# Starts pierhead and waits until it is ready.
begin() {
  rm -f /run/ready
  pierhead serve --config /etc/pierhead.toml --ready-file /run/ready >>/run/log 2>&1 &
  daemon=$!
  until [ -e /run/ready ]; do
    kill -0 $daemon 2>/dev/null || { cat /run/log; return 1; }
    sleep 0.1
  done
}
# Sends a signal to pierhead, waits for its end, and returns its exit status.
finish() {
  kill -"$1" $daemon
  wait $daemon
}

exec 3<>/dev/hvc0
stty raw -echo <&3
begin || die "pierhead does not start"
ready
echo "guest: ready" >&3
while read -r line <&3; do
  eval "$line" </dev/null >&3 2>&1
  echo "guest: end $?" >&3
done
