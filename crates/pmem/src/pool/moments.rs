//! At which moments of an opening a log is needed: see [`recovery`](super::recovery).

/// When recovery needs the records of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments(u32);

impl Moments {
    /// Never: no records are pending.
    pub const NONE: Moments = Moments(0);
    /// Before any structure is opened.
    pub const BEFORE: Moments = Moments(1);
    /// When structures can be opened, before anybody gets one.
    pub const AFTER: Moments = Moments(2);
    /// Both.
    pub const BOTH: Moments = Moments(3);

    /// Whether all of `other` are among these.
    pub fn has(self, other: Moments) -> bool {
        self.0 & other.0 == other.0
    }

    /// These without `other`.
    #[must_use]
    pub fn without(self, other: Moments) -> Moments {
        Moments(self.0 & !other.0)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    pub(super) fn from_bits(bits: u32) -> Option<Moments> {
        (bits <= Moments::BOTH.0).then_some(Moments(bits))
    }
}
