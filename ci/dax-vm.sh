#!/usr/bin/env bash
# The real DAX path, in a virtual machine with an emulated NVDIMM: ext4 on DAX, MAP_SYNC, clwb, eADR.
#
# QEMU boots Debian's stock kernel, unpacked from its package and not installed, with an initramfs of busybox, ndctl,
# e2fsprogs, a few modules and `examples/dax_probe.rs`. Three boots on the same backing file:
#
#   nothing said    the namespace and the file system are made; the pool must choose DAX, MAP_SYNC and clwb; processes are
#                   killed inside; then QEMU itself is killed (SIGKILL) in the middle of acknowledged updates
#   mem-ctrl        everything acknowledged is found; still clwb, no eADR; QEMU is killed again
#   cpu             everything acknowledged is found; eADR must be detected: fences only
#
# What this cannot show is a missing write-back: the emulated NVDIMM is the host's page cache, which keeps every store. That
# is what the crash simulator and `Shadow` are for. It shows that the DAX path works: mapping, growing, recovering.
#
# Needs Debian with apt, and root to install qemu-system-x86, busybox-static, ndctl, e2fsprogs and cpio where they are
# missing. DURIX_DAX_VM=skip-if-impossible: says so and succeeds where they cannot be had; without it that is a failure.
# DURIX_DAX_VM_DIR keeps the kernel between runs (default: target/dax-vm).
set -euo pipefail
cd "$(dirname "$0")/.."

keep=${DURIX_DAX_VM_DIR:-target/dax-vm}
mkdir -p "$keep"
keep=$(cd "$keep" && pwd)
work=$(mktemp -d)
qemu=

cleanup() {
    [ -z "$qemu" ] || { pkill -9 -P "$qemu"; kill -9 "$qemu"; } 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

fail() {
    echo "dax-vm: $*" >&2
    exit 1
}

impossible() {
    if [ "${DURIX_DAX_VM:-}" = skip-if-impossible ]; then
        echo "dax-vm: SKIPPED: $*"
        exit 0
    fi
    fail "$* (DURIX_DAX_VM=skip-if-impossible skips this check)"
}

# ---- what is needed ----

install_packages() {
    local missing=()
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v busybox >/dev/null || missing+=(busybox-static)
    command -v ndctl >/dev/null || missing+=(ndctl)
    PATH=$PATH:/sbin:/usr/sbin command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
    command -v cpio >/dev/null || missing+=(cpio)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || impossible "no apt-get, and ${missing[*]} missing"
    echo "dax-vm: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { timeout 300 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
        >"$work/apt.log" 2>&1 || { tail -5 "$work/apt.log" >&2; impossible "cannot install ${missing[*]}"; }
}

# The kernel of $package as $kernel, its modules below $modules. What is needed of the package stays in $keep.
unpack_kernel() {
    local package deb unpacked
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1 || true)
    [ -n "$package" ] || impossible "apt knows no package linux-image-amd64 (apt-get update?)"
    unpacked=$keep/$package
    if [ ! -d "$unpacked" ]; then
        echo "dax-vm: downloading and unpacking $package"
        (cd "$work" && timeout 600 apt-get download -qq "$package" >"$work/apt.log" 2>&1) ||
            { tail -n 5 "$work/apt.log" >&2; impossible "cannot download $package"; }
        deb=$(find "$work" -name 'linux-image-*.deb')
        mkdir "$work/kernel"
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/kernel" --wildcards '*/vmlinuz-*' '*/kernel/drivers/nvdimm/*' \
            '*/kernel/drivers/acpi/nfit/*' '*/kernel/drivers/dax/*' '*/kernel/crypto/crc32c*' '*crc32c*' '*/kernel/lib/crc16*' \
            '*/kernel/fs/ext4/*' '*/kernel/fs/jbd2/*' '*/kernel/fs/mbcache*'
        rm -rf "$deb" "$keep"/linux-image-*
        mv "$work/kernel" "$unpacked"
    fi
    kernel=$(find "$unpacked" -name 'vmlinuz-*')
    modules=$unpacked
    echo "dax-vm: $(basename "$kernel"), $(qemu-system-x86_64 --version | head -n 1)"
}

