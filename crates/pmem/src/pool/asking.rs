//! Which roots ask for recovery: see [`recovery`](super::recovery).

use super::geometry::Geometry;
use super::moments::Moments;
use super::roots::{RootRecord, RootRef, RootState};
use crate::error::Error;
use crate::kind::Kind;
use crate::medium::Medium;
use crate::session::Op;
use crate::space::Owner;

/// A root that asks for recovery.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) owner: Owner,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) moments: Moments,
    /// The word, if it says nothing that is ever written.
    pub(super) damaged: Option<u64>,
}

/// The roots that ask. A damaged entry asks for nothing: whoever looks its name up is told that it is damaged. One whose
/// asking is damaged asks for what nobody can give.
pub(super) fn asking<M: Medium>(op: &Op<'_, M>, geometry: &Geometry) -> Vec<Asking> {
    let mut found = Vec::new();
    for root in RootRef::all(op, geometry) {
        let Ok(Some(RootRecord { state: RootState::Live, kind, name, .. })) = root.read() else { continue };
        let owner = root.owner();
        let (moments, damaged) = match root.asks() {
            Ok(moments) => (moments, None),
            Err(word) => (Moments::BOTH, Some(word)),
        };
        if moments != Moments::NONE {
            found.push(Asking { owner, name, kind, moments, damaged });
        }
    }
    found
}

impl Asking {
    pub(super) fn refusal(&self) -> Error {
        match self.damaged {
            Some(found) => Error::DamagedRoot { slot: self.owner.0, found },
            None => Error::PendingRecords { name: self.name.clone(), kind: self.kind },
        }
    }
}
