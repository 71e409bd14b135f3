//! Rules of the source that no compiler checks.

mod circles;
mod errors;
mod labels;
mod links;
mod packages;
mod versions;

use std::path::{Path, PathBuf};

/// The files below a folder that are Rust.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
