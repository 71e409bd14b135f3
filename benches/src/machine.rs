//! The machine, in a few lines that stand above every table.

use std::fmt;
use std::path::Path;

/// What of the machine matters for these figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processor's name.
    pub model: String,
    /// Processors to be used.
    pub processors: usize,
    /// Level, kind and bytes of each cache of the first processor.
    pub caches: Vec<(u32, String, u64)>,
}

impl Machine {
    /// This machine, as the kernel describes it; what it does not say is left out.
    pub fn this() -> Machine {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            model: model(&info).unwrap_or(std::env::consts::ARCH).to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        }
    }

    /// Bytes of the last-level cache, if the kernel tells.
    pub fn last_level_cache(&self) -> Option<u64> {
        self.caches.iter().max_by_key(|(level, ..)| *level).map(|(.., bytes)| *bytes)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} processor(s)", self.model, self.processors)?;
        for (level, kind, bytes) in &self.caches {
            let kind = if kind == "Unified" { "" } else { &kind[..1].to_lowercase() };
            write!(f, ", L{level}{kind} {}", Bytes(*bytes))?;
        }
        Ok(())
    }
}

/// Bytes as people read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b >= 1 << 30 => write!(f, "{:.1} GiB", b as f64 / f64::from(1 << 30)),
            b if b >= 1 << 20 => write!(f, "{:.1} MiB", b as f64 / f64::from(1 << 20)),
            b if b >= 1 << 10 => write!(f, "{} KiB", b >> 10),
            b => write!(f, "{b} B"),
        }
    }
}

fn model(cpuinfo: &str) -> Option<&str> {
    cpuinfo.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(": ")).map(|(_, name)| name.trim())
}

fn caches(dir: &Path) -> Vec<(u32, String, u64)> {
    let field = |index: &Path, name: &str| std::fs::read_to_string(index.join(name)).map(|s| s.trim().to_owned());
    let mut caches: Vec<_> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("index"))
        .filter_map(|e| {
            let level = field(&e.path(), "level").ok()?.parse().ok()?;
            let kind = field(&e.path(), "type").ok().filter(|k| !k.is_empty())?;
            Some((level, kind, size(&field(&e.path(), "size").ok()?)?))
        })
        .collect();
    caches.sort();
    caches
}

/// The kernel's "36608K" in bytes.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(model("processor\t: 0\nmodel name\t: Some CPU @ 1 GHz\n"), Some("Some CPU @ 1 GHz"));
        assert_eq!(model(""), None);
        assert_eq!(size("36608K"), Some(36608 << 10));
        assert_eq!(size("2M"), Some(2 << 20));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("x"), None);
        assert_eq!(size(""), None);
    }

    #[test]
    fn the_line_names_each_cache() {
        let caches =
            vec![(1, "Data".into(), 32 << 10), (1, "Instruction".into(), 32 << 10), (3, "Unified".into(), 3 << 20)];
        let machine = Machine { model: "X".into(), processors: 2, caches };
        assert_eq!(machine.to_string(), "X, 2 processor(s), L1d 32 KiB, L1i 32 KiB, L3 3.0 MiB");
        assert_eq!(machine.last_level_cache(), Some(3 << 20));
        assert!(caches_of_nowhere().is_empty());
        assert_eq!([Bytes(5).to_string(), Bytes(5 << 30).to_string()], ["5 B", "5.0 GiB"]);
    }

    fn caches_of_nowhere() -> Vec<(u32, String, u64)> {
        caches(Path::new("/nowhere"))
    }
}
