//! A structure that is no more than its root, for tests of what lies below structures.

use durix_pmem::pool::{Kind, Root, Structure};
use durix_pmem::{Error, Hardware, Result, Session};

/// What it holds its test says.
pub struct Bare {
    pub root: Root<Hardware>,
}

impl Structure<Hardware> for Bare {
    const KIND: Kind = Kind { tag: *b"bare\0\0\0\0", version: durix_pmem::Version::new(1) };
    type Options = ();
    type Error = Error;

    fn create(_: &mut Session<Hardware>, _: &Root<Hardware>, (): &()) -> Result<()> {
        Ok(())
    }
    fn open(_: &mut Session<Hardware>, root: Root<Hardware>, (): &()) -> Result<Self> {
        Ok(Bare { root })
    }
}
