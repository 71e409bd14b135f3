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

check=dax-vm
skip_variable=DURIX_DAX_VM
. ci/vm.sh

build_initramfs() {
    begin_initramfs
    add_program ndctl
    add_program mkfs.ext4
    add_program "$probe"
    for module in libnvdimm nfit nd_btt nd_pmem dax_pmem crc32c_generic crc32c-intel crc32c-cryptoapi libcrc32c crc16 \
        mbcache jbd2 ext4; do
        add_module "$module"
    done
    write_init
    end_initramfs
}

# What runs inside. Options: expect, then, acknowledged, torture.
write_init() {
    cat >"$root/init" <<'INIT'
#!/bin/busybox sh
. /begin

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
}

# boot_nvdimm LOG PERSISTENCE EXPECT THEN ACKNOWLEDGED [TORTURE]
boot_nvdimm() {
    local log=$1 machine=pc,nvdimm=on
    [ "$2" = nothing ] || machine=$machine,nvdimm-persistence=$2
    boot "$log" 150 "durix.expect=${3// /_} durix.then=$4 durix.acknowledged=$5 durix.torture=${6:-}" \
        -machine "$machine" -accel tcg -m 512M,slots=2,maxmem=2G \
        -object "memory-backend-file,id=nv,share=on,mem-path=$work/nvdimm,size=256M" -device nvdimm,memdev=nv
}

# Of the lines that have ended: the machine may be killed in the middle of one.
last_acknowledged() {
    sed -n 's/^acknowledged \([0-9]*\)\r$/\1/p' "$1" | tail -1
}

# ---- the check ----

install_packages qemu-system-x86_64:qemu-system-x86 busybox:busybox-static ndctl:ndctl mkfs.ext4:e2fsprogs cpio:cpio
# As the tests have compiled it, so that nothing is compiled for this alone.
. ci/as-tests.sh
cargo build "${as_tests[@]}" --examples
probe=$(realpath "${CARGO_TARGET_DIR:-target}/debug/examples/dax_probe")
start=$SECONDS
unpack_kernel
build_initramfs
truncate -s 256M "$work/nvdimm"

echo "dax-vm: first boot, nvdimm-persistence not given"
boot_nvdimm "$work/log1" nothing '(clwb)' work 0 "${DURIX_DAX_VM_ROUNDS:-10}"
wait_for "$work/log1" '^acknowledged 1000$'
kill_machine
show "$work/log1"
first=$(last_acknowledged "$work/log1")
echo "dax-vm: QEMU killed after acknowledgement $first"

echo "dax-vm: second boot, nvdimm-persistence=mem-ctrl"
boot_nvdimm "$work/log2" mem-ctrl '(clwb)' work "$first"
wait_for "$work/log2" "^acknowledged $((first + 1000))\$"
kill_machine
show "$work/log2"
second=$(last_acknowledged "$work/log2")
echo "dax-vm: QEMU killed after acknowledgement $second"

echo "dax-vm: third boot, nvdimm-persistence=cpu"
boot_nvdimm "$work/log3" cpu 'fence only' verify "$second"
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
