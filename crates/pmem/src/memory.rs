//! How much memory the process may use.

use std::path::Path;
use std::sync::OnceLock;

/// What is assumed where the system does not tell, in bytes.
const ASSUMED: u64 = 4 << 30;

/// Bytes of memory that the process may use, as it was at the first call: those of the machine, or of a control group that it runs in, if that
/// has less.
pub(crate) fn usable() -> u64 {
    static USABLE: OnceLock<u64> = OnceLock::new();
    *USABLE.get_or_init(|| usable_by(Path::new("/proc"), Path::new("/sys/fs/cgroup")))
}

fn usable_by(proc: &Path, groups: &Path) -> u64 {
    let machine = std::fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| total(&text)).unwrap_or(ASSUMED);
    let own = std::fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    own.lines().filter_map(|line| group_limit(line, groups)).fold(machine, u64::min)
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least limit of the group that a line of `/proc/self/cgroup` names and of those above it.
fn group_limit(line: &str, groups: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, file) = match controllers {
        "" => (groups.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|one| one == "memory") => (groups.join("memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    let group = root.join(path.trim_start_matches('/'));
    let limits = group.ancestors().take_while(|above| above.starts_with(&root)).filter_map(|above| {
        // "max" is no limit.
        std::fs::read_to_string(above.join(file)).ok()?.trim().parse::<u64>().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_machine_and_of_all_groups_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, groups) = (dir.path().join("proc"), dir.path().join("groups"));
        let write = |path: std::path::PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(usable_by(&proc, &groups), ASSUMED, "nothing is told");
        write(proc.join("meminfo"), "MemTotal:       8000 kB\nMemFree: 1 kB\n");
        assert_eq!(usable_by(&proc, &groups), 8000 * 1024);
        write(proc.join("self/cgroup"), "3:cpu,memory:/old\n1:cpu:/x\n0::/a/b\n");
        assert_eq!(usable_by(&proc, &groups), 8000 * 1024, "groups without limits");
        write(groups.join("a/b/memory.max"), "max\n");
        write(groups.join("a/memory.max"), "5000000\n");
        write(groups.join("x/memory.limit_in_bytes"), "1\n");
        assert_eq!(usable_by(&proc, &groups), 5_000_000, "the group above");
        write(groups.join("memory/old/memory.limit_in_bytes"), "4000000\n");
        assert_eq!(usable_by(&proc, &groups), 4_000_000, "the first version of groups");
    }
}
