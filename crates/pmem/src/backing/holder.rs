//! Who has a file locked, for a message.

use std::fs::{File, read_to_string};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{major, minor};

/// Names the process that holds a lock on `file`, as far as the system tells.
pub(super) fn holder(file: &File) -> String {
    let found = file.metadata().ok().and_then(|meta| {
        let place = format!("{:02x}:{:02x}:{}", major(meta.dev()), minor(meta.dev()), meta.ino());
        process(&read_to_string("/proc/locks").ok()?, &place)
    });
    match found {
        Some(pid) if pid == std::process::id() => "this process".into(),
        Some(pid) => match read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end()),
            Err(_) => format!("process {pid}"),
        },
        None => "this process or another".into(),
    }
}

/// The process of the first line of `/proc/locks` that is about a lock held on `place` ("device:inode").
fn process(locks: &str, place: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // "7: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; who waits has "->" after the number.
        match words[..] {
            [_, "FLOCK", _, _, pid, at, ..] if at == place => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "1: POSIX  ADVISORY  WRITE 70 fe:00:11 0 EOF\n\
        2: FLOCK  ADVISORY  WRITE 71 fe:00:12 0 EOF\n\
        2: -> FLOCK  ADVISORY  WRITE 72 fe:00:12 0 EOF\n\
        3: FLOCK  ADVISORY  READ -1 fe:00:13 0 EOF\n\
        broken\n";

    #[test]
    fn only_a_holder_of_this_file_is_named() {
        assert_eq!(process(LOCKS, "fe:00:12"), Some(71));
        for unknown in ["fe:00:11", "fe:00:13", "fe:00:14", "fe:01:12", "fe:00:1"] {
            assert_eq!(process(LOCKS, unknown), None, "{unknown}");
        }
    }

    #[test]
    fn this_process_is_known() {
        let file = tempfile::tempfile().unwrap();
        file.try_lock().unwrap();
        // A container may show no locks.
        assert!(["this process", "this process or another"].contains(&&*holder(&file)), "{}", holder(&file));
    }
}
