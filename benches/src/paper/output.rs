//! Files that were asked for: opened before anything is measured, so that a wrong path costs no minutes; under their own
//! name only when they are complete.

use std::path::{Path, PathBuf};

use super::figure::Error;

/// A file in the making.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    temporary: PathBuf,
}

impl Output {
    /// Makes sure that the file can be written.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn create(path: &Path) -> Result<Output, Error> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        if name.is_empty() || path.is_dir() {
            let source = std::io::Error::from(std::io::ErrorKind::IsADirectory);
            return Err(Error::File { action: "creating", path: path.display().to_string(), source });
        }
        name.push(format!(".{}.part", std::process::id()));
        let output = Output { path: path.into(), temporary: path.with_file_name(name) };
        output.write("creating", "")?;
        Ok(output)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn finish(self, text: &str) -> Result<PathBuf, Error> {
        self.write("writing", text)?;
        std::fs::rename(&self.temporary, &self.path).map_err(self.error("writing"))?;
        Ok(self.path.clone())
    }

    fn write(&self, action: &'static str, text: &str) -> Result<(), Error> {
        std::fs::write(&self.temporary, text).map_err(self.error(action))
    }

    fn error(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = self.path.display().to_string();
        move |source| Error::File { action, path, source }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Gone already if the file was finished.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_complete_and_nothing_else_is_left() {
        let dir = std::env::temp_dir().join(format!("durix-paper-output-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x.json");
        drop(Output::create(&path).unwrap());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        let output = Output::create(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(output.finish("text").unwrap(), path);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        let error = Output::create(&dir.join("missing/x.json")).unwrap_err().to_string();
        assert!(error.starts_with("creating ") && error.contains("missing/x.json"), "{error}");
        assert!(Output::create(&dir).is_err(), "a directory");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
