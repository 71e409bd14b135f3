# Sourced by the checks that run in a virtual machine (dax-vm.sh, power-vm.sh): QEMU boots Debian's stock kernel, unpacked from its
# package and not installed, with an initramfs of busybox and whatever else the check adds.
#
# The check sets `check`, its name, and `skip_variable`, the name of the variable that may say skip-if-impossible, before it sources
# this; then it calls, in order:
#
#   install_packages PROGRAM:PACKAGE…   what is missing, by apt
#   unpack_kernel                       sets $kernel; what is needed of the package stays in $keep
#   begin_initramfs, add_program, add_module, $root/init of its own, end_initramfs
#   boot, wait_for, wait_for_end, kill_machine, show
#
# DURIX_DAX_VM_DIR keeps the kernel between runs (default: target/dax-vm).

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
    echo "$check: $*" >&2
    exit 1
}

impossible() {
    if [ "${!skip_variable:-}" = skip-if-impossible ]; then
        echo "$check: SKIPPED: $*"
        exit 0
    fi
    fail "$* ($skip_variable=skip-if-impossible skips this check)"
}

# ---- what is needed ----

# Installs the packages of programs that are missing.
install_packages() {
    local missing=() needed
    for needed in "$@"; do
        PATH=$PATH:/sbin:/usr/sbin command -v "${needed%%:*}" >/dev/null || missing+=("${needed##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || impossible "no apt-get, and ${missing[*]} missing"
    echo "$check: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { timeout 300 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
        >"$work/apt.log" 2>&1 || { tail -5 "$work/apt.log" >&2; impossible "cannot install ${missing[*]}"; }
}

# The kernel of $package as $kernel, its modules below $modules. What is needed of the package stays in $keep.
unpack_kernel() {
    local package deb unpacked
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1 || true)
    [ -n "$package" ] || impossible "apt knows no package linux-image-amd64 (apt-get update?)"
    unpacked=$keep/$package-2 # The number goes up with the list of what is unpacked.
    if [ ! -d "$unpacked" ]; then
        echo "$check: downloading and unpacking $package"
        (cd "$work" && timeout 600 apt-get download -qq "$package" >"$work/apt.log" 2>&1) ||
            { tail -n 5 "$work/apt.log" >&2; impossible "cannot download $package"; }
        deb=$(find "$work" -name 'linux-image-*.deb')
        mkdir "$work/kernel"
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/kernel" --wildcards '*/vmlinuz-*' '*/kernel/drivers/nvdimm/*' \
            '*/kernel/drivers/acpi/nfit/*' '*/kernel/drivers/dax/*' '*/kernel/crypto/crc32c*' '*crc32c*' '*/kernel/lib/crc16*' \
            '*/kernel/fs/ext4/*' '*/kernel/fs/jbd2/*' '*/kernel/fs/mbcache*' '*/kernel/fs/xfs/*' \
            '*/kernel/drivers/md/dm-mod*' '*/kernel/drivers/md/dm-log-writes*' '*/kernel/drivers/md/dm-snapshot*' \
            '*/kernel/drivers/md/dm-bufio*' '*/kernel/drivers/block/brd*'
        rm -rf "$deb" "$keep"/linux-image-*
        mv "$work/kernel" "$unpacked"
    fi
    kernel=$(find "$unpacked" -name 'vmlinuz-*')
    modules=$unpacked
    echo "$check: $(basename "$kernel"), $(qemu-system-x86_64 --version | head -n 1)"
}

# Copies a program and the shared libraries it needs to the same paths of the initramfs.
add_program() {
    local program library
    program=$(PATH=$PATH:/sbin:/usr/sbin command -v "$1")
    cp -L "$program" "$root/bin/"
    strip --strip-debug "$root/bin/$(basename "$program")" # It lies in the memory of the machine.
    for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ )]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

# add_module NAME [PARAMETERS]: a module that is loaded at boot.
add_module() {
    local file
    file=$(find "$modules" -name "$1.ko" -o -name "$1.ko.xz" -o -name "$1.ko.zst")
    [ -n "$file" ] || return 0 # Built in, or gone in this kernel: then what needs it says so.
    case $file in
    *.xz) xz -dc "$file" >"$root/modules/$1.ko" ;;
    *.zst) zstd -qdc "$file" >"$root/modules/$1.ko" ;;
    *) cp "$file" "$root/modules/" ;;
    esac
    echo "$*" >>"$root/modules/order"
}

begin_initramfs() {
    root=$work/root
    mkdir -p "$root"/{bin,proc,sys,dev,mnt,modules,etc,run,tmp,lib,lib64}
    cp "$(command -v busybox)" "$root/bin/busybox"
    # How every init begins. The kernel's command line says what to do: `option NAME` is what it says of durix.NAME.
    cat >"$root/begin" <<'BEGIN'
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
while read -r module parameters; do
    insmod "/modules/$module.ko" $parameters 2>/dev/null
done </modules/order
say() { echo "vm: $*"; }
die() { say "FAILED: $*"; poweroff -f; }
option() { sed -n "s/.*durix\.$1=\([^ ]*\).*/\1/p" /proc/cmdline | tr _ ' '; }
BEGIN
}

end_initramfs() {
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"
}

# ---- the virtual machine ----

# boot LOG SECONDS COMMAND-LINE OPTION…: starts QEMU in the background, its console in LOG.
boot() {
    local log=$1 seconds=$2 append=$3
    shift 3
    # A busy machine fails the kernel's check of the emulated timer, which is not what is tested here.
    # The timeout ends QEMU should this script be killed in a way that no trap sees.
    timeout -k 1 "$seconds" qemu-system-x86_64 "$@" -cpu max -kernel "$kernel" -initrd "$work/initramfs" -nodefaults \
        -display none -serial "file:$log" -no-reboot -append "console=ttyS0 quiet panic=-1 no_timer_check $append" \
        </dev/null >"$work/qemu.log" 2>&1 &
    qemu=$!
    disown "$qemu" # So that the shell does not report that it was killed.
}

show() {
    tr -d '\r' <"$1" | grep -aE '^(vm|pool|verified|torture|dax_probe|power|power_probe):' | sed 's/^/    /' || true
}

# wait_for LOG PATTERN [SECONDS]: until a line of the console matches; fails if the machine fails or ends first.
wait_for() {
    local deadline=$((SECONDS + ${3:-120}))
    : >>"$1"
    until tr -d '\r' <"$1" | grep -aqE "$2"; do
        if ! kill -0 "$qemu" 2>/dev/null; then
            tr -d '\r' <"$1" | grep -aqE "$2" && return 0
            tail -n 15 "$work/qemu.log" >&2
            tail -n 15 "$1" >&2
            fail "the virtual machine ended before it said /$2/"
        fi
        [ $SECONDS -lt $deadline ] || { tail -n 15 "$1" >&2; fail "no /$2/ within ${3:-120} s"; }
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