# Copies a program and the shared libraries it needs to the same paths of the initramfs.
add_program() {
    local program library
    program=$(PATH=$PATH:/sbin:/usr/sbin command -v "$1")
    cp -L "$program" "$root/bin/"
    for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ )]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

add_module() {
    local file
    file=$(find "$modules" -name "$1.ko" -o -name "$1.ko.xz" -o -name "$1.ko.zst")
    [ -n "$file" ] || return 0 # Built in, or gone in this kernel: then what needs it says so.
    case $file in
    *.xz) xz -dc "$file" >"$root/modules/$1.ko" ;;
    *.zst) zstd -qdc "$file" >"$root/modules/$1.ko" ;;
    *) cp "$file" "$root/modules/" ;;
    esac
    echo "$1" >>"$root/modules/order"
}

build_initramfs() {
    root=$work/root
    mkdir -p "$root"/{bin,proc,sys,dev,mnt,modules,etc,run,tmp,lib,lib64}
    cp "$(command -v busybox)" "$root/bin/busybox"
    add_program ndctl
    add_program mkfs.ext4
    add_program "$probe"
    for module in libnvdimm nfit nd_btt nd_pmem dax_pmem crc32c_generic crc32c-intel crc32c-cryptoapi libcrc32c crc16 \
        mbcache jbd2 ext4; do
        add_module "$module"
    done
    write_init
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"
}

# What runs inside. The kernel's command line says what to do: durix.expect, durix.acknowledged, durix.torture.
write_init() {
    cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in $(cat /modules/order); do
    insmod "/modules/$module.ko" 2>/dev/null
done
say() { echo "vm: $*"; }
die() { say "FAILED: $*"; poweroff -f; }
option() { sed -n "s/.*durix\.$1=\([^ ]*\).*/\1/p" /proc/cmdline | tr _ ' '; }

for i in 1 2 3 4 5 6 7 8 9 10; do
    [ -b /dev/pmem0 ] && break
    sleep 0.2
done
[ -b /dev/pmem0 ] || die "no /dev/pmem0"
domain=$(cat /sys/bus/nd/devices/region0/persistence_domain 2>/dev/null || echo none)
say "kernel $(uname -r), persistence domain: $domain"
if ! mount -t ext4 -o dax=always /dev/pmem0 /mnt 2>/dev/null; then
    # Before there is a file system, it is a raw namespace without struct pages.
    ndctl create-namespace -f -e namespace0.0 -m fsdax --map=mem >/dev/null || die "ndctl create-namespace"
    # DAX needs blocks as large as pages, and a small device would get smaller ones.
    mkfs.ext4 -q -b 4096 /dev/pmem0 || die "mkfs.ext4"
    mount -t ext4 -o dax=always /dev/pmem0 /mnt || die "mount -o dax=always"
    say "namespace and file system made"
fi
grep -q 'pmem0 /mnt ext4 .*dax=always' /proc/mounts || die "not mounted with DAX: $(grep pmem0 /proc/mounts)"

dax_probe describe /mnt/probe.pool 'persistent memory (DAX), MAP_SYNC' "$(option expect)" 'survives power failure' || die describe
grep -q . /mnt/torture.pool 2>/dev/null || rounds=$(option torture)
[ -z "$rounds" ] || dax_probe torture /mnt/torture.pool "$rounds" >/tmp/torture || die "torture: $(tail -3 /tmp/torture)"
[ -z "$rounds" ] || say "$(tail -1 /tmp/torture)"
case $(option then) in
work) dax_probe work /mnt/probe.pool "$(option acknowledged)" || die work ;;
*) dax_probe verify /mnt/probe.pool "$(option acknowledged)" || die verify ;;
esac
umount /mnt || die umount
say DONE
poweroff -f
INIT
    chmod +x "$root/init"
}

# ---- the virtual machine ----

