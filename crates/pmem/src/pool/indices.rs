//! The live indices of a pool, as its root entries tell them.

use super::geometry::Geometry;
use super::roots::{RootRecord, RootRef, RootState};
use crate::error::Result;
use crate::kind::Kind;
use crate::medium::Medium;
use crate::session::Op;
use crate::space::Owner;

/// What a pool says of one index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexInfo {
    /// Its name.
    pub name: String,
    /// Its kind and layout version.
    pub kind: Kind,
    /// Whom its space belongs to.
    pub owner: Owner,
}

/// The live indices.
pub(super) fn list<M: Medium>(op: &Op<'_, M>, geometry: &Geometry) -> Result<Vec<IndexInfo>> {
    let mut found = Vec::new();
    for root in RootRef::all(op, geometry) {
        if let Some(RootRecord { state: RootState::Live, kind, name, .. }) = root.read()? {
            found.push(IndexInfo { name, kind, owner: root.owner() });
        }
    }
    Ok(found)
}
