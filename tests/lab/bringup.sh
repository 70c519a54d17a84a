# Turns a fresh set of namespaces into one host, then stays as its first process until the lab lets go of its stdin.
# Started by lab.py inside new network, mount, UTS, IPC and PID namespaces. What it says on stdout, lab.py reads.
#
# The host is a copy-on-write view of this machine (an overlay over /), so anything may be installed, removed or
# reconfigured on it, and nothing of that reaches the machine or another host.
set -eu

# The /proc of the outer PID namespace is still mounted, so this is the pid by which the lab knows us.
read -r anchor _ </proc/self/stat
echo "pid $anchor"

mount -t tmpfs -o mode=755 lab "$LAB_SCRATCH"
mkdir "$LAB_SCRATCH/upper" "$LAB_SCRATCH/work" "$LAB_SCRATCH/root"
root=$LAB_SCRATCH/root
mount -t overlay lab -o "lowerdir=/,upperdir=$LAB_SCRATCH/upper,workdir=$LAB_SCRATCH/work" "$root"

# An overlay shows the file system of / alone; a /usr that is a mount of its own has to be brought along.
while read -r _ _ _ _ point _; do
  case $point in
    /usr | /usr/*) mount --bind -o ro "$point" "$root$point" ;;
  esac
done </proc/self/mountinfo

# Private and empty. Hiding /run/netns also keeps this host from pinning other labs' namespaces.
mount -t tmpfs -o mode=1777 lab "$root/tmp"
mount -t tmpfs -o mode=755 lab "$root/run"
mount -t tmpfs -o mode=755 lab "$root/home"
mount -t tmpfs -o mode=711 lab "$root/root"
mkdir -p "$root/run/sshd" "$root/run/lock"
# One folder that all hosts see, as over a file server. `umount /shared` on one host, and it has its own.
mkdir -p "$root/shared"
chmod 1777 "$root/shared"
mount --bind "$LAB_SHARED" "$root/shared"
# A host does not have the checkout: a program that reads the controller's files must fail here as it would anywhere.
if [ -d "$root$LAB_CHECKOUT" ]; then mount -t tmpfs -o mode=755 lab "$root$LAB_CHECKOUT"; fi

# Python: the interpreter and its packages are bound to a place the ordinary user can read.
home=$root/opt/runbook-lab
mkdir -p "$home/venv/bin" "$home/bare/bin" "$home/venv/lib/$LAB_PYTHON_NAME/site-packages"
base=$LAB_PYTHON_BASE
if [ "$base" != /usr ]; then
  mkdir "$home/base"
  mount --bind -o ro "$base" "$home/base"
  # The interpreter may look for its own library by its absolute path, which was just hidden.
  if [ ! -e "$root$base/bin" ]; then
    mkdir -p "$root$base"
    mount --bind -o ro "$base" "$root$base"
  fi
  base=/opt/runbook-lab/base
fi
for venv in venv bare; do
  printf 'home = %s/bin\ninclude-system-site-packages = false\n' "$base" >"$home/$venv/pyvenv.cfg"
  for program in python python3; do ln -s "$base/bin/$LAB_PYTHON_NAME" "$home/$venv/bin/$program"; done
done
# Listed in a .pth rather than linked: so the .pth files of the checkout's own environment are not obeyed on a host.
count=0
while read -r site; do
  [ -n "$site" ] || continue
  mkdir "$home/site$count"
  mount --bind -o ro "$site" "$home/site$count"
  echo "/opt/runbook-lab/site$count" >>"$home/venv/lib/$LAB_PYTHON_NAME/site-packages/lab.pth"
  count=$((count + 1))
done <<EOF
$LAB_SITES
EOF

# Accounts are those of a fresh system: who else may log in to this machine, and with which rights, is no matter of a test.
for file in passwd group shadow; do
  # Nobody but the system's own; a group has no members, an account no password.
  awk -F: -v OFS=: -v file="$file" -v kept="$LAB_ACCOUNTS" '
    BEGIN { count = split(kept, names, " "); for (n = 1; n <= count; n++) keep[names[n]] }
    file == "group" { $4 = "" }
    file == "shadow" { $2 = "*" }
    $1 in keep' "/etc/$file" >"$root/etc/$file"
done
rm -rf "$root/etc/sudoers.d"
cp "$LAB_FILES/sudoers" "$root/etc/sudoers"
chmod 440 "$root/etc/sudoers"

# The user exists on this host only.
echo "$LAB_USER:x:$LAB_UID:$LAB_UID::/home/$LAB_USER:/bin/bash" >>"$root/etc/passwd"
echo "$LAB_USER:x:$LAB_UID:" >>"$root/etc/group"
echo "$LAB_USER:*:19000:0:99999:7:::" >>"$root/etc/shadow" # no password, yet not locked: keys may log in
cp -r "$root/etc/skel" "$root/home/$LAB_USER"
mkdir -m 700 "$root/home/$LAB_USER/.ssh"
cp "$LAB_FILES/authorized_keys" "$root/home/$LAB_USER/.ssh/authorized_keys"
chmod 600 "$root/home/$LAB_USER/.ssh/authorized_keys"
chown -R "$LAB_UID:$LAB_UID" "$root/home/$LAB_USER"

mkdir -p "$root/etc/sudoers.d" "$root/etc/ssh"
cp "$LAB_FILES/sudo_of_user" "$root/etc/sudoers.d/$LAB_USER"
chmod 440 "$root/etc/sudoers.d/$LAB_USER"
cp "$LAB_FILES/sshd_config" "$root/etc/ssh/lab_sshd_config"
cp "$LAB_FILES/host_key" "$root/etc/ssh/lab_host_key"
chmod 600 "$root/etc/ssh/lab_host_key"
# May be links into /run or mounts of their own; here they are plain files.
rm -f "$root/etc/hosts" "$root/etc/hostname" "$root/etc/resolv.conf" "$root/etc/nsswitch.conf"
cp "$LAB_FILES/hosts" "$root/etc/hosts"
echo "$LAB_NAME" >"$root/etc/hostname"
: >"$root/etc/resolv.conf"
# No DNS: names are what /etc/hosts says, and nothing outside the lab is ever asked.
printf 'passwd: files\ngroup: files\nshadow: files\nhosts: files\n' >"$root/etc/nsswitch.conf"

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 lab "$root/dev/shm"

cd "$root"
pivot_root . .
umount -l .
cd /

echo "$LAB_NAME" >/proc/sys/kernel/hostname
# As systemd sets it on every common distribution: anyone may ping.
echo "0 2147483647" >/proc/sys/net/ipv4/ping_group_range
if [ -d /proc/sys/net/ipv6 ]; then echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad; fi
ip -batch - <<EOF
link set dev lo up
addr add $LAB_ADDRESS/$LAB_PREFIX_LENGTH dev eth0
link set dev eth0 gso_max_segs $LAB_GSO_SEGMENTS up
EOF

"$LAB_SSHD" -f /etc/ssh/lab_sshd_config -E /var/log/lab_sshd.log
echo ready
# As the first process bash also collects orphans. Stdin is a pipe from the lab: when the lab is gone, however it
# went, this ends, and the kernel kills every other process of the host with it.
read -r _ || true