# boot LOG PERSISTENCE EXPECT THEN ACKNOWLEDGED [TORTURE]: starts QEMU in the background, its console in LOG.
boot() {
    local log=$1 machine=pc,nvdimm=on
    [ "$2" = nothing ] || machine=$machine,nvdimm-persistence=$2
    # The timeout ends QEMU should this script be killed in a way that no trap sees.
    timeout -k 1 150 qemu-system-x86_64 -machine "$machine" -accel tcg -cpu max -m 512M,slots=2,maxmem=2G \
        -object "memory-backend-file,id=nv,share=on,mem-path=$work/nvdimm,size=256M" -device nvdimm,memdev=nv \
        -kernel "$kernel" -initrd "$work/initramfs" -nodefaults -display none -serial "file:$log" -no-reboot \
        -append "console=ttyS0 quiet panic=-1 durix.expect=${3// /_} durix.then=$4 durix.acknowledged=$5 durix.torture=${6:-}" \
        </dev/null >"$work/qemu.log" 2>&1 &
    qemu=$!
    disown "$qemu" # So that the shell does not report that it was killed.
}

show() {
    tr -d '\r' <"$1" | grep -aE '^(vm|pool|verified|torture|dax_probe):' | sed 's/^/    /' || true
}

# wait_for LOG PATTERN: until a line of the console matches; fails if the machine fails or ends first.
wait_for() {
    local deadline=$((SECONDS + 120))
    : >>"$1"
    until tr -d '\r' <"$1" | grep -aqE "$2"; do
        if ! kill -0 "$qemu" 2>/dev/null; then
            tr -d '\r' <"$1" | grep -aqE "$2" && return 0
            tail -n 15 "$work/qemu.log" >&2
            tail -n 15 "$1" >&2
            fail "the virtual machine ended before it said /$2/"
        fi
        [ $SECONDS -lt $deadline ] || { tail -n 15 "$1" >&2; fail "no /$2/ within two minutes"; }
        sleep 0.1
    done
}

# Kills QEMU without any warning. `timeout` is its parent and would pass on only what it can catch.
kill_machine() {
    pkill -9 -P "$qemu" || fail "the virtual machine was gone before it could be killed"
    wait_for_end
}

wait_for_end() {
    for _ in $(seq 100); do
        kill -0 "$qemu" 2>/dev/null || { qemu=; return; }
        sleep 0.1
    done
    fail "the virtual machine does not end"
}

# Of the lines that have ended: the machine may be killed in the middle of one.
last_acknowledged() {
    sed -n 's/^acknowledged \([0-9]*\)\r$/\1/p' "$1" | tail -1
}

# ---- the check ----

install_packages
cargo build --release -p durix-examples --example dax_probe
probe=$(realpath "${CARGO_TARGET_DIR:-target}/release/examples/dax_probe")
start=$SECONDS
unpack_kernel
build_initramfs
truncate -s 256M "$work/nvdimm"

echo "dax-vm: first boot, nvdimm-persistence not given"
boot "$work/log1" nothing '(clwb)' work 0 "${DURIX_DAX_VM_ROUNDS:-10}"
wait_for "$work/log1" '^acknowledged 1000$'
kill_machine
show "$work/log1"
first=$(last_acknowledged "$work/log1")
echo "dax-vm: QEMU killed after acknowledgement $first"

echo "dax-vm: second boot, nvdimm-persistence=mem-ctrl"
boot "$work/log2" mem-ctrl '(clwb)' work "$first"
wait_for "$work/log2" "^acknowledged $((first + 1000))\$"
kill_machine
show "$work/log2"
second=$(last_acknowledged "$work/log2")
echo "dax-vm: QEMU killed after acknowledgement $second"

echo "dax-vm: third boot, nvdimm-persistence=cpu"
boot "$work/log3" cpu 'fence only' verify "$second"
wait_for "$work/log3" '^vm: (DONE|FAILED)'
wait_for_end
show "$work/log3"
grep -aq '^vm: DONE' "$work/log3" || fail "the third boot failed"
for check in 'log1 none' 'log2 memory_controller' 'log3 cpu_cache'; do
    read -r log domain <<<"$check"
    tr -d '\r' <"$work/$log" | sed -n 's/^vm: kernel.*persistence domain: *//p' | grep -qx "$domain" ||
        fail "$log: the kernel does not show the persistence domain $domain"
done
echo "dax-vm: passed in $((SECONDS - start)) s: DAX, MAP_SYNC, clwb; eADR only where the platform has it; nothing acknowledged was lost"
