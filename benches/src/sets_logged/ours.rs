//! Our sets, as the figures use them.

use std::sync::Arc;

use durix_logfree::{Bst, HashTable, List, SoftHash, SoftList, SoftSkipList};
use durix_pmem::{Mapping, Medium, Op};

use super::Set;

macro_rules! ours {
    ($name:ident, $text:literal) => {
        impl<M: Medium> Set<M> for Arc<$name<M>> {
            type Local = ();

            fn name(&self) -> &'static str {
                $text
            }

            fn bytes(&self, _threads: u64) -> u64 {
                0
            }

            fn create(&self, _mapping: &Mapping<M>) {}

            fn local(&self, _thread: u64) {}

            #[inline(always)]
            fn insert(&self, (): &mut (), op: &Op<'_, M>, key: u64, value: u64) -> bool {
                $name::insert(self, op, key, value).expect("room enough")
            }

            #[inline(always)]
            fn remove(&self, (): &mut (), op: &Op<'_, M>, key: u64) -> bool {
                $name::remove(self, op, key).expect("room enough").is_some()
            }
        }
    };
}

ours!(List, "link-and-persist");
ours!(HashTable, "link-and-persist");
ours!(Bst, "link-and-persist");
ours!(SoftHash, "volatile links (SOFT)");
ours!(SoftList, "volatile links (SOFT)");
ours!(SoftSkipList, "volatile links (SOFT)");
