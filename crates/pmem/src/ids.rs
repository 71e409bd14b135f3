//! Identities: of a pool, and of a boot of the system.

use std::fmt;

use crate::error::{Error, Result};

/// The identity of a pool: random, fixed at creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(pub [u8; 16]);

/// One boot of the operating system; zero where the system does not tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BootId(pub [u8; 16]);

fn hex(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}
impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}
impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl PoolId {
    /// A random one.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no randomness.
    pub fn random() -> Result<PoolId> {
        let mut id = [0; 16];
        let mut filled = 0;
        while filled < id.len() {
            filled +=
                rustix::rand::getrandom(&mut id[filled..], rustix::rand::GetRandomFlags::empty()).map_err(|errno| {
                    Error::Io { action: "asking for randomness for the pool's id".into(), source: errno.into() }
                })?;
        }
        Ok(PoolId(id))
    }
}

impl BootId {
    /// That of the running system, as Linux tells it; unknown elsewhere.
    pub fn current() -> BootId {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::parse(&text).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<BootId> {
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        (digits.len() == 32).then_some(())?;
        u128::from_str_radix(&digits, 16).ok().map(|id| BootId(id.to_be_bytes()))
    }

    /// Whether both are known to be the same boot.
    pub fn is_same_boot(self, other: BootId) -> bool {
        self == other && self != BootId::default()
    }
}
