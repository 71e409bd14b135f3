//! Media that stand on another medium hand most calls on.

/// Defines the named methods of [`Medium`](super::Medium): each hands its call on to `self.inner`.
///
/// What a medium does not name and does not define has the trait's own form, which is right for four methods only: `wide`, `load_words`,
/// `store_words` and `store_words_nt`. A medium that counts, drops or copies single stores must not hand them on.
macro_rules! forward {
    (@ survives) => {
        fn survives(self) -> $crate::medium::Survives {
            self.inner.survives()
        }
    };
    (@ attach) => {
        unsafe fn attach(self, base: *const u8, len: usize) {
            // SAFETY: the caller's contract is the same.
            unsafe { self.inner.attach(base, len) }
        }
    };
    (@ detach) => {
        unsafe fn detach(self, base: *const u8) {
            // SAFETY: the caller's contract is the same.
            unsafe { self.inner.detach(base) }
        }
    };
    (@ load) => { forward!(@@ load(word: &AtomicU64, order: Ordering) -> u64); };
    (@ store) => { forward!(@@ store(word: &AtomicU64, value: u64, order: Ordering) -> ()); };
    (@ store_nt) => { forward!(@@ store_nt(word: &AtomicU64, value: u64) -> ()); };
    (@ store_nt_line) => { forward!(@@ store_nt_line(line: &[AtomicU64; 8], values: &[u64; 8]) -> ()); };
    (@ compare_exchange) => {
        forward!(@@ compare_exchange(word: &AtomicU64, current: u64, new: u64) -> std::result::Result<u64, u64>);
    };
    (@ rmw) => { forward!(@@ rmw(word: &AtomicU64, op: Rmw, operand: u64) -> u64); };
    (@ order) => { forward!(@@ order() -> ()); };
    (@ write_back) => { forward!(@@ write_back(lines: Lines<'_>) -> ()); };
    (@ shared_load) => { forward!(@@ shared_load(word: &AtomicU64, order: Ordering) -> u64); };
    (@ shared_store) => { forward!(@@ shared_store(word: &AtomicU64, value: u64, order: Ordering) -> ()); };
    (@ shared_compare_exchange) => {
        forward!(@@ shared_compare_exchange(word: &AtomicU64, current: u64, new: u64) -> std::result::Result<u64, u64>);
    };
    (@ shared_rmw) => { forward!(@@ shared_rmw(word: &AtomicU64, op: Rmw, operand: u64) -> u64); };
    (@ synced) => { forward!(@@ synced() -> ()); };
    (@ spin) => { forward!(@@ spin(turn: u32) -> ()); };
    (@ checked) => {
        #[inline(always)]
        fn checked(self, words: &[AtomicU64], verify: impl FnOnce() -> bool) -> bool {
            self.inner.checked(words, verify)
        }
    };
    (@@ $name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        #[inline(always)]
        #[track_caller]
        fn $name(self, $($arg: $type),*) -> $result {
            self.inner.$name($($arg),*)
        }
    };
    ($($name:ident),+) => {
        $(forward!(@ $name);)+
    };
}

pub(crate) use forward;
