# Shell service in the virtual machine of `cargo xtask systemd-vm`: runs the commands that the host
# writes to /dev/hvc0.
. /run/guest/settings
tell() { echo "$@" >/dev/hvc1; }
finish() { tell "exit $1"; sync; systemctl poweroff --force --force; }
# Ends the machine after a time limit, because nothing else ends it if the host's process is killed.
(sleep "$LIMIT"; finish 124) &

# Waits until systemd has restarted pierhead the given number of times and pierhead serves.
anew() {
  until [ "$(systemctl show --value --property=NRestarts pierhead)" -ge "$1" ] &&
    systemctl --quiet is-active pierhead; do
    sleep 0.1
  done
}

exec 3<>/dev/hvc0
stty raw -echo <&3
tell "ready $(cut -d' ' -f1 /proc/uptime)"
echo "guest: ready" >&3
while read -r line <&3; do
  eval "$line" </dev/null >&3 2>&1
  echo "guest: end $?" >&3
done
