#!/usr/bin/env bash
# Power failures under a real kernel: journaled databases on ext4 and on XFS, in a virtual machine, at every flush point.
#
# QEMU boots Debian's stock kernel, unpacked from its package and not installed, with an initramfs of busybox, dmsetup, mkfs, a few
# modules and `examples/power_probe`. The disks are memory of the machine. In each run
#
#   - the kernel's dm-log-writes target records what a file system writes, in the order in which it becomes durable, while threads
#     update a database, each update acknowledged by a mark in the record;
#   - then each moment at which something became durable is made again on another disk, and at some of them also a random part of what
#     was written until the next one: the file system is mounted, the database opened, checked, and compared with the marks.
#
# A run each on ext4 and XFS must find nothing; then one in which the journal's syncs are left out must find a loss.
#
# 300 flush points at least in all; DURIX_DEEP=1: 5,000. Needs Debian with apt, and root to install what is missing. DURIX_VM_ACCEL=kvm
# uses KVM instead of emulation, where it works. DURIX_POWER_VM=skip-if-impossible: says so and succeeds where this cannot be had; without it that is a failure.
# DURIX_DAX_VM_DIR keeps the kernel between runs (default: target/dax-vm).
set -euo pipefail
cd "$(dirname "$0")/.."

check=power-vm
skip_variable=DURIX_POWER_VM
. ci/vm.sh

build_initramfs() {
    begin_initramfs
    local module
    for module in dmsetup mkfs.ext4 mkfs.xfs "$probe"; do
        add_program "$module"
    done
    for module in dm-mod dm-log-writes dm-bufio dm-snapshot crc32c_generic crc32c-intel libcrc32c crc16 mbcache jbd2 ext4 xfs; do
        add_module "$module"
    done
    add_module brd
    sed -i /brd/d "$root/modules/order" # Loaded for each run.
    write_init
    end_initramfs
}

# What runs inside. Options: rounds, updates, states.
write_init() {
    cat >"$root/init" <<'INIT'
#!/bin/busybox sh
. /begin

export DM_DISABLE_UDEV=1
# A power failure means another boot.
echo 01234567-89ab-4cde-8f01-23456789abcd >/tmp/boot_id

# run FS ROUNDS UPDATES FAULT: records the work of a database in /dev/ram1.
record() {
    # Disk, record, replayed disk, changes of a snapshot: their memory is taken as they are written to.
    insmod /modules/brd.ko rd_nr=4 rd_size=327680 || die "no brd"
    case $1 in
    ext4) mkfs.ext4 -q -b 4096 -J size=8 -E lazy_itable_init=0,lazy_journal_init=0 /dev/ram0 64M || die "mkfs.ext4" ;;
    xfs) mkfs.xfs -q -d size=300m /dev/ram0 || die "mkfs.xfs" ;; # XFS cannot be smaller.
    esac
    sync
    say "$1 made, $(cut -d. -f1 /proc/uptime) s"
    power_probe copy /dev/ram0 /dev/ram2 || die "copying the disk"
    dmsetup create recorded --table "0 655360 log-writes /dev/ram0 /dev/ram1" || die "no dm-log-writes"
    mount -t "$1" /dev/mapper/recorded /mnt || die "mounting $1"
    POWER_PROBE_FAULT=$4 power_probe work /mnt "$2" "$3" || die "work on $1"
    umount /mnt || die umount
    dmsetup remove --retry recorded || die "removing the record"
    say "$1 recorded, $(cut -d. -f1 /proc/uptime) s"
}

# replay FS STATES: under another boot id.
replay() {
    mount --bind /tmp/boot_id /proc/sys/kernel/random/boot_id || die "another boot id"
    power_probe replay /dev/ram1 /dev/ram2 /dev/ram3 "$1" "$2"
    replayed=$?
    umount /proc/sys/kernel/random/boot_id
    rmmod brd || die "rmmod brd"
    say "$1 replayed, $(cut -d. -f1 /proc/uptime) s"
    return $replayed
}

say "kernel $(uname -r), booted in $(cut -d. -f1 /proc/uptime) s"
for fs in ext4 xfs; do
    record $fs "$(option rounds)" "$(option updates)" ""
    replay $fs "$(option states)" || die "$fs"
done
say "ext4 without the syncs of the journal: a loss must be found"
record ext4 1 20 journal
replay ext4 1 >/tmp/fault && die "a journal that is not synced was not noticed"
cat /tmp/fault
grep -q 'LOST: ' /tmp/fault || die "the replay has failed otherwise"
say DONE
poweroff -f
INIT
}

# ---- the check ----

install_packages qemu-system-x86_64:qemu-system-x86 busybox:busybox-static dmsetup:dmsetup mkfs.ext4:e2fsprogs \
    mkfs.xfs:xfsprogs cpio:cpio
. ci/as-tests.sh
cargo build "${as_tests[@]}" --example power_probe
probe=$work/power_probe # Without what debuggers need: all of it is unpacked by an emulated processor.
strip -o "$probe" "${CARGO_TARGET_DIR:-target}/debug/examples/power_probe"
start=$SECONDS
unpack_kernel
build_initramfs

rounds=5 updates=12 states=150 seconds=600
if [ "${DURIX_DEEP:-0}" = 1 ]; then
    rounds=60 updates=20 states=2500 seconds=6000
fi
boot "$work/log" "$((seconds + 20))" "durix.rounds=$rounds durix.updates=$updates durix.states=$states" \
    -machine pc -accel "${DURIX_VM_ACCEL:-tcg}" -m 2G
wait_for "$work/log" '^vm: (DONE|FAILED)' "$seconds"
wait_for_end
show "$work/log"
grep -aq '^vm: DONE' "$work/log" || fail "see above"
echo "power-vm: passed in $((SECONDS - start)) s: nothing acknowledged was lost at any flush point, and the planted fault was found"
